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
from unsoftmax.learners.attention_layer.group_scores import GroupAnswers, GroupHeads
from unsoftmax.learners.attention_layer.key_answers import HeadScores
from unsoftmax.learners.attention_layer.norm_behind import EpsAnswers
from unsoftmax.learners.attention_layer.range_fit import fitted_maps
from unsoftmax.learners.attention_layer.readout import DirectionMap
from unsoftmax.learners.attention_layer.score_reading import ScoreAnswers
from unsoftmax.learners.attention_layer.value_answers import (
    Groups,
    HeadMaps,
    LayerMap,
    ValueAnswers,
    shared_rows,
)
from unsoftmax.measure.token_map import AnswerNoise, with_errors
from unsoftmax.models import AttentionLayer, LayerHead, LayerNorm
from unsoftmax.models.rotary_layer import FARTHEST_BOUNDED, RotaryLayer
from unsoftmax.validate.conclude import Said
from unsoftmax.validate.drawn_models import DRAWN, DrawnModels
from unsoftmax.validate.layer_sequences import Layer


@dataclass(frozen=True, slots=True)
class RecoveredLayer:
    """c, every M_h and what every head scores."""

    layer: LayerMap
    values: HeadMaps
    scores: HeadScores | GroupHeads
    groups: Groups
    eps: tuple[float, float]
    """Of a norm behind, and about what it is off by."""

    def model(self, moved: float = 0.0) -> Layer:
        """Return it as a model, eps ``moved`` so many times by what it is off by."""
        layer, (eps, off) = self.layer, self.eps
        if isinstance(self.scores, GroupHeads):
            return self._rotary(self.scores)
        c, norm = layer.outputs(layer.c[:, None])[:, 0], None
        if isinstance(layer, DirectionMap):
            scale, eps = 1 / layer.norm.gain, max(0.0, eps + moved * off)
            norm = LayerNorm(scale, layer.norm.shift, eps, centred=layer.norm.takes_mean)
        return AttentionLayer(self._heads(self.scores), c, layer.residual, norm)

    def _heads(self, scores: HeadScores) -> list[LayerHead]:
        """Return its heads, in factors."""
        each = zip(self.values.U, self.values.V, scores.C, scores.R, strict=True)
        return [
            LayerHead.from_factors(O=self.layer.outputs(U), V=V, K=C.T, Q=R[:, :-1], w=C @ R[:, -1])
            for U, V, C, R in each
        ]

    def _rotary(self, heads: GroupHeads) -> RotaryLayer:
        """Return a layer with positions, one V of each group."""
        s, (H, _, d) = max(self.values.ranks), heads.Q.shape
        O, V = np.zeros((H, len(self.layer.c), s)), np.zeros((len(self.groups), s, d))  # noqa: E741
        places = np.zeros(H)
        for g, group in enumerate(self.groups):
            shared = shared_rows(self.values, group)
            V[g, : len(shared)] = shared
            for h in group:
                O[h] = self.values.U[h] @ (self.values.V[h] @ V[g].T)
                places[h] = g
        return RotaryLayer(
            O,
            V,
            heads.K,
            heads.Q,
            self.layer.c,
            heads.rotary,
            k_bias=heads.k_bias,
            q_bias=heads.q_bias,
            groups=places,
            residual=self.layer.residual,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAnswers:
    """All answers that a layer is computed from."""

    eps: EpsAnswers | None = None
    """Of a norm behind."""
    values: ValueAnswers | SoftGates
    scores: ScoreAnswers | GroupAnswers
    fitted: AnswerNoise | None = None
    """Of maps that all answers are fitted by, what those are off by."""

    def maps(self) -> tuple[LayerMap, HeadMaps]:
        """Compute c and M, and every M_h."""
        layer, scores = self.values.layer(), self.scores
        values = scores.first.closed(layer, self.values.solved())
        if self.fitted is None:
            return layer, values
        assert isinstance(self.values, ValueAnswers)
        assert isinstance(scores, ScoreAnswers)
        keyed = scores.first, scores.further
        return fitted_maps(layer, values, self.values, keyed, self.fitted)

    def solved(self) -> RecoveredLayer:
        """Compute the layer."""
        layer, values = self.maps()
        groups = self.scores.groups if isinstance(self.scores, GroupAnswers) else ()
        eps = (0.0, 0.0)
        if self.eps is not None:
            assert isinstance(layer, DirectionMap)
            eps = self.eps.solved(layer)
        return RecoveredLayer(layer, values, self.scores.solved(layer, values), groups, eps)

    def drawn(
        self, noise: AnswerNoise, rng: np.random.Generator, **least: float
    ) -> DrawnModels[Layer]:
        """Compute it, and again from answers with such errors.

        Raises
        ------
        ModelMismatch
            Errors as large as those of the answers leave no layer.
        """
        found = self.solved()
        others = [with_errors(self, noise, rng).solved() for _ in range(DRAWN)]
        if not all(np.isfinite(x).all() for one in others for x in one.scores.arrays):
            raise ModelMismatch(
                f"The answers are too coarse for this layer: errors of {noise.relative:.1e} of "
                f"their norm make attention weights of the {len(found.values.U)} heads negative. "
                'profile="finest" asks more.'
            )
        # eps up and down by twice what it is off by as a rule: a draw may be small, none is below
        # 0, and behind six decimals 3 of 66 eps were off by more than is certified of that
        off = found.eps[1]
        others = [replace(one, eps=(one.eps[0], off)) for one in others]
        models = [one.model(moved=2.0 * (-1) ** (k + 1)) for k, one in enumerate(others)]
        return DrawnModels(found.model(), models, noise, **least)


def said_of(model: Layer) -> Said:
    """Say what is taken for granted of a layer."""
    kind, otherwise = "layer of softmax attention", "a nonlinearity in the values, a second layer"
    if not isinstance(model, RotaryLayer):
        if model.norm is None:
            return Said(f"{kind} with scores x·(W x_N + w)", f"a window, positions, {otherwise}")
        kind += " with a residual connection and a LayerNorm or RMSNorm behind"
        mean = "M and c are given without their mean over outputs, which a LayerNorm subtracts."
        signs = "The RMSNorm behind has a scale of one sign: answers to two tokens agree with that."
        assumed = mean if model.norm.centred else signs
        return Said(kind, f"a window, positions, {otherwise}", (assumed,))
    biased = model.biased
    bound = (
        "The bound on W holds for W(Δ) = Kᵀ R(Δ) Q of every head, for distances Δ from 0 to "
        f"{FARTHEST_BOUNDED}; beyond, it grows in proportion to the distance."
        + " The bound on w holds for what biases add to scores there."
        * biased
    )
    without = "Keys and queries are assumed to have no biases: their effect is not bounded."
    shared = f"{model.H} heads share the keys and values of {model.G} groups."
    still = "Scores do not turn with distance: all frequencies are 0."
    return Said(
        f"{kind} with rotary positions",
        "other positions beside them, positions that change beyond some distance, a window, "
        + otherwise
        + ", key and query biases that are too large" * biased,
        (bound,) if biased else (bound, without),
        (shared,) * (model.G < model.H) + (still,) * (not np.any(model.rotary.frequencies)),
    )
