"""How long tokens should be, and how precise answers are: 31 + 30 queries before anything else.

A line through 0 is asked at lengths over twelve decades: where the slope changes hyperplanes are
crossed, and the mean of these lengths is the length scale Λ. Beside six points of about that length
second differences over two steps tell rounding, which is the same for both, from a function that
bends everywhere, whose second difference grows as the square of the step.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.feed_forward.line_cells import AskTokens
from unsoftmax.measure.precision import UNIT, Precision
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason

# Places on a line through 0, from 3·10⁻⁵ to 1.3·10⁸ on both sides: hyperplanes at other
# distances than these are not looked for.
LINE = np.concatenate([-(8.0 ** np.arange(9.0, -6.0, -1.0)), [0.0], 8.0 ** np.arange(-5.0, 10.0)])
# A change of the slope counts from so many roundoffs on.
CLEAR = 100.0
# Lengths of the points beside which second differences are taken, in length scales.
BESIDE = np.array((0.3, 1.0, 3.0, 0.3, 1.0, 3.0))
# The shorter step, in length scales: kinks are rarely as close to a point.
STEP = 2.0**-18
# The longer step, in shorter ones.
WIDER = 16.0
# Answers bend everywhere if the longer step's second differences are so many times the other's:
# 256 times where they do, once where they are roundoff.
SMOOTH = 64.0
# Errors are at least so many roundings of an answer: sums round more than once, and tokens do,
# which second differences do not show where no neuron is active.
ROUNDINGS = 2.0
# Answers with larger relative errors are refused.
COARSEST = 1e-3
# The same for errors that are no rounding of answers: at 1e-5 kinks drown, and what is left of
# neurons is taken for none.
NOISIEST = 2e-6
# Errors of up to so many roundings of an answer are the arithmetic's.
ROUNDED = 8.0
# Answers grow with tokens if the longest are answered otherwise than ones an eighth as long by
# more than this share of the largest such difference; where they do not, a norm is there.
BOUNDED = 1e-3


def drawn_directions(count: int, dim: int, rng: np.random.Generator) -> Array:
    """Draw vectors (count, dim) of norm 1."""
    x = rng.standard_normal((count, dim))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


@dataclass(frozen=True, slots=True)
class OpeningLook:
    """What is known of a target before the search."""

    length: float
    """Λ: lengths at which a line through 0 crosses hyperplanes."""
    size: float
    steepness: float
    """Answers to x have about the norm ``size + steepness·‖x‖``."""
    noise: float
    """Standard deviation of an answer's error (2-norm), relative to that."""
    tokens: Array
    answers: Array
    """What was asked along the line, (n, d) and (n, d_out)."""
    why: tuple[str, ...]

    @property
    def rounding(self) -> float:
        """How answers are rounded by their format, relatively."""
        return max(_precision(self.answers).share_of(1.0), UNIT)

    def error_at(self, x: Array) -> Array:
        """Return errors of answers to tokens (n, d), 2-norms."""
        return np.asarray(self.noise * self.size_at(x))

    def size_at(self, x: Array) -> Array:
        """Return sizes of answers to tokens (n, d)."""
        return np.asarray(self.size + self.steepness * np.linalg.norm(x, axis=1))


@dataclass(frozen=True, slots=True)
class TargetOpening:
    """Asks what an `OpeningLook` holds."""

    dim: int
    ask: AskTokens
    rng: np.random.Generator

    def run(self) -> Generator[Round, Answers, OpeningLook]:
        """Look at the target.

        Raises
        ------
        ModelMismatch
            It bends everywhere, answers with one number, or by chance.
        """
        look = yield from self.line()
        return (yield from self.measured(look))

    def line(self) -> Generator[Round, Answers, OpeningLook]:
        """Ask along a line; what answers are off by is not known from it."""
        tokens = LINE[:, None] * drawn_directions(1, self.dim, self.rng)[0]
        answers = yield from self.ask(tokens)
        if answers.shape[1] < 2:
            raise Reason.ONE_NUMBER.error(
                instead="ReluNetworkLearner recovers such a network from numbers"
            )
        precision = _precision(answers)
        length = self._length(answers, precision)
        size, steepness = _sizes(answers, length)
        return OpeningLook(length, size, steepness, UNIT, tokens, answers, precision.why)

    def _length(self, answers: Array, precision: Precision) -> float:
        """Return the mean length, in logarithms, at which the slope changes."""
        roundoff = max(precision.share_of(1.0), UNIT)
        slopes = np.diff(answers, axis=0) / np.diff(LINE)[:, None]
        size = np.linalg.norm(answers, axis=1)
        coarse = roundoff * (size[1:] + size[:-1]) / np.diff(LINE)
        change = np.linalg.norm(np.diff(slopes, axis=0), axis=1)
        change[change < CLEAR * (coarse[1:] + coarse[:-1])] = 0.0
        at = np.abs(LINE[1:-1])
        used = (at > 0) & (change > 0)
        if not np.any(used):
            return 1.0
        # a change seen between two lengths lies between them
        mean = np.average(np.log2(at[used]), weights=change[used])
        return float(2.0 ** np.round(mean))

    def measured(
        self, look: OpeningLook, precision: Precision | None = None
    ) -> Generator[Round, Answers, OpeningLook]:
        """Measure what answers are off by beside a few points; refuse what bends there."""
        precision = precision or _precision(look.answers)
        points, answers = yield from around_points(self.dim, look.length, self.ask, self.rng)
        before, behind, at, ahead, beyond = answers
        narrow = np.linalg.norm(behind + ahead - 2 * at, axis=1)
        wide = np.linalg.norm(before + beyond - 2 * at, axis=1)
        if np.median(wide) > SMOOTH * np.median(narrow) and np.median(narrow):
            raise Reason.LAYER_IS_SMOOTH.error(where="The")
        # the deviation of a second difference is √6 times that of an answer; one of them may have
        # a kink between, and where few neurons are active answers are nearly exact
        measured = float(np.sort(narrow / look.size_at(points))[-2]) / np.sqrt(6)
        width = np.sqrt(answers.shape[2])
        rounding = precision.relative + precision.unit
        rounding += precision.absolute * width / look.size_at(points).min()
        noise = max(measured, ROUNDINGS * rounding)
        if noise > COARSEST:
            raise Reason.TOO_COARSE_FOR_NEURONS.error(
                what="The answers are", noise=noise, purpose="to see single neurons", most=COARSEST
            )
        if measured > max(NOISIEST, ROUNDED * rounding):
            raise Reason.TOO_NOISY_FOR_NEURONS.error(noise=measured, most=NOISIEST)
        return replace(look, noise=noise)


