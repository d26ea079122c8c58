"""Logits of a vocabulary in factors: G_ij = (ρ_i − ρ_j)·x_j from few of them, each with its error.

    rank_of(block)              how many directions rows of a block of logits have
    greedy_rows(A, count)       rows that span, batch by batch: pivoted QR
    weighted(A, y, error)       x with A x = y, weighted; what errors of y make of it: |P| ε

All is done for many query tokens at a time.
"""

from dataclasses import dataclass

import numpy as np

from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Flags, Indices

# Singular values of a block within so many times its errors are none: smaller, and errors count as
# directions; larger, and small directions are lost.
NOISE = 10.0
# Rows and columns are readable where errors are within so many times the median: the smallest of
# these for which as large a share of them is.
READABLE, SHARE = (1e2, 1e3, 1e4, 1e5), 0.8


@dataclass(frozen=True, slots=True)
class BlockRank:
    """What a block of logits (rows i, query tokens j) tells of the rank.

    Attributes
    ----------
    rank : int
        Number of directions above the errors.
    spare : int
        Directions that are within the errors: they tell that there are no more.
    columns : array of int
        Query tokens of the block, by pivoted QR: the first ones span best.
    """

    rank: int
    spare: int
    columns: Indices


def rank_of(G: Array, error: Array) -> BlockRank:
    """Find the rank of a block whose rows are known up to one number per column.

    Rows and columns that are not readable are left out, the worst first.
    """
    usual = float(np.median(error[np.isfinite(error)])) if np.any(np.isfinite(error)) else 0.0
    for within in READABLE:
        rows, columns = _without(~(error <= within * usual))
        if min(rows.mean(), columns.mean()) >= SHARE:
            break
    at = np.ix_(rows, columns)
    if min(rows.sum(), columns.sum()) < 2:
        return BlockRank(0, 0, np.flatnonzero(columns))
    centred = G[at] - G[at].mean(axis=0)
    noise = float(np.sqrt(np.mean(error[at] ** 2)))
    s = np.linalg.svd(centred, compute_uv=False)
    rank = int(np.sum(s > NOISE * np.sqrt(len(centred)) * noise))
    order = greedy_rows(centred.T[None], int(columns.sum()))[0]
    most = min(rows.sum() - 1, columns.sum())
    return BlockRank(rank, int(most) - rank, np.flatnonzero(columns)[order])


def _without(bad: Flags) -> tuple[Flags, Flags]:
    """Leave out rows and columns until no bad entry is left, the worst ones first."""
    rows, columns = (np.ones(n, bool) for n in bad.shape)
    while np.any(inside := bad & rows[:, None] & columns):
        by_row, by_column = inside.sum(axis=1) / columns.sum(), inside.sum(axis=0) / rows.sum()
        if by_row.max() >= by_column.max():
            rows[int(np.argmax(by_row))] = False
        else:
            columns[int(np.argmax(by_column))] = False
    return rows, columns


def greedy_rows(A: Array, count: int) -> Indices:
    """Choose ``count`` rows of every A (c, m, r) by pivoted QR: (c, count).

    When nothing is left of all rows, r of them chosen, it begins anew with the others.
    """
    left = np.array(A, dtype=np.float64)
    batch = np.arange(len(left))
    chosen = np.empty((len(left), count), dtype=np.intp)
    free = np.ones(left.shape[:2], bool)
    rank = max(1, A.shape[2])
    for step in range(count):
        if step and step % rank == 0:
            left = np.array(A, dtype=np.float64)
        sizes = np.where(free, np.einsum("cmr,cmr->cm", left, left), -1.0)
        best = np.argmax(sizes, axis=1)
        chosen[:, step] = best
        free[batch, best] = False
        q = left[batch, best]
        q = q / np.maximum(np.linalg.norm(q, axis=1, keepdims=True), TINY)
        left = left - np.einsum("cmr,cr->cm", left, q)[:, :, None] * q[:, None, :]
    return chosen


def weighted(A: Array, y: Array, error: Array) -> tuple[Array, Array]:
    """Solve A x = y for every A (c, m, r), y (c, m), by weighted least squares.

    Rows whose error is infinite do not count. Returns x (c, r) and, entry by entry, what errors of
    y of that size make of it at most.
    """
    with np.errstate(divide="ignore"):
        weight = np.where(np.isfinite(error), 1 / np.maximum(error, TINY), 0.0)
    weight = weight / np.maximum(weight.max(axis=1, keepdims=True), TINY)
    P = np.linalg.pinv(A * weight[:, :, None], rcond=1e-13) * weight[:, None, :]
    x = np.einsum("crm,cm->cr", P, np.where(weight > 0, y, 0.0))
    bound = np.einsum("crm,cm->cr", np.abs(P), np.where(weight > 0, error, 0.0))
    lost = np.sum(weight > 0, axis=1) < A.shape[2]
    bound[lost] = np.inf
    return x, bound
