"""The first round of every learner of a head's values: v, c, and how precise answers are.

    f([0]) = c, f([ρe_k]) = ρv_k + c        d queries, d + 1 with biases
    three tokens, one token                 the first two families of the hold-out
    three tokens again                      what changes from call to call

v and c are read by `unsoftmax.measure.single_tokens`; the precision is recognised from the
answers' format, their noise, and what single tokens miss x·v + c by. What cannot be a head's
answers is refused here, and v = 0, which leaves W free.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.number_format import significant_bits
from unsoftmax.measure.precision import (
    FLOAT32_UNIT,
    KAPPA,
    UNIT,
    Precision,
    PrecisionTuning,
    why,
)
from unsoftmax.measure.single_tokens import SingleTokens, Values
from unsoftmax.probes import Array, Sequences
from unsoftmax.validate import sequences as holdout
from unsoftmax.validate.head_comparison import of_straight
from unsoftmax.validate.judge import Answered


@dataclass(frozen=True, slots=True)
class FirstRoundTuning:
    """How v, c and the precision are read, and what is refused at once."""

    biased_scale: float = 2.0**10
    """ρ, the norm of single tokens, with biases: c is subtracted from every answer, and longer
    tokens save v's digits. Without biases ρ is 1."""
    coarsest_unit: float = 4 * FLOAT32_UNIT
    """What single tokens miss x·v + c by is put down to arithmetic no coarser than float32 at
    d = 1024; beyond, the target is refused."""
    defect: float = 2.0
    """Arithmetic is assumed to be so many times as coarse as the largest miss seen: few tokens
    were asked, and their misses may be small by chance."""
    most_noise: float = 0.03
    """Answers that change by this share of their size from call to call are refused: nothing
    is left of the logits."""
    largest_answer: float = 1e100
    """Larger answers, and answers below its inverse, are refused: their squares leave float64."""
    label_bits: int = 2
    """Answers of so few significant bits are labels: even 8-bit floats have more."""
    stands_out: float = 3.0
    """v counts as 0 where ‖v̂‖ is below so many times its error: offsets are balanced on v̂, so
    that its direction must be known."""
    precision: PrecisionTuning = field(default=PrecisionTuning())
    """How the answers' format and noise are recognised."""


@dataclass(frozen=True, slots=True)
class FirstRoundSettings:
    """What the learner knows before the first round."""

    biases: bool = False
    """Whether there may be a c."""
    declared: Precision | None = None
    """What answers may be off by, where the user says so; read off the answers otherwise."""
    scale: float | None = None
    """Norm ρ of the single tokens that give v."""
    radius: float = np.inf
    """No token of the hold-out is longer."""
    tuning: FirstRoundTuning = field(default=FirstRoundTuning())

    @property
    def token_norm(self) -> float:
        """ρ."""
        if self.scale is not None:
            return self.scale
        return self.tuning.biased_scale if self.biases else 1.0


@dataclass(frozen=True, slots=True)
class FirstRound:
    """What the first round gave."""

    values: Values
    probes: Sequences
    """The three-token sequences of the hold-out."""
    answers: Array
    closing: int
    """Queries left for the hold-out's last round."""
    checks: int
    """Queries of the whole hold-out."""

    @property
    def answered(self) -> Answered:
        """The hold-out's first sequences with their answers."""
        return self.probes.X, self.answers


def ask_first_round(
    dim: int, checks: int, rng: np.random.Generator, given: FirstRoundSettings
) -> Asking[FirstRound]:
    """Learn v (and c) and the precision of the answers; refuse what is no head, and v = 0.

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    checks : int
        Queries of the whole hold-out.
    rng : Generator
        Makes the hold-out.
    given : FirstRoundSettings
        What is known before.
    """
    share = holdout.Shares.of(checks)
    three = holdout.opening(dim, share.opening, rng, given.radius)
    straight = holdout.straight(dim, share.straight, rng, given.radius)
    singles = SingleTokens.probes(dim, given.token_norm, given.biases)
    opened, line, *answers = yield [three, straight, *singles]
    tokens = SingleTokens.of(answers, given.token_norm)
    _refuse_size(tokens.y, given.tuning)
    if given.declared is None:  # coarse answers may be round numbers
        _refuse_labels(np.concatenate([opened, line]), given.tuning)
    again = np.empty(0)
    if share.repeats:
        [again] = yield [holdout.repeated(three, share.repeats)]
    repeated = opened[: share.repeats], again
    precision = _precision([opened, line, tokens.y], repeated, given)
    values = _straightened(tokens, precision, straight.X[:, 0], line, given)
    if np.linalg.norm(values.v) <= given.tuning.stands_out * np.linalg.norm(values.v_error):
        longer = holdout.opening(dim, share.closing, rng, given.radius)
        [y] = yield [longer]
        _refuse_without_value(values, np.concatenate([three.X, longer.X]), np.append(opened, y))
    return FirstRound(values, three, opened, share.closing, checks)


