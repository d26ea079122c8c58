"""Equality of score matrices as real numbers, also where they are products W = KᵀQ of factors.

A product of float64 factors is no float64 matrix, and its rounding depends on the order of sums:
equal products may differ in their last bits, and different ones may round to the same. So they
are compared modulo primes p < 2²¹. Float64 numbers are m·2^e, and 2 has an inverse modulo p: every
entry has a residue, and so has a product, by a matrix product of residues, which float64 adds up
exactly. All entries are multiples of 2^low and below 2^high. Two matrices with equal residues for
primes whose product exceeds 2^(high + 1 − low) are equal: a proof, at 20 bits a prime. Matrices
that differ do so at the first prime, nearly always.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models.products import Product
from unsoftmax.probes import Array

Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Dyadics:
    """A float64 matrix as m·2^e, m odd or 0."""

    m: Whole
    e: Whole

    @classmethod
    def of(cls, x: Array) -> Self:
        """Split a matrix."""
        fraction, e = np.frexp(x)
        m = np.ldexp(fraction, 53).astype(np.int64)
        lowest = np.frexp((m & -m).astype(np.float64))[1].astype(np.int64) - 1
        lowest[m == 0] = 0
        return cls(m >> lowest, np.where(m == 0, 0, e - 53 + lowest))

    @property
    def low(self) -> int:
        """All entries are multiples of 2^low; 0 where all are 0."""
        used = self.e[self.m != 0]
        return int(used.min()) if used.size else 0

    @property
    def high(self) -> int:
        """All entries are below 2^high, or 0."""
        bits = np.frexp(self.m.astype(np.float64))[1] + self.e
        used = bits[self.m != 0]
        return int(used.max()) if used.size else 0

    def modulo(self, p: int) -> Array:
        """Return the residues, from 0 to p − 1."""
        exponents, place = np.unique(self.e, return_inverse=True)
        powers = np.array([pow(2, int(e), p) for e in exponents], dtype=np.int64)
        residues = (self.m % p) * powers[place.reshape(self.e.shape)] % p
        return residues.astype(np.float64)


@dataclass(frozen=True, slots=True)
class ExactScores:
    """A score matrix W, or K.T @ Q that is never rounded."""

    left: Dyadics | None
    """K, None where the matrix is W itself."""
    right: Dyadics
    """Q, or W."""

    modulus_bits: ClassVar[int] = 21
    terms: ClassVar[int] = 2**11 - 1
    """So many products of two residues below 2²¹, and one residue, are below 2⁵³: float64 adds them
    exactly."""

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> Self:
        """Take "W", or "K" and "Q", from a model's arrays."""
        if "W" in arrays:
            return cls(None, Dyadics.of(arrays["W"]))
        return cls(Dyadics.of(arrays["K"]), Dyadics.of(arrays["Q"]))

    @property
    def low(self) -> int:
        """All entries are multiples of 2^low."""
        return self.right.low + (0 if self.left is None else self.left.low)

    @property
    def high(self) -> int:
        """All entries are below 2^high, or 0."""
        if self.left is None:
            return self.right.high
        return self.left.high + self.right.high + len(self.left.m).bit_length()

    def modulo(self, p: int) -> Array:
        """Return the residues, from 0 to p − 1."""
        right = self.right.modulo(p)
        if self.left is None:
            return right
        left = self.left.modulo(p)
        total = np.zeros((left.shape[1], right.shape[1]))
        for first in range(0, len(left), self.terms):
            k = slice(first, first + self.terms)
            total = (total + left[k].T @ right[k]) % p
        return total

    def equals(self, other: ExactScores) -> bool:
        """Decide whether two matrices of one shape are equal as real numbers."""
        if self.left is None and other.left is None:
            return all(
                np.array_equal(mine, its)
                for mine, its in ((self.right.m, other.right.m), (self.right.e, other.right.e))
            )
        bits = max(self.high, other.high) + 1 - min(self.low, other.low)
        for k in range(-(-bits // (self.modulus_bits - 1))):
            p = _prime(k, self.modulus_bits)
            if not np.array_equal(self.modulo(p), other.modulo(p)):
                return False
        return True


@cache
def _prime(k: int, bits: int) -> int:
    """Return the k-th prime below 2^bits, the largest first; all are above 2^(bits − 1)."""
    p = (2**bits if k == 0 else _prime(k - 1, bits)) - 1
    while any(p % q == 0 for q in range(2, int(p**0.5) + 1)):
        p -= 1
    return p


def exact(product: Product) -> ExactScores:
    """Take a product of factors that is never rounded."""
    return ExactScores.of({"K": product.left.T, "Q": product.right})


def same_product(a: Product, b: Product) -> bool:
    """Decide whether two products are equal as real numbers."""
    alike = [np.array_equal(x, y) for x, y in ((a.left, b.left), (a.right, b.right))]
    return all(alike) or exact(a).equals(exact(b))


def fingerprint_of(product: Product) -> bytes:
    """Return what equal products have in common, and others next to never."""
    residues = exact(product).modulo(_prime(0, ExactScores.modulus_bits))
    return hashlib.sha256(residues.tobytes()).digest()
