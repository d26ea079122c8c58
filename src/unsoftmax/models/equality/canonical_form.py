"""The one model that stands for all that compute the same function, built from the form.

Attention with answers of its own in factors is brought to `form`; heads with whole W, as several
heads and those before a network, are merged where W and w are equal to the last bit and ordered by
them entry by entry. Neurons are those of `neuron_form`, each with ‖(A_j, b_j)‖ = 1 and its first
weight that is not 0 positive, ordered by their weights; what is linear follows as pairs z and −z.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.attention_layer import AttentionLayer, LayerHead
from unsoftmax.models.equality.equivalence import norm_of
from unsoftmax.models.equality.form import (
    Form,
    canonical_form,
    compacted,
    let_through,
    read,
    rescaled,
    seen_through,
)
from unsoftmax.models.equality.hinge_sum import HingeSum
from unsoftmax.models.equality.neuron_form import Network, first_is_negative, signed_size
from unsoftmax.models.equality.score_form import as_turning, canonical_planes, score_bytes
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.multi_head import MultiHead
from unsoftmax.models.multi_head_transformer import MultiHeadTransformer
from unsoftmax.models.relu_network import ReluNetwork
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.models.rotary_heads import RotaryHeads
from unsoftmax.models.rotary_layer import RotaryLayer
from unsoftmax.models.single_head import SingleHead
from unsoftmax.models.transformer import Transformer
from unsoftmax.probes import Array, Indices


def _head(model: SingleHead) -> SingleHead:
    if np.any(model.v):
        return model
    return SingleHead(np.zeros((model.dim, model.dim)), np.zeros(model.dim), None, model.c)


def _heads(model: MultiHead) -> MultiHead:
    rows, d = _score_rows(model), model.dim
    groups = _distinct(rows)
    totals = [_sum_of_rows(model.v[group]) + 0.0 for group in groups]
    kept = [k for k, total in enumerate(totals) if np.any(total)]
    scores = rows[[groups[k][-1] for k in kept]]
    v = np.reshape([totals[k] for k in kept], (len(kept), d))
    return MultiHead(scores[:, : d * d].reshape(-1, d, d), v, scores[:, d * d :], model.c)


def _before_network(model: MultiHeadTransformer) -> MultiHeadTransformer:
    rows, d = _score_rows(model), model.dim
    groups = _distinct(rows)
    H, m, _ = model.B.shape
    flat = model.B.reshape(H, m * d)
    B = np.array([_sum_of_rows(flat[group]) for group in groups]).reshape(len(groups), m, d)
    if model.residual is not None:
        B = np.concatenate([B, model.residual[None]])
    B = B if len(B) else np.zeros((1, m, d))
    A = B.transpose(0, 2, 1).reshape(len(B) * d, m)
    network = _network(ReluNetwork(A, model.w_o, model.b, model.c))
    B = network.A.T.reshape(len(network.b), len(B), d).transpose(1, 0, 2)
    seen = [h for h in range(len(groups)) if np.any(B[h])]
    scores = rows[[groups[h][0] for h in seen]]
    W, w = scores[:, : d * d].reshape(-1, d, d), scores[:, d * d :]
    R = B[-1] if model.residual is not None and np.any(B[-1]) else None
    return MultiHeadTransformer(W, B[seen], network.w_o, network.b, w, network.c, R)


def _network(model: ReluNetwork) -> ReluNetwork:
    parts, order = _ordered(Network.of(_form_of(model), (), 0, True))
    d = model.dim
    A, b, w_o = parts.u[order, :d], parts.u[order, d], parts.s[order]
    norm = float(np.linalg.norm(parts.linear[:d]))
    size = norm + float(np.sum(np.abs(parts.s)))
    if norm > 8 * UNIT * (1 + len(parts.s)) * size:  # else it is the rounding of the sum
        direction = parts.linear[:d] / norm
        A = np.vstack([A, direction, -direction])
        b, w_o = np.append(b, [0.0, 0.0]), np.append(w_o, [norm, -norm])
    return ReluNetwork(A.T, w_o, b, float(parts.linear[d]))


def _transformer(model: Transformer) -> Transformer:
    network = _network(model.network)
    if network.A.shape[1]:
        return model.before(network)
    return Transformer(np.zeros((model.dim, model.dim)), network)


def _feed_forward(model: FeedForward) -> FeedForward:
    form = let_through(seen_through(_form_of(model)))
    network, d = Network.of(form, (), 0, True), model.dim
    parts, order = _ordered(network)
    size = signed_size(form, parts)
    A, b, B = parts.u[order, :d], parts.u[order, d], parts.s[order]
    linear = parts.linear[:, :d]
    used = np.linalg.norm(linear, axis=0)
    total = float(np.linalg.norm(linear)) + float(np.sum(np.linalg.norm(parts.s, axis=1)))
    used = used > 8 * UNIT * (1 + len(parts.s)) * total
    E, L = np.eye(d)[used], linear.T[used]
    A, b = np.vstack([A, E, -E]), np.append(b, np.zeros(2 * len(E)))
    unit = size or 1.0
    B, c = np.vstack([B, L, -L]).T / unit, parts.linear[:, d] / unit
    norm = rescaled(form.norm, size) if size and form.norm is not None else form.norm
    return FeedForward(A, b, B, c, form.residual and form.before is not None, norm)


def _attention_layer(model: AttentionLayer) -> AttentionLayer:
    form, heads = compacted(canonical_form(_form_of(model))), []
    for M, scores in zip(form.values, form.scores, strict=True):
        A = scores.compact()  # of orthonormal columns of Kᵀ
        w = A.left @ A.right[:, -1]
        heads.append(LayerHead.from_factors(M.left, M.right, A.left.T, A.right[:, :-1], w))
    return AttentionLayer(heads, form.c, form.residual, form.norm, dim=form.dim)


def _rotary_layer(model: RotaryLayer) -> RotaryLayer:
    form, d = compacted(canonical_form(_form_of(model))), model.dim
    planes = [canonical_planes(as_turning(A)) for A in form.scores]
    H, r = len(planes), max((len(A.arrays["K"]) for A in planes), default=0)
    s = max((len(M.right) for M in form.values), default=0)
    O, V = np.zeros((H, model.outputs, s)), np.zeros((H, s, d))  # noqa: E741
    for h, M in enumerate(form.values):
        O[h, :, : len(M.right)], V[h, : len(M.right)] = M.left, M.right
    arrays: dict[str, Any] = {"norm": form.norm} if form.norm is not None else {}
    for name, shape in (("K", (H, r, d)), ("Q", (H, r, d)), ("k_bias", (H, r)), ("q_bias", (H, r))):
        arrays[name] = np.reshape([A.arrays[name] for A in planes], shape)
    rotary = planes[0].rotary if planes else Rotary([])
    return RotaryLayer(O, V, c=form.c, rotary=rotary, residual=form.residual, **arrays)


def _rotary_head(model: RotaryHead) -> RotaryHead:
    if np.any(model.v):
        arrays = canonical_planes(model.scores).arrays
        return RotaryHead.from_arrays({**arrays, "v": model.v, "c": model.c})
    none = np.zeros((0, model.dim))
    return RotaryHead(none, none, model.v, Rotary([]), c=model.c)


def _rotary_heads(model: RotaryHeads) -> RotaryHeads:
    groups: dict[bytes, list[RotaryHead]] = {}
    for head in model.heads:
        if np.any(head.v):
            scores = canonical_planes(head.scores, empty=False)
            form = RotaryHead.from_arrays({**scores.arrays, "v": head.v})
            groups.setdefault(score_bytes(scores), []).append(form)
    kept = []
    for first, *more in groups.values():
        v = _sum_of_rows(np.array([head.v for head in (first, *more)]))
        if np.any(v):
            kept.append(RotaryHead.from_arrays({**first.arrays(), "v": v}))
    return RotaryHeads.of(sorted(kept, key=_place), model.dim, model.c)


def _place(head: RotaryHead) -> tuple[float, list[float], bytes]:
    """Return what heads are ordered by; what follows the weight decides exact ties alone.

    The size of keys counts beside that of v, which heads may share.
    """
    keys = norm_of(np.column_stack([head.K, head.k_bias]))
    return -norm_of(head.v) * keys, head.v.tolist(), score_bytes(head.scores)


def _form_of(model: FrozenModel) -> Form:
    form = read(model.maps)
    if form is None:
        raise ValueError(
            f"No canonical form is known of {model!r}: of its maps, their order, or an array."
        )
    return form


def _ordered(network: Network) -> tuple[HingeSum, Indices]:
    """Return neurons with a positive first weight, and their order by weights."""
    parts = network.parts(1.0)
    parts = parts.turned(first_is_negative(parts.u))
    return parts, np.lexsort(parts.u.T[::-1]) if len(parts.u) else np.zeros(0, dtype=np.intp)


def _score_rows(model: MultiHead | MultiHeadTransformer) -> Array:
    """Return [W w] of every head as a row; −0 becomes 0."""
    return np.column_stack([model.W.reshape(len(model.w), model.dim**2), model.w]) + 0.0


def _distinct(rows: Array) -> list[list[int]]:
    """Return the heads of each [W w], a row; groups are ordered entry by entry.

    Floats are compared as integers of the same order, highest byte first: rows may be long.
    """
    bits = np.ascontiguousarray(rows).view(np.uint64)
    sign = np.uint64(2**63)
    keys = [row.tobytes() for row in np.where(bits < sign, bits + sign, ~bits).astype(">u8")]
    groups: dict[bytes, list[int]] = {}
    for head in sorted(range(len(keys)), key=keys.__getitem__):
        groups.setdefault(keys[head], []).append(head)
    return list(groups.values())


def _sum_of_rows(v: Array) -> Array:
    """Add up rows, exactly but for one rounding: in any order the same."""
    if len(v) == 1:
        return np.asarray(v[0])
    return np.array([math.fsum(column) for column in v.T.tolist()])


CANONICAL: dict[type[FrozenModel], Callable[[Any], FrozenModel]] = {
    SingleHead: _head,
    RotaryHead: _rotary_head,
    MultiHead: _heads,
    RotaryHeads: _rotary_heads,
    ReluNetwork: _network,
    Transformer: _transformer,
    MultiHeadTransformer: _before_network,
    AttentionLayer: _attention_layer,
    RotaryLayer: _rotary_layer,
    FeedForward: _feed_forward,
}
"""What builds the canonical model of each class from its parts."""
