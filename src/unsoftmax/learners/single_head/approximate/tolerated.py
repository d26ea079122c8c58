"""What answers within ±τ say of a head: an estimate, a bound, and a hold-out that refuses.

A `Pass` is one asking of every offset with every query token. Passes are combined by least
squares: with M_r = B_r Wᵀ Z_rᵀ measured in pass r, W minimises Σ_r ‖Z_r W − (B_r⁻¹M_r)ᵀ‖². If
|ΔM_r| ≤ E_r entry by entry, whatever the signs, then

    ‖Ŵ − W‖_F ≤ √Σ_r (‖E_r‖_F/σ_min(B_r))² / σ_min([Z_1; Z_2; …]).

The bounds are those of `unsoftmax.measure.intervals`, and the hold-out is judged by the same
standard: an answer that no head within the bounds can give is a refusal, not a wider bound.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.single_head.first_round import Opening
from unsoftmax.learners.single_head.verdict import Fit, certificate_of
from unsoftmax.measure.intervals import Within, read_within
from unsoftmax.measure.precision import KAPPA, UNIT, Precision
from unsoftmax.measure.two_tokens import Values, Vectors
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers, Found
from unsoftmax.validate import sequences as holdout
from unsoftmax.validate.head_comparison import HeadAt, for_any_error
from unsoftmax.validate.judge import Residuals, hold_out
from unsoftmax.validate.sequences import HoldoutTuning

# Rounding of norms and logits themselves, beside a bound that is otherwise exact.
_SLACK = 1 + 1e-9
# Answers that are off by this much of p tell nothing apart.
_HIDDEN = 0.25
# At a scale that suits the others a few logits may still be beyond what answers resolve.
_MOST_OPEN = 0.25
# How far the hold-out's tokens are stretched where no radius forbids it: as far as the data's,
# or what answers hide at small tokens would pass.
_STRETCH = 2.0**40
# The judgement is exact in how far logits may move, so the hold-out may ask where the bound
# leaves them open by this much: at radius 10 and one decimal, d = 8, two heads passed for one in
# 7 of 8 runs at 0.01, in 2 at 0.5.
_OPEN_BY = 0.5


@dataclass(frozen=True, slots=True)
class Terms:
    """What the user says of the answers and of the target, and is taken at their word for."""

    tolerance: float
    norm_bound: float | None
    radius: float | None

    @property
    def precision(self) -> Precision:
        """±tolerance, and float64 inside."""
        sentence = f"Answers are taken to be within ±{self.tolerance:g} of the head's, as told."
        return Precision(absolute=self.tolerance, why=(sentence,))

    @property
    def cap(self) -> float:
        """Longest token that may be asked."""
        return np.inf if self.radius is None else self.radius

    @property
    def assumes(self) -> tuple[str, ...]:
        """What a bound of W rests on beside the tolerance."""
        if self.norm_bound is None:
            return ()
        return (f"‖W‖_F ≤ {self.norm_bound:g}, the norm bound given.",)


@dataclass(frozen=True, slots=True)
class Pass:
    """Answers to every offset Z with every query token B: y, (query tokens, offsets)."""

    Z: Array
    B: Array
    alpha: Array
    beta: Array
    y: Array

    def read(self, values: Values, norm_bound: float | None) -> Within:
        """Read every answer as an interval of logits."""
        a = Vectors.of(self.Z, values)
        b = Vectors.of(self.B, values).take((slice(None), None))
        most: Array | float = np.inf
        if norm_bound is not None:
            most = self.alpha * self.beta * a.norm * b.norm * norm_bound * _SLACK
        return read_within(self.y, a, b, self.alpha, self.beta, values, most)

    def rows(self, measured: Array) -> Array:
        """Turn M into Z W."""
        return np.asarray(np.linalg.solve(self.B, measured), dtype=np.float64).T

    def error(self, within: Within, W: Array, values: Values) -> Array:
        """Bound |M̂ − M| entry by entry, the rounding of scores and logits included."""
        scale = self.alpha * self.beta
        tokens = self.alpha * np.linalg.norm(self.Z, axis=1)
        scores = self.beta * np.linalg.norm(self.B @ W.T, axis=1)[:, None]
        rounding = KAPPA * values.precision.unit * tokens * scores + 4 * UNIT * abs(within.logit)
        bound: Array = (within.error + rounding) / scale
        return bound


def solve(passes: list[Pass], values: Values, norm_bound: float | None) -> tuple[Array, float]:
    """Estimate W and bound ‖Ŵ − W‖_F.

    Raises
    ------
    ModelMismatch
        Some answer agrees with no logit.
    """
    readings = [one.read(values, norm_bound) for one in passes]
    _refuse_impossible(readings, norm_bound)
    Z = np.concatenate([one.Z for one in passes])
    rows = [
        one.rows(within.logit / (one.alpha * one.beta))
        for one, within in zip(passes, readings, strict=True)
    ]
    if len(passes) == 1:
        W = np.linalg.solve(Z, rows[0])
    else:
        W = np.linalg.lstsq(Z, np.concatenate(rows))[0]
    errors = [
        np.linalg.norm(one.error(within, W, values)) / np.linalg.svd(one.B, compute_uv=False)[-1]
        for one, within in zip(passes, readings, strict=True)
    ]
    singular = np.linalg.svd(Z, compute_uv=False)
    condition = singular[0] / singular[-1]
    bound = np.linalg.norm(errors) / singular[-1] + 4 * UNIT * condition * np.linalg.norm(W)
    return W, float(bound * _SLACK)


def _refuse_impossible(readings: list[Within], norm_bound: float | None) -> None:
    impossible = sum(int(np.count_nonzero(within.impossible)) for within in readings)
    if impossible:
        asked = sum(within.impossible.size for within in readings)
        bounded = "" if norm_bound is None else f" with ‖W‖_F ≤ {norm_bound:g}"
        least = "" if norm_bound is None else ", the norm bound"
        raise ModelMismatch(
            f"{impossible} of {asked} answers to two tokens are further than the tolerance from "
            f"all that a single attention head{bounded} can answer: the target is none{least} or "
            "the tolerance is too small."
        )


def saturated(without_end: NDArray[np.bool_], p_error: Array) -> bool:
    """Tell whether logits are too large to read, and not merely hidden by ±τ.

    Where answers cannot tell p = ¼ from ½ a smaller scale would not show more.
    """
    return bool(np.median(p_error) < _HIDDEN and np.mean(without_end) > _MOST_OPEN)


def refuse(passes: list[Pass], W: Array, error: float, values: Values, terms: Terms) -> None:
    """Refuse a W that is certainly larger than the user said, or out of the answers' reach.

    Under a radius ±τ may hide single logits; without one only infinite logits are hidden.
    """
    size, norm_bound = float(np.linalg.norm(W)), terms.norm_bound
    if norm_bound is not None and size - error > norm_bound * _SLACK:
        raise ModelMismatch(
            f"‖W‖_F is at least {size - error:.3g}, more than the norm bound of {norm_bound:g}: "
            "give a larger one."
        )
    if np.isfinite(error):
        return
    readings = [one.read(values, norm_bound) for one in passes]
    ends, errors = (np.stack(x) for x in zip(*((r.open, r.p_error) for r in readings), strict=True))
    if terms.radius is None or saturated(ends, errors):
        raise NotIdentifiable(
            f"{np.count_nonzero(ends)} of {ends.size} logits are out of the answers' reach at "
            "every scale tried, as with hard attention. v is determined, W is not. "
            + " ".join(values.precision.why),
            determined={"v": values.v, "c": 0.0},
        )


@dataclass(frozen=True, slots=True)
class Bounded:
    """A recovered head with a bound that needs no further answers."""

    model: SingleHead
    values: Values
    W_error: float
    assumes: tuple[str, ...]
    further: tuple[str, ...] = ()

    def bounds(self) -> tuple[dict[str, float], tuple[str, ...]]:
        """Return the bounds; a single head without biases has w = 0 and c = 0."""
        v_error = float(np.linalg.norm(self.values.v_error))
        return {"W": self.W_error, "v": v_error, "w": 0.0, "c": 0.0}, self.assumes

    def notes(self) -> tuple[str, ...]:
        """Say what a user should know."""
        none = (
            "Some logits could be anything: there is no finite bound on W, and the hold-out can "
            "only say that the answers are in range."
        )
        return (
            *self.values.precision.why,
            *self.further,
            *(() if np.isfinite(self.W_error) else (none,)),
        )


def verify(
    fit: Fit, opened: Opening, checks: int, rng: np.random.Generator, terms: Terms
) -> Generator[Round, Answers, Found[SingleHead]]:
    """Ask the closing hold-out; return what was found, or refuse it.

    Offsets are stretched and query tokens shrunk as far as the radius allows, which leaves all
    logits as they are and makes the answers large beside ±τ.
    """
    certificate = certificate_of(fit, checks)
    closing = holdout.closing(
        fit.model,
        certificate,
        opened.closing,
        rng,
        terms.cap,
        tuning=HoldoutTuning(gain=_STRETCH, open_by=_OPEN_BY),
    )

    def compare(X: Array, y: Array) -> Residuals:
        return for_any_error(HeadAt.of(fit.model, X), y, fit.values, certificate.errors["W"])

    judgement = yield from hold_out(closing, compare, checks, [(opened.probes.X, opened.answers)])
    evidence = judgement.evidence
    if judgement.refuses:
        raise ModelMismatch(
            f"The recovered head misses fresh answers by {evidence.max_residual:.1e} of their size "
            "where its bounds and the tolerance do not allow it. The target is not a single "
            f"attention head over {fit.model.dim} dimensions, or it has biases, or the tolerance "
            "is too small."
        )
    return Found(fit.model, certificate, evidence, fit.notes())
