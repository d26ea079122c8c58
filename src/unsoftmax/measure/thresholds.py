"""Where labels flip, and what that bounds: v's ratios, logits, W.

A label is the sign of what the target computes, off by at most η(X) = κu·max_i‖x_i‖·‖v‖ and
by the rounding of the scores, κu‖x_i‖‖W x_N‖. With ‖v‖ = 1:

    f([g_i e_i − ρ g_p e_p]) = |v_i| − ρ|v_p|                flips at ρ = |v_i|/|v_p|
    X = [αa + βb; βb],  b·v < 0 < a·v:
    f(X) = β b·v + (αa·v)·σ(t), t = αβ a·(W b)                flips at σ(t) = −(β/α)(b·v)/(a·v)

With αβ = s fixed the logit stays and α moves the threshold: α² = s·(−b·v/a·v)·(1 + e^{−t}).
Nothing is asked here: `unsoftmax.measure.bisection` finds the flips.
Source: beyond the paper, whose Theorem B.1 bisects the same two tokens with a = e_i, b = e_j.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.probes import Array

# Roundings of a probe's own tokens: once as products α·a, once as a sum.
_PROBE_ROUNDINGS = 2.0


def scales(t: Array, scale: Array, ratio: Array) -> tuple[Array, Array]:
    """Return α and β = s/α that put the threshold at the logit t; ``ratio`` is |b·v|/(a·v)."""
    alpha = np.sqrt(scale * ratio * (1 + np.exp(-t)))
    return alpha, scale / alpha


def threshold(alpha: Array, beta: Array, ratio: Array) -> Array:
    """Return the logit at which the label flips, inf where no logit is that large."""
    p = beta / alpha * ratio
    with np.errstate(divide="ignore", invalid="ignore"):
        logit: Array = np.where(p < 1, np.log(p) - np.log1p(-p), np.inf)
    return logit


def ratio_rounding(ratio: Array, norm: float) -> Array:
    """Bound how far rounding moves the flip of a ratio; ``norm`` is ‖v‖/|v_p|."""
    bound: Array = (KAPPA + _PROBE_ROUNDINGS) * UNIT * np.sqrt(1 + ratio**2) * norm
    return bound


def logit_rounding(t: Array, a_value: Array, b_score: Array, size: Array) -> Array:
    """Bound how far rounding moves the flip at a logit t.

    Parameters
    ----------
    t : ndarray
        Logits; where they are only known to an interval, its largest in absolute value.
    a_value : ndarray
        a·v̂ of the offsets.
    b_score : ndarray
        s‖W b‖, the size of the scores per unit of ‖x‖/α.
    size : ndarray
        ‖αa + βb‖/α at most: ‖a‖ + (β/α)‖b‖.
    """
    p = 1 / (1 + np.exp(-np.abs(t)))
    values = (KAPPA + _PROBE_ROUNDINGS) * UNIT * size / (a_value * p * (1 - p))
    scores = (KAPPA + _PROBE_ROUNDINGS) * UNIT * 2 * size * b_score
    bound: Array = values + scores
    return bound


def direction_error(ratios: Array, errors: Array) -> float:
    """Bound ‖r̂/‖r̂‖ − r/‖r‖‖₂ for |r̂_i − r_i| ≤ ``errors``.

    By ‖x/‖x‖ − y/‖y‖‖ ≤ 2‖x − y‖/(‖x‖ + ‖y‖).
    """
    off, size = float(np.linalg.norm(errors)), float(np.linalg.norm(ratios))
    if off >= size:
        return 2.0
    return min(2.0, 2 * off / (2 * size - off)) + 4 * UNIT


@dataclass(frozen=True, slots=True)
class ThroughValues:
    """What an error of v̂ does to logits that were read through it.

    v̂ and v are unit vectors; scaling v moves no threshold, so only the part ω of v that is
    orthogonal to v̂ counts: ‖ω‖ ≤ tan φ where 2 sin(φ/2) = ‖v̂ − v‖.
    """

    a_shift: float
    """Bound on √Σ_a (a·ω/a·v̂)²."""
    b_shift: float
    """The same of the query tokens."""
    largest: float
    """Bound on any |a·ω/a·v̂| or |b·ω/b·v̂|."""

    @classmethod
    def of(cls, v: Array, v_error: float, a: Array, b: Array) -> ThroughValues:
        """Look at offsets and query tokens through v̂."""
        tangent = v_error / max(1e-300, 1 - v_error**2) if v_error < 1 else np.inf
        shifts, largest = [], 0.0
        for rows in (a, b):
            across = (rows - np.outer(rows @ v, v)) / np.abs(rows @ v)[:, None]
            shifts.append(tangent * float(np.linalg.norm(across, 2)))
            largest = max(largest, tangent * float(np.linalg.norm(across, axis=1).max()))
        return cls(shifts[0], shifts[1], largest)

    def error(self, t: Array, scale: Array) -> float:
        """Bound ‖Δ(t/s)‖_F for logits t (query tokens, offsets) read at scales s.

        dt = d(log p)/(1 − p), and log p moves by log(1 + b·ω/b·v̂) − log(1 + a·ω/a·v̂), each at
        most x/(1 − x) for x = ``largest``. From x = ½ on there is no useful bound.
        """
        x = self.largest
        if x >= 0.5:
            return float("inf")
        q = 1 / (1 + np.exp(t))
        q = q - (1 - q) * np.expm1(2 * x / (1 - x))
        if not np.all(q > 0):
            return float("inf")
        gain = 1 / (q * scale)
        per_token = np.sqrt(np.max(np.sum(gain**2, axis=1)))
        per_offset = np.sqrt(np.max(np.sum(gain**2, axis=0)))
        return float((per_token * self.b_shift + per_offset * self.a_shift) / (1 - x))
