"""A matrix of given rank from rank-one measurements, by Gauss–Newton.

Near W = U S Vᵀ the matrices of its rank are, to first order, W + U B + C Vᵀ: r(2d − r) unknowns
(`tangent_space`). A step solves for them by weighted least squares and cuts the result
back to the rank; from a start near the solution the error squares at every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.probes import Array
from unsoftmax.solve.rank_one_measurements import Measurements
from unsoftmax.solve.tangent_space import TangentSpace, TangentTuning


@dataclass(frozen=True, slots=True)
class RankFitTuning:
    """Knobs of the fit."""

    steps: int = 12
    """Steps at most: convergence is quadratic, so that more would only show divergence."""
    rounding: float = 1e-11
    """Without noise a residual of this share of ‖t‖ is still rounding. Larger: matrices of too
    low a rank are taken; smaller: ill-conditioned right ones are not."""
    tangent: TangentTuning = field(default=TangentTuning())
    """The least squares of a step."""


def fit_rank(
    measured: Measurements, start: Array, rank: int, tuning: RankFitTuning
) -> tuple[Array, float] | None:
    """Fit a matrix of the given rank, from the best approximation of ``start`` on.

    Returns
    -------
    tuple or None
        The matrix, and the smallest gain of the weighted measurements on its tangent space, or a
        lower bound on it. None where they do not determine it, where it does not fit them, and
        where its unknowns are too many.

    Examples
    --------
    >>> a, b = np.random.default_rng(0).standard_normal((2, 6, 3))
    >>> W = np.outer([1.0, 2.0, 3.0], np.ones(3))
    >>> measured = Measurements(a, b, np.einsum("kd,de,ke->k", a, W, b), np.zeros(6))
    >>> found, gain = fit_rank(measured, W + 0.1 * np.eye(3), 1, RankFitTuning())
    >>> bool(np.allclose(found, W, atol=1e-12))
    True
    """
    unknowns = rank * (2 * measured.dim - rank)
    if unknowns > min(len(measured), tuning.tangent.most_unknowns):
        return None
    weights = measured.weights
    smallest: float | None = np.inf
    W, last = truncated(start, rank), np.inf
    space = TangentSpace.at(measured, W, rank, tuning.tangent, weights)
    for _ in range(tuning.steps if rank else 0):
        x, gain = space.least_squares(weights * (measured.t - measured.of(W)))
        if gain == 0:
            return None
        W = truncated(W + space.matrix_of(x), rank)
        smallest, step = gain, float(np.linalg.norm(x))
        # quadratic until rounding: then steps stop halving
        if step > last / 2 or step <= 2 * UNIT * np.linalg.norm(W):
            break
        last, space = step, TangentSpace.at(measured, W, rank, tuning.tangent, weights)
    if measured.rms_misfit(W, tuning.rounding) > 1:
        return None
    if smallest is None:
        smallest = space.smallest_gain()
    return (W, smallest) if smallest > 0 else None


def truncated(W: Array, rank: int) -> Array:
    """Return the best approximation of a given rank."""
    left, values, right = np.linalg.svd(W)
    best: Array = (left[:, :rank] * values[:rank]) @ right[:rank]
    return best


def least_squares(A: Array, y: Array) -> tuple[Array, int, Array]:
    """Return the solution, the rank of ``A`` and its singular values."""
    x, _, rank, gains = np.linalg.lstsq(A, y, rcond=None)
    return np.asarray(x, np.float64), int(rank), np.asarray(gains, np.float64)
