"""Logits of all pairs of tokens from labels, by bisection: where W comes from.

    [αa − βb; −βb], αβ = s       label 1 ⇔ α² > s(b·v/a·v)(1 + e^{−t}),   t = −s a·(W b)

With s fixed, α places the threshold (`unsoftmax.measure.thresholds`). First the scale s: pilots,
random pairs, at thresholds ±1.5, give the largest power of 2 at which few of them lie outside.
Then every t is bisected on [−4, 4] in parallel; those found at the end of the range start again
at a smaller scale. Queries: 24 per pilot, a label per bit and pair, and at most
`label_counts.label_head_again` again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.single_head.labels.value_ratios import ValueRatios
from unsoftmax.measure import offsets, thresholds
from unsoftmax.measure.bisection import Labels, Question, ScaledBrackets, halve, read_labels
from unsoftmax.measure.offsets import Offsets
from unsoftmax.probes import Array, Indices, Pairs, Purpose
from unsoftmax.refusals import Reason
from unsoftmax.theory.label_counts import SCHEDULE

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
# Random pairs that are looked at, at most. Fewer: all of them may have small logits, and too
# large a scale leaves many of the others out of range.
PILOTS = SCHEDULE.pilots
# Scales tried in each of three rounds, which cut the octaves looked at into one part more.
SCALES_AT_ONCE = SCHEDULE.scales_at_once
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
        return thresholds.scales(t, scale, self.ratio[k])


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
