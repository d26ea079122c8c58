"""Householder reflections: orthonormal vectors orthogonal to given ones, made row by row.

    I − u uᵀ,  u = (y ± e_0)·√2/‖y ± e_0‖,       swaps a unit vector y with ∓e_0,

so its other rows are orthonormal and orthogonal to y. A row of D numbers costs O(D): no basis of
D² numbers is ever stored. The sign is that of y_0, which keeps the sum from cancelling.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.probes import Array, Indices


def mirrors(Y: Array) -> Array:
    """Return u (n, D) of norm √2 such that I − u uᵀ swaps Y_i with ±e_0; Y of norm 1."""
    u = Y.copy()
    u[:, 0] += np.where(Y[:, 0] >= 0, 1.0, -1.0)
    return np.asarray(u * (np.sqrt(2.0) / np.linalg.norm(u, axis=1, keepdims=True)))


def orthogonal_to(Y: Array, j: Indices) -> Array:
    """Return for each row the j-th, 0 ≤ j < D − 1, of D − 1 unit vectors orthogonal to it."""
    u = mirrors(Y)
    rows = np.arange(len(Y))
    E = -u * u[rows, j + 1][:, None]
    E[rows, j + 1] += 1.0
    return E


@dataclass(frozen=True, slots=True)
class HouseholderFrames:
    """For each of k vectors an orthonormal basis ε_0 … ε_{r−1} of R^r, ε_0 along the vector."""

    mirror: Array
    """u (k, r): I − u uᵀ swaps the vector's direction with ± the first axis."""
    turn: Array
    """That sign, (k,)."""
    size: Array
    """The vector's norm, (k,)."""

    @classmethod
    def of(cls, vectors: Array) -> HouseholderFrames:
        """Make the frames of vectors (k, r); a vector 0 gets the coordinate axes."""
        size = np.linalg.norm(vectors, axis=1)
        unit = vectors / np.where(size > 0, size, 1.0)[:, None]
        unit[size == 0, 0] = 1.0
        return cls(mirrors(unit), np.where(unit[:, 0] >= 0, -1.0, 1.0), size)

    def axes(self, frame: Indices, number: Indices) -> Array:
        """Return axis ε_l of some frames, one row for each pair (frame, l)."""
        u, rows = self.mirror[frame], np.arange(len(frame))
        axes = -u * u[rows, number][:, None]
        axes[rows, number] += 1.0
        axes *= np.where(number == 0, self.turn[frame], 1.0)[:, None]
        return axes

    def combine(self, coordinates: Array) -> Array:
        """Return the vectors Σ_l x_l ε_l, (k, r), of coordinates x in each frame, (k, r)."""
        x = coordinates.copy()
        x[:, 0] *= self.turn
        inner = np.einsum("kr,kr->k", self.mirror, x)
        return np.asarray(x - self.mirror * inner[:, None])
