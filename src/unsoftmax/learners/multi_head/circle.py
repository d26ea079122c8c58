"""Where half a circle of huge offsets crosses the heads' hyperplanes: five or six queries a head.

At offsets a = T·(cos θ p + sin θ q) with T so large that every gate is a step,

    g(θ) = Σ_h (v_h·a) tanh(a·u_h/2) / T = x·(cos θ, sin θ)

with x constant between jumps: a *piece*. Every hyperplane a·u_h = 0 is crossed once on
[0, π), and g(θ + π) = g(θ), so the last piece is the first one with its sign turned. Intervals
with different pieces at their ends are bisected until each is far from all others.

Under a cap on tokens a gate may be no step near its jump. Values there belong to no piece; they
change with T, and are left out: intervals are cut elsewhere, and stay as wide as transitions are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.multi_head.search_outcomes import UnsaturatedGates, UnsaturatedStart
from unsoftmax.measure.windows import Mask
from unsoftmax.probes import Array, Indices, Round
from unsoftmax.protocol import Answers

Measure = Callable[[Array], Generator[Round, Answers, Array]]
"""Angles to values g(θ); NaN where a gate is no step."""

# A value belongs to a piece if it is within this many times the precision of the answers; sixty
# times lets one in 10¹² of wrong ones pass at η = 4e-16.
_MATCH = 60.0
# An interval is isolated once it is this much narrower than its distance to the next.
_ISOLATED = 5.0
# Baselines of pieces are longer where answers are noisy, up to a share of the interval.
_NOISELESS, _LONGEST, _SHARE = 4e-16, 0.1, 0.03
# Where intervals are cut, one after the other: in a transition nothing is learned.
_CUTS = np.array([0.5, 0.25, 0.75, 0.125, 0.375, 0.625, 0.875, 0.0625, 0.9375])
# While intervals are refined, this many more than there can be heads are allowed.
_SLACK = 8
_NARROWEST = 1e-12
_CANCELLED = 16
_ROUNDS = 400


class TooMany(ModelMismatch):
    """More jumps than there may be heads."""


@dataclass(frozen=True, slots=True)
class Circle:
    """How the half circle is asked."""

    measure: Measure
    tolerance: float
    """Error of one value."""
    most: int
    """More jumps are refused."""
    baseline: float
    """Angle over which the slope of a new piece is read."""

    def belongs(self, pieces: Pieces, which: Indices, t: Array, y: Array) -> Mask:
        """Tell which values lie on the pieces; NaN lies on none."""
        allowed = _MATCH * self.tolerance * pieces.error(which, t)
        return np.asarray(np.abs(y - pieces.at(which, t)) < allowed)

    def step(self, most: float, longer: float = 1.0) -> float:
        """Return the baseline of a piece in an interval of width ``most``."""
        noisy = max(1.0, np.sqrt(self.tolerance / _NOISELESS))
        return float(min(_SHARE * most, noisy * longer * self.baseline, _LONGEST))


@dataclass(slots=True)
class Pieces:
    """Pieces g(t) = y cos(t − t₀) + k sin(t − t₀), and the baseline that k was read from."""

    t: Array
    y: Array
    k: Array
    baseline: Array

    def at(self, which: Indices, t: Array) -> Array:
        """Evaluate some pieces at as many angles."""
        turn = t - self.t[which]
        return np.asarray(self.y[which] * np.cos(turn) + self.k[which] * np.sin(turn))

    def error(self, which: Indices, t: Array) -> Array:
        """Return how much larger than a value's own error the error at t is."""
        return np.asarray(1 + np.abs(np.sin(t - self.t[which])) / self.baseline[which])

    def extended(self, which: Indices, t: Array, y: Array) -> None:
        """Read slopes anew where a value that belongs to a piece lies further away."""
        for piece, angle, value in zip(which, t, y, strict=True):  # several may share a piece
            turn = angle - self.t[piece]
            if np.abs(np.sin(turn)) > self.baseline[piece]:
                self.k[piece] = (value - self.y[piece] * np.cos(turn)) / np.sin(turn)
                self.baseline[piece] = np.abs(np.sin(turn))

    def added(self, t: Array, y: Array, near: Array, beside: Array) -> Indices:
        """Add pieces with value y at t and ``near`` at ``beside``; return their numbers."""
        turn = beside - t
        first = len(self.t)
        self.t, self.y = np.append(self.t, t), np.append(self.y, y)
        self.k = np.append(self.k, (near - y * np.cos(turn)) / np.sin(turn))
        self.baseline = np.append(self.baseline, np.abs(np.sin(turn)))
        return np.arange(first, len(self.t))


@dataclass(frozen=True, slots=True)
class Jumps:
    """Intervals [low, high] that hold a jump each, and the pieces at their two ends.

    The piece at the end of the half circle is the first one with its sign turned: ``sign``.
    """

    pieces: Pieces
    low: Array
    high: Array
    left: Indices
    right: Indices
    sign: Array
    cut: Indices
    """How many cuts of the interval fell into a transition."""

    def __len__(self) -> int:
        return len(self.low)

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
        """Return v_h in the plane, (H, 2): half of what the jump adds to x."""
        middle = (self.low + self.high) / 2
        other = middle + np.pi / 2
        along, across = (self.after(t) - self.before(t) for t in (middle, other))
        c, s = np.cos(middle), np.sin(middle)
        return np.stack([along * c - across * s, along * s + across * c], axis=1) / 2

    def joined(self, keep: Mask, parts: tuple[Array, ...]) -> Jumps:
        """Return the kept intervals with others, in order."""
        columns = (self.low, self.high, self.left, self.right, self.sign, self.cut)
        low, high, left, right, sign, cut = (
            np.concatenate([column[keep], part])
            for column, part in zip(columns, parts, strict=True)
        )
        order = np.argsort(low, kind="stable")
        return Jumps(
            self.pieces,
            low[order],
            high[order],
            left[order].astype(np.intp),
            right[order].astype(np.intp),
            sign[order],
            cut[order].astype(np.intp),
        )


