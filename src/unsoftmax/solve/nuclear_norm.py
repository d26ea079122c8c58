"""The matrix of least nuclear norm with given rank-one measurements a_k·(W b_k) = t_k.

Theorem 5.1 hands its measurements to a convex programme; this solves it, with NumPy alone:

    minimise ‖W‖_* subject to 𝒜(W) = t,      𝒜(W)_k = a_k·(W b_k), 𝒜ᵀ(y) = Σ y_k a_k b_kᵀ,
    and where t_k is known to ±e_k only, minimise ‖W‖_* + Σ_k (t_k − 𝒜(W)_k)²/(2μ_k), μ_k ∝ e_k²;
    dual: maximise t·y − Σ μ_k y_k²/2 subject to ‖𝒜ᵀ(y)‖₂ ≤ 1

1. Douglas–Rachford: thresholding singular values in turn with the step onto the measurements,
   which is one product with (G + diag(μ)/γ)⁻¹, G_kl = (a_k·a_l)(b_k·b_l): m×m, nothing of d²×m.
   Each step onto the measurements leaves a dual point; it stops by the gap between the two.
2. Thresholding shows the minimiser's rank; Gauss–Newton among the matrices of that rank then
   gives it to rounding. What it gives is taken only if it fits the measurements and its
   objective is within the gap too: where the minimiser is not the W that was measured, this
   returns the minimiser all the same.

Measured (one core): d = 32, rank 3, 549 measurements: 80 steps, 0.1 s, error 3e-15.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.probes import Array

# Gap relative to the objective at which it stops: half of float64's digits are left to the
# Gauss–Newton steps, and the slowest problems (as many measurements as d²) still end.
_GAP = 1e-9
_STEPS = 6000
# γ in units of ‖W‖_F and over-relaxation: the fewest steps of those tried (0.05 … 1.6 and
# 1 … 1.9) over 108 problems of d = 4 … 24, half of which do not recover W.
_GAMMA = 0.1
_RELAXED = 1.7
# The gap costs another SVD: looked at every so many steps.
_LOOK = 10
# From this gap on the rank may show; tried again after half as many steps more.
_HOPEFUL = 1e-5
_TRIED_EVERY = 1.5
# Under little noise y drifts by μ a step where it is not unique, and the gap no longer halves:
# it has stagnated when that takes as many steps as all before, and these.
_PATIENCE = 200
_NEWTON_STEPS = 12
# Measurements this many times as noisy as the median teach the splitting nothing but to drift.
_COARSE = 100.0
# Noise that the inverse of all measurements amplifies to this share of W leaves no rank to see.
_GARBLED = 1e-3
# Where singular values drop by this much the rest may be noise, or on its way to 0.
_DROP = 10.0
# Without noise a residual of this share of ‖t‖ is still rounding.
_ROUNDING = 1e-11


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

    def strain(self, W: Array) -> float:
        """Return the root mean square of the residuals in units of their bounds; ≤ 1 fits."""
        size = np.sqrt(np.mean(self.t**2))
        bound = self.noise if np.any(self.noise) else np.full(len(self), _ROUNDING * size)
        residual = self.t - self.of(W)
        if not np.any(residual):
            return 0.0
        with np.errstate(divide="ignore"):
            return float(np.sqrt(np.mean((residual / bound) ** 2)))


@dataclass(frozen=True, slots=True)
class Minimiser:
    """The matrix of least nuclear norm.

    Attributes
    ----------
    W : ndarray (d, d)
        The minimiser.
    rank : int
        Its rank.
    gap : float
        By how much of itself its objective can be above the least possible, at most.
    determined : bool
        Whether the measurements fix it among the matrices of its rank near it; it is then
        exact up to the measurements' own errors, and otherwise up to the gap.
    steps : int
        Steps that were taken.
    """

    W: Array
    rank: int
    gap: float
    determined: bool
    steps: int


def minimise(measured: Measurements) -> Minimiser:
    """Find the matrix of least nuclear norm that has the given measurements.

    Parameters
    ----------
    measured : Measurements
        At least one. With noise the fit is penalised: what the noise alone could have
        measured is taken for nothing.

    Returns
    -------
    Minimiser
        With its gap to the optimum, which a dual point proves.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> W, a, b = np.outer(rng.standard_normal(8), np.ones(8)), *rng.standard_normal((2, 45, 8))
    >>> exact = Measurements(a, b, np.einsum("kd,de,ke->k", a, W, b), np.zeros(45))
    >>> found = minimise(exact)
    >>> found.rank, bool(np.allclose(found.W, W, rtol=0, atol=1e-12))
    (1, True)
    """
    if not np.any(measured.t):
        return Minimiser(np.zeros((measured.dim, measured.dim)), 0, 0.0, True, 0)
    scale = np.linalg.norm(measured.a, axis=1) * np.linalg.norm(measured.b, axis=1)
    unit = Measurements(
        measured.a / np.linalg.norm(measured.a, axis=1, keepdims=True),
        measured.b / np.linalg.norm(measured.b, axis=1, keepdims=True),
        measured.t / scale,
        measured.noise / scale,
    )
    if len(unit) >= unit.dim**2:
        return _by_least_squares(unit)
    return _Splitting.of(unit).run()


@dataclass(frozen=True, slots=True)
class _Splitting:
    """Douglas–Rachford splitting with everything that its steps need."""

    measured: Measurements
    """All of them, for the fit."""
    core: Measurements
    """Those that are precise enough for the splitting."""
    mu: Array
    tau: float
    """μ_k = τ e_k²."""
    gamma: float
    inverse: Array
    """(G + diag(μ)/γ)⁻¹."""

    @classmethod
    def of(cls, measured: Measurements) -> _Splitting:
        """Choose penalty and step, and invert."""
        # unit rows: E t² = ‖W‖²_F/d²
        core = measured.pick(measured.noise <= _COARSE * np.median(measured.noise))
        gamma = _GAMMA * measured.dim * float(np.sqrt(np.mean(core.t**2)))
        tau = _penalty(core)
        mu = tau * core.noise**2
        inverse: Array = np.asarray(np.linalg.inv(core.gram() + np.diag(mu / gamma)), np.float64)
        return cls(measured, core, mu, tau, gamma, inverse)

    def run(self) -> Minimiser:
        """Go on until the gap is closed, or until the minimiser's rank shows and closes it."""
        d = self.core.dim
        Z, U = np.zeros((2, d, d))
        gap, enough, least, rank = np.inf, _GAP, np.inf, d
        steps = tried = halved = 0
        while gap > enough and steps < min(_STEPS, 2 * halved + _PATIENCE):
            for _ in range(_LOOK):
                left, values, right = np.linalg.svd(Z - U)
                rank = int(np.count_nonzero(values > self.gamma))
                X = (left[:, :rank] * (values[:rank] - self.gamma)) @ right[:rank]
                M = _RELAXED * X + (1 - _RELAXED) * Z + U
                y = self.inverse @ (self.core.t - self.core.of(M))
                U = -self.core.adjoint(y)
                Z = M - U
            steps += _LOOK
            y = y / self.gamma
            fit = float(self.mu @ y**2) / 2
            primal = float(np.linalg.norm(Z, "nuc")) + fit
            # a dual point is feasible once it is shrunk to ‖𝒜ᵀ(y)‖₂ ≤ 1
            y = y / max(1.0, float(np.linalg.norm(U, 2)) / self.gamma)
            dual = float(self.core.t @ y - self.mu @ y**2 / 2)
            gap = (primal - dual) / primal
            # a gap below what noise costs says nothing more
            enough = max(_GAP, fit / primal)
            if gap < least / 2:
                least, halved = gap, steps
            if gap <= _HOPEFUL and steps >= _TRIED_EVERY * tried:
                tried = steps
                polished = self._polished(Z, _candidates(Z, rank), dual, enough * primal, steps)
                if polished is not None:
                    return polished
        # the gap may be the dual's fault alone, and noise may hide where singular values drop
        noisy = enough > _GAP
        candidates = list(range(rank + 1)) if noisy else _candidates(Z, rank)
        polished = self._polished(Z, candidates, dual, gap * primal, steps)
        return polished or Minimiser(Z, rank, gap, False, steps)

    def _polished(
        self, Z: Array, candidates: list[int], dual: float, gap: float, steps: int
    ) -> Minimiser | None:
        """Fit matrices of these ranks; take the first that is a minimiser within ``gap``."""
        for candidate in candidates:
            fitted = _fit(self.measured, Z, candidate)
            if fitted is None:
                continue
            W, smallest = fitted
            objective = self._objective(W)
            # The penalty trades fit for norm, and the best fit forgoes that: on the tangent
            # space it is worth at most τ‖UVᵀ‖²_F/(2σ_min²), twice that with all left out.
            slack = gap + self.tau * candidate / smallest**2
            if objective - dual <= 2 * slack:
                return Minimiser(W, candidate, max(0.0, objective - dual) / objective, True, steps)
        return None

    def _objective(self, W: Array) -> float:
        residual = self.core.t - self.core.of(W)
        noisy = self.mu > 0
        lost = float(np.sum(residual[noisy] ** 2 / (2 * self.mu[noisy])))
        return float(np.linalg.norm(W, "nuc")) + lost


