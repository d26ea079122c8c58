"""What is known of a layer within a ball: every neuron turned so that it is silent at one point.

F(t) = y₀ + J₀(t − p) + Σ_j b_j relu(a_j·t + β_j),   a_j·p + β_j < 0.

So what is not known yet adds nothing at p, and answers less the known part are a layer of the
other neurons. One whose hyperplane misses the ball is silent, or part of y₀ and J₀.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.feed_forward.found_neurons import FoundNeurons
from unsoftmax.probes import Array, Flags


@dataclass(frozen=True, slots=True)
class BallPart:
    """Neurons that are known, and the affine part at a point."""

    point: Array
    """p (k,)."""
    value: Array
    """y₀ (d_out,)."""
    found: FoundNeurons
    """Silent at p; ``first`` is J₀."""

    def __call__(self, t: Array) -> Array:
        """Evaluate at tokens (n, k): (n, d_out)."""
        z = np.maximum(t @ self.found.rows.T + self.found.bias, 0.0)
        affine = self.value + (t - self.point) @ self.found.first.T
        return np.asarray(affine + z @ self.found.columns)

    def error_at(self, size: float) -> float:
        """Return what it is typically off by at tokens of a length (2-norm)."""
        found, along = self.found, size / np.sqrt(len(self.point))
        rows = np.linalg.norm(found.rows, axis=1)
        each = (along * found.row_error) ** 2 + found.bias_error**2
        each += (np.hypot(along * rows, found.bias) * found.column_error) ** 2
        return float(np.sqrt(np.sum(each) + (along * found.first_error) ** 2))

    def upto(self, count: int) -> BallPart:
        """Return the first neurons alone."""
        some = self.found.taken(np.arange(count))
        mine = self.found
        some = replace(some, first=mine.first, first_error=mine.first_error)
        return replace(self, found=some)

    def with_neurons(self, found: FoundNeurons) -> BallPart:
        """Add neurons, turned to be silent at p."""
        sign = np.where(found.rows @ self.point + found.bias > 0, -1.0, 1.0)
        mine = self.found
        joined = FoundNeurons(
            rows=np.vstack([mine.rows, sign[:, None] * found.rows]),
            row_error=np.append(mine.row_error, found.row_error),
            bias=np.append(mine.bias, sign * found.bias),
            bias_error=np.append(mine.bias_error, found.bias_error),
            columns=np.vstack([mine.columns, found.columns]),
            column_error=np.append(mine.column_error, found.column_error),
            first=mine.first,
            first_error=mine.first_error,
        )
        return replace(self, found=joined)


def turned_to(point: Array, value: Array, found: FoundNeurons, real: Flags) -> BallPart:
    """Turn neurons to be silent at a point.

    Parameters
    ----------
    point, value : ndarray, shapes (k,) and (d_out,)
        p, and the answer there.
    found : FoundNeurons
        Along a line through p, none of them active where ``first`` was read.
    real : ndarray of bool
        Which are neurons; others count for what bends between there and p alone.
    """
    active = found.rows @ point + found.bias > 0
    first = found.first + found.columns[active].T @ found.rows[active]
    none = found.taken(np.zeros(0, dtype=np.intp))
    start = replace(none, first=first, first_error=found.jacobian_error)
    return BallPart(point, value, start).with_neurons(found.taken(real))
