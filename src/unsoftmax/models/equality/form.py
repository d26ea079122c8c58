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

Neurons without heads may be of any activation, and gated, B φ(G x + g) ⊙ (R x + c) + c': G and g
see a norm before as R and c do.

"Equal" and "0" are up to the rounding of these products. Other maps, another order of maps, or
arrays that this form does not know have none: `read` returns None.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.attention import RotaryScores
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Composition, Map
from unsoftmax.models.equality.score_form import Scores, scores_apart, scores_of
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.models.neurons import Neurons
from unsoftmax.models.products import Product, Tolerance, largest_of, size_of
from unsoftmax.probes import Array

_OF_HEADS = {"Q", "K", "w", "O", "V", "c", "R", "k_bias", "q_bias", "frequencies"}
_OF_HEADS |= {"groups", "causal"}
_OF_NEURONS = {"A", "a", "B", "c", "activation", "G", "g"}
"""What of these maps the form knows; with anything else there is none."""
# Rounding of a product, in roundoffs and per dimension: heads closer than this are one, and smaller
# M are none. Too small: a sum that cancels leaves a head; too large: a head is lost.
_ROUNDOFFS = 8.0


class Bent(NamedTuple):
    """What neurons make of their sums z: B φ(z) + c, or B (φ(G x + g) ⊙ z) + c."""

    B: Array
    """(m, k)."""
    c: Array
    """(m,)."""
    activation: str = "relu"
    gates: tuple[Array, Array] | None = None
    """G (k, d) and g (k,)."""

    @property
    def relu(self) -> bool:
        """Whether they are plain ReLUs, which may be behind heads."""
        return self.activation == "relu" and self.gates is None


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
    neurons: Bent | None
    """What is made of these sums, if they are not the answer."""
    residual: bool
    norm: LayerNorm | None
    dim: int
    attends: bool
    heads: int
    """How many there were before any were merged or left out."""

    @property
    def outputs(self) -> int:
        """How many numbers an answer has, m."""
        return len(self.c if self.neurons is None else self.neurons.c)

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
    def kind(self) -> tuple[object, ...]:
        """Whether there is a residual, and where a norm stands and whether it is centred."""
        return self.residual, self.norm and (self.norm.before, self.norm.centred)

    def compare_norms(self, other: Form, tolerance: Tolerance) -> tuple[bool, float]:
        """Tell whether norms are of one kind and within the tolerance; their largest difference."""
        if self.kind != other.kind:
            return False, float("inf")
        pairs = zip(self.of_norm.values(), other.of_norm.values(), strict=True)
        compared = [tolerance.compare(mine, its) for mine, its in pairs]
        return all(within for within, _ in compared), max((gap for _, gap in compared), default=0.0)

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
        gates = None if neurons.G is None else (neurons.G, neurons.g + np.zeros(len(neurons.a)))
        own = Bent(neurons.B, neurons.c, neurons.activation, gates)
        if not (own.relu or form is None) or not _holds(neurons) <= _OF_NEURONS:
            return None
        if form is None:
            dim = len(neurons.a) if neurons.A is None else neurons.A.shape[1]
            form = Form((), (), np.eye(dim), np.zeros(dim), None, False, None, dim, False, 0)
        A, c, last, values = neurons.A, form.c, form.last, form.values
        if A is not None:  # the first layer is part of what neurons are given
            c, last = A @ c, None if last is None else A @ last
            values = tuple(Product(A @ M.left, M.right) for M in values)
        parts = parts[1:]
        form = replace(form, values=values, last=last, c=c + neurons.a, neurons=own)
    return None if parts else form


def _holds(one: Attention | Neurons) -> set[str]:
    return {field.name for field in fields(one) if getattr(one, field.name) is not None}


def _of_heads(heads: Attention) -> Form:
    H, dim = len(heads.Q), heads.Q.shape[2]
    places = np.arange(H) if heads.groups is None else heads.groups
    scores, values = [], []
    of_groups = (heads.K, heads.V, heads.k_bias, heads.frequencies)
    of_heads = (heads.O, heads.w, heads.q_bias)
    for h, g in enumerate(places.tolist()):
        K, V, k_bias, theta = (None if x is None else x[g] for x in of_groups)
        M, w, q_bias = (None if x is None else x[h] for x in of_heads)
        scores.append(scores_of(K, heads.Q[h], w, k_bias, q_bias, theta))
        if M is not None and V is not None:
            values.append(Product(M, V))
        else:
            whole = V if M is None else M
            values.append(Product.of(np.eye(dim) if whole is None else whole))
    k = dim if heads.O is None else heads.O.shape[1]
    c = np.zeros(k) if heads.c is None else heads.c
    return Form(tuple(scores), tuple(values), heads.R, c, None, False, None, dim, True, H)


