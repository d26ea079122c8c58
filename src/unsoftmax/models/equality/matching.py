"""Heads of two models matched with each other: the one matching, by scores and by values.

With a tolerance heads are matched by their scores at the least cost in all; all values and c then
count as one block, in which a head without a partner differs by its values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models.equality.equivalence import Tolerance, largest_of, norm_of, octave
from unsoftmax.models.equality.exact_products import same_product
from unsoftmax.models.equality.form import Form, same_kind
from unsoftmax.models.equality.score_form import (
    FAR,
    Scores,
    places_exactly,
    score_distances,
    scores_apart,
)
from unsoftmax.models.products import Product, apart, size_of
from unsoftmax.probes import Array

Places = list[tuple[int, int]]
"""Heads of one model and of another one; −1 where there is none."""


class HeadMatching:
    """How far the heads of two canonical forms are apart; values and c in units of 2^k.

    Matched heads' scores differ by at most the tolerance. All values and c then count as one block.
    Two models of one head each have nothing to match: where the scores differ, they do.
    """

    def __init__(self, a: Form, b: Form, tolerance: Tolerance) -> None:
        self.scores, self.tolerance = (a.scores, b.scores), tolerance
        self.lone = a.heads == b.heads == 1
        beside = _beside(a, b)
        largest = [largest_of(x) for x in beside]
        largest += [largest_of(M.left) * largest_of(M.right) for M in (*a.values, *b.values)]
        self.unit = octave(max(largest))
        self.values = [[Product(M.left / self.unit, M.right) for M in f.values] for f in (a, b)]
        first, second = (x / self.unit for x in beside)
        self.alone, self.missing = (np.array([size_of(M) for M in some]) for some in self.values)
        self.size = max(
            math.hypot(norm_of(first), norm_of(self.alone)),
            math.hypot(norm_of(second), norm_of(self.missing)),
        )
        self.constant = norm_of(first - second)
        self.relative, self.close = score_distances(a.scores, b.scores, tolerance)
        self.apart = np.zeros(self.relative.shape)
        for g, h in np.ndindex(self.apart.shape):
            found = apart(self.values[0][g], self.values[1][h])
            self.apart[g, h] = found.difference * found.unit

    def allows(self, distance: float) -> bool:
        """Tell whether a distance between all values and c is within the tolerance."""
        return self.tolerance.allows(distance, self.size, self.unit)

    def distance(self) -> float:
        """Return the norm of what differs in values and c, heads beyond the tolerance unmatched."""
        if self.lone:
            matched_up = len(self.alone) == len(self.missing) and self.close.all()
            return math.hypot(norm_of(self.apart), self.constant) if matched_up else math.inf
        cost = np.where(self.close, self.apart**2, np.inf)
        matched = match(cost, self.alone**2, self.missing**2)
        return math.sqrt(self.constant**2 + sum(share for share, _, _ in matched))

    def gap(self) -> tuple[float, Places]:
        """Return the largest relative difference, and the heads that differ, the worst first."""
        scale = self.size or 1.0
        cost = np.maximum(self.relative, self.apart / scale)
        least = 1.0 if self.lone else 0.0
        alone, missing = (np.maximum(x / scale, least) for x in (self.alone, self.missing))
        best = [(self._in_full(*found), *found[1:]) for found in match(cost, alone, missing)]
        best.sort(key=lambda found: -found[0])
        gap = max([self.constant / scale, *(share for share, _, _ in best)])
        return gap, [(g, h) for share, g, h in best if share > 0]

    def _in_full(self, share: float, g: int, h: int) -> float:
        """Return what two heads differ by, at all distances."""
        if min(g, h) < 0 or self.relative[g, h] <= FAR:
            return share
        return max(share, scores_apart(self.scores[0][g], self.scores[1][h]).relative)

    def distance_merged(self) -> float:
        """Return what differs when all heads whose scores are within tolerance are merged."""
        label = places_nearly([*self.scores[0], *self.scores[1]], self.tolerance)
        signed = [*self.values[0], *(-M for M in self.values[1])]
        groups = [
            sum((signed[h] for h in np.flatnonzero(label == group)), signed[0].nothing)
            for group in np.unique(label)
        ]
        return norm_of(np.array([*(size_of(M) for M in groups), self.constant]))


def places_nearly(scores: Sequence[Scores], tolerance: Tolerance) -> NDArray[np.intp]:
    """Return numbers of scores: those that a chain of steps within the tolerance joins have one."""
    close = score_distances(scores, scores, tolerance)[1]
    label = np.arange(len(scores))
    for _ in label:  # as many steps as a chain of neighbours can have
        label = np.min(np.where(close, label, len(label)), axis=1)
    return label


def equal_exactly(a: Form, b: Form) -> bool:
    """Decide whether two forms' heads and c are equal as real numbers; norms entry by entry.

    Neither sums of M nor products are rounded. False does not say that the functions differ: a
    norm before may share its scale with the heads in other ways.
    """
    if not same_kind(a, b):
        return False
    if a.norm is not None and b.norm is not None:
        its = b.norm.arrays()
        if not all(np.array_equal(x, its[name]) for name, x in a.norm.arrays().items()):
            return False
    unseen = a.behind is not None and a.behind.centred
    first, second = (Product.of(x) for x in _beside(a, b))
    groups = {-1: first - second}
    signed = [*a.values, *(-M for M in b.values)]
    for place, M in zip(places_exactly([*a.scores, *b.scores]), signed, strict=True):
        groups[place] = groups[place] + M if place in groups else M
    return all(_vanishes(total, unseen) for total in groups.values())


def _beside(a: Form, b: Form) -> tuple[Array, Array]:
    """Return c, and what the query token adds where it adds anything, (k, 1) or (k, 1 + d)."""
    if a.last is None and b.last is None:
        return a.c[:, None], b.c[:, None]
    both = [np.zeros((len(f.c), f.dim)) if f.last is None else f.last for f in (a, b)]
    return np.column_stack([a.c, both[0]]), np.column_stack([b.c, both[1]])


def _vanishes(total: Product, same_rows: bool) -> bool:
    """Tell whether a product is 0, or has rows that are all the same, as real numbers."""
    if same_rows:  # each row less the first
        total = total - Product(np.repeat(total.left[:1], len(total.left), axis=0), total.right)
    return same_product(total, total.nothing)


def match(cost: Array, alone: Array, missing: Array) -> list[tuple[float, int, int]]:
    """Match rows with columns, or leave them alone, at the least cost in all.

    Returns each match's cost, row and column; −1 for what a row or column lacks.
    """
    # imported here: SciPy's optimisers take longer to load than all of this package
    from scipy.optimize import linear_sum_assignment

    rows, columns = cost.shape
    whole = np.zeros((rows + columns, rows + columns))
    whole[:rows, :columns] = cost
    whole[:rows, columns:] = alone[:, None]
    whole[rows:, :columns] = missing
    return [
        (float(whole[g, h]), int(g) if g < rows else -1, int(h) if h < columns else -1)
        for g, h in zip(*linear_sum_assignment(whole), strict=True)
        if g < rows or h < columns
    ]
