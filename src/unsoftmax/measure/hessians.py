"""Hessians of a sum of heads at one query token, from two-token sequences.

With s = Σ v_h known from single tokens, the answers to [(z+b); b] exceed what they would be
without logits by

    f(X) − b·s − z·s/2 = ½ Σ_h (z·v_h)·tanh(z·u_h/2) = zᵀA(b)z/8 + O(z⁴),
    A(b) = Σ_h (u_h v_hᵀ + v_h u_hᵀ),   u_h = W_h b,

because σ(t) = ½ + ½ tanh(t/2). At two sizes of z = e_i and e_i + e_j, which removes the next
order, that is d(d + 1) queries for each b; and a pilot along one b finds the scale at which
logits are small but answers keep their digits.

Source: the Hessian of Appendix C of arXiv 2601.16873. Differences: (1) the odd part is known, so
one answer replaces a central difference of two; (2) sizes of z and b may be far apart, since only
their product moves the logits; (3) higher orders of heads that are nearly known are subtracted.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.measure.single_tokens import Values
from unsoftmax.probes import Array, Grid, Round
from unsoftmax.protocol import Answers

# The pilot's scales of z·b go from 2⁻³² to 2³²: heads whose logits are small or saturated beyond
# 10⁹ times the tokens' size are not looked for.
FARTHEST_OCTAVE = 32.0
# Neighbouring scales of the pilot are 2⁴ apart. Larger: the logit read off the change of slope is
# coarser. Smaller: more queries.
OCTAVE_STEP = 4.0
# Offsets z of the pilot. One alone may be nearly orthogonal to v_h or u_h.
DIRECTIONS = 2
# Answers count as linear in the scale where the next scale changes their slope by less.
LINEAR = 0.1
# A change of slope below this is rounding: the logit is taken to be what makes this.
LEAST_CHANGE = 1e-6
# Logits along a random direction. Orders beyond the Hessian are then 1e-11 of A, 1e-7 where z meets
# a head that is much larger, and below rounding once they are predicted.
LOGIT = 0.004
# With coarse answers logits are where rounding, unit/t, and further orders, t⁴/30, are equal for a
# head whose logits along z are this many times those along a random direction.
LARGER_HEAD = 4.0
# Further orders may be this many times what they are on average over the offsets.
REMAINDER_MARGIN = 3.0
# Where further orders turn out larger, the scale is lowered to make them this share of A.
SMALL_REMAINDER = 1e-6
# Tokens are scaled by 2^±100 at most: they and their answers stay within float32's range.
EXTREME_OCTAVE = 100.0
# Base-2 logarithms of the pilot's scales.
OCTAVES = np.arange(-FARTHEST_OCTAVE, FARTHEST_OCTAVE + 1, OCTAVE_STEP)
# Queries of `find_hessian_scale`.
PILOT_QUERIES = len(OCTAVES) * DIRECTIONS
# What exceeds this many times the answers' error is a reading. Smaller: noise passes for logits;
# larger: small heads beside the precision are missed.
VISIBLE = 30.0
# Smallest |z·v|, as a share of a random z's, at which a saturated logit must still show.
LUCKY = 0.1


@dataclass(frozen=True, slots=True)
class HessianScale:
    """How probes are scaled: z by ``alpha`` and 2·``alpha``, b by ``beta``."""

    alpha: float
    beta: float
    noise: float
    """What the answers' error makes of an entry of A, relative to A."""

    @property
    def limit(self) -> float:
        """Relative singular values up to √noise, half way to 1 in logarithms, count as 0."""
        return float(np.sqrt(self.noise))

    @classmethod
    def at(cls, octave: float, noise: float) -> HessianScale:
        """Scale z up or b down: a token that is large beside the other keeps its digits."""
        octave = float(np.clip(np.floor(octave), -EXTREME_OCTAVE, EXTREME_OCTAVE))
        return cls(float(np.exp2(max(octave, 0.0))), float(np.exp2(min(octave, 0.0))), noise)

    def lower(self, remainder: float) -> HessianScale:
        """Return a scale at which further orders, ``remainder`` here, are small: they go as t⁴."""
        octaves = np.log2(min(remainder, 1.0) / SMALL_REMAINDER) / 4
        octave = np.log2(self.alpha * self.beta) - octaves
        return HessianScale.at(octave, self.noise * 2.0**octaves)


def hessian_queries(dim: int) -> int:
    """Count the queries for one A(b)."""
    return dim * (dim + 1)


def find_hessian_scale(
    values: Values, b: Array, rng: np.random.Generator
) -> Generator[Round, Answers, HessianScale | None]:
    """Find the scale at which logits are small but visible; None where there are no logits."""
    z = rng.standard_normal((DIRECTIONS, len(b)))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    octaves = OCTAVES
    alpha, beta = np.exp2(np.maximum(octaves, 0)), np.exp2(np.minimum(octaves, 0))
    queries = np.tile(b, (len(alpha), 1))
    grid = Grid(z, queries, alpha, beta, phase="scale of the logits", purpose="pilot")
    [y] = yield [grid]
    return scale_of(_excess(grid, y, values), values)


