"""The hold-out of a single head: fresh sequences that a learner never learns from.

Four families share the queries that `checks` allows:

- *opening*, a quarter, asked first: three tokens at sizes 4⁻⁴ … 4³. They depend on all
  parameters, so they also tell this target from another when a run is resumed.
- *straight*, an eighth: one token; f([x]) = x·v + c must be affine.
- *repeats*, a quarter: the opening asked again; a deterministic target answers the same.
- *closing*, the rest, last: two to twenty tokens, scaled so that logits are moderate, half of
  them with a query token e_j, so that single columns of W are seen.

What a residual may be follows from the answers' precision and the certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from unsoftmax.measure.precision import KAPPA, Precision
from unsoftmax.measure.two_tokens import Values
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Sequences
from unsoftmax.protocol import Certificate, Evidence

_LENGTHS = (2, 3, 7, 20)
_LOGITS = (0.5, 2.0, 6.0)
# Random directions meet ‖ΔW‖_F in about 1/d of its size, one random direction in 1/√d. Twice
# that: the certificate is loose enough for the rest (measured over 2,000 heads: residuals of
# heads of 5 and more dimensions stayed below a fifth of what 8 times allows).
_ALIGNMENT = 2.0
# A logit that the certificate lets move by more than this says nothing about the model.
_MOST_MOVED = 0.01
# Tokens and their answers must stay in float32's range.
_LONGEST = 2.0**110


@dataclass(frozen=True, slots=True)
class Shares:
    """How many queries each family gets."""

    opening: int
    straight: int
    repeats: int
    closing: int

    @classmethod
    def of(cls, checks: int) -> Shares:
        """Divide ``checks`` queries."""
        quarter, eighth = checks // 4, checks // 8
        return cls(quarter, eighth, quarter, checks - 2 * quarter - eighth)


def opening(dim: int, count: int, rng: np.random.Generator, radius: float = np.inf) -> Sequences:
    """Three tokens at eight sizes in turn, the middle ones first."""
    powers = np.array([0, -1, 1, -2, 2, -3, 3, -4])[np.arange(count) % 8]
    tokens = rng.standard_normal((count, 3, dim)) / np.sqrt(dim)
    return _check("opening", 4.0 ** powers[:, None, None] * tokens, radius)


def straight(dim: int, count: int, rng: np.random.Generator, radius: float = np.inf) -> Sequences:
    """Single tokens of norm about 1."""
    return _check("straight", rng.standard_normal((count, 1, dim)) / np.sqrt(dim), radius)


def repeated(probes: Sequences, count: int) -> Sequences:
    """Ask the first of earlier probes again."""
    return _check("repeats", probes.X[:count], np.inf)


def closing(
    model: SingleHead,
    certificate: Certificate,
    count: int,
    rng: np.random.Generator,
    radius: float = np.inf,
    gain: float = 1.0,
    open_by: float = _MOST_MOVED,
) -> list[Sequences]:
    """Long sequences at moderate logits of ``model``, one family per length.

    Offsets are ``gain`` times as large as logits ask for, or as ``radius`` allows, query
    tokens as much smaller: where answers are noisy, larger ones tell more. The certificate
    may leave logits open by ``open_by``.
    """
    d = model.dim
    sequences: dict[int, list[Array]] = {}
    for n in range(count):
        length = _LENGTHS[n % len(_LENGTHS)]
        offsets = rng.standard_normal((length - 1, d)) / np.sqrt(d)
        query = np.zeros(d)
        query[rng.integers(d)] = 1.0
        if n % 2:
            query = rng.standard_normal(d) / np.sqrt(d)
        alpha, beta = _sizes(model, certificate, offsets, query, _LOGITS[n % len(_LOGITS)], open_by)
        if not alpha:  # no logits: whatever moves an answer shows, at some size
            alpha = beta = 4.0 ** (n % 8)
        longest = alpha * np.linalg.norm(offsets, axis=1).max() + beta * np.linalg.norm(query)
        room = 2.0 ** np.floor(np.log2(min(radius, _LONGEST) / longest))
        louder = max(1.0, min(gain, room))
        b = beta / louder * query
        sequences.setdefault(length, []).append(np.vstack([louder * alpha * offsets + b, b]))
    return [_check("closing", np.array(X), radius) for X in sequences.values()]


def _sizes(
    model: SingleHead,
    certificate: Certificate,
    offsets: Array,
    query: Array,
    wanted: float,
    open_by: float,
) -> tuple[float, float]:
    """Find α and β for which the logits α·(a·w + β·a·W b) have the RMS that is wanted.

    As in the learner, offsets are scaled up and query tokens down; where W is known too
    coarsely (W = 0 and rounded answers, say) sizes stay where its error moves no logit.
    """
    norm = np.linalg.norm(offsets, axis=1).max()
    from_bias = np.sqrt(np.mean((offsets @ model.w) ** 2))
    from_query = np.sqrt(np.mean((offsets @ (model.scores_of(query[None])[0] - model.w)) ** 2))
    powers = np.arange(-100.0, 101.0)
    alpha, beta = np.exp2(np.maximum(powers, 0)), np.exp2(np.minimum(powers, 0))
    logits = alpha * (from_bias + beta * from_query)
    if not np.any(logits):
        return 0.0, 0.0
    W_error, w_error = (min(certificate.errors[name], 1e100) for name in "Ww")
    errors = w_error + beta * W_error * np.linalg.norm(query)
    known = alpha * norm * errors <= open_by / 2
    fits = np.abs(np.log2(np.maximum(logits, 1e-300) / wanted))
    best = int(np.argmin(np.where(known, fits, np.inf))) if known.any() else int(np.argmin(fits))
    # a large bias leaves no size at which logits are moderate: shrink the offsets as well
    shrink = min(1.0, wanted / max(logits[best], 1e-300))
    return float(alpha[best] * shrink), float(beta[best] * shrink)


def _check(phase: str, X: Array, radius: float) -> Sequences:
    """Round tokens to float32, so that every target is asked exactly this; none is too long."""
    rounded = X.astype(np.float32).astype(np.float64)
    largest = np.linalg.norm(rounded, axis=2).max(axis=1)
    beyond = largest > radius
    if np.any(beyond):
        # a power of two keeps them float32 numbers
        octaves = np.ceil(np.log2(largest[beyond] / radius))
        rounded[beyond] *= np.exp2(-octaves)[:, None, None]
    return Sequences(rounded, phase=f"hold-out, {phase}", purpose="check")


def noise_of(first: Array, second: Array) -> float:
    """Estimate the standard deviation of what changed between two answers to the same questions."""
    return float(np.sqrt(np.mean((first - second) ** 2) / 2)) if len(first) else 0.0


def attention(model: SingleHead, X: Array) -> tuple[Array, Array]:
    """Return the vectors W x_N + w that tokens are scored with, and the attention weights."""
    vectors = model.scores_of(X[:, -1])
    scores = np.einsum("bnd,bd->bn", X, vectors)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return vectors, weights / weights.sum(axis=1, keepdims=True)


def straightness(
    probes: Sequences, answers: Array, values: Values
) -> tuple[Array, Callable[[Precision], Array]]:
    """Return the residuals of x·v̂ + ĉ and their tolerance as a function of the precision."""
    x = probes.X[:, 0]
    size = np.linalg.norm(x, axis=1) * values.norm + abs(values.c)
    residual = answers - x @ values.v - values.c

    def tolerance(precision: Precision) -> Array:
        own = np.abs(x) @ values.v_error + values.c_error
        bound: Array = precision.error(size, answers) + own
        return bound / _positive(size)

    return residual / _positive(size), tolerance


@dataclass(frozen=True, slots=True)
class Judgement:
    """What fresh answers say of a model."""

    evidence: Evidence
    strain: float
    """The largest share of what the certificate of W allows that a residual takes."""
    worst: tuple[float, float]
    """The residual that is most beyond its tolerance, and that tolerance."""


def judge(
    probes: list[Sequences],
    answers: list[Array],
    model: SingleHead,
    values: Values,
    certificate: Certificate,
    queries: int,
) -> Judgement:
    """Compare answers with the model's predictions, each within what the certificate allows.

    A sequence so long that the certificate lets its logits move by more than 1 % says nothing
    and is left out; without a finite certificate the model must be right to 1 % all the same.

    """
    W_error, w_error = (min(certificate.errors[name], 1e100) for name in "Ww")
    certain = max(W_error, w_error) < 1e100
    residuals, tolerances, strain = [], [], 0.0
    for family, y in zip(probes, answers, strict=True):
        X = family.X
        predicted = model(X)
        query = X[:, -1]
        vectors, weights = attention(model, X)

        norms = np.linalg.norm(X, axis=2)
        away = np.linalg.norm(X - query[:, None], axis=2)
        dense = np.count_nonzero(query, axis=1) > 1
        share = np.minimum(1.0, _ALIGNMENT / np.where(dense, model.dim, np.sqrt(model.dim)))
        from_W = share * np.linalg.norm(query, axis=1) * W_error
        from_w = w_error * min(1.0, _ALIGNMENT / np.sqrt(model.dim))
        moved = away * (from_W + from_w)[:, None]
        moved += norms * (KAPPA * values.precision.unit * np.linalg.norm(vectors, axis=1))[:, None]
        telling = np.max(moved, axis=1) <= _MOST_MOVED if certain else np.full(len(X), True)

        size = norms.max(axis=1) * values.norm + abs(values.c)
        spread = weights * np.abs(X @ values.v + values.c - predicted[:, None])
        pooled = np.abs(np.einsum("bn,bnd->bd", weights, X))
        own = values.precision.error(size, y) + values.c_error + pooled @ values.v_error
        allowed = np.sum(spread * np.minimum(moved, _MOST_MOVED), axis=1)
        missed = np.abs(y - predicted) - own
        strained = telling & (missed > 0) & (allowed > 0)
        with np.errstate(over="ignore"):
            shares = missed[strained] / allowed[strained]
        strain = max(strain, float(np.max(shares, initial=0.0)))
        residuals.append(((y - predicted) / _positive(size))[telling])
        tolerances.append(((own + allowed) / _positive(size))[telling])
    residual, tolerance = np.concatenate(residuals), np.concatenate(tolerances)
    worst = (np.nan, np.nan)
    if len(residual):
        most = int(np.argmax(np.abs(residual) / np.maximum(tolerance, 1e-300)))
        worst = (float(np.abs(residual[most])), float(tolerance[most]))
    return Judgement(Evidence.of(queries, residual, tolerance), strain, worst)


def _positive(size: Array) -> Array:
    """Leave residuals absolute where answers have no natural size (v = 0, c = 0)."""
    return np.where(size > 0, size, 1.0)
