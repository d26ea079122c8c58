"""Keys of planes that turn, and queries from scores one token away.

With an orthonormal basis B of the span of Kᵀ and T = P R(1) P⁻¹, the step of one token in it,

    Kᵀ = B P,    q = R(−1) P⁻¹ Bᵀ u    for scores a·u = K a·R(1) q.

Pure arrays; nothing is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.models.rotary import Rotary
from unsoftmax.probes import Array
from unsoftmax.solve.turning_planes import TurningPlanes


@dataclass(frozen=True, slots=True)
class TurnedKeys:
    """K (rows, d), an even number of rows, and the frequencies of its planes."""

    K: Array
    rotary: Rotary
    planes: TurningPlanes

    @classmethod
    def of(cls, basis: Array, planes: TurningPlanes, angles: Array) -> TurnedKeys:
        """Return the keys of these planes, a row of zeros added to an odd number.

        Planes beyond the ``angles`` do not turn.
        """
        K = (basis @ planes.P).T
        rotary = Rotary(np.pad(angles, (0, (len(K) + 1) // 2 - len(angles))))
        return cls(np.pad(K, ((0, len(K) % 2), (0, 0))), rotary, planes)

    def queries(self, seen: Array) -> Array:
        """Return q (m, rows) of Bᵀ u (r, m)."""
        once = np.linalg.solve(self.planes.P, seen)
        once = np.pad(once, ((0, len(self.K) - len(once)), (0, 0)))
        return self.rotary.turned(once.T, np.array(-1.0))
