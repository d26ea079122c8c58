"""Breakpoints at which a piecewise sinusoid jumps, found by bisecting: five or six values each.

The function must be even, g(θ + π) = g(θ). A sinusoid turns its sign there, so the piece at π is
the one at 0 with its sign turned, and is not asked for. An interval whose two ends are on one piece
is empty and left out. Every other one is cut, until each is much narrower than its distance to the
next:

    the value at the cut is on …   what becomes of [low, high]
    the left piece                 [cut, high]
    the right piece                [low, cut]
    neither                        one value more beside it: a new piece; [low, cut] and [cut, high]
    no piece at all (NaN)          it stays, and is cut elsewhere next time

An interval that is isolated may still hide several jumps close to each other: its two pieces differ
by their sum. A caller that finds them by reading more inside calls `bisect` and `isolate` again.

Values are NaN in a *transition*, where the function does not jump but changes smoothly from one
piece to the next: intervals around them stay as wide as these are.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from unsoftmax.arrangement.breakpoints import (
    AskAngles,
    Intervals,
    TooManyBreakpoints,
    ask_where,
    refine,
)
from unsoftmax.arrangement.pieces import Pieces, slope
from unsoftmax.probes import Array, Flags, Indices, Round
from unsoftmax.protocol import Answers


class SoftTransition(Exception):
    """Values change smoothly all through an interval that has to be cut."""


class SoftStart(SoftTransition):
    """The half circle begins in a transition."""


@dataclass(frozen=True, slots=True)
class JumpTuning:
    """How jumps are searched for."""

    deviations: float = 60.0
    """A value belongs to a piece if it misses it by less than this many times its error. At an
    error of 4e-16 one wrong value in 10¹² is accepted. Smaller: pieces are split by rounding.
    Larger: small jumps are missed."""
    isolated: float = 5.0
    """An interval is finished when it is this many times narrower than its distance to the next."""
    narrowest: float = 1e-12
    """Intervals narrower than this are not cut: float64 does not resolve the angles."""
    share: float = 0.03
    """Largest baseline of a new piece as a share of its interval: the probability that a jump lies
    between its two values."""
    longest: float = 0.1
    """Largest baseline of any piece, in radians."""
    noiseless: float = 4e-16
    """Up to this error of the values, baselines are as short as the caller asks for. Beyond, they
    grow with the square root of the error."""
    cuts: tuple[float, ...] = (0.5, 0.25, 0.75, 0.125, 0.375, 0.625, 0.875, 0.0625, 0.9375)
    """Where an interval is cut, as a share of its width: the next position after each cut that
    fell into a transition. After the last one the interval is given up as a transition."""
    slack: int = 8
    """Number of jumps above the limit that is tolerated while intervals are refined: values near a
    transition may look like pieces of their own."""
    cancelled: int = 16
    """Smallest number of first intervals if the first values are 0: all jumps may cancel there, and
    then the piece at π looks like the one at 0."""
    rounds: int = 400
    """Limit on the rounds: 40 halvings to the narrowest interval, with nine cuts each."""


@dataclass(frozen=True, slots=True)
class Jumps(Intervals):
    """Intervals that hold a jump each."""

    sign: Array
    """−1 where the right piece counts with its sign turned: in the last interval."""
    softened: Indices
    """How many cuts of the interval fell into a transition."""

    def before(self, t: Array) -> Array:
        """Evaluate the pieces on the left, one angle for each interval."""
        return self.pieces.at(self.left, t)

    def after(self, t: Array) -> Array:
        """Evaluate the pieces on the right."""
        return np.asarray(self.sign * self.pieces.at(self.right, t))

    def gap(self) -> Array:
        """Return every interval's distance to the nearest other one, around the half circle."""
        if not len(self):
            return np.zeros(0)
        between = np.append(self.low[1:], self.low[0] + np.pi) - self.high
        return np.minimum(between, np.roll(between, 1))

    def plane_vectors(self) -> Array:
        """Return half of what each jump adds to (x, y) in g = x·cosθ + y·sinθ, (n, 2)."""
        middle = (self.low + self.high) / 2
        other = middle + np.pi / 2
        along, across = (self.after(t) - self.before(t) for t in (middle, other))
        c, s = np.cos(middle), np.sin(middle)
        return np.stack([along * c - across * s, along * s + across * c], axis=1) / 2

    def ordered(self) -> Self:
        """Return the intervals in the order of their angles."""
        return self.take(np.argsort(self.low, kind="stable"))


