"""The norm behind a layer: β, γ, (I + M), c and eps, from d + 22 single tokens.

A single token x is answered with β + Γn((I + M)x + c), whatever the scores are. Tokens 2⁵²e_j,
2⁵²ξ and −2⁵²ξ of entries ±1 leave only directions: β is the middle of the pair, g = 1/γ is
orthogonal to all y − β, and ξ says how long the columns are beside each other. So

    K(b) = s P_w((I + M) b + c)

is known but for s > 0 and the sign of γ, which the heads tell (`plane_heads`). The direction
of c comes from the zero token, its length from tokens about as long. Tokens x0 + tδ with
P((I + M)x0 + c) = 0 then give u of any variance v, and ‖n‖² = d·v/(v + eps).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer import search_limits as limits
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
from unsoftmax.probes import Array, Sequences, Singles, UnitVectors

# Length of tokens at which c and eps no longer change an answer: c is 2⁻⁵² of them. Longer:
# squares leave float32's range.
_FAR = 2.0**52
# Two tokens ξ with entries ±1 are asked: d − 2 more equations than there are columns. So many are
# drawn for the second, which is nearly orthogonal to the first.
_DRAWN = 32
# Sequences of two tokens. They tell γ too: where I + M is singular, single tokens do not. Length of
# those tokens: their answers are one token's values or a few heads' mixture.
_MIXED, _MIXED_LENGTH = 2, 2.0**40
# Lengths of the tokens that c is weighed against: one is within a factor of 4 of |c|, where |c|
# is between 2⁻⁸ and 2⁸.
_STEPS = (2.0**-6, 2.0**-2, 2.0**2, 2.0**6)
# The zero token's answer is β but for so many roundoffs where c is 0.
_ZERO = 16.0
# A coordinate that moves by a smaller share of the one that moves most is taken for one of scale
# 0.
_LEAST_SPREAD = 1e-10
# The least singular value of answers that have a norm behind is a smaller share of the next.
_GAP = 1e-3
# Squared lengths of answers behind RMSNorm are off by no more, in units of the norm's scale:
# float32's are by 1e-6, those of other functions by as much as there is.
_ELLIPSOID = 1e-4
# Answers that are further from a normalised affine map are none. float32: 1e-6. Single tokens of
# any length are answered by that map to so many times the noise.
_MOST_NOISE, _AFFINE = 1e-5, 1e3
# An eps of fewer times what it may be off by is 0.
_TOLD = 16.0


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

    def solved(self) -> DirectionMap:
        """Read β, g up to its sign, and s P_w[I + M, c].

        Raises
        ------
        ModelMismatch
            Single tokens are not answered by a normalised affine map.
        NotIdentifiable
            An entry of the scale is 0.
        """
        norm = _read_norm(self)
        units, sums = norm.directions(self.y_units).T, norm.directions(self.y_signs).T
        found = column_scales(units, self.signs, sums)
        if np.min(found.gain) <= 0 or found.missed > _GAP * found.next:
            raise ModelMismatch(
                "Long single tokens are not answered by a linear map behind a LayerNorm: the "
                "directions of their answers do not add up as the tokens do."
            )
        B = units * found.gain
        B *= np.linalg.norm(norm.projection) / np.linalg.norm(B)
        missed = _apart(norm.directions(self.y_check), (B @ self.check)[None])
        noise = max(float(missed[0]) / np.sqrt(len(B)), 4 * UNIT / np.sqrt(len(B)))
        if noise > _MOST_NOISE:
            raise ModelMismatch(
                f"The answer to a fresh single token differs by {noise:.1e} from a normalised "
                "affine map: the target is none, or its answers are too coarse for a layer behind "
                "a LayerNorm."
            )
        frame = DirectionMap(np.zeros(len(B)), B, True, norm, noise)
        return replace(frame, c=_read_constant(self, frame))


def ask_singles(dim: int, rng: np.random.Generator) -> Asking[SingleRound]:
    """Ask single tokens, and a few pairs of tokens."""
    phase = "single tokens"
    drawn = np.where(rng.standard_normal((1 + _DRAWN, dim)) < 0, -1.0, 1.0)
    signs = drawn[[0, 1 + int(np.argmin(np.abs(drawn[1:] @ drawn[0])))]]
    check = np.round(16 * rng.standard_normal((1, dim))) / 16
    mixed = np.round(16 * rng.standard_normal((_MIXED, 2, dim))) * _MIXED_LENGTH / 16
    steps = np.array(_STEPS)[:, None] * signs[0]
    y = yield [
        Singles(UnitVectors(dim), _FAR, phase=phase, purpose="data"),
        Singles(signs, _FAR, phase=phase, purpose="data"),
        Singles(-signs[:1], _FAR, phase=phase, purpose="data"),
        Sequences(mixed, phase=phase, purpose="data"),
        Singles(steps, phase=phase, purpose="data"),
        Singles(check, _FAR, phase=phase, purpose="pilot"),
        Singles(np.zeros((1, dim)), phase=phase, purpose="data"),
    ]
    if y[0].shape[1] != dim:
        raise ModelMismatch(
            f"Answers have {y[0].shape[1]} numbers and tokens have {dim}. They must be equal: a "
            "layer behind a norm is recovered only with its residual connection."
        )
    return SingleRound(signs, check[0], *y)


def ask_more_singles(asked: SingleRound, rng: np.random.Generator) -> Asking[SingleRound]:
    """Ask more pairs ±ξ, where answers are coarse: β and the columns' lengths average over them."""
    phase = "single tokens"
    signs = np.where(rng.standard_normal((limits.SINGLE_PAIRS, len(asked.check))) < 0, -1.0, 1.0)
    plus, minus = yield [
        Singles(signs, _FAR, phase=phase, purpose="data"),
        Singles(-signs, _FAR, phase=phase, purpose="data"),
    ]
    # tokens with a negative come first
    return replace(
        asked,
        signs=np.vstack([asked.signs[:1], signs, asked.signs[1:]]),
        y_signs=np.vstack([asked.y_signs[:1], plus, asked.y_signs[1:]]),
        y_minus=np.vstack([asked.y_minus, minus]),
    )


