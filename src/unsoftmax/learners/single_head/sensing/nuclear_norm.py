"""Solve (𝒜𝒜ᵀ + D) y = c for rank-one measurements 𝒜 and a diagonal D ≥ 0.

𝒜𝒜ᵀ = G, G_kl = (a_k·a_l)(b_k·b_l), is m×m. While that is small its inverse is kept; above it,
conjugate gradients from the last solution on need products with 𝒜 and 𝒜ᵀ alone: m×d numbers. For
vectors of norm 1 and m well below d² the eigenvalues of G lie around 1 (between 0.4 and 1.9 for
m = d²/7), so that few products do; near d² more, yet as many steps (tried to 0.98 d²).

Measured (one core): d = 384, m = 19,776: a product with G 0.4 s, three to a tenth of what was left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy

from unsoftmax.learners.single_head.sensing import rank_one
from unsoftmax.probes import Array

# Measurements up to which G is inverted: 34 MB, half a second. Where W is found after twenty
# steps the other way is as fast from 1,700 on, but where it is not there are hundreds.
INVERTED = 2048
# By how much conjugate gradients reduce what is left. Smaller costs products and saves no step of
# the splitting, which goes on from there.
SHRINK = 0.1
# The same where the solution itself is wanted.
EXACTLY = 1e-12
# Products at most.
PRODUCTS = 200


@dataclass(frozen=True, slots=True)
class GramSystem:
    """(G + D), inverted or not."""

    measured: rank_one.Measurements
    ridge: Array
    """D's diagonal."""
    inverse: Array | None
    """None where conjugate gradients solve."""

    @classmethod
    def of(cls, measured: rank_one.Measurements, ridge: Array) -> GramSystem:
        """Invert, where that is cheaper."""
        if len(measured) > INVERTED:
            return cls(measured, ridge, None)
        inverse = np.asarray(np.linalg.inv(measured.gram() + np.diag(ridge)), np.float64)
        return cls(measured, ridge, inverse)

    @property
    def exact(self) -> bool:
        """Whether solutions are exact, whatever they start from."""
        return self.inverse is not None

    def solve(self, c: Array, y: Array, back: Array, exactly: bool = False) -> tuple[Array, Array]:
        """Return the solution and its 𝒜ᵀ(y), or come nearer to it from y, whose 𝒜ᵀ(y) is ``back``.

        Parameters
        ----------
        c : ndarray (m,)
            The right-hand side.
        y, back : ndarray (m,), ndarray (d, d)
            Where conjugate gradients start.
        exactly : bool
            Whether they end only at the solution itself.
        """
        if self.inverse is not None:
            y = self.inverse @ c
            return y, self.measured.adjoint(y)
        left = c - self.measured.of(back) - self.ridge * y
        shape = (len(y), len(y))
        system = scipy.sparse.linalg.LinearOperator(shape, matvec=self._of, dtype=np.float64)
        # rows of 𝒜 have norm 1, so that 1 + D is G + D's diagonal: the preconditioner
        scale = scipy.sparse.diags(1 / (1 + self.ridge))
        close = float(EXACTLY * np.linalg.norm(c) if exactly else SHRINK * np.linalg.norm(left))
        more, _ = scipy.sparse.linalg.cg(
            system, left, rtol=0.0, atol=close, maxiter=PRODUCTS, M=scale
        )
        return y + more, back + self.measured.adjoint(more)

    def _of(self, y: Array) -> Array:
        """Return (G + D) y."""
        return np.asarray(self.measured.of(self.measured.adjoint(y)) + self.ridge * y)


