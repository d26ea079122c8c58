"""Before the search: a typical length, whether answers change at all, and how precise they are.

The length scale takes 70 queries, with biases only; a constant shows in 6 answers and is
confirmed by 32; the noise takes 48, and without biases 48 more where it is more than rounding.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.learners.relu_network.lift import (
    Circle,
    Lift,
    PiecewiseLinear,
    WrittenPoints,
    ask_points,
)
from unsoftmax.measure.precision import FLOAT32_UNIT, UNIT, significant_bits
from unsoftmax.probes import Array, Round, Singles
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason
from unsoftmax.validate.judge import Answered

# Places on a circle at which noise is estimated, three values each, and the angle between these.
# Fewer: the estimate may be too low. Larger: kinks fall between them.
PLACES, BESIDE = 16, 1e-5
# Smallest relative errors of float64 answers, that of their last place, and of float32 numbers.
DOUBLE, SINGLE = 2e-16, 1.2e-7
# A constant of so few significant bits is round by nature; one of more, up to those of float32, is
# a float32 number.
ROUND_BITS, SINGLE_BITS = 11, 24
# Factor on the deviation that the median of 16 places gives: it may be too low by chance.
LARGER = 1.5
# A search uses the 90 % quantile, because noise may vary along the circle, but at most this many
# times the median: otherwise a single place with a kink makes the search merge neurons.
MOST = 6.0


@dataclass(frozen=True, slots=True)
class NoiseLevel:
    """Standard deviation of an answer's error, on the unit sphere of the lift."""

    deviation: float
    """For the errors of what is computed from answers."""
    search: float
    """For the search of kinks. Too low: false kinks; too high: missed kinks."""
    size: float
    """Largest |F| seen."""

    def at_least(self, size: float) -> NoiseLevel:
        """Allow for the rounding of answers as large as ``size``, elsewhere than on the circle."""
        return NoiseLevel(
            max(self.deviation, DOUBLE * size),
            max(self.search, 2 * DOUBLE * size),
            max(self.size, size),
        )

    def raised(self, deviation: float) -> NoiseLevel:
        """Allow for a deviation that was estimated from a few answers."""
        least = LARGER * deviation
        return NoiseLevel(max(self.deviation, least), max(self.search, least), self.size)

    @classmethod
    def of_rounding(cls, size: float) -> NoiseLevel:
        """Take answers as large as ``size`` to be rounded, and no more."""
        return cls(DOUBLE * size, 2 * DOUBLE * size, size)

    @classmethod
    def of_constant(cls, answer: float) -> NoiseLevel:
        """Take the only answer there is to be rounded, to float32 where it looks like that."""
        rounded = ROUND_BITS < significant_bits(np.array([answer])) <= SINGLE_BITS
        unit = SINGLE if rounded else DOUBLE
        return cls(unit * abs(answer), 2 * unit * abs(answer), abs(answer))


def estimate_noise(
    circle: Circle, rng: np.random.Generator
) -> Generator[Round, Answers, NoiseLevel]:
    """Estimate the answers' errors along a circle."""
    h = BESIDE
    theta = rng.uniform(circle.low + 2 * h, circle.high - 2 * h, PLACES)
    Y = circle.at(np.concatenate([theta, theta - h, theta + h]))
    [y] = yield [Singles(WrittenPoints(circle.lift, Y), phase="noise", purpose="data")]
    F = circle.lift.answers(Y, y)
    unit = SINGLE if np.array_equal(y, y.astype(np.float32)) else DOUBLE
    at, before, after = np.split(F, 3)
    r = np.abs(before + after - 2 * np.cos(h) * at)
    # r has √6 times the deviation of an answer; the 50 % and 90 % quantiles of |normal| are .6745
    # and 1.645
    median = float(np.median(r)) / (0.6745 * np.sqrt(6))
    ninety = float(np.quantile(r, 0.9)) / (1.645 * np.sqrt(6))
    size = float(np.abs(F).max())
    deviation = max(LARGER * median, unit * size, float(np.finfo(float).tiny))
    search = max(deviation, min(ninety, MOST * median), 2 * unit * size)
    return NoiseLevel(float(deviation), float(search), size)


# Two slopes differ if their difference is more than this many times their error.
BENT = 4.0
# Error of an answer, in roundoffs of the larger of the two that give a slope, and of its terms.
ROUNDOFFS = 16.0
# Number of the shortest lengths, where answers are as large as near 0.
SHORTEST = 8
# Noise is NOISY times the QUIET quantile of what answers near 0 miss the line through
# their neighbours by: at most lengths no hyperplane is crossed.
QUIET, NOISY = 0.2, 10.0
# Lengths at which both sides are asked, 4·10⁻⁹ to 10¹². Hyperplanes nearer than that pass for some
# through 0, those farther away are not looked for. With a larger ratio λ is less precise; a smaller
# one takes more queries.
LENGTHS: Array = 4.0 ** np.arange(-14.0, 21.0)


