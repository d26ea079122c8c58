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
    """How kinks are searched for. Lengths are in widths of the interval, unless said otherwise."""

    start: int = 32
    """Number of intervals at first. Fewer: two kinks that cancel may both lie in one interval and
    be missed. More: three queries each."""
    shifted: float = 0.31
    """Offset of the first interval ends from a regular grid. In one dimension all kinks at 0 lie at
    π/2, and no interval may end on a kink."""
    pair: float = 0.02
    """Distance of the two values that determine a line. Smaller: the line's slope is less precise.
    Larger: more lines are read across a kink."""
    renewed: float = 0.1
    """A line read from values farther apart than this is STALE: it is imprecise, or has a kink
    between its values. Without this rule wrong lines split intervals to depth 30."""
    deviations: float = 10.0
    """A value belongs to a line if it misses it by at most this number of standard deviations.
    Smaller: false kinks. Larger: missed kinks."""
    own_error: float = 1.5
    slope_error: float = 2.0
    """The standard deviation of a value from its line, in units of the noise, is
    own_error + slope_error·distance/baseline: the error of the value and of the line."""
    margin: float = 1e-4
    """Crossings closer than this to an end are ignored: rounding could put them outside."""
    beside: float = 1e-3
    """Smallest distance of the two values on either side of a MISSED crossing. Smaller: the new
    lines are imprecise and have to be read again."""
    room: float = 0.3
    """Largest value of that distance, as a share of the distance to the nearer end."""
    apart: float = 5.0
    """Two lines can be told apart where they differ by this many times the error that is allowed.
    Smaller: two close kinks pass for one. Larger: their values are asked farther away."""
    inside: tuple[float, float] = (0.35, 0.65)
    """Range of the random position of values inside an interval. A fixed position could meet the
    kinks of a regular target again and again."""
    narrowest: float = 1e-9
    """Radians. Kinks closer than this count as one: float64 values do not separate them."""
    crowd: int = 64
    crowded: float = 0.01
    """If there are ``crowd`` more intervals than kinks found, in less than this share of the
    circle, the noise is larger there than assumed."""
    noise_growth: float = 2.0
    """Factor by which the assumed noise is then raised, each round."""
    everywhere: float = 0.5
    """When there are too many intervals: if they cover more than this share of the circle, and
    fewer kinks than this share of them were found, the function is smooth or only noise."""
    rounds: int = 120
    """Limit on the rounds: 30 halvings to the narrowest interval, with lines renewed and crossings
    checked twice. Every interval left then counts as one kink."""


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
