"""All neurons of a chord, read from steps beside it, and solved again when more is known.

Beside a chord of answers less what is known, rows are read as beside a line (`line_cells`). What
was known then is kept with the readings: when it is known better, they are corrected.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.feed_forward.ball_chords import Chord, without
from unsoftmax.learners.feed_forward.ball_part import BallPart
from unsoftmax.learners.feed_forward.crossed_neurons import CrossedNeurons
from unsoftmax.learners.feed_forward.found_neurons import FoundNeurons
from unsoftmax.learners.feed_forward.line_cells import CellReadings, LineCells
from unsoftmax.learners.feed_forward.search_steps import asks
from unsoftmax.probes import Array, Flags, Round
from unsoftmax.protocol import Answers

# Steps are taken in the widest of so many outermost pieces; kinks beyond it are left.
OUTER = 5


@dataclass(frozen=True, slots=True)
class ChordReadings:
    """What was read along one chord, and what had been taken off."""

    cells: LineCells
    readings: CellReadings
    known: BallPart | None
    start: int
    """Number of the neurons that were known before."""
    real: Flags
    """Which kinks are neurons."""

    @property
    def count(self) -> int:
        """Number of its neurons."""
        return int(np.sum(self.real))

    def columns(self, crossed: CrossedNeurons) -> tuple[Array, Array]:
        """Return the best columns and their errors, those of kinks that are no neurons too."""
        columns, error, _ = self.cells.jumps()
        own = slice(self.start, self.start + self.count)
        columns[self.real], error[self.real] = crossed.columns[own], crossed.error[own]
        return columns, error

    def settled(self, crossed: CrossedNeurons) -> Generator[Round, Answers, ChordReadings]:
        """Ask again where readings contradict the columns."""
        readings = yield from self.cells.settled(self.readings, *self.columns(crossed))
        return replace(self, readings=readings)

    def neurons(
        self, crossed: CrossedNeurons, known: BallPart | None, noise: float
    ) -> FoundNeurons:
        """Solve for all kinks' rows, answers being off by ``noise`` (2-norm)."""
        readings = self._corrected(known, noise)
        columns, error = self.columns(crossed)
        return self._solved(readings, columns, error)

    def first_found(self) -> FoundNeurons:
        """Solve with the columns that the chord shows."""
        columns, error, _ = self.cells.jumps()
        return self._solved(self.readings, columns, error)

    def _corrected(self, known: BallPart | None, noise: float) -> CellReadings:
        """Take off what is known better now."""
        if self.known is None or known is None:
            return self.readings
        cells, step = self.cells, self.readings.step
        k, d_out = len(known.point), len(known.value)
        error = np.hypot(
            noise * np.sqrt(2 / d_out) / step, known.found.jacobian_error / np.sqrt(k * d_out)
        )
        x = cells.origin + self.readings.places[:, None] * cells.basis[0]
        beside = x[:, None] + step[:, :, None] * cells.basis
        flat = beside.reshape(-1, k)
        change = (self.known(flat) - known(flat)).reshape(*beside.shape[:2], -1)
        change -= (self.known(x) - known(x))[:, None]
        return replace(self.readings, y=self.readings.y + change / step[:, :, None], errors=error)

    def _solved(self, readings: CellReadings, columns: Array, error: Array) -> FoundNeurons:
        cells, basis = self.cells, self.cells.basis
        solved = readings.solved(columns, error)
        rows = solved.along @ basis
        crossed = cells.origin + cells.kinks.t[:, None] * basis[0]
        return FoundNeurons(
            rows=rows,
            row_error=np.linalg.norm(solved.errors, axis=1),
            bias=-np.sum(rows * crossed, axis=1),
            bias_error=np.linalg.norm(solved.errors * (crossed @ basis.T), axis=1),
            columns=columns,
            column_error=error,
            first=solved.first.T @ basis,
            first_error=float(np.linalg.norm(readings.first_errors)),
        )


def read_chord(
    chord: Chord, known: BallPart | None, start: int
) -> Generator[Round, Answers, ChordReadings]:
    """Read all neurons of a chord, ``start`` others being known."""
    chord, walls = chord.trimmed(OUTER)
    cells = LineCells(
        without(known, asks("cells")),
        chord.kinks,
        chord.basis,
        chord.origin,
        chord.half,
        chord.search.own_error,
        strange=known is not None,
        walls=walls,
    )
    readings = yield from cells.run()
    return ChordReadings(cells, readings, known, start, np.full(len(chord.kinks.t), True))