def refuse_range(form: Form) -> None:
    """Refuse parameters whose squares, summed, leave float64's range, with a norm before taken in.

    Raises
    ------
    ValueError
        One is larger than 1e145.
    """
    with np.errstate(over="ignore"):
        seen, norm = seen_through(form), form.norm
    own = [] if seen.neurons is None else [seen.neurons.B, seen.neurons.c]
    gates = [] if seen.neurons is None else [*(seen.neurons.gates or ())]
    parts = {"c": [seen.c, *own], "A": [*gates, *([] if seen.last is None else [seen.last])]}
    parts |= {} if norm is None else {"scale": [norm.scale], "shift": [norm.shift]}
    W = [A for A in seen.scores if isinstance(A, Product)]
    for name, some in {**parts, "M": seen.values, "W": W}.items():
        size = max(map(largest_of, some), default=0.0)
        if not size <= 1e145:
            raise ValueError(
                f"{name} is as large as {size:.0e}: beyond 1e+145 sums of squares leave float64's "
                "range, and layers are not compared. Scale both layers' weights."
            )


# -- towards the canonical form


def seen_through(form: Form) -> Form:
    """Take the scale and shift of a norm before, and the mean, into heads and neurons."""
    norm = form.before
    if norm is None:
        return form
    c, last, neurons = form.c, form.last, form.neurons
    for M in form.values:
        c = c + M.left @ (M.right @ norm.shift)
    if neurons is not None and neurons.gates is not None:
        G, g = neurons.gates
        gates = norm.without_mean(G * norm.scale, axis=1), g + G @ norm.shift
        neurons = neurons._replace(gates=gates)
    if last is not None:
        c, last = c + last @ norm.shift, norm.without_mean(last * norm.scale, axis=1)
    values = [Product(M.left, norm.without_mean(M.right * norm.scale, axis=1)) for M in form.values]
    seen = _without_rounding(form, values, largest_of(norm.scale))
    scores = tuple(_scores_through(A, norm) for A in form.scores)
    plain_norm = LayerNorm(np.ones(form.dim), None, norm.eps, before=True, centred=norm.centred)
    return replace(
        form, values=seen, scores=scores, c=c, last=last, neurons=neurons, norm=plain_norm
    )


def _without_rounding(form: Form, values: list[Product], size: float = 1.0) -> tuple[Product, ...]:
    """Return what M became, 0 for what is but the rounding of a difference of larger numbers."""
    pairs, share = zip(values, form.values, strict=True), form.rounding * size
    return tuple(x if x.norm > share * y.norm else x.nothing for x, y in pairs)


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
        B, c = (norm.without_mean(x, axis=0) for x in form.neurons[:2])
        return replace(form, neurons=form.neurons._replace(B=B, c=c))
    values = [Product(norm.without_mean(M.left, axis=0), M.right) for M in form.values]
    c = norm.without_mean(form.c, axis=0)
    return replace(form, values=_without_rounding(form, values), c=c)


def merged(form: Form) -> Form:
    """Add up M of heads with equal scores, and leave those out whose M is 0."""
    groups: list[tuple[Scores, list[Product]]] = []
    for A, M in zip(form.scores, form.values, strict=True):
        for scores, values in groups:
            off = scores_apart(scores, A, form.rounding)
            if off.difference <= form.rounding * off.size:
                values.append(M)
                break
        else:
            groups.append((A, [M]))
    kept = []
    for scores, (first, *more) in groups:
        total = sum(more, first)
        size = sum(size_of(M) for M in (first, *more)) if more else 0.0
        if size_of(total) > form.rounding * size:
            kept.append((scores, total))
    return replace(form, scores=tuple(A for A, _ in kept), values=tuple(M for _, M in kept))


def without_needless_norm(form: Form) -> Form:
    """Leave a norm out that no head looks through, or that nothing comes through."""
    norm = form.norm
    if norm is None or form.neurons is not None:
        return form
    constant = replace(form, values=(), scores=(), residual=False, norm=None)
    if norm.before:
        return form if form.values or form.last is not None else replace(form, norm=None)
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


def visible(form: Form) -> Form:
    """Return the form without what a norm before or behind hides."""
    return let_through(seen_through(form))


def canonical_form(form: Form) -> Form:
    """Return the form that stands for all of one function; of neurons what is before them."""
    return of_unit_size(without_needless_norm(merged(visible(form))))


def compacted(form: Form) -> Form:
    """Return M in factors as their ranks need, heads ordered by ‖M‖, the largest first."""
    values = [M.compact() for M in form.values]
    order = sorted(range(len(values)), key=lambda h: -float(np.linalg.norm(values[h].right)))
    scores = tuple(form.scores[h] for h in order)
    return replace(form, values=tuple(values[h] for h in order), scores=scores)
