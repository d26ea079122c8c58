"""Half a great circle X(θ) = cosθ·P + sinθ·Q in the space of a lift; it crosses all hyperplanes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from unsoftmax.arrangement.homogeneous import Lift, PiecewiseLinear
from unsoftmax.arrangement.lifted_points import WrittenPoints, ask_points
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers


@dataclass(frozen=True, slots=True)
class Circle:
    """X(θ), θ in [low, high], and a basis E of what is orthogonal to it."""

    lift: Lift
    P: Array
    Q: Array
    E: Array
    low: float
    high: float

    @classmethod
    def random(cls, lift: Lift, rng: np.random.Generator, edge: float) -> Circle:
        """Choose a circle; with biases a straight line of tokens, not through 0 if d > 1.

        With biases θ = 0 and π are infinitely far, and beyond lies h ≤ 0, where F is not defined:
        the circle ends an ``edge`` before.
        """
        d, D = lift.dim, lift.D
        basis = np.linalg.qr(rng.standard_normal((d, d)))[0].T
        if not lift.biases:
            return cls(lift, basis[0], basis[1], basis[2:], 0.0, np.pi)
        flat = np.column_stack([basis, np.zeros(d)])
        up = np.zeros(D)
        up[-1] = 1.0
        if d == 1:
            return cls(lift, flat[0], up, flat[1:], edge, np.pi - edge)
        norm = np.sqrt(1.25)
        Q, upright = (0.5 * flat[1] + up) / norm, (0.5 * up - flat[1]) / norm
        E = np.vstack([flat[2:], upright])
        return cls(lift, flat[0], Q, E, edge, np.pi - edge)

    @classmethod
    def none(cls, lift: Lift) -> Circle:
        """Return a circle of no points, for targets that need none."""
        nothing = np.zeros(lift.D)
        return cls(lift, nothing, nothing.copy(), np.zeros((0, lift.D)), 0.0, np.pi)

    def at(self, theta: Array) -> Array:
        """Return the points X(θ), (n, D)."""
        return np.asarray(np.cos(theta)[:, None] * self.P + np.sin(theta)[:, None] * self.Q)

    def crossings(self, vectors: Array) -> Array:
        """Return the angles in [0, π) at which hyperplanes a·Y = 0 are crossed, a (K, D)."""
        p, q = vectors @ self.P, vectors @ self.Q
        return np.asarray(np.mod(np.arctan2(-p, q), np.pi))

    def measure(
        self, known: PiecewiseLinear | None, phase: str
    ) -> Callable[[Array], Generator[Round, Answers, Array]]:
        """Return what asks F, or F − F̂ where F̂ is ``known``, at angles."""

        def asked(theta: Array) -> Generator[Round, Answers, Array]:
            return (yield from ask_points(WrittenPoints(self.lift, self.at(theta)), phase, known))

        return asked
