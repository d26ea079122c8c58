"""Several heads at once from answers at moderate logits: separable least squares.

    y_i = Σ_h (a_i·v_h) (σ(a_i·M_h q_i + ℓ_i) − σ(ℓ_i))

unknown are M_h (d, k), what turns a query token's coordinates q_i into u_h, and v_h (d,). Copies
of a token shift logits by ℓ_i, and the last term, which is linear in a_i, was taken out: a head
M = 0 adds nothing. The v_h are linear and are eliminated at every step (variable projection,
Golub and Pereyra 1973, with Kaufman's derivative); what remains is solved for M by the method of
Levenberg and Marquardt. No head need be known before.

Heads that are nearly one are hard to tell apart from a distance: they may be *tied*, M_h = Σ_k
T_hk C_k, so that only the C_k are solved for at first. Nothing is asked or refused here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from unsoftmax.probes import Array

# Steps at most: 5 to 20 are usual, 60 where two heads are 10⁻² apart.
STEPS = 60
# Times that a step is shortened before the fit ends where it is.
TRIES = 10
# Of the first step, relative to the columns of the derivative.
DAMPING = 1e-3
# Damping is divided by this after a step that fits better.
BOLDER = 20.0
# It is multiplied by this after one that does not.
CAREFUL = 8.0
# Damping below this is rounding.
LEAST = 1e-16
# A step that lowers the sum of squares by a smaller share is slow. Where all is within the noise
# it is the last,
SETTLED = 0.1
# elsewhere so many slow steps in a row are followed by no other.
PATIENCE = 12
# Triangular factors with smaller diagonals (columns have norm 1) count as singular.
SINGULAR = 1e-13


@dataclass(frozen=True, slots=True)
class HeadEquations:
    """Offsets a (n, d), coordinates q (n, k), shifts (n,), right sides y (n,), their noise (n,)."""

    a: Array
    q: Array
    shift: Array
    y: Array
    noise: Array

    def joined(self, other: HeadEquations) -> HeadEquations:
        """Return the equations of both."""
        mine, others = ((one.a, one.q, one.shift, one.y, one.noise) for one in (self, other))
        return HeadEquations(*(np.concatenate(pair) for pair in zip(mine, others, strict=True)))

    def gates(self, M: Array) -> Array:
        """Return σ of all logits at M (H, d, k): (n, H)."""
        aM = np.tensordot(self.a, M, axes=(1, 1))  # (n, H, k)
        logits = np.einsum("nhk,nk->nh", aM, self.q) + self.shift[:, None]
        return np.asarray(scipy.special.expit(logits))

    def by_values(self, gates: Array) -> Array:
        """Return the derivative by all v_h (n, H·d), in units of noise."""
        opened = (gates - scipy.special.expit(self.shift)[:, None]) / self.noise[:, None]
        return np.asarray((opened[:, :, None] * self.a[:, None, :]).reshape(len(self.a), -1))

    def by_scores(self, gates: Array, v: Array) -> Array:
        """Return the derivative by all M_h (n, H, d·k), in units of noise."""
        slope = (self.a @ v.T) * gates * (1 - gates) / self.noise[:, None]
        outer = (self.a[:, :, None] * self.q[:, None, :]).reshape(len(self.a), 1, -1)
        return np.asarray(slope[:, :, None] * outer)


@dataclass(frozen=True, slots=True)
class FittedHeads:
    """Heads M (H, d, k), v (H, d); what they miss, root mean square in units of noise."""

    M: Array
    v: Array
    missed: float

    def deviations(self, equations: HeadEquations) -> tuple[Array, Array]:
        """Return what independent unit noise makes of every entry of M and of v.

        Infinite where the equations do not determine all of them.
        """
        gates = equations.gates(self.M)
        scores = equations.by_scores(gates, self.v).reshape(len(equations.y), -1)
        J = np.concatenate([scores, equations.by_values(gates)], axis=1)
        columns = np.linalg.norm(J, axis=0)
        squares = np.full(len(columns), np.inf)
        if 0 < len(columns) <= len(J) and np.all(columns > 0):
            R = np.asarray(np.linalg.qr(J / columns, mode="r"))
            if np.all(np.diag(R) != 0):
                inverse = scipy.linalg.solve_triangular(R, np.eye(len(R)))
                with np.errstate(over="ignore"):  # what no float64 bounds is not determined
                    squares = np.sum(inverse**2, axis=1) / columns**2
        of_M, of_v = np.split(np.sqrt(squares), [self.M.size])
        return of_M.reshape(self.M.shape), of_v.reshape(self.v.shape)


def fit_heads(equations: HeadEquations, M: Array, *, ties: Array | None = None) -> FittedHeads:
    """Fit heads from estimates M (H, d, k).

    With ``ties`` T (H, K) the estimates are those of the C_k (K, d, k).
    """
    return _Fit(equations, np.eye(len(M)) if ties is None else ties).run(M)


@dataclass(frozen=True, slots=True)
class _Place:
    """The fit at one M: gates, an orthonormal basis of the values' columns, v, residuals."""

    M: Array
    gates: Array
    basis: Array
    v: Array
    residual: Array

    @property
    def squares(self) -> float:
        return float(self.residual @ self.residual)


