"""Appendix C's conjecture, made to work: the subspaces U_h from Hessians A(b) at query tokens b.

No A(b) = Σ_h (u_h v_hᵀ + v_h u_hᵀ), u_h = W_h b, leads out of a U_h. So the U_h are the finest
simultaneous block diagonalisation of a few A(b) (`solve.commutant`):

1. A scale at which logits are small but visible, along one query token; a smaller one where
   logits along others turn out to be larger (`measure.hessians`).
2. A(b), one query token after the other, until their common blocks stay the same.
3. With the heads nearly known, the same again without the further orders of tanh.
4. Heads that are too small to be seen beside others are looked for in the complement of those.

Queries: 34 for a scale, and d(d + 1) for each of about max d_h + 2 query tokens; once more in the
complement for each level of smaller heads. Difference from the paper: a few random b, one at a
time until the blocks no longer change, unless e_1 … e_d are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.compose import Asking, restricted
from unsoftmax.learners.orthogonal_heads.restricted_head import Complement, HeadSubspace
from unsoftmax.measure.hessians import (
    Excess,
    HessianScale,
    HessianTuning,
    ask_excess,
    find_hessian_scale,
    hessian_queries,
    saturated_unseen,
    unseen_scores,
)
from unsoftmax.measure.precision import why
from unsoftmax.measure.single_tokens import Values
from unsoftmax.probes import Array
from unsoftmax.solve.commutant import CommonBlocks, Commutant, common_blocks
from unsoftmax.solve.invariant_subspaces import AlignedSubspaces, aligned

# Times that heads are looked for: in R^d, then smaller ones in the complement of those that were
# found. Scores of 1e±5 beside each other take two, a head W = 0 one more.
LEVELS = 3
# Scales tried on a level. A pilot may meet a head where it reads next to nothing, or hardly any of
# its values: then logits turn out larger than it showed, and a lower scale is tried.
SCALES = 3
# Further orders above this share of A, or above what counts as 0, and the scale is lowered.
BENT = 1e-3
# The same at the last scale: beyond it what is read off is no Hessian.
MOST_BENT = 0.03
# A relative singular value above this must not count as 0: nothing is left between noise and what
# counts, and the answers are refused as too coarse.
MOST_LIMIT = 0.2
# What is left of Σ v_h outside of all subspaces is a head where it exceeds so many times the error
# of Σ v_h and ``leak_margin`` times the leaks together. Smaller: errors pass for heads; larger:
# small heads are hidden, as the certificate then says.
STANDS_OUT = 3.0
# The same for what may have leaked from the heads that were found.
LEAK_MARGIN = 2.0
HESSIAN = HessianTuning()
# The common blocks must stay the same for so many query tokens. Each costs d(d + 1) queries; with
# fewer, blocks that one more token would join or tell apart are taken for final.
UNCHANGED = 3
# Random elements of the commutant, of which the one with the widest gaps is taken.
DRAWS = 32
# Once further orders are subtracted, singular values above this many times the noise count, where
# that is lower than half way (in logarithms) between noise and 1.
CLEAR_OF_NOISE = 1e3
# The deviation of an entry of A is at most this many times what the answers' error makes.
NOISE_MARGIN = 3.0
# Times that further orders are subtracted and subspaces aligned in turn. Each time leaves 1e-2 of
# the further orders or less.
STRAIGHTENED = 3
# Two lines belong together where their unit profiles, eigenvalues over b, add up to less. Larger:
# lines of two heads that read nearly the same tokens are joined.
ALIKE = 0.03
# The same as a multiple of what counts as 0 of A, relative to the smaller profile: where profiles
# are known better than ``alike`` only lines that agree so well are joined.
TIMES_LIMIT = 30.0


def most_queries(dim: int) -> int:
    """Bound the queries of a whole search."""
    each = (hessian_queries(k) * k for k in dimensions(dim))
    return sum(HESSIAN.pilot_queries + SCALES * queries for queries in each)


def most_rounds(dim: int, every: bool) -> int:
    """Bound its rounds; ``every`` query token may be asked in one."""
    return SCALES * sum(2 if every else 1 + k for k in dimensions(dim))


def dimensions(dim: int) -> range:
    """Return the dimensions that are left on each level, at most."""
    return range(dim, max(dim - LEVELS, 0), -1)


@dataclass(frozen=True, slots=True)
class FoundSubspaces:
    """Where the heads are, and what is in no subspace."""

    places: list[HeadSubspace]
    complement: Complement
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubspaceSearch:
    """Find the subspaces of heads, given Σ v_h.

    Attributes
    ----------
    every : bool
        Ask for all of e_1 … e_d instead of random query tokens.
    rng : Generator
        Draws them.
    unchanged : int
        The common blocks must stay the same for so many query tokens.
    """

    every: bool
    rng: np.random.Generator
    unchanged: int = UNCHANGED

    def find(self, values: Values, level: int = 1, leak: float = 0.0) -> Asking[FoundSubspaces]:
        """Find subspaces, and smaller heads in their complement.

        ``values`` is Σ v_h; ``leak`` what tokens may meet of heads that were found before, on
        levels below this one.
        """
        seen = yield from self._look(values)
        if seen is None:
            return self._without_scores(values)
        found, blocks = refined(seen, values, self.rng)
        *bases, outside = found.bases
        # a tilt of a subspace lets it meet the values of all others
        parts = [float(np.linalg.norm(E.T @ values.v)) for E in found.bases]
        leaks, tilts = leak + found.errors @ parts, np.linalg.norm(found.errors, axis=1)

        def place(h: int) -> HeadSubspace:
            errors = float(leaks[h]), float(tilts[h]), found.outside_blocks
            return HeadSubspace.of(found.bases[h], values, *errors)

        places = [place(h) for h in range(len(bases))]
        note = _counted(bases, len(seen.excess.excess), blocks)
        unknown = STANDS_OUT * np.linalg.norm(values.v_error)
        hidden = float(LEAK_MARGIN * leaks[-1] + unknown)
        if parts[-1] <= hidden:
            value, tilt = outside.T @ values.v, float(tilts[-1])
            complement = Complement(outside, value, False, tilt, hidden=hidden)
            return FoundSubspaces(places, complement, (note,))
        rest = place(len(bases))
        more = yield from self._weaker(rest, outside, level + 1)
        return FoundSubspaces(
            [*places, *(place.within(outside, rest.tilt) for place in more.places)],
            more.complement.within(outside, rest.tilt),
            (note, *more.notes),
        )

    def _weaker(self, rest: HeadSubspace, outside: Array, level: int) -> Asking[FoundSubspaces]:
        """Find heads in the complement of those found, which these drowned."""
        if level > LEVELS:
            raise ModelMismatch(
                f"After {LEVELS} times that heads were found, weaker ones are left: "
                "the target is not a sum of heads in mutually orthogonal subspaces, or they are "
                "too different."
            )
        return (yield from restricted(self.find(rest.values, level, rest.leak), outside))

    def _without_scores(self, values: Values) -> FoundSubspaces:
        """Return the one head W = 0 that is left where no logits show."""
        if saturated_unseen(values, HESSIAN):
            raise NotIdentifiable(
                f"A part of Σ v_h, {values.norm:.1e} large, is weighed by no logit that shows "
                "beside other heads: whether its W is 0 cannot be told." + why(values.precision),
                determined={"v": values.v},
            )
        note = "A part of Σ v_h is weighed by no logit: a head with W = 0."
        W_error = unseen_scores(values, HESSIAN)
        complement = Complement(np.eye(len(values.v)), values.v, True, W_error=W_error)
        return FoundSubspaces([], complement, (note,))

    def _look(self, values: Values) -> Asking[SeenHessians | None]:
        """Ask for A(b) until nothing changes; None where there are no logits."""
        d = len(values.v)
        tokens = np.eye(d) if self.every else np.linalg.qr(self.rng.standard_normal((d, d)))[0].T
        first = tokens[self.rng.integers(d)]
        scale = yield from find_hessian_scale(values, first, self.rng, HESSIAN)
        if scale is None:
            return None
        for attempt in range(1, SCALES + 1):
            if scale.limit > MOST_LIMIT:
                raise NotIdentifiable(
                    f"The answers are too coarse to find subspaces: noise is {scale.noise:.0e} of "
                    "what logits show at the scale at which they are small."
                    + why(values.precision),
                    determined={"v": values.v},
                )
            last = attempt == SCALES
            most = MOST_BENT if last else max(BENT, scale.limit)
            seen, remainder = yield from self._look_at(scale, values, tokens, most)
            if seen is not None:
                return seen
            scale = scale.lower(remainder, HESSIAN)
        raise ModelMismatch(
            f"At no scale are answers linear in the logits: {remainder:.0e} is missing at one that "
            "should be small. The target is not a sum of heads in mutually orthogonal subspaces "
            "without biases, or its answers are too coarse, or some heads' scores are hidden "
            "beside others'." + why(values.precision)
        )

    def _look_at(
        self, scale: HessianScale, values: Values, tokens: Array, most: float
    ) -> Asking[tuple[SeenHessians | None, float]]:
        """Ask at one scale; None where further orders, returned too, exceed ``most``."""
        d = len(values.v)
        step = d if self.every else 1
        commutant, excess = Commutant(scale.limit), list[Array]()
        for start in range(0, d, step):
            asked = yield from ask_excess(values, tokens[start : start + step], scale)
            remainder = asked.remainder(HESSIAN.remainder_margin)
            if remainder > most:
                break
            excess.append(asked.excess)
            commutant.add(asked.hessians(), remainder)
            if commutant.settled(self.unchanged) or start + step >= d:
                return SeenHessians(Excess(scale, np.concatenate(excess)), commutant), remainder
        return None, remainder


def _counted(bases: list[Array], tokens: int, blocks: CommonBlocks) -> str:
    """Say what was found, and how clear the singular values were."""
    sizes = ", ".join(str(E.shape[1]) for E in bases)
    return (
        f"{len(bases)} subspaces of dimension {sizes}, from {tokens} query tokens: singular values "
        f"of what commutes are up to {blocks.zero:.1e}, of what does not from "
        f"{blocks.smallest:.1e}."
    )


# -- to the precision of the answers, from Hessians that are nearly the subspaces'
#
# With the heads nearly known, what the finite differences leave of the further orders of tanh is
# known too. So, in turn: further orders are subtracted from A(b) and the subspaces aligned with
# what remains (`solve.invariant_subspaces`); the common blocks are looked for again, with a limit
# as much lower (`solve.commutant`); the two lines of heads of rank one are joined. No queries.
# Source: beyond the paper, whose conjecture (Appendix C) takes exact Hessians.


@dataclass(frozen=True, slots=True)
class SeenHessians:
    """What some query tokens showed."""

    excess: Excess
    """What answers exceed, at one scale."""
    commutant: Commutant
    """A(b), further orders included, and what commutes with them."""


def refined(
    seen: SeenHessians, values: Values, rng: np.random.Generator
) -> tuple[AlignedSubspaces, CommonBlocks]:
    """Return the subspaces, by how much they lean to each other, and the common blocks.

    The last of the subspaces is what is in none of them. ``values`` is Σ v_h.
    """
    scale, A = seen.excess.scale, np.array(seen.commutant.seen)

    def split(blocks: CommonBlocks, A: Array, limit: float) -> list[Array]:
        return joined_lines(blocks.subspaces(rng, DRAWS), A, limit)

    bases = split(seen.commutant.blocks(), A, seen.commutant.limit)
    for limit in (scale.limit, min(scale.limit, CLEAR_OF_NOISE * scale.noise)):
        _, A = _straightened(bases, A, seen.excess, values)
        blocks = common_blocks(A, limit)
        bases = split(blocks, A, limit)
    bases = without_small(bases, A, scale.limit)
    found, _ = _straightened(bases, A, seen.excess, values)
    return found, blocks


def _straightened(
    bases: list[Array], A: Array, excess: Excess, values: Values
) -> tuple[AlignedSubspaces, Array]:
    """Subtract the heads' further orders and align the subspaces, in turn."""
    for _ in range(STRAIGHTENED):
        A = excess.without_orders_of(np.array([E @ (E.T @ values.v) for E in bases]), A)
        noise = NOISE_MARGIN * excess.scale.noise * float(np.max(np.abs(A)))
        found = aligned([*bases, _complement(bases)], A, noise)
        bases = found.bases[:-1]
    return found, A


