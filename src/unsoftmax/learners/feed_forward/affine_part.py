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
from scipy.linalg import solve

from unsoftmax.probes import Array, Flags


@dataclass(frozen=True, slots=True)
class AffinePartTuning:
    """When sides are sure."""

    whole: float = 0.1
    """Shares are 0 or 1 if they are off by less. Wrong layers have any share."""
    condition: float = 1e12
    """Equations of a larger condition determine no sides."""
    errors: float = 30.0
    """A linear part up to so many times its typical error is none."""


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

    @property
    def sure(self) -> bool:
        """Whether sides and residual are determined."""
        return self.known and bool(np.all(self.whole))


def sides_of(
    rows: Array, columns: Array, first: Array, error: float, tuning: AffinePartTuning
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
    """
    (m, d), d_out = rows.shape, columns.shape[1]
    square = int(d == d_out)
    size = np.linalg.norm(rows, axis=1) * np.linalg.norm(columns, axis=1)
    gram = np.zeros((m + square, m + square))
    gram[:m, :m] = (rows @ rows.T) * (columns @ columns.T)
    right = np.zeros(m + square)
    right[:m] = -np.sum((columns @ first) * rows, axis=1)
    if square:
        gram[m, :m] = gram[:m, m] = -np.sum(rows * columns, axis=1)
        gram[m, m], right[m] = d, np.trace(first)
        size = np.append(size, np.sqrt(d))
    gram /= np.outer(size, size)
    unknown = m + square
    known = unknown <= d * d_out and (not unknown or np.linalg.cond(gram) < tuning.condition)
    if known:
        share = solve(gram, right / size, assume_a="pos") / size if unknown else right
    else:
        share = np.linalg.lstsq(gram, right / size, rcond=1e-9)[0] / size
    whole = np.round(np.clip(share, 0.0, 1.0))
    near = np.append(np.abs(share - whole) < tuning.whole, [] if square else True)
    back, residual = whole[:m] > 0, bool(square and whole[-1] > 0)
    linear = first + columns[back].T @ rows[back] - residual * np.eye(d_out, d)
    if np.linalg.norm(linear) <= tuning.errors * error:
        return Sides(back, residual, None, known, near)
    U, s, Vt = np.linalg.svd(linear)
    root = np.sqrt(s[s > tuning.errors * error])[:, None]
    parts = root * U.T[: len(root)], root * Vt[: len(root)]
    return Sides(back, residual, parts, known, near)
