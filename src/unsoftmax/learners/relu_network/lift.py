"""Half a great circle X(θ) = cosθ·P + sinθ·Q in the space of a lift; it crosses all hyperplanes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.measure.reflections import orthogonal_to
from unsoftmax.probes import Array, Design, Flags, Indices, LazyRows, Purpose, Round, Singles
from unsoftmax.protocol import Answers

# Distance of a circle's ends from θ = 0 and π, where tokens are infinitely long; 1e-5 is 10⁵ length
# scales away. Smaller: hyperplanes out there are found, but imprecisely; another length scale shows
# them better. Without biases no length is special, and the ends are this close.
EDGE, NO_EDGE = 1e-5, 1e-8


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


@dataclass(frozen=True, slots=True)
class LiftedPoints(LazyRows):
    """Tokens for points of the lift, made when they are asked for."""

    lift: Lift

    @abstractmethod
    def lifted(self, index: Indices) -> Array:
        """Make some of the points, (n, D)."""

    def __getitem__(self, index: Indices) -> Array:
        return self.lift.tokens(self.lifted(index))

    def pick(self, index: Indices) -> Array:  # noqa: D102
        return self[index]


@dataclass(frozen=True, slots=True)
class WrittenPoints(LiftedPoints):
    """Points written out."""

    Y: Array

    @property
    def shape(self) -> tuple[int, int]:  # noqa: D102
        return len(self.Y), self.lift.dim

    def lifted(self, index: Indices) -> Array:  # noqa: D102
        return self.Y[index]

    def design(self) -> Design:  # noqa: D102
        return {"Y": self.Y, "length": np.array([self.lift.length, self.lift.token_scale])}


@dataclass(frozen=True, slots=True)
class PointsAround(LiftedPoints):
    """Points Y_i + s·E_j, E_j of ``directions``, or where None of `orthogonal_to` (Y_i)."""

    centres: Array
    directions: Array | None
    i: Indices
    j: Indices
    step: Array

    @property
    def shape(self) -> tuple[int, int]:  # noqa: D102
        return len(self.i), self.lift.dim

    def lifted(self, index: Indices) -> Array:  # noqa: D102
        centres, j = self.centres[self.i[index]], self.j[index]
        E = orthogonal_to(centres, j) if self.directions is None else self.directions[j]
        return np.asarray(centres + self.step[index, None] * E)

    def design(self) -> Design:  # noqa: D102
        shared = {} if self.directions is None else {"directions": self.directions}
        length = np.array([self.lift.length, self.lift.token_scale])
        return {
            "centres": self.centres,
            **shared,
            "i": self.i,
            "j": self.j,
            "step": self.step,
            "length": length,
        }


def ask_points(
    points: LiftedPoints,
    phase: str,
    known: PiecewiseLinear | None = None,
    purpose: Purpose = "data",
    numbers_at_once: int = 2**22,
) -> Generator[Round, Answers, Array]:
    """Ask F, or F − F̂ where F̂ is ``known``; no points, no round.

    ``numbers_at_once`` bounds the memory while F̂ is subtracted, here to 32 MB.
    """
    count = points.shape[0]
    if not count:
        return np.zeros(0)
    [y] = yield [Singles(points, phase=phase, purpose=purpose)]
    F = np.empty(count)
    width = max(points.lift.D, 0 if known is None else len(known), 1)
    chunk = max(1, numbers_at_once // width)
    for start in range(0, count, chunk):
        index = np.arange(start, min(start + chunk, count))
        Y = points.lifted(index)
        F[index] = points.lift.answers(Y, y[index])
        if known is not None:
            F[index] -= known(Y)
    return F


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
    def random(cls, lift: Lift, rng: np.random.Generator) -> Circle:
        """Choose a circle; with biases a straight line of tokens, not through 0 if d > 1.

        With biases θ = 0 and π are infinitely far, and beyond lies h ≤ 0, where F is not defined:
        the circle ends an edge before.
        """
        d, D = lift.dim, lift.D
        basis = np.linalg.qr(rng.standard_normal((d, d)))[0].T
        if not lift.biases:
            return cls(lift, basis[0], basis[1], basis[2:], NO_EDGE, np.pi - NO_EDGE)
        flat = np.column_stack([basis, np.zeros(d)])
        up = np.zeros(D)
        up[-1] = 1.0
        if d == 1:
            return cls(lift, flat[0], up, flat[1:], EDGE, np.pi - EDGE)
        norm = np.sqrt(1.25)
        Q, upright = (0.5 * flat[1] + up) / norm, (0.5 * up - flat[1]) / norm
        E = np.vstack([flat[2:], upright])
        return cls(lift, flat[0], Q, E, EDGE, np.pi - EDGE)

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
