"""What was found, refined by all answers already paid for: Gauss–Newton with a matrix never formed.

Steps of a learner read each number from few answers. All answers together say more: with f the
answers as a function of what was found, J its derivative and r what answers miss f by, over their
noise, one step is the x that makes ‖r − J x‖ least. It is computed by conjugate gradients on the
normal equations, in coordinates that the problem chooses so that JᵀJ is near the identity; few
iterations then take most of what the noise leaves, and directions that no answer sees (factors of
a product, for example) do not move. A step that does not lower ‖r‖ is shortened, or not taken:
the result is never worse, by the answers, than the start.

Source: A. Björck, Numerical methods for least squares problems, 7.4 (CGLS) and 9.2.
"""

from __future__ import annotations

from typing import Protocol, Self, TypeVar

import numpy as np

from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array

ITERATIONS = 60
"""Of conjugate gradients in one step. Fewer leave weakly determined directions as they were found;
from here on errors of layers of 4 heads of 16 fall by a third with each doubling."""
STEPS = 3
"""Of Gauss–Newton at most: starts are near, and two take what is to be had."""
FALLEN = 0.5
"""A further step is tried only after one that lowered the misfit at least to this share."""
SHORTENED = (1.0, 0.5, 0.25)
"""Shares of a step that are tried in turn."""
CONVERGED = 1e-10
"""A gradient that is so much smaller than the first is rounding."""


class Misfit(Protocol):
    """What answers miss a model by, and its derivative there."""

    @property
    def residual(self) -> Array:
        """(rows,): what answers miss, over their noise."""

    def forward(self, x: Array, /) -> Array:
        """Return J x, (rows,), for a change x in the problem's coordinates."""

    def back(self, rows: Array, /) -> Array:
        """Return Jᵀ rows, in the same coordinates."""

    def moved(self, x: Array, /) -> Self:
        """Return the problem of the changed model."""


P = TypeVar("P", bound=Misfit)


def refine(start: P, steps: int = STEPS, iterations: int = ITERATIONS) -> P:
    """Return the problem of a model that answers miss by less, or ``start``.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Line:  # y = t² x, seen at x = 1 and 2
    ...     t: Array
    ...     @property
    ...     def residual(self):
    ...         return np.array([4.0, 8.0]) - self.t**2 * np.array([1.0, 2.0])
    ...     def forward(self, x):
    ...         return 2 * self.t * x * np.array([1.0, 2.0])
    ...     def back(self, rows):
    ...         return 2 * self.t * np.array([rows @ [1.0, 2.0]])
    ...     def moved(self, x):
    ...         return Line(self.t + x)
    >>> refine(Line(np.array([2.1]))).t.round(6).tolist()
    [2.0]
    """
    now, missed = start, _square(start.residual)
    for _ in range(steps):
        x = step(now, iterations)
        tried = (now.moved(share * x) for share in SHORTENED)
        better = next((one for one in tried if _square(one.residual) < missed), None)
        if better is None:
            break
        now, before, missed = better, missed, _square(better.residual)
        if missed > FALLEN * before:
            break
    return now


def step(at: Misfit, iterations: int = ITERATIONS) -> Array:
    """Return an x that makes ‖r − J x‖ small, by so many iterations at most."""
    left = at.residual
    downhill = at.back(left)
    x, along, slope = np.zeros_like(downhill), downhill, _square(downhill)
    least = CONVERGED**2 * slope
    for _ in range(iterations):
        if slope <= max(least, TINY):
            break
        moves = at.forward(along)
        length = slope / max(_square(moves), TINY)
        x, left = x + length * along, left - length * moves
        downhill = at.back(left)
        before, slope = slope, _square(downhill)
        along = downhill + slope / before * along
    return x


def whitening(gram: Array) -> Array:
    """Return T with T Tᵀ the inverse of a Gram matrix; 0 along directions that it does not see.

    Examples
    --------
    >>> T = whitening(np.array([[4.0, 0.0], [0.0, 1.0]]))
    >>> (T @ T.T).round(9).tolist()
    [[0.25, 0.0], [0.0, 1.0]]
    """
    values, vectors = np.linalg.eigh(gram)
    seen = values > len(values) * np.finfo(np.float64).eps * values.max(initial=TINY)
    # stretched as much as the others, directions unseen would move by the rounding of these
    shares = np.where(seen, 1 / np.sqrt(np.where(seen, values, 1.0)), 0.0)
    return np.asarray(vectors * shares)


def _square(x: Array) -> float:
    return float(x @ x)
