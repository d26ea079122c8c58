"""One attention head from labels by bisection: a bit of a parameter per query.

    signs      [e_i]                          g_i = ±1; v_i = g_i|v_i|
    largest    [g_i e_i − g_j e_j]            p with |v_p| ≥ |v_i|, groups of 8 at once
    v          [g_i e_i − ρ g_p e_p]          label 1 while ρ < |v_i|/|v_p|: zeros of v fall to 0
    W          [αa − βb; −βb], αβ = s         label 1 while α² > s(b·v/a·v)(1 + e^{−t}),
                                              t = −s a·(W b)

1. Signs; the largest entry; the first bits of v's ratios, enough for balanced offsets a and
   balanced query tokens b (a·v and b·v all alike, so that no threshold is ill-conditioned).
2. The scale s: 16 random pairs (a, b), thresholds t = ±1.5, the largest power of 2 at which at
   most an eighth of them lie outside.
3. Every t bisected on [−4, 4] in parallel, with the rest of v's bits beside them. Entries
   found beyond ±3 after 4 bits start again at s/8.
4. Ŵ = Z_a⁻¹(−t̂/s)Z_b⁻ᵀ, t̂ through the final v̂.
5. End checks and the hold-out: `labels.fit` and `labels.checks`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.single_head.labels import checks as closing_checks
from unsoftmax.learners.single_head.labels.fit import Fit, refuse_contradictions, refuse_scale
from unsoftmax.learners.single_head.labels.probes import Contrasts, read
from unsoftmax.learners.single_head.labels.unknowns import RANGE, Brackets, Entries, Ratios
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Indices, Purpose, Round, Singles, UnitVectors
from unsoftmax.protocol import Answers, Found, Steps
from unsoftmax.theory import label_counts
from unsoftmax.validate import sequences as holdout

Labels: TypeAlias = NDArray[np.bool_]

# Thresholds are set through a v known to 1 %, so that σ(3.5) is still told from 1 and σ(4) is not:
# entries start again from ±3 on, at an eighth of the scale, and are lost beyond ±3.5.
_EDGE, _LOST = 3.0, 3.5
_SMALLER = 8.0
# Where pilots look, and how many of them may lie outside: then few entries start again.
_PILOT, _OUTSIDE = 1.5, 8
# The rough v shifts log p by 2 % at most, so a threshold of 1.5 by 0.02/(1 − σ(1.5)).
_PILOT_ERROR = 0.15
# log₂ s is searched between these in three rounds of four: 5³ = 125.
_LOWEST, _OCTAVES = -62, 125
# v = 0 and a constant added to the answers show at a token as small as this, which float32 holds.
_TINY = 2.0**-60


def learn(dim: int, bits: int, checks: int, rng: np.random.Generator) -> Steps[SingleHead]:
    """Recover v up to scale and W; see `LabelHead`."""
    opening = holdout.opening(dim, checks // 4, rng)
    singles = Singles(UnitVectors(dim), phase="signs of v", purpose="data")
    opened, positive = read((yield [opening, singles]))
    signs = np.where(positive, 1.0, -1.0)
    ratios = yield from _ratios(signs, opened)

    entries = Entries.of(ratios.value(), rng)
    pilots, octave = yield from _scale(entries, ratios.value(), rng)
    entries.scale[:] = 2.0**octave
    yield from _bisect(entries, ratios, bits)

    fit = Fit.of(entries, ratios)
    if octave < _LOWEST + _OCTAVES - 1:
        limits = (_PILOT - _PILOT_ERROR, _PILOT + _PILOT_ERROR)
        refuse_scale(fit, pilots, 2.0**octave, limits, len(pilots) // _OUTSIDE)
    certificate = fit.certificate(checks)
    closing = closing_checks.closing(fit.model, certificate, checks - len(opened), rng)
    ends = fit.ends()
    labels = read((yield [*ends, *closing]))
    refuse_contradictions(ends, labels[: len(ends)])
    evidence = closing_checks.judge(
        [opening, *closing], [opened, *labels[len(ends) :]], fit.model, certificate, checks
    )
    return Found(fit.model, certificate, evidence, fit.notes(certificate))


# -- v


def _ratios(signs: Array, opened: Labels) -> Generator[Round, Answers, Ratios]:
    """Find the largest entry of v and the first bits of the others' ratios to it."""
    d = len(signs)
    top = yield from _largest(signs)
    others = np.delete(np.arange(d), top)
    ratios = Ratios(signs, top, Brackets.of(d - 1, 0.0, 1.0), others)
    token = signs[top] * np.eye(1, d, top)
    both = np.concatenate([token, -token, _TINY * token, -_TINY * token])
    tests: Round = [Singles(both, phase="largest entry of v", purpose="data")]
    for n in range(label_counts.rough_bits(d) if d > 1 else 1):
        asked: Round = [ratios.ask(ratios.brackets.middle, "data")] if d > 1 else []
        labels = read((yield [*tests, *asked] if n == 0 else asked))
        if n == 0:
            _refuse_value(labels[0], signs, opened)
        if d > 1:
            ratios.brackets.narrow(np.arange(d - 1), labels[-1])
    return ratios


