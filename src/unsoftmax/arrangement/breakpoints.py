"""Breakpoints of a piecewise sinusoid along half a great circle: what every search for them shares.

Half a circle crosses each hyperplane through 0 once, so its breakpoints are the hyperplanes. A
search keeps a table of intervals, each with the piece (`unsoftmax.arrangement.pieces`) at either
end. In rounds it asks values inside all intervals that are not finished, matches them with the two
pieces, and shrinks, splits or drops the intervals. How is a `Cutting`:

- `unsoftmax.arrangement.jumps`: pieces differ in value at a breakpoint. A value tells on which
  side of the breakpoint it lies: intervals are bisected until they are isolated.
- `unsoftmax.arrangement.kinks`: the function is continuous. Two adjacent pieces cross at their
  breakpoint: it is found by three values there, without bisecting.

Nothing here may know what is asked, or what the breakpoints mean.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from unsoftmax.arrangement.pieces import Pieces
from unsoftmax.errors import ModelMismatch
from unsoftmax.probes import Array, Flags, Indices, Round
from unsoftmax.protocol import Answers

AskAngles = Callable[[Array], Generator[Round, Answers, Array]]
"""Asks the function at angles (n,), one round: values (n,), NaN where it is on no piece."""


class TooManyBreakpoints(ModelMismatch):
    """More breakpoints than were allowed.

    ``everywhere``: the function bends on most of the circle and has few breakpoints: it is smooth,
    or its values are too noisy.
    """

    def __init__(self, most: int, everywhere: bool = False) -> None:
        self.most, self.everywhere = most, everywhere
        super().__init__(
            "Along a circle the function bends everywhere and has no breakpoints."
            if everywhere
            else f"Along half a circle the function has more than {most} breakpoints."
        )


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals [low, high] that may hold breakpoints, and the pieces at both their ends.

    Subclasses add columns of what else is known of each interval.
    """

    pieces: Pieces
    low: Array
    high: Array
    left: Indices
    """Rows of the pieces at ``low``."""
    right: Indices
    """Rows of the pieces at ``high``."""

    def __len__(self) -> int:
        return len(self.low)

    @property
    def width(self) -> Array:
        """Return high − low."""
        return self.high - self.low

    def take(self, chosen: Flags | Indices) -> Self:
        """Return some of the intervals; the table of pieces stays one."""
        return type(self)(self.pieces, *(getattr(self, name)[chosen] for name in self._columns()))

    def changed(self, **columns: Any) -> Self:
        """Return the intervals with other columns."""
        return replace(self, **columns)

    def split(self, at: Array, before: Indices, after: Indices) -> tuple[Self, Self]:
        """Cut every interval, with the pieces just before and just after the cut."""
        return self.changed(high=at, right=before), self.changed(low=at, left=after)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Put intervals of one table of pieces together."""
        columns = (
            np.concatenate([getattr(part, name) for part in parts]) for name in cls._columns()
        )
        return cls(parts[0].pieces, *columns)

    @classmethod
    @cache
    def _columns(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls) if field.name != "pieces")


I = TypeVar("I", bound=Intervals)  # noqa: E741


class Cutting(Protocol[I]):
    """How intervals are refined: what differs between jumps and kinks."""

    def unfinished(self, intervals: I, /) -> Flags:
        """Tell which intervals have to be asked."""

    def cut(self, intervals: I, chosen: Flags, /) -> Generator[Round, Answers, I]:
        """Ask inside the chosen intervals; return all intervals that are left.

        Raises
        ------
        TooManyBreakpoints
            There are more than allowed.
        """


def refine(intervals: I, cutting: Cutting[I], rounds: int) -> Generator[Round, Answers, I]:
    """Cut intervals until all are finished, in so many rounds at most; return what is left."""
    for _ in range(rounds):
        chosen = cutting.unfinished(intervals)
        if not np.any(chosen):
            break
        intervals = yield from cutting.cut(intervals, chosen)
    return intervals


def ask_where(
    measure: AskAngles, questions: Sequence[tuple[Flags, Array]]
) -> Generator[Round, Answers, list[Array]]:
    """Ask at the flagged angles of several columns in one round; NaN where nothing was asked."""
    values = yield from measure(np.concatenate([angles[flags] for flags, angles in questions]))
    answers, start = [], 0
    for flags, _ in questions:
        end = start + int(np.sum(flags))
        answer = np.full(len(flags), np.nan)
        answer[flags] = values[start:end]
        answers.append(answer)
        start = end
    return answers
