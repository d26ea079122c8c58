"""The last round of every learner of a head's values: fresh sequences, then a certificate.

A `RecoveredHead` bounds its own errors from the answers' precision. The hold-out either supports
the bounds, or widens them as far as coarser answers may explain what it shows, or refuses the
head. *Queries*: what the first round left of the hold-out. `unsoftmax.validate` compares the
answers.
"""

from dataclasses import replace
from itertools import chain
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.single_head.first_round import DEFECT, FirstRound, as_missed
from unsoftmax.measure.precision import ADVICE, KAPPA, advice, why
from unsoftmax.measure.single_tokens import Shared, Values
from unsoftmax.models import RotaryHead, SingleHead
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Certificate, Evidence, Found
from unsoftmax.refusals import Reason
from unsoftmax.validate import sequences
from unsoftmax.validate.head_comparison import (
    ALIGNMENT,
    MOST_MOVED,
    HeadAt,
    HeadBounds,
    to_first_order,
)
from unsoftmax.validate.judge import Answered, Judgement, Residuals, fresh_answers, judge
from unsoftmax.validate.long_sequences import in_rounds, looked_at

# To explain the hold-out, float64 answers may be this many times as coarse as they look. A second
# head that is 1e-5 of the first would take 10⁵ times and more.
MOST_UNEXPLAINED = 2.0**12
# The same for answers whose format is known, which is exact.
MOST_UNEXPLAINED_COARSE = 2.0
# Answers are taken to be so many times as coarse as the worst residual needs.
COARSER_BY = 2.0
# Right heads leave residuals of up to ¼ of what their certificate allows. Where a residual is
# more, the certificate is widened by twice as much: others may be larger by chance.
STRAIN = 4.0
# A bound beyond so many times W's size says that nothing is known of W, though bounds are about
# 15 times the error: such heads are refused where answers are coarse.
UNKNOWN = 8.0
# A fresh answer tests the scores where they move it by so many times what it may miss.
NOTICED = 3.0
# Of so many sequences of several tokens one at least must test them, or the evidence is not
# called passed.
LEAST_TESTED = 8


UNTESTED = (
    "No fresh answer tests the scores: W and w are known so coarsely that no answer that depends "
    "on them can be predicted. That the target is a single head is assumed, not tested."
)


class RecoveredHead(Protocol):
    """A recovered head with everything that bounds its errors; a dataclass."""

    @property
    def model(self) -> SingleHead | RotaryHead:
        """The head."""

    @property
    def values(self) -> Values:
        """v̂, ĉ and the precision of the answers; replacing it replaces what bounds assume."""

    def bounds(self) -> HeadBounds:
        """Bound the errors; say what that assumes beyond `certificate_of`."""

    def notes(self) -> tuple[str, ...]:
        """Say what a user should know."""


F = TypeVar("F", bound=RecoveredHead)


def conclude(
    head: F,
    first: FirstRound,
    rng: np.random.Generator,
    otherwise: str,
    *,
    gain: float = 1.0,
    most_unexplained: float = MOST_UNEXPLAINED,
) -> Asking[Found[Any]]:
    """Ask the closing hold-out and return what was found, or refuse it.

    Parameters
    ----------
    head : RecoveredHead
        What was recovered.
    first : FirstRound
        The first round.
    rng : Generator
        Makes the closing sequences.
    otherwise : str
        What else may explain a target that is not predicted.
    gain : float
        How much longer offsets of fresh sequences are, and query tokens shorter.
    most_unexplained : float
        To explain them, float64 answers may be so many times as coarse as they look.
    """
    bounds = head.bounds()
    closing, rounds = _drawn(head, bounds, first.closing, rng, gain)
    answered = yield from fresh_answers(closing, [first.answered], rounds)
    try:
        found = _supported(head, bounds, answered, first.checks, otherwise, most_unexplained)
    except ModelMismatch:
        if head.values.reread is None or first.as_rounded is None:
            raise
        # no answer told its format while W was read, as with W = 0; now the hold-out does
        rounded = replace(head, values=first.as_rounded())  # type: ignore[type-var]
        bounds = rounded.bounds()
        found = _supported(rounded, bounds, answered, first.checks, otherwise, most_unexplained)
    head, bounds, evidence = found
    seen = [(HeadAt.of(head.model, X), y) for X, y in answered]
    compared = _compared(head, bounds, seen)
    telling = [of.telling for of in compared]
    head, bounds = _with_v_as_missed(head, bounds, seen, compared)
    head, bounds = _with_noise_as_missed(head, bounds, seen)
    looked = looked_at(head.model, answered, chain(*rounds), telling=telling)
    certificate = certificate_of(head, first.checks, looked, bounds=bounds)
    _refuse_unknown(head, certificate)
    notes = (*head.notes(), *bounds.notes)
    if not np.isfinite(certificate.errors["W"]):
        notes = (*notes, "There is no finite bound on W: see the certificate's assumptions.")
    if first.checks and not evidence.passed:
        notes = (*notes, UNTESTED)
    return Found(head.model, certificate, evidence, notes)


