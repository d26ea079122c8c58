"""Subspaces of heads to the precision of the answers, from Hessians that are nearly theirs.

With the heads nearly known, what the finite differences leave of the further orders of tanh is
known too. So, in turn: further orders are subtracted from A(b) and the subspaces aligned with
what remains (`solve.invariant_subspaces`); the common blocks are looked for again, with a limit
as much lower (`solve.commutant`); the two lines of heads of rank one are joined (`rank_one`). No
queries.

Source: beyond the paper, whose conjecture (Appendix C) takes exact Hessians.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.learners.orthogonal_heads.rank_one import (
    RankOneTuning,
    joined_lines,
    without_small,
)
from unsoftmax.measure.hessians import Excess
from unsoftmax.measure.single_tokens import Values
from unsoftmax.probes import Array
from unsoftmax.solve.commutant import CommonBlocks, Commutant, common_blocks
from unsoftmax.solve.invariant_subspaces import AlignedSubspaces, AlignmentTuning, aligned


@dataclass(frozen=True, slots=True)
class RefinementTuning:
    """Knobs of `refined`."""

    draws: int = 32
    """Random elements of the commutant, of which the one with the widest gaps is taken."""
    clear_of_noise: float = 1e3
    """Once further orders are subtracted, singular values above this many times the noise count,
    where that is lower than half way (in logarithms) between noise and 1."""
    noise_margin: float = 3.0
    """The deviation of an entry of A is at most this many times what the answers' error makes."""
    straightened: int = 3
    """Times that further orders are subtracted and subspaces aligned in turn. Each time leaves
    1e-2 of the further orders or less."""
    rank_one: RankOneTuning = field(default=RankOneTuning())
    alignment: AlignmentTuning = field(default=AlignmentTuning())


@dataclass(frozen=True, slots=True)
class SeenHessians:
    """What some query tokens showed."""

    excess: Excess
    """What answers exceed, at one scale."""
    commutant: Commutant
    """A(b), further orders included, and what commutes with them."""


def refined(
    seen: SeenHessians, values: Values, rng: np.random.Generator, tuning: RefinementTuning
) -> tuple[AlignedSubspaces, CommonBlocks]:
    """Return the subspaces, by how much they lean to each other, and the common blocks.

    The last of the subspaces is what is in none of them. ``values`` is Σ v_h.
    """
    scale, A = seen.excess.scale, np.array(seen.commutant.seen)

    def split(blocks: CommonBlocks, A: Array, limit: float) -> list[Array]:
        return joined_lines(blocks.subspaces(rng, tuning.draws), A, limit, tuning.rank_one)

    bases = split(seen.commutant.blocks(), A, seen.commutant.limit)
    for limit in (scale.limit, min(scale.limit, tuning.clear_of_noise * scale.noise)):
        _, A = _straightened(bases, A, seen.excess, values, tuning)
        blocks = common_blocks(A, limit)
        bases = split(blocks, A, limit)
    bases = without_small(bases, A, scale.limit)
    found, _ = _straightened(bases, A, seen.excess, values, tuning)
    return found, blocks


def _straightened(
    bases: list[Array], A: Array, excess: Excess, values: Values, tuning: RefinementTuning
) -> tuple[AlignedSubspaces, Array]:
    """Subtract the heads' further orders and align the subspaces, in turn."""
    for _ in range(tuning.straightened):
        A = excess.without_orders_of(np.array([E @ (E.T @ values.v) for E in bases]), A)
        noise = tuning.noise_margin * excess.scale.noise * float(np.max(np.abs(A)))
        found = aligned([*bases, _complement(bases)], A, noise, tuning.alignment)
        bases = found.bases[:-1]
    return found, A


def _complement(bases: list[Array]) -> Array:
    """Return an orthonormal basis of what is in no subspace."""
    E = np.hstack(bases)
    return np.asarray(np.linalg.qr(E, mode="complete")[0][:, E.shape[1] :])
