"""Analytic centres of cells, thin and wide, and steps that stay inside."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.arrangement.centres import CellShapes, CentreTuning
from unsoftmax.measure.reflections import orthogonal_to


def cells(rng, D, K, count, upright):
    """Hyperplanes, and points on their sides."""
    n = rng.standard_normal((K, D))
    n /= np.linalg.norm(n, axis=1, keepdims=True)
    start = rng.standard_normal((count, D))
    start /= np.linalg.norm(start, axis=1, keepdims=True)
    if upright:
        start[:, -1] = np.abs(start[:, -1])
    return n, start


def objective(n, sides, y, upright):
    """What the centre maximises, in each cell."""
    value = np.sum(np.log(sides * (y @ n.T)), axis=1) - max(len(n), 1) / 2 * np.sum(y**2, axis=1)
    return value + (np.log(y[:, -1]) if upright else 0)


@pytest.mark.parametrize("upright", [True, False])
@pytest.mark.parametrize(("D", "K"), [(2, 3), (6, 10), (20, 8), (5, 0)])
def test_centres_are_in_their_cells_and_no_point_near_by_is_better(D, K, upright):
    rng = np.random.default_rng([D, K])
    n, start = cells(rng, D, K, 12, upright)
    sides = np.sign(start @ n.T)
    shapes = CellShapes(n, upright, CentreTuning(decrement=1e-12, newton=60, bisections=40))
    y = shapes.centres(start)
    assert np.allclose(np.linalg.norm(y, axis=1), 1)
    assert np.all(sides * (y @ n.T) > 0)
    if K == 0:
        return
    assert not upright or np.all(y[:, -1] > 0)
    # at its best length, which centres are normalised from
    length = np.sqrt((K + upright) / K)
    best = objective(n, sides, length * y, upright)
    for _ in range(20):
        other = length * y + 1e-3 * rng.standard_normal(y.shape)
        inside = np.all(sides * (other @ n.T) > 0, axis=1) & (not upright or other[:, -1] > 0)
        with np.errstate(invalid="ignore"):
            assert np.all((objective(n, sides, other, upright) < best + 1e-12) | ~inside)


@pytest.mark.parametrize("thin", [1e-3, 1e-6, 1e-9])
def test_a_start_in_a_thin_cell_leads_to_where_it_is_wide(thin):
    """Two hyperplanes that are ``thin`` apart here meet elsewhere at a right angle."""
    rng = np.random.default_rng(0)
    n = np.array([[1.0, 0.0, 0.0, 0.0], [-np.cos(0.5), np.sin(0.5), 0.0, 0.0]])
    start = np.array([[thin / 2, thin * (0.5 / np.tan(0.5) + 1), 1.0, rng.uniform()]])
    start /= np.linalg.norm(start)
    assert np.all(start @ n.T > 0)
    y = CellShapes(n, False).centres(start)
    assert np.all(y @ n.T > 0.05)


@pytest.mark.parametrize("upright", [True, False])
def test_steps_stay_in_the_cell_and_go_half_the_way(upright):
    rng = np.random.default_rng(1)
    n, start = cells(rng, 6, 9, 5, upright)
    sides, shapes = np.sign(start @ n.T), CellShapes(n, upright)
    y = shapes.centres(start)
    steps = shapes.steps(sides, y)
    assert steps.shape == (5, 5)
    assert np.all(np.abs(steps) <= shapes.tuning.longest)
    assert np.all(steps != 0)
    for j in range(5):
        E = orthogonal_to(y, np.full(5, j))
        for times, inside in ((1.0, True), (2.0 + 1e-6, False)):
            at = y + times * steps[:, j, None] * E
            walls = np.all(sides * (at @ n.T) > 0, axis=1) & (not upright or at[:, -1] > 0)
            free = np.abs(steps[:, j]) == shapes.tuning.longest
            assert np.all((walls == inside) | (free & (not inside)))
        # backwards it is no farther
        at = y - (2.0 + 1e-6) * steps[:, j, None] * E
        walls = np.all(sides * (at @ n.T) > 0, axis=1) & (not upright or at[:, -1] > 0)
        assert np.all(~walls | (np.abs(steps[:, j]) == shapes.tuning.longest))


def test_memory_does_not_decide_the_centres():
    n, start = cells(np.random.default_rng(2), 5, 7, 9, True)
    once = CellShapes(n, True).centres(start)
    in_parts = CellShapes(n, True, CentreTuning(numbers_at_once=40)).centres(start)
    # Newton steps end for all cells of a part at once
    assert np.allclose(once, in_parts, atol=0.1)
