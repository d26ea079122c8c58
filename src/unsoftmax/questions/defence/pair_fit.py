"""Least squares for a head's answers to pairs of tokens, by Levenberg's and Marquardt's steps.

    f([a + b; b]) = b·v + c + (a·v)·σ(t),  t = a·(W b + w)

t is linear in W and w, and σ is monotonic: as with logistic regression there is hardly a wrong
minimum. A step solves as many equations as there are parameters, of which there may be some
thousand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
import scipy

from unsoftmax.probes import Array
from unsoftmax.theory import counts


@dataclass(frozen=True, slots=True)
class PairFitTuning:
    """Knobs of the fit."""

    first: int = 12
    """The first steps use so many answers per parameter, the last ones all."""
    steps: int = 40
    last_steps: int = 3
    damping: float = 1e-3
    """Of the first step, relative to the diagonal: a tenth after a step that fits better, ten
    times as much after one that does not."""
    most_damping: float = 1e9
    """Beyond it no step fits better."""
    least_damping: float = 1e-12
    floor: float = 1e-30
    """A parameter on which answers depend less than this, relative to the most, stays."""
    settled: float = 1e-10
    """Steps end where the misfit falls by less than this share."""
    block: int = 4096
    """Answers whose derivatives are in memory at once."""


@dataclass(frozen=True, slots=True)
class PairParameters:
    """What is fitted: v, then c and w where there are biases, then W, one after the other."""

    dim: int
    biases: bool

    @property
    def size(self) -> int:
        """How many numbers."""
        return counts.single_head(self.dim, biases=self.biases)

    def parts(self, theta: Array) -> tuple[Array, Array, Array, float]:
        """Return W, v, w and c."""
        d = self.dim
        v, rest = theta[:d], theta[d:]
        c, w = 0.0, np.zeros(d)
        if self.biases:
            c, w, rest = float(rest[0]), rest[1 : d + 1], rest[d + 1 :]
        return rest.reshape(d, d), v, w, c

    def joined(self, W: Array, v: Array, w: Array, c: float) -> Array:
        """Undo `parts`."""
        return np.concatenate([v, *([[c], w] if self.biases else []), W.ravel()])

    def columns(self, by_v: Array, by_w: Array, by_W: Array) -> Array:
        """Join derivatives in the same order; that by c is 1."""
        ones = np.ones((len(by_v), 1))
        return np.hstack([by_v, *([ones, by_w] if self.biases else []), by_W])


A = TypeVar("A", bound="Fittable")


class Fittable(Protocol):
    """Answers y that a head can be fitted to."""

    @property
    def y(self) -> Array:
        """What was answered."""

    def first(self: A, count: int) -> A:
        """Return the first of them."""

    def misfit(self, W: Array, v: Array, w: Array, c: float) -> float:
        """Return the sum of squares of what the head misses."""

    def linear(self, theta: Array, of: PairParameters, block: int) -> Iterator[tuple[Array, Array]]:
        """Yield derivatives by all parameters and what is missed, block by block."""


@dataclass(frozen=True, slots=True)
class PairFit:
    """How answers are fitted."""

    of: PairParameters
    tuning: PairFitTuning

    def fitted(self, start: Array, answers: Fittable) -> Array:
        """Fit to the first answers, then to all."""
        first = answers.first(self.tuning.first * self.of.size)
        found = self._descend(start, first, self.tuning.steps)
        return self._descend(found, answers, self.tuning.last_steps)

    def deviations(self, theta: Array, answers: Fittable) -> Array:
        """Return how far parameters may be off, as far as the misfit is independent errors."""
        normal, _, size = self._equations(theta, answers)
        freedom = max(1, len(answers.y) - len(theta))
        variance = self.misfit(theta, answers) / freedom
        inverse = np.linalg.inv(normal + self.tuning.least_damping * np.eye(len(normal)))
        return np.asarray(np.sqrt(np.maximum(np.diag(inverse), 0.0) * variance) / size)

    def misfit(self, theta: Array, answers: Fittable) -> float:
        """Return the sum of squares of what a head misses."""
        return answers.misfit(*self.of.parts(theta))

    def _descend(self, theta: Array, answers: Fittable, steps: int) -> Array:
        tuning, damping = self.tuning, self.tuning.damping
        misfit = self.misfit(theta, answers)
        for _ in range(steps):
            normal, gradient, size = self._equations(theta, answers)
            before = misfit
            while damping <= tuning.most_damping:
                damped = normal + damping * np.eye(len(normal))
                tried = theta + np.linalg.solve(damped, gradient) / size
                missed = self.misfit(tried, answers)
                if missed < misfit:
                    theta, misfit = tried, missed
                    damping = max(damping / 10, tuning.least_damping)
                    break
                damping *= 10
            if before - misfit <= tuning.settled * before:
                break
        return theta

    def _equations(self, theta: Array, answers: Fittable) -> tuple[Array, Array, Array]:
        """Return JᵀJ and Jᵀ(what is missed) for parameters of unit effect, and their sizes."""
        normal, gradient = np.zeros(()), np.zeros(())
        for J, missed in answers.linear(theta, self.of, self.tuning.block):
            normal, gradient = normal + J.T @ J, gradient + J.T @ missed
        effects = np.diag(normal)
        size = np.sqrt(effects + self.tuning.floor * np.max(effects))
        return normal / np.outer(size, size), gradient / size, size


@dataclass(frozen=True, slots=True)
class PairAnswers:
    """Answers y to pairs [a + b; b], and how a head fits them."""

    a: Array
    b: Array
    y: Array

    def first(self, count: int) -> PairAnswers:
        """Return the first of them."""
        return replace(self, a=self.a[:count], b=self.b[:count], y=self.y[:count])

    def around(self, token: Array) -> PairAnswers:
        """Return them as answers to pairs that are moved by a token."""
        return replace(self, b=self.b - token)

    def misfit(self, W: Array, v: Array, w: Array, c: float) -> float:
        """Return the sum of squares of what the head misses."""
        gates = scipy.special.expit(np.einsum("nd,nd->n", self.a, self.b @ W.T + w))
        return float(np.sum((self.y - (self.b @ v + c + (self.a @ v) * gates)) ** 2))

    def linear(self, theta: Array, of: PairParameters, block: int) -> Iterator[tuple[Array, Array]]:
        """Yield derivatives by all parameters and what is missed, block by block."""
        W, v, w, c = of.parts(theta)
        for start in range(0, len(self.y), block):
            a, b = self.a[start : start + block], self.b[start : start + block]
            gates = scipy.special.expit(np.einsum("nd,nd->n", a, b @ W.T + w))
            by_w = ((a @ v) * gates * (1 - gates))[:, None] * a
            by_W = (by_w[:, :, None] * b[:, None]).reshape(len(a), -1)
            missed = self.y[start : start + block] - (b @ v + c + (a @ v) * gates)
            yield of.columns(b + gates[:, None] * a, by_w, by_W), missed
