"""A ReLU network that was learned, with bounds on what it and the answers may be off by.

g is the target's network, ĝ the one that was learned from single tokens, T([x]) = g(x):

    |ĝ(x) − g(x)| ≤ constant + slope·‖x‖        from the certificate of the network's learner
    |y − T(X)| ≤ η(size, y)                     from the answers' precision

The size of an answer is what its terms may add up to at a pooled token x:
‖x‖·Σ_k |w_k|‖A_k‖ + Σ_k |w_k b_k| + |c|. Nothing here knows how the network was learned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import NDArray

from unsoftmax.measure.precision import KAPPA, UNIT, Precision
from unsoftmax.measure.reading import Reading
from unsoftmax.models import ReluNetwork
from unsoftmax.models.relu_network import typical_length
from unsoftmax.probes import Array
from unsoftmax.refusals import Reason

# Numbers in an array while segments are cut (16 MB): bounds memory, changes nothing else.
NUMBERS_AT_ONCE = 2**21
# Deviations of g − ĝ that its certificate is, at least.
DEVIATIONS = 6.0
# Where W is read networks may be off by so many times more than where they are tried: at 1, one
# bound of 600 was broken, by 1.4 times; at 4 the least is 2.8 times its error.
ELSEWHERE = 4.0
# The deviation is taken for no less than this share of the certificate: of networks that it leaves
# far more open than they are off some neuron may be off by far more than the others.
LEAST_SHARE = 1e-4
# Probability that the deviation is taken for smaller than it is, by chance.
UNDERESTIMATED = 4e-2


@dataclass(frozen=True, slots=True)
class LearnedNetwork:
    """The network ĝ, and what bounds its error.

    Attributes
    ----------
    network : ReluNetwork
        ĝ.
    constant, slope : float
        ``|ĝ(x) − g(x)|`` ≤ constant + slope·‖x‖; infinite where there is no such bound.
    precision : Precision
        Of the target's answers.
    """

    network: ReluNetwork
    constant: float
    slope: float
    precision: Precision

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return self.network.dim

    @property
    def length(self) -> float:
        """A typical distance of the network's hyperplanes from 0; 1 where all contain 0.

        Where the error has a constant and a slope it is their quotient: biases that are smaller
        cannot be told from none.
        """
        if 0 < self.constant < np.inf and 0 < self.slope < np.inf:
            return self.constant / self.slope
        return 1.0 if self.constant == 0 else typical_length(self.network)

    def error(self, x: Array) -> Array:
        """Bound ``|ĝ(x) − g(x)|`` at points (n, d)."""
        return np.asarray(self.constant + self.slope * np.linalg.norm(x, axis=1))

    def answer_error(self, x: Array, y: Array) -> Array:
        """Bound what answers y (n,) to sequences whose pooled tokens are x (n, d) are off by."""
        g = self.network
        size = np.linalg.norm(x, axis=1) * float(np.abs(g.w_o) @ np.linalg.norm(g.A, axis=0))
        size = size + float(np.abs(g.w_o) @ np.abs(g.b)) + abs(g.c)
        return self.precision.error(size, y)

    def rounding(self, x: Array, y: Array) -> Array:
        """Return the deviation that rounding, noise, of answers y (n,) at points x may have.

        Terms of the neurons are rounded each by itself, evenly up to a roundoff.
        """
        g, length = self.network, np.linalg.norm(x, axis=1)[:, None]
        terms = g.w_o * (length * np.linalg.norm(g.A, axis=0) + np.abs(g.b))
        size = np.linalg.norm(terms, axis=1) + abs(g.c)
        return np.asarray(self.precision.error(size, y) / (KAPPA * np.sqrt(3)))

    def difference_error(self, x: Array, y: Array) -> Array:
        """Bound the error of ĝ(y) − ĝ(x), (n,): a smaller change says nothing about g.

        0 where ĝ has no error bound, so that every change counts.
        """
        error = self.error(x) + self.error(y)
        return np.where(np.isfinite(error), error, 0.0)

    def typical_share(self, x: Array, missed: Array, tokens: int) -> float:
        """Return the deviation of g − ĝ, as a share of `error`, that answers at points x show.

        Points beside one of so many ``tokens`` count once: the fewer there are, the smaller they
        may be by chance. ``missed`` is NaN where nothing was asked.
        """
        most, error, asked = 1 / DEVIATIONS, self.error(x), np.isfinite(missed)
        if not np.any(asked) or not np.all(error > 0):
            return most
        x, missed, error = x[asked], missed[asked], error[asked]
        tokens = min(tokens, len(x))
        square = float(np.mean((missed / error) ** 2))
        by_chance = 2 * scipy.special.gammaincinv(tokens / 2, UNDERESTIMATED)
        seen = np.sqrt(square * tokens / by_chance)
        return float(np.clip(ELSEWHERE * seen, LEAST_SHARE, most))

    def moved(
        self, x: Array, share: float, rng: np.random.Generator, biases: bool
    ) -> LearnedNetwork:
        """Draw a network that differs at points x (n, d) by a ``share`` of `error`.

        All of it with ``biases``; else slopes alone, which differences along a segment show more.
        """
        g, error = self.network, self.error(x)
        size = np.linalg.norm(g.A, axis=0)
        if not np.all(error > 0):
            return self
        dA = size * rng.standard_normal(g.A.shape) / np.sqrt(self.dim)
        db, dc = size * rng.standard_normal(g.b.shape), float(rng.standard_normal())
        far = self.length if self.constant > 0 and biases else 0.0
        dc *= far * float(np.abs(g.w_o) @ size)
        step = self.slope / float(np.abs(g.w_o) @ size)
        for _ in range(2):
            other = ReluNetwork(g.A + step * dA, g.w_o, g.b + step * far * db, g.c + step * dc)
            now = float(np.sqrt(np.mean(((other(x) - g(x)) / error) ** 2)))
            if now > 0:
                step *= share / now
        return replace(self, network=other)

    def gradients(self, x: Array) -> Array:
        """Return ∇ĝ at points (k, d)."""
        return network_gradients(self.network, x)

    @property
    def rows_at_once(self) -> int:
        """How many segments can be cut at once."""
        d, m = self.network.A.shape
        return int(max(1, NUMBERS_AT_ONCE // (m + 3 * d)))


def network_gradients(network: ReluNetwork, x: Array) -> Array:
    """Return a network's gradients at points (k, d); a neuron at its kink counts as inactive."""
    active = (x @ network.A + network.b > 0) * network.w_o
    return np.asarray(active @ network.A.T)


