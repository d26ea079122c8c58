"""The norm behind a layer: β, γ, (I + M), c and eps, from about d + 10 single tokens.

A single token x is answered with β + Γn((I + M)x + c), whatever the scores are. Tokens 2⁵²e_j,
2⁵²ξ and −2⁵²ξ of entries ±1 leave only directions: β is the middle of the pair, g = 1/γ is
orthogonal to all y − β, and ξ says how long the columns are beside each other. So

    K(b) = s P_w((I + M) b + c)

is known but for s > 0 and the sign of γ, which the heads tell. The direction of c comes from the
zero token, its length from a token about as long, as one of length 1 shows it. Tokens x0 + tδ with
P((I + M)x0 + c) = 0 then give u of any variance v, and ‖n‖² = d·v/(v + eps).

8 + 2H to 56 further queries show how many heads are before the norm, and P_w M_h a of one offset
a. Two tokens [b+a; b], so long that every gate is 0 or 1, are answered with

    μ w = K(b) + Σ_h g_h m_h,   m_h = s P_w M_h a,   g_h ∈ {0, 1}.

The query tokens b are of a plane, so that K(b) is in T = span(K of the plane). Outside of T, H is
the rank of the answers, and their null space Z gives every μ: W Z = K diag(1/μ) Z. The sum of
all m_h is B a − σP_w a, which is in their span for one σ alone: its size is s, its sign that of g.
Gates are the 0/1 columns in the span of the rows {Σ m_h, sums}, the first entry 1. Sums of gates
may be 0 or 1 as well beside a few tokens of a plane, but a gate is open on one side of a line.

Behind an RMSNorm single tokens leave the sign of every entry of g open, g = |g|ξ. Two tokens say
σξ ∈ |g|B a/a + span |g|m_h/a, entry by entry: again a column of two values in a known span.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer.value_answers import (
    DirectionMap,
    GateAnswers,
    refuse_cancelling,
)
from unsoftmax.learners.compose import Asking
from unsoftmax.measure import normalised
from unsoftmax.measure.precision import UNIT
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Indices, Pairs, Sequences, Singles, UnitVectors
from unsoftmax.refusals import Reason, RefusalError
from unsoftmax.solve.gate_columns import gate_columns
from unsoftmax.solve.least_distance import shortest_within

# Length of tokens at which c and eps no longer change an answer: c is 2⁻⁵² of them. Longer:
# squares leave float32's range.
_FAR = 2.0**52
# Two tokens ξ with entries ±1 are asked: d − 2 more equations than there are columns. So many are
# drawn for the second, which is nearly orthogonal to the first.
_DRAWN = 32
# Sequences of two tokens. They tell γ too: where I + M is singular, single tokens do not. Length of
# those tokens: their answers are one token's values or a few heads' mixture.
_MIXED, _MIXED_LENGTH = 2, 2.0**40
# A token of length 1 shows how long c is, and another of that length, or of this one where c is
# about as long as the first, shows it well.
_LONGER_STEP = 2.0**4
# Lengths at which c is looked for: beyond, rounding of the first answer hides it.
_LEAST_STEP, _MOST_STEP = 2.0**-40, 2.0**40
# The zero token's answer is β but for so many roundoffs where c is 0.
_ZERO = 16.0
# A coordinate that moves by a smaller share of the one that moves most is taken for one of scale
# 0.
_LEAST_SPREAD = 1e-10
# The least singular value of answers that have a norm behind is a smaller share of the next.
_GAP = 1e-3
# Where the next is a smaller share of the largest, γ is known a hundred times worse than elsewhere:
# in one of 60 layers with d = 12.
_NEARLY_SINGULAR = 0.01
# Squared lengths of answers behind RMSNorm are off by no more, in units of the norm's scale:
# float32's are by 1e-6, those of other functions by as much as there is.
_ELLIPSOID = 1e-4
# Answers that are further from a normalised affine map are none. float32: 1e-6. Single tokens of
# any length are answered by that map to so many times the noise.
_MOST_NOISE, _AFFINE = 1e-5, 1e3
# Variance of u at the first token that shows eps, the least and the most there are, and octaves
# within which another tells no more.
_FIRST_VARIANCE, _VARIANCES, _NEAR = 1e-4, (1e-14, 1e4), 3.0
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
    y_check: Array
    y_zero: Array
    y_mixed: Array
    """Of two tokens each; none where single tokens tell γ."""
    steps: Array
    """Lengths of ξ that c is weighed against."""
    y_steps: Array

    def solved(self) -> DirectionMap:
        """Read β, g up to its sign, and s P_w[I + M, c]."""
        frame = self.linear()
        return replace(frame, c=_read_constant(self, frame))

    def linear(self) -> DirectionMap:
        """Read the same without c.

        Raises
        ------
        ModelMismatch
            Single tokens are not answered by a normalised affine map.
        NotIdentifiable
            An entry of the scale is 0.
        """
        norm = _read_norm(self)
        units, sums = norm.directions(self.y_units).T, norm.directions(self.y_signs).T
        found = normalised.column_scales(units, self.signs, sums)
        if np.min(found.gain) <= 0 or found.missed > _GAP * found.next:
            raise Reason.DIRECTIONS_DO_NOT_ADD_UP.error()
        B = units * found.gain
        B *= np.linalg.norm(norm.projection) / np.linalg.norm(B)
        missed = _apart(norm.directions(self.y_check), (B @ self.check)[None])
        noise = max(float(missed[0]) / np.sqrt(len(B)), 4 * UNIT / np.sqrt(len(B)))
        if noise > _MOST_NOISE:
            raise Reason.TOKEN_NOT_NORMALISED_AFFINE.error(missed=noise)
        return DirectionMap(np.zeros(len(B)), B, True, norm, noise)


def ask_singles(dim: int, rng: np.random.Generator) -> Asking[SingleRound]:
    """Ask single tokens, and a few pairs of tokens."""
    phase = "single tokens"
    drawn = np.where(rng.standard_normal((1 + _DRAWN, dim)) < 0, -1.0, 1.0)
    signs = drawn[[0, 1 + int(np.argmin(np.abs(drawn[1:] @ drawn[0])))]]
    check = np.round(16 * rng.standard_normal((1, dim))) / 16
    units, plus, minus, checked, zero = yield [
        Singles(UnitVectors(dim), _FAR, phase=phase, purpose="data"),
        Singles(signs, _FAR, phase=phase, purpose="data"),
        Singles(-signs[:1], _FAR, phase=phase, purpose="data"),
        Singles(check, _FAR, phase=phase, purpose="pilot"),
        Singles(np.zeros((1, dim)), phase=phase, purpose="data"),
    ]
    if units.shape[1] != dim:
        raise Reason.NO_RESIDUAL_WIDTH.error(numbers=units.shape[1], dim=dim)
    none = np.zeros((0, dim))
    beside = {"y_mixed": none, "steps": np.zeros(0), "y_steps": none}
    asked = SingleRound(signs, check[0], units, plus, minus, checked, zero, **beside)
    if not _tell_gain(asked):
        # an RMSNorm, or I + M is nearly singular
        mixed = np.round(16 * rng.standard_normal((_MIXED, 2, dim))) * _MIXED_LENGTH / 16
        [y_mixed] = yield [Sequences(mixed, phase=phase, purpose="data")]
        asked = replace(asked, y_mixed=y_mixed)
    frame, step = asked.linear(), 1.0
    for _ in range(2):
        [y_step] = yield [Singles(step * signs[:1], phase=phase, purpose="data")]
        y_steps = np.vstack([asked.y_steps, y_step])
        asked = replace(asked, steps=np.append(asked.steps, step), y_steps=y_steps)
        step = _further_step(asked, frame)
    return asked


def _tell_gain(asked: SingleRound) -> bool:
    """Tell whether one vector alone is orthogonal to all answers, and far from the next."""
    far = np.vstack([asked.y_units, asked.y_signs, asked.y_minus, asked.y_check])
    far = far - (asked.y_signs[0] + asked.y_minus[0]) / 2
    if not normalised.spreads(far).all():
        return True  # refused by name
    found = normalised.gain_of(far)
    return found.missed <= _GAP * found.next and found.next > _NEARLY_SINGULAR


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


def _read_norm(asked: SingleRound) -> normalised.NormedAnswers:
    """Read β and g from the answers to tokens at which c and eps do not count."""
    far = np.vstack([asked.y_units, asked.y_signs, asked.y_minus, asked.y_mixed, asked.y_check])
    if np.max(np.abs(far)) > np.sqrt(_FAR):
        raise Reason.GROWS_BEHIND_NO_NORM.error()
    pairs = asked.y_signs[: len(asked.y_minus)] + asked.y_minus
    shift = np.mean(pairs, axis=0) / 2
    spread = normalised.spreads(far - shift)
    size = np.maximum(np.abs(shift), spread)
    still = spread <= np.maximum(_LEAST_SPREAD * spread.max(), UNIT * size / _GAP)
    if np.any(still):
        named = ", ".join(map(str, np.flatnonzero(still)[:8]))
        raise Reason.NORM_SCALE_IS_0.error(
            {"shift": shift}, still=np.sum(still), outputs=len(still), named=named
        )
    found = normalised.gain_of(far - shift)
    if found.missed <= _GAP * found.next:
        return normalised.NormedAnswers.of(shift, found.gain)
    found = normalised.uncentred_gain_of(far - shift)
    if found.missed > _ELLIPSOID or found.next <= 0:
        raise Reason.NEITHER_NORM_BEHIND.error()
    return normalised.NormedAnswers.of(shift, found.gain, centred=False)


def _read_constant(asked: SingleRound, frame: DirectionMap) -> Array:
    """Weigh c, known by its direction, against tokens of a few lengths."""
    zero = frame.norm.directions(asked.y_zero)[0]
    size = np.linalg.norm(zero)
    known, steps = frame.M @ asked.signs[0], asked.steps
    w = frame.directions(asked.y_steps)
    # nothing is left of c in the zero token's answer, or only rounding
    rounded = UNIT * (np.abs(frame.norm.shift) + 1 / np.abs(frame.norm.gain))
    if size <= _ZERO * np.linalg.norm(frame.norm.basis * rounded):
        constant = np.zeros(len(zero))
    else:
        ratios = [_ratio(known, zero / size, one) for one in w]
        lengths = steps * ratios
        best = int(np.argmin(np.abs(np.log(np.maximum(np.abs(ratios), 1e-300)))))
        constant = np.linalg.norm(known) * lengths[best] * zero / size
    expected = np.outer(steps, known) + constant
    missed = float(np.max(_apart(w, expected))) / np.sqrt(len(zero))
    if missed > _AFFINE * frame.noise:
        raise Reason.LAYER_ADDS_SOMETHING.error(missed=missed, noise=frame.noise)
    return constant


def _ratio(known: Array, zero: Array, w: Array) -> float:
    """Return ρ with w ∥ k + ρz for the unit vectors k, z and w of three directions."""
    k = known / np.linalg.norm(known)
    null = np.linalg.svd(np.column_stack([k, zero, w]))[2][-1]
    return float(null[1] / null[0]) if null[0] else np.inf


def _further_step(asked: SingleRound, frame: DirectionMap) -> float:
    """Return how long a token is that is about as long as c, as the one asked shows it."""
    zero = frame.norm.directions(asked.y_zero)[0]
    known, [w] = frame.M @ asked.signs[0], frame.directions(asked.y_steps[:1])
    ratio = abs(_ratio(known, zero, w)) * np.linalg.norm(zero)
    if not 0 < ratio < np.inf or 1 / 4 <= ratio <= 4:
        return _LONGER_STEP
    return float(np.clip(2.0 ** np.rint(np.log2(ratio)), _LEAST_STEP, _MOST_STEP))


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
    unit = np.sqrt(np.mean(moved**2))
    variances = [_FIRST_VARIANCE]
    answers = EpsAnswers(np.zeros((0, frame.dim)), np.zeros((0, frame.dim)))
    while True:
        # as float32 sees it; where it is rounded to is known
        token = still + np.sqrt(variances[-1]) / unit * direction
        token = token.astype(np.float32).astype(np.float64)[None]
        [y] = yield [Singles(token, phase="eps", purpose="data")]
        answers = EpsAnswers(np.vstack([answers.tokens, token]), np.vstack([answers.y, y]))
        # errors of u count by v^(−1/2), those of ‖n‖² by v: least where both are alike
        eps = max(answers.solved(frame))
        size = np.sqrt(np.mean(still**2) + np.mean(frame.c**2))
        best = float(np.clip((size * eps / 2) ** (2 / 3), *_VARIANCES))
        again = min(abs(np.log2(best / one)) for one in variances) < _NEAR
        if again or len(variances) == limits.EPS_TOKENS:
            return answers
        variances.append(best)


# Entries of offsets and query tokens, about: gates are 0 or 1.
_LENGTH = 2.0**18
# Query tokens are of a plane of so many dimensions, or a third of d. More: gates of heads differ
# more; fewer: more of an answer is outside of what the residual puts there.
_PLANE = 64
# Largest coefficient in the plane: query tokens are exactly of it.
_COEFFICIENT = 7
# Gates from sums of them: 2^(H − 1) columns are tried for H heads.
_MOST_HEADS = 18
# Singular values below so many times the noise are noise.
_RANK = 30.0
# A share of the residual below this is none.
_RESIDUAL = 1e-6
# What the residual may miss the heads' answers by where the signs of RMSNorm's scale are right:
# 1e-4 behind float32; one entry of another sign is 2/√d, all being as large as γ = 1 makes them.
_SIGNS_FIT = 1e-2


@dataclass(frozen=True)
class PatternAnswers:
    """All answers that K and γ are read off: of query tokens of a plane beside one offset.

    Attributes
    ----------
    gates : GateAnswers
        They tell a size and a sign; no gates are in it before they are known.
    plane : ndarray, shape (d, r)
    singles : SingleRound
        Answers of single tokens.
    """

    gates: GateAnswers
    plane: Array
    singles: SingleRound

    def layer(self) -> DirectionMap:
        """Return K in true units."""
        return self._layer

    @cached_property
    def _layer(self) -> DirectionMap:
        return self.read(self.singles.solved())[0]

    def read(self, frame: DirectionMap) -> tuple[DirectionMap, Array]:
        """Read K in true units and all gates, as `find_heads` asks until it can."""
        asked, gates = self.gates, self.gates.gates if len(self.gates.gates) else None
        known = frame.known(asked.b)
        w = frame.directions(asked.y)
        inside = _orthonormal(np.column_stack([frame.M @ self.plane, frame.c]), frame.noise)
        outside = w - w @ inside @ inside.T
        _, s, right = np.linalg.svd(outside.T, full_matrices=True)
        noise = frame.noise * np.sqrt(len(known) * frame.dim)
        H = int(np.sum(s > _RANK * noise)) if gates is None else gates.shape[1]
        if H == 0:
            raise Reason.NO_HEADS_BEHIND.error()
        room = len(frame.M) - inside.shape[1]
        if room <= H:
            raise too_few(frame)
        if min(_MOST_HEADS, len(known) - 2) < H:
            raise Reason.TOO_MANY_HEADS_BEHIND.error(heads=H, most=min(_MOST_HEADS, len(known) - 2))
        null = right[H:].T
        # an answer that no combination of others explains has a row of 0 there: its scale is free
        told = np.linalg.norm(null, axis=1) * np.linalg.norm(w, axis=1)
        if not np.all(told > _RANK * noise):
            raise Reason.GATES_OPEN_ONCE.error()
        scales = normalised.scales_by_null_space(inside.T @ w.T, inside.T @ known.T, null)
        if not np.all(scales > 0):
            raise Reason.NO_SUMS_BEHIND.error()
        sums = w / scales[:, None] - known
        frame, sigma, rows = _with_total(frame, asked.a, sums, H)
        if gates is None:
            # those of the first row are all 1
            gates = gate_columns(np.linalg.svd(rows, full_matrices=False)[0][:, :H])[1:]
            if gates.shape[1] > H:
                gates = gates[:, [_open_on_one_side(self.plane, asked.b, g) for g in gates.T]]
            if gates.shape[1] > H:
                found, plane = gates.shape[1], self.plane.shape[1]
                counted = {"heads": H}
                raise Reason.GATES_ALIKE_BEHIND.error(counted, heads=H, found=found, plane=plane)
            if gates.shape[1] < H:
                whole, others = float(np.linalg.norm(rows[0])), np.linalg.norm(rows[1:], axis=1)
                refuse_cancelling(whole / float(np.max(others, initial=TINY)))
                raise Reason.GATES_LEFT_BEHIND.error(heads=H, found=gates.shape[1])
        return frame.scaled(sigma), gates

    def answered(self, fresh: Array) -> Asking[PatternAnswers]:
        """Ask more query tokens."""
        n, known = len(fresh), self.gates
        first: Indices = np.zeros(n, dtype=np.intp)
        beside = known.a[None], fresh, first, np.arange(n), np.ones(n), np.ones(n)
        [y] = yield [Pairs(*beside, phase="heads", purpose="data")]
        b, y = np.vstack([known.b, fresh]), np.vstack([known.y, y])
        return replace(self, gates=replace(known, b=b, y=y))

    def combined(self, count: int, rng: np.random.Generator) -> Array:
        """Draw query tokens of the plane."""
        shape = (count, self.plane.shape[1])
        coefficients = rng.integers(-_COEFFICIENT, _COEFFICIENT + 1, shape)
        coefficients[:, 0] = np.where(coefficients[:, 0] == 0, 1, coefficients[:, 0])
        return np.asarray(coefficients @ self.plane.T)


def find_heads(
    singles: SingleRound, rng: np.random.Generator, exact: bool = False
) -> Asking[PatternAnswers]:
    """Ask until there are exactly H patterns of gates; few query tokens of ``exact`` answers.

    Raises
    ------
    NotIdentifiable
        There are too few dimensions.
    ModelMismatch
        Gates are not 0 or 1.
    """
    failure, frame = None, singles.solved()
    first = limits.PLANE_FEWEST if exact else limits.PLANE_QUERIES
    for longer in limits.PLANE_LONGER:
        wider = 0
        asked = _drawn(singles, frame.dim, longer, rng)
        fresh = asked.combined(first, rng)
        for _ in range(limits.PLANE_ROUNDS):
            asked = yield from asked.answered(fresh)
            try:
                gates = replace(asked.gates, gates=asked.read(frame)[1])
            except ModelMismatch as error:
                failure, fresh = error, asked.combined(limits.PLANE_MORE, rng)
                H = error.determined.get("heads", 0)
                if not wider and asked.plane.shape[1] < (wider := min(H, frame.dim - 3 - H)):
                    # a sum of gates is 0 or 1 all over the plane: it has to be wider
                    asked = _drawn(singles, frame.dim, longer, rng, wider)
                    fresh = asked.combined(first, rng)
                continue
            # heads whose gates are alike by chance pass for one: more heads, more of them
            enough = limits.PLANE_FEWEST + limits.PLANE_BESIDE * (gates.gates.shape[1] - 1)
            lacking = min(enough, limits.PLANE_QUERIES) - len(gates.b)
            if lacking <= 0:
                return replace(asked, gates=gates)
            fresh = asked.combined(lacking, rng)
    assert failure is not None
    raise failure


def too_few(frame: DirectionMap) -> RefusalError:
    """Say that answers have too few numbers for the heads there are."""
    return Reason.TOO_FEW_DIMENSIONS_BEHIND.error(
        {"shift": frame.norm.shift, "scale": np.abs(1 / frame.norm.gain)},
        dim=frame.dim,
        norm="a LayerNorm" if frame.norm.takes_mean else "an RMSNorm",
        numbers=len(frame.norm.basis),
    )


def _open_on_one_side(plane: Array, b: Array, gate: Array) -> bool:
    """Tell whether a gate may be open for query tokens b on one side of a line of the plane."""
    places = np.linalg.lstsq(plane, b.T, rcond=None)[0].T
    sides = (2 * gate - 1)[:, None] * np.column_stack([np.ones(len(b)), places])
    return shortest_within(sides) is not None


def _with_total(
    frame: DirectionMap, offset: Array, sums: Array, H: int
) -> tuple[DirectionMap, float, Array]:
    """Find σ, and signs of an RMSNorm; return them with Σ m_h above the rows Σ g_h m_h."""
    span = np.linalg.svd(sums.T, full_matrices=False)[0][:, :H]
    own = frame.M @ offset
    if not frame.norm.takes_mean:
        frame = _with_signs(frame, offset, own, span)
    residual = frame.norm.projection @ offset
    sigma = _along(residual, own, span)[0]
    if abs(sigma) < _RESIDUAL:
        raise Reason.RESIDUAL_UNSEEN.error({"shift": frame.norm.shift})
    return frame, sigma, np.vstack([own - sigma * residual, sums])


def _along(residual: Array, own: Array, span: Array) -> tuple[float, float]:
    """Return how many times the residual own is but for the span, and what that misses."""
    own_out, residual_out = (x - span @ (span.T @ x) for x in (own, residual))
    sigma = float(own_out @ residual_out / (residual_out @ residual_out))
    return sigma, float(np.linalg.norm(own_out - sigma * residual_out) / np.linalg.norm(own_out))


def _with_signs(frame: DirectionMap, offset: Array, own: Array, span: Array) -> DirectionMap:
    """Return a frame behind an RMSNorm with the signs of γ, up to all of them together."""
    # in units of u every sign counts alike, however small γ is there
    own_u = frame.norm.centred(own[:, None])[:, 0]
    span_u = np.linalg.qr(frame.norm.centred(span))[0]
    if _along(offset, own_u, span_u)[1] <= _SIGNS_FIT:
        return frame
    columns = np.column_stack([np.ones(len(own)), own_u / offset, span_u / offset[:, None]])
    two_valued = gate_columns(np.linalg.qr(columns / np.linalg.norm(columns, axis=0))[0])
    signs = [2 * x - 1 for x in two_valued.T]
    signs = [x for x in signs if _along(x * offset, own_u, span_u)[1] <= _SIGNS_FIT]
    if len(signs) == 1:
        return replace(frame, norm=frame.norm.with_sign(signs[0]))
    if _along(frame.norm.projection @ offset, own, span)[1] <= _SIGNS_FIT:
        return frame  # where γ is so small that answers do not tell it is not seen
    raise Reason.SIGNS_OF_SCALE_UNKNOWN.error(
        {"shift": frame.norm.shift, "size": 1 / frame.norm.gain}, found=len(signs)
    )


def _drawn(
    singles: SingleRound, dim: int, longer: float, rng: np.random.Generator, wider: int = 0
) -> PatternAnswers:
    """Draw an offset and a plane of query tokens, on one coarse grid.

    ``wider`` is how many dimensions it has at least.
    """
    # along a line the scales of answers with open gates are known by c alone
    r = max(2 if dim > limits.PLANE_FEW else 1, min(_PLANE, (dim - 4) // 3), wider)
    most = _COEFFICIENT
    plane = rng.integers(-most, most + 1, (dim, r)).astype(np.float64)
    size = most * (most + 1) / 3 * np.sqrt(r)  # rms of an entry of a query token
    unit = longer * 2.0 ** np.floor(np.log2(_LENGTH / size))
    offset = np.round(size * rng.standard_normal(dim)) * unit
    offset[offset == 0] = unit  # every sign of γ counts
    none = np.zeros((0, dim))
    return PatternAnswers(GateAnswers(offset, none, none, none), unit * plane, singles)


def _orthonormal(columns: Array, noise: float) -> Array:
    """Return a basis of the span of columns, those that are 0 left out."""
    columns = columns[:, np.linalg.norm(columns, axis=0) > 0]
    columns = columns / np.linalg.norm(columns, axis=0)
    left, s, _ = scipy.linalg.svd(columns, full_matrices=False)
    return np.asarray(left[:, s > noise * np.sqrt(len(columns)) * s[0]])
