"""The cells that kinks cut a circle into: F's line in each along the circle, and its gradient.

F is linear in a cell, so two answers give its line along the circle, F and its slope at the
midpoint m_i. At a kink θ_k the slope jumps by α_k, and the gradient by J_k: a neuron.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.arrangement.circle import Circle
from unsoftmax.probes import Array, Flags


@dataclass(frozen=True, slots=True)
class CellLines:
    """The kinks that cut a circle, and F's line in each cell between them."""

    theta: Array
    """Kinks, (K,)."""
    middle: Array
    """Midpoints of the cells' two answers, (K + 1,)."""
    width: Array
    """Twice the distance from each midpoint to the nearer end of its cell."""
    value: Array
    """F at the midpoints."""
    tangent: Array
    """Its slope along the circle there."""
    length: Array
    """Distance of the two answers."""

    @classmethod
    def of(cls, circle: Circle, theta: Array, at: Array, F: Array) -> CellLines:
        """Read lines from answers F (2, K + 1) at angles ``at`` (2, K + 1)."""
        ends = np.concatenate([[circle.low], theta, [circle.high]])
        middle, h = (at[0] + at[1]) / 2, at[1] - at[0]
        # at the midpoint, from both ends at once
        value = (F[0] + F[1]) / (2 * np.cos(h / 2))
        tangent = (F[1] - F[0]) / (2 * np.sin(h / 2))
        width = 2 * np.minimum(middle - ends[:-1], ends[1:] - middle)
        return cls(theta, middle, width, value, tangent, h)

    @property
    def bends(self) -> Array:
        """Jumps α_k of the slope at the kinks, (K,)."""
        theta, m, value, tangent = self.theta, self.middle, self.value, self.tangent
        after = -value[1:] * np.sin(theta - m[1:]) + tangent[1:] * np.cos(theta - m[1:])
        before = -value[:-1] * np.sin(theta - m[:-1]) + tangent[:-1] * np.cos(theta - m[:-1])
        return np.asarray(after - before)

    def significance(self, deviation: float) -> Array:
        """Return how many deviations each kink's jump of the slope is, (K,)."""
        own = (deviation + np.spacing(self.middle) * np.abs(self.tangent)) / self.length
        return np.asarray(np.abs(self.bends) / (own[:-1] + own[1:]))


@dataclass(frozen=True, slots=True)
class CellGradients:
    """The gradient of F in each cell of a circle."""

    middle: Array
    gradient: Array
    """(K + 1, D)."""
    error: Array
    """Standard deviation of each entry of a cell's gradient, (K + 1,)."""
    rising: Array
    """±1: the sign of the slope's jump between two cells, (K,)."""

    @property
    def jumps(self) -> Array:
        """Jumps J_k of the gradient, (K, D)."""
        return np.diff(self.gradient, axis=0)

    @property
    def jump_error(self) -> Array:
        """Standard deviation of a jump, in the 2-norm."""
        D = self.gradient.shape[1]
        return np.asarray(np.sqrt(D * (self.error[:-1] ** 2 + self.error[1:] ** 2)))

    def without(self, kinks: Flags) -> CellGradients:
        """Leave out kinks: of cells that are one then, the most accurate speaks for all."""
        cell = np.concatenate([[0], np.cumsum(~kinks)])
        best = np.lexsort((self.error, cell))
        first = best[np.unique(cell[best], return_index=True)[1]]
        return CellGradients(
            self.middle[first], self.gradient[first], self.error[first], self.rising[~kinks]
        )
