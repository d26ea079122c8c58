"""Heads behind a vocabulary: what of u, ρ and x the function determines, and where two differ.

Scores M = ρ xᵀ count up to a constant for every query token, and not at all where all u are alike.
The one M that stands for all has columns of mean 0; its factors are those of its singular values.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.products import Tolerance
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
    left, right = _centred(model)
    (Q_l, R_l), (Q_r, R_r) = np.linalg.qr(left), np.linalg.qr(right)
    U, s, Vt = np.linalg.svd(R_l @ R_r.T)
    rank = int(np.sum(s > UNIT * len(left) * max(s, default=0.0)))
    rho, x = Q_l @ U[:, :rank] * np.sqrt(s[:rank]), Q_r @ Vt[:rank].T * np.sqrt(s[:rank])
    largest = np.take_along_axis(rho, np.argmax(np.abs(rho), axis=0)[None], axis=0)
    sign = np.where(largest < 0, -1.0, 1.0)
    return TokenHead(model.u, sign * rho, sign * x)


def gap_between(a: TokenHead, b: TokenHead, tolerance: Tolerance) -> tuple[float, bool]:
    """Return the largest difference of values and centred scores, relative; whether it is none."""
    mine, other = a.arrays(), b.arrays()
    if all(np.array_equal(mine[name], other[name]) for name in mine):
        return 0.0, True
    pairs = [
        (float(np.linalg.norm(a.u - b.u)), max(_norm(x.u[:, None], np.eye(1)) for x in (a, b)))
    ]
    (l_a, r_a), (l_b, r_b) = _centred(a), _centred(b)
    pairs.append(
        (
            _norm(np.hstack([l_a, l_b]), np.hstack([r_a, -r_b])),
            max(_norm(l_a, r_a), _norm(l_b, r_b)),
        )
    )
    gap = max(float(apart / size) if size else 0.0 for apart, size in pairs)
    equal = all(apart <= tolerance.rtol * size + tolerance.atol for apart, size in pairs)
    return gap, equal


def witness_between(a: TokenHead, b: TokenHead) -> Array | None:
    """Return ids (N,) that two heads answer otherwise, beyond rounding; None if none are found."""
    j = np.linspace(0, a.vocabulary - 1, min(a.vocabulary, LOOKED_AT)).astype(np.intp)
    at = [np.argmax(np.abs(part), axis=0) for part in _differences(a, b, j)]
    pairs = np.column_stack([np.concatenate(at), j])
    far = np.argmax(np.abs(a.u - a.u[pairs[:, 0]][:, None]), axis=1)
    tried: list[Indices] = [np.arange(a.vocabulary)[:, None], pairs]
    tried.append(np.column_stack([far, pairs]))
    for ids in tried:
        apart = np.abs(a(ids) - b(ids))
        n = int(np.argmax(apart))
        if apart[n] > ROUNDOFFS * UNIT * max(np.abs(a.u).max(), np.abs(b.u).max()):
            return np.asarray(ids[n])
    return None


def share_of_errors(a: TokenHead, b: TokenHead, errors: dict[str, float]) -> float:
    """Return the largest share of the bounds on u and on all G that the differences take."""
    every = np.arange(a.vocabulary)
    G = max(float(np.max(np.abs(part))) for part in _differences(a, b, every))
    apart = {"u": float(np.max(np.abs(a.u - b.u))), "G": G}
    return max(
        (apart[n] / errors[n] if errors[n] else np.inf) if apart[n] else 0.0 for n in ("u", "G")
    )


def _differences(a: TokenHead, b: TokenHead, j: Indices) -> Iterator[Array]:
    """Yield how far all logits G_ij = M_ij − M_jj of some query tokens are from each other."""
    step = max(1, AT_ONCE // a.vocabulary)
    for start in range(0, len(j), step):
        own = j[start : start + step]
        M = a.rho @ a.x[own].T - b.rho @ b.x[own].T
        yield M - M[own, np.arange(len(own))]


def _centred(model: TokenHead) -> tuple[Array, Array]:
    """Return factors of the scores whose columns have mean 0; none where all values are alike."""
    if np.ptp(model.u) == 0:
        return np.zeros((model.vocabulary, 0)), np.zeros((model.vocabulary, 0))
    return model.rho - model.rho.mean(axis=0), model.x


def _norm(left: Array, right: Array) -> float:
    """Return ‖left rightᵀ‖_F without the product."""
    R_l, R_r = np.linalg.qr(left)[1], np.linalg.qr(right)[1]
    return float(np.linalg.norm(R_l @ R_r.T))
