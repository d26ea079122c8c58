"""How heads score tokens: [W | w] as a product, or planes that turn, and how far two are apart.

What is invisible of planes that turn: `RotaryScores.canonical`. Scores of which none turns are
[W | w] alone. Scores are compared by all W(Δ), biases included, at as many distances as there are
planes in both: sums of so many e^{iθΔ} that agree there agree everywhere.

Without a tolerance products count as real numbers. One of float64 factors is no float64 matrix, and
its rounding depends on the order of sums: equal ones may differ in their last bits, and different
ones may round to the same. So they are compared modulo primes p < 2²¹. Float64 numbers are m·2^e,
and 2 has an inverse modulo p: every entry has a residue, and so has a product, by a matrix product
of residues, which float64 adds up exactly. All entries are multiples of 2^low and below 2^high. Two
matrices with equal residues for primes whose product exceeds 2^(high + 1 − low) are equal: a proof,
at 20 bits a prime. Matrices that differ do so at the first prime, nearly always.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models.attention import RotaryScores
from unsoftmax.models.products import Apart, Product, Tolerance, apart, largest_of, norm_of
from unsoftmax.models.rotary import Rotary
from unsoftmax.probes import Array

Scores: TypeAlias = Product | RotaryScores
"""[W | w], (d, d + 1), or what turns with distance."""
Perhaps: TypeAlias = Array | None

# Scores that differ by more than this share of their size at one token are looked at no further.
FAR = 0.1
# Bounds of certificates hold for W(Δ) up to this distance, and scores are compared so far at least.
FARTHEST = 20
# Bits of the primes, and how many products of two residues, and one residue, are below 2⁵³.
_BITS, _TERMS = 21, 2**11 - 1


def scores_of(
    K: Perhaps, Q: Array, w: Perhaps, k_bias: Perhaps, q_bias: Perhaps, theta: Perhaps
) -> Scores:
    """Return planes K, Q (r, d) where one turns; else [W | w] of W = Q, or KᵀQ and w + Kᵀb_q."""
    d = Q.shape[1]
    if K is not None and theta is not None and np.any((rotary := Rotary(theta)).folded):
        return RotaryScores(d, {"K": K, "Q": Q, "k_bias": k_bias, "q_bias": q_bias}, rotary)
    w = np.zeros(d) if w is None else w
    if K is None:
        return Product(np.column_stack([Q, w]), np.eye(d + 1))
    shift = (np.frexp(largest_of(Q))[1] - np.frexp(largest_of(K))[1]) // 2  # exact
    right = np.column_stack([Q, np.zeros(len(Q)) if q_bias is None else q_bias])
    left, right = np.ldexp(K.T, shift), np.ldexp(right, -shift)
    if not np.any(w):
        return Product(left, right)
    return Product(np.column_stack([left, w]), np.vstack([right, np.eye(1, d + 1, d)]))


def as_turning(scores: Scores) -> RotaryScores:
    """Return scores as those of planes, which do not turn where they are [W | w]."""
    if isinstance(scores, RotaryScores):
        return scores
    (d, r), odd = scores.left.shape, scores.left.shape[1] % 2
    K, Q = (np.pad(x, ((0, odd), (0, 0))) for x in (scores.left.T, scores.right))
    arrays = {"K": K, "Q": Q[:, :-1], "k_bias": np.zeros(len(K)), "q_bias": Q[:, -1]}
    return RotaryScores(d, arrays, Rotary(np.zeros((r + odd) // 2)))


def whole_at(scores: Scores, distance: int) -> Array:
    """Return what scores (x, 1) with (x_N, 1) at a distance, (d + 1, d + 1)."""
    return as_turning(scores).whole(distance)


def scores_apart(a: Scores, b: Scores, enough: float = np.inf) -> Apart:
    """Compare two heads' scores at all distances, where one turns.

    Where those at one token differ by more than ``enough`` of their size, others are not looked at.
    """
    if not (isinstance(a, RotaryScores) or isinstance(b, RotaryScores)):
        return apart(a, b)
    a, b = as_turning(a), as_turning(b)
    near = apart(a.form(1), b.form(1))
    if near.relative > enough:
        return near
    mine, its = _within_ranges(a, b)
    size, worst = 0.0, (0.0, 0)
    last = max(FARTHEST, 2 * (len(mine.rotary) + len(its.rotary)))
    for distance in (1, 0, *range(2, last + 1)):
        both = mine.whole(distance), its.whole(distance)
        size = max(size, *map(norm_of, both))
        worst = max(worst, (norm_of(both[0] - both[1]), distance), key=lambda found: found[0])
        if worst[0] > enough * size:
            break
    return Apart(worst[0], size, 1.0, worst[1])


def _within_ranges(*scores: RotaryScores) -> Iterator[RotaryScores]:
    """Yield scores of the same norms, of as many dimensions as keys and queries have together."""
    rows = {name: np.vstack([one.arrays[name] for one in scores]) for name in "KQ"}
    r, d = rows["K"].shape
    bases = {name: np.linalg.qr(rows[name].T)[0] for name in ("KQ" if r < d else "")}
    for one in scores:
        seen = {name: one.arrays[name] @ basis for name, basis in bases.items()}
        yield RotaryScores(min(r, d), {**one.arrays, **seen}, one.rotary)


def score_distances(
    mine: Sequence[Scores], other: Sequence[Scores], tolerance: Tolerance
) -> tuple[Array, NDArray[np.bool_]]:
    """Return how far scores are apart relative to the larger, and what is within tolerance."""
    relative = np.zeros((len(mine), len(other)))
    close = np.full(relative.shape, True)
    for g, h in np.ndindex(relative.shape):
        if mine is other and h < g:
            relative[g, h], close[g, h] = relative[h, g], close[h, g]
        elif mine[g] is not other[h]:
            found = scores_apart(mine[g], other[h], max(FAR, 2 * tolerance.rtol))
            relative[g, h] = found.relative
            close[g, h] = tolerance.allows(found.difference, found.size, found.unit)
    return relative, close


# -- as real numbers


def places_exactly(scores: Sequence[Scores]) -> list[int]:
    """Return numbers of scores: those that are equal as real numbers have one number.

    Of planes that turn the canonical forms are compared, to the last bit.
    """
    places: list[int] = []
    # equal scores have the same, and others next to never
    marks = [
        _modulo(*_factors(one), _prime(0)).tobytes()
        if isinstance(one, Product)
        else one.canonical(empty=False).numbers
        for one in scores
    ]
    for k, one in enumerate(scores):
        alike = (places[j] for j in range(k) if marks[j] == marks[k] and _same(scores[j], one))
        places.append(next(alike, 1 + max(places, default=-1)))
    return places


def _same(a: Scores, b: Scores) -> bool:
    if isinstance(a, Product) and isinstance(b, Product):
        return same_product(a, b)
    return type(a) is type(b)  # of the same mark, which holds all of them


def same_product(a: Product, b: Product) -> bool:
    """Decide whether two products are equal as real numbers."""
    if np.array_equal(a.left, b.left) and np.array_equal(a.right, b.right):
        return True
    first, second = both = _factors(a), _factors(b)
    low = min(left.low + right.low for left, right in both)
    high = max(left.high + right.high + len(right.m).bit_length() for left, right in both)
    primes = (_prime(k) for k in range(-(-(high + 1 - low) // (_BITS - 1))))
    return all(np.array_equal(_modulo(*first, p), _modulo(*second, p)) for p in primes)


def _factors(product: Product) -> tuple[Dyadics, Dyadics]:
    return Dyadics.of(product.left), Dyadics.of(product.right)


def _modulo(left: Dyadics, right: Dyadics, p: int) -> Array:
    """Return the residues of a product, from 0 to p − 1."""
    first, second = left.modulo(p), right.modulo(p)
    total = np.zeros((len(first), second.shape[1]))
    for start in range(0, len(second), _TERMS):
        k = slice(start, start + _TERMS)
        total = (total + first[:, k] @ second[k]) % p
    return total


@dataclass(frozen=True, slots=True)
class Dyadics:
    """A float64 matrix as m·2^e, m odd or 0."""

    m: NDArray[np.int64]
    e: NDArray[np.int64]

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
        return min(self.e[self.m != 0].tolist(), default=0)

    @property
    def high(self) -> int:
        """All entries are below 2^high, or 0."""
        bits = np.frexp(self.m.astype(np.float64))[1] + self.e
        return max(bits[self.m != 0].tolist(), default=0)

    def modulo(self, p: int) -> Array:
        """Return the residues, from 0 to p − 1."""
        exponents, place = np.unique(self.e, return_inverse=True)
        powers = np.array([pow(2, int(e), p) for e in exponents], dtype=np.int64)
        residues = (self.m % p) * powers[place.reshape(self.e.shape)] % p
        return residues.astype(np.float64)


@cache
def _prime(k: int) -> int:
    """Return the k-th prime below 2²¹, the largest first; all are above 2²⁰."""
    p = (2**_BITS if k == 0 else _prime(k - 1)) - 1
    while any(p % q == 0 for q in range(2, int(p**0.5) + 1)):
        p -= 1
    return p
