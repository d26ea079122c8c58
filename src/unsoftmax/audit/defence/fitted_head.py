"""An attack: the head that fits coarse answers best, with biases or without.

Answers to random tokens and pairs of tokens, none longer than ``radius``, are fitted by least
squares. Beside errors that are independent from answer to answer, as noise is and rounding
nearly, it is about as precise as so many answers allow, and takes any number of them.

    f([x]) = x·v + c                                           v and c to begin with
    f([a + b; b]) = b·v + c + (a·v)·σ(t),  t = a·(W b + w)     all by Gauss-Newton, from W = 0

t is linear in W and w, and σ is monotonic: as with logistic regression there is hardly a wrong
minimum. A step solves as many equations as there are parameters, of which there may be some
thousand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from scipy.special import expit

from unsoftmax.errors import NotIdentifiable
from unsoftmax.learners.settings import Configured
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Sequences
from unsoftmax.protocol import Certificate, Evidence, Found, Plan, Steps
from unsoftmax.theory import counts


@dataclass(frozen=True, slots=True)
class FitTuning:
    """Knobs of the fit."""

    singles: float = 0.125
    """Share of the questions that are single tokens."""
    shortest: float = 0.25
    """Lengths of tokens are drawn from this share of the longest on."""
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
    floor: float = 1e-12
    """Every parameter is damped as if answers depended on it at least so much, relative to the
    most: equations stay solvable where they do not."""
    settled: float = 1e-10
    """Steps end where the misfit falls by less than this share."""
    block: int = 4096
    """Answers whose derivatives are in memory at once."""


@dataclass(frozen=True, slots=True)
class FittedHead(Configured):
    """Fit a single head to answers of any precision."""

    dim: int
    radius: float
    """The longest token that is asked."""
    queries: int
    """Questions asked."""
    biases: bool = False
    seed: int = 0
    tuning: FitTuning = field(default=FitTuning(), kw_only=True)

    revision: ClassVar[int] = 1

    def plan(self) -> Plan:
        """Say beforehand what it costs."""
        return Plan(
            queries=int(self.queries),
            at_most=int(self.queries),
            tokens=2 * int(self.queries),
            rounds=1,
            formula="as given",
            longest_token=float(self.radius) * (1 + 1e-12),
            most_tokens=2,
        )

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; nothing is certified, and nothing checked."""
        rng, single = np.random.default_rng(self.seed), int(self.tuning.singles * self.queries)
        x = self._tokens(single, rng)
        pairs = self._tokens(2 * (self.queries - single), rng).reshape(-1, 2, self.dim)
        of_x, y = yield [
            Sequences(x[:, None], phase="single tokens", purpose="data"),
            Sequences(pairs, phase="pairs", purpose="data"),
        ]
        start = np.zeros(self._size)
        columns = np.column_stack([x, np.ones(single)]) if self.biases else x
        straight = np.linalg.lstsq(columns, of_x)[0]
        start[: len(straight)] = straight
        if not np.any(straight[: self.dim]):
            raise NotIdentifiable("Answers to single tokens are all alike.", determined={})
        head = self._fitted(start, PairAnswers(pairs[:, 0] - pairs[:, 1], pairs[:, 1], y))
        errors = dict.fromkeys("Wvwc", np.inf)
        evidence = Evidence.of(0, np.empty(0), np.empty(0))
        return Found(head, Certificate(errors, ("Nothing bounds it.",)), evidence)

    @property
    def _size(self) -> int:
        return counts.single_head(self.dim, biases=self.biases)

    def _tokens(self, count: int, rng: np.random.Generator) -> Array:
        x = rng.standard_normal((count, self.dim))
        x *= self.radius / np.linalg.norm(x, axis=1, keepdims=True)
        return x * rng.uniform(self.tuning.shortest, 1, (count, 1))

    def _fitted(self, start: Array, pairs: PairAnswers) -> SingleHead:
        """Fit to the first answers, then to all."""
        tuning = self.tuning
        first = pairs.first(tuning.first * self._size)
        found = self._descend(start, first, tuning.steps)
        found = self._descend(found, pairs, tuning.last_steps)
        return SingleHead(*self._parts(found))

    def _parts(self, theta: Array) -> tuple[Array, Array, Array, float]:
        """Return W, v, w, c of v, c, w, W one after the other; without biases v, W."""
        d = self.dim
        v, rest = theta[:d], theta[d:]
        c, w = 0.0, np.zeros(d)
        if self.biases:
            c, w, rest = float(rest[0]), rest[1 : d + 1], rest[d + 1 :]
        return rest.reshape(d, d), v, w, c

    def _descend(self, theta: Array, pairs: PairAnswers, steps: int) -> Array:
        """Levenberg's and Marquardt's steps."""
        tuning, damping = self.tuning, self.tuning.damping
        misfit = pairs.misfit(*self._parts(theta))
        for _ in range(steps):
            if damping > tuning.most_damping:
                break
            normal, gradient = pairs.equations(*self._parts(theta), self.biases, tuning.block)
            scale = np.diag(normal) + tuning.floor * np.max(np.diag(normal))
            before = misfit
            while damping <= tuning.most_damping:
                step = np.linalg.solve(normal + np.diag(damping * scale), gradient)
                tried = pairs.misfit(*self._parts(theta + step))
                if tried < misfit:
                    theta, misfit = theta + step, tried
                    damping = max(damping / 10, tuning.least_damping)
                    break
                damping *= 10
            if before - misfit <= tuning.settled * before:
                break
        return theta


@dataclass(frozen=True, slots=True)
class PairAnswers:
    """Answers y to pairs [a + b; b], and how a head fits them."""

    a: Array
    b: Array
    y: Array

    def first(self, count: int) -> PairAnswers:
        """Return the first of them."""
        return replace(self, a=self.a[:count], b=self.b[:count], y=self.y[:count])

    def misfit(self, W: Array, v: Array, w: Array, c: float) -> float:
        """Return the sum of squares of what the head misses."""
        gates = expit(np.einsum("nd,nd->n", self.a, self.b @ W.T + w))
        return float(np.sum((self.y - (self.b @ v + c + (self.a @ v) * gates)) ** 2))

    def equations(
        self, W: Array, v: Array, w: Array, c: float, biases: bool, block: int
    ) -> tuple[Array, Array]:
        """Return JᵀJ and Jᵀ(what is missed)."""
        normal, gradient = np.zeros(()), np.zeros(())
        for J, missed in self._linear(W, v, w, c, biases, block):
            normal, gradient = normal + J.T @ J, gradient + J.T @ missed
        return normal, gradient

    def _linear(
        self, W: Array, v: Array, w: Array, c: float, biases: bool, block: int
    ) -> Iterator[tuple[Array, Array]]:
        """Yield derivatives by v (c, w) and W, and what is missed, block by block."""
        for start in range(0, len(self.y), block):
            a, b = self.a[start : start + block], self.b[start : start + block]
            gates = expit(np.einsum("nd,nd->n", a, b @ W.T + w))
            along = ((a @ v) * gates * (1 - gates))[:, None] * a
            by_W = (along[:, :, None] * b[:, None]).reshape(len(a), -1)
            by_v = b + gates[:, None] * a
            columns = [by_v, np.ones((len(a), 1)), along, by_W] if biases else [by_v, by_W]
            missed = self.y[start : start + block] - (b @ v + c + (a @ v) * gates)
            yield np.hstack(columns), missed