def find_jumps(circle: Circle, start: int, longer: float) -> Generator[Round, Answers, Jumps]:
    """Isolate all jumps on the half circle.

    Parameters
    ----------
    circle : Circle
        What is asked, and how.
    start : int
        Intervals that the search begins with.
    longer : float
        How much longer than others the baselines of the pieces between those are.
    """
    step = circle.step(np.pi / start, longer)
    y = yield from circle.measure(np.array([0.0, step]))
    if np.any(np.isnan(y)):
        raise UnsaturatedStart
    if np.all(np.abs(y) < _MATCH * circle.tolerance):
        # nothing here may mean that values cancel: the piece at the end would look the same
        start = max(start, _CANCELLED)
    pieces = Pieces(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0))
    pieces.added(np.zeros(1), y[:1], y[1:], np.array([step]))
    edges, ends = np.array([0.0, np.pi]), np.zeros(2, dtype=np.intp)
    if start > 1:
        grid = np.pi * np.arange(1, start) / start
        y = (yield from circle.measure(np.concatenate([grid, grid + step]))).reshape(2, -1)
        clean = np.all(np.isfinite(y), axis=0)
        at = pieces.added(grid[clean], y[0, clean], y[1, clean], grid[clean] + step)
        edges = np.concatenate([[0.0], grid[clean], [np.pi]])
        ends = np.concatenate([[0], at, [0]]).astype(np.intp)
    sign = np.ones(len(edges) - 1)
    sign[-1] = -1.0
    first = Jumps(pieces, edges[:-1], edges[1:], ends[:-1], ends[1:], sign, np.zeros_like(ends[1:]))
    return (yield from isolate(_unclean(first, circle.tolerance), circle))


def isolate(jumps: Jumps, circle: Circle) -> Generator[Round, Answers, Jumps]:
    """Bisect intervals until each is much narrower than its distance to the next."""
    for _ in range(_ROUNDS):
        wide = jumps.high - jumps.low > jumps.gap() / _ISOLATED
        wide &= jumps.high - jumps.low > _NARROWEST
        wide &= jumps.cut < len(_CUTS)  # a transition is all there is left
        if not np.any(wide):
            break
        jumps = yield from bisect(jumps, wide, circle)
        _refuse_many(jumps, circle.most + _SLACK, circle.most)
    _refuse_many(jumps, circle.most, circle.most)
    return jumps


def bisect(jumps: Jumps, chosen: Mask, circle: Circle) -> Generator[Round, Answers, Jumps]:
    """Cut the chosen intervals in two; where another piece is between, they become two."""
    pieces = jumps.pieces
    part = jumps.joined(chosen, _none())
    if np.any(part.cut >= len(_CUTS)):
        raise UnsaturatedGates
    middle = part.low + _CUTS[part.cut] * (part.high - part.low)
    y = yield from circle.measure(middle)
    left = circle.belongs(pieces, part.left, middle, y)
    turned = np.where(part.sign < 0, -y, y)
    right = ~left & circle.belongs(pieces, part.right, middle, turned)
    pieces.extended(part.left[left], middle[left], y[left])
    at = np.where(part.sign < 0, middle - np.pi, middle)
    pieces.extended(part.right[right], at[right], y[right])
    soft = np.isnan(y)
    new = np.flatnonzero(~left & ~right & ~soft)
    step = np.minimum(_SHARE * (part.high - part.low)[new], circle.step(np.inf))
    near = yield from circle.measure(middle[new] + step)
    soft[new[np.isnan(near)]] = True
    found = np.isfinite(near)
    new = new[found]
    between = pieces.added(middle[new], y[new], near[found], middle[new] + step[found])
    nothing = np.zeros(left.sum() + right.sum() + 2 * len(new))
    parts = (
        np.concatenate([middle[left], part.low[right], part.low[new], middle[new], part.low[soft]]),
        np.concatenate(
            [part.high[left], middle[right], middle[new], part.high[new], part.high[soft]]
        ),
        np.concatenate(
            [part.left[left], part.left[right], part.left[new], between, part.left[soft]]
        ),
        np.concatenate(
            [part.right[left], part.right[right], between, part.right[new], part.right[soft]]
        ),
        np.concatenate(
            [part.sign[left], part.sign[right], np.ones(len(new)), part.sign[new], part.sign[soft]]
        ),
        np.concatenate([nothing, part.cut[soft] + 1]),
    )
    return jumps.joined(~chosen, parts)


def _unclean(jumps: Jumps, tolerance: float) -> Jumps:
    """Leave out intervals with the same piece at both ends."""
    apart = np.zeros(len(jumps), dtype=bool)
    for t in (jumps.low, jumps.high):
        error = jumps.pieces.error(jumps.left, t) + jumps.pieces.error(jumps.right, t)
        apart |= np.abs(jumps.after(t) - jumps.before(t)) > _MATCH * tolerance * error
    return jumps.joined(apart, _none())


def _none() -> tuple[Array, ...]:
    return tuple(np.zeros(0) for _ in range(6))


def _refuse_many(jumps: Jumps, allowed: int, most: int) -> None:
    if len(jumps) > allowed:
        raise TooMany(
            f"Along half a circle the answers change more than {most} times: the target has more "
            "heads (raise max_heads), or W so small that the longest offsets asked do not switch "
            "a head, or is no sum of attention heads."
        )
