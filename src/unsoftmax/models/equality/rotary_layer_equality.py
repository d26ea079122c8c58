"""Do two layers with rotary positions compute the same function? Decided head by head.

As without positions, heads of different scores and M_h = O_h V_g ≠ 0 are linearly independent, so
layers are equal if c, the residual and the heads are, merged and without those that add nothing.
Whether scores are equal is decided as for one head (`rotary_head_equality`): by all W(Δ).

The canonical form shares nothing, so that layers stored in groups and head by head have one form:
every head has the planes of one head's canonical form, and O V = M with orthonormal columns of O;
heads are ordered by ‖M‖, the largest first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.attention_layer import AttentionLayer, LayerHead
from unsoftmax.models.equality.equivalence import (
    Equivalence,
    ModelEquality,
    Tolerance,
    norm_of,
    share_of,
)
from unsoftmax.models.equality.head_matching import match
from unsoftmax.models.equality.rotary_head_equality import RotaryHeadEquality, scores_apart
from unsoftmax.models.equality.witnesses import witness_of
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.products import Product
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.models.rotary_layer import RotaryLayer
from unsoftmax.probes import Array

Pairs = list[tuple[float, int, int]]


@dataclass(frozen=True, slots=True)
class RotaryLayerEquality(ModelEquality[RotaryLayer]):
    """Layers are equal if residual, c and heads are, matched one to one."""

    model: ClassVar[type[FrozenModel]] = RotaryLayer

    roundoffs: float = 8.0
    """Rounding of a product, in roundoffs and per dimension: heads whose scores are closer are
    one, and smaller M are none; see `AttentionLayerEquality`."""
    lost: float = 64.0
    """Roundoffs that an answer may be off by, of its terms and per root of their number."""
    tokens: int = 8
    """Random sequences of each length and size that are tried for a witness."""
    sizes: int = 8
    """Powers of 4 up and down that their tokens are long."""
    heads: RotaryHeadEquality = field(default=RotaryHeadEquality())
    """How scores are compared, and their canonical form."""

    def canonical(self, model: RotaryLayer) -> RotaryLayer:
        """Return the layer that stands for all that compute the same function."""
        kept = [(M.compact(), h) for M, h in self._merged(model)]
        kept.sort(key=lambda pair: -float(np.linalg.norm(pair[0].right)))
        s, d = max((len(M.right) for M, _ in kept), default=0), model.dim
        O, V = np.zeros((len(kept), model.outputs, s)), np.zeros((len(kept), s, d))  # noqa: E741
        forms = []
        for place, (M, h) in enumerate(kept):
            O[place, :, : len(M.right)], V[place, : len(M.right)] = M.left, M.right
            forms.append(self.heads.canonical(_alone(model, h)))
        rotary = forms[0].rotary if forms else Rotary([])
        none = np.zeros((0, 2 * len(rotary)))
        K, Q = (
            np.array([getattr(form, name) for form in forms] or np.zeros((0, 0, d)))
            for name in "KQ"
        )
        b_k, b_q = (
            np.array([getattr(form, name) for form in forms] or none)
            for name in ("k_bias", "q_bias")
        )
        residual, norm = model.residual, model.norm
        return RotaryLayer(
            O, V, K, Q, model.c, rotary, k_bias=b_k, q_bias=b_q, residual=residual, norm=norm
        )

    def _merged(self, model: RotaryLayer) -> list[tuple[Product, int]]:
        """Add up M of heads with equal scores, and leave out those whose M is 0."""
        rounding = self.roundoffs * UNIT * max(model.dim, model.outputs)
        sizes = [model.values_of(h).norm for h in range(model.H)]
        kept: list[tuple[Product, int, float]] = []
        for h, size in enumerate(sizes):
            M = model.values_of(h)
            for place, (total, other, whole) in enumerate(kept):
                if self._alike(model, h, other, rounding):
                    kept[place] = total + M, other, whole + size
                    break
            else:
                kept.append((M, h, 0.0))
        return [(M, h) for M, h, whole in kept if M.norm > rounding * whole]

    def _alike(self, model: RotaryLayer, h: int, other: int, rounding: float) -> bool:
        """Tell whether two heads' scores are the same but for rounding."""
        mine, its = model.scores_of(h), model.scores_of(other)
        near = Product(mine.arrays["K"].T, mine.arrays["Q"])
        size = near.norm
        if (near - Product(its.arrays["K"].T, its.arrays["Q"])).norm > rounding * size:
            return False
        whole, _, apart = scores_apart(mine, its, self.heads.farthest)
        return apart <= rounding * whole

    def simplest(self, model: RotaryLayer) -> FrozenModel:
        """Return planes that do not turn as a layer without positions; one output as heads."""
        if not np.any(model.rotary.folded):
            heads = []
            for h, g in enumerate(model.groups):
                w = model.K[g].T @ model.q_bias[h]
                heads.append(
                    LayerHead.from_factors(model.O[h], model.V[g], model.K[g], model.Q[h], w)
                )
            return AttentionLayer(heads, model.c, model.residual, dim=model.dim)
        if model.outputs > 1 or model.residual:
            return model
        if model.H == 1:
            return _alone(model, 0, (model.O[0] @ model.V[0])[0], float(model.c[0]))
        return model.coordinate([1.0])

    def read(self, model: FrozenModel) -> RotaryLayer | None:
        """Return a layer without positions and norm as one whose planes do not turn."""
        if isinstance(model, RotaryLayer):
            return model
        if not isinstance(model, AttentionLayer) or model.norm is not None:
            return None
        values, scores = ([getattr(x, n) for x in model.heads] for n in ("values", "scores"))
        d, H = model.dim, model.H
        s = max((len(M.right) for M in values), default=0)
        r = max((len(A.right) for A in scores), default=0)
        r += r % 2
        O, V = np.zeros((H, model.outputs, s)), np.zeros((H, s, d))  # noqa: E741
        K, Q, q_bias = np.zeros((H, r, d)), np.zeros((H, r, d)), np.zeros((H, r))
        for h, (M, A) in enumerate(zip(values, scores, strict=True)):
            O[h, :, : len(M.right)], V[h, : len(M.right)] = M.left, M.right
            K[h, : len(A.right)], Q[h, : len(A.right)] = A.left.T, A.right[:, :-1]
            q_bias[h, : len(A.right)] = A.right[:, -1]
        still = Rotary(np.zeros(r // 2))
        return RotaryLayer(O, V, K, Q, model.c, still, q_bias=q_bias, residual=model.residual)

    def compare(self, a: RotaryLayer, b: RotaryLayer, tolerance: Tolerance) -> Equivalence:
        """Match the heads of the canonical forms; all M and c are one block."""
        if a.outputs != b.outputs:
            return Equivalence("different", None, float("inf"), "shape")
        mine, other = self.canonical(a), self.canonical(b)
        pairs, scores = self._matched(mine, other)
        sizes = [*mine.c, *other.c, *(x.values_of(h).norm for x in (mine, other) for h in _of(x))]
        size = float(np.linalg.norm(sizes)) or 1.0
        off = [_values_apart(mine, other, g, h) for _, g, h in pairs]
        values = float(np.linalg.norm([*off, norm_of(mine.c - other.c)]))
        worst = max(scores, key=lambda found: found[0], default=(0.0, 0, True))
        within = all(tolerance.allows(gap, 1.0) or alike for gap, _, alike in scores)
        same = within and tolerance.allows(values, size) and a.residual == b.residual
        if tolerance.exact:
            same = _same_arrays(mine, other) or _same_arrays(a, b)
        gap = max(worst[0], values / size) if a.residual == b.residual else float("inf")
        if same:
            return Equivalence("equal", None, gap)
        families = self._sequences(mine, other, worst[1])
        return Equivalence.unequal(witness_of(a, b, families, self._rounding), gap)

    def _matched(
        self, a: RotaryLayer, b: RotaryLayer
    ) -> tuple[Pairs, list[tuple[float, int, bool]]]:
        """Match heads by scores at one token and by M; return how far matched scores are apart."""
        cost = np.zeros((a.H, b.H))
        near = [[_at_one(x, h) for h in _of(x)] for x in (a, b)]
        alone, missing = (np.array([x.values_of(h).norm for h in _of(x)]) for x in (a, b))
        whole = float(np.linalg.norm([*alone, *missing])) or 1.0
        for g, h in np.ndindex(cost.shape):
            size = max(near[0][g].norm, near[1][h].norm) or 1.0
            scores = (near[0][g] - near[1][h]).norm / size
            cost[g, h] = scores + _values_apart(a, b, g, h) / whole
        pairs = match(cost, 2 + alone / whole, 2 + missing / whole)
        scores_of = []
        for _, g, h in pairs:
            if g >= 0 and h >= 0:
                size, distance, apart = scores_apart(
                    a.scores_of(g), b.scores_of(h), self.heads.farthest
                )
                scores_of.append((apart / size if size else 0.0, distance, not size))
        return pairs, scores_of

    def share(self, a: RotaryLayer, b: RotaryLayer, errors: Mapping[str, float]) -> float:
        """Compare W(Δ) for distances up to ``farthest``, M and c with the bound on each."""
        if a.outputs != b.outputs or a.residual != b.residual:
            return float("inf")
        a, b = self.canonical(a), self.canonical(b)
        shares = [share_of(norm_of(a.c - b.c), errors, "c")]
        for _, g, h in self._matched(a, b)[0]:
            shares.append(share_of(_values_apart(a, b, g, h), errors, "M"))
            if g < 0 or h < 0:
                continue
            mine, its = a.scores_of(g), b.scores_of(h)
            apart = [mine.whole(n) - its.whole(n) for n in range(self.heads.farthest + 1)]
            W = max(norm_of(x[:-1, :-1]) for x in apart)
            w = max(norm_of(np.append(x[-1], x[:-1, -1])) for x in apart)
            biased = "w" in errors or w > UNIT * W
            shares += [share_of(W, errors, "W"), share_of(w, errors, "w") if biased else 0.0]
        return max(shares)

    def _sequences(self, a: RotaryLayer, b: RotaryLayer, distance: int) -> Iterator[Array]:
        """Make random sequences of all sizes, also as long as scores differ most at."""
        rng, d = np.random.default_rng(0), a.dim
        powers = np.repeat(4.0 ** np.arange(-self.sizes, self.sizes + 1.0), self.tokens)
        for length in (1, 2, 3, distance + 2, 24):
            yield powers[:, None, None] * rng.standard_normal((len(powers), length, d)) / d**0.5

    def _rounding(self, layer: RotaryLayer, X: Array) -> Array:
        """Bound the rounding of answers: of values, and of scores, which move the weights."""
        longest = np.linalg.norm(X, axis=2).max(axis=1)
        turns = 1 + X.shape[1] * float(np.max(np.abs(layer.rotary.frequencies), initial=0.0))
        size = norm_of(layer.c) + layer.residual * longest
        for h, g in enumerate(layer.groups):
            key, query = (
                longest * norm_of(matrix) + norm_of(bias)
                for matrix, bias in (
                    (layer.K[g], layer.k_bias[g]),
                    (layer.Q[h], layer.q_bias[h]),
                )
            )
            size = size + longest * layer.values_of(h).norm * (1 + key * query * turns)
        return np.asarray(self.lost * UNIT * math.sqrt(layer.dim + X.shape[1]) * size)


def _of(layer: RotaryLayer) -> range:
    return range(layer.H)


def _alone(layer: RotaryLayer, head: int, v: Array | None = None, c: float = 0.0) -> RotaryHead:
    """Return a head of a layer as one with scalar answers."""
    scores = layer.scores_of(head).arrays
    return RotaryHead(
        scores["K"],
        scores["Q"],
        np.ones(layer.dim) if v is None else v,
        layer.rotary,
        k_bias=scores["k_bias"],
        q_bias=scores["q_bias"],
        c=c,
    )


def _at_one(layer: RotaryLayer, head: int) -> Product:
    """Return W(1) with the query bias, (d, d + 1)."""
    scores = layer.scores_of(head)
    queries = np.column_stack([scores.arrays["Q"], scores.arrays["q_bias"]])
    return Product(scores.arrays["K"].T, layer.rotary.turned(queries.T, np.array(1.0)).T)


def _values_apart(a: RotaryLayer, b: RotaryLayer, g: int, h: int) -> float:
    """Return ‖M_g − M_h‖; −1 names no head."""
    if g < 0:
        return b.values_of(h).norm
    if h < 0:
        return a.values_of(g).norm
    return (a.values_of(g) - b.values_of(h)).norm


def _same_arrays(a: RotaryLayer, b: RotaryLayer) -> bool:
    mine, other = a.arrays(), b.arrays()
    return all(np.array_equal(mine[name], other[name]) for name in mine)
