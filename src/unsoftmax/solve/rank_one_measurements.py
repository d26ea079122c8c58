"""Rank-one measurements t_k = a_k·(W b_k) of a matrix, as an operator 𝒜 and as equations.

𝒜(W)_k = a_k·(W b_k), 𝒜ᵀ(y) = Σ y_k a_k b_kᵀ, 𝒜𝒜ᵀ = G with G_kl = (a_k·a_l)(b_k·b_l): products
cost m·d² and the Gram matrix m²·d; the (m, d²) matrix is formed only where m is about d².
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class Measurements:
    """Rank-one measurements t_k = a_k·(W b_k), each off by at most ``noise[k]``.

    Attributes
    ----------
    a, b : ndarray (m, d)
        Left and right vectors.
    t : ndarray (m,)
        What was measured.
    noise : ndarray (m,)
        Bounds e_k on the errors; zeros for exact measurements.
    """

    a: Array
    b: Array
    t: Array
    noise: Array

    @property
    def dim(self) -> int:
        """Dimension d."""
        return int(self.a.shape[1])

    def __len__(self) -> int:
        return len(self.t)

    def pick(self, which: NDArray[np.bool_]) -> Measurements:
        """Return some of them."""
        return Measurements(self.a[which], self.b[which], self.t[which], self.noise[which])

    def of(self, W: Array) -> Array:
        """Return 𝒜(W)."""
        measured: Array = np.einsum("kd,kd->k", self.a @ W, self.b)
        return measured

    def adjoint(self, y: Array) -> Array:
        """Return 𝒜ᵀ(y)."""
        back: Array = (self.a * y[:, None]).T @ self.b
        return back

    def gram(self) -> Array:
        """Return G = 𝒜𝒜ᵀ, (m, m)."""
        gram: Array = (self.a @ self.a.T) * (self.b @ self.b.T)
        return gram

    def matrix(self) -> Array:
        """Write 𝒜 out, (m, d²)."""
        rows: Array = np.einsum("ki,kj->kij", self.a, self.b).reshape(len(self), -1)
        return rows

    def tangent(self, U: Array, V: Array, rank: int) -> Array:
        """Write 𝒜 out on the matrices U B + C Vᵀ near rank ``rank``, (m, r(2d − r)).

        U and V are orthogonal d×d matrices whose first ``rank`` columns span the column and
        row space; the basis is orthonormal, so singular values are gains.
        """
        left, right = self.a @ U, self.b @ V
        across = np.einsum("ki,kj->kij", left[:, :rank], right).reshape(len(self), -1)
        down = np.einsum("ki,kj->kij", left[:, rank:], right[:, :rank]).reshape(len(self), -1)
        both: Array = np.hstack([across, down])
        return both

    @property
    def weights(self) -> Array:
        """What an equation counts in a least-squares fit: 1/e_k, or 1 for exact measurements."""
        if not np.any(self.noise):
            return np.ones(len(self))
        weights: Array = 1 / np.maximum(self.noise, 1e-300)
        return weights

    def normalised(self) -> Measurements:
        """Return the same equations with a_k and b_k of norm 1."""
        a_norm, b_norm = (np.linalg.norm(x, axis=1) for x in (self.a, self.b))
        scale = a_norm * b_norm
        return Measurements(
            self.a / a_norm[:, None], self.b / b_norm[:, None], self.t / scale, self.noise / scale
        )

    def rms_misfit(self, W: Array, rounding: float) -> float:
        """Return the root mean square of the residuals in units of their bounds; ≤ 1 fits.

        Without noise a residual may be ``rounding`` times the root mean square of t.
        """
        size = np.sqrt(np.mean(self.t**2))
        bound = self.noise if np.any(self.noise) else np.full(len(self), rounding * size)
        residual = self.t - self.of(W)
        if not np.any(residual):
            return 0.0
        with np.errstate(divide="ignore"):
            return float(np.sqrt(np.mean((residual / bound) ** 2)))
