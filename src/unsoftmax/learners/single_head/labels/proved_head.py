"""What labels prove: the head inside the intervals that bisection found, and its certificate.

Bisection trusts every label. So the labels just outside of every interval, by more than rounding
can move a flip, are asked at the end: 1 below and 0 above prove that the flip is between them,
even if a label before was wrong. The certificate rests on these end checks alone; other labels
are a contradiction, and refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.single_head.labels import bisection
from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Indices, Round
from unsoftmax.protocol import Certificate
from unsoftmax.refusals import Reason
from unsoftmax.solve.dense import solution_error

# End checks ask outside of an interval by this share of it, and twice the rounding. Larger: looser
# certificates; smaller: the label at the end of the bisection's own range is asked.
STAND_OFF = 1 / 8


@dataclass(frozen=True, slots=True)
class EndChecks:
    """Where the end checks of some unknowns ask, and what they prove."""

    low: Array
    high: Array
    error: Array
    """Bound on the distance of the flip from the estimate."""

    @classmethod
    def of(cls, low: Array, high: Array, found: Array, rounding: Array) -> EndChecks:
        """Stand off from the intervals by more than ``rounding`` moves a flip.

        Twice the rounding, that of the flip and that of the check, and a share of the interval.
        """
        aside = 2 * rounding + STAND_OFF * (high - low)
        error = np.maximum(high - found, found - low) + aside + rounding
        return cls(low - aside, high + aside, error)


@dataclass(frozen=True, slots=True)
class ProvedHead:
    """The recovered head and the intervals that end checks must prove."""

    model: SingleHead
    pairs: bisection.TokenPairs
    ratios: bisection.ValueRatios
    scale: Array
    """s of every pair."""
    v: Array
    """v̂ with v̂_p = ±1."""
    ratio: Array
    """(b·v̂)/(a·v̂) of every pair."""
    logits: Array
    """t̂ of every pair."""
    W_ends: EndChecks
    v_ends: EndChecks

    @classmethod
    def of(
        cls,
        pairs: bisection.TokenPairs,
        logits: bisection.ScaledBrackets,
        ratios: bisection.ValueRatios,
    ) -> ProvedHead:
        """Read the intervals through the final v̂."""
        v, scale, found = ratios.value(), logits.scale, logits.brackets
        norm, d = float(np.linalg.norm(v)), len(v)
        a, b = pairs.a_rows @ v / norm, pairs.b_rows @ v / norm
        ratio = np.divide.outer(b, a).ravel()
        every = np.arange(d * d)
        low, high = (
            bisection.threshold(*pairs.scales(every, end, scale), ratio)
            for end in (found.low, found.high)
        )
        t = (low + high) / 2
        W = pairs.b.solve(pairs.a.solve((-t / scale).reshape(d, d))).T

        farthest = np.maximum(np.abs(low), np.abs(high)) + (high - low)
        rounding = _logit_rounding(pairs, W, farthest, scale, (a, ratio))
        r, r_found = ratios.brackets, np.abs(v[ratios.others])
        r_rounding = bisection.ratio_rounding(r.high, norm)
        return cls(
            model=SingleHead(W, v / norm),
            pairs=pairs,
            ratios=ratios,
            scale=scale,
            v=v,
            ratio=ratio,
            logits=t,
            W_ends=EndChecks.of(low, high, t, rounding),
            v_ends=EndChecks.of(r.low, r.high, r_found, r_rounding),
        )

    def end_checks(self) -> Round:
        """Ask just outside of every interval: in turn below, where labels are 1, and above."""
        every, parts = np.arange(len(self.ratio)), []
        for t in (self.W_ends.low, self.W_ends.high):
            scales = bisection.threshold_scales(t, self.scale, self.ratio)
            parts.append(self.pairs.probes(every, scales, "end checks", "data"))
        if not len(self.ratios.others):
            return [*parts]
        of_v = [
            self.ratios.probes(rho, "data", "end checks")
            for rho in (self.v_ends.low, self.v_ends.high)
        ]
        return [*parts, *of_v]

    def certificate(self, checks: int) -> Certificate:
        """Bound the errors of W and v by what the end checks prove."""
        pairs, W, v = self.pairs, self.model.W, self.model.v
        v_error = bisection.direction_error(self.v, self.v_ends.error)
        through = bisection.ThroughValues.of(v, v_error, pairs.a_rows, pairs.b_rows)
        measured = float(np.linalg.norm(self.W_ends.error / self.scale))
        # the largest logits that the end checks allow
        largest = (self.logits + self.W_ends.error).reshape(W.shape)
        measured += through.error(largest, self.scale.reshape(W.shape))
        inner = solution_error(pairs.a, measured, W @ pairs.b_rows.T)
        W_error = solution_error(pairs.b, inner, W)
        assumes = [
            "The target is the sign of a single head without biases: the hold-out tests this but "
            "cannot prove it.",
            "‖v‖ = 1: labels do not determine it, and the bounds are for v/‖v‖.",
            "Labels are those of answers off by at most "
            f"{KAPPA:.0f} × {UNIT:.1e} × max‖x_i‖·‖v‖ from rounding.",
        ]
        if not checks:
            assumes.append("Nothing was checked beyond the ends of the intervals.")
        return Certificate({"W": W_error, "v": v_error}, tuple(assumes))

    def notes(self, certificate: Certificate) -> tuple[str, ...]:
        """Say what a user should know."""
        notes = ["Labels do not determine ‖v‖: v is returned with ‖v‖ = 1."]
        if np.linalg.norm(self.model.W) <= certificate.errors["W"]:
            notes.append("W is 0 as far as the labels tell: see its bound.")
        return tuple(notes)


def _logit_rounding(
    pairs: bisection.TokenPairs, W: Array, farthest: Array, scale: Array, seen: tuple[Array, Array]
) -> Array:
    """Bound how far rounding moves flips up to ``farthest``; ``seen`` is a·v̂ and the ratio."""
    a, ratio = seen
    d = len(a)
    score = np.linalg.norm(W @ pairs.b_rows.T, axis=0)
    a_norm, b_norm = (np.linalg.norm(rows, axis=1) for rows in (pairs.a_rows, pairs.b_rows))
    reach = np.tile(a_norm, d) + np.repeat(b_norm, d) / ratio
    return bisection.logit_rounding(farthest, np.tile(a, d), scale * np.repeat(score, d), reach)


def refuse_scale(found: ProvedHead, pilots: Indices, scale: float) -> None:
    """Refuse a scale s that the pilots' labels chose and their logits, as found, would not.

    The scale was chosen so that at most one in ``outside`` pilots is above ``pilot`` at s, and
    more at 2s; ``pilot_error`` is what their thresholds may be off by.
    """
    most = len(pilots) // bisection.ONE_OUTSIDE
    logits = np.abs(found.logits[pilots] * scale / found.scale[pilots])
    too_large = np.count_nonzero(logits > bisection.PILOT + bisection.PILOT_ERROR) > most
    too_small = np.count_nonzero(2 * logits > bisection.PILOT - bisection.PILOT_ERROR) <= most
    if too_large or too_small:
        raise Reason.SCALE_CONTRADICTS.error(which="smaller" if too_large else "larger")
