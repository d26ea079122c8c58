"""Common invariant subspaces of symmetric matrices, from nearly right ones, with error bounds.

Where orthonormal bases E_g, E_h of two subspaces are nearly right, M_t = EᵀA_tE is nearly block
diagonal, and turning E_h towards E_g by a small K, E_g towards E_h by −Kᵀ, makes its block

    M_gh,t + M_gg,t·K − K·M_hh,t,

which is 0 for the right K: linear equations, one for each t and entry, n times as many as
unknowns. K is their least-squares solution. The residual estimates the noise of an entry of A_t;
noise over the singular values of the equations is what K is off by. Each pair of subspaces is
solved by itself, so that a small block beside a large one does not widen the bounds of others.

Source: beyond the paper; first-order perturbation of invariant subspaces (Stewart & Sun 1990).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import scipy

from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class AlignmentTuning:
    """Knobs of `aligned`."""

    deviations: float = 6.0
    """Noise is bounded by so many standard deviations: exceeded by 2e-9 of Gaussian entries."""
    underestimated: float = 1e-3
    """Probability that the bound on the standard deviation is too small by chance (χ² of the
    residual)."""
    unseen: float = 1e-14
    """Directions of K below this relative singular value are left as they are and have no bound:
    the equations determine them by rounding alone."""
    rows: int = 4096
    """Equations are taken in so many at a time, which bounds memory by that of K's unknowns."""


@dataclass(frozen=True, slots=True)
class AlignedSubspaces:
    """Subspaces that were turned, and how far they may still be off."""

    bases: list[Array]
    """Orthonormal (d, d_h), that make up R^d."""
    errors: Array
    """Bounds on ‖K_gh‖_F, (H, H) with diagonal 0; at most 1, which says nothing."""
    entry_error: float
    """What an entry of A may be off by."""

    @property
    def outside_blocks(self) -> float:
        """Bound on the part of ‖A‖_F, over all A, that is outside of the diagonal blocks."""
        return self.entry_error * len(self.bases[0])


def aligned(
    bases: list[Array], A: Array, noise: float, tuning: AlignmentTuning = AlignmentTuning()
) -> AlignedSubspaces:
    """Turn the subspaces, and bound by how much each may still lean to each other one.

    Parameters
    ----------
    bases : list of ndarray (d, d_h)
        Orthonormal bases that make up R^d, what is in no subspace among them.
    A : ndarray (n, d, d)
        Symmetric; block diagonal in the right bases, up to noise.
    noise : float
        The most that the standard deviation of an entry of A may be, where the residual has too
        few equations to estimate it.
    tuning : AlignmentTuning
        The knobs.
    """
    E = np.hstack(bases)
    M = E.T @ A @ E
    ends = np.cumsum([0, *(part.shape[1] for part in bases)])
    turn = np.zeros((E.shape[1], E.shape[1]))
    gain = np.zeros((len(bases), len(bases)))
    left, equations = 0.0, 0
    for g, h in combinations(range(len(bases)), 2):
        first, second = slice(ends[g], ends[g + 1]), slice(ends[h], ends[h + 1])
        if ends[g] == ends[g + 1] or ends[h] == ends[h + 1]:
            continue
        blocks = M[:, first, first], M[:, second, second], M[:, first, second]
        K, gain[g, h], over = _solved(*blocks, tuning)
        turn[first, second], turn[second, first] = K, -K.T
        left, equations = left + over, equations + (len(A) - 1) * K.size
    entry_error = tuning.deviations * _deviation(left, equations, noise, tuning.underestimated)
    turned, _ = np.linalg.qr(E + E @ turn)
    turned *= np.sign(np.sum(turned * E, axis=0))
    gain, errors = gain + gain.T, np.ones_like(gain)
    np.multiply(entry_error, gain, where=np.isfinite(gain), out=errors)
    errors = np.minimum(errors, 1.0)
    return AlignedSubspaces(np.split(turned, ends[1:-1], axis=1), errors, float(entry_error))


def _deviation(left: float, equations: int, noise: float, underestimated: float) -> float:
    """Bound the deviation whose squares add up to ``left`` over so many spare equations."""
    if not equations:
        return noise
    chance = 2 * scipy.special.gammaincinv(equations / 2, underestimated)
    # the residual is a lower bound, whatever noise was thought to be
    return float(max(min(noise, np.sqrt(left / chance)), np.sqrt(left / equations)))


def _solved(
    first: Array, second: Array, between: Array, tuning: AlignmentTuning
) -> tuple[Array, float, float]:
    """Return K, what unit noise makes of ‖K‖_F, and the squares of the residual."""
    count, k, n = between.shape
    triangle = np.zeros((0, k * n + 1))
    step = max(1, tuning.rows // (k * n))
    for some in (slice(start, start + step) for start in range(0, count, step)):
        equations = np.einsum("tij,kl->tikjl", first[some], np.eye(n))
        equations -= np.einsum("ij,tkl->tikjl", np.eye(k), second[some])
        rows = np.column_stack([equations.reshape(-1, k * n), -between[some].ravel()])
        triangle = np.asarray(np.linalg.qr(np.vstack([triangle, rows]), mode="r"))
    left, singular, right = np.linalg.svd(triangle[: k * n, :-1])
    seen = singular > tuning.unseen * singular[0]
    inverse = np.where(seen, 1 / np.where(seen, singular, 1.0), 0.0)
    K = (right.T @ (inverse * (left.T @ triangle[: k * n, -1]))).reshape(k, n)
    over = float(np.sum((between + first @ K - K @ second) ** 2))
    return K, float(np.linalg.norm(inverse)) if seen.all() else np.inf, over