def _candidates(Z: Array, rank: int) -> list[int]:
    """Return the ranks that Z may stand for, the least first; ``rank`` is the most."""
    values = np.linalg.svd(Z, compute_uv=False)[: rank + 1]
    drops = np.flatnonzero(values[1:] * _DROP < values[:-1]) + 1
    return sorted({0, rank, *(int(drop) for drop in drops if drop <= rank)})


def _penalty(measured: Measurements) -> float:
    """Choose τ as large as ‖Σ_k ε_k/e_k a_k b_kᵀ‖₂ gets for signs ε_k at random.

    That is √(2 ln 2d) times the larger of the two variances' roots (matrix Chernoff), so that
    the dual point of pure noise is feasible: noise is not fitted.
    """
    if not np.any(measured.noise):
        return 0.0
    a, b = (x * measured.weights[:, None] for x in (measured.a, measured.b))
    variance = max(np.linalg.norm(a, 2), np.linalg.norm(b, 2))
    return float(np.sqrt(2 * np.log(2 * measured.dim)) * variance)


def _fit(measured: Measurements, start: Array, rank: int) -> tuple[Array, float] | None:
    """Fit a matrix of the given rank by Gauss–Newton.

    Returns it with the smallest gain of the weighted measurements on its tangent space, or
    None where they do not determine it or it does not fit them.
    """
    if rank * (2 * measured.dim - rank) > len(measured):
        return None
    weights = measured.weights
    W, smallest, last = _truncated(start, rank), np.inf, np.inf
    for _ in range(_NEWTON_STEPS if rank else 0):
        left, _, right = np.linalg.svd(W)
        tangent = measured.tangent(left, right.T, rank) * weights[:, None]
        x, found, gains = _least_squares(tangent, weights * (measured.t - measured.of(W)))
        if found < tangent.shape[1]:
            return None
        W = _truncated(W + _tangent_step(x, left, right, rank), rank)
        smallest, step = float(gains[-1]), float(np.linalg.norm(x))
        # quadratic until rounding: then steps stop halving
        if step > last / 2 or step <= np.finfo(float).eps * np.linalg.norm(W):
            break
        last = step
    return (W, smallest) if measured.strain(W) <= 1 else None


