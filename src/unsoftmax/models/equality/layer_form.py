"""The canonical form of an attention layer: one representative of all layers of one function.

What no answer shows is put to one value, in this order:

- a norm before: n = (x − mean)/√(var + eps) is all that heads see, in the range of P = I − 11ᵀ/d
  (P = I of RMSNorm). With x̂ = Γ n + β and Γ = diag(scale) the layer has M' = M Γ P,
  W' = P Γ W Γ P, w' = P Γ (W β + w), c' = c + Σ M β, scale 1 and shift 0;
- a norm behind takes the mean over outputs off: M' = P M and c' = P c (P = I of RMSNorm). Without
  a residual the sum is known up to its size and sign: ‖c'‖² + Σ‖M'‖² = 1, eps is divided as its
  square, and the first entry of scale that is not 0 is positive;
- heads with equal [W | w] are one, whose M is the sum of theirs; heads with M = 0 are left out;
- M = U (U ᵀM) and [W | w] = Kᵀ[Q | b] with orthonormal columns of U and Kᵀ; heads are ordered by
  ‖M‖, the largest first.

"Equal" and "0" are up to the rounding of these products.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.attention_layer import AttentionLayer, LayerHead
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.models.products import Product, distances
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class LayerForm:
    """A layer by its products, which any step towards the canonical form maps to another."""

    values: tuple[Product, ...]
    """M of every head."""
    scores: tuple[Product, ...]
    """[W | w] of every head."""
    c: Array
    residual: bool
    norm: LayerNorm | None
    dim: int
    rounding: float
    """Share of a matrix that its products may be off by."""

    @classmethod
    def of(cls, layer: AttentionLayer, roundoffs: float) -> LayerForm:
        """Read a layer."""
        return cls(
            tuple(head.values for head in layer.heads),
            tuple(head.scores for head in layer.heads),
            layer.c,
            layer.residual,
            layer.norm,
            layer.dim,
            roundoffs * UNIT * max(layer.dim, layer.outputs),
        )

    @property
    def layer(self) -> AttentionLayer:
        """The layer that it describes, heads in factors."""
        heads = []
        for M, A in zip(self.values, self.scores, strict=True):
            w = A.left @ A.right[:, -1]
            heads.append(LayerHead.from_factors(M.left, M.right, A.left.T, A.right[:, :-1], w))
        return AttentionLayer(heads, self.c, self.residual, self.norm, dim=self.dim)


def canonical_layer(layer: AttentionLayer, roundoffs: float) -> AttentionLayer:
    """Return the layer that stands for all that compute the same function."""
    form = LayerForm.of(layer, roundoffs)
    for step in (_seen_through, _let_through, _merged, _without_needless_norm, _of_unit_size):
        form = step(form)
    values = [M.compact() for M in form.values]
    order = sorted(range(len(values)), key=lambda h: -float(np.linalg.norm(values[h].right)))
    return replace(
        form,
        values=tuple(values[h] for h in order),
        scores=tuple(form.scores[h].compact() for h in order),
    ).layer


def _seen_through(form: LayerForm) -> LayerForm:
    """Take the scale and shift of a norm before, and the mean, into the heads."""
    norm = form.norm
    if norm is None or not norm.before:
        return form
    values, scores, c = [], [], form.c
    for M, A in zip(form.values, form.scores, strict=True):
        c = c + M.left @ (M.right @ norm.shift)
        right = M.right * norm.scale
        values.append(Product(M.left, _centred(right, norm, axis=1)))
        seen = np.column_stack([A.right[:, :-1] * norm.scale, A.right @ [*norm.shift, 1.0]])
        seen[:, :-1] = _centred(seen[:, :-1], norm, axis=1)
        scores.append(Product(_centred(norm.scale[:, None] * A.left, norm, axis=0), seen))
    values = _not_rounding(values, form.values, form.rounding * _largest(norm.scale))
    plain = LayerNorm(np.ones(form.dim), None, norm.eps, before=True, centred=norm.centred)
    return replace(form, values=tuple(values), scores=tuple(scores), c=c, norm=plain)


def _let_through(form: LayerForm) -> LayerForm:
    """Take the mean over outputs off, which a LayerNorm behind does not let through."""
    norm = form.norm
    if norm is None or norm.before:
        return form
    values = [Product(_centred(M.left, norm, axis=0), M.right) for M in form.values]
    values = _not_rounding(values, form.values, form.rounding)
    return replace(form, values=tuple(values), c=_centred(form.c, norm, axis=0))


def _centred(x: Array, norm: LayerNorm, axis: int) -> Array:
    return x - x.mean(axis=axis, keepdims=True) if norm.centred else x


def _largest(x: Array) -> float:
    return float(np.max(np.abs(x), initial=0.0))


def _not_rounding(found: list[Product], given: tuple[Product, ...], share: float) -> list[Product]:
    """Put 0 for what is but the rounding of a difference of larger numbers."""
    return [x if x.norm > share * y.norm else x.nothing for x, y in zip(found, given, strict=True)]


def _merged(form: LayerForm) -> LayerForm:
    """Add up M of heads with equal [W | w], and leave those out whose M is 0."""
    apart, sizes = distances(form.scores, form.scores), [A.norm for A in form.scores]
    groups: list[list[int]] = []
    for h, size in enumerate(sizes):
        known = (g for g in groups if apart[g[0], h] <= form.rounding * max(size, sizes[g[0]]))
        group = next(known, None)
        if group is None:
            groups.append([h])
        else:
            group.append(h)
    values, scores = [], []
    for first, *more in groups:
        total, size = form.values[first], form.values[first].norm
        for h in more:
            total, size = total + form.values[h], size + form.values[h].norm
        if total.norm > (form.rounding * size if more else 0.0):
            values.append(total)
            scores.append(form.scores[first])
    return replace(form, values=tuple(values), scores=tuple(scores))


def _without_needless_norm(form: LayerForm) -> LayerForm:
    """Leave a norm out that no head looks through, or that nothing comes through."""
    norm, constant = form.norm, replace(form, values=(), scores=(), residual=False, norm=None)
    if norm is None or norm.before:
        return replace(form, norm=norm if form.values else None)
    if not norm.scale.any() or (norm.centred and norm.width == 1):
        return replace(constant, c=norm.shift)
    return form if form.values or form.residual else replace(constant, c=norm(form.c))


def _of_unit_size(form: LayerForm) -> LayerForm:
    """Fix the size and the sign of a sum that is normalised whole."""
    norm = form.norm
    if norm is None or norm.before or form.residual:
        return form
    size = float(np.linalg.norm([*form.c, *(M.norm for M in form.values)]))
    sign = float(np.sign(norm.scale[np.argmax(norm.scale != 0)]))
    return replace(
        form,
        values=tuple(Product(M.left * (sign / size), M.right) for M in form.values),
        c=form.c * (sign / size),
        norm=LayerNorm(sign * norm.scale, norm.shift, norm.eps / size / size, False, norm.centred),
    )
