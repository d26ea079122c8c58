"""Appendix C's conjecture, made to work: the subspaces U_h from Hessians A(b) at query tokens b.

No A(b) = Σ_h (u_h v_hᵀ + v_h u_hᵀ), u_h = W_h b, leads out of a U_h. So the U_h are the finest
simultaneous block diagonalisation of a few A(b) (`solve.commutant`):

1. A scale at which logits are small but visible, along one query token; a smaller one where
   logits along others turn out to be larger (`measure.hessians`).
2. A(b), one query token after the other, until their common blocks stay the same.
3. With the heads nearly known, the same again without the further orders of tanh
   (`subspace_refinement`).
4. Heads that are too small to be seen beside others are looked for in the complement of those.

Queries: 34 for a scale, and d(d + 1) for each of about max d_h + 2 query tokens; once more in the
complement for each level of smaller heads. Difference from the paper: a few random b, one at a
time until the blocks no longer change, unless e_1 … e_d are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.compose import Asking, restricted
from unsoftmax.learners.orthogonal_heads.restricted_head import Complement, HeadSubspace
from unsoftmax.learners.orthogonal_heads.subspace_refinement import (
    RefinementTuning,
    SeenHessians,
    refined,
)
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
from unsoftmax.solve.commutant import CommonBlocks, Commutant


@dataclass(frozen=True, slots=True)
class SubspaceTuning:
    """Knobs of the search for subspaces."""

    levels: int = 3
    """Times that heads are looked for: in R^d, then smaller ones in the complement of those that
    were found. Scores of 1e±5 beside each other take two, a head W = 0 one more."""
    scales: int = 3
    """Scales tried on a level. A pilot may meet a head where it reads next to nothing, or hardly
    any of its values: then logits turn out larger than it showed, and a lower scale is tried."""
    unchanged: int = 3
    """The common blocks must stay the same for so many query tokens. Each costs d(d + 1) queries;
    with fewer, blocks that one more token would join or tell apart are taken for final."""
    bent: float = 1e-3
    """Further orders above this share of A, or above what counts as 0, and the scale is lowered."""
    most_bent: float = 0.03
    """The same at the last scale: beyond it what is read off is no Hessian."""
    most_limit: float = 0.2
    """A relative singular value above this must not count as 0: nothing is left between noise
    and what counts, and the answers are refused as too coarse."""
    stands_out: float = 3.0
    """What is left of Σ v_h outside of all subspaces is a head where it exceeds so many times
    the error of Σ v_h and ``leak_margin`` times the leaks together. Smaller: errors pass for
    heads; larger: small heads are hidden, as the certificate then says."""
    leak_margin: float = 2.0
    """The same for what may have leaked from the heads that were found."""
    hessian: HessianTuning = field(default=HessianTuning())
    refinement: RefinementTuning = field(default=RefinementTuning())

    def most_queries(self, dim: int) -> int:
        """Bound the queries of a whole search."""
        each = (hessian_queries(k) * k for k in self.dimensions(dim))
        return sum(self.hessian.pilot_queries + self.scales * queries for queries in each)

    def most_rounds(self, dim: int, every: bool) -> int:
        """Bound its rounds; ``every`` query token may be asked in one."""
        return self.scales * sum(2 if every else 1 + k for k in self.dimensions(dim))

    def dimensions(self, dim: int) -> range:
        """Return the dimensions that are left on each level, at most."""
        return range(dim, max(dim - self.levels, 0), -1)


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
    tuning : SubspaceTuning
        The knobs.
    """

    every: bool
    rng: np.random.Generator
    tuning: SubspaceTuning = field(default=SubspaceTuning())

    def find(self, values: Values, level: int = 1, leak: float = 0.0) -> Asking[FoundSubspaces]:
        """Find subspaces, and smaller heads in their complement.

        ``values`` is Σ v_h; ``leak`` what tokens may meet of heads that were found before, on
        levels below this one.
        """
        seen = yield from self._look(values)
        if seen is None:
            return self._without_scores(values)
        found, blocks = refined(seen, values, self.rng, self.tuning.refinement)
        *bases, outside = found.bases
        # a tilt of a subspace lets it meet the values of all others
        parts = [float(np.linalg.norm(E.T @ values.v)) for E in found.bases]
        leaks, tilts = leak + found.errors @ parts, np.linalg.norm(found.errors, axis=1)

        def place(h: int) -> HeadSubspace:
            errors = float(leaks[h]), float(tilts[h]), found.outside_blocks
            return HeadSubspace.of(found.bases[h], values, *errors)

        places = [place(h) for h in range(len(bases))]
        note = _counted(bases, len(seen.excess.excess), blocks)
        unknown = self.tuning.stands_out * np.linalg.norm(values.v_error)
        hidden = float(self.tuning.leak_margin * leaks[-1] + unknown)
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
        if level > self.tuning.levels:
            raise ModelMismatch(
                f"After {self.tuning.levels} times that heads were found, weaker ones are left: "
                "the target is not a sum of heads in mutually orthogonal subspaces, or they are "
                "too different."
            )
        return (yield from restricted(self.find(rest.values, level, rest.leak), outside))

    def _without_scores(self, values: Values) -> FoundSubspaces:
        """Return the one head W = 0 that is left where no logits show."""
        if saturated_unseen(values, self.tuning.hessian):
            raise NotIdentifiable(
                f"A part of Σ v_h, {values.norm:.1e} large, is weighed by no logit that shows "
                "beside other heads: whether its W is 0 cannot be told." + why(values.precision),
                determined={"v": values.v},
            )
        note = "A part of Σ v_h is weighed by no logit: a head with W = 0."
        W_error = unseen_scores(values, self.tuning.hessian)
        complement = Complement(np.eye(len(values.v)), values.v, True, W_error=W_error)
        return FoundSubspaces([], complement, (note,))

    def _look(self, values: Values) -> Asking[SeenHessians | None]:
        """Ask for A(b) until nothing changes; None where there are no logits."""
        d, tuning = len(values.v), self.tuning
        tokens = np.eye(d) if self.every else np.linalg.qr(self.rng.standard_normal((d, d)))[0].T
        first = tokens[self.rng.integers(d)]
        scale = yield from find_hessian_scale(values, first, self.rng, tuning.hessian)
        if scale is None:
            return None
        for attempt in range(1, tuning.scales + 1):
            if scale.limit > tuning.most_limit:
                raise NotIdentifiable(
                    f"The answers are too coarse to find subspaces: noise is {scale.noise:.0e} of "
                    "what logits show at the scale at which they are small."
                    + why(values.precision),
                    determined={"v": values.v},
                )
            last = attempt == tuning.scales
            most = tuning.most_bent if last else max(tuning.bent, scale.limit)
            seen, remainder = yield from self._look_at(scale, values, tokens, most)
            if seen is not None:
                return seen
            scale = scale.lower(remainder, tuning.hessian)
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
        d, tuning = len(values.v), self.tuning
        step = d if self.every else 1
        commutant, excess = Commutant(scale.limit), list[Array]()
        for start in range(0, d, step):
            asked = yield from ask_excess(values, tokens[start : start + step], scale)
            remainder = asked.remainder(tuning.hessian.remainder_margin)
            if remainder > most:
                break
            excess.append(asked.excess)
            commutant.add(asked.hessians(), remainder)
            if commutant.settled(tuning.unchanged) or start + step >= d:
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
