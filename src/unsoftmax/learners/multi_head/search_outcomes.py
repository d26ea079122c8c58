"""How searches for all heads end, what each ending counts for, and when another search follows.

A search asks with one query token: offsets of half a circle, silent ones, those of a line. It
either returns what it found, and fresh answers confirm that, or ends early by one of `ENDINGS`:
another query token may do better. There are two reasons, which call for different remedies:

- it *failed*: readings contradict each other, or fresh answers contradict the model. Heads may be
  close, or hidden by a grid too coarse. The next search begins with more intervals. After as many
  failures as there are `starts` the target is refused;
- it was *unlucky*: under a cap on tokens gates are no steps, and it takes luck that none is open
  where a half circle begins and that no two are open together. Many half circles are tried, later
  ones with the longest query tokens that the cap allows, and at last as if answers were coarser:
  logits that leave less of a step than that pass for saturated. All that is read there is read
  again, with gates as they are.

`Restarts` holds the counts, `searched` is the loop. Nothing is known here of what is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from unsoftmax.arrangement.jumps import SoftStart, SoftTransition
from unsoftmax.arrangement.kinks import TooManyBreakpoints
from unsoftmax.learners.compose import Asking, T
from unsoftmax.measure.windows import NoWindow

# A search that was begun counts for so many bad starts, as it takes that many more queries and
# rounds.
SEARCH_COUNTS = 3
# Precisions that answers are taken for, each for an equal share of the bad luck. Coarser than 10⁻⁵
# jumps of weak heads are missed.
COARSER = (0.0, 1e-7, 1e-6, 1e-5)
# Bad luck after which query tokens are as long as the cap allows: they pull heads apart, but cost
# digits.
LONGEST_AFTER = 4
# So many searches have to see too many jumps before the target is refused for them: one may have
# taken two pieces of a cell for two cells,
SURE = 2
# and where gates are open even at the longest offsets, an open gate may look like two jumps.
SURE_SOFT = 4


class CoincidentJumps(Exception):
    """Jumps that this half circle does not tell apart, or readings that contradict each other."""


class UnsaturatedGates(Exception):
    """Gates that are open at the longest tokens that may be asked, or open together there."""


class Contradicted(Exception):
    """A model that fresh answers contradict."""


class Counts(NamedTuple):
    """What a search that ended adds."""

    failures: int = 0
    bad_luck: int = 0
    too_many: int = 0
    """Searches that saw more jumps than there may be heads."""


FAILED, UNLUCKY = Counts(failures=1), Counts(bad_luck=SEARCH_COUNTS)
BAD_START = Counts(bad_luck=1)  # found out after four queries

ENDINGS: Mapping[type[Exception], tuple[Counts, Counts]] = MappingProxyType(
    {
        Contradicted: (FAILED, UNLUCKY),
        CoincidentJumps: (FAILED, UNLUCKY),
        np.linalg.LinAlgError: (FAILED, UNLUCKY),
        TooManyBreakpoints: (Counts(failures=1, too_many=1), UNLUCKY),
        UnsaturatedGates: (UNLUCKY, UNLUCKY),
        NoWindow: (UNLUCKY, UNLUCKY),
        SoftTransition: (UNLUCKY, UNLUCKY),
        SoftStart: (BAD_START, BAD_START),
    }
)
"""What ends a search → what it counts for: with answers as they are, as if they were coarser."""


class SearchState(Enum):
    """Whether another search follows."""

    SEARCHING = auto()
    FOUND = auto()
    TOO_MANY_HEADS = auto()
    """So many searches saw more jumps than allowed that there are more heads."""
    EXHAUSTED = auto()


@dataclass(frozen=True, slots=True)
class Restarts:
    """How many searches there are, with what each begins, and how those so far ended."""

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
    """Bad luck after which the target is refused; 0: it counts as failure. Fewer refuses caps under
    which some half circle shows all heads; more takes as many more rounds before a cap that is too
    tight is refused."""
    refuse_many: bool = True
    """Whether too many jumps end the search: not where only the function is wanted."""
    failures: int = 0
    bad_luck: int = 0
    too_many: int = 0
    state: SearchState = SearchState.SEARCHING

    @property
    def coarse(self) -> float:
        """Precision that answers are taken for, 0 for their own."""
        part = self.bad_luck * len(COARSER) // max(1, self.most_unlucky)
        return COARSER[min(part, len(COARSER) - 1)]

    @property
    def longest_tokens(self) -> bool:
        """Whether query tokens are as long as the cap allows."""
        return self.bad_luck >= LONGEST_AFTER

    @property
    def start(self) -> tuple[int, float]:
        """Intervals that the next search begins with, and how much longer baselines are."""
        return self.starts[self.failures]

    def after(self, ending: type[Exception], soft: bool = False) -> Restarts:
        """Count what ended a search.

        ``soft`` says whether gates are open even at the longest offsets.
        """
        counts = ENDINGS.get(ending, ENDINGS[CoincidentJumps])[self.coarse > 0]
        if not self.most_unlucky:
            counts = FAILED
        failures, bad_luck = self.failures + counts.failures, self.bad_luck + counts.bad_luck
        too_many, state = self.too_many + counts.too_many, SearchState.SEARCHING
        if self.refuse_many and counts.too_many and too_many == (SURE_SOFT if soft else SURE):
            state = SearchState.TOO_MANY_HEADS
        elif failures >= len(self.starts) or bad_luck >= self.most_unlucky > 0:
            state = SearchState.EXHAUSTED
        return replace(self, failures=failures, bad_luck=bad_luck, too_many=too_many, state=state)


def searched(
    search: Callable[[Restarts], Asking[T]],
    restarts: Restarts,
    soft: Callable[[Restarts], bool] = lambda _: False,
) -> Asking[tuple[Restarts, T | None]]:
    """Search again and again, until something is found or ``restarts`` have it that nothing will.

    ``soft`` tells of a search whether gates are open even at its longest offsets.
    """
    while restarts.state is SearchState.SEARCHING:
        try:
            found = yield from search(restarts)
        except tuple(ENDINGS) as ending:
            restarts = restarts.after(type(ending), soft(restarts))
        else:
            return replace(restarts, state=SearchState.FOUND), found
    return restarts, None