def around_points(
    dim: int, length: float, ask: AskTokens, rng: np.random.Generator
) -> Generator[Round, Answers, tuple[Array, Array]]:
    """Ask around a few points, at −WIDER, −1, 0, 1 and WIDER steps from each.

    Returns the points (n, dim), and answers (5, n, m).
    """
    points = length * BESIDE[:, None] * drawn_directions(len(BESIDE), dim, rng)
    step = STEP * length * drawn_directions(len(BESIDE), dim, rng)
    x = np.concatenate([points + k * step for k in (-WIDER, -1, 0, 1, WIDER)])
    answers = yield from ask(x)
    return points, answers.reshape(5, len(points), -1)


def _precision(answers: Array) -> Precision:
    constant = not np.any(np.ptp(answers, axis=0))
    return Precision() if constant else Precision.of_format([answers])


def norms_of(look: OpeningLook) -> tuple[str, ...]:
    """Return where a norm may be, the likelier place first: nowhere if none.

    Answers that do not grow with tokens, or grow as tokens do, are those of a layer with a norm
    before; those that do not grow may have one behind. Before, what eps does to a token goes with
    the inverse square of its length; behind, what biases do with the inverse.
    """
    residual, ratios = _far_steps(look)
    if residual is None:
        return ()
    if residual:
        return ("pre",)
    last = [one[0] for one in ratios]
    return ("pre", "post") if last and np.median(last) < 1 / 22 else ("post", "pre")


def fading_norm(look: OpeningLook) -> str | None:
    """Return the norm as whose far answers fade, to a factor of 1.5; None if as none.

    Those of sigmoids without a norm go as an exponential.
    """
    _, ratios = _far_steps(look)
    for norm, power in (("pre", 2), ("post", 1)):
        apart = [abs(np.log(one * 8.0**power)) for ratio in ratios for one in ratio]
        if apart and max(apart) < np.log(1.5):
            return norm
    return None


def _far_steps(look: OpeningLook) -> tuple[bool | None, list[tuple[float, ...]]]:
    """Return whether x is added to answers that are bounded otherwise, None if they are not.

    And ratios of the last differences that show between answers to tokens eight times as long.
    """
    d, unit = look.tokens.shape[1], look.rounding
    half = len(look.tokens) // 2
    for residual in (False, True):
        if residual and look.answers.shape[1] != d:
            continue
        z = look.answers - look.tokens if residual else look.answers
        size = np.linalg.norm(z, axis=1)
        noise = unit * (size + residual * np.linalg.norm(look.tokens, axis=1))
        sides = [np.arange(half, -1, -1), np.arange(half, len(z))]
        steps = [np.linalg.norm(np.diff(z[side], axis=0), axis=1) for side in sides]
        off = [64 * (noise[side][1:] + noise[side][:-1]) for side in sides]
        spread = max(float(np.max(one)) for one in steps)
        far = max(float(one[-1]) - float(own[-1]) for one, own in zip(steps, off, strict=True))
        if not any(np.any(one > own) for one, own in zip(steps, off, strict=True)):
            continue  # a constant
        if far > BOUNDED * spread:
            continue  # it grows
        ratios = []
        for one, own in zip(steps, off, strict=True):
            k = int(np.max(np.flatnonzero(one > 30 * own), initial=0))
            if k > 1 and one[k - 1] > 0:
                ratios.append(tuple(float(one[k - i] / one[k - i - 1]) for i in range(min(2, k))))
        return residual, ratios
    return None, []


def _sizes(answers: Array, length: float) -> tuple[float, float]:
    """Return the size of answers near 0, and how it grows."""
    norms = np.linalg.norm(answers, axis=1)
    near = np.abs(LINE) <= length
    far = ~near
    steepness = float(np.max(norms[far] / np.abs(LINE[far]), initial=0.0))
    size = float(np.max(norms[near], initial=0.0)) + steepness * length
    return size or 1.0, steepness
