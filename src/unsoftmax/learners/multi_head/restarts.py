"""After which outcomes several heads are searched for again, and how: a table.

A search takes one query token and one half circle. It may end without a model for two reasons
that call for different remedies:

- it *failed*: readings contradict each other, or fresh answers contradict the model. Heads may be
  close, or hidden by a grid too coarse. The next search begins with more intervals. After as many
  failures as there are `starts` the target is refused;
- it was *unlucky*: under a cap on tokens gates are no steps, and it takes luck that none is open
  where a half circle begins and that no two are open together. Many half circles are tried, later
  ones with the longest query tokens that the cap allows, and at last as if answers were coarser:
  logits that leave less of a step than that pass for saturated. All that is read there is read
  again, with gates as they are.

What every outcome counts for is in `COUNTED`; `Restarts` holds the counts. Nothing is asked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from types import MappingProxyType

from unsoftmax.learners.multi_head.search_outcomes import SearchOutcome


class Precise(Enum):
    """What answers are taken for while jumps are searched for."""

    AS_THEY_ARE = auto()
    COARSER = auto()


class Count(Enum):
    """What a search that ended counts for."""

    NOTHING = auto()
    FAILURE = auto()
    FAILURE_WITH_TOO_MANY_JUMPS = auto()
    BAD_START = auto()
    BAD_LUCK = auto()


COUNTED: Mapping[SearchOutcome, Mapping[Precise, Count]] = MappingProxyType(
    {
        outcome: MappingProxyType({Precise.AS_THEY_ARE: exact, Precise.COARSER: coarser})
        for outcome, exact, coarser in (
            (SearchOutcome.CONFIRMED, Count.NOTHING, Count.NOTHING),
            (SearchOutcome.CONTRADICTED, Count.FAILURE, Count.BAD_LUCK),
            (SearchOutcome.COINCIDENT, Count.FAILURE, Count.BAD_LUCK),
            (SearchOutcome.TOO_MANY, Count.FAILURE_WITH_TOO_MANY_JUMPS, Count.BAD_LUCK),
            (SearchOutcome.UNSATURATED, Count.BAD_LUCK, Count.BAD_LUCK),
            (SearchOutcome.OPEN_START, Count.BAD_START, Count.BAD_START),
        )
    }
)
"""Outcome → what it counts for: (with answers as they are, as if they were coarser)."""


class SearchState(Enum):
    """Whether another search follows."""

    SEARCHING = auto()
    FOUND = auto()
    TOO_MANY_HEADS = auto()
    """So many searches saw more jumps than allowed that there are more heads."""
    EXHAUSTED = auto()


@dataclass(frozen=True, slots=True)
class RestartTuning:
    """How many searches there are, and how much each outcome counts."""

    starts: tuple[tuple[int, float], ...] = (
        (1, 1.0),
        (16, 100.0),
        (64, 1.0),
        (256, 100.0),
        (16, 100.0),
        (64, 100.0),
    )
    """For each search after a failure: intervals that it begins with, and how much longer than
    usual the baselines of the pieces between them are. Nothing is likely to fall between near
    values, and far ones show heads of small values. As many failures are the end. Of 40 targets
    with a head of ‖v‖ 1e-8 of the others' 34 are found by the first four, 38 by six."""
    most_unlucky: int = 100
    """Bad luck after which the target is refused. Fewer refuses caps under which some half circle
    shows all heads; more takes as many more rounds before a cap that is too tight is refused."""
    search_counts: int = 3
    """A search that was begun counts for so many bad starts, as it takes that many more queries
    and rounds."""
    coarser: tuple[float, ...] = (0.0, 1e-7, 1e-6, 1e-5)
    """Precisions that answers are taken for, each for an equal share of the bad luck. Coarser than
    10⁻⁵ jumps of weak heads are missed."""
    longest_after: int = 4
    """Bad luck after which query tokens are as long as the cap allows: they pull heads apart, but
    cost digits."""
    sure: int = 2
    """So many searches have to see too many jumps before the target is refused for them: one may
    have taken two pieces of a cell for two cells."""
    sure_soft: int = 4
    """The same where gates are open even at the longest offsets: an open gate may look like two
    jumps."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """How the searches so far ended."""

    tuning: RestartTuning = field(default=RestartTuning())
    refuse_many: bool = True
    """Whether too many jumps end the search: not where only the function is wanted."""
    failures: int = 0
    bad_luck: int = 0
    too_many: int = 0
    state: SearchState = SearchState.SEARCHING

    @property
    def coarse(self) -> float:
        """Precision that answers are taken for, 0 for their own."""
        levels = self.tuning.coarser
        return levels[min(self.bad_luck * len(levels) // self.tuning.most_unlucky, len(levels) - 1)]

    @property
    def precise(self) -> Precise:
        """Whether answers are taken for as precise as they are."""
        return Precise.COARSER if self.coarse > 0 else Precise.AS_THEY_ARE

    @property
    def longest_tokens(self) -> bool:
        """Whether query tokens are as long as the cap allows."""
        return self.bad_luck >= self.tuning.longest_after

    @property
    def start(self) -> tuple[int, float]:
        """Intervals that the next search begins with, and how much longer baselines are."""
        return self.tuning.starts[self.failures]

    def after(self, outcome: SearchOutcome, soft: bool) -> Restarts:
        """Count an outcome.

        ``soft`` says whether gates are open even at the longest offsets.
        """
        count = COUNTED[outcome][self.precise]
        failed = count in (Count.FAILURE, Count.FAILURE_WITH_TOO_MANY_JUMPS)
        luck = {Count.BAD_START: 1, Count.BAD_LUCK: self.tuning.search_counts}
        new = replace(
            self,
            failures=self.failures + failed,
            bad_luck=self.bad_luck + luck.get(count, 0),
            too_many=self.too_many + (count is Count.FAILURE_WITH_TOO_MANY_JUMPS),
        )
        needed = self.tuning.sure_soft if soft else self.tuning.sure
        if outcome is SearchOutcome.CONFIRMED:
            return replace(new, state=SearchState.FOUND)
        if self.refuse_many and new.too_many > self.too_many and new.too_many == needed:
            return replace(new, state=SearchState.TOO_MANY_HEADS)
        exhausted = (
            new.failures >= len(self.tuning.starts) or new.bad_luck >= self.tuning.most_unlucky
        )
        return replace(new, state=SearchState.EXHAUSTED) if exhausted else new
