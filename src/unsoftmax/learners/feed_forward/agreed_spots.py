"""Crossings that show other columns than the line did, repeated from better rows.

A window of the line's cells with one column known to 1e-4 gives all its rows no better: points that
lie on such hyperplanes by their rows are beside them, and what is met on the way may be another.
With the columns of the other crossings, known to 1e-9, these rows come out right.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from unsoftmax.arrangement.direction_kinks import DirectionKinkTuning
from unsoftmax.learners.feed_forward.hyperplane_spots import Spots
from unsoftmax.learners.feed_forward.line_cells import CellReadings
from unsoftmax.learners.feed_forward.search_steps import unlike
from unsoftmax.probes import Array, Indices, Round
from unsoftmax.protocol import Answers

CrossRows = Callable[[Array, Indices | None], Generator[Round, Answers, Spots]]
"""Crosses the hyperplanes of rows (m, d), where the line did: those chosen, or all."""

# Behind a norm, columns that the line shows to no more than this are not compared with those of
# the crossings: kinks so close to each other have right places and wrong columns. What the
# crossings show must then explain answers beside hyperplanes, and fresh ones.
UNSURE = 1e-4
# Behind a norm, crossings that contradict the line are repeated, and with them those that show a
# column off by more than ``unsure``: where they are no larger a share of all, and how often.
RECROSSED, RECROSSINGS = 0.2, 2
# Behind a norm, directions beside hyperplanes that are missed by more than this are those of
# another layer.
ASTRAY = 1e-6


@dataclass(frozen=True, slots=True)
class AgreedSpots:
    """Crossings of all hyperplanes, until each column was seen twice."""

    readings: CellReadings
    basis: Array
    """Orthonormal directions (d, d), the line's own first."""
    columns: Array
    """As the line showed them (m, d_out)."""
    column_error: Array
    cross: CrossRows

    def run(self) -> Generator[Round, Answers, tuple[Spots, Array]]:
        """Cross all, and some again; return by how much the line's columns may be off, too."""
        error = self.column_error
        spots = yield from self.cross(self._rows(self.readings, self.columns, error), None)
        doubt = np.maximum(DirectionKinkTuning().errors * error, ASTRAY)
        # of close kinks the line shows the places, and hardly the columns
        compared = np.minimum(doubt, UNSURE)
        doubt = np.where(error > UNSURE, np.inf, doubt)
        agreed = np.full(len(doubt), False)
        for _ in range(RECROSSINGS):
            off = unlike(spots, self.columns, compared)
            if not np.any(off):
                break
            columns, own = spots.columns
            # where one went astray others did, and few columns of the line are off by more
            moved = np.linalg.norm(columns - self.columns, axis=1)
            off |= ~agreed & ~(moved <= UNSURE)
            if np.sum(off) > RECROSSED * len(off):
                break
            which = np.flatnonzero(off)
            better = np.where(off[:, None], self.columns, columns), np.where(off, error, own)
            rows = self._rows(self.readings.rescaled(*better), *better)
            again = yield from self.cross(rows, which)
            agreed[which] = ~unlike(again, columns[which], own[which])
            compared[agreed] = doubt[agreed] = np.inf
            spots = spots.crossed_again(which, again)
        return spots, doubt

    def _rows(self, readings: CellReadings, columns: Array, error: Array) -> Array:
        return np.asarray(readings.solved(columns, error).along @ self.basis)