@dataclass(frozen=True, slots=True)
class JumpSearch:
    """What is asked on a half circle, and how; a `Cutting` of `Jumps`."""

    measure: AskAngles
    error: float
    """Of one value."""
    most: int
    """More jumps are refused."""
    baseline: float
    """Angle over which the slope of a new piece is read: so short that no jump is between."""
    tuning: JumpTuning = field(default=JumpTuning(), kw_only=True)

    def step(self, most: float, longer: float = 1.0) -> float:
        """Return the baseline of a piece in an interval of width ``most``."""
        tuning = self.tuning
        noisy = max(1.0, np.sqrt(self.error / tuning.noiseless))
        return float(min(tuning.share * most, noisy * longer * self.baseline, tuning.longest))

    def allowed(self, pieces: Pieces, which: Indices, t: Array) -> Array:
        """Return what a value at t may miss a piece by."""
        known = 1 + pieces.leverage(which, t)
        return np.asarray(self.tuning.deviations * self.error * known)

    def matches(self, pieces: Pieces, which: Indices, t: Array, y: Array) -> Flags:
        """Tell which values are on the pieces; NaN is on none."""
        return np.asarray(np.abs(y - pieces.at(which, t)) < self.allowed(pieces, which, t))

    def unfinished(self, jumps: Jumps) -> Flags:
        """Tell which intervals are neither isolated nor as narrow as they can be."""
        wide = jumps.width > jumps.gap() / self.tuning.isolated
        wide &= jumps.width > self.tuning.narrowest
        return np.asarray(wide & (jumps.softened < len(self.tuning.cuts)))

    def cut(self, jumps: Jumps, chosen: Flags) -> Generator[Round, Answers, Jumps]:
        """Cut the chosen intervals; refuse too many."""
        jumps = yield from bisect(jumps, chosen, self)
        self.refuse(jumps, self.tuning.slack)
        return jumps

    def refuse(self, jumps: Jumps, slack: int = 0) -> None:
        """Raise `TooManyBreakpoints` where there are more jumps than allowed."""
        if len(jumps) > self.most + slack:
            raise TooManyBreakpoints(self.most)


def find_jumps(
    search: JumpSearch, start: int, longer: float = 1.0
) -> Generator[Round, Answers, Jumps]:
    """Isolate all jumps on the half circle [0, π).

    Parameters
    ----------
    search : JumpSearch
        What is asked, and how.
    start : int
        Intervals at first. Few are enough for jumps far from each other; two small jumps that
        cancel are seen where an interval ends between them.
    longer : float
        How much longer than others the baselines of the first pieces are: they tell small jumps
        from errors, at the risk of a jump within.

    Raises
    ------
    TooManyBreakpoints
        There are more than ``search.most``.
    SoftStart
        The values at 0 are in a transition.
    """
    jumps = yield from _opened(search, start, longer)
    return (yield from isolate(_different(jumps, search), search))


def isolate(jumps: Jumps, search: JumpSearch) -> Generator[Round, Answers, Jumps]:
    """Bisect intervals until each is much narrower than its distance to the next."""
    jumps = yield from refine(jumps, search, search.tuning.rounds)
    search.refuse(jumps)
    return jumps


