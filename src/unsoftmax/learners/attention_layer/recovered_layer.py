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
from unsoftmax.models.products import Product
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class RecoveredLayer:
    """c, every M_h and every [W_h w_h]."""

    layer: LayerMap
    values: HeadMaps
    scores: HeadScores

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.layer.M.shape[1])

    def scores_of(self, queries: Array) -> Array:
        """Map query tokens (B, d) to all heads' vectors W_h x + w_h, (B, H, d)."""
        return np.stack([self.scores.vectors(h, queries) for h in range(len(self.scores.C))], 1)

    def model(self) -> AttentionLayer:
        """Return it as a model, in factors."""
        heads = [
            LayerHead.from_factors(O=U, V=V, K=C.T, Q=R[:, :-1], w=C @ R[:, -1])
            for U, V, C, R in zip(
                self.values.U, self.values.V, self.scores.C, self.scores.R, strict=True
            )
        ]
        return AttentionLayer(heads, self.layer.c, residual=self.layer.residual)

    def distances(self, other: RecoveredLayer) -> dict[str, float]:
        """Return how far the parameters of another recovery are, the largest over heads."""
        far = [
            [(M - N).norm, _columns(A - B, slice(-1)), _columns(A - B, slice(-1, None))]
            for (M, A), (N, B) in zip(self._products(), other._products(), strict=True)
        ]
        M, W, w = np.max(far, axis=0).tolist()
        return {"c": float(np.linalg.norm(self.layer.c - other.layer.c)), "M": M, "W": W, "w": w}

    def _products(self) -> list[tuple[Product, Product]]:
        """Return every head's M and [W w], in factors."""
        values, scores = self.values, self.scores
        heads = zip(values.U, values.V, scores.C, scores.R, strict=True)
        return [(Product(U, V), Product(C, R)) for U, V, C, R in heads]


def _columns(matrix: Product, which: slice) -> float:
    """Return the norm of some columns."""
    return Product(matrix.left, matrix.right[:, which]).norm


@dataclass(frozen=True, slots=True)
class LayerAnswers:
    """All answers that a layer is computed from."""

    values: ValueAnswers | SoftGates
    scores: ScoreAnswers
    fitted: AnswerNoise | None = None
    """Of maps that all answers are fitted by, what those are off by."""

    def maps(self) -> tuple[LayerMap, HeadMaps]:
        """Compute c and M, and every M_h."""
        layer, values = self.values.layer(), self.values.solved()
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
        values = self.values.with_errors(noise, rng)
        return replace(self, values=values, scores=self.scores.with_errors(noise, rng)).solved()

    def samples(
        self, noise: AnswerNoise, rng: np.random.Generator, count: int
    ) -> list[RecoveredLayer]:
        """Compute it so often from such answers.

        Raises
        ------
        ModelMismatch
            Errors as large as those of the answers leave no layer.
        """
        drawn = [self.sampled(noise, rng) for _ in range(count)]
        if not all(np.isfinite(R).all() for one in drawn for R in one.scores.R):
            raise negative_weights(noise, len(drawn[0].values.U))
        return drawn


def negative_weights(noise: AnswerNoise, heads: int) -> ModelMismatch:
    """Return the refusal of answers whose errors leave weights no logits."""
    return ModelMismatch(
        f"Answers are off by {noise.relative:.1e} of their norm, and errors of that size make "
        f"weights of the {heads} heads negative: answers are too coarse for this layer. "
        'profile="finest" asks more.'
    )
