"""What answers within ±τ say of a head: an estimate with a bound, and when it is refused.

Passes are read as intervals of logits (`unsoftmax.measure.intervals`), solved together
(`unsoftmax.solve.two_sided`) and bounded whatever the signs of the errors. The hold-out is
judged by the same standard: an answer that no head within the bounds can give is a refusal, not
a wider bound. What the user declares (τ, a norm bound, a radius) is taken at face value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.single_head.approximate.token_scales import READING
from unsoftmax.learners.single_head.conclusion import certificate_of
from unsoftmax.learners.single_head.first_round import (
    FirstRound,
    FirstRoundSettings,
)
from unsoftmax.measure.intervals import SLACK, LogitIntervals, Pass, saturated
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.reading import Reading
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array
from unsoftmax.protocol import Found, Steps
from unsoftmax.solve.two_sided import TwoSidedSystem
from unsoftmax.validate import sequences
from unsoftmax.validate.head_comparison import HeadAt, HeadBounds, for_any_error
from unsoftmax.validate.judge import Residuals, fresh_answers, judge
from unsoftmax.validate.long_sequences import looked_at
from unsoftmax.validate.sequences import HoldoutTuning


@dataclass(frozen=True, slots=True)
class Declared:
    """What the user declares of the answers and of the target."""

    tolerance: float
    norm_bound: float | None
    radius: float | None
    single_tolerance: float | None = None
    """τ_v, of single tokens; the tolerance where None."""

    @property
    def of_singles(self) -> float:
        """How far answers to single tokens may be off: τ_v."""
        return self.tolerance if self.single_tolerance is None else self.single_tolerance

    @property
    def precision(self) -> Precision:
        """±tolerance, and float64 inside."""
        apart = self.of_singles < self.tolerance
        single = f", those to single tokens within ±{self.of_singles:g}" if apart else ""
        sentence = (
            f"Answers are taken to be within ±{self.tolerance:g} of the head's{single}, as "
            "declared."
        )
        return Precision(absolute=self.tolerance, why=(sentence,))

    def of_unit_tokens(self, values: Values) -> Values:
        """Bound v by the tolerance of single tokens, where e_1 … e_d were asked for it."""
        return replace(values, v_error=values.v_error - (self.tolerance - self.of_singles))

    @property
    def longest(self) -> float:
        """Norm of the longest token that may be asked."""
        return np.inf if self.radius is None else self.radius

    def first_round(self, scale: float) -> FirstRoundSettings:
        """Read v from single tokens of norm ``scale``."""
        return FirstRoundSettings(False, self.precision, scale, self.longest)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What a bound of W rests on beside the tolerance."""
        if self.norm_bound is None:
            return ()
        return (f"‖W‖_F ≤ {self.norm_bound:g}, the norm bound given.",)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Ŵ with its bound, and the readings that they come from."""

    W: Array
    W_error: float
    intervals: tuple[LogitIntervals, ...]
    readings: tuple[Reading, ...]
    """Of M = B Wᵀ Zᵀ, pass by pass."""
    values: Values


def estimate(passes: list[Pass], values: Values, declared: Declared) -> Estimate:
    """Estimate W and bound ‖Ŵ − W‖_F.

    Raises
    ------
    ModelMismatch
        Some answer agrees with no logit.
    """
    norm_bound = declared.norm_bound
    intervals = tuple(one.read(values, norm_bound, READING) for one in passes)
    _refuse_impossible(intervals, norm_bound)
    read = list(zip(passes, intervals, strict=True))
    system = TwoSidedSystem(tuple(one.Z for one in passes), tuple(one.B for one in passes))
    W = system.solve([one.measured(logits) for one, logits in read])
    readings = tuple(one.reading(logits, W, values) for one, logits in read)
    return Estimate(W, system.error(readings, W), intervals, readings, values)


def _refuse_impossible(intervals: tuple[LogitIntervals, ...], norm_bound: float | None) -> None:
    impossible = sum(int(np.count_nonzero(read.impossible)) for read in intervals)
    if impossible:
        asked = sum(read.impossible.size for read in intervals)
        bounded = "" if norm_bound is None else f" with ‖W‖_F ≤ {norm_bound:g}"
        least = "" if norm_bound is None else ", the norm bound"
        raise ModelMismatch(
            f"{impossible} of {asked} answers to two tokens are further than the tolerance from "
            f"all that a single attention head{bounded} can answer: the target is none{least} or "
            "the tolerance is too small."
        )


def refuse_unbounded(found: Estimate, declared: Declared) -> None:
    """Refuse a W that contradicts the norm bound, or logits out of the answers' reach.

    Under a radius ±τ may hide single logits, and there is no finite bound on W; without one
    only infinite logits are hidden.
    """
    size, norm_bound = float(np.linalg.norm(found.W)), declared.norm_bound
    if norm_bound is not None and size - found.W_error > norm_bound * SLACK:
        raise ModelMismatch(
            f"‖W‖_F is at least {size - found.W_error:.3g}, more than the norm bound of "
            f"{norm_bound:g}: give a larger one."
        )
    if np.isfinite(found.W_error):
        return
    ends = np.stack([read.open for read in found.intervals])
    p_errors = np.stack([read.p_error for read in found.intervals])
    if declared.radius is None or saturated(ends, p_errors, READING):
        values = found.values
        hidden = np.median(p_errors[ends]) >= READING.hidden
        cause = (
            "answers may be off by more than the weights change in them"
            if hidden
            else "attention is on one token alone, as far as answers tell, as with hard attention "
            "or where logits are very far apart"
        )
        raise NotIdentifiable(
            f"{np.count_nonzero(ends)} of {ends.size} logits are out of the answers' reach: at "
            f"every scale tried {cause}. v is determined, W is not. "
            + " ".join(values.precision.why),
            determined={"v": values.v, "c": 0.0},
        )


@dataclass(frozen=True, slots=True)
class BoundedHead:
    """A recovered head with a bound that needs no further answers."""

    model: SingleHead
    values: Values
    W_error: float
    assumes: tuple[str, ...]

    def bounds(self) -> HeadBounds:
        """Return the bounds; a single head without biases has w = 0 and c = 0."""
        return HeadBounds.of(self.values, self.W_error, 0.0, *self.assumes)

    def notes(self) -> tuple[str, ...]:
        """Say what a user should know."""
        none = (
            "Some logits could be anything: there is no finite bound on W, and the hold-out can "
            "only say that the answers are in range."
        )
        return (*self.values.precision.why, *(() if np.isfinite(self.W_error) else (none,)))


def conclude_bounded(
    head: BoundedHead,
    first: FirstRound,
    rng: np.random.Generator,
    declared: Declared,
    holdout: HoldoutTuning,
) -> Steps[SingleHead]:
    """Ask the closing hold-out; return what was found, or refuse it.

    Offsets are stretched and query tokens shrunk as far as the radius allows, which leaves all
    logits as they are and makes the answers large beside ±τ.
    """
    model, certificate = head.model, certificate_of(head, first.checks)

    def compare(X: Array, y: Array) -> Residuals:
        return for_any_error(HeadAt.of(model, X), y, head.values, certificate.errors["W"])

    closing, long = sequences.closing(
        model, certificate, first.closing, rng, declared.longest, tuning=holdout
    )
    rounds = holdout.long.rounds(long)
    answered = yield from fresh_answers(closing, [first.answered], rounds)
    judgement = judge([compare(X, y) for X, y in answered], first.checks)
    evidence = judgement.evidence
    if judgement.refuses:
        raise ModelMismatch(
            f"The recovered head misses fresh answers by {evidence.max_residual:.1e} of their size "
            "where its bounds and the tolerance do not allow it. The target is not a single "
            f"attention head over {model.dim} dimensions, or it has biases, or the tolerance "
            "is too small."
        )
    certificate = certificate_of(head, first.checks, looked_at(model, answered, long))
    return Found(model, certificate, evidence, head.notes())
