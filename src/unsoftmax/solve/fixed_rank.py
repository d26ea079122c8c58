"""How far two matrices of one rank are apart that nearly fit the same rank-one measurements.

Readings t_k = a_k·(W b_k), each within its bound, weighted by the bounds' inverses: in these
units they are off by 1 at most. On the tangent space of the matrices of rank r at Ŵ the
measurements have a smallest gain σ, anywhere a largest gain Σ. So ‖Ŵ − W‖ ≤ B + c‖Ŵ − W‖² with
B = ‖𝒜(Ŵ) − 𝒜(W)‖/σ, which t bounds, and c = (1 + Σ/σ)/σ_r(Ŵ). Singular values of Ŵ within its
error make c large: the bound is also taken without them, their norm added, and the least counts.

Needs no ground truth: readings and Ŵ in, error out. Source: beyond Theorem 5.1, whose guarantee
has no constants.
"""

from __future__ import annotations

import numpy as np

from unsoftmax.measure.precision import UNIT
from unsoftmax.probes import Array
from unsoftmax.solve.rank_one_measurements import Measurements
from unsoftmax.solve.tangent_space import TangentSpace, TangentTuning

_DEFAULT = TangentTuning()


def rank_error(measured: float, smallest: float, largest: float, value: float) -> float:
    """Bound ‖Ŵ − W‖_F for two matrices of one rank, near each other.

    On the tangent space at Ŵ the measurements have gain ``smallest`` at least, anywhere
    ``largest`` at most; ``measured`` bounds ‖𝒜(Ŵ) − 𝒜(W)‖₂. Off the tangent space W is by
    ‖Δ‖²/σ at most, σ being ``value``, the smallest singular value of Ŵ that is not 0 (infinity
    where there is none), while ‖Δ‖ ≤ σ/2. So ‖Δ‖ ≤ B + c‖Δ‖² with B = measured/smallest and
    c = (1 + largest/smallest)/σ: of its two solutions the small one, and no bound when there is
    none.

    Examples
    --------
    >>> round(rank_error(1e-3, 1.0, 9.0, 1.0), 6), rank_error(1.0, 1.0, 9.0, 1.0)
    (0.00101, inf)
    """
    if not smallest > 0:
        return float("inf")
    bound = measured / smallest
    curvature = (1 + largest / smallest) / value
    room = 1 - 4 * curvature * bound
    return 2 * bound / (1 + float(np.sqrt(room))) if room > 0 else float("inf")


def fixed_rank_error(
    measured: Measurements,
    W: Array,
    found: int,
    rank: int,
    drawn: Array | None = None,
    tuning: TangentTuning = _DEFAULT,
) -> float:
    """Bound ‖Ŵ − W‖_F for a true W of rank ``rank`` or less that is near Ŵ.

    Parameters
    ----------
    measured : Measurements
        Readings with bounds on their errors.
    W : ndarray (d, d)
        Ŵ.
    found : int
        Its rank, ``rank`` at most.
    rank : int
        The largest rank that W may have.
    drawn : ndarray (draws, m), optional
        Errors of the readings, drawn at random as large as they may be together: the root mean
        square of what they move W by is taken for what their bounds allow.
    tuning : TangentTuning
        How the gain is found.

    Returns
    -------
    float
        Infinity where the readings' errors are too large beside Ŵ's singular values, or their
        gain is 0, or there is none.
    """
    if not len(measured):
        return float("inf") if rank else 0.0
    left, values, right = np.linalg.svd(W)
    size = float(np.linalg.norm(values))
    if not rank:
        return 4 * UNIT * size
    weights = measured.weights
    space = TangentSpace.at(measured, W, rank, tuning, weights)
    # a gain of 0 is taken for one far below rounding: the bound it gives is as good as none
    smallest = max(space.smallest_gain(), 1e-200)
    norms = np.linalg.norm(measured.b, axis=1).max()
    largest = float(norms * np.linalg.norm(measured.a * weights[:, None], 2))

    def moved(errors: Array) -> float:
        if drawn is None:
            return float(np.linalg.norm(weights * errors)) / smallest
        return float(np.linalg.norm(space.least_squares(weights * errors)[0]))

    # weighted by 1/e_k a measurement is off by at most 1
    sure = float(np.sqrt(len(measured))) / smallest
    if drawn is not None and smallest > 1e-200:
        sure = float(np.sqrt(np.mean([moved(errors) ** 2 for errors in drawn])))
    # singular values within the error would make the curvature large for nothing
    unsure = sure + moved(measured.t - measured.of(W))
    clear = int(np.count_nonzero(values[:found] > unsure))
    bounds = []
    for kept in range(clear, found + 1):
        nearest = (left[:, :kept] * values[:kept]) @ right[:kept]
        off = sure + moved(measured.t - measured.of(nearest))
        value = float(values[kept - 1]) if kept else np.inf
        bound = rank_error(off * smallest, smallest, largest, value)
        bounds.append(bound + float(np.linalg.norm(values[kept:found])))
    return min(bounds) + 4 * UNIT * size
