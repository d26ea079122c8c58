"""Why a target is refused: each reason once, with its name, its sentence and what to do about it.

Learners and questions raise ``Reason.NAME.error(…)``: `NotIdentifiable` where answers cannot
determine something, `ModelMismatch` where they contradict the model class. The error keeps the
name as its ``reason``, for programs that treat reasons differently; sentences may change.
Numbers in a sentence are named, and given where it is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, unique
from typing import Any

from unsoftmax.errors import ModelMismatch, NotIdentifiable

# What targets of labels are compared with.
_SIGN = "the sign of a single attention head"
_COARSER = "or the target computes more coarsely than float64 (float32 supports 16 bits)"


@unique
class Reason(Enum):
    """The kind of error, the sentence, and the remedy where there is one.

    Examples
    --------
    >>> error = Reason.SAMPLES_ALL_0.error(k=1000)
    >>> error.reason, type(error).__name__
    ('SAMPLES_ALL_0', 'NotIdentifiable')
    """

    # Any learner
    MORE_THAN_PLANNED = (
        ModelMismatch,
        "More than {queries:,} queries or {rounds:,} rounds would be needed: {why}.",
    )
    NO_NUMBERS = (
        ModelMismatch,
        "What is computed of the answers is no number ({error}): they are too large or too small "
        "for float64, too coarse, or contradict each other. The target is not of the class that "
        "is learned, or its answers are not what it computes.",
    )
    SINGULAR_EQUATIONS = (
        ModelMismatch,
        "The answers lead to equations that are singular: the target is {contrary}, or its "
        "answers are too coarse.",
    )

    # Labels: constant, or of something else
    LABELS_ALL_0 = (
        NotIdentifiable,
        "Every label is 0, as with v = 0: then the softmax weights nothing, so W is free and no "
        "query can determine it. (A constant far below 0 on top of a head would look the same.)",
    )
    SAMPLES_ALL_0 = (
        NotIdentifiable,
        "All of {k:,} labels are 0, as with v = 0: then the softmax weights nothing, so W is free "
        "and no query can determine it.",
    )
    TOKENS_ALL_0 = (
        ModelMismatch,
        "Single tokens are all labelled 0, as if v = 0, but longer sequences are not: the target "
        f"is not {_SIGN} without biases.",
    )
    SAMPLES_ALL_ALIKE = (
        ModelMismatch,
        "All of {k:,} single tokens are labelled {label}, but x and −x have opposite labels for "
        "every attention head without biases.",
    )
    LABELS_ALL_1 = (
        ModelMismatch,
        "A token and its negative are both labelled 1: the labels are constant, or a constant is "
        "added before the sign is taken. f([−x]) = −f([x]) for every attention head without "
        "biases.",
    )
    SIGNS_CONTRADICT = (
        ModelMismatch,
        "A token x, −x and both scaled by 2⁻⁶⁰ are labelled {labels} instead of 1, 0, 1, 0: the "
        "labels contradict each other, or a constant is added before the sign is taken. The "
        f"target is not {_SIGN} without biases.",
    )
    MEAN_IS_NO_SIGN = (
        ModelMismatch,
        "The labels of single tokens have a mean of norm {norm:.4f} instead of 1: some labels are "
        f"wrong, or they are not the sign of x·v. The target is not {_SIGN} without biases.",
    )
    FLIPS_CONTRADICT = (
        ModelMismatch,
        "The labels contradict each other: {wrong} of {asked} just outside of the intervals that "
        "bisection found say that the flip is outside. They must flip once along every line "
        f"asked. Either some labels are wrong, {_COARSER}, or it is not {_SIGN} without biases.",
    )
    SCALE_CONTRADICTS = (
        ModelMismatch,
        "The labels contradict each other: those that chose the size of the tokens say that "
        "logits are {which} than they were found to be. Some labels are wrong, or they are not "
        f"{_SIGN}.",
    )
    LABELS_UNPREDICTED = (
        ModelMismatch,
        "The recovered head gives fresh sequences the wrong label where its answer, up to "
        "{missed:.1e} of their size, is certain to have the right sign. The target is not "
        f"{_SIGN} without biases over {{dim}} dimensions, or some labels are wrong, or it "
        "computes more coarsely than float64 (float32 supports 16 bits).",
    )

    # Labels: beyond what is asked, or what was said
    NO_SOFT_LABELS = (
        NotIdentifiable,
        "Logits are out of reach: tokens scaled down by 2^{halvings} leave them beyond ±{logit}, "
        "as with hard attention or none. v is determined up to its norm, W is not.",
    )
    LOGITS_LOST = (
        NotIdentifiable,
        "{lost} of {all} logits are out of reach, far larger than the others at every scale tried:",
        "try another seed. v is determined up to its norm.",
    )
    BELOW_MARGIN = (
        NotIdentifiable,
        "An entry of v is {entry:.2g}, below margin={margin:g}: Theorem B.1 does not reach W then.",
        'Use a smaller margin, or method="bisect", which needs none.',
    )
    ABOVE_NORM_BOUND = (
        ModelMismatch,
        "The labels are those of a head with ‖W‖_F = {norm:.3g}, which contradicts norm_bound = "
        "{bound:.3g}:",
        "leave it out, bisection needs none.",
    )
    CONTRARY_TO_MARGIN = (
        ModelMismatch,
        "The labels are those of a head whose smallest |v_i| is {entry:.3g}‖v‖, which contradicts "
        "margin = {margin:.3g}:",
        "leave it out, bisection needs none.",
    )

    # A network that a function has learned
    ALGORITHM_MISSES = (
        ModelMismatch,
        "The network of {name} misses fresh points by {missed:.1e} of the answers' size where "
        "{most:.1e} is {word}: the algorithm does not learn this target, or the target is no such "
        "network.",
    )

    # Questions about targets: audit
    TOO_MANY_TO_FIND = NotIdentifiable, "it was not found within {most:,} queries."
    ORDINARY_MISSED = (
        ModelMismatch,
        "the recovered model misses ordinary sequences by {missed:.1e}, where answers are up to "
        "{size:.1e}.",
    )
    ORDINARY_MISSED_AS_CERTIFIED = (
        NotIdentifiable,
        "the recovered model misses ordinary sequences by {missed:.1e}, where answers are up to "
        "{size:.1e}, as its certificate allows.",
    )

    # Questions about targets: defend
    USE_IS_CONSTANT = (
        NotIdentifiable,
        "All legitimate sequences get the same answer: there is nothing to defend, and no loss "
        "can be measured.",
        "A sampler may draw others.",
    )
    TOO_COARSE_TO_DEFEND = (
        NotIdentifiable,
        "The target's own answers are too coarse to judge defences by: {name} is known to "
        "{error:.1e} at a norm of {norm:.1e}.",
    )
    TOKENS_ROUND_TO_0 = (
        NotIdentifiable,
        "Every answer to a single token of norm {radius:g} rounds to 0.",
    )
    VALUES_ROUND_TO_0 = NotIdentifiable, "Answers to single tokens round to 0."
    TOKENS_ALL_ALIKE = NotIdentifiable, "Answers to single tokens are all alike."

    def __init__(
        self, kind: type[NotIdentifiable | ModelMismatch], sentence: str, remedy: str = ""
    ) -> None:
        self.kind, self.sentence, self.remedy = kind, sentence, remedy

    def error(
        self, determined: Mapping[str, Any] | None = None, **said: object
    ) -> NotIdentifiable | ModelMismatch:
        """Return the error to raise; ``said`` are the numbers of the sentence, by name."""
        text = f"{self.sentence} {self.remedy}".rstrip().format_map(said)
        return self.kind(text, determined=determined or {}, reason=self.name)
