"""What a service does to questions and answers, and what that costs legitimate clients.

A defence is a set of `Measures`, the wrappers of `oracles.defences`; combinations need no code of
their own.

The loss of utility is the root mean square of what defended answers differ by from undefended
ones, in units of the undefended answers' spread (their standard deviation): 0 where nothing is
lost, 1 where a client may as well take the mean answer. A sequence that is refused counts as
answered with that mean; a label as the mean of the answers that have it. Of vectors the root mean
square is over all their numbers, as is the spread: every number has a mean of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from unsoftmax import oracles
from unsoftmax.errors import OracleError
from unsoftmax.probes import Array
from unsoftmax.protocol import Oracle
from unsoftmax.refusals import Reason
from unsoftmax.validate.function_bound import Sampler, Sampling


@dataclass(frozen=True, slots=True)
class Measures:
    """What a service does to questions and answers; a client may know all of it."""

    clip: tuple[float, float] | None = None
    """Answers below and above are moved to these."""
    noise: float = 0.0
    """Standard deviation of what is added to every answer, afresh."""
    decimals: int | None = None
    """Places that answers are rounded to."""
    labels: bool = False
    """Only whether an answer is positive is told."""
    radius: float | None = None
    """Sequences with a longer token are refused."""
    queries: int | None = None
    """A client is answered so many."""

    @property
    def step(self) -> float:
        """Distance of two rounded answers; 0 where they are not rounded."""
        return 0.0 if self.decimals is None else 10.0**-self.decimals

    def _parts(self, seed: int = 0) -> Iterator[tuple[str, str, Callable[[Oracle], Oracle]]]:
        """Yield each measure for a table, as what an owner would do, and as a wrapper."""
        if self.clip is not None:
            (low, high), span = self.clip, "{:.3g} … {:.3g}".format(*self.clip)
            clipped = partial(oracles.clipped, low=low, high=high)
            yield f"clip {span}", f"clip answers to {span}", clipped
        if size := self.noise:
            noisy = partial(oracles.noisy, scale=size, seed=seed)
            yield f"noise {size:.2g}", f"add Gaussian noise (s.d. {size:.2g}) to answers", noisy
        if self.decimals is not None:
            step, rounded = f"{self.step:g}", partial(oracles.rounded, decimals=self.decimals)
            yield f"round to {step}", f"round answers to multiples of {step}", rounded
        if self.labels:
            yield "labels only", "tell only whether an answer is positive", oracles.labels
        if self.radius is not None:
            longest, capped = f"{self.radius:.3g}", partial(oracles.norm_capped, radius=self.radius)
            yield (
                f"tokens ≤ {longest}",
                f"reject inputs whose vectors have norm above {longest}",
                capped,
            )
        if self.queries is not None:  # a budget is kept by whoever counts
            count = f"{self.queries:,} queries"
            yield count, f"answer {count} per client", lambda oracle: oracle

    def no_stronger_than(self, other: Measures) -> bool:
        """Whether a client can make of these answers what ``other`` answers: it cannot be worse.

        By more noise, coarser rounding or narrower clipping of its own, shorter tokens, and fewer
        questions. Labels are told nowhere else.
        """

        def at_most(mine: float | None, its: float | None) -> bool:
            return mine is None or (its is not None and mine >= its)

        low, high = self.clip or (-np.inf, np.inf)
        its_low, its_high = other.clip or (-np.inf, np.inf)
        return (
            self.labels == other.labels
            and self.noise <= other.noise
            and (low <= its_low and its_high <= high)
            and at_most(self.decimals, other.decimals)
            and at_most(self.radius, other.radius)
            and at_most(self.queries, other.queries)
        )

    def around(self, oracle: Oracle, seed: int) -> Oracle:
        """Wrap an oracle."""
        for _, _, wrapped in self._parts(seed):
            oracle = wrapped(oracle)
        return oracle

    @property
    def brief(self) -> str:
        """Say it in as few words as a table has room for."""
        return ", ".join(brief for brief, _, _ in self._parts()) or "nothing"

    def __str__(self) -> str:
        """Say it as what an owner would do."""
        return " and ".join(words for _, words, _ in self._parts()) or "do nothing"


def standard_normal(dim: int, fewest: int, most: int) -> Sampler:
    """Return what draws standard normal tokens, so many: the default sampler."""
    return lambda rng: rng.standard_normal((int(rng.integers(fewest, most + 1)), dim))


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
    mean: float
    """Mean undefended answer."""
    spread: float
    """Standard deviation of undefended answers."""
    longest: float
    """Norm of the longest token."""

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
        drawn = tuple(sampling.drawn(model.dim, rng) for _ in range(sequences))
        answers = _answers(model, drawn)
        spread = float(np.sqrt(np.mean(np.var(answers, axis=0))))
        if not spread > np.finfo(np.float64).eps * float(np.max(np.abs(answers))):
            raise Reason.USE_IS_CONSTANT.error()
        longest = max(float(np.linalg.norm(X, axis=1).max()) for X in drawn)
        return cls(drawn, answers, needs, float(np.mean(answers)), spread, longest)

    def loss(self, measures: Measures, oracle: Oracle) -> Loss:
        """Measure what a defence costs; ``oracle`` is the defended one."""
        if measures.queries is not None:
            if self.needs is None:
                return Loss(None, None)
            short = max(0.0, 1 - measures.queries / self.needs)
            return Loss(float(np.sqrt(short)), short)
        defended, asked = np.full_like(self.answers, np.mean(self.answers, axis=0)), 0
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
        """Return how far a model is from the answers, as the loss is measured.

        What labels tell is right ``up_to_scale``: by the factor that fits best.
        """
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
