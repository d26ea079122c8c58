"""Searches for several heads, one way after another, until a model predicts fresh answers.

Each way is a search with one query token, which `search_outcomes.searched` repeats with others:

1. half circles of long offsets (`token_search`);
2. where answers are coarse, offsets at which all heads but one are silent (`silent_search`):
   rounding of long tokens moves logits, and what the longest tokens hide these show, or
3. half circles with shorter tokens, of several lengths;
4. poles of answers along a line (`pole_search`): heads that no half circle tells apart.

What a search found is compared with fresh answers. What is right but not known precisely enough,
as close heads are, is corrected (`newton_correction`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.heads_conclusion import (
    PILOTS,
    FreshResiduals,
    RecoveredHeads,
    fresh_residuals,
)
from unsoftmax.learners.multi_head.newton_correction import NoHeadsNearby, corrected
from unsoftmax.learners.multi_head.pole_search import LINE_COPIES, LINES, NOISES, separated
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.search_outcomes import (
    ENDINGS,
    CoincidentJumps,
    Contradicted,
    Restarts,
    RestartTuning,
    SearchState,
    searched,
)
from unsoftmax.learners.multi_head.silent_search import SILENT_STARTS, silently
from unsoftmax.learners.multi_head.token_lengths import COARSE
from unsoftmax.learners.multi_head.token_search import SoughtHeads, search
from unsoftmax.models import canonical

# Heads with an error larger than this, relative to them, are corrected, where that may make it
# smaller.
IMPROVED = 1e-6
# Heads with an error larger than this are none, unless a correction makes it smaller.
VAGUE = 0.01
# Precisions that answers are taken for where only the function is wanted: heads up to about a
# thirtieth of that apart become one.
PRECISIONS = (1e-9, 1e-7, 1e-5)
# Restarts at each length of tokens that is tried for coarse answers: others follow.
SHORTER = RestartTuning(starts=((1, 1.0), (16, 100.0)), most_unlucky=30)
# Lines are asked in one number of copies after another.
LINE_STARTS = RestartTuning(
    starts=tuple((LINE_COPIES[n % len(LINE_COPIES)], 1.0) for n in range(LINES)), most_unlucky=0
)

Way = Callable[[Restarts], Asking[RecoveredHeads]]
"""One search, with what those before came to."""


@dataclass(slots=True)
class HeadSearches:
    """All searches of one recovery."""

    sought: SoughtHeads
    reduced: ReducedAnswers
    functional: bool
    rng: np.random.Generator
    restarts: Restarts
    """How half circles ended."""
    contradicted: list[tuple[float, RecoveredHeads]] = field(default_factory=list)
    """Models that were not believed, with the largest share that they miss answers by."""

    def run(self) -> Asking[RecoveredHeads | None]:
        """Search along half circles, and where answers are coarse in other ways.

        Raises
        ------
        ModelMismatch
            There are more heads than allowed.
        """
        first, coarse = self.reduced, self.reduced.eta > COARSE
        self.restarts, found = yield from self._searched(self._half_circle, self.restarts)
        if found is None and coarse and self.reduced.scale > 0 and not self.reduced.lengths.soft:
            starts = Restarts(SILENT_STARTS, refuse_many=False)
            _, found = yield from self._searched(self._silent, starts)
        states, contradicted = [], self.contradicted
        main = self.reduced
        for lengths in first.lengths.for_coarse(first.eta, self.sought.biases):
            if found is not None:
                return found
            self.reduced, self.contradicted = replace(first, lengths=lengths), []
            shorter = Restarts(SHORTER, self.restarts.refuse_many)
            ended, found = yield from self._searched(self._half_circle, shorter)
            states.append(ended.state)
        if found is None:
            self.reduced, self.contradicted = main, contradicted
            # rounding of long tokens makes jumps that are none
            unsure = states and SearchState.TOO_MANY_HEADS not in states
            if self.restarts.state is SearchState.TOO_MANY_HEADS and not unsure:
                raise too_many_heads(self.sought.max_heads)
        return found

    def by_poles(self) -> Asking[RecoveredHeads | None]:
        """Read all heads off the poles of lines, until a model is confirmed."""
        starts = Restarts(LINE_STARTS, refuse_many=False)
        return (yield from self._searched(self._of_line, starts))[1]

    def as_if_coarser(self) -> Asking[None]:
        """Search as if answers were coarser, which do not tell close heads apart."""
        start, confirm = self.restarts.tuning.starts[0], self.sought.tuning.confirm
        for eta in PRECISIONS:
            coarser = self.reduced.coarser(eta)
            try:
                found = yield from search(self.sought, coarser, start, 0.0, self.rng)
            except tuple(ENDINGS):
                continue
            fresh = yield from self._fresh(found, confirm)
            self.contradicted.append((float(fresh.missed.max()), found))

    def _searched(
        self, way: Way, restarts: Restarts
    ) -> Asking[tuple[Restarts, RecoveredHeads | None]]:
        """Search in one way until a model is confirmed; None where none was."""

        def search(so_far: Restarts) -> Asking[RecoveredHeads]:
            return (yield from self._confirmed((yield from way(so_far))))

        return (yield from searched(search, restarts, lambda _: self.reduced.lengths.soft))

    # -- one search

    def _half_circle(self, restarts: Restarts) -> Asking[RecoveredHeads]:
        if restarts.longest_tokens:
            lengths = self.reduced.lengths.with_longest_tokens()
            self.reduced = replace(self.reduced, lengths=lengths)
        start, coarse = restarts.start, restarts.coarse
        return search(self.sought, self.reduced, start, coarse, self.rng)

    def _silent(self, _: Restarts) -> Asking[RecoveredHeads]:
        return silently(self.sought, self.reduced, self.rng)

    def _of_line(self, restarts: Restarts) -> Asking[RecoveredHeads]:
        sought, (copies, _) = self.sought, restarts.start
        steps = separated(self.reduced, sought.max_heads, copies, sought.biases, self.rng)
        found = yield from steps
        if found.above(sought.rank, NOISES):
            raise CoincidentJumps
        return found

    def _confirmed(self, found: RecoveredHeads) -> Asking[RecoveredHeads]:
        """Compare heads with fresh answers; correct those that are not precise enough."""
        # with pilots for a bound on the function, or a few sequences to believe a model
        count = PILOTS if self.functional else self.sought.tuning.confirm
        fresh = yield from self._fresh(found, count)
        imprecise = found.vague(IMPROVED) or np.any(fresh.allowed < fresh.explained)
        allowed = fresh.allowed
        if np.all(fresh.missed <= fresh.explained) and imprecise:
            # right as far as it is known, which is not far enough: close heads, coarse answers
            found, nearby = yield from self._corrected(found)
            fresh = yield from self._fresh(found, count)
            # one head in the place of two close ones is imprecise as well, and near no solution
            allowed = fresh.allowed if nearby else fresh.precise
        if not np.all(fresh.missed <= allowed) or found.vague(VAGUE):
            self.contradicted.append((float(fresh.missed.max()), found))
            raise Contradicted
        distinct = canonical(found.model).H
        if distinct > self.sought.max_heads:
            raise ModelMismatch(
                f"The target has {distinct} distinct heads, more than max_heads = "
                f"{self.sought.max_heads}: raise max_heads."
            )
        return found

    def _corrected(self, found: RecoveredHeads) -> Asking[tuple[RecoveredHeads, bool]]:
        """Correct heads where that gains something; tell whether any heads are near them."""
        try:
            better = yield from corrected(found, self.reduced, self.sought.biases, self.rng)
        except NoHeadsNearby:
            return found, False
        return better or found, True

    def _fresh(self, found: RecoveredHeads, count: int) -> Asking[FreshResiduals]:
        alike = self.sought.tuning.alike
        steps = fresh_residuals(found, self.reduced, count, self.rng, "pilot", alike=alike)
        return (yield from steps)


def too_many_heads(most: int) -> ModelMismatch:
    """Say that answers change more often than so many heads do."""
    return ModelMismatch(
        f"Along half a circle the answers change more than {most} times: the target has more heads "
        "(raise max_heads), or W so small that the longest offsets asked do not switch a head, or "
        "is no sum of attention heads."
    )
