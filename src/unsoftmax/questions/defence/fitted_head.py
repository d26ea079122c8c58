"""An attack: the head that fits coarse answers best, with biases or without.

Answers to random tokens and pairs of tokens, none longer than ``radius``, are fitted by least
squares (`pair_fit`): v and c from single tokens, f([x]) = x·v + c, then everything from pairs,
beginning with W = 0. Beside errors that are independent from answer to answer, as noise is and
rounding nearly, it is about as precise as so many answers allow, and takes any number of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from unsoftmax.errors import NotIdentifiable
from unsoftmax.learners.settings import Configured
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Sequences
from unsoftmax.protocol import Certificate, Evidence, Found, Plan, Steps
from unsoftmax.questions.defence.pair_fit import PairAnswers, PairFit, PairFitTuning, PairParameters


@dataclass(frozen=True, slots=True)
class FittedHeadTuning:
    """Knobs of what is asked, and of the fit."""

    singles: float = 0.125
    """Share of the questions that are single tokens."""
    shortest: float = 0.25
    """Lengths of tokens are drawn from this share of the longest on."""
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
        columns = np.column_stack([x, np.ones(single)]) if self.biases else x
        straight = np.linalg.lstsq(columns, of_x)[0]
        if not np.any(straight[: self.dim]):
            raise NotIdentifiable("Answers to single tokens are all alike.", determined={})
        of = PairParameters(int(self.dim), bool(self.biases))
        start = np.zeros(of.size)
        start[: len(straight)] = straight
        answered = PairAnswers(pairs[:, 0] - pairs[:, 1], pairs[:, 1], y)
        head = SingleHead(*of.parts(PairFit(of, self.tuning.fit).fitted(start, answered)))
        return unproved(head)

    def _tokens(self, count: int, rng: np.random.Generator) -> Array:
        x = rng.standard_normal((count, self.dim))
        x *= self.radius / np.linalg.norm(x, axis=1, keepdims=True)
        return x * rng.uniform(self.tuning.shortest, 1, (count, 1))


def unproved(head: SingleHead) -> Found[SingleHead]:
    """Return what an attack found, which neither bounds its errors nor asks a hold-out."""
    errors = dict.fromkeys("Wvwc", np.inf)
    evidence = Evidence.of(0, np.empty(0), np.empty(0))
    return Found(head, Certificate(errors, ("Nothing bounds the errors.",)), evidence)