# -- The matrix of least nuclear norm with given rank-one measurements a_k·(W b_k) = t_k
#
# Theorem 5.1 hands its measurements to a convex programme; this solves it, with NumPy alone:
#
#     minimise ‖W‖_* subject to 𝒜(W) = t,      𝒜(W)_k = a_k·(W b_k), 𝒜ᵀ(y) = Σ y_k a_k b_kᵀ,
#     and where t_k is known to ±e_k only, minimise ‖W‖_* + Σ_k (t_k − 𝒜(W)_k)²/(2μ_k), μ_k ∝ e_k²;
#     dual: maximise t·y − Σ μ_k y_k²/2 subject to ‖𝒜ᵀ(y)‖₂ ≤ 1
#
# 1. Douglas–Rachford: thresholding singular values in turn with the step onto the measurements,
#    which solves with G + diag(μ)/γ, G_kl = (a_k·a_l)(b_k·b_l): by its inverse while it is small,
#    above by conjugate gradients (`gram_system`); nothing of d²×m, and nothing of m×m there.
#    Each step onto the measurements leaves a dual point; it stops by the gap between the two.
# 2. Thresholding shows the minimiser's rank; Gauss–Newton among the matrices of that rank
#    (`rank_fit`) then gives it to rounding.
# 3. The proof: the dual point is moved, as little as possible, so that 𝒜ᵀ(y) = UVᵀ on the tangent
#    space of the result UΣVᵀ. If ‖𝒜ᵀ(y)‖₂ ≤ 1 elsewhere, too, then t·y = ‖W‖_*: no matrix with
#    these measurements has a smaller norm. The result is accepted only if it fits the measurements
#    and its objective is within the gap of a dual point: where the minimiser is not the W that was
#    measured, the minimiser is returned, not W.
#
# Measured (one core): d = 32, rank 3, 549 measurements: 30 steps, 0.1 s, error 3e-15.

# Gap relative to the objective at which it stops: half of float64's digits are left to the
# Gauss–Newton steps, and the slowest problems (as many measurements as d²) still end.
GAP = 1e-9
# Steps at most; typical problems take 80. The largest gap left is reported.
STEPS = 6000
# Step γ in units of ‖W‖_F; with ``relaxed`` the fewest steps of those tried (0.05 … 1.6 and 1 …
# 1.9) over 108 problems of d = 4 … 24, half of which do not recover W.
GAMMA = 0.1
# Over-relaxation: 1 is none, 2 and more diverges.
RELAXED = 1.7
# The gap costs another SVD: it is looked at every so many steps.
LOOK = 10
# From this gap on the minimiser's rank may show, and Gauss–Newton is tried.
HOPEFUL = 1e-2
# It is tried again after half as many steps more.
TRIED_EVERY = 1.5
# Under little noise y drifts by μ a step where it is not unique, and the gap no longer halves: it
# has stagnated when that takes as many steps as all before, and these.
PATIENCE = 200
# Measurements this many times as noisy as the median are left to the fit: Douglas–Rachford's
# steps would only drift with them.
COARSE = 100.0
# Noise that the inverse of d² measurements amplifies to this share of W leaves no rank to see:
# then the nuclear norm decides.
GARBLED = 1e-3
# Where singular values drop by this much the rest may be noise, or on its way to 0.
DROP = 10.0


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


def minimise(measured: rank_one.Measurements) -> Minimiser:
    """Find the matrix of least nuclear norm that has the given measurements.

    Parameters
    ----------
    measured : Measurements
        At least one. With noise the fit is penalised, so that measurements which noise alone
        explains give W = 0.

    Returns
    -------
    Minimiser
        With its gap to the optimum, which a dual point proves.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> W, a, b = np.outer(rng.standard_normal(8), np.ones(8)), *rng.standard_normal((2, 45, 8))
    >>> exact = rank_one.Measurements(a, b, np.sum(a @ W * b, axis=1), np.zeros(45))
    >>> found = minimise(exact)
    >>> found.rank, bool(np.allclose(found.W, W, rtol=0, atol=1e-12))
    (1, True)
    """
    if not np.any(measured.t):
        return Minimiser(np.zeros((measured.dim, measured.dim)), 0, 0.0, True, 0)
    unit = measured.normalised()
    if len(unit) >= unit.dim**2:
        return _by_least_squares(unit)
    return _Splitting.of(unit).run()


