"""A ReLU network as a function that scales, F(s·Y) = s·F(Y), with biases or without.

Without biases F is the network f itself, D = d. With biases D = d + 1, Y = (x, h) and
F(x, h) = h·f(λx/h) for h > 0: neurons become hyperplanes through 0, and

    F(Y) = g_0·Y + Σ_k ε_k·max(0, a_k·Y),   ε_k = ±1,

ε_k a_k being the jump of F's gradient across a_k·Y = 0. The length λ makes typical biases and
weights alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.probes import Array, Flags


@dataclass(frozen=True, slots=True)
class Lift:
    """Where F(Y) is asked: at the token λx/h, or without biases at ``token_scale``·Y."""

    dim: int
    biases: bool
    length: float = 1.0
    token_scale: float = 1.0

    @property
    def D(self) -> int:
        """Dimension of Y."""
        return self.dim + self.biases

    def tokens(self, Y: Array) -> Array:
        """Map points (n, D) to tokens (n, d)."""
        if self.biases:
            return np.asarray(self.length * Y[:, :-1] / Y[:, -1:])
        return self.token_scale * Y

    def answers(self, Y: Array, y: Array) -> Array:
        """Map the tokens' answers to F(Y)."""
        return np.asarray(Y[:, -1] * y if self.biases else y / self.token_scale)

    def points(self, x: Array) -> Array:
        """Map tokens (n, d) to points of norm 1."""
        Y = np.column_stack([x / self.length, np.ones(len(x))]) if self.biases else x
        return np.asarray(Y / np.linalg.norm(Y, axis=1, keepdims=True))

    def heights(self, x: Array) -> Array:
        """Return ‖(x/λ, 1)‖, or ‖x‖ without biases: what answers and errors at x grow with."""
        norm = np.linalg.norm(x, axis=1)
        return np.asarray(np.hypot(norm / self.length, 1.0) if self.biases else norm)


@dataclass(frozen=True, slots=True)
class PiecewiseLinear:
    """F̂(Y) = g0·Y + Σ_k eps_k·max(0, a_k·Y)."""

    g0: Array
    a: Array
    """(K, D)."""
    eps: Array
    """±1, (K,)."""
    error: Array
    """Standard deviation of the error of each a_k (2-norm), (K,)."""
    g_error: float = 0.0
    """The same of g0."""

    def __call__(self, Y: Array) -> Array:
        """Map points (n, D) to numbers (n,)."""
        z = Y @ self.a.T
        np.maximum(z, 0.0, out=z)
        return np.asarray(Y @ self.g0 + z @ self.eps)

    def __len__(self) -> int:
        return len(self.a)

    def take(self, chosen: Flags) -> PiecewiseLinear:
        """Keep some of the neurons, and the affine part."""
        return replace(self, a=self.a[chosen], eps=self.eps[chosen], error=self.error[chosen])

    def with_neurons(self, other: PiecewiseLinear) -> PiecewiseLinear:
        """Add the neurons of another form, without its affine part."""
        return replace(
            self,
            a=np.vstack([self.a, other.a]),
            eps=np.concatenate([self.eps, other.eps]),
            error=np.concatenate([self.error, other.error]),
        )

    @property
    def cleared(self) -> PiecewiseLinear:
        """The form without neurons smaller than their errors, which the affine part takes over."""
        sure = self.sizes > self.error
        return replace(self.take(sure), g_error=self.g_error + float(np.sum(self.error[~sure])))

    @property
    def sizes(self) -> Array:
        """‖a_k‖, (K,)."""
        return np.asarray(np.linalg.norm(self.a, axis=1))

    def sizes_beyond(self, lift: Lift) -> Array:
        """Return how large neurons are where they are active, (K,).

        One that is inactive at the token 0 is active only where its bias is less than the rest.
        """
        if not lift.biases:
            return self.sizes
        slope = np.linalg.norm(self.a[:, :-1], axis=1)
        return np.where(self.a[:, -1] < 0, np.minimum(self.sizes, 2 * slope), self.sizes)

    @property
    def spread(self) -> float:
        """How far F̂ may be off at points of norm 1, typically: by half of the neurons' errors."""
        return float(np.sqrt(np.sum(self.error**2) / (2 * len(self.g0)))) if len(self.a) else 0.0

    @classmethod
    def zero(cls, D: int) -> PiecewiseLinear:
        """F̂ = 0."""
        return cls(np.zeros(D), np.zeros((0, D)), np.zeros(0), np.zeros(0))
