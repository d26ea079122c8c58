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
from typing import Self

import numpy as np

from unsoftmax.arrangement.breakpoints import Intervals, Measure, ask_where
from unsoftmax.arrangement.pieces import Pieces
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
class KinkTuning:
    """How kinks are searched for. Lengths are in widths of an interval unless said otherwise."""

    start: int = 32
    """Intervals at first. Two kinks that cancel, in one interval, may be missed."""
    shifted: float = 0.31
    """How far the first ends are moved: in one dimension kinks at 0 lie half-way, and no interval
    may end there."""
    pair: float = 0.02
    """Distance of the two values that give a line. Less: a larger error of the line; more: a kink
    between them."""
    renewed: float = 0.1
    """A line from values farther apart than this is STALE: it is too coarse, or has a kink within.
    Without it wrong lines split intervals to depth 30."""
    deviations: float = 10.0
    """A value is on a line if it misses it by less than so many deviations. Less: kinks made of
    noise; more: missed kinks."""
    own_error: float = 1.5
    slope_error: float = 2.0
    """A value misses its line by own_error + slope_error·distance/baseline times the deviation of a
    value: its own error and that of the line's two values."""
    margin: float = 1e-4
    """Crossings closer to an end than this are not believed."""
    beside: float = 1e-3
    """Distance of the two values beside a MISSED crossing, at least."""
    room: float = 0.3
    """That distance at most, of the distance to the nearer end."""
    apart: float = 5.0
    """Lines that differ by so many times what a value may miss them by are told from each other."""
    inside: tuple[float, float] = (0.35, 0.65)
    """Where values inside an interval are asked, at random: a fixed place could meet the kinks of a
    regular target again and again."""
    narrowest: float = 1e-9
    """Radians: float64 does not separate kinks closer than this."""
    crowd: int = 64
    crowded: float = 0.01
    """So many intervals more than kinks found, in so small a share of the circle, are noise that is
    larger there than was thought."""
    louder: float = 2.0
    """Then so many times the noise is assumed."""
    everywhere: float = 0.5
    """Too many intervals that cover this share of the circle, with half as many kinks found, are no
    kinks: the function is smooth, or noise."""
    rounds: int = 120
    """Rounds at most: 30 halvings to the narrowest, with lines renewed and crossings seen twice.
    What is left then is taken as a kink each."""


@dataclass(frozen=True, slots=True)
class KinkIntervals(Intervals):
    """Intervals that may hold kinks."""

    doubted: Flags
    """A value inside was not on the lines, wherever they cross."""
    value: Array
    """The value at the crossing; NaN before it is asked."""

    @classmethod
    def fresh(cls, pieces: Pieces, low: Array, high: Array, left: Indices, right: Indices) -> Self:
        """Make intervals inside which nothing was asked."""
        n = len(low)
        return cls(pieces, low, high, left, right, np.zeros(n, dtype=bool), np.full(n, np.nan))


@dataclass(frozen=True, slots=True)
class EndLines:
    """The lines at one end of all intervals, and what a value may miss them by; (n,) each."""

    t: Array
    y: Array
    k: Array
    baseline: Array
    own: Array
    """Standard deviation of a value on each line: the angle is rounded, too."""
    noise: float
    tuning: KinkTuning

    @classmethod
    def of(cls, now: KinkIntervals, rows: Indices, noise: float, tuning: KinkTuning) -> Self:
        """Take lines from the table of pieces; ``noise`` is the deviation of a value."""
        t, y, k, baseline = now.pieces.table[:, rows]
        return cls(t, y, k, baseline, noise + np.spacing(now.high) * np.abs(k), noise, tuning)

    def at(self, t: Array) -> Array:
        """Evaluate the lines, at an angle each."""
        turn = t - self.t
        return np.asarray(self.y * np.cos(turn) + self.k * np.sin(turn))

    def slope_at(self, t: Array) -> Array:
        """Return their slopes, at an angle each."""
        turn = t - self.t
        return np.asarray(-self.y * np.sin(turn) + self.k * np.cos(turn))

    def deviation(self, t: Array) -> Array:
        """Return one deviation of a value at t from its line."""
        away = np.abs(t - self.t) / self.baseline
        return np.asarray(self.own * (self.tuning.own_error + self.tuning.slope_error * away))

    def matches(self, t: Array, y: Array) -> Flags:
        """Tell which values are on the lines; NaN is on none."""
        allowed = self.tuning.deviations * self.deviation(t)
        return np.asarray(np.abs(y - self.at(t)) < allowed)

    def meets(self, t: Array, y: Array) -> Flags:
        """Tell which lines go through a point that has an error, too."""
        allowed = self.tuning.deviations * (self.deviation(t) + self.noise)
        return np.asarray(np.abs(y - self.at(t)) < allowed)


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
        flags = np.zeros(len(KinkState), dtype=bool)
        flags[list(states)] = True
        return np.asarray(flags[self.state])

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
        state = np.select(
            [
                narrow,
                stale_left | stale_right,
                one & ~now.doubted,
                now.doubted | ~inside,
                np.isnan(now.value),
                left.matches(crossing, now.value),
            ],
            list(KinkState)[:-1],
            KinkState.MISSED,
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

    def asked(self, measure: Measure) -> Generator[Round, Answers, KinkAnswers]:
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


def _steps(
    now: KinkIntervals, state: Indices, crossing: Array, apart: Array, tuning: KinkTuning
) -> Array:
    """Return how far beside a cut is asked: where the lines are told from each other."""
    room = tuning.room * np.minimum(crossing - now.low, now.high - crossing)
    return np.select(
        [state == KinkState.DOUBTED, state == KinkState.TOUCHING],
        [tuning.pair * now.width, np.minimum(apart, room)],
        np.minimum(np.maximum(tuning.beside * now.width, apart), room),
    )
