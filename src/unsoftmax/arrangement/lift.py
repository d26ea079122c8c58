"""A ReLU network as a function that scales: F(s·Y) = s·F(Y), with biases or without.

Without biases F is the network f itself, D = d. With biases D = d + 1, Y = (x, h) and
F(x, h) = h·f(λx/h) for h > 0: neurons become hyperplanes through 0, and

    F(Y) = g_0·Y + Σ_k ε_k·max(0, a_k·Y),   ε_k = ±1,

J_k = ε_k a_k being the jump of F's gradient across a_k·Y = 0. The length λ makes typical
biases and weights alike. Probes are made lazily: points around a few centres.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from unsoftmax.measure.reflections import beside
from unsoftmax.probes import Array, Design, Indices, LazyRows, Purpose, Round, Singles
from unsoftmax.protocol import Answers

_CHUNK = 2**22  # numbers at once while a form is subtracted: 32 MB


@dataclass(frozen=True, slots=True)
class Lift:
    """Where F(Y) is asked: at the token λx/h, or without biases at ``loud``·Y."""

    dim: int
    biases: bool
    length: float = 1.0
    loud: float = 1.0

    @property
    def D(self) -> int:
        """Dimension of Y."""
        return self.dim + self.biases

    def tokens(self, Y: Array) -> Array:
        """Map points (n, D) to tokens (n, d)."""
        if self.biases:
            return np.asarray(self.length * Y[:, :-1] / Y[:, -1:])
        return self.loud * Y

    def answers(self, Y: Array, y: Array) -> Array:
        """Map the tokens' answers to F(Y)."""
        return np.asarray(Y[:, -1] * y if self.biases else y / self.loud)

    def points(self, x: Array) -> Array:
        """Map tokens (n, d) to points of norm 1."""
        Y = np.column_stack([x / self.length, np.ones(len(x))]) if self.biases else x
        return np.asarray(Y / np.linalg.norm(Y, axis=1, keepdims=True))


@dataclass(frozen=True, slots=True)
class Form:
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

    @property
    def jumps(self) -> Array:
        """The jumps ε_k a_k of the gradient, (K, D)."""
        return self.eps[:, None] * self.a

    @classmethod
    def none(cls, D: int) -> Form:
        """F̂ = 0."""
        return cls(np.zeros(D), np.zeros((0, D)), np.zeros(0), np.zeros(0))


@dataclass(frozen=True, slots=True)
class Points(LazyRows):
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
class Written(Points):
    """Points written out."""

    Y: Array

    @property
    def shape(self) -> tuple[int, int]:  # noqa: D102
        return len(self.Y), self.lift.dim

    def lifted(self, index: Indices) -> Array:  # noqa: D102
        return self.Y[index]

    def design(self) -> Design:  # noqa: D102
        return {"Y": self.Y, "length": np.array([self.lift.length, self.lift.loud])}


@dataclass(frozen=True, slots=True)
class Around(Points):
    """Points Y_i + s·E_j; E_j are rows of ``directions``, or where None of `beside` (Y_i)."""

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
        E = beside(centres, j) if self.directions is None else self.directions[j]
        return np.asarray(centres + self.step[index, None] * E)

    def design(self) -> Design:  # noqa: D102
        shared = {} if self.directions is None else {"directions": self.directions}
        length = np.array([self.lift.length, self.lift.loud])
        return {
            "centres": self.centres,
            **shared,
            "i": self.i,
            "j": self.j,
            "step": self.step,
            "length": length,
        }


def ask(
    points: Points, phase: str, form: Form | None = None, purpose: Purpose = "data"
) -> Generator[Round, Answers, Array]:
    """Ask F, or F − F̂ where a form is given; no points, no round."""
    count = points.shape[0]
    if not count:
        return np.zeros(0)
    [y] = yield [Singles(points, phase=phase, purpose=purpose)]
    F = np.empty(count)
    width = max(points.lift.D, 0 if form is None else len(form.a), 1)
    chunk = max(1, _CHUNK // width)
    for start in range(0, count, chunk):
        index = np.arange(start, min(start + chunk, count))
        Y = points.lifted(index)
        F[index] = points.lift.answers(Y, y[index])
        if form is not None:
            F[index] -= form(Y)
    return F
