"""Do two multi-head models compute the same function? Decided on their heads.

With n copies of a+b and one b a head answers b·v + (a·v)·σ(t + ln n), t = a·(W b + w). In the
length of a its poles are at (±iπ − ln n)/t: for n = 2 they are others for every other t, and a
head with t = 0 has none. So heads with different (W, w) and v ≠ 0 are linearly independent
already on sequences of at most three tokens, and functions are equal exactly if the heads are:
those with equal (W, w) merged by adding up their v (Proposition 7.1), those with v = 0 dropped.
Two tokens, each once, do not suffice: σ(t) = 1 − σ(−t), so there the head (W, w, v) is what
(−W, −w, −v) and (0, 0, 2v) are together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.attention import score_gradient
from unsoftmax.models.equality.equivalence import (
    Equivalence,
    ModelEquality,
    Tolerance,
    largest_of,
    norm_of,
    octave,
)
from unsoftmax.models.equality.witnesses import WitnessTuning, candidates, witness_of
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.multi_head import MultiHead
from unsoftmax.models.single_head import SingleHead
from unsoftmax.probes import Array

HeadPairs = list[tuple[SingleHead, SingleHead]]


@dataclass(frozen=True, slots=True)
class MultiHeadEquality(ModelEquality[MultiHead]):
    """Models are equal if their heads are, matched one to one."""

    model: ClassVar[type[FrozenModel]] = MultiHead

    pairs_tried: int = 8
    """Pairs of heads, those that differ most, that sequences are made for. Each costs up to
    16,000 answers of both models; with fewer a difference in another pair may stay undecided."""
    enough: float = 2.0**10
    """The search ends at a sequence that differs by this many times the rounding: larger ones
    show no more."""
    most_moved: float = 0.1
    """A sequence whose scores rounding may move further says nothing; 0.3 at most, where the
    bound on what they move the answer ends."""
    witnesses: WitnessTuning = field(default=WitnessTuning())

    def canonical(self, model: MultiHead) -> MultiHead:
        """Return the model that stands for all that compute the same function."""
        return canonical_heads(model)

    def read(self, model: FrozenModel) -> MultiHead | None:
        """Return one head as the only one of a model."""
        if isinstance(model, SingleHead):
            arrays = model.arrays()
            return MultiHead.from_arrays({n: x if n == "c" else x[None] for n, x in arrays.items()})
        return model if isinstance(model, MultiHead) else None

    def compare(self, a: MultiHead, b: MultiHead, tolerance: Tolerance) -> Equivalence:
        """Match the heads of the canonical forms, and compare all v and c as one block."""
        matching = _HeadMatching(canonical_heads(a), canonical_heads(b), tolerance)
        gap, differing = matching.gap()
        within = matching.allows(matching.distance())
        if _exactly(a, b) if tolerance.exact else within:
            return Equivalence("equal", None, gap)
        if matching.allows(matching.distance_merged()):
            return Equivalence.unequal(None, gap)
        families = self._sequences(a, b, differing)
        return Equivalence.unequal(witness_of(a, b, families, self._rounding, self.enough), gap)

    def _sequences(self, a: MultiHead, b: MultiHead, differing: HeadPairs) -> Iterator[Array]:
        """Make sequences of one to three tokens, at scales where the heads that differ weigh."""
        nothing = np.zeros((a.dim, a.dim))
        sums = [SingleHead(nothing, m.v.sum(axis=0), None, m.c) for m in (a, b)]
        for mine, other in [(sums[0], sums[1]), *differing[: self.pairs_tried]]:
            for X in candidates(mine, other, self.witnesses):
                yield X
                if X.shape[1] == 2:
                    yield X[:, [0, 0, 1]]
                    # another pair's offset beside the first
                    shift = self.witnesses.pairs_per_offset
                    beside = np.roll(X[:, 0] - X[:, 1], shift, axis=0) + X[:, 1]
                    yield np.stack([X[:, 0], beside, X[:, 1]], axis=1)

    def _rounding(self, model: MultiHead, X: Array) -> Array:
        """Bound the rounding of answers: of values, and of scores, which move the weights."""
        norms = np.linalg.norm(X, axis=2)
        longest = norms.max(axis=1)
        # sums of d, N and H terms err by as many roundoffs of their size; 8 times that is ample
        sums = 8 * (model.dim + X.shape[1] + model.H + 8) * UNIT
        heads = np.array([norm_of(v) for v in model.v])
        noise: Array = sums * (longest * heads.sum() + abs(model.c))
        values = model.v @ X.transpose(0, 2, 1)
        spread = np.abs(score_gradient(model.attention(X), values)).sum(axis=2)
        product = np.ones(model.H)
        for name, array in model.arrays().items():
            if name in "WKQ":
                product = product * [norm_of(x) for x in array]
        vectors = np.outer(norms[:, -1], product) + [norm_of(w) for w in model.w]
        moved = sums * longest[:, None] * vectors
        # scores that move by m move a mean by (e^{2m} − 1)·spread at most, below 3m for m ≤ 0.3
        from_scores = np.where(moved < self.most_moved, 3 * moved * spread, np.inf)
        return np.asarray(noise + np.sum(from_scores, axis=1))


def canonical_heads(model: MultiHead) -> MultiHead:
    """Return the model that stands for all that compute the same function.

    Heads with equal (W, w) are one and their v is added up, rounded once; those with v = 0 are
    left out; the rest is ordered by W, then w, entry by entry.
    """
    scores = _scores(model) + 0.0  # −0 becomes 0
    keys = _in_order(scores)
    kept: list[int] = []
    v: list[Array] = []
    group: list[int] = []
    order = sorted(range(model.H), key=keys.__getitem__)
    for here, after in zip(order, [*order, None][1:], strict=True):
        group.append(here)
        if after is not None and keys[here] == keys[after]:
            continue
        total = model.v[here] if len(group) == 1 else _sum(model.v[group])
        if np.any(total):
            kept.append(here)
            v.append(total + 0.0)
        group = []
    d = model.dim
    values = np.array(v).reshape(len(v), d)
    return MultiHead(
        scores[kept, : d * d].reshape(-1, d, d), values, scores[kept, d * d :], model.c
    )


class _HeadMatching:
    """The heads of two canonical models, matched by [W w]; v and c in units of a power of two.

    Matched heads' [W w] differ by at most the tolerance. All v and c then count as one block, in
    which a head without a partner differs by its v.
    """

    def __init__(self, a: MultiHead, b: MultiHead, tolerance: Tolerance) -> None:
        self.a, self.b, self.tolerance = a, b, tolerance
        self.unit = octave(max(largest_of(np.append(m.v, m.c)) for m in (a, b)))
        self.v = a.v / self.unit, b.v / self.unit
        self.c = a.c / self.unit, b.c / self.unit
        norms = (math.hypot(np.linalg.norm(v), c) for v, c in zip(self.v, self.c, strict=True))
        self.size = max(norms)
        self.relative, self.close = _distances(_scores(a), _scores(b), tolerance)
        self.apart = np.linalg.norm(self.v[0][:, None] - self.v[1], axis=2)
        self.alone, self.missing = (np.linalg.norm(v, axis=1) for v in self.v)
        self.constant = abs(self.c[0] - self.c[1])

    def allows(self, distance: float) -> bool:
        """Tell whether a distance between all v and c is within the tolerance."""
        return self.tolerance.allows(distance, self.size, self.unit)

    def distance(self) -> float:
        """Return the norm of what differs in v and c, heads beyond the tolerance unmatched."""
        cost = np.where(self.close, self.apart**2, np.inf)
        matched = _match(cost, self.alone**2, self.missing**2)
        return math.sqrt(self.constant**2 + sum(share for share, _, _ in matched))

    def gap(self) -> tuple[float, HeadPairs]:
        """Return the largest relative difference, and the heads that differ, the worst first.

        A head without a partner stands beside one with v = 0.
        """
        scale = self.size or 1.0
        cost = np.maximum(self.relative, self.apart / scale)
        best = _match(cost, self.alone / scale, self.missing / scale)
        gap = max([self.constant / scale, *(share for share, _, _ in best)])
        nothing = SingleHead(np.zeros((self.a.dim, self.a.dim)), np.zeros(self.a.dim))
        heads, others = [*self.a.heads, nothing], [*self.b.heads, nothing]
        best.sort(key=lambda found: -found[0])
        return gap, [(heads[g], others[h]) for share, g, h in best if share > 0]

    def distance_merged(self) -> float:
        """Return what differs when all heads whose [W w] are within tolerance are merged."""
        scores = np.concatenate([_scores(self.a), _scores(self.b)])
        _, close = _distances(scores, scores, self.tolerance)
        label = np.arange(len(scores))
        for _ in label:  # as many steps as a chain of neighbours can have
            label = np.min(np.where(close, label, len(label)), axis=1)
        total = np.zeros((len(scores), self.a.dim))
        np.add.at(total, label, np.concatenate([self.v[0], -self.v[1]]))
        return math.hypot(np.linalg.norm(total), self.constant)


def _scores(model: MultiHead) -> Array:
    """Return [W w] of every head as a row."""
    return np.column_stack([model.W.reshape(model.H, model.dim**2), model.w])


def _in_order(rows: Array) -> list[bytes]:
    """Return what sorts as the rows do: floats as integers of the same order, highest byte first.

    Rows may be long: 10⁵ entries and more.
    """
    bits = np.ascontiguousarray(rows).view(np.uint64)
    sign = np.uint64(2**63)
    return [row.tobytes() for row in np.where(bits < sign, bits + sign, ~bits).astype(">u8")]


def _sum(v: Array) -> Array:
    """Add up rows, exactly but for one rounding: in any order the same."""
    return np.array([math.fsum(column) for column in v.T.tolist()])


def _exactly(a: MultiHead, b: MultiHead) -> bool:
    """Decide whether a − b is 0, without rounding."""
    difference = MultiHead(
        np.concatenate([a.W, b.W]), np.concatenate([a.v, -b.v]), np.concatenate([a.w, b.w])
    )
    return a.c == b.c and not canonical_heads(difference).H


def _distances(mine: Array, other: Array, tolerance: Tolerance) -> tuple[Array, Array]:
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


def _match(cost: Array, alone: Array, missing: Array) -> list[tuple[float, int, int]]:
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
