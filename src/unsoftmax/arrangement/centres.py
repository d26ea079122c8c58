"""Analytic centres of cells, and how far one may step from there.

A cell is where s_j n_j·y > 0 for all of K hyperplanes n_j (K, D, of norm 1), with sides s_j = ±1;
with biases h > 0 as well, h being the last coordinate. A cell that is thin on a circle is usually
wide elsewhere: at the maximum of Σ_j log(s_j n_j·y) − K/2·‖y‖², found by Newton steps from a point
inside. Nothing is asked here.
"""

from dataclasses import dataclass

import numpy as np

from unsoftmax.measure.reflections import mirrors
from unsoftmax.probes import Array

# Centres need not be exact: steps from there go half of the way only. Limit on the number of Newton
# steps, which end when the squared Newton decrement of all cells is below `DECREMENT`.
NEWTON = 25
DECREMENT = 1e-2
# Bisections of the line search along each step, and its limit, in Newton steps.
BISECTIONS = 12
FARTHEST = 1e3
# The line search stops short of the nearest hyperplane by this share of the way.
SHORT = 1e-6
# Multiple of its trace that is added to the Hessian: hyperplanes at a distance of 1e-8 dominate it
# to the last bit, and it would be singular.
RIDGE = 1e-15
# Length of a step from a centre, as a share of the way to the next hyperplane; the longest from a
# centre, whose norm is 1.
WAY, LONGEST = 0.5, 0.7
# Bound on the numbers held by the Newton steps: 32 MB.
NUMBERS_AT_ONCE = 2**22


@dataclass(frozen=True, slots=True)
class CellShapes:
    """The hyperplanes that bound cells."""

    n: Array
    """Normals, (K, D), of norm 1."""
    upright: bool
    """Whether cells are also bounded by h > 0."""

    def centres(self, start: Array) -> Array:
        """Return the centres, of norm 1, of the cells that the points ``start`` (n, D) are in."""
        K, D = self.n.shape
        y = start.copy()
        chunk = max(1, NUMBERS_AT_ONCE // max(1, K * D))
        for first in range(0, len(y), chunk):
            part = slice(first, first + chunk)
            y[part] = self._newton(y[part])
        return y

    def _newton(self, y: Array) -> Array:
        weight = max(len(self.n), 1)
        for _ in range(NEWTON):
            gradient, hessian = self._derivatives(y, weight)
            towards = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
            direction = np.asarray(-towards, dtype=np.float64)
            y = y + self._line_search(y, direction, weight)[:, None] * direction
            if np.all(-np.sum(gradient * direction, axis=1) < DECREMENT):
                break
        return np.asarray(y / np.linalg.norm(y, axis=1, keepdims=True))

    def _derivatives(self, y: Array, weight: float) -> tuple[Array, Array]:
        """Return gradients (n, D) and Hessians (n, D, D) of what is minimised."""
        n, D = self.n, self.n.shape[1]
        inverse = 1 / (y @ n.T)  # of s·(s n·y): the sign cancels in what follows
        gradient = weight * y - inverse @ n
        hessian = np.matmul(n.T * inverse[:, None, :] ** 2, n)
        diagonal = np.arange(D)
        hessian[:, diagonal, diagonal] += weight
        if self.upright:
            gradient[:, -1] -= 1 / y[:, -1]
            hessian[:, -1, -1] += y[:, -1] ** -2.0
        trace = np.trace(hessian, axis1=1, axis2=2)
        hessian[:, diagonal, diagonal] += RIDGE * trace[:, None]
        return gradient, hessian

    def _line_search(self, y: Array, direction: Array, weight: float) -> Array:
        """Return how far to go along each direction: damped steps are too short in thin cells."""
        room, speed = y @ self.n.T, direction @ self.n.T
        if self.upright:
            room = np.column_stack([room, y[:, -1]])
            speed = np.column_stack([speed, direction[:, -1]])
        rate = speed / room  # a hyperplane is met at t = −1/rate
        fastest = np.maximum(np.max(-rate, axis=1, initial=0.0), 1 / FARTHEST)
        along, square = np.sum(y * direction, axis=1), np.sum(direction**2, axis=1)
        low, high = np.zeros(len(y)), (1 - SHORT) * (1 / fastest)
        for _ in range(BISECTIONS):
            t = (low + high) / 2
            rising = weight * (along + t * square) > np.sum(rate / (1 + t[:, None] * rate), axis=1)
            low, high = np.where(rising, low, t), np.where(rising, t, high)
        return np.asarray((low + high) / 2)

    def steps(self, sides: Array, y: Array) -> Array:
        """Return signed steps from points y in the D − 1 directions orthogonal to them.

        (n, D − 1): part of the way to the next hyperplane, forwards or backwards, where it is
        farther. ``sides`` (n, K) are the cells' s_j.
        """
        n = self.n
        if self.upright:
            n = np.vstack([n, np.eye(n.shape[1])[-1]])
            sides = np.column_stack([sides, np.ones(len(sides))])
        u = mirrors(y)
        steps = np.empty((len(y), n.shape[1] - 1))
        for i in range(len(y)):  # cells are few, and each needs (K, D) numbers
            room = sides[i] * (n @ y[i])
            speed = sides[i][:, None] * (n[:, 1:] - np.outer(n @ u[i], u[i, 1:]))
            with np.errstate(divide="ignore"):
                rate = speed / room[:, None]
                ahead = 1 / np.maximum(0, np.max(-rate, axis=0, initial=0.0))
                behind = 1 / np.maximum(0, np.max(rate, axis=0, initial=0.0))
            steps[i] = np.where(
                ahead >= behind,
                np.minimum(WAY * ahead, LONGEST),
                -np.minimum(WAY * behind, LONGEST),
            )
        return steps
