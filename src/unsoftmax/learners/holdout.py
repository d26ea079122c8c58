"""The hold-out of a single head: fresh sequences that a learner never learns from.

Four families share the queries that `checks` allows:

- *opening*, a quarter, asked first: three tokens at sizes 4⁻⁴ … 4³. They depend on all
  parameters, so they also tell this target from another when a run is resumed.
- *straight*, a quarter: one token; f([x]) = x·v + c must be affine.
- *repeats*, an eighth: the opening asked again; a deterministic target answers the same.
- *closing*, the rest, last: two to eight tokens, scaled so that logits are moderate, half of
  them with a query token e_j, so that single columns of W are seen.

What a residual may be follows from the answers' precision and the certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Sequences
from unsoftmax.protocol import Certificate, Evidence
from unsoftmax.theory.precision import KAPPA, Precision
from unsoftmax.theory.two_tokens import Values

_LENGTHS = (2, 3, 5, 8)
_LOGITS = (0.5, 2.0, 6.0)
# A random direction meets ‖ΔW‖_F in about 1/d of its size per unit of both vectors; a product
# of two Gaussians passes 8 times that once in 3,000.
_ALIGNMENT = 8.0
# Residuals beyond this share of what attention contributes are no evidence of anything.
_MOST_SPREAD = 0.01


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
        return cls(quarter, quarter, eighth, checks - 2 * quarter - eighth)


def opening(dim: int, count: int, rng: np.random.Generator) -> Sequences:
    """Three tokens at eight sizes in turn, the middle ones first."""
    powers = np.array([0, -1, 1, -2, 2, -3, 3, -4])[np.arange(count) % 8]
    tokens = rng.standard_normal((count, 3, dim)) / np.sqrt(dim)
    return _check("opening", 4.0 ** powers[:, None, None] * tokens)


def straight(dim: int, count: int, rng: np.random.Generator) -> Sequences:
    """Single tokens of norm about 1."""
    return _check("straight", rng.standard_normal((count, 1, dim)) / np.sqrt(dim))


def repeated(probes: Sequences, count: int) -> Sequences:
    """Ask the first of earlier probes again."""
    return _check("repeats", probes.X[:count])


def closing(model: SingleHead, count: int, rng: np.random.Generator) -> list[Sequences]:
    """Long sequences at moderate logits of ``model``, one family per length."""
    d = model.dim
    sequences: dict[int, list[Array]] = {}
    for n in range(count):
        length = _LENGTHS[n % len(_LENGTHS)]
        offsets = rng.standard_normal((length - 1, d)) / np.sqrt(d)
        query = np.zeros(d)
        query[rng.integers(d)] = 1.0
        if n % 2:
            query = rng.standard_normal(d) / np.sqrt(d)
        # the size at which the RMS logit is as wanted: α·r_w + αβ·r_W with α = max(s,1),
        # β = min(s,1)
        with_bias = np.sqrt(np.mean((offsets @ model.w) ** 2))
        with_query = np.sqrt(np.mean((offsets @ (model.scores_of(query[None])[0] - model.w)) ** 2))
        powers = np.arange(-120, 121)
        alpha, beta = np.exp2(np.maximum(powers, 0)), np.exp2(np.minimum(powers, 0))
        logits = alpha * (with_bias + beta * with_query)
        best = int(np.argmin(np.abs(np.log2(np.maximum(logits, 1e-300) / _LOGITS[n % 3]))))
        best = best if with_bias or with_query else 120
        # a large bias leaves no size at which logits are moderate: shrink the offsets as well
        shrink = min(1.0, _LOGITS[n % 3] / logits[best]) if logits[best] else 1.0
        alpha_n, beta_n = alpha[best] * shrink, beta[best] * shrink
        b = beta_n * query
        sequences.setdefault(length, []).append(np.vstack([alpha_n * offsets + b, b]))
    return [_check("closing", np.array(X)) for X in sequences.values()]


def _check(phase: str, X: Array) -> Sequences:
    """Round tokens to float32, so that every target is asked exactly this."""
    rounded = X.astype(np.float32).astype(np.float64)
    return Sequences(rounded, phase=f"hold-out, {phase}", purpose="check")


def noise_of(first: Array, second: Array) -> float:
    """Estimate the standard deviation of what changed between two answers to the same questions."""
    return float(np.sqrt(np.mean((first - second) ** 2) / 2)) if len(first) else 0.0


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


def judge(
    probes: list[Sequences],
    answers: list[Array],
    model: SingleHead,
    values: Values,
    certificate: Certificate,
    queries: int,
) -> tuple[Evidence, bool]:
    """Compare answers with the model's predictions.

    Returns
    -------
    Evidence
        Relative residuals and their tolerance.
    bool
        Whether a residual that fails would fail at the certificate's own bound as well; if
        not, it is the answers that are too coarse, rather than the class that is wrong.
    """
    residuals, tolerances, capped = [], [], False
    for family, y in zip(probes, answers, strict=True):
        X = family.X
        size = np.linalg.norm(X, axis=2).max(axis=1) * values.norm + abs(values.c)
        predicted = model(X)
        query = X[:, -1]
        vectors = model.scores_of(query)
        scores = np.einsum("bnd,bd->bn", X, vectors)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        spread = weights * np.abs(X @ values.v + values.c - predicted[:, None])
        away = np.linalg.norm(X - query[:, None], axis=2)
        share = np.where(
            np.count_nonzero(query, axis=1) > 1,
            min(1.0, _ALIGNMENT / model.dim),
            min(1.0, _ALIGNMENT / np.sqrt(model.dim)),
        )
        score_error = certificate.errors["W"] * share * np.linalg.norm(query, axis=1)
        score_error = score_error + certificate.errors["w"]
        rounding = KAPPA * values.precision.unit * np.linalg.norm(vectors, axis=1)
        error = away * score_error[:, None]
        error += np.linalg.norm(X, axis=2) * rounding[:, None]
        capped |= bool(np.any((error > _MOST_SPREAD) & (spread > 0)))
        pooled = np.abs(np.einsum("bn,bnd->bd", weights, X))
        tolerance = (
            values.precision.error(size, y)
            + values.c_error
            + pooled @ values.v_error
            + np.sum(spread * np.minimum(error, _MOST_SPREAD), axis=1)
        )
        residuals.append((y - predicted) / _positive(size))
        tolerances.append(tolerance / _positive(size))
    evidence = Evidence.of(queries, np.concatenate(residuals), np.concatenate(tolerances))
    return evidence, not capped


def _positive(size: Array) -> Array:
    return np.maximum(size, np.finfo(float).tiny)
