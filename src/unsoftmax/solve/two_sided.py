"""W from readings M_r = B_r Wᵀ Z_rᵀ in several pairs of bases, with the error that passes on.

Each pass r asks offsets Z_r (n, d) with query tokens B_r (d, d). With B_r⁻¹M_r = (Z_r W)ᵀ, W
minimises Σ_r ‖Z_r W − (B_r⁻¹M_r)ᵀ‖²: the passes' errors are averaged. If |ΔM_r| ≤ E_r entry by
entry, whatever the signs, then

    ‖Ŵ − W‖_F ≤ √Σ_r (‖E_r‖_F/σ_min(B_r))² / σ_min([Z_1; Z_2; …]).

Nothing is asked here. Source: beyond Theorem 6.1, which has one pass and B = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unsoftmax.measure.intervals import SLACK
from unsoftmax.measure.precision import UNIT
from unsoftmax.measure.reading import Reading
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class TwoSidedSystem:
    """Equations B_r Wᵀ Z_rᵀ = M_r for one W.

    Examples
    --------
    >>> Z, B = np.diag([1.0, 2.0]), np.eye(2)
    >>> system = TwoSidedSystem((Z,), (B,))
    >>> W = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> system.solve([B @ W.T @ Z.T]).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    >>> reading = Reading.independent(B @ W.T @ Z.T, np.full((2, 2), 0.1))
    >>> round(system.error([reading], W), 6)
    0.2
    """

    Z: tuple[Array, ...]
    B: tuple[Array, ...]

    def solve(self, measured: Sequence[Array]) -> Array:
        """Return the least-squares solution for readings M̂_r; with one square Z the solution."""
        rows = [np.linalg.solve(B, M).T for B, M in zip(self.B, measured, strict=True)]
        if len(rows) == 1 and self.Z[0].shape[0] == self.Z[0].shape[1]:
            return np.asarray(np.linalg.solve(self.Z[0], rows[0]))
        Z = np.concatenate(self.Z)
        return np.asarray(np.linalg.lstsq(Z, np.concatenate(rows), rcond=None)[0])

    def error(self, readings: Sequence[Reading], W: Array) -> float:
        """Bound ‖Ŵ − W‖_F by what the readings of M_r may be off by; ``W`` is Ŵ."""
        passed_on = [
            reading.total / np.linalg.svd(B, compute_uv=False)[-1]
            for B, reading in zip(self.B, readings, strict=True)
        ]
        singular = np.linalg.svd(np.concatenate(self.Z), compute_uv=False)
        condition = singular[0] / singular[-1]
        bound = np.linalg.norm(passed_on) / singular[-1] + 4 * UNIT * condition * np.linalg.norm(W)
        return float(bound * SLACK)
