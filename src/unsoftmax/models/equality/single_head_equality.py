"""Do two heads compute the same function? They do if their parameters are equal, but for v = 0.

Two queries [x] give v and c, and f([(a+b); b]) = b·v + c + (a·v)·σ(a·(W b + w)) gives W and w
where v ≠ 0. So the canonical form sets W = 0 and w = 0 when v = 0, and is otherwise the head. At
tolerance 0 products W = KᵀQ are compared as real numbers, unrounded (`exact_products`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.attention import token_scores
from unsoftmax.models.equality.equivalence import Equivalence, ModelEquality, Tolerance, norm_of
from unsoftmax.models.equality.exact_products import same_scores
from unsoftmax.models.equality.witnesses import WitnessTuning, candidates, witness_of
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.single_head import SingleHead
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class SingleHeadEquality(ModelEquality[SingleHead]):
    """Heads are equal if [W w] and [v c] are."""

    model: ClassVar[type[FrozenModel]] = SingleHead

    roundoffs: float = 128.0
    """Rounding of an answer, in roundoffs of its terms and per dimension. Too small: rounding
    passes for a difference; too large: small differences stay undecided."""
    witnesses: WitnessTuning = field(default=WitnessTuning())

    def canonical(self, model: SingleHead) -> SingleHead:
        """Return the head, without W and w where v = 0."""
        if np.any(model.v):
            return model
        return SingleHead(np.zeros((model.dim, model.dim)), np.zeros(model.dim), None, model.c)

    def read(self, model: FrozenModel) -> SingleHead | None:
        """Return a head as it is; nothing else is one."""
        return model if isinstance(model, SingleHead) else None

    def compare(self, a: SingleHead, b: SingleHead, tolerance: Tolerance) -> Equivalence:
        """Compare [W w] and [v c], each as one block."""
        a, b = self.canonical(a), self.canonical(b)
        compared = [
            tolerance.compare(mine, other)
            for mine, other in zip(_blocks(a), _blocks(b), strict=True)
        ]
        gap = max(gap for _, gap in compared)
        within = all(within for within, _ in compared)
        if tolerance.exact:
            within = same_scores(a, b) and np.array_equal(a.v, b.v) and a.c == b.c
        if within:
            return Equivalence("equal", None, gap)
        families = candidates(a, b, self.witnesses)
        return Equivalence.unequal(witness_of(a, b, families, self._rounding), gap)

    def _rounding(self, head: SingleHead, X: Array) -> Array:
        """Bound the rounding of answers: of values, and of scores, which move the weights."""
        scores = np.abs(token_scores(X, head.scores_of(X[:, -1]))).max(axis=1)
        size = np.linalg.norm(X, axis=2).max(axis=1) * norm_of(head.v) + abs(head.c)
        size = size + np.ptp(X @ head.v, axis=1) * scores
        return np.asarray(self.roundoffs * UNIT * head.dim * size)


def _blocks(head: SingleHead) -> tuple[Array, Array]:
    return np.column_stack([head.W, head.w]), np.append(head.v, head.c)
