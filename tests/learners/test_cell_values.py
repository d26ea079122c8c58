"""Values of cells: one that was left by a little stands out of the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import unsoftmax as us
from tests.by_hand import driven
from unsoftmax.arrangement.base_points import ConeDirections, NetworkHinges
from unsoftmax.learners.multi_head_transformer.cell_values import (
    LENGTH,
    CellPoint,
    CellReader,
    CellSystem,
    SolvedCell,
    ValueCoordinates,
)


def reader(rows):
    """A reader of cells that are told apart by their values, and missed by so much."""
    network = us.ReluNetwork(np.eye(3), np.ones(3))
    heads = us.MultiHead(np.zeros((2, 3, 3)), np.ones((2, 3)))
    rng, points = np.random.default_rng(0), np.ones((len(rows), 3))
    at = CellPoint(np.ones(3), np.full(3, True), 1.0, np.eye(2, 3), False)
    system = CellSystem(at, ValueCoordinates.every(2, 3), np.zeros((0, 3)), np.zeros((0, 2)))
    cells = {k: SolvedCell(system, np.full((2, 3), k), row, row, 1.0) for k, row in enumerate(rows)}
    return CellReader(NetworkHinges.of(network), heads, False, False, points, rng, cells)


def test_a_cell_that_was_left_stands_out():
    rows = np.random.default_rng(1).uniform(1e-10, 1e-9, 12)
    assert np.all(reader(rows).usual)
    rows[[3, 7]] = 1e-7
    assert np.flatnonzero(~reader(rows).usual).tolist() == [3, 7]
    # of few cells nobody knows what is usual
    assert np.all(reader([1e-9, 1e-5, 1e-9]).usual)


def test_cells_are_in_their_order():
    known = reader(np.ones(3))
    known.cells[1] = known.cells.pop(1)
    assert known.v[:, 0, 0].tolist() == [0, 1, 2]


def test_a_cell_that_stands_out_is_asked_again_with_shorter_offsets():
    rng = np.random.default_rng(0)
    W, B = rng.standard_normal((2, 2, 4, 4)), rng.standard_normal((2, 12, 4))
    target = us.MultiHeadTransformer(W[0], B, np.ones(12), rng.standard_normal(12))
    hinges, heads = NetworkHinges.of(target.on_single_tokens), us.MultiHead(W[0], W[1, :, 0])
    cones = ConeDirections.drawn(hinges, rng)
    points = cones.spanning(hinges.active(cones.widest(1))[0], LENGTH, rng)
    known = CellReader(hinges, heads, False, False, points, rng)
    driven(known.read(range(12), known.every, 1), target)
    right, known.cells[3] = known.cells[3], replace(known.cells[3], row=1.0)
    _, asked = driven(known.read([11], known.every, 1), target)
    assert asked == 2 * (1 + known.every.count + 1)
    assert [known.shares[k] for k in (2, 3, 11)] == [1.0, 0.5, 1.0]
    assert known.cells[3].row < 1e-6
    np.testing.assert_allclose(known.cells[3].v, right.v, rtol=1e-6, atol=1e-6)