@dataclass(frozen=True, slots=True)
class LengthScan:
    """Answers along a line through 0."""

    lengths: Array
    direction: Array
    """Of norm 1, (d,)."""
    y: Array
    """Answers at ± the lengths, (2, n)."""

    @classmethod
    def none(cls) -> LengthScan:
        """Return a scan without answers, for targets in which all lengths are alike."""
        return cls(np.zeros(0), np.zeros(0), np.zeros((2, 0)))

    @property
    def tokens(self) -> Array:
        """What was asked, (2n, d)."""
        return np.outer(np.concatenate([self.lengths, -self.lengths]), self.direction)

    @property
    def answers(self) -> Array:
        """What was answered, (2n,)."""
        return np.asarray(self.y.ravel())

    @property
    def farthest(self) -> float:
        """Length up to which was looked, infinite where lengths do not matter."""
        return float(self.lengths[-1]) if len(self.lengths) else np.inf

    @property
    def bends(self) -> Array:
        """How much the slope changes at each inner length, on both sides; 0 where it need not."""
        h, size = np.diff(self.lengths), np.abs(self.y)
        change = np.abs(np.diff(np.diff(self.y, axis=1) / h, axis=1))
        # what an answer misses the line through its neighbours by: |w_k b_k| where a neuron's
        # hyperplane is crossed. Their sum, and that of the changes, is the size of answers' terms
        missed = change / (1 / h[1:] + 1 / h[:-1])
        terms = np.sum(missed) + self.lengths[1:] * np.sum(change)
        own = self._unit * (np.maximum(size[:, 1:], size[:, :-1]) + terms)
        # far out answers are large, and rounding hides noise of a fixed size
        inner = size[:, 1:-1] <= 2 * size[:, :SHORTEST].max()
        own += NOISY * np.quantile(missed[inner], QUIET)
        # noise that is a share of the answers grows with them
        largest = np.maximum(np.maximum(size[:, 2:], size[:, :-2]), size[:, 1:-1])
        if np.any(some := largest > 0):
            share = np.quantile(missed[some] / largest[some], QUIET)
            own += NOISY * share * np.maximum(size[:, 1:], size[:, :-1])
        own /= h
        return np.where(change > BENT * (own[:, 1:] + own[:, :-1]), change, 0.0)

    @property
    def length(self) -> float:
        """Median of the distances from 0 at which the slope changes.

        Where it changes at 0 alone, the length at which answers are twice as large as there; 1
        where the target is straight.
        """
        if not len(self.lengths):
            return 1.0
        # each change counts alike: where sizes differ, large jumps are near and would hide far ones
        changes = self.bends > 0
        places = np.broadcast_to(self.lengths[1:-1], changes.shape)[changes]
        return float(np.exp(np.median(np.log(places)))) if len(places) else self._length_of_a_fold

    @property
    def _length_of_a_fold(self) -> float:
        """Answer at 0 beside the slopes on either side, if they differ: the nearest length."""
        at_0 = float(np.mean(self.y[:, 0]))
        rise, far = self.y[:, -1] - at_0, float(np.abs(self.y[:, -1]).max())
        steepest = float(np.abs(rise).max()) / self.lengths[-1]
        if abs(rise.sum()) <= BENT * self._unit * far or not at_0 * steepest:
            return 1.0
        places = np.abs(np.log(self.lengths * (steepest / abs(at_0))))
        return float(self.lengths[np.argmin(places)])

    @property
    def _unit(self) -> float:
        """Relative error of an answer."""
        single = np.array_equal(self.y, self.y.astype(np.float32))
        return ROUNDOFFS * (FLOAT32_UNIT if single else UNIT)


def scan_lengths(dim: int, rng: np.random.Generator) -> Generator[Round, Answers, LengthScan]:
    """Ask along a random line through 0."""
    v = rng.standard_normal(dim)
    v /= np.linalg.norm(v)
    tokens = np.outer(np.concatenate([LENGTHS, -LENGTHS]), v)
    [y] = yield [Singles(tokens, phase="length", purpose="data")]
    return LengthScan(LENGTHS, v, y.reshape(2, -1))


