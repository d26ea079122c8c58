"""Heads that switch together, from one cell of the network: 350 + 2.6·H·d(d + 2) queries.

Heads such as W beside 2W share their hyperplane at every query token, and no half circle tells
them apart; copies of a token do (`multi_head.pole_search`). Scores see differences of tokens
alone. So in the ball around b that the cell holds, tokens x = b + y are answered as those y by

    N(b) + Σ_h v_h·Σ_i α_hi y_i,   of scores y_i·(W_h y_N + u_h),   u_h = W_h b + w_h,

several heads with query biases u_h under a cap: all steps of that search serve.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unsoftmax.learners.compose import Asking, T, mapped
from unsoftmax.learners.multi_head.heads_conclusion import RecoveredHeads
from unsoftmax.learners.multi_head.pole_search import LINE_COPIES, separated
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head.token_lengths import TokenLengths
from unsoftmax.learners.multi_head.token_search import SoughtHeads
from unsoftmax.learners.multi_head_transformer.first_cell import FirstCell, beside_residual
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array, Moved, Round

# Few lines of each cell: others have other cells.
LINES = 2
# Query tokens are so many times as long as the farthest hyperplane on their way,
BEYOND_BIASES = 5.0
# and at least so long that the ball has this radius: what W adds to u_h within it is about as
# large as W.
LEAST_RADIUS = 3.0
# Query tokens are moved by this share of the radius.
QUERY_SHARE = 0.4


def heads_by_poles(
    cell: FirstCell, sought: SoughtHeads, rng: np.random.Generator
) -> Asking[RecoveredHeads]:
    """Find the heads of a cell: W_h and w_h of the layer, v_h of the cell.

    Raises
    ------
    CoincidentJumps
        The answers along a few lines do not tell them.
    """
    reach = float(cell.hinges.reach(cell.x[None])[0])
    b = max(BEYOND_BIASES * reach, LEAST_RADIUS / cell.share) * cell.x
    steps = _around(cell, b, sought, rng)
    if cell.residual is not None:
        steps = beside_residual(steps, cell.residual)
    return (yield from steps)


def _around(
    cell: FirstCell, b: Array, sought: SoughtHeads, rng: np.random.Generator
) -> Asking[RecoveredHeads]:
    length = float(np.linalg.norm(b))
    seen = (yield from cell.at_length(length)).seen
    radius = cell.share * length
    lengths = TokenLengths(radius, QUERY_SHARE * radius)
    precision = replace(seen.precision, absolute=seen.eta * seen.scale * length)
    reduced = replace(seen, c=seen.c + float(b @ seen.s), precision=precision, lengths=lengths)
    for copies in LINE_COPIES[:LINES]:
        steps = separated(reduced, sought.max_heads, copies, True, rng)
        try:
            return _around_zero((yield from moved_by(steps, b)), b)
        except CoincidentJumps:
            continue
    raise CoincidentJumps


def moved_by(steps: Asking[T], b: Array) -> Asking[T]:
    """Let steps see the target around b: their tokens y are asked as b + y."""

    def moved(asked: Round) -> Round:
        return [Moved.of(probes, b) for probes in asked]

    return mapped(steps, ask=moved)


def _around_zero(found: RecoveredHeads, b: Array) -> RecoveredHeads:
    """Turn query biases around b into those around 0: w_h = u_h − W_h b."""
    model, length = found.model, float(np.linalg.norm(b))
    w = model.w - model.W @ b
    errors = {**found.errors, "w": found.errors["w"] + found.errors["W"] * length}
    heads = MultiHead(model.W, model.v, w, model.c)
    return replace(found, model=heads, errors=errors, length=length)
