"""One attention head from labels by bisection: a bit of a parameter per query.

1. Signs of v; its largest entry; the first bits of the ratios to it, enough for balanced offsets
   a and balanced query tokens b (a·v and b·v all alike, so that no threshold is ill-conditioned):
   `value_ratios`.
2. The scale s: the largest power of 2 at which at most an eighth of 16 random pairs (a, b) have
   logits beyond ±1.5.
3. Every logit t = −s a·(W b) bisected on [−4, 4] in parallel, with the rest of v's bits beside
   them. Logits found beyond ±3 after 4 bits start again at s/8: `pair_logits`.
4. Ŵ = Z_a⁻¹(−t̂/s)Z_b⁻ᵀ, t̂ read through the final v̂; labels beside every interval prove it:
   `proved_head`.
5. The hold-out, at flips of longer sequences: `beside_flips`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.learners.single_head.labels.beside_flips import (
    LONG,
    at_flips,
    judge_labels,
    long_at_flips,
    with_lengths,
)
from unsoftmax.learners.single_head.labels.pair_logits import (
    HIGHEST_OCTAVE,
    TokenPairs,
    bisect_all,
    find_threshold_scale,
)
from unsoftmax.learners.single_head.labels.proved_head import (
    ProvedHead,
    refuse_contradictions,
    refuse_scale,
)
from unsoftmax.learners.single_head.labels.value_ratios import first_ratios
from unsoftmax.measure.bisection import BisectionTuning, ScaledBrackets, read_labels
from unsoftmax.models import SingleHead
from unsoftmax.probes import Singles, UnitVectors
from unsoftmax.protocol import Found, Steps
from unsoftmax.theory.label_counts import SCHEDULE, LabelSchedule, label_head_again
from unsoftmax.validate import sequences
from unsoftmax.validate.judge import fresh_answers

# v = 0 and a constant added to the answers show at a token scaled down by this, which float32
# holds.
TINY = 2.0**-60


@dataclass(frozen=True, slots=True)
class LabelTuning:
    """Knobs of learning from labels."""

    group: int = field(default=SCHEDULE.group, metadata={"least": 1})
    """Entries of v that are compared with each other at once to find the largest. Larger: fewer
    rounds, but group·(group − 1)/2 labels for every group."""

    @property
    def schedule(self) -> LabelSchedule:
        """What the number of labels depends on."""
        return LabelSchedule(self.group)


def learn_by_bisection(
    dim: int, bits: int, checks: int, seed: int, schedule: LabelSchedule
) -> Steps[SingleHead]:
    """Recover v up to scale and W; see `LabelHead`."""
    rng = np.random.default_rng(seed)
    opening = sequences.opening(dim, checks // 4, rng)
    singles = Singles(UnitVectors(dim), phase="signs of v", purpose="data")
    opened, positive = read_labels((yield [opening, singles]))
    signs = np.where(positive, 1.0, -1.0)
    ratios = yield from first_ratios(signs, opened, TINY, schedule.group)

    v = ratios.value()
    pairs = TokenPairs.balanced(v, rng)
    pilots, octave = yield from find_threshold_scale(pairs, v, rng)
    logits = ScaledBrackets.of(len(pairs), 2.0**octave, BisectionTuning())
    spare = label_head_again(dim, schedule) // schedule.first_bits
    yield from bisect_all(pairs, logits, ratios, bits, spare)

    found = ProvedHead.of(pairs, logits, ratios)
    if octave < HIGHEST_OCTAVE:
        refuse_scale(found, pilots, 2.0**octave)
    certificate, left = found.certificate(checks), checks - len(opened)
    long = long_at_flips(found.model, certificate, left, rng)
    short = left - sum(map(len, long))
    closing = at_flips(found.model, certificate, short, rng)
    ends = found.end_checks()
    labels = read_labels((yield [*ends, *closing]))
    refuse_contradictions(ends, labels[: len(ends)])
    asked = zip([opening, *closing], [opened, *labels[len(ends) :]], strict=True)
    before = [(part.X, y.astype(np.float64)) for part, y in asked]
    answered = yield from fresh_answers([], before, LONG.rounds(long))
    judgement = judge_labels(found.model, certificate, answered, checks)
    certificate = with_lengths(certificate, found.model, answered, long)
    return Found(found.model, certificate, judgement.evidence, found.notes(certificate))
