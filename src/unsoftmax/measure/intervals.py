"""What an answer within ±τ says of its logit: an interval, and nothing narrower.

With the two-token identity and the names of `unsoftmax.measure.two_tokens`,

    p̂ − p = (e − βb·δv − p·αa·δv)/(αa·v̂),          |e| ≤ η, |δv_k| ≤ ν_k,

whose denominator is known exactly. So

    |p̂ − p| ≤ δ = (η + β|b|·ν + p̄·α|a|·ν)/|αa·v̂|,
    p̄ = min{σ(t̄), (p̂ + (η + β|b|·ν)/|αa·v̂|)/(1 − α|a|·ν/|αa·v̂|)},

t̄ being the largest logit possible where ‖W‖ is bounded. The logit lies between σ⁻¹(p̂ − δ)
and σ⁻¹(p̂ + δ), within ±t̄: no Lipschitz constant, no margin of v. Nothing is asked here.
Source: beyond Theorem 6.1, whose bound must hold before anything is asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.measure.reading import Reading
from unsoftmax.measure.single_tokens import Values
from unsoftmax.measure.two_tokens import TwoTokenAnswers, Vectors
from unsoftmax.probes import Array

# Covers float64's rounding of norms, sums and logits in bounds that are otherwise exact: far above
# d² roundoffs for any d in reach, far below what any bound is worth.
SLACK = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class IntervalTuning:
    """Knobs of reading answers within ±τ."""

    resolution: float = 0.1
    """p is taken to be at least this share of its error bound away from 0 and from 1: random
    errors are well below their bound, and logits stay finite. Larger: saturated logits are
    estimated too small; smaller: they scatter more."""
    hidden: float = 0.25
    """An answer off by this much of p hides the logit: ±τ cannot tell p = ¼ from ½, and a
    smaller scale would not show more."""
    most_open: float = 0.25
    """At a scale that suits most logits, this share may still be beyond what answers resolve.
    Larger: saturated scales are kept; smaller: scales are lowered for the sake of a few."""


_DEFAULT = IntervalTuning()


@dataclass(frozen=True, slots=True)
class LogitIntervals:
    """Logits with the intervals that they lie in."""

    logit: Array
    """The estimate: σ⁻¹(p̂), moved to where it is possible."""
    low: Array
    high: Array
    """Ends of the interval; ±inf where there is none."""
    p_error: Array
    """δ."""
    impossible: NDArray[np.bool_]
    """Where no logit agrees with the answer."""

    @property
    def open(self) -> NDArray[np.bool_]:
        """Where the logit may be anything on one side."""
        return ~(np.isfinite(self.low) & np.isfinite(self.high))

    @property
    def error(self) -> Array:
        """Bound on |t̂ − t|."""
        return np.maximum(self.high - self.logit, self.logit - self.low)


def read_intervals(
    answers: TwoTokenAnswers,
    most: Array | float = np.inf,
    tuning: IntervalTuning = _DEFAULT,
) -> LogitIntervals:
    """Read answers to two tokens as intervals of logits.

    Parameters
    ----------
    answers : TwoTokenAnswers
        The answers, how they were asked, and what they may be off by.
    most : ndarray or float
        t̄, the largest |t| possible.
    tuning : IntervalTuning
        Knobs.
    """
    p, q, delta = _gate_bounds(answers, most)
    with np.errstate(divide="ignore", invalid="ignore"):
        low = np.log(np.maximum(p - delta, 0.0) / (q + delta))
        high = np.log((p + delta) / np.maximum(q - delta, 0.0))
        least = np.where(np.isfinite(delta), tuning.resolution * delta, 0.5)
        logit = np.log(np.maximum(p, least) / np.maximum(q, least))
    known = np.isfinite(delta)
    low, high = np.where(known, low, -np.inf), np.where(known, high, np.inf)
    impossible = known & ((p + delta < 0) | (q + delta < 0))
    impossible |= known & ~impossible & ((low > most) | (high < -most))
    low = np.where(known & ~impossible, np.maximum(low, -most), -np.asarray(most))
    high = np.where(known & ~impossible, np.minimum(high, most), np.asarray(most))
    logit = np.clip(np.where(known, logit, 0.0), -most, most)
    return LogitIntervals(logit, low, high, delta, impossible)


def _gate_bounds(answers: TwoTokenAnswers, most: Array | float) -> tuple[Array, Array, Array]:
    """Return p̂, q̂ = 1 − p̂ and δ; an offset with a·v̂ = 0 says nothing, δ = ∞."""
    a, b, alpha, beta = answers.a, answers.b, answers.alpha, answers.beta
    with np.errstate(divide="ignore", invalid="ignore"):
        signal = alpha * a.value
        rest = answers.y - beta * b.value - answers.values.c
        p = rest / signal
        q = (signal - rest) / signal
        fixed = (answers.answer_error + beta * b.value_error) / abs(signal)
        share = alpha * a.value_error / np.abs(signal)
        largest = np.where(share < 1, (p + fixed) / (1 - share), 1.0)
        delta = fixed + np.clip(largest, 0.0, expit(most)) * share
    return p, q, np.where(signal != 0, delta, np.inf)


def saturated(without_end: NDArray[np.bool_], p_error: Array, tuning: IntervalTuning) -> bool:
    """Tell whether logits are too large to read, and not merely hidden by ±τ.

    Parameters
    ----------
    without_end, p_error : ndarray
        `LogitIntervals.open` and `LogitIntervals.p_error` of the logits looked at.
    """
    hidden = np.median(p_error) >= tuning.hidden
    return bool(not hidden and np.mean(without_end) > tuning.most_open)


@dataclass(frozen=True, slots=True)
class Pass:
    """Answers to every offset with every query token, once.

    Attributes
    ----------
    Z, B : ndarray (offsets, d), (query tokens, d)
        Offsets and query tokens, unscaled.
    alpha, beta, y : ndarray (query tokens, offsets)
        Their scales, and the answers.
    """

    Z: Array
    B: Array
    alpha: Array
    beta: Array
    y: Array

    def read(
        self, values: Values, norm_bound: float | None, tuning: IntervalTuning = _DEFAULT
    ) -> LogitIntervals:
        """Read every answer, of a head with ‖W‖_F ≤ ``norm_bound`` if there is one."""
        a = Vectors.of(self.Z, values)
        b = Vectors.of(self.B, values).take((slice(None), None))
        most: Array | float = np.inf
        if norm_bound is not None:
            most = self.alpha * self.beta * a.norm * b.norm * norm_bound * SLACK
        answers = TwoTokenAnswers(self.y, a, b, self.alpha, self.beta, values)
        return read_intervals(answers, most, tuning)

    def measured(self, intervals: LogitIntervals) -> Array:
        """Return the readings M̂ of M = B Wᵀ Zᵀ."""
        return np.asarray(intervals.logit / (self.alpha * self.beta))

    def reading(self, intervals: LogitIntervals, W: Array, values: Values) -> Reading:
        """Return M̂ with bounds entry by entry, the rounding of scores and logits included.

        The rounding of scores depends on W, of which an estimate is enough.
        """
        tokens = self.alpha * np.linalg.norm(self.Z, axis=1)
        scores = self.beta * np.linalg.norm(self.B @ W.T, axis=1)[:, None]
        rounding = KAPPA * values.precision.unit * tokens * scores
        rounding = rounding + 4 * UNIT * abs(intervals.logit)
        error = (intervals.error + rounding) / (self.alpha * self.beta)
        return Reading.independent(self.measured(intervals), error)
