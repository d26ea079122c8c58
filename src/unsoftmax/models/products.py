"""Matrices as products of thin factors: norms, distances and singular values without forming them.

A matrix M = L R of rank r, L (m, r) and R (r, d), has the singular values of the r×r core
R_L R_Rᵀ of two QR decompositions, L = Q_L R_L and Rᵀ = Q_R R_R. So they cost r²(m + d), and
‖M − M'‖_F, of [L, −L'] and [R; R'], is computed without the cancellation of inner products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class Product:
    """The matrix ``left @ right``."""

    left: Array
    """(m, r)."""
    right: Array
    """(r, d)."""

    @classmethod
    def of(cls, matrix: Array) -> Self:
        """Take a whole matrix, with a unit matrix as the shorter factor."""
        m, d = matrix.shape
        return cls(matrix, np.eye(d)) if d <= m else cls(np.eye(m), matrix)

    @classmethod
    def zeros(cls, m: int, d: int) -> Self:
        """Take the matrix 0, with factors of rank 0."""
        return cls(np.zeros((m, 0)), np.zeros((0, d)))

    @property
    def whole(self) -> Array:
        """The matrix (m, d)."""
        return self.left @ self.right

    @property
    def norm(self) -> float:
        """‖left @ right‖_F."""
        factors = (self.left, self.right.T)
        left, right = (np.asarray(np.linalg.qr(factor, mode="r")) for factor in factors)
        return float(np.linalg.norm(left @ right.T))

    @property
    def nothing(self) -> Product:
        """The matrix 0 of the same shape."""
        return self.part(0, 0)

    def part(self, first: int, last: int) -> Product:
        """Return the product of these columns of ``left`` and rows of ``right``."""
        return Product(self.left[:, first:last], self.right[first:last])

    def __add__(self, other: Product) -> Product:
        return Product(np.hstack([self.left, other.left]), np.vstack([self.right, other.right]))

    def __neg__(self) -> Product:
        return Product(-self.left, self.right)

    def __sub__(self, other: Product) -> Product:
        return self + -other

    def inner(self, other: Product) -> float:
        """Return the sum of the products of all entries."""
        return float(np.sum((self.left.T @ other.left) * (self.right @ other.right.T)))

    def compact(self) -> Product:
        """Return the same matrix from U, with orthonormal columns, and S Vᵀ, as its rank needs.

        Singular values below the rounding of the product are left out. Of every column of U the
        largest entry is positive, so that a matrix of distinct singular values has one such form.
        """
        (Q, left), (P, right) = (np.linalg.qr(x) for x in (self.left, self.right.T))
        U, s, V = np.linalg.svd(left @ right.T)
        sums = 8 * max(len(self.left), self.right.shape[1]) * UNIT
        rank = int(np.sum(s > sums * s.max(initial=0.0)))
        U, V = Q @ U[:, :rank], V[:rank] @ P.T
        top = np.argmax(np.abs(U), axis=0) if rank else np.zeros(0, dtype=np.intp)
        sign = np.where(U[top, np.arange(rank)] < 0, -1.0, 1.0)
        return Product(U * sign, (sign * s[:rank])[:, None] * V)


def distances(mine: Sequence[Product], other: Sequence[Product], near: float = 1e-3) -> Array:
    """Return ‖p − q‖_F for every p and q, (len(mine), len(other)).

    Parameters
    ----------
    mine, other : sequence of Product
        Matrices of one shape.
    near : float, optional
        Matrices closer than this share of their norms are subtracted. Smaller: inner products,
        which cancel, give distances to fewer digits than 8; larger: more of them cost a QR
        decomposition.
    """
    apart = np.zeros((len(mine), len(other)))
    each = {id(p): p for p in (*mine, *other)}
    squares = {place: p.norm**2 for place, p in each.items()}
    for g, h in np.ndindex(apart.shape):
        if mine[g] is other[h]:
            continue
        if mine is other and h < g:
            apart[g, h] = apart[h, g]
            continue
        size = squares[id(mine[g])] + squares[id(other[h])]
        squared = size - 2 * mine[g].inner(other[h])
        subtracted = squared <= near**2 * size
        apart[g, h] = (mine[g] - other[h]).norm if subtracted else np.sqrt(squared)
    return apart
