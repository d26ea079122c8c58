"""Which offsets to ask with: rows z_i, each giving one equation z_i·u = t per query token.

What matters is |z_i·v|, which is the signal, and the conditioning of Z. The paper's choice
ties both to the entries of v; the balanced one depends on ‖v‖ alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.fft

from unsoftmax.probes import Array
from unsoftmax.theory.certificates import solve_error

# On this grid offset + unit vector is exact in float32, where most real targets compute.
_GRID = 2.0**-22


@dataclass(frozen=True, slots=True)
class Offsets:
    """Rows z_i with bounds on their extreme singular values, ready to solve Z x = m."""

    rows: Array
    smallest: float
    largest: float

    def solve(self, measured: Array) -> Array:
        """Return Z⁻¹Mᵀ for M of shape (query tokens, offsets)."""
        return np.asarray(np.linalg.solve(self.rows, measured.T), dtype=np.float64)

    def error(self, measured: float, solution: Array) -> float:
        """Bound the error of a solution whose measurements are off by ``measured``."""
        return solve_error(measured, self.smallest, self.largest, float(np.linalg.norm(solution)))


def balanced(v: Array, rng: np.random.Generator) -> Offsets:
    """Make d unit rows with z_i·v̂ = √c each whose parts orthogonal to v form a tight frame.

    Z = σR + (√c − σ/√d)·(1,…,1)ᵀv̂ᵀ with σ² = (1−c)/(1−1/d) and R a random orthogonal matrix
    that maps v̂ = v/‖v‖ to (1,…,1)/√d: a cosine transform with random signs, reflected at
    random and then onto v: no d³ work, and the same bits whatever the BLAS. The singular
    values are √(cd) and σ. The error of W under equal errors of the answers grows as
    (1/c)[(d−1)²/(d(1−c)) + 1/(dc)]; c minimises it (2/3 at d = 2, → 1/2). R is random, so
    that no W (identity, permutation, antisymmetric …) is aligned with it.

    Source: beyond the paper.
    """
    d = len(v)
    if d == 1:
        return Offsets(np.sign(v)[None, :], 1.0, 1.0)
    k = (d - 1) ** 2
    c = 2 / 3 if d == 2 else (k - 4 + np.sqrt(k * (k + 8))) / (4 * (k - 1))
    sigma = np.sqrt((1 - c) / (1 - 1 / d))
    direction = v / np.linalg.norm(v)
    R = scipy.fft.dct(np.diag(rng.choice([-1.0, 1.0], d)), axis=0, norm="ortho")
    random = rng.standard_normal(d)
    R -= 2 / (random @ random) * np.outer(R @ random, random)
    mirror = R @ direction - 1 / np.sqrt(d)
    R -= 2 / (mirror @ mirror) * np.outer(mirror, mirror @ R)
    Z = sigma * R + np.outer(np.full(d, np.sqrt(c) - sigma / np.sqrt(d)), direction)
    Z = np.round(Z / _GRID) * _GRID
    # Weyl: rounding moves a singular value by at most its own Frobenius norm
    moved = d * _GRID
    return Offsets(Z, float(min(sigma, np.sqrt(c * d)) - moved), float(np.sqrt(c * d) + moved))


def paper(v: Array, v_error: Array) -> Offsets:
    """Make the offsets of Theorem 4.1: e_l, or e_l + e_p with v_p ≠ 0 where v_l = 0.

    p is the largest entry of v, and an entry counts as 0 when its error bound reaches it.
    """
    Z = np.eye(len(v))
    Z[np.abs(v) <= v_error, np.argmax(np.abs(v))] = 1.0
    return _measured(Z)


def gaussian(d: int, rng: np.random.Generator) -> Offsets:
    """Make i.i.d. Gaussian offsets, the paper's randomised variant."""
    return _measured(np.round(rng.standard_normal((d, d)) / _GRID) * _GRID)


def _measured(Z: Array) -> Offsets:
    singular = np.linalg.svd(Z, compute_uv=False)
    return Offsets(Z, float(singular[-1]), float(singular[0]))
