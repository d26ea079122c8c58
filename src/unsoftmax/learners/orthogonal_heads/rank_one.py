"""Heads of rank one, and heads too small to be seen: what blocks of A(b) do not show by themselves.

For a head of rank one, W_h = k qᵀ, A(b) is (q·b)(k v_hᵀ + v_h kᵀ) on U_h: its two eigenvectors
are the same for all b, so the commutant splits U_h into two lines. Their eigenvalues are of
opposite sign and are q·b up to a factor; lines of other heads have another q. From rank two on
the A(b) have no common invariant subspace within basis_of(v_h, W_h).

Source: beyond the paper, whose conjecture (Appendix C) assumes blocks that do not split.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class RankOneTuning:
    """Knobs of `joined_lines`."""

    alike: float = 0.03
    """Two lines belong together where their unit profiles, eigenvalues over b, add up to less.
    Larger: lines of two heads that read nearly the same tokens are joined."""
    times_limit: float = 30.0
    """The same as a multiple of what counts as 0 of A, relative to the smaller profile: where
    profiles are known better than ``alike`` only lines that agree so well are joined."""


def joined_lines(
    bases: list[Array], A: Array, limit: float, tuning: RankOneTuning = RankOneTuning()
) -> list[Array]:
    """Join the two lines of each head of rank one.

    Parameters
    ----------
    bases : list of ndarray (d, d_h)
        Orthonormal bases of subspaces that all A(b) leave invariant.
    A : ndarray (b, d, d)
        The Hessians.
    limit : float
        The part of ‖A‖₂ that counts as 0.
    tuning : RankOneTuning
        The knobs.
    """
    lines = [k for k, E in enumerate(bases) if E.shape[1] == 1]
    E = np.array([bases[k][:, 0] for k in lines]).reshape(len(lines), A.shape[1])
    profiles = np.einsum("li,kij,lj->lk", E, A, E)
    norms = np.maximum(np.linalg.norm(profiles, axis=1), 1e-300)
    units = profiles / norms[:, None]
    apart = np.linalg.norm(units[:, None] + units, axis=2)
    apart[np.tril_indices(len(lines))] = np.inf
    size = float(np.max(np.linalg.norm(A, 2, axis=(1, 2))))
    known = tuning.times_limit * limit * size / np.minimum.outer(norms, norms)
    close = np.minimum(tuning.alike, known)
    planes, taken = list[Array](), set[int]()
    for flat in np.argsort(apart, axis=None):
        i, j = (int(k) for k in np.unravel_index(flat, apart.shape))
        if apart[i, j] <= close[i, j] and not {i, j} & taken:
            taken |= {i, j}
            planes.append(np.hstack([bases[lines[i]], bases[lines[j]]]))
    gone = {lines[i] for i in taken}
    return [*(E for k, E in enumerate(bases) if k not in gone), *planes]


def without_small(bases: list[Array], A: Array, limit: float) -> list[Array]:
    """Leave out subspaces on which A(b) is below ``limit`` of the largest block.

    What is there is read again at a scale of its own, where more of it shows.
    """
    sizes = np.array([np.max(np.linalg.norm(E.T @ A @ E, axis=(1, 2))) for E in bases])
    return [E for E, size in zip(bases, sizes, strict=True) if size > limit * sizes.max()]
