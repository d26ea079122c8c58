"""Do two models compute the same function? Decided on canonical forms, shown by a witness.

A single head is determined by its function, except that W and w are free when v = 0: two
queries [x] give v and c, and f([(a+b); b]) = b·v + c + (a·v)·σ(a·(W b + w)) gives W and w.
So the canonical form sets W = 0, w = 0 when v = 0, and is otherwise the head itself.
ReLU networks are decided on their hyperplanes (`relu_equality`). A Transformer is its network
and [W w], which are free when the network is constant; with an affine network it is a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from unsoftmax.models.relu_equality import (
    affine_part,
    canonical_network,
    gap_between,
    largest_between,
    size_of,
    witness_between,
)
from unsoftmax.models.relu_network import ReluNetwork
from unsoftmax.models.single_head import SingleHead
from unsoftmax.models.transformer import Transformer
from unsoftmax.probes import Array

Verdict = Literal["equal", "different", "undecided"]
AnyModel = SingleHead | ReluNetwork | Transformer
M = TypeVar("M", SingleHead, ReluNetwork, Transformer)


@dataclass(frozen=True, slots=True)
class Equivalence:
    """The answer to `equivalent`; true exactly when the verdict is "equal".

    Attributes
    ----------
    verdict : {"equal", "different", "undecided"}
        "undecided": the parameters differ by more than the tolerance, yet no sequence was
        found on which float64 tells the functions apart.
    witness : ndarray, shape (N, d), or None
        A sequence on which the two functions differ; only with "different", and None even
        then when the two do not take the same sequences.
    gap : float
        The largest difference between canonical parameters, [W w] and [v c] each relative
        to the larger of the two norms; of ReLU networks, between all jumps of the gradient and
        the affine parts, relative to theirs; a neuron that wakes up far out counts by its slope.
    """

    verdict: Verdict
    witness: Array | None
    gap: float
    by: Literal["canonical form", "cells", "witness", "shape", "nothing"] = "canonical form"

    def __bool__(self) -> bool:
        return self.verdict == "equal"


def canonical(model: M) -> M:
    """Return the one model that stands for all that compute the same function.

    Parameters
    ----------
    model : SingleHead, ReluNetwork or Transformer
        A head; when v = 0 its W and w have no effect and become 0. Or a network: parallel
        neurons are merged, all are turned one way and ordered. Or a Transformer: its network's
        canonical form; where that is constant W and w become 0.
    """
    if isinstance(model, ReluNetwork):
        return canonical_network(model)
    if isinstance(model, Transformer):
        network = canonical_network(model.network)
        if network.A.shape[1]:
            scores = {name: x for name, x in model.arrays().items() if name in "WKQw"}
            return Transformer.from_arrays(
                {**scores, **{f"network.{name}": x for name, x in network.arrays().items()}}
            )
        return Transformer(np.zeros((model.dim, model.dim)), network)
    if np.any(model.v):
        return model
    return SingleHead(np.zeros((model.dim, model.dim)), np.zeros(model.dim), None, model.c)


def equivalent(a: AnyModel, b: AnyModel, rtol: float = 1e-9, atol: float = 0.0) -> Equivalence:
    """Decide whether two models compute the same function.

    Parameters
    ----------
    a, b : SingleHead, ReluNetwork or Transformer
        The models. A network takes other sequences than a head or a Transformer and is
        different from them; a Transformer whose network is affine is a head.
    rtol, atol : float
        [W w] (Frobenius norm) and [v c] (2-norm) count as equal when they differ by at most
        ``rtol`` times the larger norm plus ``atol``. Both 0 decides exact equality. For
        networks the norm is that of all jumps of the gradient and the affine part.

    Returns
    -------
    Equivalence
        With a witness when they differ: ``a(witness[None])`` is not ``b(witness[None])``.

    Examples
    --------
    >>> import numpy as np
    >>> a = SingleHead(np.eye(2), [1.0, 2.0])
    >>> b = SingleHead(2 * np.eye(2), [1.0, 2.0])
    >>> bool(equivalent(a, a)), equivalent(a, b).verdict
    (True, 'different')
    """
    for model in (a, b):
        if not isinstance(model, AnyModel):
            raise TypeError(
                f"equivalent compares models; this is a {type(model).__name__}. A recovery's "
                "model is recovery.model."
            )
    if not (rtol >= 0 and atol >= 0):
        raise ValueError("rtol and atol must be 0 or more.")
    a, b = _as_head(a), _as_head(b)
    if a.dim != b.dim or isinstance(a, ReluNetwork) != isinstance(b, ReluNetwork):
        return Equivalence("different", None, float("inf"), "shape")
    if isinstance(a, ReluNetwork) and isinstance(b, ReluNetwork):
        return _networks(a, b, rtol, atol)
    if isinstance(a, Transformer) or isinstance(b, Transformer):
        return _transformers(_as_transformer(a), _as_transformer(b), rtol, atol)
    assert isinstance(a, SingleHead)
    assert isinstance(b, SingleHead)
    a, b = canonical(a), canonical(b)
    compared = [
        _compared(mine, other, rtol, atol)
        for mine, other in zip(_blocks(a), _blocks(b), strict=True)
    ]
    gap = max(gap for _, gap in compared)
    if all(within for within, _ in compared):
        return Equivalence("equal", None, gap)
    return _apart(_separate(a, b), gap)


def _compared(mine: Array, other: Array, rtol: float, atol: float) -> tuple[bool, float]:
    """Tell whether two arrays are within the tolerance, and their relative difference."""
    # a power of two, so that dividing by it is exact
    unit = 2.0 ** (np.frexp(max(_largest(mine), _largest(other)))[1] - 1)
    difference = _norm(mine / unit - other / unit)
    size = max(_norm(mine / unit), _norm(other / unit))
    within = difference <= rtol * size + atol / unit
    if not (rtol or atol):
        within = np.array_equal(mine, other)
    return within, difference / size if size else 0.0


def _as_head(model: AnyModel) -> AnyModel:
    """Return a Transformer with an affine network as the head that it is."""
    if not isinstance(model, Transformer) or (affine := affine_part(model.network)) is None:
        return model
    scores = {name: x for name, x in model.arrays().items() if name in "WKQw"}
    return SingleHead.from_arrays({**scores, "v": affine[0], "c": affine[1]})


def _as_transformer(model: SingleHead | ReluNetwork | Transformer) -> Transformer:
    """Return a head as a Transformer with a linear network."""
    if isinstance(model, Transformer):
        return model
    assert isinstance(model, SingleHead)
    network = ReluNetwork(np.column_stack([model.v, -model.v]), [1.0, -1.0], None, model.c)
    return Transformer(model.W, network, model.w)


def _transformers(a: Transformer, b: Transformer, rtol: float, atol: float) -> Equivalence:
    networks = _networks(a.network, b.network, rtol, atol)
    a, b = canonical(a), canonical(b)
    mine, other = (np.column_stack([model.W, model.w]) for model in (a, b))
    within, gap = _compared(mine, other, rtol, atol)
    gap = max(gap, networks.gap)
    if within and networks:
        return Equivalence("equal", None, gap, networks.by)
    witness = networks.witness
    if witness is None:
        witness = _separate_attention(a, b)
    return _apart(witness, gap)


def _separate_attention(a: Transformer, b: Transformer) -> Array | None:
    """Find a sequence that tells two attentions apart: as for heads with steep value vectors."""
    network = a.network
    best: tuple[float, Array | None] = (1.0, None)
    for weights in (network.w_o, np.abs(network.w_o)):
        v = network.A @ weights
        heads = [SingleHead(model.W, v, model.w) for model in (a, b)]
        with np.errstate(over="ignore", invalid="ignore"):
            for X in _candidates(heads[0], heads[1]):
                noise = _rounding_of(a, X) + _rounding_of(b, X)
                ratio = np.nan_to_num(np.abs(a(X) - b(X)) / noise, nan=0.0, posinf=0.0)
                k = int(np.argmax(ratio))
                if ratio[k] > best[0]:
                    best = float(ratio[k]), X[k]
    return best[1]


def _rounding_of(model: Transformer, X: Array) -> Array:
    """Bound the rounding of a Transformer's answers: of the network, and of scores."""
    network, longest = model.network, np.linalg.norm(X, axis=2).max(axis=1)
    scores = np.abs(np.einsum("bnd,bd->bn", X, model.scores_of(X[:, -1]))).max(axis=1)
    steep = float(np.abs(network.w_o) @ np.linalg.norm(network.A, axis=0))
    noise = size_of(network, X.max(axis=1)) + longest * steep * (1 + scores)
    rounding = 64 * model.dim * np.finfo(float).eps * noise
    return np.asarray(np.maximum(rounding, np.finfo(float).tiny))


