"""From readings to the matrix behind them, by a square solve, with the error that passes on.

Readings M_ji = z_i·(W b_j), b_j the unit vectors, come with a bound on ‖ΔM‖_F. Then

    Z Ŵ = M̂ᵀ,        ‖Ŵ − W‖_F ≤ ‖ΔM‖_F/σ_min(Z) + 4u·cond(Z)·‖Ŵ‖_F,

needing no ground truth. For matrices of low rank see `unsoftmax.solve.skeleton` and
`unsoftmax.learners.single_head.sensing.rank_one`. Nothing is asked here.
Source: beyond the paper, whose Theorem 4.1 is exact arithmetic.
"""

from dataclasses import dataclass

import numpy as np

from unsoftmax.measure.offsets import Offsets
from unsoftmax.measure.precision import UNIT
from unsoftmax.measure.reading import Reading
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

    def error_of(self, read: Reading, shift_error: float = 0.0) -> float:
        """Bound ‖Ŵ − W‖_F for readings whose errors are partly alike; see `Alike`.

        Parameters
        ----------
        read : Reading
            What was solved.
        shift_error : float
            Bound on the error of Z⁻¹ shift, which was solved by itself.
        """
        total, alike = self.error(read.total), read.alike
        if alike is None or not np.isfinite(total):
            return total
        ones = float(np.linalg.norm(self.offsets.solve(np.ones((1, read.value.shape[-1])))))
        solved = alike.of_solution + alike.of_ones * ones + alike.of_shift * shift_error
        return min(total, self.error(alike.apart) + solved)


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
