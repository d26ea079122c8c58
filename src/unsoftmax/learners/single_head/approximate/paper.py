"""Theorem 6.1 as the paper writes it, with its zero rows put right.

    f([e_i]) ≈ v_i,   f([e_i/W̄ + e_j/2; e_j/2]) ≈ v_j/2 + (v_i/W̄)·σ(W_ij/(2W̄))

for ‖W‖_F ≤ W̄, W̄ ≥ 2, ‖v‖ ≤ 1; σ̂ is clipped to [σ(−½), σ(½)]. Where v̂_i is 0 as far as the
tolerance tells, the offset is e_i + e_p with the largest |v̂_p|, and Ŵ_pj is subtracted.
Differences from the paper: (1) there the query token is e_j/(2√2), or logits leave the clip
(`unsoftmax.theory.tolerances` has the proof that nothing else need change); (2) μ is not
known: an entry counts as 0 when |v̂_i| ≤ τ, which is right whenever τ < μ/2.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import numpy as np

from unsoftmax.learners.single_head.approximate.tolerated import (
    Bounded,
    Pass,
    Terms,
    refuse,
    solve,
    verify,
)
from unsoftmax.learners.single_head.first_round import FirstRoundSettings, ask_first_round
from unsoftmax.measure.two_tokens import Values
from unsoftmax.models import SingleHead
from unsoftmax.probes import Grid, Probes, Round, Singles, UnitVectors
from unsoftmax.protocol import Answers, Found

_QUERY_SCALE = 0.5
# 1/(2√2), rounded down to what float32 holds beside an offset
_ZERO_QUERY_SCALE = 1448 / 4096


def learn(
    dim: int, terms: Terms, repeats: int, checks: int, rng: np.random.Generator
) -> Generator[Round, Answers, Found[SingleHead]]:
    """Ask what Theorem 6.1 asks, ``repeats`` times, and return what was found."""
    tolerance, norm_bound = terms.tolerance, terms.norm_bound
    assert norm_bound is not None
    given = FirstRoundSettings(False, terms.precision, 1.0, terms.cap)
    opened = yield from ask_first_round(dim, checks, rng, given)
    values = opened.values
    if repeats > 1:
        singles = Singles(UnitVectors(dim), phase="v", purpose="data")
        further = yield [singles] * (repeats - 1)
        values = replace(values, v=np.mean([values.v, *further], axis=0))

    zero = np.abs(values.v) <= tolerance
    largest = int(np.argmax(np.abs(values.v)))
    Z = np.eye(dim)
    Z[zero, largest] = 1.0
    alpha = np.full((dim, dim), 1 / norm_bound)
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

    # an entry that counts as 0 is 0, or at most |v̂_i| + τ
    counted = Values(
        v=np.where(zero, 0.0, values.v),
        c=0.0,
        v_error=values.v_error + np.where(zero, np.abs(values.v), 0.0),
        c_error=0.0,
        precision=values.precision,
    )
    asked = Pass(Z, np.eye(dim), alpha, beta, y)
    W, W_error = solve([asked], counted, norm_bound)
    errors = asked.error(asked.read(counted, norm_bound), W, counted).T
    # Z⁻¹ only subtracts row p from the zero rows: entry by entry that is sharper
    entrywise = errors + np.where(zero[:, None], errors[largest], 0.0)
    W_error = min(W_error, float(np.linalg.norm(entrywise)))
    # The theorem's own bound takes each of these steps at its worst: it is no help here.
    refuse([asked], W, W_error, counted, terms)
    fit = Bounded(SingleHead(W, values.v), values, W_error, terms.assumes)
    return (yield from verify(fit, opened, checks, rng, terms))
