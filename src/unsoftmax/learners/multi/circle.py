"""Where half a circle of huge offsets crosses the heads' hyperplanes: five or six queries a head.

At offsets a = T·(cos θ p + sin θ q) with T so large that every gate is a step,

    g(θ) = Σ_h (v_h·a) tanh(a·u_h/2) / T = x·(cos θ, sin θ)

with x constant between jumps: a *piece*. Every hyperplane a·u_h = 0 is crossed once on
[0, π), and g(θ + π) = g(θ), so the last piece is the first one with its sign turned. Intervals
with different pieces at their ends are bisected until each is far from all others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.multi.two_tokens import Mask
from unsoftmax.probes import Array, Indices, Round
from unsoftmax.protocol import Answers

Measure = Callable[[Array], Generator[Round, Answers, Array]]
"""Angles to values g(θ)."""

# A value belongs to a piece if it is within this many times the precision of the answers; sixty
# times lets one in 10¹² of wrong ones pass at η = 4e-16.
_MATCH = 60.0
# An interval is isolated once it is this much narrower than its distance to the next.
_ISOLATED = 5.0
# Baseline of a new piece: short, so that no jump falls between, but not lost in the noise, and at
# most so long or such a share of what is searched.
_BASELINE, _NOISELESS, _LONGEST, _SHARE = 1e-5, 4e-16, 0.1, 0.03
# While intervals are refined, this many more than there can be heads are allowed.
_SLACK = 8
_NARROWEST = 1e-12
_CANCELLED = 16
_ROUNDS = 400


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

    def plane_errors(self) -> Array:
        """Return the errors of `plane_vectors`, in units of one value's: short pieces cost."""
        return np.asarray(
            1 + sum(0.5 / self.pieces.baseline[end] for end in (self.left, self.right))
        )

    def joined(self, keep: Mask, parts: tuple[Array, ...]) -> Jumps:
        """Return the kept intervals with others, in order."""
        columns = (self.low, self.high, self.left, self.right, self.sign)
        low, high, left, right, sign = (
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
        )


def find_jumps(
    measure: Measure, tolerance: float, most: int, start: int, baseline: float
) -> Generator[Round, Answers, Jumps]:
    """Isolate all jumps on the half circle.

    Parameters
    ----------
    measure : callable
        From angles to g; a generator.
    tolerance : float
        Error of one value.
    most : int
        More jumps are refused.
    start : int
        Intervals that the search begins with.
    baseline : float
        Distance of the two values that show the piece at an end of those, where answers are exact.
    """
    step = _step(np.pi / start, tolerance, baseline)
    y = yield from measure(np.array([0.0, step]))
    if np.all(np.abs(y) < _MATCH * tolerance):
        # nothing here may mean that values cancel: the piece at the end would look the same
        start = max(start, _CANCELLED)
    pieces = Pieces(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0))
    pieces.added(np.zeros(1), y[:1], y[1:], np.array([step]))
    first = Jumps(
        pieces, np.zeros(1), np.array([np.pi]), np.zeros(1, int), np.zeros(1, int), -np.ones(1)
    )
    if start > 1:
        grid = np.pi * np.arange(1, start) / start
        y = yield from measure(np.concatenate([grid, grid + step]))
        at = pieces.added(grid, y[: start - 1], y[start - 1 :], grid + step)
        edges = np.concatenate([[0.0], grid, [np.pi]])
        ends = np.concatenate([[0], at, [0]]).astype(np.intp)
        sign = np.append(np.ones(start - 1), -1.0)
        first = Jumps(pieces, edges[:-1], edges[1:], ends[:-1], ends[1:], sign)
    return (yield from isolate(_unclean(first, tolerance), measure, tolerance, most))


def isolate(
    jumps: Jumps, measure: Measure, tolerance: float, most: int
) -> Generator[Round, Answers, Jumps]:
    """Bisect intervals until each is much narrower than its distance to the next."""
    for _ in range(_ROUNDS):
        wide = jumps.high - jumps.low > jumps.gap() / _ISOLATED
        wide &= jumps.high - jumps.low > _NARROWEST
        if not np.any(wide):
            break
        jumps = yield from bisect(jumps, wide, measure, tolerance)
        _refuse_many(jumps, most + _SLACK, most)
    _refuse_many(jumps, most, most)
    return jumps


def bisect(
    jumps: Jumps, chosen: Mask, measure: Measure, tolerance: float
) -> Generator[Round, Answers, Jumps]:
    """Halve the chosen intervals; those with another piece in the middle become two."""
    pieces = jumps.pieces
    part = jumps.joined(chosen, _none())
    middle = (part.low + part.high) / 2
    y = yield from measure(middle)
    left = _belongs(pieces, part.left, middle, y, tolerance)
    turned = np.where(part.sign < 0, -y, y)
    right = ~left & _belongs(pieces, part.right, middle, turned, tolerance)
    pieces.extended(part.left[left], middle[left], y[left])
    at = np.where(part.sign < 0, middle - np.pi, middle)
    pieces.extended(part.right[right], at[right], y[right])
    new = ~left & ~right
    step = np.minimum(_SHARE * (part.high - part.low), _step(np.inf, tolerance))[new]
    near = yield from measure(middle[new] + step)
    between = pieces.added(middle[new], y[new], near, middle[new] + step)
    parts = (
        np.concatenate([middle[left], part.low[right], part.low[new], middle[new]]),
        np.concatenate([part.high[left], middle[right], middle[new], part.high[new]]),
        np.concatenate([part.left[left], part.left[right], part.left[new], between]),
        np.concatenate([part.right[left], part.right[right], between, part.right[new]]),
        np.concatenate([part.sign[left], part.sign[right], np.ones(len(between)), part.sign[new]]),
    )
    return jumps.joined(~chosen, parts)


def _step(most: float, tolerance: float, baseline: float = _BASELINE) -> float:
    noisy = max(1.0, np.sqrt(tolerance / _NOISELESS))
    return float(min(_SHARE * most, noisy * baseline, _LONGEST))


def _belongs(pieces: Pieces, which: Indices, t: Array, y: Array, tolerance: float) -> Mask:
    allowed = _MATCH * tolerance * pieces.error(which, t)
    return np.asarray(np.abs(y - pieces.at(which, t)) < allowed)


def _unclean(jumps: Jumps, tolerance: float) -> Jumps:
    """Leave out intervals with the same piece at both ends."""
    apart = np.zeros(len(jumps), dtype=bool)
    for t in (jumps.low, jumps.high):
        error = jumps.pieces.error(jumps.left, t) + jumps.pieces.error(jumps.right, t)
        apart |= np.abs(jumps.after(t) - jumps.before(t)) > _MATCH * tolerance * error
    return jumps.joined(apart, _none())


def _none() -> tuple[Array, ...]:
    return tuple(np.zeros(0) for _ in range(5))


def _refuse_many(jumps: Jumps, allowed: int, most: int) -> None:
    if len(jumps) > allowed:
        raise ModelMismatch(
            f"Along half a circle the answers change more than {most} times: the target has more "
            "heads (raise max_heads), or W so small that the longest offsets asked do not switch "
            "a head, or is no sum of attention heads."
        )
