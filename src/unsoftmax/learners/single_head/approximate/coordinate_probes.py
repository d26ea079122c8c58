"""Theorem 6.1 as the paper writes it, in coordinates, with its zero rows put right.

    f([e_i]) ≈ v_i,   f([e_i/W̄ + e_j/2; e_j/2]) ≈ v_j/2 + (v_i/W̄)·σ(W_ij/(2W̄))

for ‖W‖_F ≤ W̄, W̄ ≥ 2, ‖v‖ ≤ 1; σ̂ is clipped to [σ(−½), σ(½)]. Where v̂_i is 0 as far as the
tolerance tells, the offset is e_i + e_p with the largest |v̂_p|, and Ŵ_pj is subtracted. Single
tokens may be declared more precise than pairs, as the theorem has it: τ_v ≤ τ_f.
Queries: d + d² per repetition. Differences from the paper: (1) for zero rows the query token is
e_j/(2√2), or logits leave the clip (`unsoftmax.theory.tolerances` has the proof that nothing else
need change); (2) μ is not known: an entry counts as 0 when |v̂_i| ≤ τ_v, which is right whenever
τ_v < μ/2.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.single_head.approximate.bounded_head import (
    BoundedHead,
    Declared,
    conclude_bounded,
    estimate,
    refuse_unbounded,
)
from unsoftmax.learners.single_head.first_round import ask_first_round
from unsoftmax.measure.intervals import Pass
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Grid, Probes, Singles, UnitVectors
from unsoftmax.protocol import Steps
from unsoftmax.validate.sequences import HoldoutTuning

# The theorem's scale of query tokens, and that of zero rows: 1/(2√2), rounded down to what
# float32 holds beside an offset.
_QUERY_SCALE, _ZERO_QUERY_SCALE = 0.5, 1448 / 4096


def learn_by_coordinates(
    dim: int,
    declared: Declared,
    repeats: int,
    checks: int,
    rng: np.random.Generator,
    holdout: HoldoutTuning,
) -> Steps[SingleHead]:
    """Ask what Theorem 6.1 asks, ``repeats`` times, and return what was found."""
    first = yield from ask_first_round(dim, checks, rng, declared.first_round(1.0))
    values = declared.of_unit_tokens(first.values)
    if repeats > 1:
        singles = Singles(UnitVectors(dim), phase="v", purpose="data")
        further = yield [singles] * (repeats - 1)
        values = replace(values, v=np.mean([values.v, *further], axis=0))

    zero = np.abs(values.v) <= declared.of_singles
    asked = yield from _asked(values, zero, declared, repeats)
    # an entry that counts as 0 is 0, or at most |v̂_i| + τ
    counted = replace(
        values,
        v=np.where(zero, 0.0, values.v),
        v_error=values.v_error + np.where(zero, np.abs(values.v), 0.0),
    )
    found = estimate([asked], counted, declared)
    # Z⁻¹ only subtracts row p from the zero rows: entry by entry that is sharper
    errors = found.readings[0].error.T
    entrywise = errors + np.where(zero[:, None], errors[int(np.argmax(np.abs(values.v)))], 0.0)
    # the theorem's own bound takes each of these steps at its worst: it is never the smallest
    found = replace(found, W_error=min(found.W_error, float(np.linalg.norm(entrywise))))
    refuse_unbounded(found, declared)
    head = BoundedHead(SingleHead(found.W, values.v), values, found.W_error, declared.assumes)
    return (yield from conclude_bounded(head, first, rng, declared, holdout))


def _asked(
    values: Values, zero: NDArray[np.bool_], declared: Declared, repeats: int
) -> Asking[Pass]:
    """Ask for every entry of W; answers of all repetitions are averaged."""
    assert declared.norm_bound is not None
    dim = len(zero)
    Z: Array = np.eye(dim)
    Z[zero, int(np.argmax(np.abs(values.v)))] = 1.0
    alpha = np.full((dim, dim), 1 / declared.norm_bound)
    beta = np.where(zero, _ZERO_QUERY_SCALE, _QUERY_SCALE)[None, :].repeat(dim, axis=0)
    y = np.empty((dim, dim))
    kinds = [rows for rows in (~zero, zero) if rows.any()]
    grids: list[Probes] = [
        Grid(Z[rows], UnitVectors(dim), alpha[:, 0], beta[:, rows][:, 0], phase="W", purpose="data")
        for rows in kinds
    ]
    answers = yield grids * repeats
    for n, rows in enumerate(kinds):
        y[:, rows] = np.mean([part.reshape(dim, -1) for part in answers[n :: len(kinds)]], axis=0)
    return Pass(Z, np.eye(dim), alpha, beta, y)
