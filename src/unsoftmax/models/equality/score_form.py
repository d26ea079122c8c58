"""How heads score tokens: [W | w] as a product, or planes that turn, and how far two are apart.

What is invisible of planes that turn: `RotaryScores.canonical`. Scores of which none turns are
[W | w] alone. Scores are compared by all W(Δ), biases included, at as many distances as there are
planes in both: sums of so many e^{iθΔ} that agree there agree everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models.equality.equivalence import Tolerance, largest_of, norm_of
from unsoftmax.models.equality.exact_products import fingerprint_of, same_product
from unsoftmax.models.products import Apart, Product, apart
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.scores import RotaryScores
from unsoftmax.probes import Array

Scores: TypeAlias = Product | RotaryScores
"""[W | w], (d, d + 1), or what turns with distance."""

# Scores that differ by more than this share of their size at one token are looked at no further.
FAR = 0.1
# Bounds of certificates hold for W(Δ) up to this distance, and scores are compared so far at least.
FARTHEST = 20


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


def scores_apart(a: Scores, b: Scores, enough: float = np.inf) -> Apart:
    """Compare two heads' scores at all distances, where one turns.

    Where those at one token differ by more than ``enough`` of their size, others are not looked at.
    """
    if not (isinstance(a, RotaryScores) or isinstance(b, RotaryScores)):
        return apart(a, b)
    a, b = as_turning(a), as_turning(b)
    near = apart(_at_one(a), _at_one(b))
    if near.relative > enough:
        return near
    mine, its = _within_ranges(a, b)
    size, worst = 0.0, (0.0, 0)
    last = max(FARTHEST, 2 * (len(mine.rotary) + len(its.rotary)))
    for distance in (1, 0, *range(2, last + 1)):
        both = mine.whole(distance), its.whole(distance)
        size = max(size, *(norm_of(x) for x in both))
        worst = max(worst, (norm_of(both[0] - both[1]), distance), key=lambda found: found[0])
        if worst[0] > enough * size:
            break
    return Apart(worst[0], size, 1.0, worst[1])


def _at_one(scores: RotaryScores) -> Product:
    """Return W(1) with the query bias, (d, d + 1)."""
    queries = np.column_stack([scores.arrays["Q"], scores.arrays["q_bias"]])
    return Product(scores.arrays["K"].T, scores.rotary.turned(queries.T, np.array(1.0)).T)


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
    return scores.canonical(empty=False).numbers


def _same(a: Scores, b: Scores) -> bool:
    if isinstance(a, Product) and isinstance(b, Product):
        return same_product(a, b)
    return type(a) is type(b)  # of the same fingerprint, which holds all of them