def _read_norm(asked: SingleRound) -> NormedAnswers:
    """Read β and g from the answers to tokens at which c and eps do not count."""
    far = np.vstack([asked.y_units, asked.y_signs, asked.y_minus, asked.y_mixed, asked.y_check])
    if np.max(np.abs(far)) > np.sqrt(_FAR):
        raise ModelMismatch(
            "Answers to single tokens grow with the tokens, so no LayerNorm is behind: leave out "
            "norm to find out whether one stands before the layer or none."
        )
    pairs = asked.y_signs[: len(asked.y_minus)] + asked.y_minus
    shift = np.mean(pairs, axis=0) / 2
    spread = spreads(far - shift)
    size = np.maximum(np.abs(shift), spread)
    still = spread <= np.maximum(_LEAST_SPREAD * spread.max(), UNIT * size / _GAP)
    if np.any(still):
        named = ", ".join(map(str, np.flatnonzero(still)[:8]))
        raise NotIdentifiable(
            f"The scale of the LayerNorm or RMSNorm is 0, or nearly 0, at {np.sum(still)} of "
            f"{len(still)} outputs ({named}): the layer has no effect on the answers there.",
            determined={"shift": shift},
        )
    found = gain_of(far - shift)
    if found.missed <= _GAP * found.next:
        return NormedAnswers.of(shift, found.gain)
    found = uncentred_gain_of(far - shift)
    if found.missed > _ELLIPSOID or found.next <= 0:
        raise ModelMismatch(
            "Answers to long tokens lie neither in a hyperplane, as behind a LayerNorm, nor on an "
            "ellipsoid along the axes, as behind RMSNorm: neither is the last operation."
        )
    return NormedAnswers.of(shift, found.gain, centred=False)


def _read_constant(asked: SingleRound, frame: DirectionMap) -> Array:
    """Weigh c, known by its direction, against tokens of a few lengths."""
    zero = frame.norm.directions(asked.y_zero)[0]
    size = np.linalg.norm(zero)
    known = frame.M @ asked.signs[0]
    w = frame.directions(asked.y_steps)
    # nothing is left of c in the zero token's answer, or only rounding
    shift = frame.norm.shift
    if size <= _ZERO * UNIT * np.linalg.norm(np.abs(shift) + 1 / np.abs(frame.norm.gain)):
        constant = np.zeros(len(zero))
    else:
        ratios = [_ratio(known, zero / size, one) for one in w]
        lengths = np.array([step * ratio for step, ratio in zip(_STEPS, ratios, strict=True)])
        best = int(np.argmin(np.abs(np.log(np.maximum(np.abs(ratios), 1e-300)))))
        constant = np.linalg.norm(known) * lengths[best] * zero / size
    expected = np.outer(_STEPS, known) + constant
    missed = float(np.max(_apart(w, expected))) / np.sqrt(len(zero))
    if missed > _AFFINE * frame.noise:
        raise ModelMismatch(
            f"Answers differ from a normalised affine map by {missed:.1e} for single tokens of "
            f"moderate norm, by {frame.noise:.1e} for long ones: the layer adds something to its "
            "heads."
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


@dataclass(frozen=True, slots=True)
class EpsAnswers:
    """Answers (n, d) to single tokens (n, d) at which u is small."""

    tokens: Array
    y: Array

    def solved(self, frame: DirectionMap) -> tuple[float, float]:
        """Read eps where the variance is known best beside it, and about what it is off by."""
        u = frame.norm.centred(frame.known(self.tokens).T)
        n = frame.norm.gain * (self.y - frame.norm.shift)
        variance, length = np.mean(u**2, axis=0), np.mean(n**2, axis=1)
        eps = variance * (1 / length - 1)
        # u is off by a share of the token's length, n by a share of itself
        noise = frame.noise * np.sqrt(frame.dim)
        off = noise * np.sqrt(np.mean(self.tokens**2, axis=1) + np.mean(frame.c**2))
        error = 2 * (off / np.sqrt(variance) * np.abs(eps) + noise * (variance + np.abs(eps)))
        best = int(np.argmin(np.where(eps > 0, error / np.maximum(eps, 1e-300), np.inf)))
        told = eps[best] > _TOLD * error[best]
        return float(eps[best]) if told else 0.0, float(error[best])


def find_eps(frame: DirectionMap, rng: np.random.Generator) -> Asking[EpsAnswers]:
    """Ask tokens at which u is small."""
    still = -np.linalg.lstsq(frame.M, frame.c, rcond=None)[0]
    direction = rng.standard_normal(frame.dim)
    moved = frame.norm.centred(frame.M @ direction)
    lengths = np.sqrt(np.array(limits.EPS_VARIANCES)) / np.sqrt(np.mean(moved**2))
    # as float32 sees them; where they are rounded to is known
    tokens = (still + lengths[:, None] * direction).astype(np.float32).astype(np.float64)
    [y] = yield [Singles(tokens, phase="eps", purpose="data")]
    return EpsAnswers(tokens, y)
