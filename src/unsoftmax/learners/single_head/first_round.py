"""How every learner of values begins: v and c from single tokens, and how precise answers are.

    f([0]) = c          c, with biases
    f([ρe_k]) = ρv_k+c  v, d queries

In the same round go the first two families of the hold-out: three tokens, which depend on all
parameters, and single tokens, which must be answered by x·v + c. Then some are asked again.
What cannot be a head's answers is refused here, and v = 0, which leaves W free.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.measure.precision import FLOAT32_UNIT, KAPPA, UNIT, Precision, significant_bits, why
from unsoftmax.measure.two_tokens import Values
from unsoftmax.probes import Array, Round, Sequences, Singles, UnitVectors
from unsoftmax.protocol import Answers
from unsoftmax.validate import sequences as holdout
from unsoftmax.validate.head_comparison import of_straight

# With biases c is subtracted from every single-token answer: larger tokens save v's digits.
_BIASED_SCALE = 2.0**10
# The coarsest arithmetic that a defect of linearity may be put down to: float32 at d = 1024.
_COARSEST_UNIT = 4 * FLOAT32_UNIT
# Answers that change by this share of their size from call to call determine nothing.
_MOST_NOISE = 0.03
_LARGEST_ANSWER = 1e100
# Numbers as short as this are no values: even 8-bit floats have more significant bits.
_LABEL_BITS = 2


@dataclass(frozen=True, slots=True)
class Opening:
    """What the first round gave."""

    values: Values
    probes: Sequences
    """The three-token sequences of the hold-out."""
    answers: Array
    closing: int
    """Queries left for the hold-out's last round."""


def read_opening(
    dim: int,
    biases: bool,
    checks: int,
    rng: np.random.Generator,
    told: Precision | None = None,
    scale: float | None = None,
    radius: float = np.inf,
) -> Generator[Round, Answers, Opening]:
    """Learn v (and c) and the precision of the answers; refuse what is no head, and v = 0.

    Parameters
    ----------
    dim, biases : int, bool
        What the learner learns.
    checks : int
        Queries of the whole hold-out.
    rng : Generator
        Makes the hold-out.
    told : Precision, optional
        What answers may be off by, where the user says so; read off the answers otherwise.
    scale : float, optional
        Norm of the single tokens that give v.
    radius : float
        No token of the hold-out is longer.
    """
    share = holdout.Shares.of(checks)
    opening = holdout.opening(dim, share.opening, rng, radius)
    straight = holdout.straight(dim, share.straight, rng, radius)
    if scale is None:
        scale = _BIASED_SCALE if biases else 1.0
    singles = Singles(UnitVectors(dim), scale, phase="v", purpose="data")
    zero = Singles(np.zeros((1, dim)), phase="c", purpose="data")
    first: Round = [opening, straight, *([zero] if biases else []), singles]
    opened, line, *constant, y = yield first
    _refuse_size(y)
    if told is None:  # coarse answers may be round numbers, and labels are no straight line
        _refuse_labels(np.concatenate([opened, line]))
    second = np.empty(0)
    if share.repeats:
        [second] = yield [holdout.repeated(opening, share.repeats)]
    before = opened[: share.repeats]
    if told is None:
        precision = _with_noise(
            Precision.of_format([opened, line, y]), before, second, [opened, line]
        )
    else:
        precision = told
        _refuse_beyond(told, before, second)
    values = _read_values(y, constant, scale, precision)
    values = _straightened(values, straight, line, (y, constant, scale), biases, told is not None)
    if np.linalg.norm(values.v) <= 3 * np.linalg.norm(values.v_error):
        yield from _refuse_without_value(
            values, opening, opened, holdout.opening(dim, share.closing, rng, radius)
        )
    return Opening(values, opening, opened, share.closing)


def or_biased(biases: bool) -> str:
    """Say what else may explain a target that is no head without biases."""
    if biases:
        return ""
    return (
        ", or it has biases: then ExactHead, LowRankHead or MultiHeadLearner with biases=True "
        "(--biases)"
    )