def _complement(bases: list[Array]) -> Array:
    """Return an orthonormal basis of what is in no subspace."""
    E = np.hstack(bases)
    return np.asarray(np.linalg.qr(E, mode="complete")[0][:, E.shape[1] :])


# -- heads of rank one, and heads too small to be seen
#
# For a head of rank one, W_h = k qᵀ, A(b) is (q·b)(k v_hᵀ + v_h kᵀ) on U_h: its two eigenvectors
# are the same for all b, so the commutant splits U_h into two lines. Their eigenvalues are of
# opposite sign and are q·b up to a factor; lines of other heads have another q. From rank two on
# the A(b) have no common invariant subspace within basis_of(v_h, W_h).
# Source: beyond the paper, whose conjecture (Appendix C) assumes blocks that do not split.


def joined_lines(bases: list[Array], A: Array, limit: float) -> list[Array]:
    """Join the two lines of each head of rank one.

    Parameters
    ----------
    bases : list of ndarray (d, d_h)
        Orthonormal bases of subspaces that all A(b) leave invariant.
    A : ndarray (b, d, d)
        The Hessians.
    limit : float
        The part of ‖A‖₂ that counts as 0.
    """
    lines = [k for k, E in enumerate(bases) if E.shape[1] == 1]
    E = np.array([bases[k][:, 0] for k in lines]).reshape(len(lines), A.shape[1])
    profiles = np.einsum("li,kij,lj->lk", E, A, E)
    norms = np.maximum(np.linalg.norm(profiles, axis=1), 1e-300)
    units = profiles / norms[:, None]
    apart = np.linalg.norm(units[:, None] + units, axis=2)
    apart[np.tril_indices(len(lines))] = np.inf
    size = float(np.max(np.linalg.norm(A, 2, axis=(1, 2))))
    known = TIMES_LIMIT * limit * size / np.minimum.outer(norms, norms)
    close = np.minimum(ALIKE, known)
    planes, taken = list[Array](), set[int]()
    for flat in np.argsort(apart, axis=None):
        i, j = (int(k) for k in np.unravel_index(flat, apart.shape))
        if apart[i, j] <= close[i, j] and not {i, j} & taken:
            taken |= {i, j}
            planes.append(np.hstack([bases[lines[i]], bases[lines[j]]]))
    gone = {lines[i] for i in taken}
    return [*(E for k, E in enumerate(bases) if k not in gone), *planes]


def without_small(bases: list[Array], A: Array, limit: float) -> list[Array]:
    """Leave out subspaces on which A(b) is below ``limit`` of the largest block.

    What is there is read again at a scale of its own, where more of it shows.
    """
    sizes = np.array([np.max(np.linalg.norm(E.T @ A @ E, axis=(1, 2))) for E in bases])
    return [E for E, size in zip(bases, sizes, strict=True) if size > limit * sizes.max()]
