"""Steps that searches of layers with and without a norm have in common."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

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
    found = readings.neurons(*spots.columns, basis, spots.ways - spots.points)
    bias_error = np.hypot(spots.error, found.bias_error)
    return replace(found, bias=spots.biases(found.rows), bias_error=bias_error)


def notes_of(sides: Sides, after_norm: bool = False) -> tuple[str, ...]:
    """Say what is determined; after a norm the sides tell nothing of a residual."""
    count = (
        f"{len(sides.back)} hyperplanes were found; neurons on one hyperplane are one, and their "
        "order and a positive factor for each are free."
    )
    if sides.linear is None:
        residual = f", and that x is {'' if sides.residual else 'not '}added,"
        sure = "is determined" if sides.sure else "is chosen: other sides may do as well"
        also = "" if after_norm else residual
        return (count, f"On which side each neuron is active{also} {sure}.")
    if after_norm:
        why = "as of neurons that are active at every normalised token"
    elif sides.known:
        why = "as where neurons on one hyperplane are active on opposite sides"
    else:
        why = "for d·d_out equations do not determine on which side each neuron is active"
    rank = len(sides.linear[0])
    return (
        count,
        f"A linear part of rank {rank} is left, {why}: it takes {2 * rank} neurons more. Jumps "
        "across hyperplanes and one affine part are determined, and no more.",
    )