def _drawn(
    head: RecoveredHead, bounds: HeadBounds, count: int, rng: np.random.Generator, gain: float
) -> tuple[Round, list[Round]]:
    """Draw fresh sequences: what is asked in one round, and what in rounds of its own after it."""
    model = head.model
    if isinstance(model, RotaryHead):

        def tells(X: Array) -> bool:
            positions = bounds.positions
            assert positions is not None
            met = np.array([min(1.0, ALIGNMENT / model.dim)])
            moved = HeadAt.of(model, X[None]).score_moves_at(unit, positions, met)
            return bool(moved.max() <= MOST_MOVED)

        unit = head.values.precision.unit
        near, far = sequences.at_distances(model, count, rng, tells)
        return [*near], far
    certificate = Certificate(bounds.errors, ())
    closing, long = sequences.closing(model, certificate, count, rng, gain=gain)
    return [*closing], in_rounds(long)


def certificate_of(
    head: RecoveredHead, checks: int, *looked: str, bounds: HeadBounds | None = None
) -> Certificate:
    """Return the head's bounds with all they assume; ``looked`` says how far it was looked.

    ``bounds``: those of the head, where they are known already.
    """
    bounds = bounds or head.bounds()
    assumes = (
        *_assumed_of_values(head.values),
        *looked[: int(bool(checks))],
        *(() if checks else ("Nothing was checked: exact float64 answers are assumed.",)),
        *(
            ()
            if head.values.reread is None
            else (
                "No answer showed whether answers are rounded or the head's values are round: "
                "exact float64 answers are assumed.",
            )
        ),
        *bounds.assumes,
    )
    return Certificate(bounds.errors, assumes)


def _assumed_of_values(values: Values) -> tuple[str, ...]:
    """Say what bounds on a head's errors assume of its values and of the answers' precision."""
    return (
        "The target is a single head: the hold-out tests this but cannot prove it. An attention "
        "sink that takes the same share of the softmax from every single token counts as part of "
        "v.",
        f"Rounding changes an answer by at most {KAPPA:.0f} × {values.precision.unit:.1e} × "
        f"{_size_of(values)}; other errors are named here.",
        "If a value of the head is a sum of products, its rounding is at most that of the root "
        "mean square of all values.",
        *values.precision.why,
    )


def _size_of(values: Values) -> str:
    """Name the size that rounding is relative to."""
    constant = abs(values.c) + values.precision.hidden
    return f"(max‖x_i‖·‖v‖ + {constant:.1e})" if constant else "max‖x_i‖·‖v‖"


def _supported(
    head: F,
    bounds: HeadBounds,
    answered: list[Answered],
    checks: int,
    otherwise: str,
    most_unexplained: float,
) -> tuple[F, HeadBounds, Evidence]:
    """Return the head with bounds that the hold-out supports, or refuse it.

    Answers are assumed to be coarser than they look until the hold-out passes, as far as may be.
    """
    exact = head.values.precision.exact
    limit = most_unexplained if exact else MOST_UNEXPLAINED_COARSE
    if head.values.reread is not None:
        limit = 1.0  # answers that are not as exact as assumed are rounded ones
    factor, wider = 1.0, head
    seen = [(HeadAt.of(head.model, X), y) for X, y in answered]
    while True:
        errors = bounds.errors
        compared = _compared(wider, bounds, seen)
        lengths = (at.X.shape[1] for at, _ in seen)
        judgement = judge(Residuals.of_lengths(zip(lengths, compared, strict=True)), checks)
        evidence = judgement.evidence
        if not judgement.refuses:
            if _untested(wider, errors, seen, compared):
                evidence = replace(evidence, passed=False)
            if judgement.strain > 1 / STRAIN:
                wider = _coarser(wider, 2 * STRAIN * judgement.strain)
                bounds = wider.bounds()
            return wider, bounds, evidence
        factor *= COARSER_BY * max(1.0, evidence.max_residual / evidence.tolerance)
        if not factor <= limit:  # also when there is nothing to compare
            _refuse(head, judgement, bool(np.isfinite(errors["W"])), otherwise)
        wider = _coarser(head, factor)
        bounds = wider.bounds()