def bisect(jumps: Jumps, chosen: Flags, search: JumpSearch) -> Generator[Round, Answers, Jumps]:
    """Cut the chosen intervals; where another piece is between, they become two.

    Raises
    ------
    SoftTransition
        All cuts of a chosen interval were in its transition.
    """
    pieces, part, cuts = jumps.pieces, jumps.take(chosen), np.array(search.tuning.cuts)
    if np.any(part.softened >= len(cuts)):
        raise SoftTransition
    at = part.low + cuts[part.softened] * part.width
    y = yield from search.measure(at)
    left, right = _sides(part, at, y, search)
    soft = np.isnan(y)
    other = ~left & ~right & ~soft
    turn = np.minimum(search.tuning.share * part.width, search.step(np.inf))
    [near] = yield from ask_where(search.measure, [(other, at + turn)])
    soft |= other & np.isnan(near)
    new = other & ~soft
    between = _read(pieces, at[new], y[new], near[new], turn[new])
    cut = part.changed(softened=np.zeros_like(part.softened))
    halves = cut.take(new).split(at[new], between, between)
    first = halves[0].changed(sign=np.ones(len(between)))
    return Jumps.joined(
        [
            jumps.take(~chosen),
            cut.take(left).changed(low=at[left]),
            cut.take(right).changed(high=at[right]),
            first,
            halves[1],
            part.take(soft).changed(softened=part.softened[soft] + 1),
        ]
    ).ordered()


def _sides(part: Jumps, at: Array, y: Array, search: JumpSearch) -> tuple[Flags, Flags]:
    """Tell which values are on the left and on the right piece; know these the better for it."""
    pieces = part.pieces
    left = search.matches(pieces, part.left, at, y)
    turned = np.where(part.sign < 0, -y, y)
    right = ~left & search.matches(pieces, part.right, at, turned)
    pieces.extend(part.left[left], at[left], y[left])
    back = np.where(part.sign < 0, at - np.pi, at)
    pieces.extend(part.right[right], back[right], y[right])
    return left, right


def _opened(search: JumpSearch, start: int, longer: float) -> Generator[Round, Answers, Jumps]:
    """Divide the half circle, with a piece at the beginning of each interval."""
    tuning, pieces = search.tuning, Pieces.none()
    step = search.step(np.pi / start, longer)
    y = yield from search.measure(np.array([0.0, step]))
    if np.any(np.isnan(y)):
        raise SoftStart
    if np.all(np.abs(y) < tuning.deviations * search.error):
        start = max(start, tuning.cancelled)
    _read(pieces, np.zeros(1), y[:1], y[1:], np.array([step]))
    edges, ends = np.array([0.0, np.pi]), np.zeros(2, dtype=np.intp)
    if start > 1:
        grid = np.pi * np.arange(1, start) / start
        y = (yield from search.measure(np.concatenate([grid, grid + step]))).reshape(2, -1)
        clean = np.all(np.isfinite(y), axis=0)
        at = grid[clean]
        new = _read(pieces, at, y[0, clean], y[1, clean], np.full(len(at), step))
        edges = np.concatenate([[0.0], at, [np.pi]])
        ends = np.concatenate([[0], new, [0]]).astype(np.intp)
    sign = np.ones(len(edges) - 1)
    sign[-1] = -1.0
    return Jumps(pieces, edges[:-1], edges[1:], ends[:-1], ends[1:], sign, np.zeros_like(ends[1:]))


def _read(pieces: Pieces, t: Array, y: Array, near: Array, step: Array) -> Indices:
    """Add pieces with value y at t and ``near`` a step further."""
    turn = (t + step) - t  # as the angle that was asked is rounded
    return pieces.add(t, y, slope(y, near, turn), np.abs(np.sin(turn)))


def _different(jumps: Jumps, search: JumpSearch) -> Jumps:
    """Leave out intervals with the same piece at both ends."""
    apart = np.zeros(len(jumps), dtype=bool)
    for t in (jumps.low, jumps.high):
        known = 2 + jumps.pieces.leverage(jumps.left, t) + jumps.pieces.leverage(jumps.right, t)
        allowed = search.tuning.deviations * search.error * known
        apart |= np.abs(jumps.after(t) - jumps.before(t)) > allowed
    return jumps.take(apart)