# -- A known ReLU network along segments: where it can be inverted, and the inverse.
#
#     T([a+b; b]) = g(b + σ(t)·a),      t = a·(W b + w)
#
# For every offset a and query token b, g is piecewise linear in σ on [0, 1]. Where all its slopes
# have one sign an answer y has exactly one σ; its error is the answer's over the smallest slope.
# Everything is vectorised over n segments; m neurons give m + 1 pieces each, some of them empty.
# No query is asked here.


# Largest share of a segment's rise that the network's error may be: two digits of σ. Where it is
# more the segment says nothing: steepness 0.
ERROR_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class SegmentPieces:
    """g(b + σa) on [0, 1], as linear pieces.

    Attributes
    ----------
    knots : ndarray (n, m + 2)
        Where pieces begin and end, from 0 to 1.
    values : ndarray (n, m + 2)
        g there.
    slopes : ndarray (n, m + 1)
        dg/dσ between them.
    """

    knots: Array
    values: Array
    slopes: Array

    @classmethod
    def of(cls, network: ReluNetwork, a: Array, b: Array) -> SegmentPieces:
        """Cut the segments from b to b + a, both (n, d), at the network's hyperplanes."""
        start, change = b @ network.A + network.b, a @ network.A
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = -start / change
        inside = (crossing > 0) & (crossing < 1)
        active = (start > 0) | ((start == 0) & (change > 0))
        first = (network.w_o * change * active).sum(axis=1, keepdims=True)
        # a neuron that turns on, or off, adds this to the slope
        jump = np.where(inside, network.w_o * np.abs(change), 0.0)
        crossing = np.where(inside, crossing, 1.0)
        order = np.argsort(crossing, axis=1)
        knots = np.pad(np.take_along_axis(crossing, order, axis=1), ((0, 0), (1, 1)))
        knots[:, -1] = 1.0
        slopes = first + np.cumsum(np.take_along_axis(jump, order, axis=1), axis=1)
        slopes = np.concatenate([first, slopes], axis=1)
        values = np.empty_like(knots)
        values[:, 0] = np.maximum(start, 0.0) @ network.w_o + network.c
        values[:, 1:] = values[:, :1] + np.cumsum(slopes * np.diff(knots, axis=1), axis=1)
        return cls(knots, values, slopes)

    @property
    def rise(self) -> Array:
        """g(b + a) − g(b), (n,)."""
        return np.asarray(self.values[:, -1] - self.values[:, 0])

    def steepness(self, hidden: Array) -> Array:
        """Return the smallest slope over the mean one: 1 where g is linear, ≤ 0 where it turns.

        Parameters
        ----------
        hidden : ndarray (n,)
            Changes of g that are within its error. Pieces that are too short to show more are
            left out.

        Returns
        -------
        ndarray (n,)
        """
        rise = self.rise
        along = self.slopes * np.sign(rise)[:, None]
        seen = (np.diff(self.knots, axis=1) > 0) & ~self._short(hidden)
        smallest = np.where(seen, along, np.inf).min(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            steep = np.where(np.isfinite(smallest), smallest / np.abs(rise), 0.0)
        return np.where(np.abs(rise) > hidden / ERROR_SHARE, steep, 0.0)

    def left_out(self, hidden: Array) -> tuple[Array, Array]:
        """Return the length of all short pieces, and what g changes by along them, (n,) each.

        These are the pieces that `steepness` does not count: σ may be off by their length.
        """
        width = np.where(self._short(hidden), np.diff(self.knots, axis=1), 0.0)
        return np.asarray(width.sum(axis=1)), np.asarray((width * np.abs(self.slopes)).sum(axis=1))

    def _short(self, hidden: Array) -> NDArray[np.bool_]:
        """Tell pieces on which g, and a line from end to end, change by less than ``hidden``."""
        width = np.diff(self.knots, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(hidden > 0, hidden / np.abs(self.rise), 0.0)
        return np.asarray(
            (width <= share[:, None]) & (width * np.abs(self.slopes) <= hidden[:, None])
        )

    def invert(self, y: Array) -> tuple[Array, Array]:
        """Return σ with g(b + σa) = y for monotone segments, and |dg/dσ| there, (n,) each.

        Beyond the ends of a segment the slope of its first or last piece goes on.
        """
        sign = np.sign(self.rise)[:, None]
        below = sign * self.values[:, 1:-1] <= sign * y[:, None]
        piece = np.count_nonzero(below, axis=1)
        at = np.arange(len(y)), piece
        sigma = self.knots[at] + (y - self.values[at]) / self.slopes[at]
        return np.asarray(sigma), np.abs(self.slopes[at])


# -- Answers along segments → where pooled tokens lie → logits, each with its error.
#
#     y = T([x+a; x]) = g(x + σa),      σ = 1/(1 + e^−t),      t = log σ − log(1 − σ)
#
# *From the network alone.* ĝ(x + σ̂a) = y − (g(x) − ĝ(x)), with g(x) from one single token: short
# segments lie in one linear piece, where ĝ's error at x is nearly all of its error. Let s be the
# smallest slope of ĝ along the segment, ε its error and η that of answers, p = x + σ̂a, and let ĝ
# change by c on pieces of length l that are left out because its error hides them. Then, to first
# order in ε,
#
#     |σ̂ − σ| ≤ (ε(p) + η(p) + ε(x) + η(x) + c)/s + l,
#
# without ε(x) and η(x) where g(x) was not asked.
#
# *Anchored.* g is asked once more, at x + σ_1 a with σ_1 near σ. Then
#
#     σ = σ_1 + (y − ĝ(x + σ_1 a) − (g − ĝ)(x + σ_1 a))/slope:
#
# the error of ĝ cancels, and that of its slope counts only times |σ − σ_1|.
#
# *Logits.* |t̂ − t| ≤ δ/(m(1 − m)) with δ the bound on σ̂ and m = min(σ̂, 1 − σ̂) − δ; none where m
# ≤ 0. No query is asked here.


# Where a kink of ĝ is nearer to the anchor than so many corrections σ − σ_1, ĝ may have it on the
# wrong side: its slope is then not trusted, and the correction counts as error.
NEAR_KINK = 10.0
# Relative error of ĝ's slopes elsewhere; larger: looser bounds of anchored entries.
SLOPE_ERROR = 1e-3
# σ may be outside of [0, 1] by so many times its bound before the model class is refused: bounds of
# ĝ are estimates, so once is not enough.
OUTSIDE = 3.0
# And by this much in any case: where bounds are 0 rounding is left.
OUTSIDE_ROUNDING = 1e-7


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


def pooled_positions(learned: LearnedNetwork, answered: AnsweredSegments) -> tuple[Array, Array]:
    """Return σ̂ and bounds on ``|σ̂ − σ|``, (n,) each.

    Along a segment that is flat, turns, or rises too little for ĝ's error, it has no useful one.
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
    smallest = np.maximum(pieces.steepness(hidden), 1e-300) * rise
    with np.errstate(over="ignore"):
        bound = (off + change) / smallest + length
    if np.any(there := np.isfinite(answered.at_anchor)):
        near, near_bound = _from_anchors(learned, answered, pieces, (sign * slope, smallest))
        sigma, bound = np.where(there, near, sigma), np.where(there, near_bound, bound)
    return sigma, bound + KAPPA * UNIT


def _from_anchors(
    learned: LearnedNetwork,
    answered: AnsweredSegments,
    pieces: SegmentPieces,
    slopes: tuple[Array, Array],
) -> tuple[Array, Array]:
    """Return σ and its bound from anchors, by ĝ's slope there and its smallest one."""
    slope, smallest = slopes
    p = answered.place(answered.anchor)
    move = (answered.y - learned.network(p) - answered.at_anchor) / slope
    kinks = pieces.knots[:, 1:-1]
    to_kink = np.abs(kinks - answered.anchor[:, None]).min(axis=1, initial=np.inf)
    near_kink = to_kink < NEAR_KINK * np.abs(move)
    share = np.where(near_kink, np.abs(slope) / smallest, SLOPE_ERROR)
    bound = np.abs(move) * share + 2 * learned.answer_error(p, answered.y) / smallest
    return answered.anchor + move, bound


def logits_of(sigma: Array, bound: Array) -> Reading:
    """Return logits, ±inf where saturated, and bounds on their errors, inf where there is none.

    Raises
    ------
    ModelMismatch
        σ is outside of [0, 1] by more than its error: no attention weights give that.
    """
    other = 1 - sigma
    beyond = np.maximum(-sigma, -other) > OUTSIDE * bound + OUTSIDE_ROUNDING
    if np.any(beyond):
        raise Reason.WEIGHTS_BEYOND_1.error(
            outside=np.count_nonzero(beyond),
            asked=np.size(sigma),
            contrary="not one softmax head followed by this ReLU network",
        )
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        t = np.log(np.maximum(sigma, 0.0)) - np.log(np.maximum(other, 0.0))
        margin = np.minimum(sigma, other) - bound
        error = np.where(margin > 0, bound / (margin * (1 - margin)), np.inf)
    return Reading.independent(t, error)