@dataclass(frozen=True, slots=True)
class _Iterate:
    """Where the splitting stands."""

    Z: Array
    """On the measurements."""
    U: Array
    """The sum of what was missed: −𝒜ᵀ(y), a dual point times γ."""
    y: Array
    rank: int
    """Of the last matrix whose singular values were thresholded."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Bounds on the least objective, and the relative gap that is worth closing."""

    primal: float
    dual: float
    enough: float

    @property
    def gap(self) -> float:
        """By how much of itself the objective may be above the least possible."""
        return (self.primal - self.dual) / self.primal if np.isfinite(self.primal) else np.inf


@dataclass(frozen=True, slots=True)
class _Splitting:
    """Douglas–Rachford splitting with everything that its steps need."""

    measured: rank_one.Measurements
    """All of them, for the fit."""
    core: rank_one.Measurements
    """Those that are precise enough for the splitting."""
    mu: Array
    tau: float
    """μ_k = τ e_k²."""
    gamma: float
    system: GramSystem
    """G + diag(μ)/γ."""

    @classmethod
    def of(cls, measured: rank_one.Measurements) -> _Splitting:
        """Choose penalty and step, and invert."""
        # unit rows: E t² = ‖W‖²_F/d²
        core = measured.pick(measured.noise <= COARSE * np.median(measured.noise))
        gamma = GAMMA * measured.dim * float(np.sqrt(np.mean(core.t**2)))
        tau = _penalty(core)
        mu = tau * core.noise**2
        system = GramSystem.of(core, mu / gamma)
        return cls(measured, core, mu, tau, gamma, system)

    def run(self) -> Minimiser:
        """Go on until the gap is closed, or until the minimiser's rank shows and closes it."""
        d = self.core.dim
        at = _Iterate(np.zeros((d, d)), np.zeros((d, d)), np.zeros(len(self.core)), d)
        bounds = _Bounds(np.inf, 0.0, GAP)
        steps = tried = halved = 0
        least = np.inf
        while bounds.gap > bounds.enough and steps < min(STEPS, 2 * halved + PATIENCE):
            for _ in range(LOOK):
                at = self._step(at)
            steps += LOOK
            bounds = self._bounds(at)
            if bounds.gap < least / 2:
                least, halved = bounds.gap, steps
            if bounds.gap <= HOPEFUL and steps >= TRIED_EVERY * tried:
                tried = steps
                candidates = _candidates(at.Z, at.rank, DROP)
                slack = bounds.enough * bounds.primal
                polished = self._polished(at, candidates, bounds.dual, slack, steps)
                if polished is not None:
                    return polished
        if not self.system.exact:
            at = self._onto(at.Z + at.U, at, exactly=True)
            bounds = self._bounds(at)
        # the gap may be the dual's fault alone, noise may hide where singular values drop, and a
        # last one that is small beside the first takes long to pass the threshold
        noisy, most = bounds.enough > GAP, min(at.rank + 1, self.core.dim)
        candidates = [*range(at.rank + 1)] if noisy else _candidates(at.Z, most, DROP)
        slack = bounds.gap * bounds.primal
        polished = self._polished(at, candidates, bounds.dual, slack, steps)
        return polished or Minimiser(at.Z, at.rank, bounds.gap, False, steps)

    def _step(self, at: _Iterate) -> _Iterate:
        """Threshold singular values, then step onto the measurements."""
        relaxed = RELAXED
        left, values, right = np.linalg.svd(at.Z - at.U)
        rank = int(np.count_nonzero(values > self.gamma))
        X = (left[:, :rank] * (values[:rank] - self.gamma)) @ right[:rank]
        M = relaxed * X + (1 - relaxed) * at.Z + at.U
        return self._onto(M, replace(at, rank=rank))

    def _onto(self, M: Array, at: _Iterate, exactly: bool = False) -> _Iterate:
        """Step from M onto the measurements, or nearer to them."""
        missed = self.core.t - self.core.of(M)
        y, back = self.system.solve(missed, at.y, -at.U, exactly)
        return _Iterate(M + back, -back, y, at.rank)

    def _bounds(self, at: _Iterate) -> _Bounds:
        """Bound the least objective from both sides."""
        y = at.y / self.gamma
        fit = float(self.mu @ y**2) / 2
        primal = float(np.linalg.norm(at.Z, "nuc")) + fit
        # a gap below what noise costs says nothing more
        return _Bounds(primal, self._dual(y, at.U / self.gamma), max(GAP, fit / primal))

    def _dual(self, y: Array, back: Array) -> float:
        """Return the objective of a dual point, ``back`` being ±𝒜ᵀ(y)."""
        # it is feasible once it is shrunk to ‖𝒜ᵀ(y)‖₂ ≤ 1
        y = y / max(1.0, float(np.linalg.norm(back, 2)))
        return float(self.core.t @ y - self.mu @ y**2 / 2)

    def _dual_at(self, W: Array, rank: int, at: _Iterate) -> float:
        """Bound the least objective by the dual point nearest to y that would prove W minimal."""
        even = np.ones(len(self.core))
        space = rank_one.TangentSpace.at(self.core, W, rank, even)
        wanted = space.U[:, :rank] @ space.V[:, :rank].T
        y = at.y / self.gamma
        y = y + space.least_norm(space.coordinates(wanted + at.U / self.gamma))
        return self._dual(y, self.core.adjoint(y))

    def _polished(
        self, at: _Iterate, candidates: list[int], dual: float, gap: float, steps: int
    ) -> Minimiser | None:
        """Fit matrices of these ranks; take the first that is a minimiser to within ``gap``."""
        for candidate in candidates:
            fitted = rank_one.fit_rank(self.measured, at.Z, candidate)
            if fitted is None:
                continue
            W, smallest = fitted
            objective, dual = self._objective(W), max(dual, self._dual_at(W, candidate, at))
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


