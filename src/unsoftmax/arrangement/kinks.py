"""Kinks of a continuous piecewise sinusoid F on half a great circle: 9 to 11 values each.

Between two kinks F is one *line* (a piece of `unsoftmax.arrangement.pieces`). An interval knows
the line at either end from two values there. What it asks next follows from its state:

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
every fourth search among 512 kinks; TOUCHING asks as close as tells the lines from each other. A
split that leaves out what is around the cut loses kinks there.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from unsoftmax.arrangement.breakpoints import (
    Flags,
    Intervals,
    Measure,
    TooManyBreakpoints,
    ask_where,
    refine,
)
from unsoftmax.arrangement.pieces import Pieces, slope
from unsoftmax.probes import Array, Indices, Round
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
    def fresh(
        cls, pieces: Pieces, low: Array, high: Array, left: Indices, right: Indices
    ) -> KinkIntervals:
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
        return np.isin(self.state, states)


def find_kinks(
    search: KinkSearch, low: float, high: float
) -> Generator[Round, Answers, tuple[Array, float]]:
    """Return the kinks θ in (low, high), ascending, and the noise that was found to be there.

    Raises
    ------
    TooManyBreakpoints
        There are more than ``search.most``, or so many that the function is no piecewise sinusoid.
    """
    first = yield from _opened(search, low, high)
    left = yield from refine(first, search, search.tuning.rounds)
    search.found.append((left.low + left.high) / 2)
    kinks = np.sort(np.concatenate(search.found))
    if len(kinks) > search.most:
        raise TooManyBreakpoints(search.most)
    if len(kinks):
        kinks = kinks[np.append(True, np.diff(kinks) > search.tuning.narrowest)]
    return kinks, search.noise


@dataclass(slots=True)
class KinkSearch:
    """A search for kinks along one circle; a `Cutting` of `KinkIntervals`."""

    measure: Measure
    noise: float
    """Standard deviation of a value's error; raised where it turns out to be larger."""
    most: int
    """More kinks are refused."""
    rng: np.random.Generator
    tuning: KinkTuning = field(default=KinkTuning(), kw_only=True)
    found: list[Array] = field(default_factory=list, init=False)
    """Kinks, as they were found in each round."""
    span: float = field(default=np.pi, init=False)
    """Length of the arc that is searched."""

    def unfinished(self, now: KinkIntervals) -> Flags:
        """Tell which intervals are asked: all that are left."""
        return np.ones(len(now), dtype=bool)

    def cut(self, now: KinkIntervals, chosen: Flags) -> Generator[Round, Answers, KinkIntervals]:
        """Ask inside all intervals, keep the kinks that are found, return what is left."""
        self._weigh(now)
        seen, pair = self._questions(now), self.tuning.pair * now.width
        near_left, near_right, inside, at, before, after = yield from ask_where(
            self.measure,
            [
                (seen.stale_left, now.low + pair),
                (seen.stale_right, now.high - pair),
                (seen.are(*INSIDE), seen.cut),
                (seen.are(*AT_THE_CUT), seen.cut),
                (seen.are(*BESIDE_THE_CUT), seen.cut - seen.step),
                (seen.are(*BESIDE_THE_CUT), seen.cut + seen.step),
            ],
        )
        for stale, rows, near, turn in (
            (seen.stale_left, now.left, near_left, pair),
            (seen.stale_right, now.right, near_right, -pair),
        ):
            now.pieces.reread(rows[stale], near[stale], turn[stale])
        now = now.changed(value=np.where(seen.are(*AT_THE_CUT), at, now.value))
        kept = self._judged(now, seen, inside, before, after)
        return KinkIntervals.joined([kept, *self._split(now, seen, before, after)])

    def _weigh(self, now: KinkIntervals) -> None:
        """Refuse too many intervals; assume more noise where they crowd."""
        tuning, count = self.tuning, sum(len(part) for part in self.found)
        # every interval but one in two, the other half of its parent, holds a kink
        covered = float(np.sum(now.width)) / self.span
        if count > self.most or len(now) > 2 * (self.most + tuning.start):
            few = count < len(now) * tuning.everywhere
            raise TooManyBreakpoints(self.most, everywhere=few and covered > tuning.everywhere)
        if covered < tuning.crowded and len(now) > tuning.crowd + count:
            self.noise *= tuning.louder

    def _error(self, now: KinkIntervals, rows: Indices, t: Array) -> Array:
        """Return what a value at t may miss a line by, as one deviation; the angle is rounded."""
        pieces, tuning = now.pieces, self.tuning
        own = self.noise + np.spacing(now.high) * np.abs(pieces.k[rows])
        away = np.abs(t - pieces.t[rows]) / pieces.baseline[rows]
        return np.asarray(own * (tuning.own_error + tuning.slope_error * away))

    def _on_line(self, now: KinkIntervals, rows: Indices, t: Array, y: Array) -> Flags:
        """Tell which values are on the lines; NaN is on none."""
        allowed = self.tuning.deviations * self._error(now, rows, t)
        return np.asarray(np.abs(y - now.pieces.at(rows, t)) < allowed)

    def _one_line(self, now: KinkIntervals) -> Flags:
        """Tell where both lines are one: each goes through the other's base point."""
        one = np.ones(len(now), dtype=bool)
        for rows, other in ((now.right, now.left), (now.left, now.right)):
            t, y = now.pieces.t[other], now.pieces.y[other]
            allowed = self.tuning.deviations * (self._error(now, rows, t) + self.noise)
            one &= np.abs(now.pieces.at(rows, t) - y) < allowed
        return one

    def _questions(self, now: KinkIntervals) -> KinkQuestions:
        """Tell each interval's state, and where it is asked."""
        tuning, pieces, w = self.tuning, now.pieces, now.width
        dy = pieces.at(now.right, now.low) - pieces.y[now.left]
        dk = pieces.slope_at(now.right, now.low) - pieces.k[now.left]
        crossing = now.low + np.mod(np.arctan2(-dy, dk), np.pi)
        inside = (crossing > now.low + tuning.margin * w) & (
            crossing < now.high - tuning.margin * w
        )
        narrow = w < tuning.narrowest
        stale_left = (pieces.baseline[now.left] > tuning.renewed * w) & ~narrow
        stale_right = (pieces.baseline[now.right] > tuning.renewed * w) & ~narrow
        state = np.select(
            [
                narrow,
                stale_left | stale_right,
                self._one_line(now) & ~now.doubted,
                now.doubted | ~inside,
                np.isnan(now.value),
                self._on_line(now, now.left, crossing, now.value),
            ],
            list(KinkState)[:-1],
            KinkState.MISSED,
        )
        random = now.low + self.rng.uniform(*tuning.inside, len(w)) * w
        cut = np.where(state >= KinkState.CROSSING, crossing, random)
        cut = np.where(narrow, np.where(inside, crossing, (now.low + now.high) / 2), cut)
        step = self._steps(now, state, crossing, np.hypot(dy, dk))
        return KinkQuestions(state, stale_left, stale_right, cut, step)

    def _steps(self, now: KinkIntervals, state: Indices, crossing: Array, size: Array) -> Array:
        """Return how far beside a cut is asked: where the lines are told from each other."""
        tuning, w = self.tuning, now.width
        error = np.maximum(
            self._error(now, now.left, crossing), self._error(now, now.right, crossing)
        )
        with np.errstate(over="ignore", invalid="ignore"):
            apart = tuning.apart * tuning.deviations * error
            apart /= np.maximum(size, np.finfo(float).tiny)
        room = tuning.room * np.minimum(crossing - now.low, now.high - crossing)
        return np.select(
            [state == KinkState.DOUBTED, state == KinkState.TOUCHING],
            [tuning.pair * w, np.minimum(apart, room)],
            np.minimum(np.maximum(tuning.beside * w, apart), room),
        )

    def _judged(
        self, now: KinkIntervals, seen: KinkQuestions, inside: Array, before: Array, after: Array
    ) -> KinkIntervals:
        """Keep the kinks that the values confirm; return the intervals that stay as they are."""
        off = np.abs(inside - now.on_left(seen.cut)) > self.tuning.deviations * (
            self._error(now, now.left, seen.cut) + self.noise
        )
        both = self._on_line(now, now.left, seen.cut - seen.step, before)
        both &= self._on_line(now, now.right, seen.cut + seen.step, after)
        touching = seen.are(KinkState.TOUCHING)
        self.found.append(seen.cut[seen.are(KinkState.NARROW) | (touching & both)])
        doubted = (touching & ~both) | (seen.are(KinkState.EMPTY) & off)
        now = now.changed(doubted=now.doubted | doubted, value=np.where(doubted, np.nan, now.value))
        return now.take(seen.are(KinkState.STALE, KinkState.CROSSING) | doubted)

    def _split(
        self, now: KinkIntervals, seen: KinkQuestions, before: Array, after: Array
    ) -> list[KinkIntervals]:
        """Split intervals in two at the cut, or in three where the values there are on no line."""
        split = seen.are(*SPLIT)
        part, c, step = now.take(split), seen.cut[split], seen.step[split]
        at, before, after = part.value, before[split], after[split]
        falling, rising = slope(at, before, -step), slope(at, after, step)
        own = self.noise + np.spacing(c) * np.maximum(np.abs(falling), np.abs(rising))
        # √6 deviations of a value are one of this difference
        bend = np.abs(before + after - 2 * np.cos(step) * at)
        bent = bend > np.sqrt(6) * self.tuning.deviations * own
        part = part.changed(doubted=np.zeros(len(c), dtype=bool), value=np.full(len(c), np.nan))

        add, two = part.pieces.add, ~bent
        halves = part.take(two).split(
            c[two],
            add(c[two], at[two], falling[two], step[two]),
            add(c[two], at[two], rising[two], step[two]),
        )
        # lines from values with a kink between them are asked anew
        old = np.full(int(np.sum(bent)), np.inf)
        first, last = (c - step)[bent], (c + step)[bent]
        low = first, before[bent], falling[bent], old
        high = last, after[bent], rising[bent], old
        third, rest = part.take(bent).split(first, add(*low), add(*low))
        return [*halves, third, *rest.split(last, add(*high), add(*high))]


def _opened(
    search: KinkSearch, low: float, high: float
) -> Generator[Round, Answers, KinkIntervals]:
    """Divide the arc, with a line at both ends of each interval."""
    tuning, n = search.tuning, search.tuning.start
    search.span = high - low
    ends = np.linspace(low, high, n + 1)
    ends[1:-1] += tuning.shifted * (ends[1] - ends[0])
    first, last = ends[:-1], ends[1:]
    h = tuning.pair * (last - first)
    y = yield from search.measure(np.concatenate([ends, first + h, last - h]))
    at, near_left, near_right = np.split(y, [n + 1, 2 * n + 1])
    pieces = Pieces.none()
    left = pieces.add(first, at[:-1], slope(at[:-1], near_left, h), h)
    right = pieces.add(last, at[1:], slope(at[1:], near_right, -h), h)
    return KinkIntervals.fresh(pieces, first, last, left, right)
