"""Logits of tokens that are farther from the query token: zero tokens in between.

With offsets that are far longer than query tokens, [αa; 0 … 0; βb] with m zeros has the scores
t = αβ a·(W(m+1) b), and 0 for all others but for β/α of it. So the first weight is

    p = e^t/(e^t + 1 + m),      t = log p − log(1 − p) + log(1 + m),

and what p is read from is the two-token identity. *Queries*: one per logit.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.measure.reading import Reading
from unsoftmax.measure.single_tokens import Values
from unsoftmax.measure.two_tokens import TwoTokenAnswers, Vectors
from unsoftmax.probes import Array, Grid, Round, Spaced
from unsoftmax.protocol import Answers


@dataclass(frozen=True, slots=True)
class SpacedAnswers:
    """Answers to every offset with every query token, ``zeros`` tokens apart."""

    offsets: Array
    """a, (n, d)."""
    queries: Array
    """b, (m, d)."""
    alpha: float
    beta: float
    zeros: int
    y: Array
    """(query tokens, offsets)."""

    def _answered(self, values: Values) -> TwoTokenAnswers:
        a, b = Vectors.of(self.offsets, values), Vectors.of(self.queries, values)
        alpha, beta = np.full_like(self.y, self.alpha), np.full_like(self.y, self.beta)
        return TwoTokenAnswers(self.y, a, b.take((slice(None), None)), alpha, beta, values)

    @property
    def _shift(self) -> float:
        """What the zeros take off every logit, per α."""
        return float(-np.log1p(self.zeros) / self.alpha)

    def measured(self, values: Values) -> Array:
        """Return a·(W(m+1) b), (query tokens, offsets)."""
        return self._answered(values).measured(self._shift)

    def moved(self, rng: np.random.Generator, values: Values, score_norm: float) -> SpacedAnswers:
        """Return answers moved by about as much as they are off."""
        norms = np.full((len(self.queries), 1), score_norm)
        return replace(self, y=self._answered(values).moved(rng, norms))

    def reading(self, values: Values, score_norm: float, stretch: float) -> Reading:
        """Return them with their errors; see `TwoTokenAnswers.reading`."""
        norms = np.full((len(self.queries), 1), score_norm)
        return self._answered(values).reading(norms, stretch, self._shift)


def ask_spaced(
    offsets: Array, queries: Array, scales: tuple[float, float], zeros: int, phase: str
) -> Generator[Round, Answers, SpacedAnswers]:
    """Ask every offset with every query token once, at the scales α and β."""
    alpha, beta = (np.full(len(queries), scale) for scale in scales)
    grid = Grid(offsets, queries, alpha, beta, phase=phase, purpose="data")
    [y] = yield [Spaced.of(grid, zeros)]
    return SpacedAnswers(offsets, queries, *scales, zeros, grid.table(y))
