"""Heads of several-head models brought into a canonical form and matched with each other.

Heads with equal (W, w) are one. With a tolerance heads are matched by their [W w] at the least
cost in all; all v and c then count as one block, in which a head without a partner differs by
its v. With a certificate heads are matched by the shares of its bounds that they differ by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from unsoftmax.models.equality.equivalence import Tolerance, largest_of, norm_of, octave, share_of
from unsoftmax.models.equality.exact_products import fingerprint_of, same_scores
from unsoftmax.models.multi_head import MultiHead
from unsoftmax.models.multi_head_transformer import MultiHeadTransformer
from unsoftmax.models.single_head import SingleHead
from unsoftmax.probes import Array

HeadPairs = list[tuple[SingleHead, SingleHead]]
Places = list[tuple[int, int]]
"""Heads of one model and of another one; −1 where there is none."""


class ValuedHeads(Protocol):
    """Heads with values, and a constant."""

    @property
    def v(self) -> Array:
        """Value vectors (H, d)."""

    @property
    def c(self) -> float:
        """The constant."""


def canonical_heads(model: MultiHead) -> MultiHead:
    """Return the model that stands for all that compute the same function.

    Heads with equal (W, w) are one and their v is added up, rounded once; those with v = 0 are
    left out; the rest is ordered by W, then w, entry by entry. W = KᵀQ is rounded first.
    Heads whose first entries are nearly the same may change places where these round otherwise.
    """
    scores = score_rows(model) + 0.0  # −0 becomes 0
    kept: list[int] = []
    v: list[Array] = []
    for group in distinct_heads(scores):
        total = sum_of_rows(model.v[group])
        if np.any(total):
            kept.append(group[-1])
            v.append(total + 0.0)
    d = model.dim
    values = np.array(v).reshape(len(v), d)
    return MultiHead(
        scores[kept, : d * d].reshape(-1, d, d), values, scores[kept, d * d :], model.c
    )


def distinct_heads(scores: Array) -> list[list[int]]:
    """Return the heads of each [W w], a row of ``scores``; groups are ordered entry by entry."""
    keys = _in_order(scores)
    groups: dict[bytes, list[int]] = {}
    for head in sorted(range(len(keys)), key=keys.__getitem__):
        groups.setdefault(keys[head], []).append(head)
    return list(groups.values())


def equal_exactly(a: MultiHead, b: MultiHead) -> bool:
    """Decide whether a − b is 0, without rounding: neither sums of v nor products KᵀQ are rounded.

    Heads are one where their W and w are equal as real numbers; each group's v must add up to 0.
    """
    groups: dict[int, list[Array]] = {}
    values = [*a.v, *-b.v]
    for place, v in zip(places_exactly([*a.heads, *b.heads]), values, strict=True):
        groups.setdefault(place, []).append(v)
    return a.c == b.c and not any(np.any(sum_of_rows(np.array(v))) for v in groups.values())


def places_exactly(heads: Sequence[SingleHead]) -> list[int]:
    """Return numbers of heads: those whose W and w are equal as real numbers have one number."""
    places: list[int] = []
    first: list[SingleHead] = []
    alike: dict[bytes, list[int]] = {}
    for head in heads:
        known = alike.setdefault(fingerprint_of(head), [])
        place = next((k for k in known if same_scores(first[k], head)), len(first))
        if place == len(first):
            first.append(head)
            known.append(place)
        places.append(place)
    return places


def places_nearly(scores: Array, tolerance: Tolerance) -> list[int]:
    """Return numbers of rows: those that a chain of steps within the tolerance joins have one."""
    _, close = distances(scores, scores, tolerance)
    label = np.arange(len(scores))
    for _ in label:  # as many steps as a chain of neighbours can have
        label = np.min(np.where(close, label, len(label)), axis=1)
    return [int(k) for k in label]


class HeadMatching:
    """The heads of two canonical models, matched by their scores; v and c in units of 2^k.

    What a head scores by is a row of ``rows``, one array for each model: [W w]. Matched heads'
    rows differ by at most the tolerance. All v and c then count as one block, in which a head
    without a partner differs by its v.
    """

    def __init__(
        self, a: ValuedHeads, b: ValuedHeads, rows: tuple[Array, Array], tolerance: Tolerance
    ) -> None:
        self.rows, self.tolerance = rows, tolerance
        self.unit = octave(max(largest_of(np.append(m.v, m.c)) for m in (a, b)))
        self.v = a.v / self.unit, b.v / self.unit
        self.c = a.c / self.unit, b.c / self.unit
        norms = (math.hypot(np.linalg.norm(v), c) for v, c in zip(self.v, self.c, strict=True))
        self.size = max(norms)
        self.relative, self.close = distances(*rows, tolerance)
        self.apart = np.linalg.norm(self.v[0][:, None] - self.v[1], axis=2)
        self.alone, self.missing = (np.linalg.norm(v, axis=1) for v in self.v)
        self.constant = abs(self.c[0] - self.c[1])

    def allows(self, distance: float) -> bool:
        """Tell whether a distance between all v and c is within the tolerance."""
        return self.tolerance.allows(distance, self.size, self.unit)

    def distance(self) -> float:
        """Return the norm of what differs in v and c, heads beyond the tolerance unmatched."""
        cost = np.where(self.close, self.apart**2, np.inf)
        matched = match(cost, self.alone**2, self.missing**2)
        return math.sqrt(self.constant**2 + sum(share for share, _, _ in matched))

    def gap(self) -> tuple[float, Places]:
        """Return the largest relative difference, and the heads that differ, the worst first."""
        scale = self.size or 1.0
        cost = np.maximum(self.relative, self.apart / scale)
        best = match(cost, self.alone / scale, self.missing / scale)
        gap = max([self.constant / scale, *(share for share, _, _ in best)])
        best.sort(key=lambda found: -found[0])
        return gap, [(g, h) for share, g, h in best if share > 0]

    def distance_merged(self) -> float:
        """Return what differs when all heads whose [W w] are within tolerance are merged."""
        label = places_nearly(np.concatenate(self.rows), self.tolerance)
        total = np.zeros((len(label), self.v[0].shape[1]))
        np.add.at(total, label, np.concatenate([self.v[0], -self.v[1]]))
        return math.hypot(np.linalg.norm(total), self.constant)


def largest_share(
    v: tuple[Array, Array], share: Callable[[int, int], float], errors: Mapping[str, float]
) -> float:
    """Return the largest share of a certificate's bounds that heads take, matched one to one.

    ``share`` says what two heads take of them; a head without a partner takes ‖v‖ over the bound
    on v. If heads can be matched within all bounds, they are.
    """
    cost = np.array([[share(g, h) for h in range(len(v[1]))] for g in range(len(v[0]))])
    cost = cost.reshape(len(v[0]), len(v[1]))
    alone, missing = (np.array([share_of(norm_of(x), errors, "v") for x in rows]) for rows in v)
    # one share above 1 weighs more than any number below; beyond, shares differ by many orders
    count = 1.0 + sum(cost.shape)

    def weight(x: Array) -> Array:
        return np.where(x <= 1, x / count, 1 + np.log(np.clip(x, 1, np.finfo(float).max)))

    places = match(weight(cost), weight(alone), weight(missing))
    whole = np.block([[cost, alone[:, None]], [missing, np.zeros(1)]])
    return max((float(whole[g, h]) for _, g, h in places), default=0.0)


def matched_heads(a: MultiHead, b: MultiHead, tolerance: Tolerance) -> HeadMatching:
    """Match the heads of two canonical models by their [W w]."""
    return HeadMatching(a, b, (score_rows(a), score_rows(b)), tolerance)


def pairs_of(a: MultiHead, b: MultiHead, places: Places) -> HeadPairs:
    """Return the heads at these places; beside one without a partner is one with v = 0."""
    nothing = SingleHead(np.zeros((a.dim, a.dim)), np.zeros(a.dim))
    heads, others = [*a.heads, nothing], [*b.heads, nothing]
    return [(heads[g], others[h]) for g, h in places]


def score_rows(model: MultiHead | MultiHeadTransformer) -> Array:
    """Return [W w] of every head as a row."""
    return np.column_stack([model.W.reshape(model.H, model.dim**2), model.w])


def _in_order(rows: Array) -> list[bytes]:
    """Return what sorts as the rows do: floats as integers of the same order, highest byte first.

    Rows may be long: 10⁵ entries and more.
    """
    bits = np.ascontiguousarray(rows).view(np.uint64)
    sign = np.uint64(2**63)
    return [row.tobytes() for row in np.where(bits < sign, bits + sign, ~bits).astype(">u8")]


def sum_of_rows(v: Array) -> Array:
    """Add up rows, exactly but for one rounding: in any order the same."""
    if len(v) == 1:
        return np.asarray(v[0])
    return np.array([math.fsum(column) for column in v.T.tolist()])


def distances(mine: Array, other: Array, tolerance: Tolerance) -> tuple[Array, Array]:
    """Return how far rows are apart relative to the larger, and whether that is within tolerance.

    Norms are taken in units that are powers of two, so that no square leaves float64.
    """
    relative = np.zeros((len(mine), len(other)))
    close = np.full(relative.shape, True)
    for g, h in np.ndindex(relative.shape):
        unit = octave(max(largest_of(mine[g]), largest_of(other[h])))
        x, y = mine[g] / unit, other[h] / unit
        difference = float(np.linalg.norm(x - y))
        size = float(max(np.linalg.norm(x), np.linalg.norm(y)))
        close[g, h] = tolerance.allows(difference, size, unit)
        relative[g, h] = difference / size if size else 0.0
    return relative, close


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
