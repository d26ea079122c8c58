"""How heads score tokens: [W | w] as a product, or planes that turn; what is equal, and how far off.

With complex rows κ_k = K_{2k} + iK_{2k+1} and φ_k likewise of Q, biases as their last entries,
a token x scores Re Σ_k κ̄_k·(x, 1) e^{iθ_kΔ} φ_k·(x_N, 1). So only the products κ̄_k φ_kᵀ count,
summed over planes of equal θ; where θ is 0 or π only their real part does. θ counts up to sign, by
which a plane is mirrored, and up to 2π. Where θ is 0 the key bias scores all tokens alike: it is
invisible, and scores of which no plane turns are [W | w] alone.

The canonical form has θ in [0, π], the largest first, and each product in the factors that its
singular value decomposition gives. Scores are compared by all W(Δ), biases included, at as many
distances as there are planes in both: sums of so many e^{iθΔ} that agree there agree everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models.equality.equivalence import Tolerance, largest_of, norm_of
from unsoftmax.models.equality.exact_products import fingerprint_of, same_product
from unsoftmax.models.products import Product
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.scores import RotaryScores
from unsoftmax.probes import Array

Scores: TypeAlias = Product | RotaryScores
"""[W | w], (d, d + 1), or what turns with distance."""

# Bounds of certificates hold for W(Δ) up to this distance, and scores are compared so far at least.
FARTHEST = 20
# Matrices closer than this share of their norms are subtracted: inner products would cancel.
_NEAR = 1e-3


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


def turning(K: Array, Q: Array, biases: tuple[Array, Array], theta: Array) -> Scores:
    """Return the scores of planes K, Q (r, d), as [W | w] where none turns."""
    scores = {"K": K, "Q": Q, "k_bias": biases[0], "q_bias": biases[1]}
    rotary = Rotary(theta)
    if np.any(rotary.folded):
        return RotaryScores(K.shape[1], scores, rotary)
    return plain(K, Q, np.zeros(K.shape[1]), biases[1])


def plain(K: Array | None, Q: Array, w: Array, q_bias: Array | None = None) -> Product:
    """Return [W | w] of W = Q, or of KᵀQ and w + Kᵀb_q."""
    if K is None:
        return Product(np.column_stack([Q, w]), np.eye(len(w) + 1))
    shift = (np.frexp(largest_of(Q))[1] - np.frexp(largest_of(K))[1]) // 2  # exact
    right = np.column_stack([Q, np.zeros(len(Q)) if q_bias is None else q_bias])
    left, right = np.ldexp(K.T, shift), np.ldexp(right, -shift)
    if np.any(w):
        unit = np.eye(1, len(w) + 1, len(w))
        return Product(np.column_stack([left, w]), np.vstack([right, unit]))
    return Product(left, right)


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
    if isinstance(scores, RotaryScores):
        return scores.whole(distance)
    return np.vstack([scores.whole, np.zeros((1, scores.right.shape[1]))])


def apart(a: Product, b: Product) -> Apart:
    """Compare two products, whatever their size."""
    exponents = _exponents(a, b)
    mine, its = _scaled(a, exponents), _scaled(b, exponents)
    size = max(_norm(mine), _norm(its))
    unit = float(np.ldexp(1.0, np.clip(sum(exponents), -1022, 1023)))
    if np.array_equal(mine.right, its.right):
        return Apart(_norm(Product(mine.left - its.left, mine.right)), size, unit)
    if np.array_equal(mine.left, its.left):
        return Apart(_norm(Product(mine.left, mine.right - its.right)), size, unit)
    squared = mine.norm**2 + its.norm**2 - 2 * mine.inner(its)
    far = squared > _NEAR**2 * size**2
    return Apart(float(np.sqrt(squared)) if far else (mine - its).norm, size, unit)


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
    """Return the norm of a product that may be much smaller than 1."""
    exponents = _exponents(product)
    if not product.left.any() or not product.right.any():
        return 0.0
    return float(np.ldexp(_scaled(product, exponents).norm, sum(exponents)))


def scores_apart(a: Scores, b: Scores, enough: float = np.inf) -> Apart:
    """Compare two heads' scores at all distances, where one turns.

    Where those at one token differ by more than ``enough`` of their size, others are not looked at.
    """
    if not (isinstance(a, RotaryScores) or isinstance(b, RotaryScores)):
        return apart(a, b)
    mine, its = _within_ranges(as_turning(a), as_turning(b))
    size, worst = 0.0, (0.0, 0)
    last = max(FARTHEST, 2 * (len(mine.rotary) + len(its.rotary)))
    for distance in (1, 0, *range(2, last + 1)):
        both = mine.whole(distance), its.whole(distance)
        size = max(size, *(norm_of(x) for x in both))
        worst = max(worst, (norm_of(both[0] - both[1]), distance), key=lambda found: found[0])
        if worst[0] > enough * size:
            break
    return Apart(worst[0], size, 1.0, worst[1])


def _within_ranges(a: RotaryScores, b: RotaryScores) -> tuple[RotaryScores, RotaryScores]:
    """Return scores of the same norms, of as many dimensions as keys and queries have together."""
    both = {name: np.vstack([a.arrays[name], b.arrays[name]]) for name in "KQ"}
    if len(both["K"]) >= both["K"].shape[1]:
        return a, b
    bases = {name: np.linalg.qr(rows.T)[0] for name, rows in both.items()}

    def seen(scores: RotaryScores) -> RotaryScores:
        arrays = {**scores.arrays, **{name: scores.arrays[name] @ bases[name] for name in "KQ"}}
        return RotaryScores(len(both["K"]), arrays, scores.rotary)

    return seen(a), seen(b)


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
            found = scores_apart(mine[g], other[h], max(0.1, 2 * tolerance.rtol))
            relative[g, h] = found.relative
            close[g, h] = tolerance.allows(found.difference, found.size, found.unit)
    return relative, close


# -- as real numbers


def places_exactly(scores: Sequence[Scores]) -> list[int]:
    """Return numbers of scores: those that are equal as real numbers have one number.

    Of planes that turn the canonical forms are compared, to the last bit.
    """
    places: list[int] = []
    first: list[Scores] = []
    alike: dict[bytes, list[int]] = {}
    for one in scores:
        known = alike.setdefault(_fingerprint(one), [])
        place = next((k for k in known if _same(first[k], one)), len(first))
        if place == len(first):
            first.append(one)
            known.append(place)
        places.append(place)
    return places


def _fingerprint(scores: Scores) -> bytes:
    if isinstance(scores, Product):
        return fingerprint_of(scores)
    return score_bytes(canonical_planes(scores, empty=False))


def _same(a: Scores, b: Scores) -> bool:
    if isinstance(a, Product) and isinstance(b, Product):
        return same_product(a, b)
    return type(a) is type(b)  # of the same fingerprint, which holds all of them


def score_bytes(scores: RotaryScores) -> bytes:
    """Return all numbers, −0 as 0."""
    names = ("frequencies", "K", "Q", "k_bias", "q_bias")
    return b"".join((scores.arrays[name] + 0.0).tobytes() for name in names)


# -- the canonical form of planes


def canonical_planes(scores: RotaryScores, empty: bool = True) -> RotaryScores:
    """Return planes ordered by θ, in the factors of their products; without ``empty`` ones."""
    angles, arrays = scores.rotary.folded, scores.arrays
    d = arrays["K"].shape[1]
    parts, frequencies = [np.zeros((2, 0, d + 1))], []
    for angle in np.unique(angles)[::-1]:
        keys, queries = _products(scores, np.flatnonzero(angles == angle), angle)
        parts.append(np.stack(_factors(keys, queries), axis=0))
        frequencies += [angle] * (parts[-1].shape[1] // 2)
    rows, theta = np.concatenate(parts, axis=1), np.array(frequencies)
    if not empty:
        planes = rows.reshape(2, len(theta), 2 * d + 2)
        kept = np.all(np.any(planes != 0, axis=2), axis=0)
        rows, theta = rows[:, np.repeat(kept, 2)], theta[kept]
    K, Q = rows[:, :, :-1]
    biases = {"k_bias": rows[0, :, -1], "q_bias": rows[1, :, -1]}
    return RotaryScores(d, {"K": K, "Q": Q, **biases}, Rotary(theta))


def _products(
    scores: RotaryScores, planes: NDArray[np.intp], angle: float
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the rows of K and Q of planes that turn alike, with biases; complex where they do."""
    K = np.column_stack([scores.arrays["K"], scores.arrays["k_bias"]])
    Q = np.column_stack([scores.arrays["Q"], scores.arrays["q_bias"]])
    if angle in (0.0, np.pi):
        rows = np.sort(np.concatenate([2 * planes, 2 * planes + 1]))
        keys = K[rows]
        keys[:, -1] *= angle != 0.0
        return keys, Q[rows]
    # a frequency that folds to its negative mirrors the plane
    signs = np.where(np.sin(scores.rotary.frequencies[planes]) < 0, -1.0, 1.0)[:, None]
    return tuple(x[2 * planes] + 1j * signs * x[2 * planes + 1] for x in (K, Q))  # type: ignore[return-value]


def _factors(keys: NDArray[Any], queries: NDArray[Any]) -> tuple[Array, Array]:
    """Return the rows, by singular values of κ̄φᵀ, in real numbers: two for a complex one."""
    (A, left), (B, right) = (np.linalg.qr(x.T) for x in (keys.conj(), queries))
    U, s, V = np.linalg.svd(left @ right.T)
    U, V = A @ U, (V @ B.T)
    top = U[np.argmax(np.abs(U), axis=0), np.arange(U.shape[1])]
    phase = np.where(top == 0, 1.0, top / np.where(top == 0, 1.0, np.abs(top)))
    found = (U / phase * np.sqrt(s)).T.conj(), (phase * np.sqrt(s))[:, None] * V
    if not np.iscomplexobj(U):
        odd = len(found[0]) % 2  # a plane has two rows
        K, Q = (np.pad(x, ((0, odd), (0, 0))) for x in found)
        return K, Q
    K, Q = (np.stack([x.real, x.imag], axis=1).reshape(2 * len(x), -1) for x in found)
    return K, Q
