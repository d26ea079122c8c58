"""From readings to the matrix behind them, by a square solve, with the error that passes on.

Readings M_ji = z_i·(W b_j), b_j the unit vectors, come with a bound on ‖ΔM‖_F. Then

    Z Ŵ = M̂ᵀ,        ‖Ŵ − W‖_F ≤ ‖ΔM‖_F/σ_min(Z) + 4u·cond(Z)·‖Ŵ‖_F,

needing no ground truth. For matrices that are known to have low rank see also `rank_error` and
`unsoftmax.solve.skeleton`. Nothing is asked here.
Source: beyond the paper, whose Theorem 4.1 is exact arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.measure.offsets import Offsets
from unsoftmax.measure.precision import UNIT
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class DenseSolution:
    """What a square solve found: Ŵ with Z Ŵ = M̂ᵀ.

    Examples
    --------
    >>> Z = Offsets(np.diag([1.0, 2.0]), 1.0, 2.0)
    >>> found = solve(Z, np.array([[3.0, 4.0]]))
    >>> found.matrix[:, 0].tolist(), round(found.error(0.1), 3)
    ([3.0, 2.0], 0.1)
    """

    offsets: Offsets
    """Z."""
    matrix: Array
    """Ŵ, (d, query tokens)."""

    def error(self, total: float) -> float:
        """Bound ‖Ŵ − W‖_F where ‖M̂ − M‖_F is at most ``total``; see `Reading.total`."""
        return solution_error(self.offsets, total, self.matrix)


def solve(offsets: Offsets, measured: Array) -> DenseSolution:
    """Solve Z Ŵ = M̂ᵀ for readings M̂ of shape (query tokens, offsets)."""
    return DenseSolution(offsets, offsets.solve(measured))


def solve_error(measured: float, smallest: float, largest: float, size: float) -> float:
    """Bound ‖Ŵ − W‖_F for Ŵ = Z⁻¹M̂.

    ``measured`` bounds ‖M̂ − M‖_F; ``smallest`` and ``largest`` are Z's extreme singular
    values; ``size`` is ‖Ŵ‖_F.
    """
    return measured / smallest * (1 + 1e-6) + 4 * UNIT * largest / smallest * size


def solution_error(offsets: Offsets, measured: float, solution: Array) -> float:
    """Bound the error of a solution of Z x = m whose measurements are off by ``measured``."""
    size = float(np.linalg.norm(solution))
    return solve_error(measured, offsets.smallest, offsets.largest, size)


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
