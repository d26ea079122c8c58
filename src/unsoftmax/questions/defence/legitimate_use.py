"""What legitimate clients ask, and what a defence costs them.

The loss of utility is the root mean square of what defended answers differ by from undefended
ones, in units of the undefended answers' spread (their standard deviation): 0 where nothing is
lost, 1 where a client may as well take the mean answer. A sequence that is refused counts as
answered with that mean; a label as the mean of the answers that have it. Of vectors the root mean
square is over all their numbers, as is the spread: every number has a mean of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from unsoftmax.errors import NotIdentifiable, OracleError
from unsoftmax.probes import Array
from unsoftmax.protocol import Oracle
from unsoftmax.questions.defence.defence_ladder import Measures
from unsoftmax.validate.function_bound import Sampler, Sampling


@dataclass(frozen=True, slots=True)
class StandardNormal:
    """Sequences of standard normal tokens, of random length: the default sampler."""

    dim: int
    tokens: tuple[int, int]

    def __call__(self, rng: np.random.Generator) -> Array:
        """Draw one sequence (N, d)."""
        fewest, most = self.tokens
        return rng.standard_normal((int(rng.integers(fewest, most + 1)), self.dim))


class Loss(NamedTuple):
    """What a defence costs legitimate clients."""

    loss: float | None
    """As this module says; None for a budget, where nobody said how much clients ask."""
    refused: float | None
    """Share of legitimate questions that get no answer."""


@dataclass(frozen=True, slots=True)
class LegitimateUse:
    """Legitimate sequences with their undefended answers."""

    sequences: tuple[Array, ...]
    answers: Array
    """(n,), or (n, m) of vectors."""
    needs: int | None
    """How many queries a legitimate client asks."""

    @classmethod
    def drawn(
        cls, model: Any, sampler: Sampler, needs: int | None, seed: int, sequences: int
    ) -> LegitimateUse:
        """Draw so many sequences, and let the model answer them.

        Raises
        ------
        NotIdentifiable
            All answers are equal.
        """
        rng = np.random.default_rng([seed, 83])  # a stream of its own
        sampling = Sampling(sampler, eps=0.5, delta=0.5)
        drawn = tuple(sampling.drawn(int(model.dim), rng) for _ in range(sequences))
        use = cls(drawn, _answers(model, drawn), needs)
        if not use.spread > np.finfo(np.float64).eps * float(np.max(np.abs(use.answers))):
            raise NotIdentifiable(
                "All legitimate sequences get the same answer: there is nothing to defend, and "
                "no loss can be measured. A sampler may draw others.",
                determined={},
            )
        return use

    @property
    def mean(self) -> float:
        """Mean undefended answer."""
        return float(np.mean(self.answers))

    @property
    def spread(self) -> float:
        """Standard deviation of undefended answers."""
        return float(np.sqrt(np.mean(np.var(self.answers, axis=0))))

    @property
    def longest(self) -> float:
        """Norm of the longest token."""
        return max(float(np.linalg.norm(X, axis=1).max()) for X in self.sequences)

    def loss(self, measures: Measures, oracle: Oracle) -> Loss:
        """Measure what a defence costs; ``oracle`` is the defended one."""
        if measures.queries is not None:
            if self.needs is None:
                return Loss(None, None)
            short = max(0.0, 1 - measures.queries / self.needs)
            return Loss(float(np.sqrt(short)), short)
        defended, asked = np.empty_like(self.answers), 0
        defended[:] = np.mean(self.answers, axis=0)
        for k, X in enumerate(self.sequences):
            try:
                [defended[k]] = oracle(X[None])
            except OracleError:  # refused
                continue
            asked += 1
        if measures.labels:
            for label in (0.0, 1.0):
                alike = defended == label
                defended[alike] = np.mean(self.answers[alike]) if np.any(alike) else 0.0
        missed = float(np.sqrt(np.mean((defended - self.answers) ** 2)))
        return Loss(missed / self.spread, 1 - asked / len(self.answers))

    def error_of(self, model: Callable[[Array], Array], up_to_scale: bool) -> float:
        """Return how far a model is from the answers, as the loss is measured."""
        found = _answers(model, self.sequences)
        if up_to_scale and (size := float(found @ found)) > 0:
            found = found * float(found @ self.answers) / size
        return float(np.sqrt(np.mean((found - self.answers) ** 2))) / self.spread


def _answers(model: Callable[[Array], Array], sequences: tuple[Array, ...]) -> Array:
    """Ask all sequences, those of one length together."""
    lengths = np.array([len(X) for X in sequences])
    found = [np.nonzero(lengths == length)[0] for length in np.unique(lengths)]
    answers = [model(np.array([sequences[k] for k in alike])) for alike in found]
    return np.asarray(np.concatenate(answers)[np.argsort(np.concatenate(found), kind="stable")])
