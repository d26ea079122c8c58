"""Linear systems Σ_h g_nh a_n·v_h = y_n: rows are products of gates g_n and offsets a_n.

The matrix has rows g_n ⊗ a_n, n of them for H·d unknowns; it is formed where that is small and
applied factor by factor otherwise, for conjugate gradients on the normal equations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.probes import Array

# Unknowns up to which the matrix is formed: beyond, its decomposition takes longer than all the
# rest of a recovery.
LARGEST_DENSE = 900
# Conjugate gradients end when the residual of the normal equations has shrunk by this. Twice, the
# second time for what was left, is as exact as a decomposition.
ACCURACY = 1e-10
# Steps after which they end anyway: as many as a condition number of 160 needs. Random systems
# with a fifth more rows than unknowns have 40 to 160.
ITERATIONS = 2000


@dataclass(frozen=True, slots=True)
class RowProducts:
    """The linear map from v (H, d) to Σ_h g_nh a_n·v_h, for gates (n, H) and A (n, d)."""

    A: Array
    gates: Array

    def of(self, v: Array) -> Array:
        """Apply the map to v (H, d)."""
        return np.asarray(np.sum(self.gates * (self.A @ v.T), axis=1))

    def adjoint(self, r: Array) -> Array:
        """Apply the adjoint to r (n,)."""
        return np.asarray((self.gates * r[:, None]).T @ self.A)

    def solved(self, y: Array, accuracy: float | None = None) -> Array:
        """Return the v (H, d) that fit y (n,) best.

        Raises
        ------
        numpy.linalg.LinAlgError
            The rows do not determine v.
        """
        n, d = self.A.shape
        H = self.gates.shape[1]
        if H * d > LARGEST_DENSE:
            return self._conjugate_gradients(y, ACCURACY if accuracy is None else accuracy)
        rows = (self.gates[:, :, None] * self.A[:, None, :]).reshape(n, H * d)
        v, _, rank, _ = np.linalg.lstsq(rows, y, rcond=None)
        if rank < H * d:
            raise np.linalg.LinAlgError(f"{n} rows of rank {rank} do not determine {H * d} numbers")
        return np.asarray(v.reshape(H, d))

    def _conjugate_gradients(self, r: Array, accuracy: float) -> Array:
        """Solve the normal equations without forming them."""
        x = np.zeros((self.gates.shape[1], self.A.shape[1]))
        z = self.adjoint(r)
        p, now = z, float(np.sum(z * z))
        enough = accuracy**2 * now
        for _ in range(ITERATIONS):
            if now <= enough or now == 0:
                break
            q = self.of(p)
            alpha = now / float(q @ q)
            x, r = x + alpha * p, r - alpha * q
            z = self.adjoint(r)
            now, before = float(np.sum(z * z)), now
            p = z + now / before * p
        return x
