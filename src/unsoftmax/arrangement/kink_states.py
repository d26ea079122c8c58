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

from dataclasses import dataclass
from enum import IntEnum
from typing import Self

import numpy as np

from unsoftmax.arrangement.breakpoints import Intervals
from unsoftmax.arrangement.pieces import Pieces
from unsoftmax.probes import Array, Flags, Indices


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

    def on_left(self, t: Array) -> Array:
        """Evaluate the lines on the left, an angle for each interval."""
        return self.pieces.at(self.left, t)

    def on_right(self, t: Array) -> Array:
        """Evaluate the lines on the right."""
        return self.pieces.at(self.right, t)


@dataclass(frozen=True, slots=True)
class LineErrors:
    """What a value may miss a line by."""

    noise: float
    """Standard deviation of a value's error."""
    tuning: KinkTuning

    def deviation(self, now: KinkIntervals, rows: Indices, t: Array) -> Array:
        """Return one deviation of a value at t from its line; the angle is rounded, too."""
        pieces, tuning = now.pieces, self.tuning
        own = self.noise + np.spacing(now.high) * np.abs(pieces.k[rows])
        away = np.abs(t - pieces.t[rows]) / pieces.baseline[rows]
        return np.asarray(own * (tuning.own_error + tuning.slope_error * away))

    def matches(self, now: KinkIntervals, rows: Indices, t: Array, y: Array) -> Flags:
        """Tell which values are on the lines; NaN is on none."""
        allowed = self.tuning.deviations * self.deviation(now, rows, t)
        return np.asarray(np.abs(y - now.pieces.at(rows, t)) < allowed)

    def one_line(self, now: KinkIntervals) -> Flags:
        """Tell where both lines are one: each goes through the other's base point."""
        one = np.ones(len(now), dtype=bool)
        for rows, other in ((now.right, now.left), (now.left, now.right)):
            t, y = now.pieces.t[other], now.pieces.y[other]
            allowed = self.tuning.deviations * (self.deviation(now, rows, t) + self.noise)
            one &= np.abs(now.pieces.at(rows, t) - y) < allowed
        return one

    def apart(self, now: KinkIntervals, crossing: Array, angle: Array) -> Array:
        """Return how far from their crossing two lines are told from each other.

        ``angle`` is the difference of their slopes there.
        """
        error = np.maximum(
            self.deviation(now, now.left, crossing), self.deviation(now, now.right, crossing)
        )
        with np.errstate(over="ignore", invalid="ignore"):
            apart = self.tuning.apart * self.tuning.deviations * error
            return np.asarray(apart / np.maximum(angle, np.finfo(float).tiny))


@dataclass(frozen=True, slots=True)
class KinkQuestions:
    """The states of intervals, and where each is asked; (n,) each."""

    state: Indices
    stale_left: Flags
    stale_right: Flags
    cut: Array
    """Where the lines cross, or a place inside."""
    step: Array
    """How far beside the cut is asked."""

    def are(self, *states: KinkState) -> Flags:
        """Tell which intervals are in one of the states."""
        flags = np.zeros(len(KinkState), dtype=bool)
        flags[list(states)] = True
        return np.asarray(flags[self.state])

    @classmethod
    def of(cls, now: KinkIntervals, lines: LineErrors, share: Array) -> Self:
        """Tell each interval's state, and where it is asked.

        ``share`` of its width is where an interval is asked whose lines do not say where.
        """
        tuning, pieces, w = lines.tuning, now.pieces, now.width
        dy = pieces.at(now.right, now.low) - pieces.y[now.left]
        dk = pieces.slope_at(now.right, now.low) - pieces.k[now.left]
        crossing = now.low + np.mod(np.arctan2(-dy, dk), np.pi)
        margin = tuning.margin * w
        inside = (crossing > now.low + margin) & (crossing < now.high - margin)
        narrow = w < tuning.narrowest
        stale_left = (pieces.baseline[now.left] > tuning.renewed * w) & ~narrow
        stale_right = (pieces.baseline[now.right] > tuning.renewed * w) & ~narrow
        state = np.select(
            [
                narrow,
                stale_left | stale_right,
                lines.one_line(now) & ~now.doubted,
                now.doubted | ~inside,
                np.isnan(now.value),
                lines.matches(now, now.left, crossing, now.value),
            ],
            list(KinkState)[:-1],
            KinkState.MISSED,
        )
        cut = np.where(state >= KinkState.CROSSING, crossing, now.low + share * w)
        cut = np.where(narrow, np.where(inside, crossing, (now.low + now.high) / 2), cut)
        apart = lines.apart(now, crossing, np.hypot(dy, dk))
        step = _steps(now, state, crossing, apart, tuning)
        return cls(state, stale_left, stale_right, cut, step)


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
