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

from dataclasses import dataclass

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
    measured: Measurements, W: Array, found: int, rank: int, tuning: TangentTuning = _DEFAULT
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
    near = _Neighbourhood.of(measured, W, rank, tuning)
    sure = np.sqrt(len(measured))
    # singular values within the error would make the curvature large for nothing
    unsure = (sure + near.missed(W)) / near.smallest
    clear = int(np.count_nonzero(near.values[:found] > unsure))
    bounds = []
    for kept in range(clear, found + 1):
        nearest = (near.left[:, :kept] * near.values[:kept]) @ near.right[:kept]
        off = float(sure + near.missed(nearest))
        value = float(near.values[kept - 1]) if kept else np.inf
        bound = rank_error(off, near.smallest, near.largest, value)
        bounds.append(bound + float(np.linalg.norm(near.values[kept:found])))
    return min(bounds) + 4 * UNIT * float(np.linalg.norm(near.values))


@dataclass(frozen=True, slots=True)
class _Neighbourhood:
    """Ŵ's singular values and vectors, and what readings gain on matrices of a rank near it."""

    measured: Measurements
    left: Array
    values: Array
    right: Array
    smallest: float
    """Gain on the tangent space at least; infinity at rank 0, where nothing is near."""
    largest: float
    """Gain anywhere at most."""

    @classmethod
    def of(
        cls, measured: Measurements, W: Array, rank: int, tuning: TangentTuning
    ) -> _Neighbourhood:
        left, values, right = np.linalg.svd(W)
        if not rank:
            return cls(measured, left, values, right, np.inf, 0.0)
        weights = measured.weights[:, None]
        smallest = TangentSpace.at(measured, W, rank, tuning, measured.weights).smallest_gain()
        norms = np.linalg.norm(measured.b, axis=1).max()
        largest = float(norms * np.linalg.norm(measured.a * weights, 2))
        # a gain of 0 is taken for one far below rounding: the bound it gives is as good as none
        return cls(measured, left, values, right, max(smallest, 1e-200), largest)

    def missed(self, W: Array) -> float:
        """Return the norm of t − 𝒜(W) in units of the readings' bounds."""
        measured = self.measured
        return float(np.linalg.norm(measured.weights * (measured.t - measured.of(W))))
