"""Steps that searches of layers with and without a norm have in common."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from unsoftmax.learners.feed_forward.fitted_layer import COARSE
from unsoftmax.learners.feed_forward.found_neurons import FoundNeurons, Sides
from unsoftmax.learners.feed_forward.hyperplane_spots import Spots
from unsoftmax.learners.feed_forward.line_cells import AskTokens, CellReadings
from unsoftmax.learners.feed_forward.opening_look import OpeningLook
from unsoftmax.probes import Array, Flags, Round, Singles
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason

# How far the line is from 0, in length scales: on a line through 0 the hyperplanes of a layer
# without biases all meet.
START = 0.5
# A column of B found on the line, and again elsewhere, differs by no more than so many of its
# errors.
MOVED = 30.0
# Of coarse answers this share of the columns may.
DOUBTFUL = 0.3


def asks(phase: str) -> AskTokens:
    """Return what asks single tokens in a phase."""

    def ask(x: Array) -> Generator[Round, Answers, Array]:
        [y] = yield [Singles(x, phase=phase, purpose="data")]
        return y

    return ask


def drawn_line(dim: int, length: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return directions (d, d), the line's own first, and a point of it; ``length`` is Λ."""
    basis = np.linalg.qr(rng.standard_normal((dim, 1)), mode="complete")[0].T
    origin = rng.standard_normal(dim)
    return basis, origin * (START * length / np.linalg.norm(origin))


def unlike(spots: Spots, columns: Array, column_error: Array) -> Flags:
    """Tell which crossings show other columns than these, by more than errors explain."""
    again, error = spots.columns
    moved = np.linalg.norm(again - columns, axis=1)
    # of bends that are no numbers, too
    return ~np.asarray(moved <= MOVED * np.hypot(column_error, error))


def checked_spots(spots: Spots, columns: Array, column_error: Array, look: OpeningLook) -> Spots:
    """Refuse hyperplanes that bend elsewhere than the line's kinks say, or otherwise.

    Of coarse answers a few may: they are kept as the line showed them, for the fit to judge.
    """
    off = unlike(spots, columns, column_error)
    coarse = look.noise > COARSE
    if np.sum(off) > (DOUBTFUL * len(off) if coarse else 0):
        raise Reason.HYPERPLANES_ELSEWHERE.error(off=np.sum(off), crossed=len(off))
    size = np.linalg.norm(spots.bends, axis=1)
    return spots.replaced(off, columns * size[:, None], column_error * size)


def neurons_of(readings: CellReadings, spots: Spots, basis: Array) -> FoundNeurons:
    """Solve for all rows with the columns of the crossings."""
    columns, column_error = spots.columns
    solved = readings.solved(columns, column_error)
    rows = solved.along @ basis
    row_error = np.linalg.norm(solved.errors, axis=1)
    along = np.linalg.norm(solved.errors * ((spots.ways - spots.points) @ basis.T), axis=1)
    return FoundNeurons(
        rows=rows,
        row_error=row_error,
        bias=spots.biases(rows),
        bias_error=np.hypot(spots.error, along),
        columns=columns,
        column_error=column_error,
        first=solved.first.T @ basis,
        first_error=float(np.linalg.norm(readings.first_errors)),
    )


def notes_of(found: FoundNeurons, sides: Sides) -> tuple[str, ...]:
    """Say what is determined."""
    residual = "x is added" if sides.residual else "x is not added"
    count = (
        f"{len(found.rows)} hyperplanes were found; neurons on one hyperplane are one, and their "
        "order and a positive factor for each are free."
    )
    if sides.linear is None:
        sure = "is determined" if sides.sure else "is chosen: other sides may do as well"
        return (count, f"On which side each neuron is active, and that {residual}, {sure}.")
    why = (
        "as where neurons on one hyperplane are active on opposite sides"
        if sides.known
        else "for d·d_out equations do not determine on which side each neuron is active"
    )
    rank = len(sides.linear[0])
    return (
        count,
        f"A linear part of rank {rank} is left, {why}: it takes {2 * rank} neurons more. Jumps "
        "across hyperplanes and one affine part are determined, and no more.",
    )
