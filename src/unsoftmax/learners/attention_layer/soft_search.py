"""A whole layer from soft gates: maps, then scores, then a few fresh answers."""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.attention_layer.attention_layer_tuning import AttentionLayerTuning
from unsoftmax.learners.attention_layer.recovered_layer import SAID, LayerAnswers
from unsoftmax.learners.attention_layer.score_reading import ScoreReading, keys_of
from unsoftmax.learners.attention_layer.soft_gate_reading import BaseOffset, SoftGateReading
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.models import AttentionLayer
from unsoftmax.validate.conclude import Conclusion
from unsoftmax.validate.drawn_models import LEAST_MOST
from unsoftmax.validate.layer_sequences import LayerSequences


def soft_search(
    reading: SoftGateReading,
    base: BaseOffset,
    *,
    profile: str,
    fresh: float,
    tuning: AttentionLayerTuning,
    least_most: float = LEAST_MOST,
) -> Asking[Conclusion[AttentionLayer]]:
    """Go on from the heads that one offset showed.

    Parameters
    ----------
    reading : SoftGateReading
        What maps are read with.
    base : BaseOffset
        What the first offset showed.
    profile : str
        How many queries buy how much accuracy.
    fresh : float
        Longest token of a fresh sequence; those of keys are no longer than the reading's.
    tuning : AttentionLayerTuning
        Knobs.
    least_most : float
        Share of an answer up to which a residual is not refused.
    """
    noise, rng = reading.noise, reading.rng
    effort = tuning.effort(profile, noise.relative)
    maps = yield from reading.run(base, effort.whole)
    values = maps.solved()
    n = keys_of(values, noise.relative, effort.share, tuning)
    larger = AnswerNoise(*(tuning.prenorm.drawn * np.array([noise.relative, noise.absolute])))

    def redrawn(rng: np.random.Generator) -> tuple[LayerMap, HeadMaps]:
        other = maps.with_errors(larger, rng)
        return other.layer(), other.solved()

    scores = yield from ScoreReading(
        reading.layer,
        values,
        noise,
        n,
        effort,
        base.typical(),
        rng,
        tuning,
        reading.radius,
        redrawn=redrawn,
    ).run()
    answers = LayerAnswers(maps, scores)
    drawn = answers.drawn(noise, rng, least_most=least_most)
    conclusion = Conclusion(drawn, LayerSequences(drawn.model, rng, fresh), SAID)
    yield from conclusion.confirmed()
    return conclusion
