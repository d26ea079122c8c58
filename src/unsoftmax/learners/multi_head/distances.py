"""Several heads with rotary positions, from scalar answers: W_h(1), then r² queries a head.

It is what `MultiHeadLearner` does with ``rotary``.

    f([0]) = c, f([x]) = x·Σ v_h + c            c, Σ v_h
    [g a; b/g], [0 × n; −g a; b/g]              v_h and W_h(1) = B_h L_h: as heads without
                                                positions, by its own search (`one_apart`)
    [g α a; g z; b/g], z shuts all heads but h  W_h(2), T_h = P R(1) P⁻¹ (`second_distance`)
    fresh sequences of 1 to 512 tokens          whether to believe it

*Queries*: those of heads without positions, and r² for each head. *Determined up to*: order, and
one complex number per plane and head. Source: beyond Proposition 7.1; positions are in no paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.conclusions import heads_apart
from unsoftmax.learners.multi_head.multi_head_tuning import MultiHeadTuning
from unsoftmax.learners.multi_head.recovered_heads import RecoveredHeads
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head import second_distance as shifted_steps
from unsoftmax.learners.multi_head.one_apart import one_apart
from unsoftmax.learners.multi_head.positioned_conclusion import (
    RecoveredRotaryHeads,
    conclude_heads,
)
from unsoftmax.learners.multi_head.second_distance_plain import TRIES, read_steps
from unsoftmax.learners.single_head.distances import StepReadings, errors_of, solved
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.models.rotary_heads import RotaryHeads
from unsoftmax.probes import Sequences, Singles
from unsoftmax.protocol import Found
from unsoftmax.validate.head_comparison import PositionErrors

# Of their tokens, beside the learner's own.
QUERY_BIAS_SEED = 0x626961
# Answers that differ by this share of their size at most are the same, ...
ALIKE = 1e-12
# ... and are half of a single token's to this share where all tokens weigh alike.
EVENLY = 1e-6


@dataclass(frozen=True, slots=True)
class RotaryHeadsTask:
    """What is learned of positions once the heads' W(1) is known."""

    dim: int
    seed: int
    told: Rotary | None
    """The frequencies, where they are known."""
    tuning: MultiHeadTuning

    def queries(self, heads: int, rank: int, *, biases: bool) -> int:
        """Return what W(2) takes at most."""
        return heads * rank * (rank + biases) * (shifted_steps.TRIES if biases else TRIES)

    def steps(
        self,
        search: Asking[tuple[ReducedAnswers, RecoveredHeads]],
        checks: int,
        rng: np.random.Generator,
    ) -> Asking[Found[RotaryHeads]]:
        """Learn W(1) as ``search`` does of heads without positions, then how scores turn."""
        tuning = self.tuning
        gain = tuning.positions.gain
        yield from refuse_query_biases(self.dim, self.seed, gain)
        (reduced, found), c = yield from one_apart(search, gain)
        readings = yield from read_steps(found, (reduced.precision, c), gain, rng)
        read = self._turned(readings, found, replace(reduced, c=c))
        return (yield from conclude_heads(read, checks, rng, tuning.holdout, tuning.conclusion))

    def _turned(
        self,
        readings: tuple[StepReadings | None, ...],
        found: RecoveredHeads,
        reduced: ReducedAnswers,
    ) -> RecoveredRotaryHeads:
        """Find every head's planes."""
        model, positions = found.model, self.tuning.positions
        v_error = self.tuning.conclusion.safety * found.times_off * found.largest["v"]
        heads, errors = [], []
        for v, read in zip(model.v, readings, strict=True):
            if read is None:  # its scores are 0
                none = np.zeros((0, len(v)))
                heads.append(RotaryHead(none, none, v, Rotary([])))
                errors.append(PositionErrors(0.0, 0.0))
                continue
            values = Values(v, 0.0, np.full(len(v), v_error), 0.0, reduced.precision)
            heads.append(solved(read, values, self.told, positions, biases=False))
            errors.append(errors_of(heads[-1], read, positions, biases=False))
        if any(read is None for read in readings):
            # of a head that was not seen to switch
            unseen = self.tuning.conclusion.safety * float(found.errors["W"][readings.index(None)])
            errors[readings.index(None)] = PositionErrors(unseen, 0.0)
        far = max((float(one.near) for one in errors), default=0.0)
        if far > self.tuning.conclusion.close.share * heads_apart(model):
            errors = [PositionErrors(np.inf, np.inf)] * len(errors)
        turned = RotaryHeads.of(heads, model.dim, reduced.c)
        notes = found.notes if np.any(turned.frequencies) or not turned.H else (*found.notes, STILL)
        return RecoveredRotaryHeads(
            turned, tuple(errors), v_error, reduced, positions.farthest, notes
        )


def refuse_query_biases(dim: int, seed: int, gain: float) -> Asking[None]:
    """Refuse query biases by five questions: a long offset beside short query tokens b and −b.

    Gates σ(±a·W(1) b) are unlike, but beside a query bias both are the same step.
    """
    rng = np.random.default_rng([seed, QUERY_BIAS_SEED])
    a, b = rng.standard_normal((2, dim)) / np.sqrt(dim)
    pairs = np.array([[gain * a, b / gain], [gain * a, -b / gain]])
    asked = [
        Sequences(pairs, phase="query biases", purpose="pilot"),
        Singles(gain * np.stack([a, 0 * a]), phase="query biases", purpose="pilot"),
    ]
    pair, single = yield asked
    here, there, alone = (float(y - single[1]) for y in (*pair, single[0]))
    size = max(abs(here), abs(there), abs(alone))
    alike = abs(here - there) <= ALIKE * size
    evenly = abs(here - alone / 2) <= EVENLY * size
    if not size or not alike or evenly:
        return
    [half] = yield [Singles(gain / 2 * a[None], phase="query biases", purpose="pilot")]
    if abs(float(half[0] - single[1]) - alone / 2) <= EVENLY * size:  # not clipped
        raise ModelMismatch(
            "Beside long tokens attention weights are the same for a query token and its opposite, "
            "as where queries have biases. Learn with biases=True.",
            names_positions=True,
        )


STILL = "Scores do not turn with distance: all frequencies are 0, heads without positions."
