"""A matrix that turns planes, T = P R P⁻¹: the planes and the angles, from its eigenvalues.

An eigenvector y = p + iq of e^{iθ} with θ > 0 gives T p = p cos θ − q sin θ and
T q = p sin θ + q cos θ: T turns the plane of the columns [p, −q] by θ. What does not turn,
eigenvalue 1, has any basis, and comes last. Eigenvalues are taken to the unit circle: turning
is known to be turning.

Arrays in, arrays and one bound out; nothing is known of heads. Error, to first order: δT in the
coordinates P is P⁻¹ δT P, which moves T^n = P Rⁿ P⁻¹ by at most n‖P‖‖P⁻¹ δT P‖‖P⁻¹‖.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class TurningPlanes:
    """T = P R P⁻¹."""

    P: Array
    """(r, r), two columns of norm about 1 for each plane; last what does not turn."""
    angles: Array
    """θ of the planes that turn, in (0, π]; the largest first."""
    off_circle: float
    """The largest ||λ| − 1|: 0 but for errors where T turns planes and does nothing else."""

    def beside(self, reference: Array, shift: int) -> TurningPlanes:
        """Let planes go round as often as those of another matrix, whose angles are a reference.

        Where angles are those of T^(1/shift), read far better but for whole rounds, a plane may
        seem to go round once more, or the other way.
        """
        count = len(self.angles)
        if len(reference) != count:
            return self
        round_trip = 2 * np.pi / shift
        signs = np.array([1.0, -1.0])[:, None, None]
        apart = reference - signs * self.angles[:, None]
        rounds = np.rint(apart / round_trip)
        missed = np.abs(apart - round_trip * rounds) * shift
        cost = missed.min(axis=0) + np.abs(reference - self.angles[:, None])
        mine, its = scipy.optimize.linear_sum_assignment(cost)
        order = mine[np.argsort(its)]
        place = np.arange(count)
        mirrored = missed[1, order, place] < missed[0, order, place]
        sign = np.where(mirrored, -1.0, 1.0)
        turns = rounds[mirrored.astype(np.intp), order, place]
        P = self.P.copy()
        P[:, : 2 * count] = P[:, np.stack([2 * order, 2 * order + 1], axis=1).ravel()]
        P[:, 1 : 2 * count : 2] *= sign
        return TurningPlanes(P, sign * self.angles[order] + round_trip * turns, self.off_circle)


def turning_planes(T: Array, still: float) -> TurningPlanes:
    """Find the planes that T (r, r) turns.

    Parameters
    ----------
    T : ndarray (r, r)
        The matrix.
    still : float
        Eigenvalues so close to 1 count as not turning.

    Examples
    --------
    >>> found = turning_planes(np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), 1e-9)
    >>> found.angles.round(6).tolist(), found.P.shape
    ([1.570796], (3, 3))
    """
    values, vectors = np.linalg.eig(T)
    off_circle = float(np.max(np.abs(np.abs(values) - 1), initial=0.0))
    turning = (values.imag > 0) & (np.abs(values - 1) > still)
    order = np.flatnonzero(turning)[np.argsort(-np.angle(values[turning]), kind="stable")]
    y = vectors[:, order]
    y = y * np.sqrt(2)  # of norm √2: both columns are about as long as a unit vector
    planes = np.stack([y.real, -y.imag], axis=2).reshape(len(T), -1)
    halves, angles = _half_turns(values, vectors), np.angle(values[order])
    rest = len(T) - planes.shape[1] - halves.shape[1]
    P = np.hstack([halves, planes, _still(T, rest)])
    whole = np.full(halves.shape[1] // 2, np.pi)
    return TurningPlanes(P, np.concatenate([whole, angles]), off_circle)


def _half_turns(values: NDArray[Any], vectors: NDArray[Any]) -> Array:
    """Return a basis of what T turns to its opposite, two columns a plane."""
    opposite = np.flatnonzero((values.imag == 0) & (values.real < 0))
    basis = np.linalg.qr(vectors[:, opposite].real)[0]
    return np.asarray(basis[:, : len(opposite) // 2 * 2])


def _still(T: Array, count: int) -> Array:
    """Return an orthonormal basis of the ``count`` directions that T moves least."""
    return np.asarray(np.linalg.svd(T - np.eye(len(T)))[2][len(T) - count :].T)
