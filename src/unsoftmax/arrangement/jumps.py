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

A *piece* is one sinusoid, on X(θ) = cosθ·P + sinθ·Q and between two breakpoints:

    g(θ) = y·cos(θ − t) + k·sin(θ − t).

It is kept relative to a base point t near by: coefficients of cosθ and sinθ would lose a factor
roundoff/baseline. y is the value at t; the slope k comes from a second value at the distance
*baseline* from t, so at θ the error of a value counts |sin(θ − t)|/baseline times.

Values are NaN in a *transition*, where the function does not jump but changes smoothly from one
piece to the next: intervals around them stay as wide as these are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Self

import numpy as np

from unsoftmax.arrangement.kinks import TooManyBreakpoints
from unsoftmax.probes import Array, Flags, Indices, Round
from unsoftmax.protocol import Answers

AskAngles = Callable[[Array], Generator[Round, Answers, Array]]
"""Asks the function at angles (n,), one round: values (n,), NaN where it is on no piece."""


class SoftTransition(Exception):
    """Values change smoothly all through an interval that has to be cut."""


class SoftStart(SoftTransition):
    """The half circle begins in a transition."""


# A value belongs to a piece if it misses it by less than this many times its error. At an error of
# 4e-16 one wrong value in 10¹² is accepted. Smaller: pieces are split by rounding. Larger: small
# jumps are missed.
DEVIATIONS = 60.0
# An interval is finished when it is this many times narrower than its distance to the next.
ISOLATED = 5.0
# Intervals narrower than this are not cut: float64 does not resolve the angles.
NARROWEST = 1e-12
# Largest baseline of a new piece as a share of its interval: the probability that a jump lies
# between its two values.
SHARE = 0.03
# Largest baseline of any piece, in radians.
LONGEST = 0.1
# Up to this error of the values, baselines are as short as the caller asks for. Beyond, they grow
# with the square root of the error.
NOISELESS = 4e-16
# Where an interval is cut, as a share of its width: the next position after each cut that fell into
# a transition. After the last one the interval is given up as a transition.
CUTS = (0.5, 0.25, 0.75, 0.125, 0.375, 0.625, 0.875, 0.0625, 0.9375)
# Number of jumps above the limit that is tolerated while intervals are refined: values near a
# transition may look like pieces of their own.
SLACK = 8
# Smallest number of first intervals if the first values are 0: all jumps may cancel there, and then
# the piece at π looks like the one at 0.
CANCELLED = 16
# Limit on the rounds: 40 halvings to the narrowest interval, with nine cuts each.
ROUNDS = 400


@dataclass(slots=True)
class Pieces:
    """A table of pieces, which grows; a piece is named by its row.

    Rows may be shared by intervals: what one learns of a piece the others know too.
    """

    table: Array
    """Base points t, values y and slopes k there, and baselines: (4, n)."""

    @classmethod
    def none(cls) -> Pieces:
        """Begin a table."""
        return cls(np.zeros((4, 0)))

    def __len__(self) -> int:
        return int(self.table.shape[1])

    @property
    def t(self) -> Array:
        """Base points."""
        return np.asarray(self.table[0])

    @property
    def y(self) -> Array:
        """Values there."""
        return np.asarray(self.table[1])

    @property
    def k(self) -> Array:
        """Slopes there."""
        return np.asarray(self.table[2])

    @property
    def baseline(self) -> Array:
        """Distances that the slopes were read from."""
        return np.asarray(self.table[3])

    def add(self, t: Array, y: Array, k: Array, baseline: Array) -> Indices:
        """Add pieces; return their rows."""
        first = len(self)
        self.table = np.concatenate([self.table, np.array([t, y, k, baseline])], axis=1)
        return np.arange(first, len(self))

    def at(self, which: Indices, t: Array) -> Array:
        """Evaluate some pieces, at an angle each."""
        turn = t - self.t[which]
        return np.asarray(self.y[which] * np.cos(turn) + self.k[which] * np.sin(turn))

    def leverage(self, which: Indices, t: Array) -> Array:
        """Return how many times a value's error counts through the slope, |sin(θ − t)|/baseline."""
        return np.asarray(np.abs(np.sin(t - self.t[which])) / self.baseline[which])

    def extend(self, which: Indices, t: Array, y: Array) -> None:
        """Read slopes anew where a value y on a piece lies further away than its baseline."""
        for piece, angle, value in zip(which, t, y, strict=True):  # several may share a piece
            turn = angle - self.t[piece]
            if np.abs(np.sin(turn)) > self.baseline[piece]:
                self.k[piece] = slope(self.y[piece], value, turn)
                self.baseline[piece] = np.abs(np.sin(turn))


