"""Analytic centres of cells, thin and wide, and steps that stay inside."""

import numpy as np
import pytest

from unsoftmax.arrangement import centres
from unsoftmax.arrangement.centres import CellShapes


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
def test_centres_are_in_their_cells_and_no_point_near_by_is_better(D, K, upright, monkeypatch):
    for name, exact in (("DECREMENT", 1e-12), ("NEWTON", 60), ("BISECTIONS", 40)):
        monkeypatch.setattr(centres, name, exact)
    rng = np.random.default_rng([D, K])
    n, start = cells(rng, D, K, 12, upright)
    sides = np.sign(start @ n.T)
    shapes = CellShapes(n, upright)
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
