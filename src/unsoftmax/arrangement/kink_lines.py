"""Intervals of a search for kinks, and the lines at their two ends with their errors.

A *line* is a piece of `unsoftmax.arrangement.pieces`, read from two values at a distance from the
end of its interval. A value at θ misses it by the value's own error, and by the line's, which grows
with the distance from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from unsoftmax.arrangement.breakpoints import Intervals
from unsoftmax.arrangement.pieces import Pieces
from unsoftmax.probes import Array, Flags, Indices


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
