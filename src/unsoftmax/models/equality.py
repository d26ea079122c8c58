"""Do two models compute the same function? Decided on canonical forms, shown by a witness.

A single head is determined by its function, except that W and w are free when v = 0: two
queries [x] give v and c, and f([(a+b); b]) = b·v + c + (a·v)·σ(a·(W b + w)) gives W and w.
So the canonical form sets W = 0, w = 0 when v = 0, and is otherwise the head itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from unsoftmax.models.single_head import SingleHead
from unsoftmax.probes import Array

Verdict = Literal["equal", "different", "undecided"]


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
        to the larger of the two norms.
    """

    verdict: Verdict
    witness: Array | None
    gap: float

    def __bool__(self) -> bool:
        return self.verdict == "equal"


def canonical(model: SingleHead) -> SingleHead:
    """Return the one model that stands for all that compute the same function.

    Parameters
    ----------
    model : SingleHead
        Any head; when v = 0 its W and w have no effect and become 0.
    """
    if np.any(model.v):
        return model
    return SingleHead(np.zeros((model.dim, model.dim)), np.zeros(model.dim), None, model.c)


def equivalent(a: SingleHead, b: SingleHead, rtol: float = 1e-9, atol: float = 0.0) -> Equivalence:
    """Decide whether two models compute the same function.

    Parameters
    ----------
    a, b : SingleHead
        The models.
    rtol, atol : float
        [W w] (Frobenius norm) and [v c] (2-norm) count as equal when they differ by at most
        ``rtol`` times the larger norm plus ``atol``. Both 0 decides exact equality.

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
    if not (rtol >= 0 and atol >= 0):
        raise ValueError("rtol and atol must be 0 or more.")
    if a.dim != b.dim:
        return Equivalence("different", None, float("inf"))
    a, b = canonical(a), canonical(b)
    gap, within = 0.0, True
    for mine, other in zip(_blocks(a), _blocks(b), strict=True):
        difference = float(np.linalg.norm(mine - other))
        size = max(float(np.linalg.norm(mine)), float(np.linalg.norm(other)))
        within &= difference <= rtol * size + atol
        gap = max(gap, difference / size if size else 0.0)
    if within:
        return Equivalence("equal", None, gap)
    witness = _separate(a, b)
    return Equivalence("undecided" if witness is None else "different", witness, gap)


def _blocks(head: SingleHead) -> tuple[Array, Array]:
    return np.column_stack([head.W, head.w]), np.append(head.v, head.c)


def _separate(a: SingleHead, b: SingleHead) -> Array | None:
    """Find a sequence of one or two tokens on which float64 tells the heads apart."""
    rng = np.random.default_rng(0)
    d = a.dim
    difference = a.W - b.W
    left, right = rng.standard_normal((2, d))
    for _ in range(30):  # power iteration: the direction in which the scores differ most
        left, right = _unit(difference @ right), _unit(difference.T @ left)
    value = _unit(a.v + b.v)
    offsets = [_unit(u + s * value) for u in (left, _unit(a.w - b.w)) for s in (0.0, 1.0, -1.0)]
    offsets += list(rng.standard_normal((4, d)))
    queries = [right, np.zeros(d), *rng.standard_normal((2, d))]
    sizes = 4.0 ** np.arange(-12, 13)
    pairs = np.array([[u + q, q] for u in offsets for q in queries])
    twice = (sizes[:, None, None, None] * pairs).reshape(-1, 2, d)
    long = np.array([[s * u + q, q] for u in offsets for q in queries for s in sizes])
    singles = [np.zeros((1, 1, d)), _unit(a.v - b.v)[None, None, :]]
    best: tuple[float, Array | None] = (1.0, None)
    for X in (*singles, twice, long):
        norms = np.linalg.norm(X, axis=2).max(axis=1)
        # rounding: of the values, and of the scores, which the softmax turns into values
        scores = np.abs([np.einsum("bnd,bd->bn", X, m.scores_of(X[:, -1])) for m in (a, b)])
        size = norms * (np.linalg.norm(a.v) + np.linalg.norm(b.v)) * (1 + scores.max(axis=(0, 2)))
        noise = 64 * d * np.finfo(float).eps * (size + abs(a.c) + abs(b.c))
        ratio = np.abs(a(X) - b(X)) / np.maximum(noise, np.finfo(float).tiny)
        k = int(np.argmax(ratio))
        if ratio[k] > best[0]:
            best = float(ratio[k]), X[k]
    return best[1]


def _unit(x: Array) -> Array:
    norm = np.linalg.norm(x)
    return x / norm if norm else x