def scale_of(excess: Array, values: Values) -> HessianScale | None:
    """Choose the scale from what answers exceed at every octave, (octaves, directions).

    The largest scale at which answers are still linear gives the logit there, by
    tanh(t/2)·2/t = 1 − t²/12 + …
    """
    d, octaves = len(values.v), OCTAVES
    share = values.precision.share_of(values.norm)
    alpha, beta = np.exp2(np.maximum(octaves, 0)), np.exp2(np.minimum(octaves, 0))
    error = share * values.norm * (1 + beta / alpha)
    visible = np.linalg.norm(excess, axis=1) > VISIBLE * error
    if not visible.any():
        return None
    slope = excess / (alpha * beta)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.linalg.norm(np.diff(slope, axis=0), axis=1)
        change /= np.linalg.norm(slope[:-1], axis=1)
    k = _last_linear(visible, change, LINEAR)
    logit = np.sqrt(12 * np.clip(change[k], LEAST_CHANGE, 1.0))
    wanted = max(LOGIT, (30 * share) ** 0.2 / LARGER_HEAD)
    # z·v_h is about ‖v‖/√d along a random z, and less where heads of large logits weigh little
    weighed = 4 * float(np.sqrt(np.mean(excess[k + 1] ** 2))) / logit
    quiet = max(1.0, values.norm / np.sqrt(d) / max(weighed, 1e-300))
    octave = float(np.log2(np.exp2(octaves[k + 1]) * wanted / logit))
    return HessianScale.at(octave, float(share / wanted * quiet))


def _last_linear(visible: NDArray[np.bool_], change: Array, linear: float) -> int:
    """Return the last scale of the first run of scales at which answers are linear."""
    straight = visible[:-1] & (change <= linear)
    k = int(np.argmax(straight if straight.any() else visible))
    while k + 1 < len(straight) and straight[k] and straight[k + 1]:
        k += 1
    return min(k, len(change) - 1)


def saturated_unseen(values: Values) -> bool:
    """Return whether even saturated logits may not show: they move an answer by z·v/2."""
    largest = 1 / (2 * np.sqrt(len(values.v)))
    return bool(values.precision.share_of(values.norm) * VISIBLE > LUCKY * largest)


def unseen_scores(values: Values) -> float:
    """Bound ‖W‖_F of heads that show no logit at the largest scale: z·v·t/4 is invisible there."""
    d = len(values.v)
    logit = 4 * VISIBLE * values.precision.share_of(values.norm) * np.sqrt(d)
    return float(d * logit * np.exp2(-OCTAVES[-1]))


@dataclass(frozen=True, slots=True)
class Excess:
    """What answers exceed for some query tokens: ½ Σ (z·v_h)·tanh(z·u_h/2), at two sizes of z."""

    scale: HessianScale
    excess: Array
    """(tokens, 2, z), over the size of z."""

    def hessians(self) -> Array:
        """Return A(b) of every token, (tokens, d, d), without the order after it."""
        scale = self.scale.alpha * self.scale.beta
        form = (8 * self.excess[:, 0] - self.excess[:, 1]) / (6 * scale)
        count, number = form.shape
        d = int(np.sqrt(2 * number))  # d(d+1)/2 of them
        i, j = np.triu_indices(d, 1)
        A = np.zeros((count, d, d))
        own = form[:, :d]
        A[:, np.arange(d), np.arange(d)] = 8 * own
        A[:, i, j] = A[:, j, i] = 4 * (form[:, d:] - own[:, i] - own[:, j])
        return A

    def remainder(self, margin: float) -> float:
        """Bound what further orders make of A(b), relative to it, ``margin`` times the average."""
        small, large = self.excess[:, 0], self.excess[:, 1] / 2
        # t²/12 at one size, four times as much at the other, and t⁴/30 is what is left of both
        change = np.max(np.abs(large - small)) / max(float(np.max(np.abs(small))), 1e-300)
        return margin * min(float(4 * change), 1e100) ** 2 / 30

    def without_orders_of(self, v: Array, A: Array) -> Array:
        """Return A(b) without the further orders of heads with values ``v`` (H, d).

        From A(b) follow u_h = (A v_h − v_h (u_h·v_h))/‖v_h‖², and from those all orders: what the
        finite differences make of them is subtracted.
        """
        square = np.maximum(np.sum(v**2, axis=1), 1e-300)[:, None]
        seen = np.einsum("kde,he->khd", A, v) / square
        u = seen - v * np.sum(seen * v, axis=2, keepdims=True) / (2 * square)
        z = _offsets(v.shape[1])
        logits = self.scale.alpha * self.scale.beta * (u @ z.T)
        values = v @ z.T
        predicted = np.stack(
            [np.sum(values * np.tanh(size * logits / 2) / 2, axis=1) for size in (1, 2)], axis=1
        )
        own = np.einsum("khd,he->kde", u, v)
        rest = Excess(self.scale, self.excess - predicted)
        return np.asarray(own + own.transpose(0, 2, 1) + rest.hessians())


def ask_excess(
    values: Values, tokens: Array, scale: HessianScale
) -> Generator[Round, Answers, Excess]:
    """Ask for all that A(b) needs, for every query token b."""
    d, count = tokens.shape[1], len(tokens)
    z = _offsets(d)
    alpha = scale.alpha * np.tile([1.0, 2.0], count)
    beta = np.full(2 * count, scale.beta)
    queries = np.repeat(tokens, 2, axis=0)
    grid = Grid(z, queries, alpha, beta, phase="subspaces", purpose="data")
    [y] = yield [grid]
    return Excess(scale, _excess(grid, y, values).reshape(count, 2, len(z)))


def _offsets(d: int) -> Array:
    """Return e_i and e_i + e_j."""
    i, j = np.triu_indices(d, 1)
    return np.concatenate([np.eye(d), np.eye(d)[i] + np.eye(d)[j]])


def _excess(grid: Grid, y: Array, values: Values) -> Array:
    """Return ½ Σ (z·v_h)·tanh(t_h/2) from answers, over the size of z: (query tokens, z)."""
    z, b = np.asarray(grid.offsets), np.asarray(grid.queries)
    without_logits = grid.beta * (b @ values.v)
    rest = (grid.table(y) - without_logits[:, None]) / grid.alpha[:, None]
    return np.asarray(rest - z @ values.v / 2)
