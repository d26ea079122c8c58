"""Do two models compute the same function? Decided on canonical forms, shown by a witness.

A single head is determined by its function, except that W and w are free when v = 0: two
queries [x] give v and c, and f([(a+b); b]) = b·v + c + (a·v)·σ(a·(W b + w)) gives W and w.
So the canonical form sets W = 0, w = 0 when v = 0, and is otherwise the head itself.
Several heads are decided one by one (`multi_head_equality`), ReLU networks on their
hyperplanes (`relu_equality`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from unsoftmax.models.multi_head import MultiHead
from unsoftmax.models.multi_head_equality import as_multi_head, canonical_heads, compare, separate
from unsoftmax.models.relu_equality import canonical_network, gap_between, witness_between
from unsoftmax.models.relu_network import ReluNetwork
from unsoftmax.models.single_head import SingleHead
from unsoftmax.models.witnesses import candidates, largest_of, norm_of, octave
from unsoftmax.probes import Array

Verdict = Literal["equal", "different", "undecided"]
AnyModel = SingleHead | MultiHead | ReluNetwork
M = TypeVar("M", SingleHead, MultiHead, ReluNetwork)


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
        of ReLU networks, between all jumps of the gradient and
        the affine parts, relative to theirs.
    """

    verdict: Verdict
    witness: Array | None
    gap: float

    def __bool__(self) -> bool:
        return self.verdict == "equal"


def canonical(model: M) -> M:
    """Return the one model that stands for all that compute the same function.

    Parameters
    ----------
    model : SingleHead, MultiHead or ReluNetwork
        A head; when v = 0 its W and w have no effect and become 0. Or several: those with equal
        W and w are merged, those with v = 0 left out, the rest is ordered. Or a network:
        parallel neurons are merged, all are turned one way and ordered.
    """
    if isinstance(model, MultiHead):
        return canonical_heads(model)
    if isinstance(model, ReluNetwork):
        return canonical_network(model)
    if np.any(model.v):
        return model
    return SingleHead(np.zeros((model.dim, model.dim)), np.zeros(model.dim), None, model.c)


def equivalent(a: AnyModel, b: AnyModel, rtol: float = 1e-9, atol: float = 0.0) -> Equivalence:
    """Decide whether two models compute the same function.

    Parameters
    ----------
    a, b : SingleHead, MultiHead or ReluNetwork
        The models; a head is compared with several as one of them. Heads and a network do not
        take the same sequences and are different.
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
        if not isinstance(model, AnyModel):
            raise TypeError(
                f"equivalent compares models; this is a {type(model).__name__}. A recovery's "
                "model is recovery.model."
            )
    if not (rtol >= 0 and atol >= 0):
        raise ValueError("rtol and atol must be 0 or more.")
    if a.dim != b.dim or isinstance(a, ReluNetwork) != isinstance(b, ReluNetwork):
        return Equivalence("different", None, float("inf"))
    if isinstance(a, ReluNetwork) and isinstance(b, ReluNetwork):
        return _networks(a, b, rtol, atol)
    assert not isinstance(a, ReluNetwork)
    assert not isinstance(b, ReluNetwork)
    if isinstance(a, MultiHead) or isinstance(b, MultiHead):
        return _several(_of_several(a), _of_several(b), rtol, atol)
    a, b = canonical(a), canonical(b)
    gap, within = 0.0, True
    for mine, other in zip(_blocks(a), _blocks(b), strict=True):
        unit = octave(max(largest_of(mine), largest_of(other)))
        difference = norm_of(mine / unit - other / unit)
        size = max(norm_of(mine / unit), norm_of(other / unit))
        if rtol or atol:
            within &= difference <= rtol * size + atol / unit
        else:
            within &= np.array_equal(mine, other)
        gap = max(gap, difference / size if size else 0.0)
    if within:
        return Equivalence("equal", None, gap)
    witness = _separate(a, b)
    return Equivalence("undecided" if witness is None else "different", witness, gap)


def _networks(a: ReluNetwork, b: ReluNetwork, rtol: float, atol: float) -> Equivalence:
    difference, size = gap_between(a, b)
    gap = difference / size if size else 0.0
    if difference <= rtol * size + atol:
        return Equivalence("equal", None, gap)
    witness = witness_between(a, b)
    return Equivalence("undecided" if witness is None else "different", witness, gap)


def _several(a: MultiHead, b: MultiHead, rtol: float, atol: float) -> Equivalence:
    found = compare(a, b, rtol, atol)
    if found.equal:
        return Equivalence("equal", None, found.gap)
    witness = None if found.nearly else separate(a, b, found.differing)
    return Equivalence("undecided" if witness is None else "different", witness, found.gap)


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
