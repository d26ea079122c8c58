"""How every learner of a single head's values ends: fresh sequences, then a verdict.

A `Fit` is a recovered head that can bound its own errors from the answers' precision. The
hold-out either supports the bound, or widens it as far as coarser answers may explain, or
refuses the fit.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.single_head.first_round import Opening
from unsoftmax.measure.precision import ADVICE, KAPPA, Precision, why
from unsoftmax.measure.two_tokens import Values
from unsoftmax.models import SingleHead
from unsoftmax.probes import Round
from unsoftmax.protocol import Answers, Certificate, Evidence, Found
from unsoftmax.validate import sequences as holdout
from unsoftmax.validate.head_comparison import HeadAt, JudgeTuning, to_first_order
from unsoftmax.validate.judge import Answered, fresh_answers, judge
from unsoftmax.validate.sequences import HoldoutTuning

# How much coarser than they look the answers may be to explain the hold-out: a second head
# that is 1e-5 of the first would take 10⁵ and more for float64 answers. Known formats are exact.
MOST_UNEXPLAINED = 2.0**12
_MOST_UNEXPLAINED_COARSE = 2.0
# Heads leave residuals of up to ¼ of what their certificate allows; what leaves more gets a
# certificate wider by twice as much: it may be by chance that they were not larger.
_STRAIN = 4.0
# Bounds are about 15 times the error: beyond this many times W's size nothing is known of it.
_UNKNOWN = 8.0


class Fit(Protocol):
    """A recovered head with everything that bounds its errors."""

    @property
    def model(self) -> SingleHead:
        """The head."""

    @property
    def values(self) -> Values:
        """v̂, ĉ and the precision of the answers."""

    def bounds(self) -> tuple[dict[str, float], tuple[str, ...]]:
        """Bound the errors of W, v, w and c; say what that assumes beyond `assumptions`."""

    def notes(self) -> tuple[str, ...]:
        """Say what a user should know."""


F = TypeVar("F", bound=Fit)


def conclude(
    fit: F,
    opened: Opening,
    checks: int,
    rng: np.random.Generator,
    otherwise: str,
    unexplained: float = MOST_UNEXPLAINED,
    gain: float = 1.0,
) -> Generator[Round, Answers, Found[SingleHead]]:
    """Ask the closing hold-out and return what was found, or refuse it.

    Parameters
    ----------
    fit : Fit
        A dataclass; replacing its ``values`` replaces the precision it assumes.
    opened : Opening
        The first round.
    checks : int
        Queries of the whole hold-out.
    otherwise : str
        What else may explain a target that is not predicted.
    unexplained : float
        How much coarser than they look float64 answers may be to explain the hold-out.
    gain : float
        How much louder its offsets are than logits ask for; see `holdout.closing`.
    """
    certificate = certificate_of(fit, checks)
    closing = holdout.closing(
        fit.model, certificate, opened.closing, rng, tuning=HoldoutTuning(gain=gain)
    )
    answered = yield from fresh_answers(closing, [(opened.probes.X, opened.answers)])
    fit, evidence = _judged(fit, answered, checks, unexplained, otherwise)
    certificate = certificate_of(fit, checks)
    _refuse_unknown(fit, certificate)
    notes = fit.notes()
    if not np.isfinite(certificate.errors["W"]):
        notes = (*notes, "There is no finite bound on W: see the certificate's assumptions.")
    return Found(fit.model, certificate, evidence, notes)


def certificate_of(fit: Fit, checks: int) -> Certificate:
    """Return the fit's bounds with all they assume."""
    errors, further = fit.bounds()
    precision = fit.values.precision
    assumes = (
        "The target is a single head: what the hold-out tests, it cannot prove.",
        f"An answer is off by at most {KAPPA:.0f} × {precision.unit:.1e} × "
        "max‖x_i‖·‖v‖ from rounding, beside what is named here.",
        *precision.why,
        *(() if checks else ("Nothing was checked: exact float64 answers are taken for granted.",)),
        *further,
    )
    return Certificate(errors, assumes)


def _judged(
    fit: F,
    answered: list[Answered],
    checks: int,
    unexplained: float,
    otherwise: str,
) -> tuple[F, Evidence]:
    """Hold the fit against the hold-out; assume coarser answers as far as allowed, or refuse.

    Returns the fit whose certificate the hold-out supports.
    """
    precision = fit.values.precision
    limit = unexplained if precision == Precision() else _MOST_UNEXPLAINED_COARSE
    factor, wider = 1.0, fit
    seen = [(HeadAt.of(fit.model, X), y) for X, y in answered]
    while True:
        certificate = certificate_of(wider, checks)
        judgement = judge(
            (
                to_first_order(at, y, wider.values, certificate.errors, JudgeTuning())
                for at, y in seen
            ),
            checks,
        )
        evidence, strain = judgement.evidence, judgement.strain
        if evidence.passed or not checks:
            if strain > 1 / _STRAIN:
                wider = _coarser(wider, 2 * _STRAIN * strain)
            return wider, evidence
        factor *= 2 * max(1.0, evidence.max_residual / evidence.tolerance)
        if not factor <= limit:  # also when there is nothing to compare
            break
        wider = _coarser(fit, factor)
    if not np.isfinite(certificate.errors["W"]) or judgement.blunt:
        raise NotIdentifiable(
            "The answers are too coarse to determine W: what they leave open moves every "
            "fresh answer more than can be told apart. v is determined." + why(precision) + ADVICE,
            determined={"v": fit.values.v, "c": fit.values.c},
        )
    raise ModelMismatch(
        f"The recovered head misses fresh answers by {judgement.worst[0]:.1e} of their size "
        f"where {judgement.worst[1]:.1e} is expected. The target is not a single attention "
        f"head over {fit.model.dim} dimensions{otherwise}."
    )


def _refuse_unknown(fit: Fit, certificate: Certificate) -> None:
    """Refuse a W of which coarse answers leave nothing known: its bound is beyond its size.

    A W smaller than 1 may be known to be small, and no more.
    """
    size, bound = fit.model.norm("W"), certificate.errors["W"]
    if fit.values.precision != Precision() and bound > _UNKNOWN * max(size, 1.0):
        raise NotIdentifiable(
            f"The answers are too coarse to determine W: its error may be {bound:.1e}, it is "
            f"{size:.1e} large. v is determined." + why(fit.values.precision) + ADVICE,
            determined={"v": fit.values.v, "c": fit.values.c},
        )


def _coarser(fit: F, factor: float) -> F:
    """Assume answers to be ``factor`` times as coarse as they look."""
    precision = fit.values.precision.coarser(factor, "The hold-out is not predicted exactly")
    return replace(fit, values=replace(fit.values, precision=precision))  # type: ignore[type-var]