def _largest(signs: Array) -> Generator[Round, Answers, int]:
    """Let groups of 8 entries play everyone against everyone until one is left."""
    standing = np.arange(len(signs))
    first, second = np.triu_indices(label_counts.SCHEDULE.group, 1)
    while len(standing) > 1:
        groups = -(-len(standing) // label_counts.SCHEDULE.group)
        start = label_counts.SCHEDULE.group * np.arange(groups)[:, None]
        i, j = (start + first).ravel(), (start + second).ravel()
        i, j = i[j < len(standing)], j[j < len(standing)]
        probes = Contrasts(
            signs,
            standing[i],
            standing[j],
            np.ones(len(i)),
            phase="largest entry of v",
            purpose="pilot",
        )
        [larger] = read((yield [probes]))
        wins = np.bincount(np.where(larger, i, j), minlength=label_counts.SCHEDULE.group * groups)
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
            raise NotIdentifiable(
                "Every label is 0, as with v = 0: then the softmax weights nothing, so W is free "
                "and no query can determine it. (A constant far below 0 on top of a head would "
                "look the same.)",
                determined={"v": np.zeros(len(signs))},
            )
        raise ModelMismatch(
            "Single tokens are all labelled 0, as if v = 0, but longer sequences are not: the "
            "target is not the sign of a single attention head without biases."
        )
    if labels.all():
        raise ModelMismatch(
            "A token and its negative are both labelled 1: the labels are constant, or a "
            "constant is added before the sign is taken. f([−x]) = −f([x]) for every attention "
            "head without biases."
        )
    raise ModelMismatch(
        "A token x, −x and both scaled by 2⁻⁶⁰ are labelled "
        f"{', '.join(str(int(label)) for label in labels)} instead of 1, 0, 1, 0: the labels "
        "contradict each other, or a constant is added before the sign is taken. The target is "
        "not the sign of a single attention head without biases."
    )


# -- W


def _scale(
    entries: Entries, v: Array, rng: np.random.Generator
) -> Generator[Round, Answers, tuple[Indices, int]]:
    """Find pilots, and the largest power of 2 at which few of their |t| exceed 1.5."""
    n = len(entries.scale)
    k = np.sort(rng.choice(n, min(label_counts.SCHEDULE.pilots, n), replace=False))
    tried, width, lowest = label_counts.SCHEDULE.probed_scales // 3, _OCTAVES, _LOWEST
    while width > 1:
        width //= tried + 1
        octaves = lowest + width * np.arange(1, tried + 1)
        at = np.repeat([_PILOT, -_PILOT], tried)
        scale, t, every = np.broadcast_arrays(
            np.exp2(np.tile(octaves, 2))[:, None], at[:, None], k[None]
        )
        alpha, beta = entries.scales(every.ravel(), t.ravel(), scale.ravel())
        probes = entries.ask(every.ravel(), alpha, beta, "scale of W", "pilot")
        [labels] = read((yield [probes]))
        beyond, within = labels.reshape(2, tried, len(k))
        outside = np.count_nonzero(beyond | ~within, axis=1)
        fits = np.cumprod(outside <= len(k) // _OUTSIDE)
        lowest += width * int(np.sum(fits))
    if lowest == _LOWEST:
        raise NotIdentifiable(
            f"Logits are out of reach: tokens scaled down by 2^{_LOWEST // 2} leave them "
            f"beyond ±{_PILOT}, as with hard attention or none. v is determined up to its norm, "
            "W is not.",
            determined={"v": v / np.linalg.norm(v)},
        )
    return k, lowest


def _bisect(entries: Entries, ratios: Ratios, bits: int) -> Generator[Round, Answers, None]:
    """Halve every interval to the last bit, v's beside W's."""
    d = len(ratios.signs)
    spare = label_counts.label_head_again(d) // label_counts.SCHEDULE.first_bits
    remaining = max(bits - label_counts.rough_bits(d), 0) if d > 1 else 0
    while remaining or np.any(entries.bits < bits):
        parts: Round = []
        groups: list[Indices] = []
        repeated = (entries.starts > 1) & (entries.bits < label_counts.SCHEDULE.first_bits)
        kinds: tuple[tuple[Purpose, Labels], ...] = (("data", ~repeated), ("again", repeated))
        for purpose, chosen in kinds:
            k = np.flatnonzero(chosen & (entries.bits < bits))
            if len(k):
                alpha, beta = entries.scales(k, entries.brackets.middle[k], entries.scale[k])
                name = "W" if purpose == "data" else "W, again"
                parts.append(entries.ask(k, alpha, beta, name, purpose))
                groups.append(k)
        if remaining:
            parts.append(ratios.ask(ratios.brackets.middle, "data"))
        labels = read((yield parts))
        for k, label in zip(groups, labels, strict=False):
            entries.brackets.narrow(k, label)
            entries.bits[k] += 1
        if remaining:
            ratios.brackets.narrow(np.arange(d - 1), labels[-1])
            remaining -= 1
        spare -= _start_again(entries, spare)
    lost = np.abs(entries.brackets.middle) > _LOST
    if np.any(lost):
        v = ratios.value()
        raise NotIdentifiable(
            f"{np.count_nonzero(lost)} of {lost.size} logits are out of reach, far larger than "
            "the others at every scale tried: try another seed. v is determined up to its norm.",
            determined={"v": v / np.linalg.norm(v)},
        )


def _start_again(entries: Entries, spare: int) -> int:
    """Give entries that lie at the end of the range another scale; return how many."""
    found = entries.brackets
    beyond = (found.low >= _EDGE) | (found.high <= -_EDGE)
    tested = (entries.bits == label_counts.SCHEDULE.first_bits) & (
        entries.starts <= label_counts.SCHEDULE.restarts
    )
    k = np.flatnonzero(beyond & tested)[:spare]
    found.low[k], found.high[k] = -RANGE, RANGE
    entries.scale[k] /= _SMALLER
    entries.bits[k] = 0
    entries.starts[k] += 1
    return len(k)