def _with_noise(precision: Precision, before: Array, second: Array, seen: list[Array]) -> Precision:
    """Add what changed from call to call."""
    precision = precision.with_noise(holdout.noise_of(before, second), len(second))
    size = np.sqrt(np.mean(np.concatenate(seen) ** 2)) if precision.noise else 0.0
    if precision.noise > _MOST_NOISE * size:
        raise ModelMismatch(
            f"The same question got different answers: they vary by {precision.noise:.1e} "
            f"from call to call and are only {size:.1e} large. Nothing can be learned "
            "from them as values of a function; average the answers or fix the target."
        )
    return precision


def _refuse_beyond(told: Precision, before: Array, second: Array) -> None:
    """Refuse answers that vary by more than twice the tolerance."""
    moved = float(np.max(np.abs(before - second), initial=0.0))
    largest = float(np.max(np.abs(before), initial=0.0))
    if moved > 2 * told.absolute * (1 + 1e-9) + (2 * KAPPA * UNIT + told.relative) * largest:
        raise ModelMismatch(
            f"The same question got answers that differ by {moved:.1e}, more than twice the "
            f"tolerance of {told.absolute:.1e}: give a larger tolerance."
        )


def _straightened(
    values: Values,
    straight: Sequences,
    line: Array,
    read: tuple[Array, list[Array], float],
    biases: bool,
    told: bool,
) -> Values:
    """Hold f([x]) = x·v + c against fresh tokens; assume coarser arithmetic as far as allowed."""
    precision = values.precision
    x = straight.X[:, 0]
    compared = of_straight(x, line, values)
    residual = np.abs(compared.relative)
    if np.all(residual <= compared.tolerance):
        return values
    exact = replace(values, precision=replace(precision, unit=0.0))
    unit = 2 * float(np.max(residual - of_straight(x, line, exact).tolerance)) / KAPPA
    if told or unit > max(_COARSEST_UNIT, precision.unit):
        least = ", or the tolerance is too small" if told else ""
        raise ModelMismatch(
            f"Single tokens are not answered by x·v{' + c' if biases else ''}: the "
            f"answers miss it by {np.max(residual):.1e} of their size. The target "
            f"is not an attention head or a sum of heads{or_biased(biases)}{least}."
        )
    precision = precision.with_unit(unit, "Single tokens are not answered exactly")
    return _read_values(*read, precision)


def _refuse_size(y: Array) -> None:
    """Refuse answers whose squares float64 cannot hold."""
    largest = float(np.max(np.abs(y)))
    if largest > _LARGEST_ANSWER or 0 < largest < 1 / _LARGEST_ANSWER:
        raise NotIdentifiable(
            f"Answers of about {largest:.0e} leave float64 no room to compute with: scale the "
            f"target's output to between {1 / _LARGEST_ANSWER:.0e} and {_LARGEST_ANSWER:.0e}.",
            determined={},
        )


def _refuse_labels(y: Array) -> None:
    """Refuse answers that are a handful of round numbers."""
    values = np.unique(y)
    if len(values) > 1 and significant_bits(y) <= _LABEL_BITS:
        raise ModelMismatch(
            f"Sequences at random are answered by {', '.join(f'{v:g}' for v in values[:6])} alone: "
            "these are labels, not values of an attention head: LabelHead (--model labels) "
            "learns from them."
        )


def _read_values(y: Array, constant: list[Array], scale: float, precision: Precision) -> Values:
    """Read v and c from f([ρe_k]) = ρv_k + c and f([0]) = c."""
    c = float(constant[0][0]) if constant else 0.0
    rounding = precision.of_one_term
    c_error = rounding * abs(c) + precision.absolute if constant else 0.0
    v = (y - c) / scale
    v_error = (rounding * np.abs(y) + precision.absolute + c_error) / scale
    if constant or np.frexp(scale)[0] != 0.5:  # y − c rounds, and y / ρ; y / 2^k does not
        v_error = v_error + 2 * UNIT * np.abs(v)
    return Values(v, c, v_error, c_error, precision)


def _refuse_without_value(
    values: Values,
    opening: Sequences,
    opened: Array,
    longer: Sequences,
) -> Generator[Round, Answers, None]:
    """Refuse v = 0, as far as the answers tell: W is free if longer sequences say so too."""
    [answers] = yield [longer]
    y = np.concatenate([opened, answers])
    X = np.concatenate([opening.X, longer.X])
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