# Lengths of half of all fresh tokens, in length scales.
NEAR = (0.3, 1.0, 3.0)
# Ranges of log10 of the length of a quarter each, in length scales: neurons that are dead near 0
# show only far out. A circle does not see hyperplanes much farther out; these are searched for
# afterwards (`far_neurons`), and the hold-out has tokens as long as any that was asked.
MIDDLE = (0.5, 3.0)
OUTER = (3.0, 4.0)
# Range of log10 of the length of fresh tokens without biases, where no length is special.
SIZES = (-1.0, 2.0)
# Largest error of an accepted network, relative to the root mean square of the answers. The
# claim, 3e-9 at 2,000 points, leaves room for the largest error among more points.
ACCEPTED = 4e-10
# Where answers are coarse, this many times their relative error is accepted instead; 10 to 80
# were measured.
COARSE = 200.0
# Largest error that is ever accepted.
COARSEST = 1e-3
# Number of length scales beyond which misses are weighted less.
FAR = 1e3
# Weight of misses there. Weight decay leaves neurons with slopes of 1e-8 of the others' and
# hyperplanes 10⁶ length scales away; they drown in the others' errors and do not matter. A neuron
# that matters is a thousand times as large.
FAR_SHARE = 1 / 250


def accepted_error(noise: NoiseLevel, size: float) -> float:
    """Return the largest relative error of a network that is accepted."""
    if not size:
        return ACCEPTED
    return max(ACCEPTED, min(COARSE * noise.deviation / size, COARSEST))


def fresh_tokens(
    lift: Lift, count: int, rng: np.random.Generator, farthest: float = np.inf
) -> Array:
    """Return tokens of many lengths, (count, d), the outer ones up to ``farthest``, if finite.

    Most of these are among the longest: a neuron shows wherever its hyperplane was passed.
    """
    x = rng.standard_normal((count, lift.dim)) / np.sqrt(lift.dim)
    n = np.arange(count)
    if not lift.biases:
        return np.asarray(lift.token_scale * 10.0 ** rng.uniform(*SIZES, (count, 1)) * x)
    near = np.array(NEAR)[n % len(NEAR)]
    middle = 10.0 ** rng.uniform(*MIDDLE, (count, 1))
    first, last = OUTER
    if np.isfinite(farthest):
        last = max(first, np.log10(farthest / lift.length))
    outer = 10.0 ** (last - (last - first) * rng.uniform(size=(count, 1)) ** 2)
    far = np.where(n % 4 == 1, middle[:, 0], outer[:, 0])
    return np.asarray(lift.length * np.where(n % 2, far, near)[:, None] * x)


def weights_of(lift: Lift, x: Array, neurons: int) -> Array:
    """Return how much misses at tokens count: far out a share, if there are neurons."""
    if not lift.biases or not neurons:
        return np.ones(len(x))
    return np.where(np.linalg.norm(x, axis=1) > FAR * lift.length, FAR_SHARE, 1.0)


@dataclass(frozen=True, slots=True)
class FreshLook:
    """How fresh points are predicted."""

    largest: float
    rms: float
    size: float
    """Root mean square of F there."""

    @property
    def share(self) -> float:
        """Largest error relative to the answers."""
        return self.largest / self.size if self.size else self.largest

    @classmethod
    def none(cls) -> FreshLook:
        """Return what any look is better than."""
        return cls(np.inf, np.inf, 1.0)


def look(lift: Lift, form: PiecewiseLinear, x: Array) -> Generator[Round, Answers, FreshLook]:
    """Compare a form with F at points of norm 1 where tokens x point to."""
    Y = lift.points(x)
    F = yield from ask_points(WrittenPoints(lift, Y), "fresh points")
    miss = (F - form(Y)) * weights_of(lift, x, len(form))
    return FreshLook(
        float(np.abs(miss).max()), float(np.sqrt(np.mean(miss**2))), float(np.sqrt(np.mean(F**2)))
    )


# Answers are one constant if they spread by at most this share of their size.
CONSTANT = 1e-14
# Number of fresh tokens that confirm a constant: a network may be dead nearly everywhere.
CONFIRMED = 32
# Length scales at which a constant is looked for, along three directions and backwards.
FAR_SCALES = (1e2, 1e3, 1e4)
NEAR_SCALES = (-1.0, -3.0, -30.0)
# Factor between the token lengths that test whether a target without biases is homogeneous.
STRETCHED = 100.0
# Largest relative deviation of the answers from that factor; beyond, the target has biases.
HOMOGENEOUS = 1e-4
# Relative noise above this is more than the rounding of float64: without biases longer tokens are
# tried.
ROUNDING = 1e-14
# Factor on the token length then: noise of a fixed size becomes negligible.
LONG_TOKENS = 1e12
# The longer tokens are kept if they reduce the relative noise below this share.
HELPS = 0.1
# Relative noise above which the target is refused: it hides all kinks.
NOISIEST = 1e-4