def _networks(a: ReluNetwork, b: ReluNetwork, rtol: float, atol: float) -> Equivalence:
    difference, size = gap_between(a, b)
    gap = difference / size if size else 0.0
    if difference <= rtol * size + atol:
        return Equivalence("equal", None, gap)
    if largest_between(a, b) <= rtol * size + atol and (rtol or atol):
        return Equivalence("equal", None, gap, "cells")
    return _apart(witness_between(a, b), gap)


def _apart(witness: Array | None, gap: float) -> Equivalence:
    """Return the verdict on models whose parameters differ."""
    if witness is None:
        return Equivalence("undecided", None, gap, "nothing")
    return Equivalence("different", witness, gap, "witness")


def _blocks(head: SingleHead) -> tuple[Array, Array]:
    return np.column_stack([head.W, head.w]), np.append(head.v, head.c)


def _separate(a: SingleHead, b: SingleHead) -> Array | None:
    """Find a sequence of one or two tokens on which float64 tells the heads apart."""
    best: tuple[float, Array | None] = (1.0, None)
    # answers out of float64's range are no evidence
    with np.errstate(over="ignore", invalid="ignore"):
        for X in _candidates(a, b):
            ratio = np.nan_to_num(np.abs(a(X) - b(X)) / _rounding(a, b, X), nan=0.0, posinf=0.0)
            k = int(np.argmax(ratio))
            if ratio[k] > best[0]:
                best = float(ratio[k]), X[k]
    return best[1]


