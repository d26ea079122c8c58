"""Solve (𝒜𝒜ᵀ + D) y = c for rank-one measurements 𝒜 and a diagonal D ≥ 0.

𝒜𝒜ᵀ = G, G_kl = (a_k·a_l)(b_k·b_l), is m×m. While that is small its inverse is kept; above it,
conjugate gradients from the last solution on need products with 𝒜 and 𝒜ᵀ alone: m×d numbers. For
vectors of norm 1 and m well below d² the eigenvalues of G lie around 1 (between 0.4 and 1.9 for
m = d²/7), so that few products do; near d² more, yet as many steps (tried to 0.98 d²).

Measured (one core): d = 384, m = 19,776: a product with G 0.4 s, three to a tenth of what was left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.probes import Array
from unsoftmax.solve.rank_one_measurements import Measurements


@dataclass(frozen=True, slots=True)
class GramTuning:
    """When G is inverted, and how it is solved with where it is not."""

    dense: int = 2048
    """Measurements up to which G is inverted: 34 MB, half a second. Where W is found after twenty
    steps the other way is as fast from 1,700 on, but where it is not there are hundreds."""
    shrink: float = 0.1
    """By how much conjugate gradients reduce what is left. Smaller costs products and saves no
    step of the splitting, which goes on from there."""
    exactly: float = 1e-12
    """The same where the solution itself is wanted."""
    iterations: int = 200
    """Products at most."""


@dataclass(frozen=True, slots=True)
class GramSystem:
    """(G + D), inverted or not."""

    measured: Measurements
    ridge: Array
    """D's diagonal."""
    inverse: Array | None
    """None where conjugate gradients solve."""
    tuning: GramTuning

    @classmethod
    def of(cls, measured: Measurements, ridge: Array, tuning: GramTuning) -> GramSystem:
        """Invert, where that is cheaper."""
        if len(measured) > tuning.dense:
            return cls(measured, ridge, None, tuning)
        inverse = np.asarray(np.linalg.inv(measured.gram() + np.diag(ridge)), np.float64)
        return cls(measured, ridge, inverse, tuning)

    @property
    def exact(self) -> bool:
        """Whether solutions are exact, whatever they start from."""
        return self.inverse is not None

    def solve(self, c: Array, y: Array, back: Array, exactly: bool = False) -> tuple[Array, Array]:
        """Return the solution and its 𝒜ᵀ(y), or come nearer to it from y, whose 𝒜ᵀ(y) is ``back``.

        Parameters
        ----------
        c : ndarray (m,)
            The right-hand side.
        y, back : ndarray (m,), ndarray (d, d)
            Where conjugate gradients start.
        exactly : bool
            Whether they end only at the solution itself.
        """
        if self.inverse is not None:
            y = self.inverse @ c
            return y, self.measured.adjoint(y)
        left = c - self.measured.of(back) - self.ridge * y
        shrink = self.tuning.exactly if exactly else self.tuning.shrink
        along, square = np.zeros_like(left), np.inf
        # rows of 𝒜 have norm 1, so that 1 + D is G + D's diagonal: the preconditioner
        scale = 1 / (1 + self.ridge)
        beside = c if exactly else left
        wanted = shrink**2 * float(beside @ (scale * beside))
        for _ in range(self.tuning.iterations):
            before, square = square, float(left @ (scale * left))
            if square <= wanted:
                break
            along = scale * left + (square / before) * along
            image = self.measured.adjoint(along)
            length = square / float(np.sum(image**2) + along @ (self.ridge * along))
            y, back = y + length * along, back + length * image
            left = left - length * (self.measured.of(image) + self.ridge * along)
        return y, back
