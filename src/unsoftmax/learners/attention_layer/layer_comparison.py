"""Comparing a recovered layer with fresh answers, by norms of whole answers.

A fresh answer y may be off the prediction by errors of its own (rounding of the answer, and of the
scores inside) and by what errors of the parameters do. The second is seen on samples: layers that
were computed from the same answers with errors drawn at random. They predict each fresh sequence
as well, so that errors that cancel in answers are not added up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from unsoftmax.learners.attention_layer.attention_layer_tuning import AttentionLayerTuning
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.models import AttentionLayer
from unsoftmax.probes import Array
from unsoftmax.validate.close_heads import nearest
from unsoftmax.validate.judge import Answered, Judgement, Residuals, judge

Predicts: TypeAlias = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class LayerComparison:
    """A recovered layer beside its samples.

    Attributes
    ----------
    predict : callable
        The layer, from (B, N, d) to (B, m).
    samples : sequence of callable
        Layers with errors drawn at random.
    rounding : callable
        What the rounding of scores inside the target moves answers by, (B,), with so many roundoffs
        as ``tuning.roundoffs``.
    constant : float
        ‖c‖.
    gain : float
        How long a token of length 1 is on average when it is mapped.
    noise : AnswerNoise
        What answers are off by.
    tuning : AttentionLayerTuning
        Knobs.
    """

    predict: Predicts
    samples: Sequence[Predicts]
    rounding: Predicts
    constant: float
    gain: float
    noise: AnswerNoise
    tuning: AttentionLayerTuning

    def judged(self, answered: Sequence[Answered], queries: int) -> Judgement:
        """Judge fresh answers, to ``queries`` that a hold-out has."""
        return judge([self._residuals(X, y) for X, y in answered if len(X)], queries)

    def strain(self, answered: Sequence[Answered]) -> float:
        """Return the largest miss, in multiples of one error of the parameters and the noise."""
        strains = [self._strained(X, y) for X, y in answered if len(X)]
        return max(strains, default=0.0)

    def _residuals(self, X: Array, y: Array) -> Residuals:
        """Compare norms: what answers miss, and may miss."""
        tuning, predicted = self.tuning, self.predict(X)
        length = np.linalg.norm(X, axis=2).max(axis=1)
        size = self.constant + length * self.gain
        own = self.rounding(X) + self.noise.absolute
        own = own + tuning.roundoffs * self.noise.relative * np.maximum(
            size, np.linalg.norm(y, axis=1)
        )
        return Residuals.of(
            np.linalg.norm(y - predicted, axis=1),
            own=own,
            allowed=tuning.fresh_safety * self._moved(X, predicted),
            size=size,
            most=max(min(tuning.most, tuning.most_noise * self.noise.relative), tuning.least_most),
        )

    def _moved(self, X: Array, predicted: Array) -> Array:
        """Return the most that drawn errors move a prediction by."""
        moved = [np.linalg.norm(one(X) - predicted, axis=1) for one in self.samples]
        return np.asarray(np.max(moved, axis=0))

    def _strained(self, X: Array, y: Array) -> float:
        predicted = self.predict(X)
        typical = self.noise.of(y) + self.rounding(X) / self.tuning.roundoffs
        missed = np.linalg.norm(y - predicted, axis=1)
        return float(np.max(missed / (typical + self._moved(X, predicted))))


def invisible_share(noise: AnswerNoise, tuning: AttentionLayerTuning) -> float:
    """Return up to which share of the others' a head's values are not told from errors."""
    return max(tuning.rank_noise * noise.relative, tuning.rank_share)


def layer_heads_apart(model: AttentionLayer, tokens: int = 32) -> float:
    """Estimate the smallest distance between two heads' [W w], to a fifth, without forming W.

    W x + w of two heads differ by ‖[ΔW Δw]‖ in the root mean square of Gaussian x.
    """
    x = np.random.default_rng(0).standard_normal((tokens, model.dim))
    rows = [head.vectors(x).ravel() / np.sqrt(tokens) for head in model.heads]
    return nearest(np.reshape(rows, (len(rows), tokens * model.dim)))
