"""A feed-forward layer behind a norm, y = β + Γn(x + B relu(A x + b) + c): about nine queries each.

Answers tell directions of u = x + F(x) alone (`norm_opening`): w = λ R Γ P u with unknown λ > 0.
What a plain layer's answers tell by size, these tell by being in one plane:

1. Along a line pieces span planes, and where two of them meet is a kink, which brings both to one
   scale (`arrangement.direction_kinks`). 2.9m queries.
2. Steps beside the line: one unknown more for each, λ (`line_cells`, ``scaled=False``). 1.5m.
3. Every hyperplane is crossed once more (`direction_spots`). 4m.
4. The Jacobian holds x: its share says what the unit is, and the sign of γ (`affine_part`).
5. eps, from tokens at which u is small (`small_sums`). 16 queries.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.feed_forward.affine_part import AffinePartTuning, Sides
from unsoftmax.learners.feed_forward.found_neurons import FoundNeurons
from unsoftmax.learners.feed_forward.line_cells import AskTokens
from unsoftmax.learners.feed_forward.norm_opening import NormLook, SeenNorm
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers


def asks_directions(ask: AskTokens, norm: SeenNorm) -> AskTokens:
    """Return what asks tokens and answers with directions."""

    def asked(x: Array) -> Generator[Round, Answers, Array]:
        return norm.directions((yield from ask(x)))

    return asked


@dataclass(frozen=True, slots=True)
class LayerSums:
    """What is before the norm: neurons, sides, and the norm with its signs."""

    found: FoundNeurons
    sides: Sides
    gain: Array
    values: Array
    """u at places of the line (n, d)."""


def before_the_norm(
    found: FoundNeurons, values: Array, norm: SeenNorm, tuning: AffinePartTuning
) -> LayerSums:
    """Find unit and signs by the residual, and write neurons as they are before the norm.

    Raises
    ------
    ModelMismatch
        x is not among what is normalised.
    """
    sides = found.sides(tuning, norm.residual)
    gain, unit = norm.signed(sides.added)
    if not sides.known or not unit > 0:
        raise ModelMismatch(
            "The answers do not determine how much of x is in what is normalised: no residual "
            "connection, or too many neurons for so few outputs."
        )
    columns = norm.sums(found.columns, gain)
    size = np.linalg.norm(columns, axis=1)
    grown = float(np.linalg.norm(gain)) / np.sqrt(len(gain))
    seen = replace(
        found,
        rows=found.rows * (size / unit)[:, None],
        row_error=found.row_error * size / unit,
        bias=found.bias * size / unit,
        bias_error=found.bias_error * size / unit,
        columns=columns / size[:, None],
        column_error=found.column_error * grown / size,
        first=norm.sums(found.first.T, gain).T / unit,
        first_error=found.first_error * grown / unit,
    )
    if sides.linear is not None:
        left, right = sides.linear
        sides = replace(sides, linear=(norm.sums(left, gain) / unit, right))
    return LayerSums(seen, replace(sides, residual=True), gain, norm.sums(values, gain) / unit)
