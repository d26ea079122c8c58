"""The two-token identity, and what an answer's error does to the logit read from it.

For X = [(αa+βb); βb] the two scores differ by the logit t = αa·(βWb + w), so

    f(X) = βb·v + c + (αa·v)·σ(t),      t = log p − log q,
    p = (y − βb·v − c)/(αa·v),          q = 1 − p.

With |y − f| ≤ η, |v̂_k − v_k| ≤ ν_k and |ĉ − c| ≤ ν_c the identity
p̂ − p = (e − βb·δv − δc − p·αa·δv)/(αa·v̂) gives

    |p̂ − p| ≤ δ = (η + β|b|·ν + ν_c + p̂·α|a|·ν)/(α|a·v̂| − α|a|·ν),
    |t̂ − t| ≤ δ/(m(1 − m)),            m = min(p̂, q̂) − δ,

and no bound when m ≤ 0. Everything is vectorised over arrays that broadcast together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from unsoftmax.measure.precision import KAPPA, UNIT, Precision
from unsoftmax.probes import Array, LazyRows, Rows, UnitVectors

# Lazy rows are read 2 MiB at a time.
_LAZY_NUMBERS = 2**18


@dataclass(frozen=True, slots=True)
class Values:
    """What single tokens gave: f([x]) = x·v + c.

    Attributes
    ----------
    v, c : ndarray (d,), float
        The estimates.
    v_error, c_error : ndarray (d,), float
        Bounds ν on their errors, entry by entry.
    precision : Precision
        Of the answers they came from, and of those to come.
    """

    v: Array
    c: float
    v_error: Array
    c_error: float
    precision: Precision

    @property
    def norm(self) -> float:
        """‖v‖, which sets the natural size of an answer."""
        return float(np.linalg.norm(self.v))


@dataclass(frozen=True, slots=True)
class Vectors:
    """Offsets or query tokens, seen through v: all that the identity needs of them."""

    value: Array
    """a·v̂ (or b·v̂)."""
    value_error: Array
    """|a|·ν."""
    norm: Array
    """‖a‖₂."""

    @classmethod
    def of(cls, rows: Rows, values: Values) -> Vectors:
        """Read the rows through the value vector."""
        if isinstance(rows, UnitVectors):
            return cls(values.v, values.v_error, np.ones(rows.dim))
        if isinstance(rows, LazyRows):
            count, dim = rows.shape
            step = max(1, _LAZY_NUMBERS // dim)
            parts = [np.arange(i, min(i + step, count)) for i in range(0, count, step)]
            seen = [cls.of(rows[part], values) for part in parts]
            return cls(
                np.concatenate([x.value for x in seen]),
                np.concatenate([x.value_error for x in seen]),
                np.concatenate([x.norm for x in seen]),
            )
        return cls(rows @ values.v, np.abs(rows) @ values.v_error, np.linalg.norm(rows, axis=1))

    def take(self, index: Any) -> Vectors:
        """Pick rows, or give the arrays new axes."""
        return Vectors(self.value[index], self.value_error[index], self.norm[index])


@dataclass(frozen=True, slots=True)
class Gates:
    """Answers to two-token probes, read as values of the sigmoid."""

    p: Array
    """p̂ = σ(t)."""
    p_error: Array
    """Bound δ on |p̂ − p|."""
    logit: Array
    """t̂, ±inf or NaN where the answer says nothing."""
    margin: Array
    """m = min(p̂, q̂) − δ; no bound on the logit where it is 0 or less."""

    @property
    def logit_error(self) -> Array:
        """Bound on |t̂ − t|, inf where there is none."""
        return self.p_error * self.slope

    @property
    def slope(self) -> Array:
        """Bound on dt/dp over the interval that p lies in, 1/(m(1 − m))."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.where(self.margin > 0, 1 / (self.margin * (1 - self.margin)), np.inf)


def answer_error(
    y: Array, a: Vectors, b: Vectors, alpha: Array, beta: Array, values: Values
) -> Array:
    """Bound η + ν_c on what y − ĉ is off by."""
    size = (alpha * a.norm + beta * b.norm) * values.norm + abs(values.c)
    return values.precision.error(size, y) + values.c_error


def read_gates(
    y: Array, a: Vectors, b: Vectors, alpha: Array, beta: Array, values: Values
) -> Gates:
    """Invert the two-token identity for answers ``y``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        signal = alpha * a.value
        rest = y - beta * b.value - values.c
        p = rest / signal
        # q from its own difference: 1 − p would lose q's digits when p is near 1
        q = (signal - rest) / signal
        error = answer_error(y, a, b, alpha, beta, values) + beta * b.value_error
        error = error + np.abs(p) * alpha * a.value_error
        room = np.abs(signal) - alpha * a.value_error
        p_error = np.where(room > 0, error / room, np.inf)
        logit = np.log(p) - np.log(q)
        return Gates(p, p_error, logit, np.minimum(p, q) - p_error)


def measurement_error(
    gates: Gates,
    y: Array,
    a: Vectors,
    b: Vectors,
    alpha: Array,
    beta: Array,
    scale: Array,
    score_norm: Array,
    stretch: float,
    values: Values,
) -> float:
    """Bound the Frobenius norm of the error of M = logits / scale.

    Parameters
    ----------
    gates, y, alpha, beta, scale : Gates, ndarray (query tokens, offsets)
        The answers, how they were read, and the scales they were asked at.
    a, b : Vectors
        Offsets, broadcasting along the last axis, and query tokens along the first.
    score_norm : ndarray (query tokens, offsets)
        ‖βW b_j + w‖ of the scores' vectors, for the rounding of the scores themselves.
    stretch : float
        ‖Z‖₂ of the offsets.
    values : Values
        v̂, ĉ and their errors.
    """
    if not np.all(gates.margin > 0):
        return float("inf")
    with np.errstate(divide="ignore", over="ignore"):
        gain = gates.slope / (np.abs(alpha * a.value) * scale)
    answers = np.linalg.norm(gain * answer_error(y, a, b, alpha, beta, values))
    query_values = np.linalg.norm(gain * beta * b.value_error)
    # one δv for all offsets: Σ_i (z_i·δv)² ≤ ‖Z‖₂²‖δv‖²
    shared = np.sqrt(np.max(np.sum((gain * (gates.p + gates.p_error) * alpha) ** 2, axis=0)))
    offset_values = shared * stretch * np.linalg.norm(values.v_error)
    token_norm = alpha * a.norm + beta * b.norm
    scores = np.linalg.norm(KAPPA * values.precision.unit * token_norm * score_norm / scale)
    reading = 4 * UNIT * np.linalg.norm(gates.logit / scale)
    return float(answers + query_values + offset_values + scores + reading)
