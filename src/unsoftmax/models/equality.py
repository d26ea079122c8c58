"""Do two models compute the same function? Decided on canonical forms, shown by a witness.

A single head is determined by its function, except that W and w are free when v = 0: two
queries [x] give v and c, and f([(a+b); b]) = b·v + c + (a·v)·σ(a·(W b + w)) gives W and w.
So the canonical form sets W = 0, w = 0 when v = 0, and is otherwise the head itself.
Several heads are decided one by one (`multi_head_equality`), ReLU networks on their
hyperplanes (`relu_equality`). A Transformer is its network and [W w], which are free when the
network is constant; with an affine network it is a head (`transformer_equality`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from unsoftmax.models.multi_head import MultiHead
from unsoftmax.models.multi_head_equality import as_multi_head, canonical_heads, compare, separate
from unsoftmax.models.relu_equality import (
    canonical_network,
    gap_between,
    largest_between,
    witness_between,
)
from unsoftmax.models.relu_network import ReluNetwork
from unsoftmax.models.single_head import SingleHead
from unsoftmax.models.transformer import Transformer
from unsoftmax.models.transformer_equality import (
    as_head,
    as_transformer,
    canonical_transformer,
    separate_attention,
)
from unsoftmax.models.witnesses import candidates, largest_of, norm_of, octave
from unsoftmax.probes import Array

Verdict = Literal["equal", "different", "undecided"]
AnyModel = SingleHead | MultiHead | ReluNetwork | Transformer
M = TypeVar("M", SingleHead, MultiHead, ReluNetwork, Transformer)


@dataclass(frozen=True, slots=True)
class Equivalence:
    """The answer to `equivalent`; true exactly when the verdict is "equal".

    Attributes
    ----------
    verdict : {"equal", "different", "undecided"}
        "undecided": the parameters differ by more than the tolerance, yet no sequence was
        found on which float64 tells the functions apart; or heads of one model are within
        the tolerance of each other, and only if they count as one are the models equal.
    witness : ndarray, shape (N, d), or None
        A sequence on which the two functions differ; only with "different", and None even
        then when the two do not take the same sequences.
    gap : float
        The largest difference between canonical parameters, [W w] and [v c] each relative
        to the larger of the two norms, of several heads [W w] head by head and all v with c;
        of ReLU networks, between all jumps of the gradient and the affine parts, relative to
        theirs; a neuron that wakes up far out counts by its slope.
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
    model : SingleHead, MultiHead, ReluNetwork or Transformer
        A head; when v = 0 its W and w have no effect and become 0. Or several: those with equal
        W and w are merged, those with v = 0 left out, the rest is ordered. Or a network:
        parallel neurons are merged, all are turned one way and ordered. Or a Transformer: its
        network's canonical form; where that is constant W and w become 0.
    """
    _refuse_others("canonical takes", model)
    if isinstance(model, MultiHead):
        return canonical_heads(model)
    if isinstance(model, ReluNetwork):
        return canonical_network(model)
    if isinstance(model, Transformer):
        return canonical_transformer(model)
    if np.any(model.v):
        return model
    return SingleHead(np.zeros((model.dim, model.dim)), np.zeros(model.dim), None, model.c)


def _refuse_others(what: str, model: object) -> None:
    if not isinstance(model, AnyModel):
        raise TypeError(
            f"{what} models; this is a {type(model).__name__}. A recovery's model is "
            "recovery.model."
        )


def equivalent(a: AnyModel, b: AnyModel, rtol: float = 1e-9, atol: float = 0.0) -> Equivalence:
    """Decide whether two models compute the same function.

    Parameters
    ----------
    a, b : SingleHead, MultiHead, ReluNetwork or Transformer
        The models; a head is compared with several as one of them, and a Transformer whose
        network is affine is a head. A network takes other sequences than the others and is
        different from them.
    rtol, atol : float
        [W w] (Frobenius norm) and [v c] (2-norm) count as equal when they differ by at most
        ``rtol`` times the larger norm plus ``atol``. Both 0 decides exact equality. Several
        heads are matched by their [W w]; all v together and c are then one block. For
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
        _refuse_others("equivalent compares", model)
    if not (rtol >= 0 and atol >= 0):
        raise ValueError("rtol and atol must be 0 or more.")
    a, b = as_head(a), as_head(b)
    if a.dim != b.dim or isinstance(a, ReluNetwork) != isinstance(b, ReluNetwork):
        return Equivalence("different", None, float("inf"), "shape")
    if isinstance(a, ReluNetwork) and isinstance(b, ReluNetwork):
        return _networks(a, b, rtol, atol)
    assert not isinstance(a, ReluNetwork)
    assert not isinstance(b, ReluNetwork)
    if isinstance(a, Transformer) or isinstance(b, Transformer):
        return _transformers(a, b, rtol, atol)
    if isinstance(a, MultiHead) or isinstance(b, MultiHead):
        return _several(_of_several(a), _of_several(b), rtol, atol)
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
    unit = octave(max(largest_of(mine), largest_of(other)))
    difference = norm_of(mine / unit - other / unit)
    size = max(norm_of(mine / unit), norm_of(other / unit))
    within = difference <= rtol * size + atol / unit
    if not (rtol or atol):
        within = np.array_equal(mine, other)
    return within, difference / size if size else 0.0


