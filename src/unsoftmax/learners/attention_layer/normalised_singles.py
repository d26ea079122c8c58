"""Step 1 behind a LayerNorm: β, γ, (I + M) and c from single tokens, d + 12 queries.

A single token x is answered with β + Γn((I + M)x + c), whatever the scores are. Tokens 2⁵²e_j,
2⁵²ξ and −2⁵²ξ of entries ±1 leave only directions: β is the middle of the pair, g = 1/γ is
orthogonal to all y − β, and ξ says how long the columns are beside each other. So

    K(b) = s P_w((I + M) b + c)

is known but for s > 0 and the sign of γ, which the heads tell (`normalised_heads`). The direction
of c comes from the zero token, its length from tokens about as long.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer.normalised_tuning import NormalisedSinglesTuning
from unsoftmax.learners.attention_layer.readout import DirectionMap
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.normalised import (
    NormedAnswers,
    column_scales,
    gain_of,
    spreads,
    uncentred_gain_of,
)
from unsoftmax.measure.precision import UNIT
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.probes import Array, Sequences, Singles, UnitVectors


@dataclass(frozen=True, slots=True)
class SingleRound:
    """What was asked, and its answers (fields that begin with y)."""

    signs: Array
    """ξ, of entries ±1; the first have been asked with their negatives."""
    check: Array
    y_units: Array
    y_signs: Array
    y_minus: Array
    y_mixed: Array
    y_steps: Array
    y_check: Array
    y_zero: Array

    def with_errors(self, noise: AnswerNoise, rng: np.random.Generator) -> Self:
        """Return the same answers, with errors drawn as large as theirs may be."""
        answers = {part.name: getattr(self, part.name) for part in fields(self)}
        drawn = {n: y + noise.drawn(y, rng) for n, y in answers.items() if n.startswith("y")}
        return replace(self, **drawn)


def ask_singles(
    dim: int, rng: np.random.Generator, tuning: NormalisedSinglesTuning
) -> Asking[SingleRound]:
    """Ask single tokens, and a few pairs of tokens."""
    phase = "single tokens"
    drawn = np.where(rng.standard_normal((1 + tuning.drawn, dim)) < 0, -1.0, 1.0)
    signs = drawn[[0, 1 + int(np.argmin(np.abs(drawn[1:] @ drawn[0])))]]
    check = np.round(16 * rng.standard_normal((1, dim))) / 16
    mixed = np.round(16 * rng.standard_normal((tuning.mixed, 2, dim))) * tuning.mixed_length / 16
    steps = np.array(tuning.steps)[:, None] * signs[0]
    y = yield [
        Singles(UnitVectors(dim), tuning.far, phase=phase, purpose="data"),
        Singles(signs, tuning.far, phase=phase, purpose="data"),
        Singles(-signs[:1], tuning.far, phase=phase, purpose="data"),
        Sequences(mixed, phase=phase, purpose="data"),
        Singles(steps, phase=phase, purpose="data"),
        Singles(check, tuning.far, phase=phase, purpose="pilot"),
        Singles(np.zeros((1, dim)), phase=phase, purpose="data"),
    ]
    if y[0].shape[1] != dim:
        raise ModelMismatch(
            f"Answers have {y[0].shape[1]} numbers and tokens {dim}: a residual connection, which "
            "a norm behind a layer is recovered with, needs as many."
        )
    return SingleRound(signs, check[0], *y)


def ask_more_singles(
    asked: SingleRound, rng: np.random.Generator, tuning: NormalisedSinglesTuning
) -> Asking[SingleRound]:
    """Ask more pairs ±ξ, where answers are coarse: β and the columns' lengths average over them."""
    phase = "single tokens"
    signs = np.where(rng.standard_normal((tuning.pairs, len(asked.check))) < 0, -1.0, 1.0)
    plus, minus = yield [
        Singles(signs, tuning.far, phase=phase, purpose="data"),
        Singles(-signs, tuning.far, phase=phase, purpose="data"),
    ]
    # tokens with a negative come first
    return replace(
        asked,
        signs=np.vstack([asked.signs[:1], signs, asked.signs[1:]]),
        y_signs=np.vstack([asked.y_signs[:1], plus, asked.y_signs[1:]]),
        y_minus=np.vstack([asked.y_minus, minus]),
    )


