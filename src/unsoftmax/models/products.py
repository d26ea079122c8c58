"""Matrices as products of thin factors: norms, distances and singular values without forming them.

A matrix M = L R of rank r, L (m, r) and R (r, d), has the singular values of the r×r core
R_L R_Rᵀ of two QR decompositions, L = Q_L R_L and Rᵀ = Q_R R_R. So they cost r²(m + d), and
‖M − M'‖_F, of [L, −L'] and [R; R'], is computed without the cancellation of inner products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.probes import Array


def octave(size: float) -> float:
    """Return the power of two up to ``size``: dividing by it is exact."""
    return float(2.0 ** (np.frexp(size)[1] - 1))


def largest_of(x: Array | Product) -> float:
    """Return the largest size of an entry, 0 of none; of a product a bound on it."""
    if isinstance(x, Product):
        return largest_of(x.left) * largest_of(x.right)
    return float(np.max(np.abs(x), initial=0.0))


def unit_of(*parts: Array | Product) -> float:
    """Return the power of two up to the largest entry of all."""
    return octave(max(map(largest_of, parts)))


def norm_of(x: Array) -> float:
    """Return the 2-norm (Frobenius), also where the squares leave float64's range."""
    unit = largest_of(x)
    return unit * float(np.linalg.norm(x / unit)) if unit else 0.0


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far parameters of equal models may be apart: ``rtol`` times their size plus ``atol``."""

    rtol: float = 0.0
    atol: float = 0.0

    def __post_init__(self) -> None:
        if not (self.rtol >= 0 and self.atol >= 0):
            raise ValueError("rtol and atol must be 0 or more.")

    @property
    def exact(self) -> bool:
        """Whether only equal numbers will do."""
        return not (self.rtol or self.atol)

    def allows(self, difference: float, size: float, unit: float = 1.0) -> bool:
        """Tell whether a difference is within the tolerance; both were divided by ``unit``."""
        return difference <= self.rtol * size + self.atol / unit

    def compare(self, mine: Array, other: Array) -> tuple[bool, float]:
        """Tell whether two arrays are within the tolerance, and their relative difference."""
        unit = unit_of(mine, other)
        difference = norm_of(mine / unit - other / unit)
        size = max(norm_of(mine / unit), norm_of(other / unit))
        within = self.allows(difference, size, unit)
        if self.exact:
            within = np.array_equal(mine, other)
        return within, difference / size if size else 0.0


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
        left, right = (np.asarray(np.linalg.qr(x, mode="r")) for x in (self.left, self.right.T))
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
        top = np.take_along_axis(U, np.abs(U).argmax(axis=0)[None], axis=0)[0] if rank else s[:0]
        sign = np.where(top < 0, -1.0, 1.0)
        return Product(U * sign, (sign * s[:rank])[:, None] * V)


class Apart(NamedTuple):
    """How far two matrices are apart, in units of a power of two."""

    difference: float
    size: float
    unit: float
    distance: int = 1
    """Between tokens, where they differ most."""

    @property
    def relative(self) -> float:
        """The difference beside the larger norm."""
        return self.difference / self.size if self.size else 0.0


def apart(a: Product, b: Product, near: float = 1e-3) -> Apart:
    """Compare two products, whatever their size.

    Parameters
    ----------
    a, b : Product
        Matrices of one shape.
    near : float, optional
        Matrices closer than this share of their norms are subtracted. Smaller: inner products,
        which cancel, give distances to fewer digits than 8; larger: more of them cost a QR
        decomposition.
    """
    exponents = _exponents(a, b)
    mine, its = _scaled(a, exponents), _scaled(b, exponents)
    norms = _norm(mine), _norm(its)
    unit = float(np.ldexp(1.0, np.clip(sum(exponents), -1022, 1023)))
    if np.array_equal(mine.right, its.right):
        return Apart(_norm(Product(mine.left - its.left, mine.right)), max(norms), unit)
    if np.array_equal(mine.left, its.left):
        return Apart(_norm(Product(mine.left, mine.right - its.right)), max(norms), unit)
    squared = norms[0] ** 2 + norms[1] ** 2 - 2 * mine.inner(its)
    far = squared > near**2 * max(norms) ** 2
    return Apart(float(np.sqrt(squared)) if far else (mine - its).norm, max(norms), unit)


def size_of(product: Product) -> float:
    """Return the Frobenius norm, whatever the size of the factors."""
    found = apart(product, product.nothing)
    return found.size * found.unit


def _exponents(*products: Product) -> tuple[int, int]:
    """Return the powers of two above all factors."""
    left, right = (
        max(int(np.frexp(largest_of(factor))[1]) for factor in factors)
        for factors in zip(*((one.left, one.right) for one in products), strict=True)
    )
    return left, right


def _scaled(product: Product, exponents: tuple[int, int]) -> Product:
    return Product(np.ldexp(product.left, -exponents[0]), np.ldexp(product.right, -exponents[1]))


def _norm(product: Product) -> float:
    """Return the norm of a product that may be much smaller than 1.

    Inner products give it where they do not cancel, in a tenth of the time of two QR
    decompositions.
    """
    exponents = _exponents(product)
    scaled = _scaled(product, exponents)
    squared, most = scaled.inner(scaled), np.sum(scaled.left**2) * np.sum(scaled.right**2)
    norm = np.sqrt(squared) if squared > 1e-4 * most else scaled.norm if most else 0.0
    return float(np.ldexp(norm, sum(exponents)))


def distances(mine: Sequence[Product], other: Sequence[Product]) -> Array:
    """Return ‖p − q‖_F for every p and q, (len(mine), len(other))."""
    found = np.zeros((len(mine), len(other)))
    for g, h in np.ndindex(found.shape):
        one = apart(mine[g], other[h])
        found[g, h] = one.difference * one.unit
    return found
