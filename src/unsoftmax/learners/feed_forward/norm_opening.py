"""The norm behind a layer, and how precise directions are: d + d/8 + 77 queries before the search.

y = β + Γn(u), with n(u) = Pu/√(‖Pu‖²/d + eps). Far out eps does not count: y is on an ellipsoid,
‖n‖² = d, in the hyperplane g·(y − β) = 0, g = 1/γ. So d + 1 answers give g, as what is orthogonal
to all differences, and then β by a linear system (`measure.normalised.shift_of`). RMSNorm takes no
mean off: nothing is orthogonal, and Σ (y_i/γ_i)² = d is linear in 1/γ². Then, as in
`opening_look`, a line through 0 shows the length scale; and of three answers side by side the one
in the middle is in the plane of the others, which tells errors from targets that bend everywhere.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.feed_forward.found_neurons import ResidualPart
from unsoftmax.learners.feed_forward.line_cells import AskTokens
from unsoftmax.learners.feed_forward.opening_look import (
    LINE,
    SMOOTH,
    OpeningLook,
    around_points,
    drawn_directions,
)
from unsoftmax.measure.normalised import FoundGain, NormedAnswers, gain_of, shift_of, spreads
from unsoftmax.measure.precision import UNIT, Precision
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason

# Length of tokens at which eps and biases do not count.
LONG = 2.0**40
# Tokens beyond d, as a share of d and in number. Fewer: ill-conditioned.
SPARE, MORE = 1 / 16, 16
# Errors are at least so many roundings of an answer.
ROUNDINGS = 4.0
# Directions with larger errors are refused: pieces of a line tell their factors by small angles,
# which makes of an error its root.
COARSEST = 1e-12
# A direction that answers show no more of, beside others, is a LayerNorm's mean.
ORTHOGONAL = 1e-9
# Misses of the ellipsoid up to this share are a norm's.
OFF = 1e-6
# Outputs that answers move by less, beside the others, have a scale of 0.
LEAST_SPREAD = 1e-9
# Where n is shorter than this share of √d, u is so small that eps counts; and directions must
# turn by as much.
FULL = 0.1


@dataclass(frozen=True, slots=True)
class SeenNorm:
    """A norm behind, but for signs, and what is seen through it.

    Attributes
    ----------
    shift, gain : ndarray, shape (d,)
        β and 1/γ; signs are open, of a LayerNorm's gain but one for all, and positive (for most of
        γ) until a residual tells them.
    basis : ndarray, shape (k, d)
        Orthonormal rows: coordinates of what answers tell.
    centred : bool
        Whether the mean is taken off.
    """

    shift: Array
    gain: Array
    basis: Array
    centred: bool

    def directions(self, y: Array) -> Array:
        """Map answers (n, d) to directions (n, k) of norm 1."""
        w = (y - self.shift) @ self.basis.T
        return np.asarray(w / np.maximum(np.linalg.norm(w, axis=1, keepdims=True), UNIT))

    def sums(self, w: Array, gain: Array) -> Array:
        """Map rows (n, k) to what they are before the norm (n, d), of a gain with its signs."""
        return np.asarray(gain * (w @ self.basis))

    @property
    def residual(self) -> ResidualPart:
        """What x adds to a Jacobian of directions."""
        if not self.centred:
            return ResidualPart(np.eye(len(self.gain)), free=True, rows=True)
        return ResidualPart(NormedAnswers(self.shift, self.gain, self.basis).projection, free=True)

    def signed(self, added: Array) -> tuple[Array, float]:
        """Return the gain with its signs, and the factor of the Jacobians; by the residual."""
        if self.centred:
            return np.copysign(1.0, added[0]) * self.gain, abs(float(added[0]))
        return np.copysign(self.gain, added), float(np.median(np.abs(added) * self.gain))

    def unit_error(self, first: float, slope: float) -> float:
        """Return what errors of the Jacobian (Frobenius norms) do to that factor.

        The one where no neuron is active may be off along the residual; neurons are in no relation
        to it.
        """
        matrix = self.residual.matrix
        width = float(np.sqrt(matrix.shape[1]))
        off = float(np.hypot(first, slope / width) / (width * np.linalg.norm(matrix)))
        return off if self.centred else off * float(np.median(self.gain))


@dataclass(frozen=True, slots=True)
class NormLook:
    """What is known of a target behind a norm before the search."""

    look: OpeningLook
    norm: SeenNorm
    noise: float
    """What a direction is off by (2-norm)."""
    scale_error: float
    shift_error: float
    relative_error: float
    """What n comes out off by, relative, as scale and shift are off."""
    smooth: bool
    """Whether directions bend everywhere."""

    @property
    def length_error(self) -> float:
        """What the norm of n is off by, relative."""
        return self.noise + self.relative_error

    @property
    def systematic(self) -> float:
        """What directions are off by as the norm is, alike where they are near to each other."""
        return (self.scale_error + self.shift_error) / float(np.linalg.norm(1 / self.norm.gain))


@dataclass(frozen=True, slots=True)
class NormOpening:
    """Asks what a `NormLook` holds."""

    dim: int
    ask: AskTokens
    rng: np.random.Generator

    def run(self) -> Generator[Round, Answers, NormLook]:
        """Look at the target.

        Raises
        ------
        ModelMismatch
            No norm is behind it, it has no x to go by, or is too coarse.
        """
        d = self.dim
        count = d + int(SPARE * d) + MORE
        signs = np.where(self.rng.standard_normal((count, d)) < 0, -1.0, 1.0)
        line = LINE[:, None] * drawn_directions(1, self.dim, self.rng)
        y = yield from self.ask(np.vstack([LONG * signs, line]))
        far, along = y[:count], y[count:]
        self._refuse_plain(far, along[np.abs(LINE) <= 1.0])
        norm = self._norm(far)
        length = _length(along, norm)
        precision = Precision.of_format([y])
        noise, smooth = yield from self.noise(norm, length, precision)
        errors = self._errors(far, norm, noise)
        scale = float(np.linalg.norm(1 / norm.gain))
        look = OpeningLook(
            length,
            scale + float(np.linalg.norm(norm.shift)),
            0.0,
            noise,
            line,
            along,
            precision.why,
        )
        return NormLook(look, norm, noise, *errors, smooth)

    def _refuse_plain(self, far: Array, near: Array) -> None:
        if far.shape[1] != self.dim:
            raise Reason.NO_RESIDUAL_WIDTH.error(numbers=far.shape[1], dim=self.dim)
        if np.max(np.abs(far)) > np.sqrt(LONG) * (1 + np.max(np.abs(near))):
            raise Reason.GROWS_BEHIND_NO_NORM.error()

    def _norm(self, far: Array) -> SeenNorm:
        """Read the norm off answers to long tokens."""
        mean = far.mean(axis=0)
        spread = spreads(far - mean)
        still = spread <= LEAST_SPREAD * spread.max()
        if np.any(still):
            raise Reason.OUTPUTS_ARE_CONSTANT.error(still=np.sum(still), outputs=self.dim)
        found = gain_of(far - mean)
        if found.missed <= ORTHOGONAL:
            if found.next <= ORTHOGONAL:
                raise Reason.TOO_FEW_DIRECTIONS.error()
            return self._layer_norm(far, found)
        squares = far**2 / spread**2
        weights = np.linalg.lstsq(squares, np.ones(len(far)), rcond=None)[0]
        # once more for what is left: solving rounds more than answers do
        weights += np.linalg.lstsq(squares, 1 - squares @ weights, rcond=None)[0]
        missed = float(np.max(np.abs(squares @ weights - 1)))
        if missed > OFF or np.any(weights <= 0):
            raise Reason.NEITHER_NORM_BEHIND.error()
        gain = np.sqrt(weights * self.dim) / spread
        return SeenNorm(np.zeros(self.dim), gain, np.eye(self.dim), centred=False)

    def _layer_norm(self, far: Array, found: FoundGain) -> SeenNorm:
        mean = far.mean(axis=0)
        shift, factor = shift_of(far - mean, found)
        gain = np.copysign(factor, np.sum(1 / found.gain)) * found.gain
        lengths = np.sum((gain * (far - mean - shift)) ** 2, axis=1) / self.dim
        if np.max(np.abs(lengths - 1)) > OFF:
            raise Reason.HYPERPLANE_WITHOUT_ELLIPSOID.error()
        answers = NormedAnswers.of(mean + shift, gain)
        return SeenNorm(answers.shift, answers.gain, answers.basis, centred=True)

    def _errors(self, far: Array, norm: SeenNorm, noise: float) -> tuple[float, float, float]:
        """Return what errors of the answers do to scale, shift and, relative, to n."""
        width = np.sqrt(self.dim)
        size = max(noise * float(np.linalg.norm(1 / norm.gain)) / width, _left(far, norm))
        worst = np.zeros(3)
        for _ in range(3):
            other = self._norm(far + size * self.rng.standard_normal(far.shape))
            apart = np.abs(1 / other.gain) - np.abs(1 / norm.gain)
            moved = other.shift - norm.shift
            relative = np.linalg.norm(norm.gain * np.array([apart, moved])) / width
            worst = np.maximum(worst, [np.linalg.norm(apart), np.linalg.norm(moved), relative])
        scale, shift, relative = worst.tolist()
        return scale, shift, relative

    def noise(
        self, norm: SeenNorm, length: float, precision: Precision
    ) -> Generator[Round, Answers, tuple[float, bool]]:
        """Measure errors of directions; tell whether they bend everywhere, which hides errors."""
        _, around = yield from around_points(self.dim, length, self.ask, self.rng)
        answers = around.reshape(-1, self.dim)
        w = np.split(norm.directions(answers), 5)
        narrow, wide = (_off_plane(w[2], w[i], w[4 - i]) for i in (1, 0))
        smooth = bool(np.median(wide) > SMOOTH * max(float(np.median(narrow)), UNIT))
        rounding = precision.relative + precision.unit + precision.absolute
        rounding *= float(np.max(np.linalg.norm(answers, axis=1)))
        rounding /= float(np.min(np.linalg.norm(answers - norm.shift, axis=1)))
        noise = max(0.0 if smooth else float(np.sort(narrow)[-2]), ROUNDINGS * rounding)
        if noise > COARSEST:
            raise Reason.TOO_COARSE_FOR_NEURONS.error(
                what="The answers' directions are",
                noise=noise,
                purpose="behind a norm to see single neurons",
                most=COARSEST,
            )
        return noise, smooth


def _left(far: Array, norm: SeenNorm) -> float:
    """Return errors of numbers in answers to long tokens, from what the norm leaves of them.

    Sums that nearly cancel round more than others do.
    """
    n = norm.gain * (far - norm.shift)
    size, spare = float(np.linalg.norm(norm.gain)), len(far) - n.shape[1]
    off = np.sum((np.mean(n * n, axis=1) - 1) ** 2) * (n.shape[1] / 2) ** 2
    if norm.centred:
        off = max(off, np.sum(np.sum(n, axis=1) ** 2))
    return float(np.sqrt(off / spare)) / size


def _off_plane(w: Array, one: Array, other: Array) -> Array:
    """Return how far directions (n, k) are from the planes of two others."""
    return np.array(
        [
            np.linalg.norm(x - basis @ (basis.T @ x))
            for x, basis in (
                (x, np.linalg.qr(np.column_stack([a, b]))[0])
                for x, a, b in zip(w, one, other, strict=True)
            )
        ]
    )


def _length(y: Array, norm: SeenNorm) -> float:
    """Return the mean length, in logarithms, at which directions turn, where u is not small."""
    w = norm.directions(y)
    turned = np.linalg.norm(np.diff(w, axis=0), axis=1)
    sizes = np.linalg.norm(norm.gain * (y - norm.shift), axis=1)
    seen = sizes > FULL * np.sqrt(y.shape[1])
    at = np.abs((LINE[1:] + LINE[:-1]) / 2)
    used = seen[1:] & seen[:-1] & (turned > 0)
    if not np.sum(turned[used]) > FULL:
        return 1.0
    return float(2.0 ** np.round(np.average(np.log2(at[used]), weights=turned[used])))