def read_singles(asked: SingleRound, tuning: NormalisedSinglesTuning) -> DirectionMap:
    """Read β, g up to its sign, and s P_w[I + M, c].

    Raises
    ------
    ModelMismatch
        Single tokens are not answered by a normalised affine map.
    NotIdentifiable
        An entry of the scale is 0.
    """
    norm = _read_norm(asked, tuning)
    units, sums = norm.directions(asked.y_units).T, norm.directions(asked.y_signs).T
    found = column_scales(units, asked.signs, sums)
    if np.min(found.gain) <= 0 or found.missed > tuning.gap * found.next:
        raise ModelMismatch(
            "Long single tokens are not answered by a linear map behind a LayerNorm: their "
            "answers' directions do not add up as the tokens do."
        )
    B = units * found.gain
    B *= np.linalg.norm(norm.projection) / np.linalg.norm(B)
    missed = _apart(norm.directions(asked.y_check), (B @ asked.check)[None])
    noise = max(float(missed[0]) / np.sqrt(len(B)), 4 * UNIT / np.sqrt(len(B)))
    if noise > tuning.most_noise:
        raise ModelMismatch(
            f"A fresh single token is answered {noise:.1e} from a normalised affine map: no such "
            "map, or answers too coarse for what is behind a LayerNorm."
        )
    frame = DirectionMap(np.zeros(len(B)), B, True, norm, noise)
    return replace(frame, c=_read_constant(asked, frame, tuning))


def _read_norm(asked: SingleRound, tuning: NormalisedSinglesTuning) -> NormedAnswers:
    """Read β and g from the answers to tokens at which c and eps do not count."""
    far = np.vstack([asked.y_units, asked.y_signs, asked.y_minus, asked.y_mixed, asked.y_check])
    if np.max(np.abs(far)) > np.sqrt(tuning.far):
        raise ModelMismatch(
            "Answers to single tokens grow with them, as behind no LayerNorm: leave out norm, and "
            "it is found whether one stands before the layer or none."
        )
    pairs = asked.y_signs[: len(asked.y_minus)] + asked.y_minus
    shift = np.mean(pairs, axis=0) / 2
    spread = spreads(far - shift)
    size = np.maximum(np.abs(shift), spread)
    still = spread <= np.maximum(tuning.least_spread * spread.max(), UNIT * size / tuning.gap)
    if np.any(still):
        named = ", ".join(map(str, np.flatnonzero(still)[:8]))
        raise NotIdentifiable(
            f"The norm's scale is 0, or too small to tell, at {np.sum(still)} of {len(still)} "
            f"outputs ({named}): what the layer adds there does not reach the answers.",
            determined={"shift": shift},
        )
    found = gain_of(far - shift)
    if found.missed <= tuning.gap * found.next:
        return NormedAnswers.of(shift, found.gain)
    found = uncentred_gain_of(far - shift)
    if found.missed > tuning.ellipsoid or found.next <= 0:
        raise ModelMismatch(
            "Answers to long tokens lie in no hyperplane, as those behind a LayerNorm do, nor on "
            "an ellipsoid along the axes, as behind RMSNorm: another function is behind the norm, "
            "or none."
        )
    return NormedAnswers.of(shift, found.gain, centred=False)


def _read_constant(
    asked: SingleRound, frame: DirectionMap, tuning: NormalisedSinglesTuning
) -> Array:
    """Weigh c, known by its direction, against tokens of a few lengths."""
    zero = frame.norm.directions(asked.y_zero)[0]
    size = np.linalg.norm(zero)
    known = frame.M @ asked.signs[0]
    w = frame.directions(asked.y_steps)
    # nothing is left of c in the zero token's answer, or only rounding
    shift = frame.norm.shift
    if size <= tuning.zero * UNIT * np.linalg.norm(np.abs(shift) + 1 / np.abs(frame.norm.gain)):
        constant = np.zeros(len(zero))
    else:
        ratios = [_ratio(known, zero / size, one) for one in w]
        lengths = np.array([step * ratio for step, ratio in zip(tuning.steps, ratios, strict=True)])
        best = int(np.argmin(np.abs(np.log(np.maximum(np.abs(ratios), 1e-300)))))
        constant = np.linalg.norm(known) * lengths[best] * zero / size
    expected = np.outer(tuning.steps, known) + constant
    missed = float(np.max(_apart(w, expected))) / np.sqrt(len(zero))
    if missed > tuning.affine * frame.noise:
        raise ModelMismatch(
            f"Single tokens of moderate length are answered {missed:.1e} from a normalised affine "
            f"map, long ones {frame.noise:.1e}: the layer adds something else to its heads."
        )
    return constant


def _ratio(known: Array, zero: Array, w: Array) -> float:
    """Return ρ with w ∥ k + ρz for the unit vectors k, z and w of three directions."""
    k = known / np.linalg.norm(known)
    null = np.linalg.svd(np.column_stack([k, zero, w]))[2][-1]
    return float(null[1] / null[0]) if null[0] else np.inf


def _apart(w: Array, expected: Array) -> Array:
    """Return how far directions are from the ones expected, row by row, as sines."""
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    own = w / np.linalg.norm(w, axis=1, keepdims=True)
    return np.asarray(np.linalg.norm(own - unit, axis=1))
