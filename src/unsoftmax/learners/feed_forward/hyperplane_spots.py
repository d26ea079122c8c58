"""Every neuron read once more, where its hyperplane is far from all others: two queries for each.

A point p on k hyperplanes, z_i(p) = o for i ≤ k, and k directions n_i with a_i·n_i = 1 and
a_j·n_i = 0 for the other j ≤ k: along n_i neuron i alone bends, up to the next hyperplane, and

    F(p + R n_i) + F(p − R n_i) − 2 F(p) = b_i (R − |z_i(p)|),        2k + 1 queries for k neurons.

Of the neurons along a line the neighbours are 1/m of the line away; here p is chosen out of many
and n_i goes straight across, which gives b_i √d·10 times as precisely. With a_i of the right
length, which the cells give once the b_i are right, its size gives z_i(p), and so the bias.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.learners.feed_forward.line_cells import AskTokens, rounded_tokens
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Flags, Indices, Round
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason

# Hyperplanes that meet at a point, d/2 at most. More: a little fewer queries, less room.
GROUP = 32
# Points that the best is chosen from.
TRIED = 48
# The point is off its hyperplanes by this share of the way: on which side it is stays sure.
OFF = 0.03
# Lengths of the points, in length scales.
REACH = (0.3, 1.0, 3.0)
# Where tokens have a longest length, points are no longer than this share of it.
WITHIN = 0.8
# Directions on two pieces are off their planes by up to three errors; where another hyperplane is
# among them, by 10⁶ and more.
OFF_PLANES = 30.0
# A hyperplane is crossed before this share of the way behind a point, where the next answer is: if
# it is not, pieces seem to meet there. What bends by no more than this many errors may be none.
BEHIND, BENT = -0.49, 1e3


def put(mine: Array, which: Indices, its: Array) -> Array:
    """Return an array with others in the place of some rows."""
    new = mine.copy()
    new[which] = its
    return new


@dataclass(frozen=True, slots=True)
class Spots:
    """Second differences across single hyperplanes."""

    bends: Array
    """(m, d_out): b_i (R − z_i)."""
    error: Array
    """(m,): 2-norms."""
    ways: Array
    """R n_i (m, d)."""
    points: Array
    """p (m, d)."""
    asked: tuple[Array, Array]
    """All tokens, and their answers."""
    crossed: Array | None = None
    """Where hyperplanes were crossed (m, d); None where the sizes of the bends tell it."""
    astray: Flags | None = None
    """Which answers are on no two pieces (m,): another hyperplane is among them, or none. None
    where answers do not tell."""

    @property
    def columns(self) -> tuple[Array, Array]:
        """Return the directions of the b_i, and what they are off by."""
        size = np.linalg.norm(self.bends, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.bends / size[:, None], self.error / size

    def replaced(self, which: Flags, bends: Array, error: Array) -> Spots:
        """Put others in the place of some."""
        return replace(
            self,
            bends=np.where(which[:, None], bends, self.bends),
            error=np.where(which, error, self.error),
        )

    def crossed_again(self, which: Indices, more: Spots) -> Spots:
        """Put crossings of some in the place of theirs; keep all that was asked."""
        tokens, answers = (np.vstack(pair) for pair in zip(self.asked, more.asked, strict=True))
        crossed, astray = self.crossed, self.astray
        if crossed is not None and more.crossed is not None:
            crossed = put(crossed, which, more.crossed)
        if astray is not None and more.astray is not None:
            astray = astray.copy()
            astray[which] = more.astray
        return Spots(
            put(self.bends, which, more.bends),
            put(self.error, which, more.error),
            put(self.ways, which, more.ways),
            put(self.points, which, more.points),
            (tokens, answers),
            crossed,
            astray,
        )

    def biases(self, rows: Array) -> Array:
        """Return the biases of neurons whose rows are known, b_i of norm 1."""
        if self.crossed is not None:
            return -np.asarray(np.sum(rows * self.crossed, axis=1))
        z = np.sum(rows * self.ways, axis=1) - np.linalg.norm(self.bends, axis=1)
        return np.asarray(z - np.sum(rows * self.points, axis=1))


@dataclass(frozen=True, slots=True)
class HyperplaneSpots:
    """A reading of all neurons beside the line."""

    ask: AskTokens
    rows: Array
    """a_j (m, d)."""
    bias: Array
    length: float
    error_at: Callable[[Array], Array]
    """Errors of answers to tokens (n, d), 2-norms."""
    rng: np.random.Generator
    radius: float = np.inf
    """No token is as long."""
    only: Indices | None = None
    """Which are read; all of them if None."""
    room: float = 0.7
    """Share of the way to the next hyperplane that is gone."""

    def run(self) -> Generator[Round, Answers, Spots]:
        """Ask.

        There must be a neuron.
        """
        points, ways, middles, of = self._places()
        tokens = np.vstack([middles, points + ways, points - ways])
        answers = yield from self.ask(tokens)
        at, ahead, behind = np.split(answers, np.cumsum([len(middles), len(points)]))
        lengths = np.linalg.norm(tokens, axis=1)
        error = np.hypot(self.error_at(tokens), rounded_tokens(self.rows, lengths))
        middle, *sides = np.split(error, np.cumsum([len(middles), len(points)]))
        total = np.sqrt(4 * middle[of] ** 2 + sides[0] ** 2 + sides[1] ** 2)
        return Spots(ahead + behind - 2 * at[of], total, ways, points, (tokens, answers))

    def _places(self) -> tuple[Array, Array, Array, Indices]:
        """Return points and ways (m, d), the points of all groups, and each neuron's group."""
        groups: list[Indices] = []
        left = self._groups()[::-1]
        points, ways = np.zeros_like(self.rows), np.zeros_like(self.rows)
        of = np.zeros(len(points), dtype=np.intp)
        while left:
            group = left.pop()
            spot = self._spot(group)
            if spot is None:
                # all of these hyperplanes meet too far out
                half = (len(group) + 1) // 2
                left += [group[half:], group[:half]]
                continue
            points[group], ways[group] = spot
            of[group] = len(groups)
            groups.append(group)
        middles = points[[group[0] for group in groups]]
        if self.only is None:
            return points, ways, middles, of
        return points[self.only], ways[self.only], middles, of[self.only]

    def _groups(self) -> list[Indices]:
        """Divide neurons into groups that meet at a point."""
        m, d = self.rows.shape
        size = max(1, min(GROUP, d // 2))
        order = self.rng.permutation(np.arange(m) if self.only is None else self.only)
        return [order[k : k + size] for k in range(0, len(order), size)]

    def _spot(self, group: Indices) -> tuple[Array, Array] | None:
        """Return a point beside the group's hyperplanes, and the ways R n_i (k, d) from it.

        None if only longer tokens are on all of these, or one of them has no normal.
        """
        d = self.rows.shape[1]
        across = np.asarray(np.linalg.pinv(self.rows[group]).T, dtype=np.float64)
        if not np.all(np.any(across, axis=1)):
            if len(group) == 1:
                raise Reason.NO_NUMBERS.error(error="the normal of a hyperplane is 0")
            return None
        tried = np.asarray(self.rng.standard_normal((TRIED, d)) / np.sqrt(d))
        tried *= self.length * np.resize(REACH, len(tried))[:, None]
        tried -= (tried @ self.rows[group].T + self.bias[group]) @ across
        room: Array | float = np.inf
        if np.isfinite(self.radius):
            moved = self._within(tried, across, group)
            if moved is None:
                return None
            tried, room = moved, self._room(moved, across)
        others = np.delete(np.arange(len(self.rows)), group)
        z = np.abs(tried @ self.rows[others].T + self.bias[others])
        turn = np.abs(self.rows[others] @ across.T)
        # a way along a hyperplane never meets it, even from one on it
        with np.errstate(divide="ignore", invalid="ignore"):
            meets = (np.where(turn > 0, one[:, None] / turn, np.inf) for one in z)
            way = np.array([np.min(one, axis=0, initial=np.inf) for one in meets])
        size = self.length + np.linalg.norm(tried, axis=1)
        usual = size[:, None] / np.linalg.norm(across, axis=1)
        way = np.minimum(np.minimum(way, usual), room)
        best = int(np.argmax(np.min(way / usual, axis=1)))
        R = self.room * way[best]
        return tried[best] + (OFF * R) @ across, R[:, None] * across

    def _within(self, tried: Array, across: Array, group: Indices) -> Array | None:
        """Move points along the group's hyperplanes to where there is room around them."""
        foot = -(self.bias[group] @ across)
        most = WITHIN * self.radius
        if len(group) > 1 and np.linalg.norm(foot) > most:
            return None
        beside = tried - foot
        left = np.sqrt(max(0.0, most**2 - float(foot @ foot)))
        size = np.linalg.norm(beside, axis=1, keepdims=True)
        return np.asarray(foot + beside * np.minimum(1.0, left / np.maximum(size, TINY)))

    def _room(self, tried: Array, across: Array) -> Array:
        """Return how far points (n, d) may go along n_i, both ways, until tokens are too long."""
        along = np.abs(tried @ across.T)
        square = np.sum(across**2, axis=1)
        left = np.maximum(self.radius**2 - np.sum(tried**2, axis=1), 0.0)[:, None]
        return np.asarray((np.sqrt(along**2 + square * left) - along) / square)


@dataclass(frozen=True, slots=True)
class DirectionSpots(HyperplaneSpots):
    """A reading of all neurons beside the line, of directions (n, m) of norm 1: four queries each.

    An answer is known but for a factor. Three of them on one side, p, p + n/2 and p + n, tell that
    piece, two on the other side a plane that it crosses. The line where both planes meet is the
    value on the hyperplane: which place that is, and what both pieces' factors are, follows
    (4k + 1 queries for k neurons).
    """

    systematic: float = field(default=0.0, kw_only=True)
    """What directions are off by together, beside ``error_at``: bends are off by this share."""

    def run(self) -> Generator[Round, Answers, Spots]:
        """Ask.

        There must be a neuron.
        """
        points, ways, middles, of = self._places()
        shares = (0.5, 1.0, -0.5, -1.0)
        tokens = np.vstack([middles, *(points + share * ways for share in shares)])
        answers = yield from self.ask(tokens)
        at, *others = np.split(answers, np.cumsum([len(middles)] + 3 * [len(points)]))
        # of another target pieces may meet anywhere: its bends come out infinite, or as no number
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            across = CrossedPieces.of(at[of], *others)
        length = np.linalg.norm(points, axis=1) + np.linalg.norm(ways, axis=1)
        # what rounding of tokens does, in the unit of the values that it turns
        size = np.linalg.norm(across.bend, axis=1) / np.linalg.norm(ways, axis=1)
        own = self.error_at(tokens[:1])[0] + size * rounded_tokens(self.rows, length)
        off = 4 * own * (1 + 1 / across.angle)
        off += 4 * self.systematic * np.linalg.norm(across.bend, axis=1)
        one = (across.place > BEHIND) & (across.place < 0)
        one &= across.missed <= OFF_PLANES * (own + self.systematic)
        # of bends that are no numbers, too
        astray = ~(one & (BENT * off < np.linalg.norm(across.bend, axis=1)))
        crossed = points + across.place[:, None] * ways
        return Spots(across.bend, off, ways, points, (tokens, answers), crossed, astray)


@dataclass(frozen=True, slots=True)
class CrossedPieces:
    """Two pieces on either side of a hyperplane, from directions at 0, ½, 1, −½ and −1."""

    place: Array
    """Where they meet."""
    bend: Array
    """How much the slope changes there (n, m), the direction at ½ having the size 1."""
    angle: Array
    """What the first piece turns by between 0 and 1; or the other between its two."""
    missed: Array
    """How far directions are from being on two pieces that meet."""

    @classmethod
    def of(cls, w0: Array, w1: Array, w2: Array, w3: Array, w4: Array) -> CrossedPieces:
        """Read them off (n, m) each, of norm 1."""
        e2, turn = _across(w2, w0)
        e4, other = _across(w4, w3)
        # w₁ = (first w₀ + last w₂)/2
        last = 2 * _dot(w1, e2) / turn
        first = 2 * _dot(w1, w0) - last * _dot(w2, w0)
        # v = w₃ + s e₄ is in the plane of w₀ and e₂
        out3, out4 = (w - _dot(w, w0)[:, None] * w0 for w in (w3, e4))
        out3, out4 = (w - _dot(w, e2)[:, None] * e2 for w in (out3, out4))
        s = -_dot(out3, out4) / _dot(out4, out4)
        v = w3 + s[:, None] * e4
        apart = np.linalg.norm(out3 + s[:, None] * out4, axis=1) / (1 + np.abs(s))
        out1 = w1 - _dot(w1, w0)[:, None] * w0
        aside = np.linalg.norm(out1 - _dot(out1, e2)[:, None] * e2, axis=1)
        # v = x₀ w₀ + x₂ w₂ = x₃ w₃ + x₄ w₄
        x2, x4 = _dot(v, e2) / turn, s / other
        x0, x3 = _dot(v, w0) - x2 * _dot(w2, w0), 1 - x4 * _dot(w4, w3)
        ahead, behind = x2 / last, x0 / first
        place = ahead / (ahead + behind)
        size = 1 / (ahead + behind)
        third = size * x3 / (2 * (place + 1))
        fourth = -size * x4 / (2 * place + 1)
        slope = last[:, None] * w2 - first[:, None] * w0
        before = 2 * (third[:, None] * w3 - fourth[:, None] * w4)
        return cls(place, slope - before, np.minimum(turn, other), np.maximum(apart, aside))


def _dot(a: Array, b: Array) -> Array:
    return np.asarray(np.sum(a * b, axis=1))


def _across(w: Array, base: Array) -> tuple[Array, Array]:
    """Return the unit vector of w across base, and how far w goes along it."""
    difference = w - base
    e = difference - _dot(difference, base)[:, None] * base
    size = np.linalg.norm(e, axis=1)
    size = np.where(size > 0, size, 1.0)
    return e / size[:, None], np.asarray(size)
