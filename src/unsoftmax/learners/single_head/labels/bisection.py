"""Labels → readings: unknowns found by halving intervals, a bit per label.

A label says whether an unknown is above the place where it was asked. `Brackets` holds one
interval per unknown; a round asks all of them at their middles at once (`halve`). An unknown
that is read at a scale (a logit t = s·m of which m is wanted) may turn out to lie beyond the
range at which labels can tell: `ScaledBrackets` starts it again at a smaller scale.

Queries: one per unknown and bit. Nothing is known here of heads, or of how a place becomes a
probe. Source: beyond Theorem B.1, which bisects one unknown at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.compose import Asking
from unsoftmax.measure import offsets
from unsoftmax.measure.offsets import Offsets
from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.probes import Array, Indices, Pairs, Probes, Purpose, Round, Singles
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason
from unsoftmax.theory import counts
from unsoftmax.theory.counts import FIRST_BITS, PILOTS, RESTARTS, SCALES_AT_ONCE

Labels: TypeAlias = NDArray[np.bool_]


# Logits are bisected on [−range, range]. Larger: σ' is small and rounding moves the flip;
# smaller: more logits start again.
RANGE = 4.0
# A logit found beyond this after the first bits starts again at a smaller scale.
EDGE = 3.0
# Divides the scale of a logit that starts again: beyond ±3 it lies within ±4 at the next scale
# unless it is larger than 32 at this one.
SMALLER = 8.0
# A logit that ends beyond this after all its restarts is refused.
LOST = 3.5


def read_labels(answers: Sequence[Array]) -> list[Labels]:
    """Read labels: 1 where f(X) > 0, else 0 or −1; so `np.sign`, which is 0 at 0, gives labels.

    Raises
    ------
    ModelMismatch
        Anything but 1, 0 and −1.
    """
    for y in answers:
        if other := np.unique(y[(y != 0) & (np.abs(y) != 1)])[:3].tolist():
            raise Reason.NO_LABELS.error(answers=", ".join(f"{value:g}" for value in other))
    return [y == 1 for y in answers]


@dataclass(slots=True)
class Brackets:
    """Intervals that each hold one unknown, halved by labels.

    Examples
    --------
    >>> brackets = Brackets.of(2, 0.0, 1.0)
    >>> brackets.narrow(np.array([1]), np.array([True]))
    >>> brackets.middle.tolist(), brackets.bits.tolist()
    ([0.5, 0.75], [0, 1])
    """

    low: Array
    high: Array
    bits: Indices
    """How often each was halved."""

    @classmethod
    def of(cls, count: int, low: float, high: float) -> Brackets:
        """Start ``count`` intervals alike."""
        return cls(np.full(count, low), np.full(count, high), np.zeros(count, dtype=np.intp))

    @property
    def middle(self) -> Array:
        """Where to ask next."""
        return (self.low + self.high) / 2

    def narrow(self, index: Indices, above: Labels) -> None:
        """Keep the half that the labels name: the unknown is above the middle, or below."""
        middle = self.middle[index]
        self.low[index] = np.where(above, middle, self.low[index])
        self.high[index] = np.where(above, self.high[index], middle)
        self.bits[index] += 1

    def start(self, index: Indices, low: float, high: float) -> None:
        """Start some of them anew."""
        self.low[index], self.high[index], self.bits[index] = low, high, 0


@dataclass(slots=True)
class ScaledBrackets:
    """Unknowns t = s·m, each at a scale s of its own, smaller every time it starts again."""

    brackets: Brackets
    scale: Array
    starts: Indices

    @classmethod
    def of(cls, count: int, scale: float) -> ScaledBrackets:
        """Start ``count`` unknowns at one scale."""
        brackets = Brackets.of(count, -RANGE, RANGE)
        return cls(brackets, np.full(count, scale), np.ones(count, dtype=np.intp))

    @property
    def repeating(self) -> Labels:
        """Which of them ask bits again that were asked at another scale."""
        return (self.starts > 1) & (self.brackets.bits < FIRST_BITS)

    @property
    def lost(self) -> Labels:
        """Which of them lie at the end of the range."""
        return np.abs(self.brackets.middle) > LOST

    def start_again(self, spare: int) -> int:
        """Give unknowns at the end of the range a smaller scale, ``spare`` at most.

        They are looked at once, after the first bits. Returns how many started again.
        """
        found, edge = self.brackets, EDGE
        beyond = (found.low >= edge) | (found.high <= -edge)
        looked_at = (found.bits == FIRST_BITS) & (self.starts <= RESTARTS)
        index = np.flatnonzero(beyond & looked_at)[:spare]
        found.start(index, -RANGE, RANGE)
        self.scale[index] /= SMALLER
        self.starts[index] += 1
        return len(index)


@dataclass(frozen=True, slots=True)
class Question:
    """Probes whose labels say which unknowns are above the middle of their brackets."""

    probes: Probes
    brackets: Brackets
    index: Indices


def halve(
    questions: Sequence[Question], beside: Sequence[Probes] = ()
) -> Generator[Round, Answers, list[Labels]]:
    """Ask in one round and narrow the brackets; return the labels of what was asked ``beside``."""
    asked: Round = [*beside, *(question.probes for question in questions)]
    labels = read_labels((yield asked))
    for question, above in zip(questions, labels[len(beside) :], strict=True):
        question.brackets.narrow(question.index, above)
    return labels[: len(beside)]


# -- Single tokens that weigh two entries of v against each other, made on demand


@dataclass(frozen=True, slots=True)
class Contrasts(Probes):
    """Single tokens that weigh two entries of v: probe k is g_i e_i − ρ_k g_p e_p.

    ``signs`` are g_1 … g_d; ``i``, ``p`` and ``rho`` are per probe, i ≠ p.
    """

    signs: Array
    i: Indices
    p: Indices
    rho: Array

    @property
    def tokens(self) -> int:  # noqa: D102
        return 1

    @property
    def dim(self) -> int:  # noqa: D102
        return len(self.signs)

    def __len__(self) -> int:
        return len(self.i)

    def __getitem__(self, span: slice) -> Array:
        i, p = self.i[span], self.p[span]
        X = np.zeros((len(i), 1, self.dim))
        X[np.arange(len(i)), 0, i] = self.signs[i]
        X[np.arange(len(i)), 0, p] = -self.rho[span] * self.signs[p]
        return X


# -- Where labels flip, and what that bounds: v's ratios, logits, W
#
# A label is the sign of what the target computes, off by at most η(X) = κu·max_i‖x_i‖·‖v‖ and
# by the rounding of the scores, κu‖x_i‖‖W x_N‖. With ‖v‖ = 1:
#
#     f([g_i e_i − ρ g_p e_p]) = |v_i| − ρ|v_p|                flips at ρ = |v_i|/|v_p|
#     X = [αa + βb; βb],  b·v < 0 < a·v:
#     f(X) = β b·v + (αa·v)·σ(t), t = αβ a·(W b)                flips at σ(t) = −(β/α)(b·v)/(a·v)
#
# With αβ = s fixed the logit stays and α moves the threshold: α² = s·(−b·v/a·v)·(1 + e^{−t}).
# Nothing is asked here: `unsoftmax.learners.single_head.labels.bisection` finds the flips.
# Source: beyond the paper, whose Theorem B.1 bisects the same two tokens with a = e_i, b = e_j.

# Roundings of a probe's own tokens: once as products α·a, once as a sum.
_PROBE_ROUNDINGS = 2.0


def threshold_scales(t: Array, scale: Array, ratio: Array) -> tuple[Array, Array]:
    """Return α and β = s/α that put the threshold at the logit t; ``ratio`` is |b·v|/(a·v)."""
    alpha = np.sqrt(scale * ratio * (1 + np.exp(-t)))
    return alpha, scale / alpha


def threshold(alpha: Array, beta: Array, ratio: Array) -> Array:
    """Return the logit at which the label flips, inf where no logit is that large."""
    p = beta / alpha * ratio
    with np.errstate(divide="ignore", invalid="ignore"):
        logit: Array = np.where(p < 1, np.log(p) - np.log1p(-p), np.inf)
    return logit


def ratio_rounding(ratio: Array, norm: float) -> Array:
    """Bound how far rounding moves the flip of a ratio; ``norm`` is ‖v‖/|v_p|."""
    bound: Array = (KAPPA + _PROBE_ROUNDINGS) * UNIT * np.sqrt(1 + ratio**2) * norm
    return bound


def logit_rounding(t: Array, a_value: Array, b_score: Array, size: Array) -> Array:
    """Bound how far rounding moves the flip at a logit t.

    Parameters
    ----------
    t : ndarray
        Logits; where they are only known to an interval, its largest in absolute value.
    a_value : ndarray
        a·v̂ of the offsets.
    b_score : ndarray
        s‖W b‖, the size of the scores per unit of ‖x‖/α.
    size : ndarray
        ‖αa + βb‖/α at most: ‖a‖ + (β/α)‖b‖.
    """
    p = 1 / (1 + np.exp(-np.abs(t)))
    values = (KAPPA + _PROBE_ROUNDINGS) * UNIT * size / (a_value * p * (1 - p))
    scores = (KAPPA + _PROBE_ROUNDINGS) * UNIT * 2 * size * b_score
    bound: Array = values + scores
    return bound


def direction_error(ratios: Array, errors: Array) -> float:
    """Bound ‖r̂/‖r̂‖ − r/‖r‖‖₂ for |r̂_i − r_i| ≤ ``errors``.

    By ‖x/‖x‖ − y/‖y‖‖ ≤ 2‖x − y‖/(‖x‖ + ‖y‖).
    """
    off, size = float(np.linalg.norm(errors)), float(np.linalg.norm(ratios))
    if off >= size:
        return 2.0
    return min(2.0, 2 * off / (2 * size - off)) + 4 * UNIT


@dataclass(frozen=True, slots=True)
class ThroughValues:
    """What an error of v̂ does to logits that were read through it.

    v̂ and v are unit vectors; scaling v moves no threshold, so only the part ω of v that is
    orthogonal to v̂ counts: ‖ω‖ ≤ tan φ where 2 sin(φ/2) = ‖v̂ − v‖.
    """

    a_shift: float
    """Bound on √Σ_a (a·ω/a·v̂)²."""
    b_shift: float
    """The same of the query tokens."""
    largest: float
    """Bound on any |a·ω/a·v̂| or |b·ω/b·v̂|."""

    @classmethod
    def of(cls, v: Array, v_error: float, a: Array, b: Array) -> ThroughValues:
        """Look at offsets and query tokens through v̂."""
        tangent = v_error / max(1e-300, 1 - v_error**2) if v_error < 1 else np.inf
        shifts, largest = [], 0.0
        for rows in (a, b):
            across = (rows - np.outer(rows @ v, v)) / np.abs(rows @ v)[:, None]
            shifts.append(tangent * float(np.linalg.norm(across, 2)))
            largest = max(largest, tangent * float(np.linalg.norm(across, axis=1).max()))
        return cls(shifts[0], shifts[1], largest)

    def error(self, t: Array, scale: Array) -> float:
        """Bound ‖Δ(t/s)‖_F for logits t (query tokens, offsets) read at scales s.

        dt = d(log p)/(1 − p), and log p moves by log(1 + b·ω/b·v̂) − log(1 + a·ω/a·v̂), each at
        most x/(1 − x) for x = ``largest``. From x = ½ on there is no useful bound.
        """
        x = self.largest
        if x >= 0.5:
            return float("inf")
        q = 1 / (1 + np.exp(t))
        q = q - (1 - q) * np.expm1(2 * x / (1 - x))
        if not np.all(q > 0):
            return float("inf")
        gain = 1 / (q * scale)
        per_token = np.sqrt(np.max(np.sum(gain**2, axis=1)))
        per_offset = np.sqrt(np.max(np.sum(gain**2, axis=0)))
        return float((per_token * self.b_shift + per_offset * self.a_shift) / (1 - x))


# -- v up to its norm from labels of single tokens: signs, the largest entry, ratios to it
#
#     [e_i]                    label 1 ⇔ v_i > 0                  g_i = ±1; v_i = g_i|v_i|
#     [g_i e_i − g_j e_j]      label 1 ⇔ |v_i| > |v_j|            p with |v_p| ≥ |v_i|
#     [g_i e_i − ρ g_p e_p]    label 1 ⇔ ρ < |v_i|/|v_p|          zeros of v fall to 0
#
# Queries: d signs, the comparisons of `counts.comparisons`, 4 tests of the signs, and a label
# per bit of every ratio. Here are the first bits, enough for balanced offsets; the rest are asked
# beside the bits of W (`pair_logits`).


@dataclass(frozen=True, slots=True)
class ValueRatios:
    """The unknowns r_i = |v_i|/|v_p|."""

    signs: Array
    top: int
    """p."""
    brackets: Brackets
    others: Indices
    """All entries but p, as ordered in the brackets."""

    @classmethod
    def of(cls, signs: Array, top: int) -> ValueRatios:
        """Start with r_i in [0, 1]."""
        d = len(signs)
        return cls(signs, top, Brackets.of(d - 1, 0.0, 1.0), np.delete(np.arange(d), top))

    def probes(self, rho: Array, purpose: Purpose, phase: str = "v") -> Contrasts:
        """Ask whether every r_i is above ρ_i."""
        top = np.full(len(self.others), self.top)
        return Contrasts(self.signs, self.others, top, rho, phase=phase, purpose=purpose)

    def questions(self, bits: int) -> list[Question]:
        """Ask for the next bit of all ratios, if they have fewer than ``bits``."""
        due = np.flatnonzero(self.brackets.bits < bits)
        if not len(due):
            return []
        return [Question(self.probes(self.brackets.middle, "data"), self.brackets, due)]

    def value(self) -> Array:
        """Return v with v_p = ±1; entries that no bit has set are 0."""
        ratios = np.ones(len(self.signs))
        ratios[self.others] = np.where(self.brackets.low > 0, self.brackets.middle, 0.0)
        return self.signs * ratios


def first_ratios(signs: Array, opened: Labels, tiny: float, group: int) -> Asking[ValueRatios]:
    """Find the largest entry of v and the first bits of the others' ratios to it.

    Entries are compared in groups of ``group``. ``tiny`` scales a token down to where a constant
    added to the answers shows, or v = 0; ``opened`` are the labels of longer sequences, which tell
    the two apart.
    """
    d = len(signs)
    ratios = ValueRatios.of(signs, (yield from _largest(signs, group)))
    token = signs[ratios.top] * np.eye(1, d, ratios.top)
    both = np.concatenate([token, -token, tiny * token, -tiny * token])
    tests: list[Probes] = [Singles(both, phase="largest entry of v", purpose="data")]
    bits = counts.rough_bits(d)
    [labels] = yield from halve(ratios.questions(bits), beside=tests)
    _refuse_value(labels, signs, opened)
    while questions := ratios.questions(bits):
        yield from halve(questions)
    return ratios


def _largest(signs: Array, group: int) -> Asking[int]:
    """Compare entries in groups, everyone with everyone; winners go on until one is left."""
    standing = np.arange(len(signs))
    first, second = np.triu_indices(group, 1)
    while len(standing) > 1:
        groups = -(-len(standing) // group)
        start = group * np.arange(groups)[:, None]
        i, j = (start + first).ravel(), (start + second).ravel()
        i, j = i[j < len(standing)], j[j < len(standing)]
        pairs = signs, standing[i], standing[j], np.ones(len(i))
        [larger] = read_labels(
            (yield [Contrasts(*pairs, phase="largest entry of v", purpose="pilot")])
        )
        wins = np.bincount(np.where(larger, i, j), minlength=group * groups)
        wins[len(standing) :] = -1
        best = np.argmax(wins.reshape(groups, -1), axis=1)
        standing = standing[start[:, 0] + best]
    return int(standing[0])


def _refuse_value(labels: Labels, signs: Array, opened: Labels) -> None:
    """Refuse labels of x, −x, and of both scaled down, that no x·v has."""
    if np.array_equal(labels, [True, False, True, False]):
        return
    if not labels.any() and np.all(signs < 0):
        if not opened.any():
            raise Reason.LABELS_ALL_0.error({"v": np.zeros(len(signs))})
        raise Reason.TOKENS_ALL_0.error()
    if labels.all():
        raise Reason.LABELS_ALL_1.error()
    raise Reason.SIGNS_CONTRADICT.error(labels=", ".join(str(int(label)) for label in labels))


# -- Logits of all pairs of tokens from labels, by bisection: where W comes from
#
#     [αa − βb; −βb], αβ = s       label 1 ⇔ α² > s(b·v/a·v)(1 + e^{−t}),   t = −s a·(W b)
#
# With s fixed, α places the threshold. First the scale s: pilots,
# random pairs, at thresholds ±1.5, give the largest power of 2 at which few of them lie outside.
# Then every t is bisected on [−4, 4] in parallel; those found at the end of the range start again
# at a smaller scale. Queries: 24 per pilot, a label per bit and pair, and at most
# `counts.label_head_again` again.

# Pilots look whether |t| is above this: half of the range, so that few logits start again and
# none is measured far below the range.
PILOT = 1.5
# One in so many pilots may lie outside.
ONE_OUTSIDE = 8
# What pilots' thresholds may be off by: the rough v shifts log p by 2 % at most, so a threshold
# of 1.5 by 0.02/(1 − σ(1.5)). Smaller: right labels are refused for contradicting each other;
# larger: wrong ones pass.
PILOT_ERROR = 0.15
# log₂ of the smallest scale looked at: tokens scaled down by 2⁻³¹.
LOWEST_OCTAVE = -62
# How many scales there are, a factor of 2 apart, and log₂ of the largest.
OCTAVES = (SCALES_AT_ONCE + 1) ** 3
HIGHEST_OCTAVE = LOWEST_OCTAVE + OCTAVES - 1


@dataclass(frozen=True, slots=True)
class TokenPairs:
    """Offsets a and query tokens b balanced on a rough v: pairs ordered by b, then by a."""

    a: Offsets
    b: Offsets
    a_rows: Array
    b_rows: Array
    ratio: Array
    """(b·v)/(a·v) of the rough v, which places the thresholds."""

    @classmethod
    def balanced(cls, v: Array, rng: np.random.Generator) -> TokenPairs:
        """Draw d offsets and d query tokens, a·v and b·v all alike."""
        a, b = offsets.balanced(v, rng), offsets.balanced(v, rng)
        a_rows, b_rows = a.made(), b.made()
        return cls(a, b, a_rows, b_rows, np.divide.outer(b_rows @ v, a_rows @ v).ravel())

    def __len__(self) -> int:
        return len(self.ratio)

    def probes(self, k: Indices, scales: tuple[Array, Array], phase: str, why: Purpose) -> Pairs:
        """Ask for pairs k with offsets scaled by α and query tokens by −β."""
        j, i = np.divmod(k, len(self.a_rows))
        alpha, beta = scales
        return Pairs(self.a_rows, self.b_rows, i, j, alpha, -beta, phase=phase, purpose=why)

    def scales(self, k: Indices, t: Array, scale: Array) -> tuple[Array, Array]:
        """Return α and β that put the thresholds of pairs k at t."""
        return threshold_scales(t, scale, self.ratio[k])


def find_threshold_scale(
    pairs: TokenPairs, v: Array, rng: np.random.Generator
) -> Asking[tuple[Indices, int]]:
    """Return pilots, and log₂ of the largest scale at which few of their |t| exceed 1.5."""
    count = min(PILOTS, len(pairs))
    pilots = np.sort(rng.choice(len(pairs), count, replace=False))
    width, lowest = OCTAVES, LOWEST_OCTAVE
    while width > 1:
        width //= SCALES_AT_ONCE + 1
        octaves = lowest + width * np.arange(1, SCALES_AT_ONCE + 1)
        outside = yield from _outside(pairs, pilots, octaves, PILOT)
        fits = np.cumprod(outside <= len(pilots) // ONE_OUTSIDE)
        lowest += width * int(np.sum(fits))
    if lowest == LOWEST_OCTAVE:
        known = {"v": v / np.linalg.norm(v)}
        raise Reason.NO_SOFT_LABELS.error(known, halvings=LOWEST_OCTAVE // 2, logit=PILOT)
    return pilots, lowest


def _outside(pairs: TokenPairs, k: Indices, octaves: Indices, pilot: float) -> Asking[Indices]:
    """Count the pairs k with |t| > ``pilot`` at each of several scales."""
    at = np.repeat([pilot, -pilot], len(octaves))
    every = np.broadcast_arrays(np.exp2(np.tile(octaves, 2))[:, None], at[:, None], k[None])
    scale, t, index = (array.ravel() for array in every)
    probes = pairs.probes(index, pairs.scales(index, t, scale), "scale of W", "pilot")
    [labels] = read_labels((yield [probes]))
    beyond, within = labels.reshape(2, len(octaves), len(k))
    return np.asarray(np.count_nonzero(beyond | ~within, axis=1))


def bisect_all(
    pairs: TokenPairs, logits: ScaledBrackets, ratios: ValueRatios, bits: int, spare: int
) -> Asking[None]:
    """Halve every interval to the last bit, v's beside W's; ``spare`` logits may start again."""
    while questions := [*_questions(pairs, logits, bits), *ratios.questions(bits)]:
        yield from halve(questions)
        spare -= logits.start_again(spare)
    if np.any(logits.lost):
        v = ratios.value()
        lost, known = np.count_nonzero(logits.lost), {"v": v / np.linalg.norm(v)}
        raise Reason.LOGITS_LOST.error(known, lost=lost, all=len(logits.lost))


def _questions(pairs: TokenPairs, logits: ScaledBrackets, bits: int) -> list[Question]:
    """Ask for the next bit of all logits that have fewer than ``bits``."""
    found = logits.brackets
    due, repeating = found.bits < bits, logits.repeating
    kinds: tuple[tuple[str, Purpose, Labels], ...] = (
        ("W", "data", ~repeating),
        ("W, again", "again", repeating),
    )
    questions = []
    for phase, purpose, chosen in kinds:
        k = np.flatnonzero(chosen & due)
        if len(k):
            scales = pairs.scales(k, found.middle[k], logits.scale[k])
            questions.append(Question(pairs.probes(k, scales, phase, purpose), found, k))
    return questions
