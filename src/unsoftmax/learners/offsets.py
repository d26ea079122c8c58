"""Which offsets to ask with: rows z_i, each giving one equation z_i·u = t per query token.

What matters is |z_i·v|, which is the signal, and the conditioning of Z. The paper's choice
ties both to the entries of v; the balanced one depends on ‖v‖ alone.
"""

from __future__ import annotations

import numpy as np

from unsoftmax.probes import Array

# On this grid offset + unit vector is exact in float32, where most real targets compute.
_GRID = 2.0**-22


def balanced(v: Array, rng: np.random.Generator) -> Array:
    """Make d unit rows with z_i·v̂ = √c each whose parts orthogonal to v form a tight frame.

    Z = Q₁ diag(√(cd), √((1−c)/(1−1/d)), …) Q₂ᵀ with Q₁'s first column (1,…,1)/√d and Q₂'s
    first column v/‖v‖. The error of W under equal errors of the answers grows as
    (1/c)[(d−1)²/(d(1−c)) + 1/(dc)]; c minimises it (2/3 at d = 2, → 1/2). Both bases are
    random, so that no W (identity, permutation, antisymmetric …) is aligned with them.

    Source: beyond the paper.
    """
    d = len(v)
    if d == 1:
        return np.sign(v)[None, :]
    k = (d - 1) ** 2
    c = 2 / 3 if d == 2 else (k - 4 + np.sqrt(k * (k + 8))) / (4 * (k - 1))
    stretch = np.full(d, np.sqrt((1 - c) / (1 - 1 / d)))
    stretch[0] = np.sqrt(c * d)
    rows = _basis_with(np.ones(d), rng) * stretch @ _basis_with(v, rng).T
    return np.round(rows / _GRID) * _GRID


def paper(v: Array, v_error: Array) -> Array:
    """Make the offsets of Theorem 4.1: e_l, or e_l + e_p with v_p ≠ 0 where v_l = 0.

    p is the largest entry of v, and an entry counts as 0 when its error bound reaches it.
    """
    Z = np.eye(len(v))
    Z[np.abs(v) <= v_error, np.argmax(np.abs(v))] = 1.0
    return Z


def gaussian(d: int, rng: np.random.Generator) -> Array:
    """Make i.i.d. Gaussian offsets, the paper's randomised variant."""
    return np.round(rng.standard_normal((d, d)) / _GRID) * _GRID


def _basis_with(first: Array, rng: np.random.Generator) -> Array:
    """Make an orthonormal basis, random but for its first column."""
    d = len(first)
    Q, R = np.linalg.qr(np.column_stack([first, rng.standard_normal((d, d - 1))]))
    basis: Array = Q * np.sign(R[0, 0])
    return basis
