"""What columns of a head leave beside the space of earlier ones: its rank, and a tail's error.

A head's logits at rows A of its window, M = A W, tell W q for every q from rows R alone if W q lies
in the span Q of earlier columns. The other rows X, which check, then show what is left of it,

    ρ = M_Xq − C M_Rq,    C = A_X Q (A_R Q)⁻¹,    ρ = (A_X − C A_R) W q.

Noise of the entries of M moves ρ by n² = n_Xq² + C² n_Rq² + Σ_j k_j² (n_Xj² + C² n_Rj²) at most
(k: q's coefficients in the earlier columns j). What is more is not in the span. What is less may be
a tail of W, t beside Q: rows as different as these see τ = |ρ|/‖A_X − C A_R‖ of it, and W q is off
by (1 − Q (A_R Q)⁻¹ A_R) t (`solve.skeleton`). Arrays in, arrays out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.probes import Array, Indices
from unsoftmax.solve.skeleton import Skeleton, pivots


@dataclass(frozen=True, slots=True)
class LogitTable:
    """A head's logits (m, k) at rows A (m, d), and how far each may be off."""

    A: Array
    M: Array
    noise: Array


@dataclass(frozen=True, slots=True)
class ColumnRests:
    """What is left of some columns at the rows beside those that solve for them, (m, k) each."""

    rest: Array
    noise: Array
    """What noise may leave there."""
    share: Array
    """What is left, as a share of the column's rows (k,)."""
    tail: float
    """‖t‖ of a column, for a tail without preferred directions."""
    tilt: float
    """‖1 − Q (A_R Q)⁻¹ A_R‖_F/√d: how many times that a column is off by."""

    def shown(self, noises: float) -> bool:
        """Tell whether answers show more than so many times the noise."""
        return bool(np.any(np.abs(self.rest) > noises * self.noise))

    @property
    def error(self) -> float:
        """Return what one column is off by."""
        return self.tilt * self.tail


def rests_of(
    basis: Array, known: tuple[Array, LogitTable], asked: tuple[LogitTable, int]
) -> ColumnRests:
    """Return what some columns leave beside a span.

    Parameters
    ----------
    basis : ndarray (d, r)
        The span Q.
    known : tuple of ndarray (d, n) and LogitTable
        The columns that it came from, and the noise of their logits at the rows of ``asked``.
    asked : tuple of LogitTable and int
        The columns, and how many rows, the first ones, solve for them.
    """
    (vectors, before), (table, count) = known, asked
    A_R, A_X = table.A[:count], table.A[count:]
    skeleton = Skeleton(basis, A_R)
    C = np.asarray(np.linalg.lstsq(skeleton.core.T, (A_X @ basis).T, rcond=None)[0].T)
    rest = table.M[count:] - C @ table.M[:count]
    # how much of every earlier column is in each of these
    k = np.linalg.lstsq(vectors, skeleton.solve(table.M[:count]), rcond=None)[0]
    square = _carried(table.noise, C, count) + _carried(before.noise, C, count) @ k**2
    seen = np.linalg.norm(A_X - C @ A_R, axis=1)
    d = len(basis)
    left = np.eye(d) - skeleton.solve(A_R)
    tau = np.abs(rest) / np.where(seen > 0, seen, np.inf)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.linalg.norm(rest, axis=0) / np.linalg.norm(table.M, axis=0)
    # a tail has d directions, of which a checking row sees one
    tail = float(np.sqrt(d * np.mean(tau**2))) if tau.size else 0.0
    return ColumnRests(
        rest, np.sqrt(square), np.nan_to_num(share), tail, float(np.linalg.norm(left)) / np.sqrt(d)
    )


def telling_rows(A: Array, noise: Array, basis: Array, choices: int) -> Indices:
    """Choose as many rows of A (d, d) as solve for vectors of a span, with little error.

    Noise of the rows and a tail that it hides count alike. Pivoted QR takes what is long: rows
    weighted at random offer other choices.
    """
    length, rank = np.linalg.norm(A, axis=1), basis.shape[1]
    rng, hidden = np.random.default_rng(rank), np.median(noise / length)
    best, least = np.arange(rank), np.inf
    for n in range(choices):
        weight = length * np.exp(rng.standard_normal(len(A)) * (n > 0))
        rows = pivots((A @ basis / weight[:, None]).T, rank)
        try:
            inverse = np.linalg.inv(A[rows] @ basis)
        except np.linalg.LinAlgError:
            continue
        error = np.hypot(
            np.linalg.norm(inverse * noise[rows]), hidden * np.linalg.norm(inverse @ A[rows])
        )
        if error < least:
            best, least = rows, error
    return best


def _carried(noise: Array, C: Array, count: int) -> Array:
    """Return the squares of what noise (m, k) at all rows leaves in rests."""
    return np.asarray(noise[count:] ** 2 + C**2 @ noise[:count] ** 2)
