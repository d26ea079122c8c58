"""How far the answers of a single head may be off, given bounds on its parameters.

With f(X) = Σ_i α_i y_i, y_i = x_i·v + c, α = softmax(s), s_i = x_i·u, u = W x_N + w, an error of
the parameters reaches an answer in two ways:

- through the values: |Δ| ≤ Σ_i α_i |x_i|·ν + ν_c, ν the entrywise bound on v's error;
- through the weights: a score moves by m_i ≤ ‖x_i − x_N‖·(‖x_N‖·‖ΔW‖ + ‖Δw‖) (a shift of all
  scores changes nothing) and by its own round-off, ‖x_i‖·‖u‖·κ·unit. With positions W(Δ) is
  another at every distance: m_i ≤ ‖x_i‖·‖x_N‖·(‖ΔW(Δ_i)‖ + ‖ΔW(0)‖), biases counting to tokens
  (x, 1).

Two bounds on what moved scores do, for two kinds of learners:

- `to_first_order`: Σ α_i |y_i − f|·m_i, for certificates so small that scores hardly move. A
  sequence whose scores may move further is not telling. Random directions meet a ‖ΔW‖_F in a
  small share of its size only (`ALIGNMENT`).
- `for_any_error`: for bounds that are rigorous and not small, whatever the direction. Scores
  that move by at most m move the answer by at most (e^m − 1)·e^m·Σ α_i |y_i − f|, and never by
  more than max_i |y_i − f| (`unsoftmax.models.attention.largest_mean_shift`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.measure.precision import KAPPA
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models import RotaryHead, SingleHead
from unsoftmax.models.arrays import TINY
from unsoftmax.models.attention import largest_mean_shift, pooled_tokens
from unsoftmax.probes import Array
from unsoftmax.validate.judge import Residuals

# Stands for an infinite bound: times a distance of 0 it is 0, not NaN.
UNBOUNDED = 1e100
# Sums over so many tokens round by no more than κ covers, in whatever order they are taken.
SHORT_SUMS = 20


def score_shift(X: Array, W_error: ArrayLike, w_error: ArrayLike = 0.0) -> Array:
    """Bound how far errors of W and w move the scores of a sequence, beside the query token's.

    Softmax ignores what all scores share, so (x_i − x_N)·(ΔW x_N + Δw) counts, which is at most
    ‖x_i − x_N‖·(‖ΔW‖·‖x_N‖ + ‖Δw‖).

    Parameters
    ----------
    X : ndarray (B, N, d)
        Sequences.
    W_error, w_error : float, or ndarray that broadcasts with (B,) or, for heads, with (B, H)
        Bounds on ‖ΔW‖ and ‖Δw‖. Two dimensions, as (1, H) has, mean several heads.

    Returns
    -------
    ndarray (B, N), or (B, H, N)
        The bound for every token; 0 for the query token.
    """
    away = np.linalg.norm(X - X[:, -1:], axis=2)
    length = np.linalg.norm(X[:, -1], axis=1)
    if max(np.ndim(W_error), np.ndim(w_error)) == 2:
        away, length = away[:, None], length[:, None]
    vector_error = length * np.asarray(W_error) + np.asarray(w_error)
    return np.asarray(away * vector_error[..., None])


def mean_shift(weights: Array, deviations: Array, shift: Array) -> Array:
    """Bound how far the weighted mean f = Σ_i α_i y_i moves to first order in the scores.

    Parameters
    ----------
    weights : ndarray (..., N)
        Attention weights α.
    deviations : ndarray (..., N)
        |y_i − f|; or ‖x_i − p‖ for the pooled token p = Σ_i α_i x_i.
    shift : ndarray (..., N)
        Bounds m_i on how far scores move.

    Returns
    -------
    ndarray (...)
        Σ_i α_i |y_i − f| m_i. `largest_mean_shift` holds at any m.
    """
    return np.asarray(np.sum(weights * deviations * shift, axis=-1))


def sum_rounding(weights: Array, values: Array, unit: float) -> Array:
    """Bound what adding up many tokens rounds, beyond what κ covers for few.

    Σ_i e_i y_i and Σ_i e_i, e_i > 0, are off by a roundoff of their terms per term at most when
    they are added one by one; halves and trees round less.

    Parameters
    ----------
    weights, values : ndarray (..., N)
        Attention weights α, and the tokens' values y.
    unit : float
        Roundoff of the target's arithmetic.

    Returns
    -------
    ndarray (...)
        2·unit·(N − 20)·Σ_i α_i ``|y_i|`` for N > 20, and 0 up to that.
    """
    further = max(0, values.shape[-1] - SHORT_SUMS)
    return np.asarray(2 * unit * further * np.sum(weights * np.abs(values), axis=-1))


# Random directions meet ‖ΔW‖_F in about 1/d of its size, one random direction in 1/√d; a residual
# may be this many times that. Smaller: right heads are refused by chance; larger: wrong ones pass.
# Certificates are loose enough for the rest: residuals of heads of 5 and more dimensions (2,000
# measured) stayed below a fifth of what 8 times would allow.
ALIGNMENT = 2.0
# A sequence whose scores the certificate lets move by more than this is left out, and no score is
# counted as moving further. Larger: tolerances of such sequences pass any model; smaller: fewer
# sequences count.
MOST_MOVED = 0.01


@dataclass(frozen=True, slots=True)
class PositionErrors:
    """Bounds on the errors of W(Δ): ``near`` + |Δ − 1|·``turning``."""

    near: float
    turning: float
    biases: bool = False
    """Whether they are on W(Δ) with biases, for tokens (x, 1)."""

    def at(self, distances: Array) -> Array:
        """Bound ‖Ŵ(Δ) − W(Δ)‖_F."""
        return np.asarray(self.near + np.abs(distances - 1) * self.turning)


class HeadBounds(NamedTuple):
    """Bounds on the errors of a head."""

    errors: dict[str, float]
    """Of W, v, w and c."""
    assumes: tuple[str, ...]
    """What they assume."""
    positions: PositionErrors | None = None
    """Of W(Δ) at every distance; None where there are no positions, and W is the same at all."""
    notes: tuple[str, ...] = ()
    """What a user should know of them."""

    @classmethod
    def of(cls, values: Values, W: float, w: float | None, *assumes: str) -> HeadBounds:
        """Take bounds on W, and on w if there is one, beside those on v and c."""
        v = float(np.linalg.norm(values.v_error))
        errors = {"W": W, "v": v, "w": w, "c": values.c_error}
        return cls({name: error for name, error in errors.items() if error is not None}, assumes)


@dataclass(frozen=True, slots=True)
class HeadAt:
    """A head at some sequences: all that the errors of its answers there depend on."""

    X: Array
    """Sequences (B, N, d)."""
    predicted: Array
    """f̂(X), (B,)."""
    weights: Array
    """Attention weights (B, N)."""
    rounded: Array
    """What the rounding of scores is relative to, (B, N)."""
    lengths: Array
    """‖x_i‖, (B, N)."""

    @classmethod
    def of(cls, model: SingleHead | RotaryHead, X: Array) -> HeadAt:
        """Evaluate a head at sequences (B, N, d)."""
        rounded = model.score_sizes(X)[:, 0]
        return cls(X, model(X), model.attention(X), rounded, np.linalg.norm(X, axis=2))

    @property
    def longest(self) -> Array:
        """max_i‖x_i‖, (B,)."""
        return np.asarray(self.lengths.max(axis=1))

    def score_moves(self, unit: float, W_error: ArrayLike, w_error: float = 0.0) -> Array:
        """Bound how far the scores may be off, (B, N), by the parameters' errors and round-off."""
        return score_shift(self.X, W_error, w_error) + KAPPA * unit * self.rounded

    def score_moves_at(self, unit: float, positions: PositionErrors, met: Array) -> Array:
        """Bound the same with positions, where shares ``met`` (B,) of their bounds are met.

        Bounds that are not finite count as 0: the head must be right.
        """
        distances = np.arange(self.X.shape[1])[::-1].astype(np.float64)
        off = positions.at(distances) if np.isfinite(positions.near) else 0 * distances
        seen = np.hypot(self.lengths, 1.0) if positions.biases else self.lengths
        moved = met[:, None] * seen * seen[:, -1:] * (off + off[-1])
        return np.asarray(moved + KAPPA * unit * self.rounded)

    def changed_by(self, share: float, values: Values) -> Array:
        """Return how far answers are off, to first order, where scores are smaller by a share."""
        weights = self.weights / np.maximum(self.weights.max(axis=1, keepdims=True), TINY)
        scores = np.log(np.maximum(weights, TINY))
        tokens = self.X @ values.v + values.c - self.predicted[:, None]
        return np.asarray(share * np.abs(np.sum(self.weights * tokens * scores, axis=1)))

    def through_values(self, v_error: Array) -> Array:
        """Bound what an entrywise error of v does to the answers, (B,)."""
        return np.asarray(np.abs(pooled_tokens(self.X, self.weights)) @ v_error)


