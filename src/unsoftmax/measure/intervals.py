"""What an answer within ±τ says of its logit: an interval, and nothing narrower.

With the two-token identity and the names of `unsoftmax.measure.two_tokens`,

    p̂ − p = (e − βb·δv − p·αa·δv)/(αa·v̂),          |e| ≤ η, |δv_k| ≤ ν_k,

whose denominator is known exactly. So

    |p̂ − p| ≤ δ = (η + β|b|·ν + p̄·α|a|·ν)/|αa·v̂|,
    p̄ = min{σ(t̄), (p̂ + (η + β|b|·ν)/|αa·v̂|)/(1 − α|a|·ν/|αa·v̂|)},

t̄ being the largest logit possible where ‖W‖ is bounded. The logit lies between σ⁻¹(p̂ − δ)
and σ⁻¹(p̂ + δ), within ±t̄: no Lipschitz constant, no margin of v. Source: beyond Theorem 6.1,
whose bound must hold before anything is asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from unsoftmax.measure.two_tokens import TwoTokenAnswers, Values, Vectors
from unsoftmax.probes import Array

# Nearer to 0 or 1 than a tenth of its error bound an answer's p says no more than that: random
# errors are well below their bound, and logits stay finite.
_RESOLUTION = 0.1


@dataclass(frozen=True, slots=True)
class Within:
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


def read_within(
    y: Array,
    a: Vectors,
    b: Vectors,
    alpha: Array,
    beta: Array,
    values: Values,
    most: Array | float = np.inf,
) -> Within:
    """Read answers to two tokens as intervals of logits.

    Parameters
    ----------
    y, a, b, alpha, beta, values
        As for `unsoftmax.measure.two_tokens.TwoTokenAnswers`.
    most : ndarray or float
        t̄, the largest |t| possible.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        signal = alpha * a.value
        rest = y - beta * b.value - values.c
        p = rest / signal
        q = (signal - rest) / signal
        own = TwoTokenAnswers(y, a, b, alpha, beta, values).answer_error
        fixed = (own + beta * b.value_error) / abs(signal)
        share = alpha * a.value_error / np.abs(signal)
        largest = np.where(share < 1, (p + fixed) / (1 - share), 1.0)
        delta = fixed + np.clip(largest, 0.0, expit(most)) * share
        # an offset with a·v̂ = 0 says nothing
        delta = np.where(signal != 0, delta, np.inf)
        low = np.log(np.maximum(p - delta, 0.0) / (q + delta))
        high = np.log((p + delta) / np.maximum(q - delta, 0.0))
        least = np.where(np.isfinite(delta), _RESOLUTION * delta, 0.5)
        logit = np.log(np.maximum(p, least) / np.maximum(q, least))
    known = np.isfinite(delta)
    low, high = np.where(known, low, -np.inf), np.where(known, high, np.inf)
    impossible = known & ((p + delta < 0) | (q + delta < 0))
    impossible |= known & ~impossible & ((low > most) | (high < -most))
    low = np.where(known & ~impossible, np.maximum(low, -most), -np.asarray(most))
    high = np.where(known & ~impossible, np.minimum(high, most), np.asarray(most))
    logit = np.clip(np.where(known, logit, 0.0), -most, most)
    return Within(logit, low, high, delta, impossible)
