"""A recovered head along lines between sequences, by the ends' numbers instead of coordinates.

The hold-out of labels looks for the flips of a head on lines (1 − t)·X + t·X′, at 14 places at a
time and of up to 512 tokens. There scores and squared lengths are quadratic in t and values are
linear: three coefficients per token replace d coordinates. Also here: how far a head's answers may
be from the target's, by the coordinates of any sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.models import SingleHead
from unsoftmax.models.attention import largest_mean_shift, softmax, token_scores
from unsoftmax.probes import Array, Indices
from unsoftmax.protocol import Certificate
from unsoftmax.validate.head_comparison import UNBOUNDED, HeadAt, sum_rounding


@dataclass(frozen=True, slots=True)
class FlipLines:
    """Lines from sequences with label 1 to sequences with label 0, of one length each.

    Along a line scores and squared lengths are quadratic in the place t, values are linear. So the
    head is evaluated there by the ends' few numbers per token instead of all coordinates.
    """

    ones: Array
    """(lines, N, d)."""
    zeros: Array
    numbers: Array
    """Every token's score, value, ‖x_i‖² and ‖x_i − x_N‖², as coefficients of (1 − t)², t(1 − t)
    and t²: (lines, 3, 4, N)."""
    queries: Array
    """x_N at either end, (2, lines, d)."""
    vectors: Array
    """W x_N + w there, (2, lines, d)."""
    longest: float
    """The longest token of all."""

    @classmethod
    def of(cls, model: SingleHead, ones: Array, zeros: Array) -> FlipLines:
        """Evaluate a head at the ends."""
        first, last = (model.scores_of(X[:, -1]) for X in (ones, zeros))
        mixed = token_scores(ones, last) + token_scores(zeros, first)
        square = _squares(ones, zeros)
        values = [ones @ model.v, zeros @ model.v]
        numbers = (
            (token_scores(ones, first), mixed, token_scores(zeros, last)),
            (values[0], values[0] + values[1], values[1]),
            square,
            _squares(ones - ones[:, -1:], zeros - zeros[:, -1:]),
        )
        by_line = np.array(numbers).transpose(2, 1, 0, 3)
        return cls(
            ones,
            zeros,
            by_line,
            queries=np.array([ones[:, -1], zeros[:, -1]]),
            vectors=np.array([first, last]),
            longest=float(np.sqrt(np.max(square[::2]))),
        )

    def rounding(self, roundoffs: float) -> float:
        """Return so many roundoffs of 1, and of the largest score that there may be."""
        largest = self.longest * float(np.linalg.norm(self.vectors, axis=2).max())
        return roundoffs * UNIT * (1 + largest)

    def between(self, place: Array, which: Indices) -> Array:
        """Return some points of the lines, from ``ones`` (place 0) to ``zeros`` (place 1).

        ``place`` may hold several points of every line, those of all lines together.
        """
        ones, zeros = self.ones, self.zeros
        if len(ones) > 1:  # one line is broadcast, without a copy for every point
            ones, zeros = (ends[which % len(ends)] for ends in (ones, zeros))
        share = place[which, None, None]
        points = (1 - share) * ones
        points += share * zeros
        return np.asarray(points)

    def at(self, place: Array) -> HeadOnLines:
        """Evaluate the head at such points, but for rounding."""
        t = place.reshape(-1, len(self.ones)).T[..., None]
        rest = 1 - t
        powers = np.concatenate([rest * rest, t * rest, t * t], axis=2)
        lines, _, kinds, tokens = self.numbers.shape
        numbers = powers @ self.numbers.reshape(lines, 3, kinds * tokens)
        return HeadOnLines(self, t, numbers.reshape(lines, -1, kinds, tokens))


def _squares(ones: Array, zeros: Array) -> tuple[Array, Array, Array]:
    """Return the coefficients of ‖x‖² for vectors (lines, N, d) from ``ones`` to ``zeros``."""
    pairs = ((ones, ones), (ones, zeros), (zeros, zeros))
    one, product, zero = (np.einsum("bnd,bnd->bn", *pair) for pair in pairs)
    return one, 2 * product, zero


class HeadOnLines:
    """A head at P points of every line; what belongs to tokens has the shape (lines, P, N)."""

    def __init__(self, lines: FlipLines, place: Array, numbers: Array) -> None:
        self._lines, self._place, self._numbers = lines, place, numbers
        self.weights, self.values = softmax(numbers[:, :, 0]), numbers[:, :, 1]

    def answers(self) -> Array:
        """Return f̂, the points of all lines together: (P·lines,)."""
        return np.asarray(np.einsum("lpn,lpn->pl", self.weights, self.values)).ravel()

    def uncertainty(self, certificate: Certificate) -> Array:
        """Bound how far the answers can be from the target's, as `uncertainty` does."""
        lengths = np.sqrt(np.maximum(self._numbers[:, :, 2:], 0.0))
        own, away = lengths[:, :, 0], lengths[:, :, 1]
        # by coordinates: a square that has nearly vanished would be all rounding
        query, vector = (self._length(ends) for ends in (self._lines.queries, self._lines.vectors))
        from_W = query * min(certificate.errors["W"], UNBOUNDED)
        moved = away * from_W + own * (KAPPA * 2 * UNIT * vector)
        return _open_by(self.weights, self.values, moved, own, certificate).T.ravel()

    def _length(self, ends: Array) -> Array:
        """Measure vectors (2, lines, d) on the way between the ends: (lines, P, 1)."""
        first, last = ends[:, :, None]
        between = (1 - self._place) * first + self._place * last
        return np.asarray(np.linalg.norm(between, axis=2, keepdims=True))


def uncertainty(at: HeadAt, v: Array, certificate: Certificate) -> Array:
    """Bound how far a head's answers can be from what the target computes, ‖v‖ = 1."""
    # round-off twice: that of the target's scores and that of the scores as computed here
    moved = at.score_moves(2 * UNIT, min(certificate.errors["W"], UNBOUNDED))
    return _open_by(at.weights, at.X @ v, moved, at.longest[:, None], certificate)


def _open_by(
    weights: Array, values: Array, moved: Array, lengths: Array, certificate: Certificate
) -> Array:
    """Bound it by the tokens' weights, values, lengths, and how far their scores may be off."""
    mean = np.sum(weights * values, axis=-1, keepdims=True)
    shifted = largest_mean_shift(weights, np.abs(values - mean), moved.max(axis=-1))
    rounded = lengths.max(axis=-1) * (2 * KAPPA * UNIT + certificate.errors["v"])
    return np.asarray(rounded + shifted + sum_rounding(weights, values, 2 * UNIT))
