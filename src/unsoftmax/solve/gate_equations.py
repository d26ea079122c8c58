"""The equations Σ_h (a·v_h) σ(a·u_h) = y for all u_h at once, solved by Newton's method.

n ≥ H·d equations for H·d unknowns, each with the noise of its right side: the first ones are
solved, by least squares where they are more than unknowns, the others check. Where two heads are
close, the derivative along one direction is as small as their distance, and a second solution lies
about as far away as they do from each other: the equations that check tell which is right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class NewtonTuning:
    """When Newton's steps end, and when another solution is looked for."""

    steps: int = 40
    """Newton's steps at most: they converge quadratically, but linearly where heads are close."""
    settled: float = 1e-14
    """They end when they are rounding, relative to u."""
    floor: float = 1e-9
    """Below this size, relative to u, they end as well once they no longer shrink."""
    singular: float = 1e9
    """Systems of a larger condition number correct nothing."""
    halvings: int = 8
    """Steps of least squares are halved so often at most, until what is missed shrinks: far from
    the solution they may lead astray."""
    fits: float = 30.0
    """No equation is missed by more, in units of its noise and of what others' pass on to it."""
    powers: int = 8
    """Power iterations that find the direction of the smallest singular value."""
    bend: float = 1e-3
    """Step along it, as a share of ‖u‖, from which the second derivative is taken."""
    farthest: float = 0.5
    """Another solution that is further away than this share of ‖u‖ is none."""
    clearly_better: float = 10.0
    """Of two solutions one must fit the equations that check so many times better, or the distance
    between the two counts as error."""


@dataclass(frozen=True, slots=True)
class GateEquations:
    """Offsets a (n, d), right sides y (n,) and their noise (n,), and the values v (H, d)."""

    v: Array
    a: Array
    y: Array
    noise: Array
    checks: int = 0
    """How many of them, the last ones, check."""

    @property
    def solved(self) -> int:
        """How many are solved."""
        return len(self.y) - self.checks

    def of(self, u: Array) -> Array:
        """Return the left sides at u (H, d), in units of noise."""
        return np.asarray(
            np.sum((self.a @ self.v.T) * scipy.special.expit(self.a @ u.T), axis=1) / self.noise
        )

    def missed(self, u: Array) -> Array:
        """Return how far the equations are off, in units of noise."""
        return np.asarray(self.y / self.noise - self.of(u))

    def jacobian(self, u: Array) -> Array:
        """Return the derivatives by all u_h (n, H·d), in units of noise."""
        slope = (self.a @ self.v.T) / (4 * np.cosh(np.clip(self.a @ u.T, -700, 700) / 2) ** 2)
        slope /= self.noise[:, None]
        return np.asarray((slope[:, :, None] * self.a[:, None, :]).reshape(len(self.a), -1))


@dataclass(frozen=True, slots=True)
class GateSolution:
    """The u_h (H, d), and the inverse of the derivative there."""

    u: Array
    inverse: Array

    @property
    def errors(self) -> Array:
        """What unit noise makes of every u_h (H,)."""
        return np.asarray(np.linalg.norm(self.inverse.reshape(len(self.u), -1), axis=1))


def solve_gates(
    equations: GateEquations, u: Array, tuning: NewtonTuning
) -> tuple[Array, Array] | None:
    """Return the u_h and their errors (H,), from an estimate; None where nothing is gained."""
    first = newton(equations, u, tuning)
    if first is None:
        return None
    start = _other_root(equations, first, tuning)
    second = None if start is None else newton(equations, start, tuning)
    first, second = (_fitting(equations, x, tuning) for x in (first, second))
    if first is None or second is None:
        only = second if first is None else first
        return None if only is None else (only.u, only.errors)
    checks = [
        float(np.linalg.norm(equations.missed(x.u)[equations.solved :])) for x in (first, second)
    ]
    if tuning.clearly_better * checks[1] < checks[0]:
        return second.u, second.errors
    errors = first.errors
    if checks[1] < tuning.clearly_better * checks[0]:
        errors = np.hypot(errors, np.linalg.norm(second.u - first.u, axis=1))
    return first.u, errors


def _fitting(
    equations: GateEquations, solution: GateSolution | None, tuning: NewtonTuning
) -> GateSolution | None:
    """Return a solution unless it misses equations by more than their noise explains."""
    if solution is None:
        return None
    missed, passed_on = np.abs(equations.missed(solution.u)), np.zeros(len(equations.y))
    count = equations.solved
    # noise of the equations that were solved passes on to those that check
    checks = equations.jacobian(solution.u)[count:] @ solution.inverse
    passed_on[count:] = np.linalg.norm(checks, axis=1)
    return solution if np.all(missed <= tuning.fits * np.hypot(1.0, passed_on)) else None


def _other_root(equations: GateEquations, at: GateSolution, tuning: NewtonTuning) -> Array | None:
    """Return where another solution may be, along the direction n that is hardest to see.

    σ_min t + ½ (w·F'')t² is 0 once more there, w being where n leads to.
    """
    w = np.ones(equations.solved)
    for _ in range(tuning.powers):
        w = at.inverse.T @ (at.inverse @ w)
        w /= np.linalg.norm(w)
    n = at.inverse @ w
    smallest = 1 / float(np.linalg.norm(n))
    n = smallest * n.reshape(at.u.shape)
    size = float(np.linalg.norm(at.u))
    h = tuning.bend * size
    bend = equations.of(at.u + h * n) - 2 * equations.of(at.u) + equations.of(at.u - h * n)
    bent = float(w @ bend[: equations.solved]) / h**2
    if not 2 * smallest < tuning.farthest * abs(bent) * size:
        return None
    return np.asarray(at.u - 2 * smallest / bent * n)


def newton(equations: GateEquations, u: Array, tuning: NewtonTuning) -> GateSolution | None:
    """Return the solution that Newton's steps from u lead to, or None."""
    now, count = np.inf, equations.solved
    for _ in range(tuning.steps):
        J = equations.jacobian(u)[:count]
        try:
            inverse = np.linalg.inv(J) if count == u.size else np.linalg.pinv(J)
        except np.linalg.LinAlgError:
            return None
        with np.errstate(over="ignore"):
            if not np.linalg.norm(J) * np.linalg.norm(inverse) < tuning.singular:
                return None
        step = (inverse @ equations.missed(u)[:count]).reshape(u.shape)
        last, now = now, float(np.linalg.norm(step) / np.linalg.norm(u))
        if not now < 1:
            return None
        u = u + _damped(equations, u, step, tuning)
        if now < tuning.settled or last <= now < tuning.floor:
            return GateSolution(u, np.asarray(inverse))
    return None


def _damped(equations: GateEquations, u: Array, step: Array, tuning: NewtonTuning) -> Array:
    """Halve a step until what is missed shrinks, where equations are more than unknowns."""
    count = equations.solved
    if count == u.size:
        return step
    before = np.linalg.norm(equations.missed(u)[:count])
    for n in range(tuning.halvings):
        shorter = np.asarray(step / 2**n)
        if np.linalg.norm(equations.missed(u + shorter)[:count]) < before:
            return shorter
    return step
