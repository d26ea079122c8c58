"""Do two attention layers compute the same function? Decided on their canonical forms.

Two tokens [a+b; b] are answered with c + M b + Σ_h σ(a·(W_h b + w_h)) M_h a, M = Σ M_h, and with
several copies of a+b the gates are others (`multi_head_equality`): read through every y·o(X), heads
of different [W_h | w_h] and M_h ≠ 0 are linearly independent. So plain layers are equal exactly if
c, the residual and the heads are, merged and without those that add nothing. What no answer shows
behind a norm, or after one, is in `layer_form`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from unsoftmax.models.arrays import TINY, UNIT
from unsoftmax.models.attention_layer import AttentionLayer, LayerHead
from unsoftmax.models.equality.equivalence import (
    Equivalence,
    ModelEquality,
    Tolerance,
    largest_of,
    norm_of,
    refuse_range,
    share_of,
)
from unsoftmax.models.equality.layer_form import canonical_layer
from unsoftmax.models.equality.layer_matching import LayerMatching, LayerPairs, equal_exactly
from unsoftmax.models.equality.witnesses import WitnessTuning, candidates, witness_of
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.multi_head import MultiHead
from unsoftmax.models.products import Product
from unsoftmax.models.single_head import SingleHead
from unsoftmax.probes import Array

_NORM_PARTS = ("scale", "shift", "eps")


@dataclass(frozen=True, slots=True)
class AttentionLayerEquality(ModelEquality[AttentionLayer]):
    """Layers are equal if residual, norm, c and heads are, matched one to one."""

    model: ClassVar[type[FrozenModel]] = AttentionLayer

    roundoffs: float = 8.0
    """Rounding of a product, in roundoffs and per dimension: heads closer than this are one, and
    smaller M are none. Too small: a sum that cancels leaves a head; too large: a head is lost."""
    pairs_tried: int = 2
    """Pairs of heads, those that differ most, that sequences are made for. Fewer: a difference in
    another pair may stay undecided; each costs 3 seconds at d = 384 and 12 heads."""
    enough: float = 16.0
    """The search ends at a sequence that differs by this many times the rounding. Larger: a
    search at d = 384 takes 15 seconds more often."""
    lost: float = 8.0
    """Roundoffs that an answer may be off by, per root of a sum's terms; measured up to 1.4. Too
    small: rounding passes for a difference; too large: small differences stay undecided."""
    most_moved: float = 0.1
    """A sequence whose scores rounding may move further says nothing; 0.3 at most, where the
    bound on what they move the answer ends."""
    tokens: int = 16
    """Random sequences of each length and size: they tell norms and residuals apart."""
    sizes: int = 12
    """Powers of 4 up and down that sizes go from 1 and from √eps, where a norm bends."""
    nearly_whole: float = 1e-6
    """Tokens longer than a norm lets through are put this far below the largest length."""
    witnesses: WitnessTuning = field(default=WitnessTuning(offsets=2, powers_of_four=8))
    """Half as many sequences for a pair as for heads of one answer: they cost more."""

    def canonical(self, model: AttentionLayer) -> AttentionLayer:
        """Return the layer that stands for all that compute the same function."""
        return canonical_layer(model, self.roundoffs)

    def simplest(self, model: AttentionLayer) -> FrozenModel:
        """Return a layer of one output, without a residual and a norm, as several heads."""
        if model.outputs > 1 or model.residual or model.norm is not None:
            return model
        scores = [(head.scores, head.w) for head in model.heads]
        d, rank = model.dim, max((len(A.right) for A, _ in scores), default=0)
        K, Q = np.zeros((2, len(scores), rank, d))
        for h, (A, _) in enumerate(scores):
            K[h, : len(A.right)], Q[h, : len(A.right)] = A.left.T, A.right[:, :-1]
        v = np.array([head.M[0] for head in model.heads]).reshape(-1, d)
        w = np.array([head.w for head in model.heads]).reshape(-1, d)
        return MultiHead.from_factors(K, Q, v, w, float(model.c[0]))

    def read(self, model: FrozenModel) -> AttentionLayer | None:
        """Return a layer as it is; nothing else is one."""
        return model if isinstance(model, AttentionLayer) else None

    def compare(self, a: AttentionLayer, b: AttentionLayer, tolerance: Tolerance) -> Equivalence:
        """Match the heads of the canonical forms; all M and c are one block."""
        if a.outputs != b.outputs:
            return Equivalence("different", None, float("inf"), "shape")
        for layer in (a, b):
            refuse_range(_sizes(layer))
        first, second = self.canonical(a), self.canonical(b)
        matching = LayerMatching(first, second, tolerance)
        gap, differing = matching.gap()
        alike, norm_gap = _compare_norms(first, second, tolerance)
        gap = max(gap, norm_gap)
        within = alike and matching.allows(matching.distance())
        if equal_exactly(a, b) if tolerance.exact else within:
            return Equivalence("equal", None, gap)
        if alike and matching.allows(matching.distance_merged()):
            return Equivalence.unequal(None, gap)
        families = self._sequences(first, second, differing)
        return Equivalence.unequal(witness_of(a, b, families, self._rounding, self.enough), gap)

    def share(self, a: AttentionLayer, b: AttentionLayer, errors: Mapping[str, float]) -> float:
        """Compare the canonical forms' M, W, w head by head, c, scale, shift and eps.

        A head of ``b`` without a partner may be one whose M is within the bound on M, or one whose
        scores the bounds do not tell from another's: then the sum of their M counts.
        """
        a, b = self.canonical(a), self.canonical(b)
        if a.outputs != b.outputs or _kind(a) != _kind(b):
            return float("inf")
        shares = [share_of(norm_of(a.c - b.c), errors, "c")]
        if a.norm is not None and b.norm is not None:
            mine, its = a.norm.arrays(), b.norm.arrays()
            shares += [share_of(norm_of(mine[n] - its[n]), errors, n) for n in _NORM_PARTS]
        pairs = LayerMatching(a, b, Tolerance(0.0, 0.0)).gap()[1]
        alone = [other for one, other in pairs if one is None and other is not None]
        for one, other in pairs:
            if one is not None:
                alike = [h for h in alone if one is _nearest(a, h, errors)]
                alone = [h for h in alone if h not in alike]
                partners = alike if other is None else [other, *alike]
                shares += _head_shares(one, partners, errors)
        shares += [share_of(head.parameter_norm("M"), errors, "M") for head in alone]
        return max(shares)

    def _sequences(
        self, a: AttentionLayer, b: AttentionLayer, differing: LayerPairs
    ) -> Iterator[Array]:
        """Make sequences of any kind first, then such as are aimed at heads that differ."""
        yield from self._of_all_sizes(a, b)
        norm = a.norm if a.norm is not None and a.norm.before else None
        for one, other in [_sums(a, b), *(_seen(*pair) for pair in differing[: self.pairs_tried])]:
            for X in candidates(one, other, self.witnesses):
                for sequences in _with_copies(X, self.witnesses.pairs_per_offset):
                    yield sequences if norm is None else self._before(sequences, norm.eps)

    def _of_all_sizes(self, a: AttentionLayer, b: AttentionLayer) -> Iterator[Array]:
        """Make random sequences of one to three tokens, also beside where a norm bends."""
        rng = np.random.default_rng(0)
        powers = 4.0 ** np.arange(-self.sizes, self.sizes + 1)
        bends = {norm.eps**0.5 or 1.0 for norm in (a.norm, b.norm) if norm is not None}
        for unit in (1.0, *bends):
            sizes = np.repeat(unit * powers, self.tokens)[:, None, None]
            for length in (1, 2, 3):
                yield sizes * rng.standard_normal((len(sizes), length, a.dim))
        for layer in (a, b):
            if layer.norm is not None and not layer.norm.before:
                sizes = np.repeat((layer.norm.eps**0.5 or 1.0) * powers, self.tokens)[:, None, None]
                yield _silent_token(layer) + sizes * rng.standard_normal((len(sizes), 1, a.dim))

    def _before(self, X: Array, eps: float) -> Array:
        """Return tokens that a norm maps to these, or to the longest that there are beside them."""
        most = X.shape[2] * (1 - self.nearly_whole)
        share = np.minimum(np.sum(X * X, axis=2, keepdims=True), most) / X.shape[2]
        return np.asarray(X * np.sqrt((eps or 1.0) / (1 - share)))

    def _rounding(self, layer: AttentionLayer, X: Array) -> Array:
        """Bound the rounding of answers: of values, of scores, which move weights, and of norms."""
        # sums of n terms err as √n roundoffs of their size
        sums = self.lost * np.sqrt(layer.dim + X.shape[1] + layer.H) * UNIT
        norm, before = layer.norm, layer.norm is not None and layer.norm.before
        tokens, sizes = X, np.linalg.norm(X, axis=2)
        if norm is not None and before:
            # the norm divides what rounding makes of a token as it divides the token
            sizes = norm_of(norm.scale) * sizes / _deviation(X, norm) + norm_of(norm.shift)
            tokens = norm(X)
        longest = sizes.max(axis=1)
        M = np.array([head.parameter_norm("M") for head in layer.heads])
        noise: Array = sums * (longest * M.sum() + norm_of(layer.c))
        noise = noise + sums * layer.residual * np.linalg.norm(X[:, -1], axis=1)
        if layer.heads:
            spread = M * _spread(tokens, layer.attention(X))
            vectors = np.outer(sizes[:, -1], [_product_bound(head) for head in layer.heads])
            moved = sums * longest[:, None] * (vectors + [norm_of(head.w) for head in layer.heads])
            # scores that move by m move a mean by (e^{2m} − 1)·spread at most, below 3m for m ≤ 0.3
            noise = noise + np.where(moved < self.most_moved, 3 * moved * spread, np.inf).sum(
                axis=1
            )
        if norm is None or before:
            return noise
        plain = AttentionLayer(layer.heads, layer.c, layer.residual, dim=layer.dim)(X)
        moved = 2 * (noise + sums * np.linalg.norm(plain, axis=1)) / _deviation(plain, norm)
        return np.asarray(np.abs(norm.scale).max() * moved + sums * norm_of(norm.shift))


def _kind(layer: AttentionLayer) -> tuple[bool, ...]:
    """Return what two layers must share for their parameters to be compared."""
    norm = layer.norm
    return (layer.residual, norm is None, *(() if norm is None else (norm.before, norm.centred)))


def _compare_norms(
    a: AttentionLayer, b: AttentionLayer, tolerance: Tolerance
) -> tuple[bool, float]:
    """Tell whether scale, shift and eps are within the tolerance, and their largest difference."""
    if _kind(a) != _kind(b):
        return False, float("inf")
    if a.norm is None or b.norm is None:
        return True, 0.0
    mine, its = a.norm.arrays(), b.norm.arrays()
    compared = [tolerance.compare(mine[name], its[name]) for name in _NORM_PARTS]
    return all(within for within, _ in compared), max(gap for _, gap in compared)


def _head_shares(
    one: LayerHead, partners: list[LayerHead], errors: Mapping[str, float]
) -> list[float]:
    """Compare a head's M, W and w with the bounds, M with the sum of its partners'."""
    values = sum((-head.values for head in partners), one.values)
    scores = [share for head in partners for share in _score_shares(one, head, errors)]
    return [share_of(values.norm, errors, "M"), *scores]


def _score_shares(one: LayerHead, other: LayerHead, errors: Mapping[str, float]) -> list[float]:
    """Compare W and w of two heads with the bounds."""
    W = (_without_w(one.scores) - _without_w(other.scores)).norm
    return [share_of(W, errors, "W"), share_of(norm_of(one.w - other.w), errors, "w")]


def _nearest(a: AttentionLayer, head: LayerHead, errors: Mapping[str, float]) -> LayerHead | None:
    """Return the head of ``a`` whose scores are those of a head, within the bounds, if any."""
    found = [(max(_score_shares(one, head, errors)), one) for one in a.heads]
    share, nearest = min(found, key=lambda pair: pair[0], default=(np.inf, None))
    return nearest if share <= 1 else None


def _without_w(scores: Product) -> Product:
    """Return W of [W | w]."""
    return Product(scores.left, scores.right[:, :-1])


def _sums(a: AttentionLayer, b: AttentionLayer) -> tuple[SingleHead, SingleHead]:
    """Return what single tokens are answered with, through the output that differs most."""
    empty = Product(np.zeros((a.outputs, 0)), np.zeros((0, a.dim)))
    M, other = (sum((head.values for head in x.heads), empty) for x in (a, b))
    y = _along(M, other)
    nothing = np.zeros((a.dim, a.dim))
    return (
        SingleHead(nothing, (y @ M.left) @ M.right, None, float(y @ a.c)),
        SingleHead(nothing, (y @ other.left) @ other.right, None, float(y @ b.c)),
    )


def _seen(one: LayerHead | None, other: LayerHead | None) -> tuple[SingleHead, SingleHead]:
    """Return two heads seen through the output in which they differ most; None has v = 0."""
    head = one or other
    assert head is not None
    M, its = (head.values.nothing if x is None else x.values for x in (one, other))
    y = _along(M, its)
    # a head that is alone differs by its values, so its scores are those of both
    first, second = one or head, other or head
    return (
        SingleHead(first.W, (y @ M.left) @ M.right, first.w),
        SingleHead(second.W, (y @ its.left) @ its.right, second.w),
    )


def _along(M: Product, other: Product) -> Array:
    """Return the direction of outputs in which two maps differ most, of equal ones the largest."""
    difference, rounding = M - other, 8 * sum(M.left.shape) * UNIT * M.norm
    left = (difference if difference.norm > rounding else M).compact().left
    return np.asarray(left[:, 0] if left.size else np.ones(len(M.left)))


def _with_copies(X: Array, shift: int) -> Iterator[Array]:
    """Yield sequences, and pairs with their first token twice and with another pair's beside it."""
    yield X
    if X.shape[1] == 2:
        yield X[:, [0, 0, 1]]
        beside = np.roll(X[:, 0] - X[:, 1], shift, axis=0) + X[:, 1]
        yield np.stack([X[:, 0], beside, X[:, 1]], axis=1)


