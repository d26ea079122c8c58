"""How far subspaces are off, and turning them until no A(b) leads from one to another.

Where bases E_g, E_h of two subspaces are nearly right, M(b) = EᵀA(b)E is nearly block diagonal,
and turning E_h towards E_g by a small K, E_g towards E_h by −Kᵀ, makes its block

    M_gh(b) + M_gg(b)·K − K·M_hh(b),

which is 0 for the right K: linear equations, one for each b and entry, of which there are as many
times too many as there are b. K is their solution; what they leave over is the noise of A(b), and
noise over their singular values is what K is off by. Each pair of subspaces by itself: a weak
head beside a loud one does not spoil what is known of others.

Source: beyond the paper; first-order perturbation of invariant subspaces (Stewart & Sun 1990).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.special import gammaincinv

from unsoftmax.probes import Array

# Noise is bounded by this many deviations, and those by what one estimate in a thousand exceeds.
_DEVIATIONS = 6.0
_UNDERESTIMATED = 1e-3
# Directions that no equation sees, up to rounding, stay as they are.
_UNSEEN = 1e-14
# Equations are taken in so many at a time: memory as d⁴, like what commutes.
_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Aligned:
    """Subspaces that were turned."""

    bases: list[Array]
    """Orthonormal (d, d_h), that make up R^d."""
    errors: Array
    """Bounds on ‖K_gh‖_F, (H, H), the diagonal is 0; up to 1, which is no bound at all."""
    noise: float
    """The standard deviation of an entry of A, bounded."""

    @property
    def unseen(self) -> float:
        """Bound what of ‖A(b)‖_F over all b may be outside of all blocks."""
        return _DEVIATIONS * self.noise * len(self.bases[0])


def aligned(bases: list[Array], A: Array, noise: float) -> Aligned:
    """Turn the subspaces, and bound by how much each may still lean to each other one.

    Parameters
    ----------
    bases : list of ndarray (d, d_h)
        Orthonormal bases that make up R^d, what is in no subspace among them.
    A : ndarray (b, d, d)
        What is block diagonal in the right bases, up to noise.
    noise : float
        The most that an entry of A may be off by, where there is too little left over to tell.
    """
    E = np.hstack(bases)
    M = E.T @ A @ E
    ends = np.cumsum([0, *(part.shape[1] for part in bases)])
    turn = np.zeros((E.shape[1], E.shape[1]))
    gain = np.zeros((len(bases), len(bases)))
    left, equations = 0.0, 0
    for g, h in combinations(range(len(bases)), 2):
        mine, its = slice(ends[g], ends[g + 1]), slice(ends[h], ends[h + 1])
        if ends[g] == ends[g + 1] or ends[h] == ends[h + 1]:
            continue
        blocks = M[:, mine, mine], M[:, its, its], M[:, mine, its]
        K, gain[g, h], over = _solved(*blocks)
        turn[mine, its], turn[its, mine] = K, -K.T
        left, equations = left + over, equations + (len(A) - 1) * K.size
    deviation = noise
    if equations:
        chance = 2 * gammaincinv(equations / 2, _UNDERESTIMATED)
        # what is left over is never below it, whatever noise was thought to be
        deviation = max(min(noise, np.sqrt(left / chance)), np.sqrt(left / equations))
    turned, _ = np.linalg.qr(E + E @ turn)
    turned *= np.sign(np.sum(turned * E, axis=0))
    errors = np.minimum(_DEVIATIONS * deviation * (gain + gain.T), 1.0)
    return Aligned(np.split(turned, ends[1:-1], axis=1), errors, float(deviation))


def _solved(first: Array, second: Array, between: Array) -> tuple[Array, float, float]:
    """Return K, what unit noise makes of ‖K‖_F, and the squares of what is left over."""
    count, k, n = between.shape
    triangle = np.zeros((0, k * n + 1))
    step = max(1, _ROWS // (k * n))
    for some in (slice(start, start + step) for start in range(0, count, step)):
        equations = np.einsum("tij,kl->tikjl", first[some], np.eye(n))
        equations -= np.einsum("ij,tkl->tikjl", np.eye(k), second[some])
        rows = np.column_stack([equations.reshape(-1, k * n), -between[some].ravel()])
        triangle = np.asarray(np.linalg.qr(np.vstack([triangle, rows]), mode="r"))
    left, singular, right = np.linalg.svd(triangle[: k * n, :-1])
    seen = singular > _UNSEEN * singular[0]
    inverse = np.where(seen, 1 / np.where(seen, singular, 1.0), 0.0)
    K = (right.T @ (inverse * (left.T @ triangle[: k * n, -1]))).reshape(k, n)
    over = float(np.sum((between + first @ K - K @ second) ** 2))
    return K, float(np.linalg.norm(inverse)) if seen.all() else np.inf, over