def or_biased(biases: bool) -> str:
    """Say what else may explain a target that is no head without biases."""
    if biases:
        return ""
    return (
        ", or it has biases: then ExactHead, LowRankHead or MultiHeadLearner with biases=True "
        "(--biases)"
    )


def _precision(
    seen: list[Array], repeated: tuple[Array, Array], given: FirstRoundSettings
) -> Precision:
    """Recognise the answers' format and noise, or hold what was declared against the repeats."""
    if given.declared is not None:
        _refuse_beyond(given.declared, *repeated)
        return given.declared
    tuning, (before, again) = given.tuning, repeated
    precision = Precision.of_format(seen, tuning.precision)
    deviation = holdout.noise_of(before, again)
    precision = precision.with_noise(deviation, len(again), tuning.precision)
    size = np.sqrt(np.mean(np.concatenate(seen[:2]) ** 2)) if precision.noise else 0.0
    if precision.noise > tuning.most_noise * size:
        raise ModelMismatch(
            f"The same question got different answers: they vary by {precision.noise:.1e} "
            f"from call to call and are only {size:.1e} large. Nothing can be learned "
            "from them as values of a function; average the answers or fix the target."
        )
    return precision


def _refuse_beyond(declared: Precision, before: Array, again: Array) -> None:
    """Refuse answers that vary by more than twice the declared tolerance."""
    moved = float(np.max(np.abs(before - again), initial=0.0))
    largest = float(np.max(np.abs(before), initial=0.0))
    rounding = (2 * KAPPA * UNIT + declared.relative) * largest
    if moved > 2 * declared.absolute * (1 + 1e-9) + rounding:
        raise ModelMismatch(
            f"The same question got answers that differ by {moved:.1e}, more than twice the "
            f"tolerance of {declared.absolute:.1e}: give a larger tolerance."
        )


def _straightened(
    tokens: SingleTokens, precision: Precision, x: Array, line: Array, given: FirstRoundSettings
) -> Values:
    """Read v and c; hold x·v + c against fresh tokens x (n, d) and their answers ``line``.

    Where answers miss it coarser arithmetic is assumed, as far as that may be.
    """
    values, tuning = tokens.values(precision), given.tuning
    compared = of_straight(x, line, values)
    residual = np.abs(compared.relative)
    if np.all(residual <= compared.tolerance):
        return values
    exact = replace(values, precision=replace(precision, unit=0.0))
    beyond = np.max(residual - of_straight(x, line, exact).tolerance)
    unit = tuning.defect * float(beyond) / KAPPA
    declared = given.declared is not None
    if declared or unit > max(tuning.coarsest_unit, precision.unit):
        least = ", or the tolerance is too small" if declared else ""
        raise ModelMismatch(
            f"Single tokens are not answered by x·v{' + c' if given.biases else ''}: the "
            f"answers miss it by {np.max(residual):.1e} of their size. The target "
            f"is not an attention head or a sum of heads{or_biased(given.biases)}{least}."
        )
    return tokens.values(precision.with_unit(unit, "Single tokens are not answered exactly"))


def _refuse_size(y: Array, tuning: FirstRoundTuning) -> None:
    """Refuse answers whose squares float64 cannot hold."""
    largest, most = float(np.max(np.abs(y))), tuning.largest_answer
    if largest > most or 0 < largest < 1 / most:
        raise NotIdentifiable(
            f"Answers of about {largest:.0e} leave float64 no room to compute with: scale the "
            f"target's output to between {1 / most:.0e} and {most:.0e}.",
            determined={},
        )


def _refuse_labels(y: Array, tuning: FirstRoundTuning) -> None:
    """Refuse answers that are a handful of round numbers."""
    values = np.unique(y)
    if len(values) > 1 and significant_bits(y) <= tuning.label_bits:
        raise ModelMismatch(
            f"Sequences at random are answered by {', '.join(f'{v:g}' for v in values[:6])} alone: "
            "these are labels, not values of an attention head: LabelHead (--model labels) "
            "learns from them."
        )


def _refuse_without_value(values: Values, X: Array, y: Array) -> None:
    """Refuse v = 0, as far as the answers tell: W is free if longer sequences X say so too."""
    size = np.linalg.norm(X, axis=2).max(axis=1)
    precision = values.precision
    if precision == Precision():
        # rounding to zero hides the format until something longer is not zero
        precision = Precision.of_format([y])
    v_error = np.linalg.norm(values.v_error + precision.absolute)
    bound = precision.error(size * values.norm + abs(values.c), y) + values.c_error
    bound = bound + size * (values.norm + v_error)
    if np.any(np.abs(y - values.c) > bound):
        raise ModelMismatch(
            "Single tokens are answered as if v = 0, longer sequences are not: the target is not "
            "an attention head. Heads whose values cancel are MultiHeadLearner's."
        )
    lost = " as far as the answers tell." + why(precision)
    raise NotIdentifiable(
        "v = 0" + (lost if v_error else ".") + " The softmax weights nothing, so "
        "W is free: no query can determine it.",
        determined={"v": values.v, "c": values.c},
    )
