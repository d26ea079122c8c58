"""Do several heads with rotary positions compute the same function? Decided on their heads.

Heads of equal scores are one, whose v is the sum of theirs, and heads with v = 0 are none. What
is left is matched one to one by all W(Δ), as heads without positions are by W (Proposition 7.1):
at distance 1 alone these are linearly independent functions of offsets that are long.

The canonical form orders heads by the size of v times that of their keys, the largest first:
rounding changes it in the last digits only. Heads for which it is nearly the same, as for copies of
one head in other coordinates, may still stand in another order in a recovery than in its target;
`equivalent` matches heads, wherever they stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.equality.equivalence import (
    Equivalence,
    ModelEquality,
    Tolerance,
    norm_of,
    share_of,
)
from unsoftmax.models.equality.head_matching import HeadMatching, Places, largest_share, sum_of_rows
from unsoftmax.models.equality.rotary_head_equality import RotaryHeadEquality, scores_apart
from unsoftmax.models.equality.witnesses import witness_of
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.multi_head import MultiHead
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.models.rotary_heads import RotaryHeads
from unsoftmax.models.single_head import SingleHead
from unsoftmax.probes import Array

RotaryHeadPairs = list[tuple[RotaryHead, RotaryHead]]


@dataclass(frozen=True, slots=True)
class RotaryHeadsEquality(ModelEquality[RotaryHeads]):
    """Models are equal if their heads are, matched one to one."""

    model: ClassVar[type[FrozenModel]] = RotaryHeads

    head: RotaryHeadEquality = field(default=RotaryHeadEquality())
    """The rule of one head."""
    pairs_tried: int = 8
    """Pairs of heads, those that differ most, that sequences are made for."""

    def canonical(self, model: RotaryHeads) -> RotaryHeads:
        """Return the model that stands for all that compute the same function."""
        groups: dict[bytes, list[RotaryHead]] = {}
        for head in model.heads:
            form = _without_empty_planes(self.head.canonical(head))
            groups.setdefault(_score_bytes(form), []).append(form)
        kept = []
        for group in groups.values():
            v = sum_of_rows(np.array([head.v for head in group]))
            if np.any(v):
                kept.append(_with_value(group[0], v))
        return RotaryHeads.of(sorted(kept, key=_place), model.dim, model.c)

    def simplest(self, model: RotaryHeads) -> FrozenModel:
        """Return heads of which no plane turns as heads without positions."""
        if any(np.any(head.rotary.folded) for head in model.heads):
            return model
        w = np.einsum("hrd,hr->hd", model.K, model.q_bias)
        return MultiHead.from_factors(model.K, model.Q, model.v, w, c=model.c)

    def read(self, model: FrozenModel) -> RotaryHeads | None:
        """Return one head, or heads without positions, as heads with them."""
        if isinstance(model, RotaryHeads):
            return model
        if isinstance(model, (RotaryHead, SingleHead)):
            heads, c = [self.head.read(model)], model.c
        elif isinstance(model, MultiHead):
            heads, c = [self.head.read(head) for head in model.heads], model.c
        else:
            return None
        return RotaryHeads.of([head for head in heads if head is not None], model.dim, c)

    def compare(self, a: RotaryHeads, b: RotaryHeads, tolerance: Tolerance) -> Equivalence:
        """Match the heads of the canonical forms, and compare all v and c as one block."""
        a_form, b_form = self.canonical(a), self.canonical(b)
        matching = self._matching(a_form, b_form, tolerance)
        gap, pairs = matching.gap()
        same = matching.allows(matching.distance())
        if tolerance.exact:
            same = _same_arrays(a_form, b_form)
        if same:
            return Equivalence("equal", None, gap)
        if matching.allows(matching.distance_merged()):
            return Equivalence.unequal(None, gap)
        families = self._sequences(a, b, _pairs_of(a_form, b_form, pairs))
        return Equivalence.unequal(witness_of(a, b, families, self._rounding), gap)

    def share(self, a: RotaryHeads, b: RotaryHeads, errors: Mapping[str, float]) -> float:
        """Compare heads one to one with the bound on each parameter; c with its own.

        A head without a partner may be one whose v is within the bound on v.
        """
        a, b = self.canonical(a), self.canonical(b)
        nearly = [[head.scores.whole(1)[:-1, :-1] for head in model.heads] for model in (a, b)]

        def share(g: int, h: int) -> float:
            # where bounds on W(1) tell heads apart, all other distances need not be looked at
            near = share_of(norm_of(nearly[0][g] - nearly[1][h]), errors, "W")
            return near if near > 1 else self.head.share(a.heads[g], b.heads[h], errors)

        return max(share_of(abs(a.c - b.c), errors, "c"), largest_share((a.v, b.v), share, errors))

    def _matching(self, a: RotaryHeads, b: RotaryHeads, tolerance: Tolerance) -> HeadMatching:
        """Match heads by W(Δ), with biases, at as many distances as tell any two apart."""
        planes = a.frequencies.shape[1] + b.frequencies.shape[1]
        several = range(max(self.head.farthest, 2 * planes) + 1)

        def rows(model: RotaryHeads) -> Array:
            whole = [[head.scores.whole(n).ravel() for n in several] for head in model.heads]
            return np.reshape(whole, (model.H, len(several) * (model.dim + 1) ** 2))

        return HeadMatching(a, b, (rows(a), rows(b)), tolerance)

    def _sequences(
        self, a: RotaryHeads, b: RotaryHeads, differing: RotaryHeadPairs
    ) -> Iterator[Array]:
        """Make sequences that tell Σ v and c apart, then those of the heads that differ."""
        none, still = np.zeros((0, a.dim)), Rotary([])
        sums = [RotaryHead(none, none, m.v.sum(axis=0), still, c=m.c) for m in (a, b)]
        for mine, other in [(sums[0], sums[1]), *differing[: self.pairs_tried]]:
            _, distance, _ = scores_apart(mine.scores, other.scores, self.head.farthest)
            yield from self.head.sequences(mine, other, distance)

    def _rounding(self, model: RotaryHeads, X: Array) -> Array:
        """Bound the rounding of answers: that of every head, and of the sum."""
        each = [self.head.rounding(head, X) for head in model.heads]
        constant = self.head.roundoffs * UNIT * abs(model.c)
        return np.asarray(np.sum([np.full(len(X), constant), *each], axis=0))


def _pairs_of(a: RotaryHeads, b: RotaryHeads, places: Places) -> RotaryHeadPairs:
    """Return the heads at these places; beside one without a partner is one with v = 0."""
    none = np.zeros((0, a.dim))
    nothing = RotaryHead(none, none, np.zeros(a.dim), Rotary([]))
    heads, others = [*a.heads, nothing], [*b.heads, nothing]
    return [(heads[g], others[h]) for g, h in places]


def _without_empty_planes(head: RotaryHead) -> RotaryHead:
    """Leave out planes in which keys or queries are 0."""
    rows = [
        np.column_stack([matrix, bias]).reshape(len(head.rotary), 2 * head.dim + 2)
        for matrix, bias in ((head.K, head.k_bias), (head.Q, head.q_bias))
    ]
    kept = np.flatnonzero(np.any(rows[0] != 0, axis=1) & np.any(rows[1] != 0, axis=1))
    both = np.sort(np.concatenate([2 * kept, 2 * kept + 1]))
    biases = {"k_bias": head.k_bias[both], "q_bias": head.q_bias[both]}
    rotary = Rotary(head.rotary.frequencies[kept])
    return RotaryHead(head.K[both], head.Q[both], head.v, rotary, **biases, c=head.c)


def _score_bytes(head: RotaryHead) -> bytes:
    scores = [head.rotary.frequencies, head.K, head.Q, head.k_bias, head.q_bias]
    return b"".join((x + 0.0).tobytes() for x in scores)


def _place(head: RotaryHead) -> tuple[float, list[float], bytes]:
    """Return what heads are ordered by; what follows the weight decides exact ties alone.

    The size of keys counts beside that of v, which heads may share.
    """
    keys = norm_of(np.column_stack([head.K, head.k_bias]))
    return -norm_of(head.v) * keys, head.v.tolist(), _score_bytes(head)


def _with_value(head: RotaryHead, v: Array) -> RotaryHead:
    return RotaryHead.from_arrays({**head.arrays(), "v": v})


def _same_arrays(a: RotaryHeads, b: RotaryHeads) -> bool:
    mine, other = a.arrays(), b.arrays()
    return all(np.array_equal(mine[name], other[name]) for name in mine)