def _candidates(Z: Array, rank: int, drop: float) -> list[int]:
    """Return the ranks that Z may stand for, the least first; ``rank`` is the most."""
    values = np.linalg.svd(Z, compute_uv=False)[: rank + 1]
    drops = np.flatnonzero(values[1:] * drop < values[:-1]) + 1
    return sorted({0, rank, *(int(place) for place in drops if place <= rank)})


def _penalty(measured: rank_one.Measurements) -> float:
    """Choose τ as large as ‖Σ_k ε_k/e_k a_k b_kᵀ‖₂ gets for signs ε_k at random.

    That is √(2 ln 2d) times the larger of the two variances' roots (matrix Chernoff), so that
    the dual point of pure noise is feasible: noise is not fitted.
    """
    if not np.any(measured.noise):
        return 0.0
    a, b = (x * measured.weights[:, None] for x in (measured.a, measured.b))
    variance = max(np.linalg.norm(a, 2), np.linalg.norm(b, 2))
    return float(np.sqrt(2 * np.log(2 * measured.dim)) * variance)


def _by_least_squares(measured: rank_one.Measurements) -> Minimiser:
    """Solve where d² measurements or more leave the nuclear norm no choice.

    The rank is the least at which a matrix fits them.
    """
    d = measured.dim
    rows = measured.matrix() * measured.weights[:, None]
    solution, found, gains = rank_one.least_squares(rows, measured.weights * measured.t)
    W = solution.reshape(d, d)
    if found < d * d:
        return Minimiser(W, d, np.inf, False, 0)
    values = np.linalg.svd(W, compute_uv=False)
    # weighted by 1/e_k a measurement is off by at most 1
    unsure = np.sqrt(len(measured)) / gains[-1] if np.any(measured.noise) else 0.0
    if unsure > GARBLED * values[0]:
        return _Splitting.of(measured).run()
    floor = 2 * unsure + rank_one.FIT_ROUNDING * gains[0] / gains[-1] * values[0]
    for rank in range(int(np.count_nonzero(values > floor)), d + 1):
        polished = rank_one.fit_rank(measured, W, rank)
        if polished is not None:
            return Minimiser(polished[0], rank, 0.0, True, 0)
    return Minimiser(W, d, 0.0, False, 0)