def _silent_token(layer: AttentionLayer) -> Array:
    """Return the token of which nothing is left to be normalised, as nearly as there is one."""
    empty = np.zeros((layer.outputs, layer.dim))
    A = sum((head.values.whole for head in layer.heads), empty) + layer.residual * np.eye(
        layer.outputs, layer.dim
    )
    return np.asarray(np.linalg.lstsq(A, -layer.c, rcond=None)[0])


def _deviation(u: Array, norm: LayerNorm) -> Array:
    """Return √(var u + eps) of vectors (…, m), never 0."""
    z = u - u.mean(axis=-1, keepdims=True) if norm.centred else u
    return np.asarray(np.sqrt(np.maximum(np.mean(z * z, axis=-1) + norm.eps, TINY)))


def _spread(tokens: Array, weights: Array) -> Array:
    """Bound Σ_i α_i ‖x_i − p‖, p = Σ_i α_i x_i, for weights (B, H, N).

    It is at most twice the same mean of distances from any other point, such as a token.
    """
    away = [np.linalg.norm(tokens - tokens[:, [k]], axis=2) for k in (0, -1)]
    return np.asarray(2 * np.min([(weights @ x[..., None])[..., 0] for x in away], axis=0))


def _product_bound(head: LayerHead) -> float:
    """Bound ‖W‖₂ and what is lost in its products by the norms of its factors."""
    factors = [x for name, x in head.arrays().items() if name in "WKQ"]
    return math.prod(float(np.linalg.norm(x, 2)) if x.size else 0.0 for x in factors)


def _sizes(layer: AttentionLayer) -> dict[str, float]:
    """Return how large the parameters are that are compared, the norm before taken in."""
    norm, through = layer.norm, 1.0
    sizes = {"c": largest_of(layer.c)}
    if norm is not None:
        sizes |= {"scale": largest_of(norm.scale), "shift": largest_of(norm.shift)}
        through = max(1.0, *sizes.values()) if norm.before else 1.0
    for head in layer.heads:
        largest = {name: largest_of(array) for name, array in head.arrays().items()}
        M = largest["M"] if "M" in largest else largest["O"] * largest["V"]
        W = largest["W"] if "W" in largest else largest["K"] * largest["Q"]
        for name, size in (("M", M * through), ("W", W * through * through), ("w", largest["w"])):
            sizes[name] = max(size, sizes.get(name, 0.0))
    return sizes
