"""An attack's way with noise: ask every question several times, and learn from the means."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic

import numpy as np

from unsoftmax.learners.compose import mapped
from unsoftmax.learners.settings import Configured
from unsoftmax.probes import Round
from unsoftmax.protocol import Answers, Found, Learner, M, Outputs, Plan, outputs_of


@dataclass(frozen=True)  # dim is a property here, which a slotted class does not protect
class AveragedAnswers(Configured, Generic[M]):
    """Let another learner learn from means of so many answers to each question.

    Noise of deviation σ, fresh for every answer, becomes one of σ/√times; rounding stays.
    """

    of: Learner[M]
    times: int

    revision: ClassVar[int] = 1

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.of.dim)

    @property
    def outputs(self) -> Outputs:  # type: ignore[override]
        """What a sequence is answered with, as the learner takes it."""
        return outputs_of(self.of)

    def plan(self) -> Plan:
        """Say beforehand what it costs."""
        one, times = self.of.plan(), int(self.times)
        return replace(
            one,
            queries=None if one.queries is None else times * one.queries,
            at_most=times * one.at_most,
            tokens=times * one.tokens,
            formula=f"{times}·({one.formula})",
        )

    def steps(self, checks: int) -> Generator[Round, Answers, Found[M]]:
        """Ask, and return what the learner found."""

        def again(asked: Round) -> Round:
            return [probes for probes in asked for _ in range(self.times)]

        def means(answers: Answers) -> Answers:
            starts: Any = range(0, len(answers), self.times)
            return [np.mean(answers[k : k + self.times], axis=0) for k in starts]

        return mapped(self.of.steps(checks // self.times), ask=again, answer=means)
