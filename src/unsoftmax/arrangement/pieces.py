"""Pieces of a function along a great circle: sinusoids, each read from two values.

A function that is linear and homogeneous between hyperplanes through 0 is, on
X(θ) = cosθ·P + sinθ·Q and between two breakpoints, one sinusoid

    g(θ) = y·cos(θ − t) + k·sin(θ − t).

It is kept relative to a base point t near by: coefficients of cosθ and sinθ would lose a factor
roundoff/baseline. y is the value at t; the slope k comes from a second value at the distance
*baseline* from t, so at θ the error of a value counts |sin(θ − t)|/baseline times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.probes import Array, Indices


@dataclass(slots=True)
class Pieces:
    """A table of pieces, which grows; a piece is named by its row.

    Rows may be shared by intervals: what one learns of a piece the others know too.
    """

    table: Array
    """Base points t, values y and slopes k there, and baselines: (4, n). A baseline is infinite
    where a slope means nothing yet."""

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

    def reread(self, which: Indices, near: Array, turn: Array) -> None:
        """Read slopes anew from values ``near`` at the base point plus ``turn``."""
        self.k[which] = slope(self.y[which], near, turn)
        self.baseline[which] = np.abs(turn)

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