@dataclass(frozen=True, slots=True)
class _Fit:
    """One fit."""

    equations: HeadEquations
    ties: Array

    def run(self, C: Array) -> FittedHeads:
        n = len(self.equations.y)
        here, damping, slow = self.at(C), DAMPING, 0
        for _ in range(STEPS):
            better = self.better(C, here, damping)
            if better is None:
                break
            last = here.squares
            C, here, damping = better
            damping = damping / BOLDER if damping > LEAST else 0.0
            slow = slow + 1 if last - here.squares < SETTLED * last else 0
            if slow > (0 if here.squares < n else PATIENCE):
                break
        return FittedHeads(here.M, here.v, float(np.sqrt(here.squares / n)))

    def better(self, C: Array, here: _Place, damping: float) -> tuple[Array, _Place, float] | None:
        """Return a place that fits better, and the damping that led there, or None."""
        J = self.derivative(here)
        for _ in range(TRIES):
            step = self.step(J, here.residual, damping)
            if step is not None:
                there = self.at(C + step.reshape(C.shape))
                if there.squares < here.squares:
                    return C + step.reshape(C.shape), there, damping
            damping = max(damping * CAREFUL, LEAST)
        return None

    def at(self, C: Array) -> _Place:
        """Solve for the values at one place."""
        M = np.tensordot(self.ties, C, axes=1)
        gates = self.equations.gates(M)
        columns = self.equations.by_values(gates)
        size = np.linalg.norm(columns, axis=0)
        size = np.where(size > 0, size, 1.0)
        Q, R = np.linalg.qr(columns / size)
        y = self.equations.y / self.equations.noise
        enough = len(R) == len(size)
        if enough and np.min(np.abs(np.diag(R)), initial=1.0) > SINGULAR:
            v = scipy.linalg.solve_triangular(R, Q.T @ y)
        else:
            v = np.linalg.lstsq(columns / size, y, rcond=SINGULAR)[0]
        v = v / size
        return _Place(M, gates, Q, v.reshape(len(M), -1), y - columns @ v)

    def derivative(self, here: _Place) -> Array:
        """Return the derivative by C of what the values leave (n, K·d·k)."""
        J = self.equations.by_scores(here.gates, here.v)
        J = np.einsum("nhx,hk->nkx", J, self.ties).reshape(len(J), -1)
        return np.asarray(J - here.basis @ (here.basis.T @ J))

    def step(self, J: Array, residual: Array, damping: float) -> Array | None:
        """Return the damped step, or None where it is not determined."""
        size = np.linalg.norm(J, axis=0)
        size = np.where(size > 0, size, 1.0)
        n, unknowns = J.shape
        # the right side as a last column: the orthonormal factor is not needed
        damped = np.zeros((n + unknowns, unknowns + 1))
        damped[:n, :-1], damped[:n, -1] = J / size, residual
        np.fill_diagonal(damped[n:], np.sqrt(damping))
        triangle = np.asarray(np.linalg.qr(damped, mode="r"))
        R, right = triangle[:unknowns, :-1], triangle[:unknowns, -1]
        if not np.min(np.abs(np.diag(R)), initial=1.0) > SINGULAR:
            return None
        return np.asarray(scipy.linalg.solve_triangular(R, right) / size)