def to_first_order(
    at: HeadAt,
    y: Array,
    values: Values,
    errors: Mapping[str, float],
    positions: PositionErrors | None = None,
) -> Residuals:
    """Compare answers with a head whose certificate leaves scores nearly as they are.

    ``errors`` holds the certificate's bounds on W and w, ``positions`` those on W at all distances
    where it has positions. Without finite ones every sequence is telling, and the head must be
    right to `MOST_MOVED` all the same.
    """
    d, unit = int(at.X.shape[2]), values.precision.unit
    W_error, w_error = (min(errors.get(name, 0.0), UNBOUNDED) for name in "Ww")
    bounded = max(W_error, w_error) < UNBOUNDED
    dense = np.count_nonzero(at.X[:, -1], axis=1) > 1
    met = np.minimum(1.0, ALIGNMENT / np.where(dense, d, np.sqrt(d)))
    if positions is None:
        met_w = min(1.0, ALIGNMENT / np.sqrt(d))
        moved = at.score_moves(unit, met * W_error, met_w * w_error)
    else:
        moved = at.score_moves_at(unit, positions, met)
    size = at.longest * values.norm + abs(values.c)
    tokens = at.X @ values.v
    deviations = np.abs(tokens + values.c - at.predicted[:, None])
    own = values.precision.error(size, y) + values.c_error + at.through_values(values.v_error)
    return Residuals.of(
        y - at.predicted,
        own=own + sum_rounding(at.weights, tokens, unit),
        allowed=mean_shift(at.weights, deviations, np.minimum(moved, MOST_MOVED)),
        size=size,
        telling=np.max(moved, axis=1) <= MOST_MOVED if bounded else True,
    )


def for_any_error(at: HeadAt, y: Array, values: Values, W_error: float) -> Residuals:
    """Compare answers with a head without biases, each within all that the bounds allow."""
    moved = at.score_moves(values.precision.unit, min(W_error, UNBOUNDED)).max(axis=1)
    from_v, tokens = at.through_values(values.v_error), at.X @ values.v
    deviations = np.abs(tokens - at.predicted[:, None])
    deviations = deviations + np.abs(at.X) @ values.v_error + from_v[:, None]
    size = at.longest * values.norm
    own = values.precision.error(size, y) + from_v
    return Residuals.of(
        y - at.predicted,
        own=own + sum_rounding(at.weights, tokens, values.precision.unit),
        allowed=largest_mean_shift(at.weights, deviations, moved),
        size=size,
    )


def of_straight(x: Array, y: Array, values: Values) -> Residuals:
    """Compare answers to single tokens ``x`` (B, d) with x·v̂ + ĉ."""
    size = np.linalg.norm(x, axis=1) * values.norm + abs(values.c)
    own = np.abs(x) @ values.v_error + values.c_error
    missed = y - x @ values.v - values.c
    return Residuals.of(missed, own=values.precision.error(size, y) + own, size=size)
