"""A layer as its answers give it, with what errors of these do to it.

Everything that is computed from answers is computed again from the same answers with errors drawn
as large as theirs may be (decision 20 does the same for several heads): how far maps, scores and
predictions move is what is certified, a safety factor apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.attention_layer.copied_answers import SoftGates
from unsoftmax.learners.attention_layer.key_answers import HeadScores
from unsoftmax.learners.attention_layer.range_fit import fitted_maps
from unsoftmax.learners.attention_layer.score_reading import ScoreAnswers
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap, ValueAnswers
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.models import AttentionLayer, LayerHead
from unsoftmax.validate.conclude import Said
from unsoftmax.validate.drawn_models import DRAWN, DrawnModels

SAID = Said(
    "layer of softmax attention with scores x·(W x_N + w)",
    "a window, positions, a nonlinearity in the values, a second layer",
)


@dataclass(frozen=True, slots=True)
class RecoveredLayer:
    """c, every M_h and every [W_h w_h]."""

    layer: LayerMap
    values: HeadMaps
    scores: HeadScores

    def heads(self) -> list[LayerHead]:
        """Return its heads, in factors."""
        return [
            LayerHead.from_factors(O=U, V=V, K=C.T, Q=R[:, :-1], w=C @ R[:, -1])
            for U, V, C, R in zip(
                self.values.U, self.values.V, self.scores.C, self.scores.R, strict=True
            )
        ]

    def model(self) -> AttentionLayer:
        """Return it as a model."""
        return AttentionLayer(self.heads(), self.layer.c, residual=self.layer.residual)


@dataclass(frozen=True, slots=True)
class LayerAnswers:
    """All answers that a layer is computed from."""

    values: ValueAnswers | SoftGates
    scores: ScoreAnswers
    fitted: AnswerNoise | None = None
    """Of maps that all answers are fitted by, what those are off by."""

    def maps(self) -> tuple[LayerMap, HeadMaps]:
        """Compute c and M, and every M_h."""
        layer = self.values.layer()
        values = self.scores.first.closed(layer, self.values.solved())
        if self.fitted is None or not isinstance(self.values, ValueAnswers):
            return layer, values
        keyed = self.scores.first, self.scores.further
        return fitted_maps(layer, values, self.values, keyed, self.fitted)

    def solved(self) -> RecoveredLayer:
        """Compute the layer."""
        layer, values = self.maps()
        return RecoveredLayer(layer, values, self.scores.solved(layer, values))

    def sampled(self, noise: AnswerNoise, rng: np.random.Generator) -> RecoveredLayer:
        """Compute it from answers with errors drawn as large as theirs may be."""
        return self.with_errors(noise, rng).solved()

    def with_errors(self, noise: AnswerNoise, rng: np.random.Generator) -> LayerAnswers:
        """Return the same answers, with errors drawn as large as theirs may be."""
        values = self.values.with_errors(noise, rng)
        return replace(self, values=values, scores=self.scores.with_errors(noise, rng))

    def drawn(
        self, noise: AnswerNoise, rng: np.random.Generator, **least: float
    ) -> DrawnModels[AttentionLayer]:
        """Compute it, and again from answers with such errors.

        Raises
        ------
        ModelMismatch
            Errors as large as those of the answers leave no layer.
        """
        others = [self.sampled(noise, rng) for _ in range(DRAWN)]
        if not all(np.isfinite(R).all() for one in others for R in one.scores.R):
            raise negative_weights(noise, len(others[0].values.U))
        models = [one.model() for one in others]
        return DrawnModels(self.solved().model(), models, noise, **least)


def negative_weights(noise: AnswerNoise, heads: int) -> ModelMismatch:
    """Return the refusal of answers whose errors leave weights no logits."""
    return ModelMismatch(
        f"Answers are off by {noise.relative:.1e} of their norm, and errors of that size make "
        f"weights of the {heads} heads negative: answers are too coarse for this layer. "
        'profile="finest" asks more.'
    )