def _tangent_step(x: Array, left: Array, right: Array, rank: int) -> Array:
    """Turn coordinates in the tangent space back into a matrix; see `Measurements.tangent`."""
    d = len(left)
    across, down = x[: rank * d].reshape(rank, d), x[rank * d :].reshape(d - rank, rank)
    step: Array = left[:, :rank] @ across @ right + left[:, rank:] @ down @ right[:rank]
    return step


def _truncated(W: Array, rank: int) -> Array:
    left, values, right = np.linalg.svd(W)
    best: Array = (left[:, :rank] * values[:rank]) @ right[:rank]
    return best


def _least_squares(A: Array, y: Array) -> tuple[Array, int, Array]:
    """Return the solution, the rank of ``A`` and its singular values."""
    x, _, rank, gains = np.linalg.lstsq(A, y)
    return np.asarray(x, np.float64), int(rank), np.asarray(gains, np.float64)


def _by_least_squares(measured: Measurements) -> Minimiser:
    """Solve where d² measurements or more leave the nuclear norm no choice.

    The rank is the least at which a matrix fits them.
    """
    d = measured.dim
    rows = measured.matrix() * measured.weights[:, None]
    solution, found, gains = _least_squares(rows, measured.weights * measured.t)
    W = solution.reshape(d, d)
    if found < d * d:
        return Minimiser(W, d, np.inf, False, 0)
    values = np.linalg.svd(W, compute_uv=False)
    # weighted by 1/e_k a measurement is off by at most 1
    unsure = np.sqrt(len(measured)) / gains[-1] if np.any(measured.noise) else 0.0
    if unsure > _GARBLED * values[0]:
        return _Splitting.of(measured).run()
    floor = 2 * unsure + _ROUNDING * gains[0] / gains[-1] * values[0]
    for rank in range(int(np.count_nonzero(values > floor)), d + 1):
        polished = _fit(measured, W, rank)
        if polished is not None:
            return Minimiser(polished[0], rank, 0.0, True, 0)
    return Minimiser(W, d, 0.0, False, 0)
