"""What bisection looks for: the ratios of v's entries, and a logit for every pair of tokens.

Each unknown is an interval that holds the one flip of its label, with the probes that halve it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.single_head.labels.probes import Contrasts
from unsoftmax.measure import offsets, thresholds
from unsoftmax.measure.offsets import Offsets
from unsoftmax.probes import Array, Indices, Pairs, Purpose

RANGE = 4.0
"""Logits are bisected on [−4, 4]: further out σ' is small and rounding moves the flip."""


@dataclass(slots=True)
class Brackets:
    """Intervals that each hold one flip, halved by labels."""

    low: Array
    high: Array

    @classmethod
    def of(cls, count: int, low: float, high: float) -> Brackets:
        """Start ``count`` intervals alike."""
        return cls(np.full(count, low), np.full(count, high))

    @property
    def middle(self) -> Array:
        """Where to ask next."""
        return (self.low + self.high) / 2

    def narrow(self, index: Indices, above: NDArray[np.bool_]) -> None:
        """Keep the half that the labels name: the flip is above the middle, or below."""
        middle = self.middle[index]
        self.low[index] = np.where(above, middle, self.low[index])
        self.high[index] = np.where(above, self.high[index], middle)


@dataclass(frozen=True, slots=True)
class Ratios:
    """The unknowns r_i = |v_i|/|v_p|."""

    signs: Array
    top: int
    brackets: Brackets
    others: Indices
    """All entries but p, as ordered in the brackets."""

    def ask(self, rho: Array, purpose: Purpose, phase: str = "v") -> Contrasts:
        """Ask whether every r_i is above ρ_i."""
        top = np.full(len(self.others), self.top)
        return Contrasts(self.signs, self.others, top, rho, phase=phase, purpose=purpose)

    def value(self) -> Array:
        """Return v with v_p = ±1; entries that no bit has set are 0."""
        ratios = np.ones(len(self.signs))
        found = np.where(self.brackets.low > 0, self.brackets.middle, 0.0)
        ratios[self.others] = found
        return self.signs * ratios


@dataclass(slots=True)
class Entries:
    """The unknowns t = −s a_i·(W b_j), all pairs, ordered by query token and then by offset."""

    a: Offsets
    b: Offsets
    a_rows: Array
    b_rows: Array
    ratio: Array
    """(b·v)/(a·v) of the rough v, which places the thresholds."""
    scale: Array
    """s of every entry."""
    brackets: Brackets
    bits: Indices
    starts: Indices

    @classmethod
    def of(cls, v: Array, rng: np.random.Generator) -> Entries:
        """Choose offsets and query tokens."""
        a, b = offsets.balanced(v, rng), offsets.balanced(v, rng)
        n = len(v) ** 2
        nothing, once = np.zeros(n, dtype=np.intp), np.ones(n, dtype=np.intp)
        a_rows, b_rows = a.made(), b.made()
        ratio = np.divide.outer(b_rows @ v, a_rows @ v).ravel()
        brackets = Brackets.of(n, -RANGE, RANGE)
        return cls(a, b, a_rows, b_rows, ratio, np.ones(n), brackets, nothing, once)

    def ask(self, k: Indices, alpha: Array, beta: Array, phase: str, purpose: Purpose) -> Pairs:
        """Ask for entries k with offsets scaled by α and query tokens by −β."""
        j, i = np.divmod(k, len(self.a_rows))
        return Pairs(self.a_rows, self.b_rows, i, j, alpha, -beta, phase=phase, purpose=purpose)

    def scales(self, k: Indices, t: Array, scale: Array) -> tuple[Array, Array]:
        """Return α and β that put the thresholds of entries k at t."""
        return thresholds.scales(t, scale, self.ratio[k])