def slope(first: Array, second: Array, turn: Array) -> Array:
    """Return the slope of a piece at the first of two points that are ``turn`` apart."""
    return np.asarray((second - first * np.cos(turn)) / np.sin(turn))


@dataclass(frozen=True, slots=True)
class Jumps:
    """Intervals [low, high] that hold a jump each, and the pieces at both their ends."""

    pieces: Pieces
    low: Array
    high: Array
    left: Indices
    """Rows of the pieces at ``low``."""
    right: Indices
    """Rows of the pieces at ``high``."""
    sign: Array
    """−1 where the right piece counts with its sign turned: in the last interval."""
    softened: Indices
    """How many cuts of the interval fell into a transition."""

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
    """What is asked on a half circle, and how."""

    measure: AskAngles
    error: float
    """Of one value."""
    most: int
    """More jumps are refused."""
    baseline: float
    """Angle over which the slope of a new piece is read: so short that no jump is between."""

    def step(self, most: float, longer: float = 1.0) -> float:
        """Return the baseline of a piece in an interval of width ``most``."""
        noisy = max(1.0, np.sqrt(self.error / NOISELESS))
        return float(min(SHARE * most, noisy * longer * self.baseline, LONGEST))

    def allowed(self, pieces: Pieces, which: Indices, t: Array) -> Array:
        """Return what a value at t may miss a piece by."""
        known = 1 + pieces.leverage(which, t)
        return np.asarray(DEVIATIONS * self.error * known)

    def matches(self, pieces: Pieces, which: Indices, t: Array, y: Array) -> Flags:
        """Tell which values are on the pieces; NaN is on none."""
        return np.asarray(np.abs(y - pieces.at(which, t)) < self.allowed(pieces, which, t))

    def unfinished(self, jumps: Jumps) -> Flags:
        """Tell which intervals are neither isolated nor as narrow as they can be."""
        wide = jumps.width > jumps.gap() / ISOLATED
        wide &= jumps.width > NARROWEST
        return np.asarray(wide & (jumps.softened < len(CUTS)))

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
    for _ in range(ROUNDS):
        chosen = search.unfinished(jumps)
        if not np.any(chosen):
            break
        jumps = yield from bisect(jumps, chosen, search)
        search.refuse(jumps, SLACK)
    search.refuse(jumps)
    return jumps


def bisect(jumps: Jumps, chosen: Flags, search: JumpSearch) -> Generator[Round, Answers, Jumps]:
    """Cut the chosen intervals; where another piece is between, they become two.

    Raises
    ------
    SoftTransition
        All cuts of a chosen interval were in its transition.
    """
    pieces, part, cuts = jumps.pieces, jumps.take(chosen), np.array(CUTS)
    if np.any(part.softened >= len(cuts)):
        raise SoftTransition
    at = part.low + cuts[part.softened] * part.width
    y = yield from search.measure(at)
    left, right = _sides(part, at, y, search)
    soft = np.isnan(y)
    other = ~left & ~right & ~soft
    turn = np.minimum(SHARE * part.width, search.step(np.inf))
    near = np.full(len(at), np.nan)
    near[other] = yield from search.measure((at + turn)[other])
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
    pieces = Pieces.none()
    step = search.step(np.pi / start, longer)
    y = yield from search.measure(np.array([0.0, step]))
    if np.any(np.isnan(y)):
        raise SoftStart
    if np.all(np.abs(y) < DEVIATIONS * search.error):
        start = max(start, CANCELLED)
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
        allowed = DEVIATIONS * search.error * known
        apart |= np.abs(jumps.after(t) - jumps.before(t)) > allowed
    return jumps.take(apart)
