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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.attention import score_gradient, token_scores
from unsoftmax.models.equality.equivalence import (
    Equivalence,
    ModelEquality,
    Tolerance,
    norm_of,
    share_of,
)
from unsoftmax.models.equality.head_matching import (
    HeadPairs,
    canonical_heads,
    equal_exactly,
    largest_share,
    matched_heads,
    pairs_of,
)
from unsoftmax.models.equality.single_head_equality import SingleHeadEquality
from unsoftmax.models.equality.witnesses import WitnessTuning, candidates, witness_of
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.multi_head import MultiHead
from unsoftmax.models.single_head import SingleHead
from unsoftmax.probes import Array


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
    aimed: float = 64.0
    """A bound on the function holds for nearly all sequences of a kind, not for those that are
    chosen to differ most: at these, targets passed the bounds of their recoveries by up to 4.4
    (12 runs with heads 1e-9 apart). Other models pass them by millions."""
    reach: float = 30.0
    """It says nothing of logits beyond those of hold-outs, where heads 1e-9 apart may open and
    close at different tokens."""
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
        forms = canonical_heads(a), canonical_heads(b)
        matching = matched_heads(*forms, tolerance)
        gap, differing = matching.gap()
        within = matching.allows(matching.distance())
        if equal_exactly(a, b) if tolerance.exact else within:
            return Equivalence("equal", None, gap)
        if matching.allows(matching.distance_merged()):
            return Equivalence.unequal(None, gap)
        families = self._sequences(a, b, pairs_of(*forms, differing))
        return Equivalence.unequal(witness_of(a, b, families, self._rounding, self.enough), gap)

    def share(self, a: MultiHead, b: MultiHead, errors: Mapping[str, float]) -> float:
        """Compare heads one to one with the bound on each parameter; c with its own.

        A head without a partner may be one whose v is within the bound on v. Where the function
        alone is bounded, answers are compared with that.
        """
        if "W" not in errors and {"constant", "slope"} & errors.keys():
            return self._share_of_function(a, b, errors)
        a, b = canonical_heads(a), canonical_heads(b)
        rule = SingleHeadEquality(witnesses=self.witnesses)
        heads, others = a.heads, b.heads

        def share(g: int, h: int) -> float:
            return rule.share(heads[g], others[h], errors)

        return max(share_of(abs(a.c - b.c), errors, "c"), largest_share((a.v, b.v), share, errors))

    def _share_of_function(self, a: MultiHead, b: MultiHead, errors: Mapping[str, float]) -> float:
        """Compare answers to aimed sequences with constant + slope·max‖x_i‖."""
        forms = canonical_heads(a), canonical_heads(b)
        differing = pairs_of(*forms, matched_heads(*forms, Tolerance(0.0, 0.0)).gap()[1])
        constant, slope = (errors.get(name, 0.0) for name in ("constant", "slope"))
        worst = 0.0
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for X in self._sequences(a, b, differing):
                beyond = np.abs(a(X) - b(X)) - self._rounding(a, X) - self._rounding(b, X)
                allowed = constant + slope * np.linalg.norm(X, axis=2).max(axis=1)
                told = (beyond > 0) & (self._logits(a, X) < self.reach)
                told &= self._logits(b, X) < self.reach
                share = np.where(told, beyond / (self.aimed * allowed), 0.0)
                worst = max(worst, float(np.max(np.nan_to_num(share, nan=0.0), initial=0.0)))
        return worst

    def _logits(self, model: MultiHead, X: Array) -> Array:
        """Return the largest differences between scores of one sequence, (B,)."""
        scores = token_scores(X, model.scores_of(X[:, -1]))
        return np.asarray(np.max(np.ptp(scores, axis=2), axis=1, initial=0.0))

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
