"""Join the columns of W with its rows: W = C (A C)⁻¹ (A W), and once more on its row space.

    A W x_k     r offsets in W's range, the d − r tokens whose columns are not known
    A w         with biases: the query token 0
    W Pᵀ        d offsets, r query tokens in the row space: only where answers are noisy

The offsets a_k = Q z_k + v̂, Q a basis of the columns and z balanced, make A Q well conditioned
and every a_k·v ≥ ‖v‖, whether v lies in W's range or not.

*Queries*: r(d − r), r more with biases; d·r for the refinement. Source: beyond Theorem 5.1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.single_head.column_space import LowRankProbes, SpanningColumns
from unsoftmax.learners.single_head.factored_reading import FactoredReading, joined
from unsoftmax.measure import offsets
from unsoftmax.measure.logit_grid import LogitGrid, measure
from unsoftmax.measure.logit_scales import scale_for
from unsoftmax.measure.offsets import DENSE_GRID
from unsoftmax.measure.scales import beside_bias, even, offset_only
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array
from unsoftmax.solve.dense import solve
from unsoftmax.solve.skeleton import Skeleton

# From this rank on the columns' size says at which scale other tokens are asked.
ENOUGH = 8
# Below it, so many tokens are asked first: the columns known are few, and say only roughly how
# long the others are.
FEW = 2
# Octaves below the columns' scale at which these few are asked.
CAUTION = 2
# Where no more than this share of v lies in W's range, offsets are balanced on a random direction
# of it: balancing on v's part there would follow its error.
ORTHOGONAL = 1e-3


def read_rows(
    probes: LowRankProbes, columns: SpanningColumns, rng: np.random.Generator
) -> Asking[FactoredReading]:
    """Ask for the rows A W and join them with the columns."""
    values, dim, rank = probes.values, probes.dim, len(columns.tokens)
    spare = 2 * (rank + 1 + probes.biases) - columns.grid.again
    C = solve(probes.Z, columns.grid.measured())
    basis = np.linalg.qr(C.matrix)[0]
    skeleton = Skeleton(basis, _offsets_in(basis, values.v, rng))
    bias, shift, split = None, None, probes.split
    seen = skeleton.rows @ C.matrix
    if columns.beta:
        zero = np.zeros((1, dim))
        bias = probes.grid(skeleton.rows, zero, offset_only, "w, rows")
        yield from measure(bias, max(0, min(spare, 2)))
        probes = replace(probes, values=bias.values)
        [shift] = bias.measured()
        split = beside_bias(shift, even)
        seen = seen - shift[:, None] / columns.beta
        spare -= bias.again
    rest = np.setdiff1d(np.arange(dim), columns.tokens)
    rows = None
    if len(rest):
        rows = probes.grid(skeleton.rows, probes.tokens(rest), split, "W, rows", shift)
        k = scale_for(float(np.sqrt(np.mean(seen**2))), probes.grid_tuning)
        yield from _ask_rows(rows, k, spare)
    values = probes.values if rows is None else rows.values
    for grid in (columns.grid, bias):
        if grid is not None:
            grid.take(values)
    return joined(values, columns, C, skeleton, probes.T, bias, rows)


def _ask_rows(rows: LogitGrid, k: int, spare: int) -> Asking[None]:
    """Ask all offsets with all tokens; 2^k is the scale that the columns suggest."""
    count, rank = rows.shape
    scales = rows.common_scale(k)
    few = min(FEW, count) if rank < ENOUGH else 0
    if few:
        yield from rows.ask(slice(0, few), slice(None), scales[:few] - CAUTION)
        scales = rows.common_scale()
    if few < count:
        yield from rows.ask(slice(few, None), slice(None), scales[few:])
    yield from rows.retry(scales, max(0, spare))


def _offsets_in(Q: Array, v: Array, rng: np.random.Generator) -> Array:
    """Make r offsets Q z_k + v̂: A Q is well conditioned and a_k·v ≥ ‖v‖ whatever v is."""
    direction = v / np.linalg.norm(v)
    within = Q.T @ direction
    if np.linalg.norm(within) < ORTHOGONAL:
        within = rng.standard_normal(len(within))
    rows = offsets.balanced(within, rng).made() @ Q.T + direction
    return np.asarray(np.round(rows / DENSE_GRID) * DENSE_GRID)


def read_on_row_space(probes: LowRankProbes, found: FactoredReading) -> Asking[FactoredReading]:
    """Read W once more on the row space V found: Ŵ = (W Pᵀ)(V Pᵀ)⁻¹V, P being V rounded."""
    model, values, right = found.model, found.values, found.right.matrix
    V = np.linalg.qr(right.T)[0].T
    P = np.round(V / DENSE_GRID) * DENSE_GRID
    shift, split = None, probes.split
    if found.bias is not None:
        shift = probes.Z.times(model.w)
        split = beside_bias(shift, even)
    grid = probes.grid(probes.Z.rows, P, split, "W on its row space", shift)
    size = float(np.linalg.norm(right) / np.sqrt(grid.y.size))
    k = grid.common_scale(scale_for(size, probes.grid_tuning))
    yield from grid.ask(slice(None), slice(None), k)
    yield from grid.retry(k, 0)
    K = solve(probes.Z, grid.measured())
    again = SingleHead.from_factors(
        K.matrix.T, np.linalg.solve(V @ P.T, V), values.v, model.w, values.c
    )
    return replace(found, model=again, refined=grid)