def _with_v_as_missed(
    head: F, bounds: HeadBounds, seen: list[tuple[HeadAt, Array]], compared: list[Residuals]
) -> tuple[F, HeadBounds]:
    """Widen the bound on v to what sequences show whose pooled token the scores leave as it is.

    A few single tokens may all be off as v's entries are, by chance; these are more.
    """
    values, missed = head.values, np.concatenate([of.missed for of in compared])
    x = np.concatenate([np.einsum("bn,bnd->bd", at.weights, at.X) for at, _ in seen])
    y = np.concatenate([y for _, y in seen])
    usual = values.precision.deviation(np.linalg.norm(x, axis=1) * values.norm + abs(values.c), y)
    kept = np.concatenate([of.allowed for of in compared]) <= usual
    values = as_missed(values, values.precision, x[kept], missed[kept], y[kept])
    if values.v_error is head.values.v_error:
        return head, bounds
    head = replace(head, values=values)  # type: ignore[type-var]
    return head, head.bounds()


def _with_noise_as_missed(
    head: F, bounds: HeadBounds, seen: list[tuple[HeadAt, Array]]
) -> tuple[F, HeadBounds]:
    """Assume arithmetic that explains what v's own bound, being wide, may hide.

    What single tokens have in common is in v̂ and widens its bound alone; answers that W is read
    from are off by as much, each otherwise. Rounding of the answers themselves is known.
    """
    usual, precision = head.values.among_others, head.values.precision
    values = replace(head.values, v_error=usual.v, c_error=usual.c)
    exact = replace(values, precision=replace(precision, unit=0.0))
    every = Residuals.joined(_compared(replace(head, values=exact), bounds, seen))  # type: ignore[type-var]
    beyond = np.abs(every.missed) - every.allowed - every.own
    share = beyond / np.maximum(every.size + precision.hidden, TINY)
    unit = DEFECT / KAPPA * float(np.max(share[every.telling], initial=0.0))
    coarser = unit / precision.unit
    if coarser <= 1:
        return head, bounds
    precision = precision.with_unit(unit, "Fresh answers are missed by more than v explains")
    shared = Shared(coarser * usual.v, coarser * usual.c)  # single tokens' answers are no finer
    values = replace(head.values, precision=precision, shared=shared)
    head = replace(head, values=values)  # type: ignore[type-var]
    return head, head.bounds()


def _compared(
    head: RecoveredHead, bounds: HeadBounds, seen: list[tuple[HeadAt, Array]]
) -> list[Residuals]:
    """Compare answers with the head, one family after the other."""
    errors, positions = bounds.errors, bounds.positions
    return [to_first_order(at, y, head.values, errors, positions) for at, y in seen]


def _refuse(head: RecoveredHead, judgement: Judgement, bounded: bool, otherwise: str) -> NoReturn:
    """Refuse a head that the hold-out does not support, or that it can tell nothing of."""
    if not bounded or judgement.blunt:
        values, precision = head.values, head.values.precision
        raise Reason.NO_TEST_TELLS.error(
            {"v": values.v, "c": values.c},
            also=why(precision) + advice(precision),
            lacking="even in float64" if precision.exact else "they are too coarse",
            known="v",
        )
    raise Reason.FRESH_ANSWERS_MISSED.error(
        model="head",
        missed=judgement.worst[0],
        allowed=judgement.worst[1],
        contrary=f"not a single attention head over {head.model.dim} dimensions{otherwise}",
    )


def _untested(
    head: RecoveredHead,
    errors: dict[str, float],
    seen: list[tuple[HeadAt, Array]],
    compared: list[Residuals],
) -> bool:
    """Whether no fresh answer tests a head's scores, though they are claimed to be known.

    Coarse answers, or readings that contradict each other as those of two heads taken for one,
    may leave so much open that sequences tell nothing but those whose tokens all weigh the same.
    """
    model = head.model
    several = [(at, of) for (at, _), of in zip(seen, compared, strict=True) if at.X.shape[1] > 1]
    asked = sum(len(at.X) for at, _ in several)
    claimed = any(model.parameter_norm(name) > errors.get(name, np.inf) for name in "Ww")
    if asked < LEAST_TESTED or not claimed:
        return False
    for at, of in several:
        evenly = at.X.mean(axis=1) @ model.v + model.c
        noticed = np.abs(model(at.X) - evenly) > NOTICED * (of.own + of.allowed)
        if np.any(of.telling & noticed):
            return False
    return True


def _refuse_unknown(head: RecoveredHead, certificate: Certificate) -> None:
    """Refuse a W of which coarse answers leave nothing known: its bound is beyond its size.

    A W smaller than 1 may be known to be small, and no more.
    """
    size, bound = head.model.parameter_norm("W"), certificate.errors["W"]
    if not head.values.precision.exact and bound > UNKNOWN * max(size, 1.0):
        raise Reason.W_DROWNS.error(
            {"v": head.values.v, "c": head.values.c},
            also=why(head.values.precision) + ADVICE,
            size=size,
            error=bound,
        )


def _coarser(head: F, factor: float) -> F:
    """Assume answers to be ``factor`` times as coarse as they look."""
    values = head.values.coarser(factor, "The hold-out is not predicted exactly")
    return replace(head, values=values)  # type: ignore[type-var]
