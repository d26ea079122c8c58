"""Two tokens, [(a+b); b], in the form in which every jump counts once.

    F([(a+b); b]) = c + b·s + ½ a·s + ½ Σ_h (v_h·a) tanh(a·u_h / 2),   s = Σ v_h, u_h = W_h b + w_h

The form does not change under (v_h, u_h) → (−v_h, −u_h), so heads are found up to that sign;
heads W and −W are one v_h here (the difference of theirs), heads W = 0 none.
`learners.multi.orientation` tells them apart.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.multi_head.reach import Reach
from unsoftmax.probes import Array, Pairs, Purpose, Round
from unsoftmax.protocol import Answers

Mask: TypeAlias = NDArray[np.bool_]


class Coincident(Exception):
    """Jumps that no half circle tells apart, or that cannot be read: start again elsewhere."""


class Unsaturated(Coincident):
    """Gates that are no steps at the longest tokens that may be asked, or overlap there."""


class OpenStart(Unsaturated):
    """A gate that is no step where a half circle begins: four queries are lost."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What single tokens tell: f([x]) = x·s + c, and how precise answers are."""

    s: Array
    c: float
    eta: float
    """Relative precision of answers: of the size of their terms, not of their sum."""
    absolute: float
    """What an answer may be off by however small it is."""
    scale: float
    """Size of the values: answers to tokens of norm T are about ``scale``·T large."""
    why: tuple[str, ...]
    """What was noticed of the answers, in sentences."""
    reach: Reach

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return len(self.s)

    def reduced(self, y: Array, a: Array, b: Array) -> Array:
        """Turn answers to [(a+b); b] into Σ_h (v_h·a) tanh(a·u_h / 2)."""
        return np.asarray(2 * (y - self.c - b @ self.s) - a @ self.s)

    def error(self, T: float, length: float) -> float:
        """Return the error of a reduced answer in units of ``scale``·T, T and length of a and b."""
        beside = length + abs(self.c) / self.scale
        return float(self.eta * (1 + beside / T) + self.absolute / (self.scale * T))

    def ask(
        self, a: Array, b: Array, phase: str, purpose: Purpose = "data"
    ) -> Generator[Round, Answers, Array]:
        """Ask offsets a (n, d) of one query token b (d,); return the reduced answers."""
        if not len(a):
            return np.zeros(0)
        if not np.all(np.isfinite(a)):  # an estimate went astray
            raise Coincident
        a = self.reach.turned(a, b)
        n = np.arange(len(a))
        ones = np.ones(len(a))
        probes = Pairs(a, b[None], n, 0 * n, ones, ones, phase=phase, purpose=purpose)
        [y] = yield [probes]
        return self.reduced(y, a, b)


def answers_of(v: Array, u: Array, a: Array) -> Array:
    """Return Σ_h (v_h·a) tanh(a·u_h / 2) for v, u (H, d) and offsets a (n, d)."""
    return np.asarray(np.sum((a @ v.T) * np.tanh((a @ u.T) / 2), axis=1))
