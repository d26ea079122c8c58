"""A layer behind a norm from all of its answers: one function, no questions.

The same answers with errors drawn as large as theirs may be are solved again: what moves is what
the errors do to every parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.attention_layer.normalised_eps import EpsRound, read_eps
from unsoftmax.learners.attention_layer.normalised_tuning import NormalisedTuning
from unsoftmax.learners.attention_layer.readout import DirectionMap, NormedNoise
from unsoftmax.learners.attention_layer.recovered_layer import LayerAnswers
from unsoftmax.models import AttentionLayer, LayerNorm
from unsoftmax.probes import Array, Indices


@dataclass(frozen=True, slots=True)
class NormalisedRounds:
    """Everything that was asked, with its answers."""

    answers: LayerAnswers
    eps: EpsRound


@dataclass(frozen=True, slots=True)
class SolvedLayer:
    """A layer, heads with the largest M first.

    Attributes
    ----------
    model : AttentionLayer
        The layer.
    eps_error : float
        About what its eps is off by.
    order : ndarray of int
        Which head comes where.
    """

    model: AttentionLayer
    eps_error: float
    order: Indices


def solved_alike(
    asked: NormalisedRounds, like: SolvedLayer | None, tuning: NormalisedTuning
) -> SolvedLayer:
    """Put the layer together, its heads in the order of another solution.

    Raises
    ------
    ModelMismatch, NotIdentifiable
        What reading single tokens raises.
    """
    found = asked.answers.solved()
    layer = found.layer
    assert isinstance(layer, DirectionMap)
    centred = replace(found.values, U=[layer.norm.centred(U) for U in found.values.U])
    heads = replace(found, values=centred).heads()
    order = np.argsort([-head.parameter_norm("M") for head in heads], kind="stable")
    order = order if like is None else like.order
    eps, error = read_eps(layer, asked.eps, tuning.eps)
    norm = LayerNorm(1 / layer.norm.gain, layer.norm.shift, eps, centred=layer.norm.takes_mean)
    c = layer.norm.centred(layer.c[:, None])[:, 0]
    model = AttentionLayer([heads[h] for h in order], c, residual=True, norm=norm)
    return SolvedLayer(model, error, order)


def with_eps(model: AttentionLayer, eps: float) -> AttentionLayer:
    """Return the layer with another eps."""
    assert model.norm is not None
    known = model.norm
    norm = LayerNorm(known.scale, known.shift, max(0.0, eps), centred=known.centred)
    return AttentionLayer(model.heads, model.c, residual=True, norm=norm)


def perturbed(
    asked: NormalisedRounds, scale: Array, unit: float, rng: np.random.Generator
) -> NormalisedRounds:
    """Return rounds with answers moved at random by ``unit`` of themselves and of the scale.

    Parameters
    ----------
    asked : NormalisedRounds
        The rounds.
    scale : ndarray, shape (d,)
        The norm's scale.
    unit : float
        Standard deviation, relative to the sizes of y and of the scale.
    rng : Generator
        Draws the errors.
    """
    noise = NormedNoise(unit, scale=scale)
    eps = replace(asked.eps, y=asked.eps.y + noise.drawn(asked.eps.y, rng))
    return NormalisedRounds(asked.answers.with_errors(noise, rng), eps)