def _transformers(
    a: SingleHead | MultiHead | Transformer,
    b: SingleHead | MultiHead | Transformer,
    rtol: float,
    atol: float,
) -> Equivalence:
    first, second = as_transformer(a), as_transformer(b)
    networks = _networks(first.network, second.network, rtol, atol)
    first, second = canonical(first), canonical(second)
    mine, other = (np.column_stack([model.W, model.w]) for model in (first, second))
    within, gap = _compared(mine, other, rtol, atol)
    gap = max(gap, networks.gap)
    if within and networks:
        return Equivalence("equal", None, gap, networks.by)
    witness = networks.witness
    if witness is None:
        witness = separate_attention(first, second)
    return _apart(witness, gap)


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


def _several(a: MultiHead, b: MultiHead, rtol: float, atol: float) -> Equivalence:
    found = compare(a, b, rtol, atol)
    if found.equal:
        return Equivalence("equal", None, found.gap)
    return _apart(None if found.nearly else separate(a, b, found.differing), found.gap)


def _of_several(model: SingleHead | MultiHead) -> MultiHead:
    return model if isinstance(model, MultiHead) else as_multi_head(model)


def _blocks(head: SingleHead) -> tuple[Array, Array]:
    return np.column_stack([head.W, head.w]), np.append(head.v, head.c)


def _separate(a: SingleHead, b: SingleHead) -> Array | None:
    """Find a sequence of one or two tokens on which float64 tells the heads apart."""
    best: tuple[float, Array | None] = (1.0, None)
    # answers out of float64's range are no evidence
    with np.errstate(over="ignore", invalid="ignore"):
        for X in candidates(a, b):
            ratio = np.nan_to_num(np.abs(a(X) - b(X)) / _rounding(a, b, X), nan=0.0, posinf=0.0)
            k = int(np.argmax(ratio))
            if ratio[k] > best[0]:
                best = float(ratio[k]), X[k]
    return best[1]


def _rounding(a: SingleHead, b: SingleHead, X: Array) -> Array:
    """Bound the rounding of both answers: of values, and of scores, which move the weights."""
    noise = np.zeros(len(X))
    for head in (a, b):
        scores = np.abs(np.einsum("bnd,bd->bn", X, head.scores_of(X[:, -1]))).max(axis=1)
        noise += np.linalg.norm(X, axis=2).max(axis=1) * norm_of(head.v) + abs(head.c)
        noise += np.ptp(X @ head.v, axis=1) * scores
    noise *= 64 * a.dim * np.finfo(float).eps
    return np.maximum(noise, np.finfo(float).tiny)
