"""Searches for several heads, until one gives a model that predicts fresh answers.

Each search takes another query token and half circle; `learners.multi_head.restarts` says what
its outcome counts for and what the next one does otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import cycle

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.fresh_sequences import FreshResiduals, fresh_residuals
from unsoftmax.learners.multi_head.newton_correction import NoHeadsNearby, corrected
from unsoftmax.learners.multi_head.pole_search import separated
from unsoftmax.learners.multi_head.recovered_heads import RecoveredHeads
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.restarts import Restarts, RestartTuning, SearchState
from unsoftmax.learners.multi_head.search_outcomes import ENDINGS, SearchOutcome
from unsoftmax.learners.multi_head.silent_search import silently
from unsoftmax.learners.multi_head.token_search import SoughtHeads, search
from unsoftmax.models import canonical


@dataclass(slots=True)
class HeadSearches:
    """All searches of one recovery."""

    sought: SoughtHeads
    reduced: ReducedAnswers
    functional: bool
    rng: np.random.Generator
    restarts: Restarts
    contradicted: list[tuple[float, RecoveredHeads]] = field(default_factory=list)
    """Models that were not believed, with the largest share that they miss answers by."""

    def run(self) -> Asking[RecoveredHeads | None]:
        """Search until a model is confirmed; None where none was."""
        while self.restarts.state is SearchState.SEARCHING:
            if self.restarts.longest_tokens:
                lengths = self.reduced.lengths.with_longest_tokens()
                self.reduced = replace(self.reduced, lengths=lengths)
            outcome, found = yield from self._searched()
            self.restarts = self.restarts.after(outcome, self.reduced.lengths.soft)
            if self.restarts.state is SearchState.FOUND:
                return found
        return None

    def by_poles(self) -> Asking[RecoveredHeads | None]:
        """Read all heads off the poles of lines, until a model is confirmed."""
        sought, tuning = self.sought, self.sought.tuning.poles
        for _, copies in zip(range(tuning.lines), cycle(tuning.line.copies), strict=False):
            found = yield from separated(
                self.reduced,
                sought.max_heads,
                copies,
                sought.biases,
                rng=self.rng,
                tuning=tuning,
            )
            if found is not None and not found.above(sought.rank, tuning.line.noises):
                found, confirmed = yield from self._confirmed(found)
                if confirmed:
                    return found
        return None

    def by_silence(self) -> Asking[RecoveredHeads | None]:
        """Search with offsets at which other heads are silent, until a model is confirmed.

        Where answers are coarse, gates are steps far out, and values do not cancel there.
        """
        reduced, tuning = self.reduced, self.sought.tuning
        coarse = reduced.eta > tuning.lengths.coarse
        shown = reduced.scale > 0 and not reduced.lengths.soft
        for _ in range(tuning.silence.tries if coarse and shown else 0):
            try:
                found = yield from silently(self.sought, self.reduced, self.rng)
            except tuple(ENDINGS):
                continue
            found, confirmed = yield from self._confirmed(found)
            if confirmed:
                return found
        return None

    def refuse_many(self) -> None:
        """Refuse a target that has more heads than allowed."""
        if self.restarts.state is SearchState.TOO_MANY_HEADS:
            raise too_many_heads(self.sought.max_heads)

    def _searched(
        self,
    ) -> Asking[tuple[SearchOutcome, RecoveredHeads | None]]:
        """Search once; return what came of it, and the heads."""
        start, coarse = self.restarts.start, self.restarts.coarse
        try:
            found = yield from search(self.sought, self.reduced, start, coarse, self.rng)
        except tuple(ENDINGS) as error:
            return ENDINGS[type(error)], None
        found, confirmed = yield from self._confirmed(found)
        return (SearchOutcome.CONFIRMED if confirmed else SearchOutcome.CONTRADICTED), found

    def _confirmed(self, found: RecoveredHeads) -> Asking[tuple[RecoveredHeads, bool]]:
        """Compare heads with fresh answers; correct those that are right but not precise enough."""
        vague, tuning = self.sought.tuning.search.vague, self.sought.tuning
        fresh = yield from self._fresh(found)
        imprecise = found.vague(tuning.search.improved) or np.any(fresh.allowed < fresh.explained)
        allowed = fresh.allowed
        if np.all(fresh.missed <= fresh.explained) and imprecise:
            # right as far as it is known, which is not far enough: close heads, coarse answers
            found, nearby = yield from self._corrected(found)
            fresh = yield from self._fresh(found)
            # one head in the place of two close ones is imprecise as well, and near no solution
            allowed = fresh.allowed if nearby else fresh.precise
        if not np.all(fresh.missed <= allowed) or found.vague(vague):
            self.contradicted.append((float(fresh.missed.max()), found))
            return found, False
        distinct = canonical(found.model).H
        if distinct > self.sought.max_heads:
            raise ModelMismatch(
                f"The target has {distinct} distinct heads, more than max_heads = "
                f"{self.sought.max_heads}: raise max_heads."
            )
        return found, True

    def _corrected(self, found: RecoveredHeads) -> Asking[tuple[RecoveredHeads, bool]]:
        """Correct heads where that gains something; tell whether any heads are near them."""
        tuning, biases = self.sought.tuning.correction, self.sought.biases
        try:
            better = yield from corrected(found, self.reduced, biases, self.rng, tuning)
        except NoHeadsNearby:
            return found, False
        return better or found, True

    def _fresh(self, found: RecoveredHeads) -> Asking[FreshResiduals]:
        """Ask pilots for a bound on the function, or a few sequences to believe a model."""
        tuning = self.sought.tuning.conclusion
        count = tuning.pilots if self.functional else tuning.confirm
        return (
            yield from fresh_residuals(
                found, self.reduced, count, self.rng, "pilot", tuning=tuning.fresh
            )
        )

    def as_if_coarser(self) -> Asking[None]:
        """Search as if answers were coarser, which do not tell close heads apart."""
        tuning = self.sought.tuning
        start = tuning.restarts.starts[0]
        for eta in tuning.search.precisions:
            coarser = self.reduced.coarser(eta)
            try:
                found = yield from search(self.sought, coarser, start, 0.0, self.rng)
            except tuple(ENDINGS):
                continue
            fresh = yield from fresh_residuals(
                found,
                self.reduced,
                tuning.conclusion.confirm,
                self.rng,
                "pilot",
                tuning=tuning.conclusion.fresh,
            )
            self.contradicted.append((float(fresh.missed.max()), found))


def too_many_heads(most: int) -> ModelMismatch:
    """Say that answers change more often than so many heads do."""
    return ModelMismatch(
        f"Along half a circle the answers change more than {most} times: the target has more heads "
        "(raise max_heads), or W so small that the longest offsets asked do not switch a head, or "
        "is no sum of attention heads."
    )


def searched_at_lengths(
    searches: HeadSearches, shorter: RestartTuning
) -> Asking[tuple[HeadSearches, RecoveredHeads | None]]:
    """Search, and where answers are coarse search in other ways; return what came of it.

    Rounding of long tokens moves logits: what the longest tokens hide, offsets at which other
    heads are silent show, or shorter tokens.

    Raises
    ------
    ModelMismatch
        There are more heads than allowed.
    """
    reduced, refuse_many = searches.reduced, searches.restarts.refuse_many
    found = yield from searches.run()
    if found is None:
        found = yield from searches.by_silence()
    states = []
    for lengths in reduced.lengths.for_coarse(reduced.eta, searches.sought.biases):
        if found is not None:
            return searches, found
        restarts = Restarts(shorter, refuse_many=refuse_many)
        other = replace(
            searches,
            reduced=replace(reduced, lengths=lengths),
            restarts=restarts,
            contradicted=[],
        )
        found = yield from other.run()
        states.append(other.restarts.state)
        if found is not None:
            return other, found
    # rounding of long tokens makes jumps that are none
    if not states or SearchState.TOO_MANY_HEADS in states:
        searches.refuse_many()
    return searches, found
