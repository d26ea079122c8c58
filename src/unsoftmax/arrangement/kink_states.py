"""What an interval of a search for kinks asks next: its state, from the lines at its two ends.

An interval knows the *line* (a piece of `unsoftmax.arrangement.pieces`) at either end, from two
values there.

    state     what the lines show                asks                    and then
    NARROW    float64 resolves no more           nothing                 is one kink
    STALE     a line is known from too far       near that end           stays, the line read anew
    EMPTY     both lines are one                 somewhere inside        on the line: is empty;
                                                                         off it: is DOUBTED
    CROSSING  they cross inside                  at the crossing         stays, with the value
    TOUCHING  the value there is on them         close on both sides     both on the lines: one
                                                                         kink; else is DOUBTED
    MISSED    the value there is off them        on both sides           is split there
    DOUBTED   they do not cross inside, or did   somewhere inside and    is split there
              and a value was off them           on both sides of it

An interval is in the first state that fits, DOUBTED being tried before CROSSING. All intervals ask
in the same round. A split is in two, the three values around the cut giving both new lines; where
these three bend there is a kink among them, and the split is in three.

Known from measurements: without STALE, wrong lines split intervals to depth 30. Two close kinks of
opposite sign have their lines cross outside them: seen from farther away they pass for one, in
every fourth search among 512 kinks; TOUCHING asks as close as tells the lines from each other.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Self

import numpy as np

from unsoftmax.arrangement.breakpoints import AskAngles, ask_where
from unsoftmax.arrangement.kink_lines import EndLines, KinkIntervals, KinkTuning
from unsoftmax.probes import Array, Flags, Indices, Round
from unsoftmax.protocol import Answers


class KinkState(IntEnum):
    """What the lines of an interval show; see the table above."""

    NARROW = 0
    STALE = 1
    EMPTY = 2
    DOUBTED = 3
    CROSSING = 4
    TOUCHING = 5
    MISSED = 6


INSIDE = (KinkState.EMPTY,)
AT_THE_CUT = (KinkState.CROSSING, KinkState.DOUBTED)
BESIDE_THE_CUT = (KinkState.DOUBTED, KinkState.MISSED, KinkState.TOUCHING)
SPLIT = (KinkState.DOUBTED, KinkState.MISSED)


@dataclass(frozen=True, slots=True)
class KinkAnswers:
    """What intervals were answered in a round; NaN where nothing was asked, (n,) each."""

    near_left: Array
    near_right: Array
    inside: Array
    at: Array
    before: Array
    after: Array


@dataclass(frozen=True, slots=True)
class KinkQuestions:
    """The states of intervals, and where each is asked; (n,) each."""

    state: Indices
    low: Array
    high: Array
    stale_left: Flags
    stale_right: Flags
    cut: Array
    """Where the lines cross, or a place inside."""
    step: Array
    """How far beside the cut is asked."""
    left: EndLines
    right: EndLines
    pair: Array
    """How far from an end a stale line is read anew."""

    def are(self, *states: KinkState) -> Flags:
        """Tell which intervals are in one of the states."""
        return np.asarray(_table(states)[self.state])

    @classmethod
    def of(cls, now: KinkIntervals, left: EndLines, right: EndLines, share: Array) -> Self:
        """Tell each interval's state, and where it is asked.

        ``share`` of its width is where an interval is asked whose lines do not say where.
        """
        tuning, w = left.tuning, now.width
        dy, dk = right.at(now.low) - left.y, right.slope_at(now.low) - left.k
        crossing = now.low + np.mod(np.arctan2(-dy, dk), np.pi)
        margin = tuning.margin * w
        inside = (crossing > now.low + margin) & (crossing < now.high - margin)
        narrow = w < tuning.narrowest
        stale_left = (left.baseline > tuning.renewed * w) & ~narrow
        stale_right = (right.baseline > tuning.renewed * w) & ~narrow
        one = right.meets(left.t, left.y) & left.meets(right.t, right.y)
        state = _first_that_holds(
            {
                KinkState.NARROW: narrow,
                KinkState.STALE: stale_left | stale_right,
                KinkState.EMPTY: one & ~now.doubted,
                KinkState.DOUBTED: now.doubted | ~inside,
                KinkState.CROSSING: np.isnan(now.value),
                KinkState.TOUCHING: left.matches(crossing, now.value),
            },
            otherwise=KinkState.MISSED,
        )
        cut = np.where(state >= KinkState.CROSSING, crossing, now.low + share * w)
        cut = np.where(narrow, np.where(inside, crossing, (now.low + now.high) / 2), cut)
        # how far from the crossing the lines are told from each other
        error = np.maximum(left.deviation(crossing), right.deviation(crossing))
        with np.errstate(over="ignore", invalid="ignore"):
            apart = tuning.apart * tuning.deviations * error
            apart /= np.maximum(np.hypot(dy, dk), np.finfo(float).tiny)
        step = _steps(now, state, crossing, apart, tuning)
        pair = tuning.pair * w
        return cls(state, now.low, now.high, stale_left, stale_right, cut, step, left, right, pair)

    def asked(self, measure: AskAngles) -> Generator[Round, Answers, KinkAnswers]:
        """Ask what the states say, all in one round."""
        beside = self.are(*BESIDE_THE_CUT)
        answers = yield from ask_where(
            measure,
            [
                (self.stale_left, self.low + self.pair),
                (self.stale_right, self.high - self.pair),
                (self.are(*INSIDE), self.cut),
                (self.are(*AT_THE_CUT), self.cut),
                (beside, self.cut - self.step),
                (beside, self.cut + self.step),
            ],
        )
        return KinkAnswers(*answers)


@cache
def _table(states: tuple[KinkState, ...]) -> Flags:
    """Return for every state whether it is one of these."""
    flags = np.zeros(len(KinkState), dtype=bool)
    flags[list(states)] = True
    return flags


def _first_that_holds(holds: dict[KinkState, Flags], otherwise: KinkState) -> Indices:
    """Return for every interval the first state whose condition holds."""
    state = np.full_like(next(iter(holds.values())), otherwise, dtype=np.intp)
    for one, where in reversed(holds.items()):
        state[where] = one
    return state


def _steps(
    now: KinkIntervals, state: Indices, crossing: Array, apart: Array, tuning: KinkTuning
) -> Array:
    """Return how far beside a cut is asked: where the lines are told from each other."""
    room = tuning.room * np.minimum(crossing - now.low, now.high - crossing)
    step = np.minimum(np.maximum(tuning.beside * now.width, apart), room)
    step = np.where(state == KinkState.TOUCHING, np.minimum(apart, room), step)
    return np.where(state == KinkState.DOUBTED, tuning.pair * now.width, step)
