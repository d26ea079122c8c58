"""What stands for a Transformer, and sequences that tell two of them apart.

T([(a+b); b]) = g(b + σ(a·(W b + w))·a) determines W and w wherever g is not constant, and g is
T at single tokens. So the canonical form is the network's own, with W = 0 and w = 0 where it is
constant; and with an affine network, g(p) = l·p + c, a Transformer is the head with v = l.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from unsoftmax.models.multi_head import MultiHead
from unsoftmax.models.relu_equality import affine_part, canonical_network, size_of
from unsoftmax.models.relu_network import ReluNetwork
from unsoftmax.models.single_head import SingleHead
from unsoftmax.models.transformer import Transformer
from unsoftmax.models.witnesses import candidates
from unsoftmax.probes import Array

M = TypeVar("M", bound="SingleHead | MultiHead | ReluNetwork | Transformer")


def canonical_transformer(model: Transformer) -> Transformer:
    """Return the Transformer that stands for all that compute the same function."""
    network = canonical_network(model.network)
    if network.A.shape[1]:
        return model.before(network)
    return Transformer(np.zeros((model.dim, model.dim)), network)


def as_head(model: M) -> M | SingleHead:
    """Return a Transformer with an affine network as the head that it is."""
    if not isinstance(model, Transformer) or (affine := affine_part(model.network)) is None:
        return model
    scores = {name: x for name, x in model.arrays().items() if name in "WKQw"}
    return SingleHead.from_arrays({**scores, "v": affine[0], "c": affine[1]})


def as_transformer(model: SingleHead | MultiHead | Transformer) -> Transformer:
    """Return a head as a Transformer; of several heads only what they answer to single tokens."""
    if isinstance(model, Transformer):
        return model
    if isinstance(model, MultiHead):
        model = SingleHead(np.zeros((model.dim, model.dim)), model.v.sum(axis=0), None, model.c)
    network = ReluNetwork(np.column_stack([model.v, -model.v]), [1.0, -1.0], None, model.c)
    return Transformer(model.W, network, model.w)


def separate_attention(a: Transformer, b: Transformer) -> Array | None:
    """Find a sequence that tells two attentions apart: as for heads with steep value vectors."""
    network = a.network
    best: tuple[float, Array | None] = (1.0, None)
    for weights in (network.w_o, np.abs(network.w_o)):
        v = network.A @ weights
        heads = [SingleHead(model.W, v, model.w) for model in (a, b)]
        with np.errstate(over="ignore", invalid="ignore"):
            for X in candidates(heads[0], heads[1]):
                noise = _rounding(a, X) + _rounding(b, X)
                ratio = np.nan_to_num(np.abs(a(X) - b(X)) / noise, nan=0.0, posinf=0.0)
                k = int(np.argmax(ratio))
                if ratio[k] > best[0]:
                    best = float(ratio[k]), X[k]
    return best[1]


def _rounding(model: Transformer, X: Array) -> Array:
    """Bound the rounding of a Transformer's answers: of the network, and of scores."""
    network, longest = model.network, np.linalg.norm(X, axis=2).max(axis=1)
    scores = np.abs(np.einsum("bnd,bd->bn", X, model.scores_of(X[:, -1]))).max(axis=1)
    steep = float(np.abs(network.w_o) @ np.linalg.norm(network.A, axis=0))
    noise = size_of(network, X.max(axis=1)) + longest * steep * (1 + scores)
    rounding = 64 * model.dim * np.finfo(float).eps * noise
    return np.asarray(np.maximum(rounding, np.finfo(float).tiny))
