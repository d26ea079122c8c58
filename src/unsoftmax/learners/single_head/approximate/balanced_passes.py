"""What balanced probes ask under Theorem 6.1: v in several bases, pilots, and passes over W.

    f([ρx]) ≈ ρ(x·v)                                     v from orthonormal bases
    f([αz+βb; βb]) ≈ β(b·v) + α(z·v)·σ(αβ·z·(W b))       W from offsets z and query tokens b

Every pass asks in new random directions, so that errors which depend on the question alone
(rounding) are averaged like noise. Queries: d per basis, d² per pass; where ‖W‖ is not bounded
the first d of the first pass are pilots, which may be asked again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.single_head.approximate.token_scales import (
    PILOT_ROUNDS,
    READING,
    TokenScales,
)
from unsoftmax.measure.intervals import Pass, read_intervals
from unsoftmax.measure.precision import KAPPA, UNIT, Precision
from unsoftmax.measure.single_tokens import Values, size_of_terms
from unsoftmax.measure.two_tokens import TwoTokenAnswers, Vectors
from unsoftmax.probes import Array, Grid, Pairs, Probes, Purpose, Singles


def averaged_values(
    values: Values, scales: TokenScales, repeats: int, rng: np.random.Generator
) -> Asking[Values]:
    """Ask for v again in ``repeats`` − 1 new bases, and average."""
    if repeats == 1:
        return values
    d, scale = len(values.v), scales.single
    bases = [scales.basis(d, rng) for _ in range(repeats - 1)]
    answers = yield [Singles(U, scale, phase="v", purpose="data") for U in bases]
    inverses = [np.linalg.inv(U) for U in bases]
    found = [inverse @ y / scale for inverse, y in zip(inverses, answers, strict=True)]
    size = np.full(d, scale * values.norm)
    errors = [
        np.abs(inverse) @ (values.precision.error(size, y) + d * UNIT * np.abs(y)) / scale
        for inverse, y in zip(inverses, answers, strict=True)
    ]
    v = np.mean([values.v, *found], axis=0)
    # unit vectors bound each entry best, whatever the average says
    first = np.abs(v - values.v) + values.v_error + 2 * UNIT * np.abs(v)
    v_error = np.minimum(first, np.mean([values.v_error, *errors], axis=0))
    return replace(values, v=v, v_error=v_error)


# Answers whose format is looked at: a format shows in a few, more cost time.
WITNESSES = 256


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """A pass with the probes whose answers it lacks."""

    known: Pass
    probes: Grid | Pairs

    def finished(self, answers: Array) -> Pass:
        """Put the answers in their places."""
        if isinstance(self.probes, Grid):
            return replace(self.known, y=self.probes.table(answers))
        y = self.known.y.copy()
        y[self.probes.j, self.probes.i] = answers
        return replace(self.known, y=y)


def passes_over_W(
    values: Values,
    scales: TokenScales,
    norm_bound: float | None,
    repeats: int,
    rng: np.random.Generator,
) -> Asking[list[Pass]]:
    """Ask for W, every pass with new offsets and query tokens."""
    d = len(values.v)
    bases = [(scales.balanced(values.v, rng), scales.basis(d, rng)) for _ in range(repeats)]
    unfinished: list[_Unfinished] = []
    if norm_bound is None:
        k, piloted = yield from _pilots(*bases[0], values, scales)
        unfinished.append(piloted)
    else:
        k = scales.within(norm_bound)
    alpha, beta = scales.split(k)
    for Z, B in bases[len(unfinished) :]:
        grid = Grid(Z, B, np.full(d, alpha), np.full(d, beta), phase="W", purpose="data")
        unfinished.append(_Unfinished(_blank(Z, B, alpha, beta), grid))
    asked: list[Probes] = [one.probes for one in unfinished]
    answers = yield asked
    return [one.finished(y) for one, y in zip(unfinished, answers, strict=True)]


def _pilots(
    Z: Array, B: Array, values: Values, scales: TokenScales
) -> Asking[tuple[float, _Unfinished]]:
    """Find the scale by asking offset i with query token i; these answers stay in the pass."""
    d = len(Z)
    every = np.arange(d)
    a, b = Vectors.of(Z, values), Vectors.of(B, values)
    k = scales.first(d)
    purpose: Purpose = "pilot"
    for attempt in range(PILOT_ROUNDS):
        alpha, beta = (np.full(d, scale) for scale in scales.split(k))
        phase = "W" if purpose == "pilot" else "W, again"
        [y] = yield [Pairs(Z, B, every, every, alpha, beta, phase=phase, purpose=purpose)]
        pilots = read_intervals(TwoTokenAnswers(y, a, b, alpha, beta, values), tuning=READING)
        better = scales.better(pilots, k, attempt)
        if better == k:
            break
        # after the last attempt these pilots stay: only less precise than the rest
        k, purpose = better, "again"
    first = _blank(Z, B, *scales.split(k))
    for table, diagonal in ((first.alpha, alpha), (first.beta, beta), (first.y, y)):
        np.fill_diagonal(table, diagonal)
    j, i = np.nonzero(~np.eye(d, dtype=bool))
    rest = Pairs(Z, B, i, j, first.alpha[j, i], first.beta[j, i], phase="W", purpose="data")
    return k, _Unfinished(first, rest)


def _blank(Z: Array, B: Array, alpha: float, beta: float) -> Pass:
    shape = (len(B), len(Z))
    return Pass(Z, B, np.full(shape, alpha), np.full(shape, beta), np.zeros(shape))


def with_format(values: Values, asked: Pass, repeats: int) -> Values:
    """Widen the precision by the format of the answers, where they are far larger than τ.

    The format is read off some answers of a pass. Decimals of stretched answers look
    like significant digits: the tolerance says it better, so only binary formats are noticed.
    """
    seen = Precision.of_format([np.ravel(asked.y)[:WITNESSES]])
    precision = replace(
        values.precision,
        unit=max(seen.unit, values.precision.unit),
        relative=seen.relative,
        why=values.precision.why + (seen.why if seen.unit > UNIT else ()),
    )
    inside = replace(precision, absolute=0.0)
    v_error = values.v_error + inside.error_at_unit_vector(size_of_terms(values.v), values.v)
    if repeats > 1:  # sums of d terms, in bases whose rows' 1-norms are below √d
        v_error = v_error + np.sqrt(len(values.v)) * KAPPA * precision.unit * values.norm
    return replace(values, precision=precision, v_error=v_error)
