"""Knobs of learning several heads with positions, beside those of heads without."""

from __future__ import annotations

from dataclasses import dataclass, field

from unsoftmax.learners.rotary_heads.second_distance import SecondDistanceTuning
from unsoftmax.learners.single_head.distances import RotaryTuning
from unsoftmax.measure.opened_heads import FillerTuning
from unsoftmax.validate.sequences import DistanceTuning


@dataclass(frozen=True, slots=True)
class ShiftedStepTuning:
    """Knobs of reading W_h(2) beside biases."""

    fillers: FillerTuning = field(default=FillerTuning(shut=46.0, closed=46.0))
    """What shifts a head's gate is known but for what is quadratic in a query token: six more than
    without biases, and closed as much."""
    pilot: float = 0.3
    """Root mean square of the logits of a head's first token, if a step of distance leaves scores
    of their size."""
    logit: float = 1.0
    """The same of the others, as the first one tells ..."""
    changed: float = 10.0
    """... but for at most so many times the first one's length."""
    largest: float = 8.0
    """Tokens with larger logits are asked again with shorter offsets, closer to b."""
    shorter: float = 4.0
    """So many times shorter, and closer."""
    tries: int = 8
    """Times that a token is asked at most."""
    draws: int = 64
    """Draws of query tokens, of which the best is asked,"""
    sizes: tuple[float, ...] = (1.0, 0.5, 0.25)
    """at these distances, in lengths of b."""
    counted: float = 3.0
    """Singular values of W_h(1) above so many times its error count to its rank."""


@dataclass(frozen=True, slots=True)
class QueryBiasTuning:
    """Knobs of the questions that show query biases where none are expected."""

    seed: int = 0x626961
    """Of their tokens, beside the learner's own."""
    alike: float = 1e-12
    """Answers that differ by this share of their size at most are the same, ..."""
    evenly: float = 1e-6
    """... and are half of a single token's to this share where all tokens weigh alike."""


@dataclass(frozen=True, slots=True)
class BiasedHeadsTuning:
    """Knobs of heads with biases."""

    steps: ShiftedStepTuning = field(default=ShiftedStepTuning())
    extra: int = 1
    """Rows more than its rank that a column is asked with while the rank is found: the shift is a
    row more already."""
    summed: float = 1e-6
    """Values with their signs add up to Σv to this share of their size."""
    missed: float = 1e-3
    """Key biases that miss their equations by more than this share of the shifts are none."""
    unexplained: float = 0.7
    """Nor are those that miss them by more than this share of what they miss them by once all that
    was read is moved by as much as it may be off: 0.3 at most in 201 heads, and 1 where a plane has
    a key bias and no keys."""
    leaking: float = 1e-6
    """Logits that open fillers may have moved by more were not read."""
    sure: int = 2
    """So many searches have to end for one and the same reason that another query token hardly
    changes."""
    lengths: tuple[float, ...] = (1.0, 0.25, 1.0, 0.25, 0.0625, 1.0)
    """Norms of the query token of each search: biases that open no gate beside a long one may
    beside a short one."""


@dataclass(frozen=True, slots=True)
class RotaryHeadsTuning:
    """Knobs of several heads with positions, beside those of heads without."""

    second: SecondDistanceTuning = field(default=SecondDistanceTuning())
    biased: BiasedHeadsTuning = field(default=BiasedHeadsTuning())
    query_biases: QueryBiasTuning = field(default=QueryBiasTuning())
    positions: RotaryTuning = field(default=RotaryTuning())
    holdout: DistanceTuning = field(default=DistanceTuning())
    checked: int = 0
    """Columns asked with more rows than the rank of W(1): W(2), which has to have the same range,
    and fresh sequences show what they would."""
    extra: int = 2
    """Rows more than its rank that a column is asked with while the rank is found."""
    line: int = 3
    """Single tokens of each of two norms that tell the answers' precision, fewer than of heads
    without positions: [g a; b/g] loses nothing beside b, and the search has digits to spare."""
    move: float = 0.3
    """Logit that a step out of the plane of the half circle makes where u_h is as long there as in
    it, shorter than of heads without positions: fewer are too large and asked again. What it
    costs in digits ..."""
    value_over_jump: float = 1e4
    """... offsets further out make up for: here they may be as long as they like."""
    slower: float = 8.0
    """The first head's slope is found by so much a reading once one overshot."""
    pairs: int = 2
    """Pairs of tokens that tell the size of the values."""
    confirm: int = 3
    """Answers that heads must predict before W(2) is asked for: one at each size of logits. Fresh
    sequences of the hold-out follow."""
