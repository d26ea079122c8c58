"""A matrix of given rank from rank-one measurements, by Gauss–Newton.

Near W = U S Vᵀ the matrices of its rank are, to first order, W + U B + C Vᵀ: r(2d − r) unknowns
(`Measurements.tangent`). A step solves for them by weighted least squares and cuts the result
back to the rank; from a start near the solution the error squares at every step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.probes import Array
from unsoftmax.solve.rank_one_measurements import Measurements


@dataclass(frozen=True, slots=True)
class RankFitTuning:
    """Knobs of the fit."""

    steps: int = 12
    """Steps at most: convergence is quadratic, so that more would only show divergence."""
    rounding: float = 1e-11
    """Without noise a residual of this share of ‖t‖ is still rounding. Larger: matrices of too
    low a rank are taken; smaller: ill-conditioned right ones are not."""


def fit_rank(
    measured: Measurements, start: Array, rank: int, tuning: RankFitTuning
) -> tuple[Array, float] | None:
    """Fit a matrix of the given rank, from the best approximation of ``start`` on.

    Returns
    -------
    tuple or None
        The matrix, and the smallest gain of the weighted measurements on its tangent space;
        None where they do not determine it or it does not fit them.

    Examples
    --------
    >>> a, b = np.random.default_rng(0).standard_normal((2, 6, 3))
    >>> W = np.outer([1.0, 2.0, 3.0], np.ones(3))
    >>> measured = Measurements(a, b, np.einsum("kd,de,ke->k", a, W, b), np.zeros(6))
    >>> found, gain = fit_rank(measured, W + 0.1 * np.eye(3), 1, RankFitTuning())
    >>> bool(np.allclose(found, W, atol=1e-12))
    True
    """
    if rank * (2 * measured.dim - rank) > len(measured):
        return None
    weights = measured.weights
    W, smallest, last = truncated(start, rank), np.inf, np.inf
    for _ in range(tuning.steps if rank else 0):
        left, _, right = np.linalg.svd(W)
        tangent = measured.tangent(left, right.T, rank) * weights[:, None]
        x, found, gains = least_squares(tangent, weights * (measured.t - measured.of(W)))
        if found < tangent.shape[1]:
            return None
        W = truncated(W + _tangent_step(x, left, right, rank), rank)
        smallest, step = float(gains[-1]), float(np.linalg.norm(x))
        # quadratic until rounding: then steps stop halving
        if step > last / 2 or step <= 2 * UNIT * np.linalg.norm(W):
            break
        last = step
    return (W, smallest) if measured.rms_misfit(W, tuning.rounding) <= 1 else None


def _tangent_step(x: Array, left: Array, right: Array, rank: int) -> Array:
    """Turn coordinates in the tangent space back into a matrix; see `Measurements.tangent`."""
    d = len(left)
    across, down = x[: rank * d].reshape(rank, d), x[rank * d :].reshape(d - rank, rank)
    step: Array = left[:, :rank] @ across @ right + left[:, rank:] @ down @ right[:rank]
    return step


def truncated(W: Array, rank: int) -> Array:
    """Return the best approximation of a given rank."""
    left, values, right = np.linalg.svd(W)
    best: Array = (left[:, :rank] * values[:rank]) @ right[:rank]
    return best


def least_squares(A: Array, y: Array) -> tuple[Array, int, Array]:
    """Return the solution, the rank of ``A`` and its singular values."""
    x, _, rank, gains = np.linalg.lstsq(A, y)
    return np.asarray(x, np.float64), int(rank), np.asarray(gains, np.float64)
