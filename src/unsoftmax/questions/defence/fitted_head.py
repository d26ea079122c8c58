"""An attack: the head that fits coarse answers best, with biases or without.

Answers to random tokens and sequences, no token longer than ``radius``, are fitted by least
squares (`sequence_fit`): v and c from single tokens, f([x]) = x·v + c, then everything from
sequences, beginning with W = 0 and a few random ones. The first fit then tells which of many more
sequences tell most, and all that was asked is fitted again. Beside errors that are independent
from answer to answer, as noise is and rounding nearly, it takes any number of answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from unsoftmax.errors import NotIdentifiable
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.settings import Configured
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Sequences
from unsoftmax.protocol import Certificate, Evidence, Found, Plan, Steps
from unsoftmax.questions.defence.pair_fit import PairFit, PairFitTuning, PairParameters
from unsoftmax.questions.defence.sequence_fit import (
    SequenceAnswers,
    derivatives,
    most_telling,
)


@dataclass(frozen=True, slots=True)
class FittedHeadTuning:
    """Knobs of what is asked, and of the fit."""

    tokens: int = 5
    """Of a sequence. Measured with d = 8: those of 2 leave twice the error, of 16 a tenth less."""
    shares: tuple[float, float] = (0.1, 0.6)
    """Query tokens have lengths from this share to that of the longest; the others are that long.
    Where logits are large, only answers to short ones tell anything."""
    candidate_shares: tuple[float, float] = (0.1, 1.0)
    """The same of sequences of which the most telling are asked."""
    singles: int = 2
    """Single tokens per value of v and c."""
    opening: float = 0.4
    """Share of the questions that are random."""
    least_opening: float = 2.0
    """But so many per parameter: what tells most is not known from a worse fit."""
    candidates: int = 8
    """Random sequences of which one is chosen."""
    work: float = 1e10
    """Candidates times parameters squared at most: about a second a round."""
    derivatives: float = 2e7
    """Candidates times parameters at most: what is in memory at once."""
    rounds: int = 3
    """Of the weights that candidates are chosen by."""
    starts: int = 4
    """First fits at most; the one that misses least is gone on with."""
    start_work: float = 1e9
    """But one alone where answers times parameters squared are more: beyond about 17 dimensions."""
    agreed: float = 1.01
    """There is no other start once two fits miss the same, but for this factor."""
    logit: float = 1.0
    """Typical size of the logits at which all but the first start."""
    fit: PairFitTuning = field(default=PairFitTuning())


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
    tuning: FittedHeadTuning = field(default=FittedHeadTuning(), kw_only=True)

    revision: ClassVar[int] = 2

    def plan(self) -> Plan:
        """Say beforehand what it costs."""
        return Plan(
            queries=int(self.queries),
            at_most=int(self.queries),
            tokens=self.tuning.tokens * int(self.queries),
            rounds=2,
            formula="as given",
            longest_token=float(self.radius) * (1 + 1e-12),
            most_tokens=self.tuning.tokens,
        )

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; nothing is certified, and nothing checked."""
        rng, of, tuning = np.random.default_rng(self.seed), self._parameters, self.tuning
        single = min(tuning.singles * (int(self.dim) + 1), max(1, int(self.queries) // 4))
        rest = int(self.queries) - single
        opening = max(tuning.opening * rest, tuning.least_opening * of.size)
        x, X = (
            self._tokens(rng, single),
            self._sequences(rng, min(rest, int(opening)), tuning.shares),
        )
        of_x, y = yield [
            Sequences(x[:, None], phase="single tokens", purpose="data"),
            Sequences(X, phase="sequences", purpose="data"),
        ]
        columns = np.column_stack([x, np.ones(single)]) if self.biases else x
        straight = np.asarray(np.linalg.lstsq(columns, of_x)[0], dtype=np.float64)
        if not np.any(straight[: self.dim]):
            raise NotIdentifiable("Answers to single tokens are all alike.", determined={})
        # a single token is a sequence of copies
        copies = np.repeat(x[:, None], tuning.tokens, axis=1)
        asked = SequenceAnswers(X, y).joined(SequenceAnswers(copies, of_x))
        theta = self._opened(straight, asked, rng)
        if rest > len(X):
            theta = yield from self._refined(theta, asked, rest - len(X), rng)
        return unproved(SingleHead(*of.parts(theta)))

    @property
    def _parameters(self) -> PairParameters:
        return PairParameters(int(self.dim), bool(self.biases))

    def _opened(self, straight: Array, asked: SequenceAnswers, rng: np.random.Generator) -> Array:
        """Fit from several starts; return the fit that misses least."""
        of, d = self._parameters, int(self.dim)
        fit = PairFit(of, self.tuning.fit)
        size, found = self.tuning.logit * d**0.5 / self.radius**2, []
        alone = len(asked.y) * of.size**2 > self.tuning.start_work
        for k in range(1 if alone else self.tuning.starts):
            start = np.zeros(of.size)
            start[: len(straight)] = straight
            start[of.size - d * d :] = size * rng.standard_normal(d * d) * (k > 0)
            theta = fit.fitted(start, asked)
            found.append((fit.misfit(theta, asked), k, theta))
            found.sort()
            if k and found[1][0] <= self.tuning.agreed * found[0][0]:
                break
        return found[0][2]

    def _refined(
        self, theta: Array, asked: SequenceAnswers, count: int, rng: np.random.Generator
    ) -> Asking[Array]:
        """Ask what tells most, and fit it with all else."""
        of, tuning = self._parameters, self.tuning
        afford = min(tuning.work / of.size**2, tuning.derivatives / of.size)
        many = max(count, min(tuning.candidates * count, int(afford)))
        X = self._sequences(rng, many, tuning.candidate_shares)
        if many > count:
            known = sum(J.T @ J for J, _ in asked.linear(theta, of, tuning.fit.block))
            J, _ = derivatives(theta, of, X)
            X = X[most_telling(J, np.asarray(known), count, tuning.rounds)]
        [y] = yield [Sequences(X, phase="most telling sequences", purpose="data")]
        # the first of all are fitted alone at first: these tell more
        return PairFit(of, tuning.fit).fitted(theta, SequenceAnswers(X, y).joined(asked))

    def _tokens(self, rng: np.random.Generator, *count: int) -> Array:
        x = rng.standard_normal((*count, int(self.dim)))
        return np.asarray(x * (self.radius / np.linalg.norm(x, axis=-1, keepdims=True)))

    def _sequences(
        self, rng: np.random.Generator, count: int, shares: tuple[float, float]
    ) -> Array:
        X = self._tokens(rng, count, self.tuning.tokens)
        X[:, -1] *= rng.uniform(*shares, (count, 1))
        return X


def unproved(head: SingleHead) -> Found[SingleHead]:
    """Return what an attack found, which neither bounds its errors nor asks a hold-out."""
    errors = dict.fromkeys("Wvwc", np.inf)
    evidence = Evidence.of(0, np.empty(0), np.empty(0))
    return Found(head, Certificate(errors, ("Nothing bounds the errors.",)), evidence)
