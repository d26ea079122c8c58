"""A layer behind a LayerNorm from the answers of all its rounds: one function, no questions.

`solved_alike` reads the rounds in order, so that the same rounds with `perturbed` answers can be
solved again: what moves is what the answers' errors do to every parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from unsoftmax.learners.attention_layer.normalised_eps import EpsRound, read_eps
from unsoftmax.learners.attention_layer.normalised_heads import (
    NormalisedHeads,
    PatternRound,
    read_heads,
)
from unsoftmax.learners.attention_layer.normalised_keys import KeyRound
from unsoftmax.learners.attention_layer.normalised_polish import PolishRound, polished_spaces
from unsoftmax.learners.attention_layer.normalised_rows import RowRound, read_rows
from unsoftmax.learners.attention_layer.normalised_scores import (
    ScoreColumns,
    ScoreTokens,
    read_columns,
)
from unsoftmax.learners.attention_layer.normalised_singles import (
    SingleRound,
    read_singles,
)
from unsoftmax.learners.attention_layer.normalised_tuning import NormalisedTuning
from unsoftmax.learners.attention_layer.normalised_values import (
    OffsetRound,
    ValueSpaces,
    read_values,
)
from unsoftmax.models import AttentionLayer, LayerHead, LayerNorm
from unsoftmax.probes import Array

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NormalisedRounds:
    """Everything that was asked, with its answers."""

    singles: SingleRound
    patterns: PatternRound
    offsets: OffsetRound
    tokens: ScoreTokens
    keys: KeyRound
    rows: RowRound
    polish: PolishRound | None
    eps: EpsRound


@dataclass(frozen=True, slots=True)
class SolvedLayer:
    """A layer, and what was decided on the way to it.

    Attributes
    ----------
    model : AttentionLayer
        The layer.
    eps_error : float
        About what its eps is off by.
    gates, spaces, columns : ndarray, ValueSpaces, ScoreColumns
        Order of heads, ranks, and answers that were left out.
    """

    model: AttentionLayer
    eps_error: float
    gates: Array
    spaces: ValueSpaces
    columns: ScoreColumns


def solved_alike(
    asked: NormalisedRounds, like: SolvedLayer, tuning: NormalisedTuning
) -> SolvedLayer:
    """Read all rounds again, with other answers, all decisions being those of a solution.

    Raises
    ------
    ModelMismatch, NotIdentifiable
        What any of them raises.
    """
    frame = read_singles(asked.singles, tuning.singles)
    heads = read_heads(frame, asked.patterns, tuning.heads, like.gates)
    spaces = read_values(heads, asked.offsets, tuning.values, like.spaces)
    if asked.polish is not None:
        spaces = polished_spaces(heads.frame, spaces, asked.polish)
    columns = read_columns(heads.frame, spaces, asked.keys, tuning.scores, like.columns)
    scores = read_rows(heads.frame, columns, asked.tokens, asked.rows, tuning.scores)
    solution = (spaces, columns), (asked.tokens, scores)
    return layer_of(heads, *solution, asked.eps, tuning)


def layer_of(
    found: NormalisedHeads,
    parts: tuple[ValueSpaces, ScoreColumns],
    rows: tuple[ScoreTokens, tuple[Array, ...]],
    eps: EpsRound,
    tuning: NormalisedTuning,
) -> SolvedLayer:
    """Put the layer together, heads with the largest M first."""
    frame, (spaces, columns), (tokens, scores) = found.frame, parts, rows
    values = columns.values
    heads = []
    for U, V, basis, known in zip(values.bases, values.values, columns.bases, scores, strict=True):
        affine = tokens.affine(known)
        heads.append(
            LayerHead.from_factors(
                frame.answers.centred(U), V, basis.T, affine[:-1].T, basis @ affine[-1]
            )
        )
    heads.sort(key=lambda head: -head.parameter_norm("M"))
    read, error = read_eps(frame, eps, tuning.eps)
    answers = frame.answers
    norm = LayerNorm(1 / answers.gain, answers.shift, read, centred=answers.takes_mean)
    c = frame.answers.centred(frame.c[:, None])[:, 0]
    return SolvedLayer(
        AttentionLayer(heads, c, residual=True, norm=norm), error, found.gates, spaces, columns
    )


def with_eps(model: AttentionLayer, eps: float) -> AttentionLayer:
    """Return the layer with another eps."""
    assert model.norm is not None
    known = model.norm
    norm = LayerNorm(known.scale, known.shift, max(0.0, eps), centred=known.centred)
    return AttentionLayer(model.heads, model.c, residual=True, norm=norm)


def perturbed(part: T, scale: Array, unit: float, rng: np.random.Generator) -> T:
    """Return rounds with answers moved at random by ``unit`` of their terms.

    Parameters
    ----------
    part : dataclass
        Rounds, or one of them: answers are the arrays in fields that begin with y.
    scale : ndarray, shape (d,)
        The norm's scale.
    unit : float
        Standard deviation, relative to the sizes of y and of the scale.
    rng : Generator
        Draws the errors.
    """

    def moved(y: Any) -> Any:
        if isinstance(y, tuple):
            return tuple(map(moved, y))
        return y + unit * (np.abs(y) + np.abs(scale)) * rng.standard_normal(y.shape)

    changed: dict[str, Any] = {}
    for field in fields(part):  # type: ignore[arg-type]
        value = getattr(part, field.name)
        if field.name.startswith("y"):
            changed[field.name] = moved(value)
        elif hasattr(value, "__dataclass_fields__"):
            changed[field.name] = perturbed(value, scale, unit, rng)
    return replace(part, **changed)  # type: ignore[type-var]
