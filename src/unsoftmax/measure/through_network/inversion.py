"""Answers along segments → where pooled tokens lie → logits, each with its error.

    y = T([x+a; x]) = g(x + σa),      σ = 1/(1 + e^−t),      t = log σ − log(1 − σ)

*From the network alone.* ĝ(x + σ̂a) = y − (g(x) − ĝ(x)), with g(x) from one single token: short
segments lie in one linear piece, where ĝ's error at x is nearly all of its error. Let s be the
smallest slope of ĝ along the segment, ε its error and η that of answers, p = x + σ̂a, and let ĝ
change by c on pieces of length l that are left out because its error hides them. Then, to first
order in ε,

    |σ̂ − σ| ≤ (ε(p) + η(p) + ε(x) + η(x) + c)/s + l,

without ε(x) and η(x) where g(x) was not asked.

*Anchored.* g is asked once more, at x + σ_1 a with σ_1 near σ. Then

    σ = σ_1 + (y − ĝ(x + σ_1 a) − (g − ĝ)(x + σ_1 a))/slope:

the error of ĝ cancels, and that of its slope counts only times |σ − σ_1|.

*Logits.* |t̂ − t| ≤ δ/(m(1 − m)) with δ the bound on σ̂ and m = min(σ̂, 1 − σ̂) − δ; none where m ≤ 0.
No query is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.measure.reading import Reading
from unsoftmax.measure.through_network.learned_network import LearnedNetwork
from unsoftmax.measure.through_network.segments import SegmentPieces
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class InversionTuning:
    """When an inverted answer is trusted, and how far."""

    near_kink: float = 10.0
    """Where a kink of ĝ is nearer to the anchor than so many corrections σ − σ_1, ĝ may have it
    on the wrong side: its slope is then not trusted, and the correction counts as error."""
    slope_error: float = 1e-3
    """Relative error of ĝ's slopes elsewhere; larger: looser bounds of anchored entries."""
    outside: float = 3.0
    """σ may be outside of [0, 1] by so many times its bound before the model class is refused:
    bounds of ĝ are estimates, so once is not enough."""
    outside_rounding: float = 1e-7
    """And by this much in any case: where bounds are 0 rounding is left."""


@dataclass(frozen=True, slots=True)
class AnsweredSegments:
    """Segments [x, x + a] with the answers along them, and g − ĝ where it was asked.

    Attributes
    ----------
    x, a : ndarray (n, d)
        Query tokens and offsets.
    y : ndarray (n,)
        Answers to [x+a; x].
    at_start : ndarray (n,)
        g(x) − ĝ(x); 0 where it was not asked.
    anchor : ndarray (n,)
        σ_1.
    at_anchor : ndarray (n,)
        g − ĝ at x + σ_1 a; NaN where it was not asked.
    """

    x: Array
    a: Array
    y: Array
    at_start: Array
    anchor: Array
    at_anchor: Array

    def place(self, sigma: Array) -> Array:
        """Return x + σa, (n, d)."""
        return np.asarray(self.x + sigma[:, None] * self.a)


def pooled_positions(
    learned: LearnedNetwork, answered: AnsweredSegments, error_share: float, tuning: InversionTuning
) -> tuple[Array, Array]:
    """Return σ̂ and bounds on ``|σ̂ − σ|``, (n,) each.

    ``error_share`` is that of `SegmentPieces.steepness`: along a segment that is flat, turns, or
    rises too little for ĝ's error, σ has no useful bound.
    """
    x, network = answered.x, learned.network
    pieces = SegmentPieces.of(network, answered.a, x)
    hidden = learned.difference_error(x, x + answered.a)
    y = answered.y - answered.at_start
    sigma, slope = pieces.invert(y)
    rise, sign = np.abs(pieces.rise), np.sign(pieces.rise)
    # the pieces' values have summed up rounding: one Newton step on the network itself
    sigma += sign * (y - network(answered.place(sigma))) / slope
    p = answered.place(np.clip(sigma, 0.0, 1.0))
    off = learned.error(p) + learned.answer_error(p, answered.y)
    at_start = learned.error(x) + learned.answer_error(x, y)
    off = off + np.where(answered.at_start != 0, at_start, 0.0)
    length, change = pieces.left_out(hidden)
    smallest = np.maximum(pieces.steepness(hidden, error_share), 1e-300) * rise
    with np.errstate(over="ignore"):
        bound = (off + change) / smallest + length
    if np.any(there := np.isfinite(answered.at_anchor)):
        near, near_bound = _from_anchors(
            learned, answered, pieces, (sign * slope, smallest), tuning
        )
        sigma, bound = np.where(there, near, sigma), np.where(there, near_bound, bound)
    return sigma, bound + KAPPA * UNIT


def _from_anchors(
    learned: LearnedNetwork,
    answered: AnsweredSegments,
    pieces: SegmentPieces,
    slopes: tuple[Array, Array],
    tuning: InversionTuning,
) -> tuple[Array, Array]:
    """Return σ and its bound from anchors, by ĝ's slope there and its smallest one."""
    slope, smallest = slopes
    p = answered.place(answered.anchor)
    move = (answered.y - learned.network(p) - answered.at_anchor) / slope
    kinks = pieces.knots[:, 1:-1]
    to_kink = np.abs(kinks - answered.anchor[:, None]).min(axis=1, initial=np.inf)
    near_kink = to_kink < tuning.near_kink * np.abs(move)
    share = np.where(near_kink, np.abs(slope) / smallest, tuning.slope_error)
    bound = np.abs(move) * share + 2 * learned.answer_error(p, answered.y) / smallest
    return answered.anchor + move, bound


def logits_of(sigma: Array, bound: Array, tuning: InversionTuning) -> Reading:
    """Return logits, ±inf where saturated, and bounds on their errors, inf where there is none.

    Raises
    ------
    ModelMismatch
        σ is outside of [0, 1] by more than its error: no attention weights give that.
    """
    other = 1 - sigma
    if np.any(np.maximum(-sigma, -other) > tuning.outside * bound + tuning.outside_rounding):
        raise ModelMismatch(
            "Answers to two tokens lie outside of what any attention weights between them "
            "can give with this network: the target is not one softmax head followed by a "
            "ReLU network."
        )
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        t = np.log(np.maximum(sigma, 0.0)) - np.log(np.maximum(other, 0.0))
        margin = np.minimum(sigma, other) - bound
        error = np.where(margin > 0, bound / (margin * (1 - margin)), np.inf)
    return Reading.independent(t, error)
