"""The sides of all neurons, and the residual, from the affine part: nothing is asked.

With every a_j turned to a_j·x₁ > 0, F(x) = J x + g + Σ_j b_j relu(z_j(x)), and relu(−z) is
relu(z) − z: where neuron j is active on its other side, −b_j a_jᵀ is in J. So

    J = −Σ_j f_j b_j a_jᵀ + ρ I,        f_j ∈ {0, 1}, ρ ∈ {0, 1} (ρ = 0 where d_out ≠ d):

d·d_out equations for m + 1 numbers. Where these are determined and come out as 0 and 1, sides and
residual are those of the one layer without a linear part. Else (two neurons on one hyperplane,
active on opposite sides; I among the sums of the b_j a_jᵀ) a linear part R is left, for any f.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from unsoftmax.probes import Array, Flags

# Shares are 0 or 1 if they are off by less. Wrong layers have any share.
WHOLE = 0.1
# Equations of a larger condition determine no sides.
CONDITION = 1e12
# A linear part up to so many times its typical error is none.
ERRORS = 30.0


@dataclass(frozen=True, slots=True)
class Sides:
    """Which neurons are turned around, whether x is added, and what is left."""

    back: Flags
    residual: bool
    linear: tuple[Array, Array] | None
    """R as U (r, d_out) and V (r, d), R = UᵀV; None where it is 0."""
    known: bool
    """Whether the equations determine shares."""
    whole: Flags
    """Of which neurons, and last of the residual, they are 0 or 1."""
    added: Array
    """The ρ of the residual."""

    @property
    def sure(self) -> bool:
        """Whether sides and residual are determined."""
        return self.known and bool(np.all(self.whole))


@dataclass(frozen=True, slots=True)
class ResidualPart:
    """What a residual may add to the Jacobian: Σ_i ρ_i E_i, the ρ unknown.

    Attributes
    ----------
    matrix : ndarray, shape (d_out, d)
        E; where ``rows`` is set, E_i is its i-th row alone.
    free : bool
        Whether the ρ may be any numbers, not 0 or 1 alone.
    rows : bool
        Whether each output has a ρ of its own.
    """

    matrix: Array
    free: bool = False
    rows: bool = False

    def along(self, J: Array) -> Array:
        """Return the scalar products of the E_i with a Jacobian."""
        each = np.sum(self.matrix * J, axis=1)
        return each if self.rows else np.array([np.sum(each)])

    def crossed(self, rows: Array, columns: Array) -> Array:
        """Return their products with all b_j a_jᵀ, (m, number of E_i)."""
        each = (rows @ self.matrix.T) * columns
        return each if self.rows else np.sum(each, axis=1, keepdims=True)

    def summed(self, shares: Array) -> Array:
        """Return Σ ρ_i E_i."""
        return np.asarray(np.resize(shares, len(self.matrix))[:, None] * self.matrix)


def sides_of(
    rows: Array,
    columns: Array,
    first: Array,
    error: float,
    *,
    residual: ResidualPart | None = None,
    alone: bool = False,
) -> Sides:
    """Find sides and residual.

    Parameters
    ----------
    rows, columns : ndarray, shapes (m, d) and (m, d_out)
        Neurons as they are ahead of the line.
    first : ndarray, shape (d_out, d)
        The Jacobian where none of them is active.
    error : float
        What it is typically off by, the errors of the neurons included (Frobenius norm).
    residual : ResidualPart, optional
        What the residual may be: x, or nothing where d_out is not d, unless given.
    alone : bool
        Whether there is none.
    """
    (m, d), d_out = rows.shape, columns.shape[1]
    if residual is None and d == d_out and not alone:
        residual = ResidualPart(np.eye(d))
    known, share = _shares(rows, columns, first, residual)
    whole = np.asarray(np.round(np.clip(share, 0.0, 1.0)), dtype=np.float64)
    if residual is not None and residual.free:
        whole[m:] = share[m:]
    near = np.abs(share - whole) < WHOLE
    near = np.append(near[:m], np.all(near[m:]))
    back = whole[:m] > 0
    linear: Array = first + columns[back].T @ rows[back]
    if residual is not None and residual.free and known and np.all(near):
        # with the sides settled, it is told more precisely
        share[m:] = residual.along(linear) / residual.along(residual.matrix)
        whole[m:] = share[m:]
    if residual is not None:
        linear = linear - residual.summed(whole[m:])
    added = np.array(whole[m:])
    adds = bool(np.any(added))
    if np.linalg.norm(linear) <= ERRORS * error:
        return Sides(back, adds, None, known, near, added)
    U, s, Vt = np.linalg.svd(linear)
    root = np.sqrt(s[s > ERRORS * error])[:, None]
    parts = root * U.T[: len(root)], root * Vt[: len(root)]
    return Sides(back, adds, parts, known, near, added)


def _shares(
    rows: Array, columns: Array, first: Array, residual: ResidualPart | None
) -> tuple[bool, Array]:
    """Solve for all f_j and ρ; tell whether the equations determine them, too."""
    size = np.linalg.norm(rows, axis=1) * np.linalg.norm(columns, axis=1)
    gram = (rows @ rows.T) * (columns @ columns.T)
    right = -np.sum((columns @ first) * rows, axis=1)
    if residual is not None:
        crossed, own = residual.crossed(rows, columns), residual.along(residual.matrix)
        gram = np.block([[gram, -crossed], [-crossed.T, np.diag(own)]])
        right = np.append(right, residual.along(first))
        size = np.append(size, np.sqrt(own))
    gram /= np.outer(size, size)
    unknown = len(size)
    known = unknown <= first.size and (not unknown or np.linalg.cond(gram) < CONDITION)
    if known:
        share = scipy.linalg.solve(gram, right / size, assume_a="pos") / size if unknown else right
    else:
        share = np.linalg.lstsq(gram, right / size, rcond=1e-9)[0] / size
    return known, np.asarray(share)
