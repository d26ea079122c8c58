"""What labels prove: the head inside the intervals that bisection found, and how far off it is.

Just outside of every interval, by more than rounding can move a flip, the label is asked once
more. Labels 1 below and 0 above prove that the flip is between them, whatever the bisection was
told: they carry the certificate, and anything else is a contradiction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.single_head.labels.unknowns import Entries, Ratios
from unsoftmax.measure import thresholds
from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Indices, Round
from unsoftmax.protocol import Certificate
from unsoftmax.solve.dense import solution_error

# End checks stand off by twice the rounding (that of the flip, and that of the check) and by
# this share of the last interval.
_STAND_OFF = 1 / 8


@dataclass(frozen=True, slots=True)
class Ends:
    """Where the end checks of some unknowns ask, and what they prove."""

    low: Array
    high: Array
    error: Array
    """Bound on the distance of the flip from the estimate."""

    @classmethod
    def of(cls, low: Array, high: Array, found: Array, rounding: Array) -> Ends:
        """Stand off from the intervals by more than ``rounding`` moves a flip."""
        aside = 2 * rounding + _STAND_OFF * (high - low)
        error = np.maximum(high - found, found - low) + aside + rounding
        return cls(low - aside, high + aside, error)


@dataclass(frozen=True, slots=True)
class Fit:
    """The recovered head and the intervals that end checks must prove."""

    model: SingleHead
    entries: Entries
    ratios: Ratios
    v: Array
    """v̂ with v̂_p = ±1."""
    ratio: Array
    """(b·v̂)/(a·v̂) of every entry."""
    logits: Array
    """t̂ of every entry."""
    W_ends: Ends
    v_ends: Ends

    @classmethod
    def of(cls, entries: Entries, ratios: Ratios) -> Fit:
        """Read the intervals through the final v̂."""
        v = ratios.value()
        norm = float(np.linalg.norm(v))
        d, scale, found = len(v), entries.scale, entries.brackets
        a, b = entries.a_rows @ v / norm, entries.b_rows @ v / norm
        ratio = np.divide.outer(b, a).ravel()
        every = np.arange(d * d)
        low, high = (
            thresholds.threshold(*entries.scales(every, end, scale), ratio)
            for end in (found.low, found.high)
        )
        logits = (low + high) / 2
        W = entries.b.solve(entries.a.solve((-logits / scale).reshape(d, d))).T

        score = np.linalg.norm(W @ entries.b_rows.T, axis=0)
        a_norm, b_norm = (np.linalg.norm(z, axis=1) for z in (entries.a_rows, entries.b_rows))
        farthest = np.maximum(np.abs(low), np.abs(high)) + (high - low)
        reach = np.tile(a_norm, d) + np.repeat(b_norm, d) / ratio
        rounding = thresholds.logit_rounding(
            farthest, np.tile(a, d), scale * np.repeat(score, d), reach
        )
        r, r_found = ratios.brackets, np.abs(v[ratios.others])
        return cls(
            model=SingleHead(W, v / norm),
            entries=entries,
            ratios=ratios,
            v=v,
            ratio=ratio,
            logits=logits,
            W_ends=Ends.of(low, high, logits, rounding),
            v_ends=Ends.of(r.low, r.high, r_found, thresholds.ratio_rounding(r.high, norm)),
        )

    def ends(self) -> Round:
        """Ask just outside of every interval: in turn below, where labels are 1, and above."""
        every, parts = np.arange(len(self.ratio)), []
        for t in (self.W_ends.low, self.W_ends.high):
            alpha, beta = thresholds.scales(t, self.entries.scale, self.ratio)
            parts.append(self.entries.ask(every, alpha, beta, "end checks", "data"))
        if not len(self.ratios.others):
            return [*parts]
        of_v = [
            self.ratios.ask(rho, "data", "end checks")
            for rho in (self.v_ends.low, self.v_ends.high)
        ]
        return [*parts, *of_v]

    def certificate(self, checks: int) -> Certificate:
        """Bound the errors of W and v by what the end checks prove."""
        entries, W, v = self.entries, self.model.W, self.model.v
        shape = W.shape
        scale = entries.scale.reshape(shape)
        v_error = thresholds.direction_error(self.v, self.v_ends.error)
        through = thresholds.ThroughValues.of(v, v_error, entries.a_rows, entries.b_rows)
        measured = float(np.linalg.norm(self.W_ends.error / entries.scale))
        # the largest logits that the end checks allow
        measured += through.error((self.logits + self.W_ends.error).reshape(shape), scale)
        W_error = solution_error(
            entries.b, solution_error(entries.a, measured, W @ entries.b_rows.T), W
        )
        assumes = [
            "The target is the sign of a single head without biases: what the hold-out tests, it "
            "cannot prove.",
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


def refuse_contradictions(probes: Round, labels: list[NDArray[np.bool_]]) -> None:
    """Refuse labels of the end checks that say that a flip is outside of its interval."""
    wrong = asked = 0
    for n, label in enumerate(labels):
        wrong += int(np.count_nonzero(label == bool(n % 2)))
        asked += len(probes[n])
    if wrong:
        raise ModelMismatch(
            f"The labels contradict each other: {wrong} of {asked} just outside of the intervals "
            "that bisection found say that the flip is outside. They must flip once along every "
            "line asked. Either some labels are wrong, or the target computes more coarsely than "
            "float64 (float32 supports 16 bits), or it is not the sign of a single attention head "
            "without biases."
        )


def refuse_scale(
    fit: Fit, pilots: Indices, scale: float, limits: tuple[float, float], most: int
) -> None:
    """Refuse a scale s that the pilots' labels chose and their logits, as found, would not.

    At most ``most`` of them may be above the upper limit at s, and more than that must be
    above the lower one at 2s.
    """
    logits = np.abs(fit.logits[pilots] * scale / fit.entries.scale[pilots])
    too_large = np.count_nonzero(logits > limits[1]) > most
    too_small = np.count_nonzero(2 * logits > limits[0]) <= most
    if too_large or too_small:
        raise ModelMismatch(
            "The labels contradict each other: those that chose the size of the tokens say that "
            f"logits are {'smaller' if too_large else 'larger'} than they were found to be. Some "
            "labels are wrong, or they are not the sign of a single attention head."
        )
