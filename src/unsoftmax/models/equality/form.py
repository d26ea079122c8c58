"""What a sub-layer's maps compute, brought to one form: what no answer shows is put to one value.

Heads add M_h Σ_i α_hi x_i each, and the query token R x_N, to sums of constants c. These are the
answer, or what neurons B relu(·) + c' are given. In this order:

- a norm before: n = (x − mean)/√(var + eps) is all that heads and neurons see, in the range of
  P = I − 11ᵀ/d (P = I of RMSNorm). With x̂ = Γ n + β and Γ = diag(scale) the sub-layer has
  M' = M Γ P, keys and queries K Γ P and Q Γ P with the biases K β + b_k and Q β + b_q, so
  W' = P Γ W Γ P and w' = P Γ (W β + w), and c' = c + Σ M β, scale 1 and shift 0;
- a norm behind takes the mean over outputs off: M' = P M and c' = P c (P = I of RMSNorm). Without
  a residual the sum is known up to its size and sign: ‖c'‖² + Σ‖M'‖² = 1, eps is divided as its
  square, and the first entry of scale that is not 0 is positive;
- heads with equal scores are one, whose M is the sum of theirs; heads with M = 0 are left out;
- M = U (U ᵀM) with orthonormal columns of U; heads are ordered by ‖M‖, the largest first.

"Equal" and "0" are up to the rounding of these products. Other maps, another order of maps, or
arrays that this form does not know have none: `read` returns None.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Composition, Map
from unsoftmax.models.equality.equivalence import Tolerance, largest_of
from unsoftmax.models.equality.score_form import Scores, plain, scores_apart, turning
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.models.neurons import Neurons
from unsoftmax.models.products import Product, size_of
from unsoftmax.models.scores import RotaryScores
from unsoftmax.probes import Array

_OF_HEADS = {"Q", "K", "w", "O", "V", "c", "R", "k_bias", "q_bias", "frequencies"}
_OF_HEADS |= {"groups", "causal"}
_OF_NEURONS = {"A", "a", "B", "c", "activation", "g"}
"""What of these maps the form knows; with anything else there is none."""
# Rounding of a product, in roundoffs and per dimension: heads closer than this are one, and smaller
# M are none. Too small: a sum that cancels leaves a head; too large: a head is lost.
_ROUNDOFFS = 8.0


@dataclass(frozen=True, slots=True)
class Form:
    """A sub-layer by its products, which any step towards the canonical form maps to another."""

    scores: tuple[Scores, ...]
    values: tuple[Product, ...]
    """M of every head, (k, d)."""
    last: Array | None
    """R, (k, d)."""
    c: Array
    """(k,)."""
    neurons: tuple[Array, Array] | None
    """B (m, k) and the constant (m,) behind it."""
    residual: bool
    norm: LayerNorm | None
    dim: int
    attends: bool
    heads: int
    """How many there were before any were merged or left out."""

    @property
    def outputs(self) -> int:
        """How many numbers an answer has, m."""
        return len(self.c if self.neurons is None else self.neurons[1])

    @property
    def vector(self) -> bool:
        """Whether it is treated as one whose answers are vectors, though they may have length 1."""
        return self.outputs > 1 or self.residual or self.norm is not None

    @property
    def before(self) -> LayerNorm | None:
        """The norm that tokens go through, if there is one."""
        return self.norm if self.norm is not None and self.norm.before else None

    @property
    def behind(self) -> LayerNorm | None:
        """The norm that answers go through, if there is one."""
        return None if self.norm is None or self.norm.before else self.norm

    @property
    def of_norm(self) -> dict[str, Array]:
        """Scale, shift and eps of the norm, nothing without one."""
        arrays = {} if self.norm is None else self.norm.arrays()
        return {name: np.atleast_1d(arrays[name]) for name in ("scale", "shift", "eps") if arrays}

    @property
    def rounding(self) -> float:
        """Share of a matrix that its products may be off by."""
        return _ROUNDOFFS * UNIT * max(self.dim, len(self.c))


def read(maps: Composition) -> Form | None:
    """Read one sub-layer: a norm, heads, neurons, a residual, a norm, each where there is one."""
    parts, residual, norms = [part for _, part in maps.parts], maps.residual, list[Map]()
    while parts and isinstance(inner := parts[0], Composition):
        norms += parts[1:]
        if residual or len(parts) > 2:
            return None
        parts, residual = [part for _, part in inner.parts], inner.residual
    behind = len(norms)
    if parts and isinstance(parts[0], LayerNorm):
        norms.append(parts.pop(0))
    norm, form = norms[0] if norms else None, _inside(parts)
    if form is None or len(norms) > 1 or not (norm is None or isinstance(norm, LayerNorm)):
        return None
    if norm is not None:  # where it stands, whatever it says
        norm = LayerNorm(norm.scale, norm.shift, norm.eps, not behind, norm.centred)
    return replace(form, residual=residual, norm=norm)


def _inside(parts: list[Map]) -> Form | None:
    form = None
    if parts and isinstance(heads := parts[0], Attention):
        turning_and_w = heads.w is not None and heads.frequencies is not None
        if turning_and_w or not _holds(heads) <= _OF_HEADS:
            return None
        form, parts = _of_heads(heads), parts[1:]
    if parts and isinstance(neurons := parts[0], Neurons):
        if neurons.activation != "relu" or not _holds(neurons) <= _OF_NEURONS:
            return None
        if form is None:
            dim = len(neurons.a) if neurons.A is None else neurons.A.shape[1]
            form = Form((), (), np.eye(dim), np.zeros(dim), None, False, None, dim, False, 0)
        form, parts = _through(form, neurons), parts[1:]
    return None if parts else form


def _holds(one: Attention | Neurons) -> set[str]:
    return {field.name for field in fields(one) if getattr(one, field.name) is not None}


def _of_heads(heads: Attention) -> Form:
    H, dim = len(heads.Q), heads.Q.shape[2]
    places = np.arange(H) if heads.groups is None else heads.groups
    scores, values = [], []

    def of(stack: Array | None, place: int) -> Array | None:
        return None if stack is None else stack[place]

    for h, g in enumerate(places.tolist()):
        K, q_bias, M, V = of(heads.K, g), of(heads.q_bias, h), of(heads.O, h), of(heads.V, g)
        if K is not None and heads.frequencies is not None:
            biases = of(heads.k_bias, g), q_bias
            scores.append(turning(K, heads.Q[h], biases, heads.frequencies[g]))
        else:
            scores.append(plain(K, heads.Q[h], of(heads.w, h), q_bias))
        if M is None or V is None:
            [whole] = [x for x in (M, V) if x is not None] or [np.eye(dim)]
            values.append(Product.of(whole))
        else:
            values.append(Product(M, V))
    k = dim if heads.O is None else heads.O.shape[1]
    c = np.zeros(k) if heads.c is None else heads.c
    return Form(tuple(scores), tuple(values), heads.R, c, None, False, None, dim, True, H)


def _through(form: Form, neurons: Neurons) -> Form:
    """Put the first layer of neurons into what they are given."""
    A, c, last, values = neurons.A, form.c, form.last, form.values
    if A is not None:
        c, last = A @ c, None if last is None else A @ last
        values = tuple(Product(A @ M.left, M.right) for M in values)
    return replace(form, values=values, last=last, c=c + neurons.a, neurons=(neurons.B, neurons.c))


# -- towards the canonical form


def seen_through(form: Form) -> Form:
    """Take the scale and shift of a norm before, and the mean, into heads and neurons."""
    norm = form.before
    if norm is None:
        return form
    c, last = form.c, form.last
    for M in form.values:
        c = c + M.left @ (M.right @ norm.shift)
    if last is not None:
        c, last = c + last @ norm.shift, norm.without_mean(last * norm.scale, axis=1)
    values = [Product(M.left, norm.without_mean(M.right * norm.scale, axis=1)) for M in form.values]
    # 0 for what is but the rounding of a difference of larger numbers
    share = form.rounding * largest_of(norm.scale)
    pairs = zip(values, form.values, strict=True)
    values = [x if x.norm > share * y.norm else x.nothing for x, y in pairs]
    scores = tuple(_scores_through(A, norm) for A in form.scores)
    plain_norm = LayerNorm(np.ones(form.dim), None, norm.eps, before=True, centred=norm.centred)
    return replace(form, values=tuple(values), scores=scores, c=c, last=last, norm=plain_norm)


def _scores_through(A: Scores, norm: LayerNorm) -> Scores:
    if isinstance(A, RotaryScores):
        arrays = dict(A.arrays)
        for name, bias in (("K", "k_bias"), ("Q", "q_bias")):
            arrays[bias] = arrays[bias] + arrays[name] @ norm.shift
            arrays[name] = norm.without_mean(arrays[name] * norm.scale, axis=1)
        return RotaryScores(len(norm.scale), arrays, A.rotary)
    seen = np.column_stack([A.right[:, :-1] * norm.scale, A.right @ [*norm.shift, 1.0]])
    seen[:, :-1] = norm.without_mean(seen[:, :-1], axis=1)
    return Product(norm.without_mean(norm.scale[:, None] * A.left, axis=0), seen)


def let_through(form: Form) -> Form:
    """Take the mean over outputs off, which a LayerNorm behind does not let through."""
    norm = form.behind
    if norm is None:
        return form
    if form.neurons is not None:
        B, c = (norm.without_mean(x, axis=0) for x in form.neurons)
        return replace(form, neurons=(B, c))
    values = [Product(norm.without_mean(M.left, axis=0), M.right) for M in form.values]
    pairs = zip(values, form.values, strict=True)
    values = [x if x.norm > form.rounding * y.norm else x.nothing for x, y in pairs]
    return replace(form, values=tuple(values), c=norm.without_mean(form.c, axis=0))


def merged(form: Form) -> Form:
    """Add up M of heads with equal scores, and leave those out whose M is 0."""
    groups: list[list[int]] = []
    for h, A in enumerate(form.scores):
        for group in groups:
            off = scores_apart(form.scores[group[0]], A, form.rounding)
            if off.difference <= form.rounding * off.size:
                group.append(h)
                break
        else:
            groups.append([h])
    scores, values = [], []
    for first, *more in groups:
        total = sum((form.values[h] for h in more), form.values[first])
        size = sum(size_of(form.values[h]) for h in (first, *more)) if more else 0.0
        if size_of(total) > form.rounding * size:
            values.append(total)
            scores.append(form.scores[first])
    return replace(form, values=tuple(values), scores=tuple(scores))


def without_needless_norm(form: Form) -> Form:
    """Leave a norm out that no head looks through, or that nothing comes through."""
    norm = form.norm
    if norm is None or form.neurons is not None:
        return form
    constant = replace(form, values=(), scores=(), residual=False, norm=None)
    if norm.before:
        return replace(form, norm=norm if form.values or form.last is not None else None)
    if not norm.scale.any() or (norm.centred and norm.width == 1):
        return replace(constant, c=norm.shift)
    return form if form.values or form.residual else replace(constant, c=norm(form.c))


def of_unit_size(form: Form) -> Form:
    """Fix the size and the sign of a sum that is normalised whole."""
    norm = form.behind
    if norm is None or form.residual or form.neurons is not None:
        return form
    size = float(np.linalg.norm([*form.c, *(M.norm for M in form.values)]))
    signed = size * norm.sign
    values = tuple(Product(M.left / signed, M.right) for M in form.values)
    return replace(form, values=values, c=form.c / signed, norm=norm.behind_share(signed))


def canonical_form(form: Form) -> Form:
    """Return the form that stands for all of one function; of neurons what is before them."""
    for step in (seen_through, let_through, merged, without_needless_norm, of_unit_size):
        form = step(form)
    return form


def compacted(form: Form) -> Form:
    """Return M in factors as their ranks need, heads ordered by ‖M‖, the largest first."""
    values = [M.compact() for M in form.values]
    order = sorted(range(len(values)), key=lambda h: -float(np.linalg.norm(values[h].right)))
    scores = tuple(form.scores[h] for h in order)
    return replace(form, values=tuple(values[h] for h in order), scores=scores)


# -- norms


def same_kind(a: Form, b: Form) -> bool:
    """Tell whether residuals are alike, and norms in place and centring."""
    kinds = [
        (form.residual, form.norm and (form.norm.before, form.norm.centred)) for form in (a, b)
    ]
    return kinds[0] == kinds[1]


def compare_norms(a: Form, b: Form, tolerance: Tolerance) -> tuple[bool, float]:
    """Tell whether scale, shift and eps are within the tolerance, and their largest difference."""
    if not same_kind(a, b):
        return False, float("inf")
    pairs = zip(a.of_norm.values(), b.of_norm.values(), strict=True)
    compared = [tolerance.compare(mine, its) for mine, its in pairs]
    return all(within for within, _ in compared), max((gap for _, gap in compared), default=0.0)