@dataclass(frozen=True, slots=True)
class LiftedTarget:
    """What is known of a target before the search."""

    lift: Lift
    circle: Circle
    """The first circle to be swept, on which the noise was estimated."""
    noise: NoiseLevel
    constant: float | None = None
    """The only answer there is, if there is only one."""
    scan: LengthScan = field(default=LengthScan.none())
    """The first answers, along a line through 0."""
    opening: Answered | None = None
    """The six tokens that told whether answers change, and theirs."""

    @property
    def first_answers(self) -> list[Answered]:
        """Tokens (n, d) that were asked before the search, and their answers."""
        scanned = [(self.scan.tokens, self.scan.answers)] if len(self.scan.lengths) else []
        return scanned + ([] if self.opening is None else [self.opening])

    @property
    def coarseness(self) -> float:
        """Deviation of an answer relative to the largest; 0 where all answers are."""
        return self.noise.deviation / self.noise.size if self.noise.size else 0.0

    def coarser_than(self, share: float) -> bool:
        """Tell whether answers are off by more than this share of the largest."""
        return self.noise.deviation > share * self.noise.size > 0


@dataclass(frozen=True, slots=True)
class TargetLift:
    """How a target is lifted."""

    dim: int
    biases: bool

    def run(self, rng: np.random.Generator) -> Generator[Round, Answers, LiftedTarget]:
        """Ask for the length scale, for what is constant, and for the noise."""
        scan = LengthScan.none()
        if self.biases:
            scan = yield from scan_lengths(self.dim, rng)
        lift = Lift(self.dim, self.biases, scan.length)
        constant, size, opening = yield from self._constant(lift, scan, rng)
        if lift.D == 1 or constant is not None:
            noise = NoiseLevel.of_rounding(size)
            if constant is not None:
                noise = NoiseLevel.of_constant(constant)
            return LiftedTarget(lift, Circle.none(lift), noise, constant, scan, opening)
        circle = Circle.random(lift, rng)
        target = yield from self._with_noise(circle, rng)
        # a circle may have little to say: answers elsewhere are larger, and so are their errors
        noise = target.noise.at_least(size)
        target = replace(target, noise=noise, scan=scan, opening=opening)
        if target.noise.deviation > NOISIEST * target.noise.size:
            raise Reason.NOISE_HIDES_KINKS.error(noise=target.coarseness)
        return target

    def _with_noise(
        self, circle: Circle, rng: np.random.Generator
    ) -> Generator[Round, Answers, LiftedTarget]:
        """Estimate the noise; choose longer tokens where they have less of it."""
        noise = yield from estimate_noise(circle, rng)
        target = LiftedTarget(circle.lift, circle, noise)
        if self.biases or noise.deviation <= ROUNDING * noise.size:
            return target
        lift = replace(circle.lift, token_scale=LONG_TOKENS)
        again = replace(circle, lift=lift)
        quiet = yield from estimate_noise(again, rng)
        if quiet.deviation * noise.size < HELPS * noise.deviation * quiet.size:
            return LiftedTarget(lift, again, quiet)
        return target

    def _constant(
        self, lift: Lift, scan: LengthScan, rng: np.random.Generator
    ) -> Generator[Round, Answers, tuple[float | None, float, Answered]]:
        """Tell a constant from 6 points; without biases it is 0, and answers grow with the token.

        Returns the constant, if there is one, the largest |F| at points of norm 1, and the six.
        """
        tokens = self._six(lift, rng)
        [y] = yield [Singles(tokens, phase="constant?", purpose="data")]
        if self._one_answer(y) and (lift.biases or not np.any(y)):
            x = fresh_tokens(lift, CONFIRMED, rng, scan.farthest)
            [more] = yield [Singles(x, phase="constant?", purpose="data")]
            if self._one_answer(y, more, scan.answers):
                return float(np.median(y)), float(np.abs(y).max()), (tokens, y)
            return None, float(np.max(np.abs(more))), (tokens, y)
        if not lift.biases and np.any(
            np.abs(y[:3] - STRETCHED * y[3:]) > HOMOGENEOUS * np.abs(y[:3]).max()
        ):
            raise Reason.NOT_HOMOGENEOUS.error(factor=STRETCHED)
        return None, float(np.max(np.abs(y) / lift.heights(tokens))), (tokens, y)

    def _six(self, lift: Lift, rng: np.random.Generator) -> Array:
        """Return six tokens: three directions, far away and nearer."""
        x = rng.standard_normal((3, lift.dim)) / np.sqrt(lift.dim)
        x[1] = -x[0]  # where neurons are much alike, half of all tokens make none active
        if lift.biases:
            scales = lift.length * np.array([FAR_SCALES, NEAR_SCALES])
        else:
            scales = STRETCHED * np.array([[STRETCHED] * 3, [1.0] * 3])
        return np.asarray((scales[:, :, None] * x).reshape(6, lift.dim))

    def _one_answer(self, *answers: Array) -> bool:
        """Tell whether all answers are one but for its rounding."""
        every = np.concatenate(answers)
        return bool(np.ptp(every) <= CONSTANT * np.abs(answers[0]).max())