def _candidates(a: SingleHead, b: SingleHead) -> Iterator[Array]:
    """Make sequences that tell v and c apart, then pairs [u+q; q] that tell W and w apart.

    Sizes are chosen for logits near 1, which W or w alone may set, and up to 4¹² away from it.
    """
    rng = np.random.default_rng(0)
    d = a.dim
    W, w, v = (max(_norm(x), _norm(y)) for x, y in ((a.W, b.W), (a.w, b.w), (a.v, b.v)))
    c = max(abs(a.c), abs(b.c))
    yield np.zeros((1, 1, d))
    if not v:
        return  # two constants
    for size in {1.0, c / v or 1.0}:
        yield _sizes(size)[:, None, None] * _unit(a.v - b.v)
    difference = a.W / (W or 1.0) - b.W / (W or 1.0)
    left, right = rng.standard_normal((2, d))
    for _ in range(30):  # power iteration: the direction in which the scores differ most
        left, right = _unit(difference @ right), _unit(difference.T @ left)
    value = _unit(a.v / v + b.v / v)
    bias = _unit(a.w)
    across = left - (left @ bias) * bias  # sees W alone, however large w is
    lines = (left, across, _unit(a.w - b.w))
    offsets = [_unit(u + s * value) for u in lines for s in (0.0, 1.0, -1.0)]
    offsets += list(rng.standard_normal((4, d)))
    queries = [right, np.zeros(d), *rng.standard_normal((2, d))]
    pairs = np.array([[u + q, q] for u in offsets for q in queries])
    for size in {W**-0.5 if W else 1.0, 1 / w if w else 1.0}:
        yield (_sizes(size)[:, None, None, None] * pairs).reshape(-1, 2, d)
    for size in {1 / W if W else 1.0, 1 / w if w else 1.0}:
        yield np.array([[s * u + q, q] for u in offsets for q in queries for s in _sizes(size)])


def _rounding(a: SingleHead, b: SingleHead, X: Array) -> Array:
    """Bound the rounding of both answers: of values, and of scores, which move the weights."""
    noise = np.zeros(len(X))
    for head in (a, b):
        scores = np.abs(np.einsum("bnd,bd->bn", X, head.scores_of(X[:, -1]))).max(axis=1)
        noise += np.linalg.norm(X, axis=2).max(axis=1) * _norm(head.v) + abs(head.c)
        noise += np.ptp(X @ head.v, axis=1) * scores
    noise *= 64 * a.dim * np.finfo(float).eps
    return np.maximum(noise, np.finfo(float).tiny)


def _sizes(middle: float) -> Array:
    """Return sizes around one, of which no square leaves float64's range."""
    sizes: Array = np.clip(middle * 4.0 ** np.arange(-12, 13), 2.0**-480, 2.0**480)
    return sizes


def _largest(x: Array) -> float:
    return float(np.max(np.abs(x)))


def _norm(x: Array) -> float:
    """Return the 2-norm (Frobenius), also where the squares leave float64's range."""
    unit = _largest(x)
    return unit * float(np.linalg.norm(x / unit)) if unit else 0.0


def _unit(x: Array) -> Array:
    norm = _norm(x)
    return x / norm if norm else x
