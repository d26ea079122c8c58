"""The end behind a LayerNorm: the rounds solved again with perturbed answers, then `conclude`."""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.attention_layer.normalised_solution import (
    NormalisedRounds,
    SolvedLayer,
    perturbed,
    solved_alike,
    with_eps,
)
from unsoftmax.learners.attention_layer.normalised_tuning import NormalisedTuning
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.precision import UNIT
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.models import AttentionLayer
from unsoftmax.protocol import Found
from unsoftmax.validate.conclude import Conclusion, Said
from unsoftmax.validate.drawn_models import DRAWN, DrawnModels
from unsoftmax.validate.judge import Answered
from unsoftmax.validate.layer_sequences import LayerSequences

# Roundoffs that answers are perturbed by, relative to y and to the scale; answers further than so
# many from the affine map are perturbed by what they are off.
_ROUNDOFFS, _NOISY = 4.0, 256.0


def concluded(
    found: SolvedLayer,
    asked: NormalisedRounds,
    noise: float,
    checks: int,
    earlier: list[Answered],
    *,
    rng: np.random.Generator,
    tuning: NormalisedTuning,
) -> Asking[Found[AttentionLayer]]:
    """Perturb, ask fresh sequences, and return the layer with its certificate.

    ``noise`` is what a number of a normalised answer is off by.

    Raises
    ------
    ModelMismatch
        Fresh answers are not what the layer predicts.
    """
    model, off = found.model, noise * np.sqrt(found.model.dim)
    unit = float(off if off > _NOISY * UNIT else _ROUNDOFFS * UNIT)
    norm, others = model.norm, []
    assert norm is not None
    for k in range(DRAWN):
        other = solved_alike(perturbed(asked, norm.scale, unit, rng), found, tuning).model
        assert other.norm is not None
        # up and down by twice what it is off by as a rule: a draw may be small, none is below 0,
        # and behind six decimals 3 of 66 eps were off by more than is certified of that
        moved = 2 * found.eps_error * (1.0 if k % 2 else -1.0)
        others.append(with_eps(other, other.norm.eps + moved))
    drawn = DrawnModels(model, others, AnswerNoise(unit))
    assumed = (
        "M and c are meant without the part that is the same in all outputs: a LayerNorm takes it "
        "off."
        if norm.centred
        else "The norm behind is RMSNorm, its scale of one sign, as answers to two tokens agree."
    )
    said = Said(
        "layer of softmax attention with a residual and a LayerNorm or RMSNorm behind",
        "a window, positions, a nonlinearity in the values, a second layer",
        (assumed,),
    )
    return (yield from Conclusion(drawn, LayerSequences(model, rng), said).run(checks, earlier))
