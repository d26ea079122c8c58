"""Columns of neurons read once more, while other neurons are not known yet.

A crossing may meet a hyperplane that nothing showed so far: what it says of the column is then
neither what the chord said, nor what another crossing says. Such neurons are crossed again, over a
shorter way.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.feed_forward.found_neurons import BallPart, FoundNeurons
from unsoftmax.learners.feed_forward.hyperplane_spots import HyperplaneSpots, Spots
from unsoftmax.learners.feed_forward.opening_look import OpeningLook
from unsoftmax.learners.feed_forward.search_steps import MOVED, asks
from unsoftmax.probes import Array, Flags, Indices, Round
from unsoftmax.protocol import Answers

# Shares of the way to the next known hyperplane over which each is crossed, until two readings
# agree: in between there may be others that are not known yet.
ROOMS = (0.12, 0.05, 0.02, 0.01)
# Columns agree within their errors if these are no more than this.
AGREED = 0.1


@dataclass(frozen=True, slots=True)
class CrossedNeurons:
    """What is known of the columns of all neurons, and of the places of their hyperplanes."""

    columns: Array
    """The best so far (m, d_out)."""
    error: Array
    sure: Flags
    """Which were crossed, and came out as they had been."""
    bend: Array
    """(m,): R − z(p), what the second difference is of a column of norm 1."""
    ways: Array
    points: Array
    """R n and p (m, k), as of `Spots`."""
    tokens: Array
    answers: Array
    """All that was asked across hyperplanes."""

    @classmethod
    def none(cls, d_out: int, dim: int) -> CrossedNeurons:
        """Begin without any."""
        number, token, column = np.zeros(0), np.zeros((0, dim)), np.zeros((0, d_out))
        return cls(column, number, number > 0, number, token, token, token, column)

    def with_neurons(self, columns: Array, error: Array) -> CrossedNeurons:
        """Add neurons that were not crossed."""
        n = len(columns)
        none = np.zeros((n, self.ways.shape[1]))
        return replace(
            self,
            columns=np.vstack([self.columns, columns]),
            error=np.append(self.error, error),
            sure=np.append(self.sure, np.full(n, False)),
            bend=np.append(self.bend, np.zeros(n)),
            ways=np.vstack([self.ways, none]),
            points=np.vstack([self.points, none]),
        )

    def placed(self, found: FoundNeurons) -> FoundNeurons:
        """Put the hyperplanes of the first neurons, whose rows are known, where they were crossed.

        Rows must be turned as they were when these were.
        """
        n, k = found.rows.shape
        ways, points, sure = self.ways[:n], self.points[:n], self.sure[:n]
        bias = np.sum(found.rows * (ways - points), axis=1) - self.bend[:n]
        along = np.linalg.norm(ways - points, axis=1) / np.sqrt(k)
        error = np.hypot(self.error[:n] * self.bend[:n], found.row_error * along)
        return replace(
            found,
            bias=np.where(sure, bias, found.bias),
            bias_error=np.where(sure, error, found.bias_error),
        )

    def taken(self, which: Indices, spots: Spots, sure: Flags) -> CrossedNeurons:
        """Take over what crossings of some neurons say, of those that are sure."""
        (columns, error), which = spots.columns, which[sure]
        tokens, answers = spots.asked

        def put(mine: Array, its: Array) -> Array:
            new = mine.copy()
            new[which] = its
            return new

        return CrossedNeurons(
            put(self.columns, columns[sure]),
            put(self.error, error[sure]),
            self.sure | np.isin(np.arange(len(self.sure)), which),
            put(self.bend, np.linalg.norm(spots.bends[sure], axis=1)),
            put(self.ways, spots.ways[sure]),
            put(self.points, spots.points[sure]),
            np.vstack([self.tokens, tokens]),
            np.vstack([self.answers, answers]),
        )


def crossed_again(
    crossed: CrossedNeurons,
    part: BallPart,
    look: OpeningLook,
    radius: float,
    rng: np.random.Generator,
) -> Generator[Round, Answers, CrossedNeurons]:
    """Cross all hyperplanes that are not sure, until two readings of each agree."""
    before, before_error = crossed.columns.copy(), np.full(len(crossed.error), np.inf)
    for room in ROOMS:
        left = np.flatnonzero(~crossed.sure)
        if not len(left):
            break
        crossing = HyperplaneSpots(
            asks("crossings"),
            part.found.rows,
            part.found.bias,
            look.length,
            look.error_at,
            rng,
            radius=radius,
            only=left,
            room=room,
        )
        spots = yield from crossing.run()
        columns, error = spots.columns
        sure = np.full(len(left), False)
        for old, off in ((crossed.columns, crossed.error), (before, before_error)):
            apart = np.linalg.norm(columns - old[left], axis=1)
            limit = MOVED * np.hypot(off[left], error)
            sure |= (apart <= limit) & (limit < AGREED)
        before[left], before_error[left] = columns, error
        crossed = crossed.taken(left, spots, sure)
    return crossed
