"""Every neuron read once more where only directions are known: four queries for each.

As in `hyperplane_spots`, along ways n from a point p beside k hyperplanes; but an answer is known
but for a factor. Three of them on one side, p, p + n/2 and p + n, tell that piece, two on the other
side a plane that it crosses. The line where both planes meet is the value on the hyperplane: which
place that is, and what both pieces' factors are, follows (4k + 1 queries for k neurons).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from unsoftmax.learners.feed_forward.hyperplane_spots import HyperplaneSpots, Spots
from unsoftmax.learners.feed_forward.line_cells import rounded_tokens
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers


@dataclass(frozen=True, slots=True)
class DirectionSpots(HyperplaneSpots):
    """A reading of all neurons beside the line, of directions (n, m) of norm 1."""

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
        return Spots(
            across.bend,
            off,
            ways,
            points,
            (tokens, answers),
            points + across.place[:, None] * ways,
        )


@dataclass(frozen=True, slots=True)
class CrossedPieces:
    """Two pieces on either side of a hyperplane, from directions at 0, ½, 1, −½ and −1."""

    place: Array
    """Where they meet."""
    bend: Array
    """How much the slope changes there (n, m), the direction at ½ having the size 1."""
    angle: Array
    """What the first piece turns by between 0 and 1; or the other between its two."""

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
        return cls(place, slope - before, np.minimum(turn, other))


def _dot(a: Array, b: Array) -> Array:
    return np.asarray(np.sum(a * b, axis=1))


def _across(w: Array, base: Array) -> tuple[Array, Array]:
    """Return the unit vector of w across base, and how far w goes along it."""
    difference = w - base
    e = difference - _dot(difference, base)[:, None] * base
    size = np.linalg.norm(e, axis=1)
    size = np.where(size > 0, size, 1.0)
    return e / size[:, None], np.asarray(size)
