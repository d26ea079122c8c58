"""Values of cells: one that was left by a little stands out of the others."""

from __future__ import annotations

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.arrangement.base_points import NetworkHinges
from unsoftmax.learners.multi_head_transformer.cell_values import (
    CellPoint,
    CellReader,
    CellSystem,
    CellValues,
    SolvedCell,
    ValueCoordinates,
)


def reader():
    network = us.ReluNetwork(np.eye(3), np.ones(3))
    heads = us.MultiHead(np.zeros((2, 3, 3)), np.ones((2, 3)))
    rng = np.random.default_rng(0)
    return CellReader(NetworkHinges.of(network), heads, False, False, rng)


def cells(rows):
    """Cells that are told apart by their values, missed by so much."""
    at = CellPoint(np.ones(3), np.full(3, True), 1.0, np.eye(2, 3), False)
    system = CellSystem(at, ValueCoordinates.every(2, 3), np.zeros((0, 3)), np.zeros((0, 2)))
    return CellValues(
        tuple(SolvedCell(system, np.full((2, 3), k), row, row, 1.0) for k, row in enumerate(rows))
    )


def test_a_cell_that_was_left_stands_out():
    rows = np.random.default_rng(1).uniform(1e-10, 1e-9, 12)
    assert np.all(reader().usual(cells(rows)))
    rows[[3, 7]] = 1e-7
    assert np.flatnonzero(~reader().usual(cells(rows))).tolist() == [3, 7]
    # of few cells nobody knows what is usual
    assert np.all(reader().usual(cells([1e-9, 1e-5, 1e-9])))


def test_others_take_their_places():
    whole = cells(np.ones(4)).completed(np.array([1, 4, 5]), cells(2 * np.ones(3)))
    assert [one.row for one in whole.cells] == [1, 2, 1, 1, 2, 2]
    assert whole.v[:, 0, 0].tolist() == [0, 0, 2, 3, 1, 2]


def test_cells_that_are_as_usual_are_not_asked_again():
    values, shares = cells(np.ones(10)), np.ones(10)
    steps = reader().settled(values, np.ones((10, 3)), shares, ValueCoordinates.every(2, 3), 1)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value[0] is values
