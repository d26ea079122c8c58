"""The heads of two canonical layers, matched with each other by their [W | w].

As for several heads with one answer (`head_matching`): matched heads' [W | w] differ by at most the
tolerance, and all M and c count as one block, in which a head without a partner differs by its M.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models.attention_layer import AttentionLayer, LayerHead
from unsoftmax.models.equality.equivalence import Tolerance
from unsoftmax.models.equality.exact_products import ExactScores, fingerprint_of, same_scores
from unsoftmax.models.equality.head_matching import match
from unsoftmax.models.products import Product, distances
from unsoftmax.probes import Array

LayerPairs = list[tuple[LayerHead | None, LayerHead | None]]


class LayerMatching:
    """How far the heads of two canonical layers are apart."""

    def __init__(self, a: AttentionLayer, b: AttentionLayer, tolerance: Tolerance) -> None:
        self.a, self.b, self.tolerance = a, b, tolerance
        self.values = [[head.values for head in layer.heads] for layer in (a, b)]
        self.scores = [[head.scores for head in layer.heads] for layer in (a, b)]
        self.alone, self.missing = (np.array([M.norm for M in values]) for values in self.values)
        self.constant = float(np.linalg.norm(a.c - b.c))
        sizes = ([*layer.c, *norms] for layer, norms in ((a, self.alone), (b, self.missing)))
        self.size = max(float(np.linalg.norm(size)) for size in sizes)
        self.relative, self.close = self._distances(*self.scores)
        self.apart = distances(self.values[0], self.values[1])

    def allows(self, distance: float) -> bool:
        """Tell whether a distance between all M and c is within the tolerance."""
        return self.tolerance.allows(distance, self.size)

    def distance(self) -> float:
        """Return the norm of what differs in M and c, heads beyond the tolerance unmatched."""
        cost = np.where(self.close, self.apart**2, np.inf)
        matched = match(cost, self.alone**2, self.missing**2)
        return math.sqrt(self.constant**2 + sum(share for share, _, _ in matched))

    def gap(self) -> tuple[float, LayerPairs]:
        """Return the largest relative difference, and the heads that differ, the worst first.

        A head without a partner stands beside None.
        """
        scale = self.size or 1.0
        cost = np.maximum(self.relative, self.apart / scale)
        best = match(cost, self.alone / scale, self.missing / scale)
        gap = max([self.constant / scale, *(share for share, _, _ in best)])
        heads, others = [*self.a.heads, None], [*self.b.heads, None]
        best.sort(key=lambda found: -found[0])
        return gap, [(heads[g], others[h]) for share, g, h in best if share > 0]

    def distance_merged(self) -> float:
        """Return what differs when all heads whose [W | w] are within tolerance are merged."""
        scores = [*self.scores[0], *self.scores[1]]
        _, close = self._distances(scores, scores)
        label = np.arange(len(scores))
        for _ in label:  # as many steps as a chain of neighbours can have
            label = np.minimum(label, np.min(np.where(close, label, len(label)), axis=1))
        signed = [*self.values[0], *(-M for M in self.values[1])]
        squares = [
            sum((signed[h] for h in np.flatnonzero(label == group)), signed[group].nothing).norm
            for group in np.unique(label)
        ]
        return float(np.linalg.norm([*squares, self.constant]))

    def _distances(
        self, mine: list[Product], other: list[Product]
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Return relative distances, and whether they are within tolerance."""
        apart = distances(mine, other)
        sizes = np.array([A.norm for A in mine])[:, None], np.array([A.norm for A in other])
        size = np.maximum(*sizes) if apart.size else np.zeros(apart.shape)
        close = apart <= self.tolerance.rtol * size + self.tolerance.atol
        return apart / np.where(size > 0, size, 1.0), close


def equal_exactly(a: AttentionLayer, b: AttentionLayer) -> bool:
    """Decide whether two layers' heads and c are equal as real numbers; norms entry by entry.

    Neither sums of M nor products are rounded. False does not say that the functions differ: a
    norm before may share its scale with the heads in other ways.
    """
    if a.residual != b.residual or not _same_norm(a, b):
        return False
    unseen = a.norm is not None and not a.norm.before and a.norm.centred
    signed: list[list[Product]] = [
        [Product(a.c[:, None], np.eye(1)), Product(-b.c[:, None], np.eye(1))]
    ]
    groups: list[LayerHead] = []
    alike: dict[bytes, list[int]] = {}
    for sign, layer in ((1, a), (-1, b)):
        for head in layer.heads:
            places = alike.setdefault(fingerprint_of(head), [])
            place = next((k for k in places if same_scores(groups[k], head)), None)
            if place is None:
                place = len(groups)
                groups.append(head)
                signed.append([])
                places.append(place)
            signed[place + 1].append(head.values if sign > 0 else -head.values)
    return all(_vanishes(products, unseen) for products in signed)


def _same_norm(a: AttentionLayer, b: AttentionLayer) -> bool:
    if a.norm is None or b.norm is None:
        return a.norm is b.norm
    its = b.norm.arrays()
    return all(np.array_equal(x, its[name]) for name, x in a.norm.arrays().items())


def _vanishes(products: list[Product], same_rows: bool) -> bool:
    """Tell whether a sum of products is 0, or has rows that are all the same, as real numbers."""
    total = sum(products[1:], products[0])
    if same_rows:  # each row less the first
        first = np.repeat(total.left[:1], len(total.left), axis=0)
        total = total - Product(first, total.right)
    exact = ExactScores.of({"K": total.left.T, "Q": total.right})
    return exact.equals(ExactScores.of({"W": np.zeros((len(total.left), total.right.shape[1]))}))
