"""Heads behind a vocabulary: what of u, ρ and x the function determines, and where two differ.

Scores M = ρ xᵀ count up to a constant for every query token, and not at all where all u are alike.
The one M that stands for all has columns of mean 0; its factors are those of its singular values.
"""

from collections.abc import Iterator

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.products import Product, Tolerance, apart
from unsoftmax.models.token_head import TokenHead
from unsoftmax.probes import Array, Indices

# Numbers of logits that are looked at together: 32 MiB.
AT_ONCE = 2**22
# Query tokens whose logits are compared in search of a witness.
LOOKED_AT = 256
# Answers that differ by more roundoffs of the values differ.
ROUNDOFFS = 2.0**8


def canonical_head(model: TokenHead) -> TokenHead:
    """Return the head of the same function with centred scores and balanced factors."""
    M = _centred(model).compact()
    root = np.sqrt(np.linalg.norm(M.right, axis=1))
    return TokenHead(model.u, root * M.left, M.right.T / root)


def gap_between(a: TokenHead, b: TokenHead, tolerance: Tolerance) -> tuple[float, bool]:
    """Return the largest difference of values and centred scores, relative; whether it is none."""
    alike, gap = tolerance.compare(a.u, b.u)
    M = apart(_centred(a), _centred(b))
    return max(gap, M.relative), alike and tolerance.allows(M.difference, M.size, M.unit)


def witness_between(a: TokenHead, b: TokenHead) -> Array | None:
    """Return ids (N,) that two heads answer otherwise, beyond rounding; None if none are found."""
    j = np.linspace(0, a.vocabulary - 1, min(a.vocabulary, LOOKED_AT)).astype(np.intp)
    at = [np.argmax(np.abs(part), axis=0) for part in _differences(a, b, j)]
    pairs = np.column_stack([np.concatenate(at), j])
    far = np.argmax(np.abs(a.u - a.u[pairs[:, 0]][:, None]), axis=1)
    tried: list[Indices] = [np.arange(a.vocabulary)[:, None], pairs]
    tried.append(np.column_stack([far, pairs]))
    for ids in tried:
        off = np.abs(a(ids) - b(ids))
        n = int(np.argmax(off))
        if off[n] > ROUNDOFFS * UNIT * max(np.abs(a.u).max(), np.abs(b.u).max()):
            return np.asarray(ids[n])
    return None


def share_of_errors(a: TokenHead, b: TokenHead, errors: dict[str, float]) -> float:
    """Return the largest share of the bounds on u and on all G that the differences take."""
    every = np.arange(a.vocabulary)
    G = max(float(np.max(np.abs(part))) for part in _differences(a, b, every))
    off = {"u": float(np.max(np.abs(a.u - b.u))), "G": G}
    return max((off[n] / errors[n] if errors[n] else np.inf) if off[n] else 0.0 for n in off)


def _differences(a: TokenHead, b: TokenHead, j: Indices) -> Iterator[Array]:
    """Yield how far all logits G_ij = M_ij − M_jj of some query tokens are from each other."""
    step = max(1, AT_ONCE // a.vocabulary)
    for start in range(0, len(j), step):
        own = j[start : start + step]
        M = a.rho @ a.x[own].T - b.rho @ b.x[own].T
        yield M - M[own, np.arange(len(own))]


def _centred(model: TokenHead) -> Product:
    """Return the part of M that counts."""
    if np.ptp(model.u) == 0:
        return Product.zeros(model.vocabulary, model.vocabulary)
    return Product(model.rho - model.rho.mean(axis=0), model.x.T)
