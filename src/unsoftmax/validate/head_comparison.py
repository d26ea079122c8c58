"""How far the answers of a single head may be off, given bounds on its parameters.

With f(X) = Σ_i α_i y_i, y_i = x_i·v + c, α = softmax(s), s_i = x_i·u, u = W x_N + w, an error of
the parameters reaches an answer in two ways:

- through the values: |Δ| ≤ Σ_i α_i |x_i|·ν + ν_c, ν the entrywise bound on v's error;
- through the weights: a score moves by m_i ≤ ‖x_i − x_N‖·(‖x_N‖·‖ΔW‖ + ‖Δw‖) (a shift of all
  scores changes nothing) and by its own round-off, ‖x_i‖·‖u‖·κ·unit.

Two bounds on what moved scores do, for two kinds of learners:

- `to_first_order`: Σ α_i |y_i − f|·m_i, for certificates so small that scores hardly move. A
  sequence whose scores may move further is not telling. Random directions meet a ‖ΔW‖_F in a
  small share of its size only (`JudgeTuning.alignment`).
- `for_any_error`: for bounds that are exact and not small, no direction favoured. Scores that
  move by at most m change every weight by a factor within e^{±2m}, so the answer moves by at
  most (e^{2m} − 1)·Σ α_i |y_i − f|, and never by more than the values are apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from unsoftmax.measure.precision import KAPPA
from unsoftmax.measure.two_tokens import Values
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array
from unsoftmax.validate.judge import Residuals

# Stands for an infinite bound: times a distance of 0 it is 0, not NaN.
UNBOUNDED = 1e100


@dataclass(frozen=True, slots=True)
class JudgeTuning:
    """Knobs of judging a head to first order in the errors of its scores."""

    alignment: float = 2.0
    """Random directions meet ‖ΔW‖_F in about 1/d of its size, one random direction in 1/√d; a
    residual may be this many times that. Smaller: right heads are refused by chance; larger:
    wrong ones pass. Certificates are loose enough for the rest: residuals of heads of 5 and more
    dimensions (2,000 measured) stayed below a fifth of what 8 times would allow."""
    most_moved: float = 0.01
    """A sequence whose scores the certificate lets move by more than this is left out, and no
    score is counted as moving further. Larger: tolerances of such sequences pass any model;
    smaller: fewer sequences count."""


@dataclass(frozen=True, slots=True)
class HeadAt:
    """A head at some sequences: all that the errors of its answers there depend on."""

    X: Array
    """Sequences (B, N, d)."""
    predicted: Array
    """f̂(X), (B,)."""
    scored: Array
    """The vectors W x_N + w that tokens are scored with, (B, d)."""
    weights: Array
    """Attention weights (B, N)."""
    norms: Array
    """‖x_i‖, (B, N)."""
    away: Array
    """‖x_i − x_N‖, (B, N): only differences of scores matter."""

    @classmethod
    def of(cls, model: SingleHead, X: Array) -> HeadAt:
        """Evaluate a head at sequences (B, N, d)."""
        scored, weights = attention(model, X)
        away = np.linalg.norm(X - X[:, -1:], axis=2)
        return cls(X, model(X), scored, weights, np.linalg.norm(X, axis=2), away)

    @property
    def query_norm(self) -> Array:
        """‖x_N‖, (B,)."""
        return np.asarray(np.linalg.norm(self.X[:, -1], axis=1))

    @property
    def longest(self) -> Array:
        """max_i‖x_i‖, (B,)."""
        return np.asarray(self.norms.max(axis=1))

    @property
    def score_size(self) -> Array:
        """‖W x_N + w‖, (B,): what the round-off of a score is relative to, per ‖x_i‖."""
        return np.asarray(np.linalg.norm(self.scored, axis=1))

    def through_values(self, v_error: Array) -> Array:
        """Bound what an entrywise error of v does to the answers, (B,)."""
        pooled = np.abs(np.einsum("bn,bnd->bd", self.weights, self.X))
        return np.asarray(pooled @ v_error)


def attention(model: SingleHead, X: Array) -> tuple[Array, Array]:
    """Return the vectors W x_N + w that tokens are scored with, and the attention weights."""
    scored = model.scores_of(X[:, -1])
    scores = np.einsum("bnd,bd->bn", X, scored)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scored, weights / weights.sum(axis=1, keepdims=True)


def to_first_order(
    at: HeadAt, y: Array, values: Values, errors: Mapping[str, float], tuning: JudgeTuning
) -> Residuals:
    """Compare answers with a head whose certificate leaves scores nearly as they are.

    ``errors`` holds the certificate's bounds on W and w. Without finite ones every sequence is
    telling, and the head must be right to ``most_moved`` all the same.
    """
    d = int(at.X.shape[2])
    W_error, w_error = (min(errors[name], UNBOUNDED) for name in "Ww")
    bounded = max(W_error, w_error) < UNBOUNDED
    dense = np.count_nonzero(at.X[:, -1], axis=1) > 1
    met = np.minimum(1.0, tuning.alignment / np.where(dense, d, np.sqrt(d)))
    from_W = met * at.query_norm * W_error
    from_w = w_error * min(1.0, tuning.alignment / np.sqrt(d))
    moved = at.away * (from_W + from_w)[:, None]
    moved += at.norms * (KAPPA * values.precision.unit * at.score_size)[:, None]

    size = at.longest * values.norm + abs(values.c)
    spread = at.weights * np.abs(at.X @ values.v + values.c - at.predicted[:, None])
    return Residuals.of(
        y - at.predicted,
        own=values.precision.error(size, y) + values.c_error + at.through_values(values.v_error),
        allowed=np.sum(spread * np.minimum(moved, tuning.most_moved), axis=1),
        size=size,
        telling=np.max(moved, axis=1) <= tuning.most_moved if bounded else True,
    )


def for_any_error(at: HeadAt, y: Array, values: Values, W_error: float) -> Residuals:
    """Compare answers with a head without biases, each within all that the bounds allow."""
    moved = at.away.max(axis=1) * at.query_norm * min(W_error, UNBOUNDED)
    moved += KAPPA * values.precision.unit * (at.longest * at.score_size)
    from_v = at.through_values(values.v_error)
    apart = np.abs(at.X @ values.v - at.predicted[:, None])
    apart = apart + np.abs(at.X) @ values.v_error + from_v[:, None]
    size = at.longest * values.norm
    return Residuals.of(
        y - at.predicted,
        own=values.precision.error(size, y) + from_v,
        allowed=weighted_mean_moves(moved, np.sum(at.weights * apart, axis=1), apart.max(axis=1)),
        size=size,
    )


def weighted_mean_moves(moved: Array, spread: Array, widest: Array) -> Array:
    """Bound how far Σ α_i y_i moves when every score moves by at most ``moved``.

    ``spread`` is Σ α_i |y_i − mean|, ``widest`` the most that any y_i is from the mean, or any
    two apart.

    Examples
    --------
    >>> weighted_mean_moves(np.array([0.0, 0.01, np.inf]), np.ones(3), np.full(3, 2.0)).round(4)
    array([0.    , 0.0202, 2.    ])
    """
    # e^100 is far beyond any ratio of widest to spread, and float64 goes on
    factor = np.expm1(np.minimum(2 * moved, 100.0))
    return np.asarray(np.minimum(factor * spread, widest))


def of_straight(x: Array, y: Array, values: Values) -> Residuals:
    """Compare answers to single tokens ``x`` (B, d) with x·v̂ + ĉ."""
    size = np.linalg.norm(x, axis=1) * values.norm + abs(values.c)
    own = np.abs(x) @ values.v_error + values.c_error
    missed = y - x @ values.v - values.c
    return Residuals.of(missed, own=values.precision.error(size, y) + own, size=size)
