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

from unsoftmax.models.attention_layer import AttentionLayer, LayerHead
from unsoftmax.models.equality.form import Form, canonical_form, compacted, read, visible
from unsoftmax.models.equality.neuron_form import Network, around, first_is_negative, signed_size
from unsoftmax.models.equality.score_form import as_turning
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.multi_head import MultiHead
from unsoftmax.models.multi_head_transformer import MultiHeadTransformer
from unsoftmax.models.products import Product, norm_of
from unsoftmax.models.relu_network import HingeSum, ReluNetwork
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
    W, w, v = _merged(model, model.v)
    kept = np.any(v, axis=1)
    return MultiHead(W[kept], v[kept], w[kept], model.c)


def _before_network(model: MultiHeadTransformer) -> MultiHeadTransformer:
    W, w, B = _merged(model, model.B)
    H, (m, d) = len(B), model.B.shape[1:]
    if model.residual is not None or not H:
        last = np.zeros((m, d)) if model.residual is None else model.residual
        B = np.concatenate([B, last[None]])
    A = B.transpose(0, 2, 1).reshape(len(B) * d, m)
    network = _network(ReluNetwork(A, model.w_o, model.b, model.c))
    B = network.A.T.reshape(len(network.b), len(B), d).transpose(1, 0, 2)
    seen = [h for h in range(H) if np.any(B[h])]
    R = B[-1] if len(B) > H and np.any(B[-1]) else None
    return MultiHeadTransformer(W[seen], B[seen], network.w_o, network.b, w[seen], network.c, R)


def _network(model: ReluNetwork) -> ReluNetwork:
    parts, order = _ordered(_form_of(model))
    d = model.dim
    A, b, w_o = parts.u[order, :d], parts.u[order, d], parts.s[order]
    norm = float(np.linalg.norm(parts.linear[:d]))
    if norm > parts.lost:
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
    form = visible(_form_of(model))
    d, (parts, order) = model.dim, _ordered(form)
    size = signed_size(form, parts)
    A, b, B = parts.u[order, :d], parts.u[order, d], parts.s[order]
    whole, unit = np.atleast_2d(parts.linear), size or 1.0
    used = np.linalg.norm(whole[:, :d], axis=0) > parts.lost
    E, L = np.eye(d)[used], whole[:, :d].T[used]
    A, b = np.vstack([A, E, -E]), np.append(b, np.zeros(2 * len(E)))
    B, beside = np.vstack([B.reshape(len(order), len(whole)), L, -L]), around(form, size)
    return FeedForward(A, b, B.T / unit, whole[:, d] / unit, beside.residual, beside.norm)


def _attention_layer(model: AttentionLayer) -> AttentionLayer:
    form, heads = compacted(canonical_form(_form_of(model))), []
    for M, scores in zip(form.values, form.scores, strict=True):
        assert isinstance(scores, Product)
        A = scores.compact()  # of orthonormal columns of Kᵀ
        w = A.left @ A.right[:, -1]
        heads.append(LayerHead.from_factors(M.left, M.right, A.left.T, A.right[:, :-1], w))
    return AttentionLayer(heads, form.c, form.residual, form.norm, dim=form.dim)


def _rotary_layer(model: RotaryLayer) -> RotaryLayer:
    form, d = compacted(canonical_form(_form_of(model))), model.dim
    planes = [as_turning(A).canonical() for A in form.scores]
    H, s = len(planes), max((len(M.right) for M in form.values), default=0)
    O, V = np.zeros((H, model.outputs, s)), np.zeros((H, s, d))  # noqa: E741
    for h, M in enumerate(form.values):
        O[h, :, : len(M.right)], V[h, : len(M.right)] = M.left, M.right
    rotary = planes[0].rotary if planes else Rotary([])
    arrays: dict[str, Any] = {"residual": form.residual, "norm": form.norm}
    for name, last in {"K": (d,), "Q": (d,), "k_bias": (), "q_bias": ()}.items():
        each = [A.arrays[name] for A in planes]
        arrays[name] = np.reshape(each, (H, 2 * len(rotary), *last))
    return RotaryLayer(O, V, c=form.c, rotary=rotary, **arrays)


def _rotary_head(model: RotaryHead) -> RotaryHead:
    if np.any(model.v):
        arrays = model.scores.canonical().arrays
        return RotaryHead.from_arrays({**arrays, "v": model.v, "c": model.c})
    none = np.zeros((0, model.dim))
    return RotaryHead(none, none, model.v, Rotary([]), c=model.c)


def _rotary_heads(model: RotaryHeads) -> RotaryHeads:
    groups: dict[bytes, tuple[dict[str, Array], list[Array]]] = {}
    for head in model.heads:
        if np.any(head.v):
            scores = head.scores.canonical(empty=False)
            groups.setdefault(scores.numbers, (scores.arrays, []))[1].append(head.v)
    sums = [(arrays, _sum_of_rows(np.array(values))) for arrays, values in groups.values()]
    kept = [RotaryHead.from_arrays({**arrays, "v": v}) for arrays, v in sums if np.any(v)]
    return RotaryHeads.of(sorted(kept, key=_place), model.dim, model.c)


def _place(head: RotaryHead) -> tuple[float, list[float], bytes]:
    """Return what heads are ordered by; what follows the weight decides exact ties alone.

    The size of keys counts beside that of v, which heads may share.
    """
    keys = norm_of(np.column_stack([head.K, head.k_bias]))
    return -norm_of(head.v) * keys, head.v.tolist(), head.scores.numbers


def _form_of(model: FrozenModel) -> Form:
    form = read(model.maps)
    if form is None:
        raise ValueError(
            f"No canonical form is known of {model!r}: of its maps, their order, or an array."
        )
    return form


def _ordered(form: Form) -> tuple[HingeSum, Indices]:
    """Return neurons with a positive first weight, and their order by weights."""
    parts = Network.of(form, (), 0, True).parts(1.0)
    parts = parts.turned(first_is_negative(parts.u))
    return parts, np.lexsort(parts.u.T[::-1])


def _merged(model: MultiHead | MultiHeadTransformer, values: Array) -> tuple[Array, Array, Array]:
    """Return W, w and summed values of heads of distinct [W w], ordered by these entry by entry."""
    d, shape = model.dim, values.shape[1:]
    rows = np.column_stack([model.W.reshape(model.H, d * d), model.w]) + 0.0  # −0 becomes 0
    groups: dict[bytes, list[int]] = {}
    for head in sorted(range(model.H), key=lambda h: rows[h].tolist()):
        groups.setdefault(rows[head].tobytes(), []).append(head)
    flat = values.reshape(model.H, math.prod(shape))
    totals = [_sum_of_rows(flat[group]) + 0.0 for group in groups.values()]
    kept = rows[[group[0] for group in groups.values()]]
    whole = np.reshape(totals, (len(groups), *shape))
    return kept[:, : d * d].reshape(-1, d, d), kept[:, d * d :], whole


def _sum_of_rows(v: Array) -> Array:
    """Add up rows, exactly but for one rounding: in any order the same."""
    if len(v) == 1:
        return np.asarray(v[0])
    return np.array([math.fsum(column) for column in v.T.tolist()])


CANONICAL: dict[type[FrozenModel], Callable[[Any], Any]] = {
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
