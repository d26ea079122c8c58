"""Tokens beside hyperplanes: on both sides of each, at the distances wanted, few of them."""

import numpy as np
import pytest

from unsoftmax.arrangement import centres
from unsoftmax.arrangement.centres import CellShapes
from unsoftmax.arrangement.strips import TOGETHER, Hyperplanes, Strips

NEAR = 1e-7


def drawn(m, d, seed=0, biases=True, longest=np.inf):
    rng = np.random.default_rng([m, d, seed])
    planes = Hyperplanes.of(rng.standard_normal((m, d)), rng.standard_normal(m) * biases)
    signs = rng.choice([-1.0, 1.0], m)
    distances = NEAR * 10.0 ** rng.uniform(0, 2, m)
    return (
        planes,
        signs,
        Strips.beside(planes, signs, lambda x, j: distances[j], 1.0, longest, rng),
        distances,
    )


@pytest.mark.parametrize(
    ("m", "d", "biases"),
    [
        (1, 1, True), (7, 1, True), (9, 2, True), (40, 3, True), (64, 16, True), (200, 64, True),
        (9, 2, False), (40, 3, False), (64, 16, False),
    ],
)  # fmt: skip
def test_every_hyperplane_has_a_token_on_either_side(m, d, biases):
    planes, signs, strips, distances = drawn(m, d, biases=biases)
    x = strips.tokens
    apart = x @ planes.normals.T + planes.offsets
    for side in (1.0, -1.0):
        met = np.abs(apart - side * distances) < 1e-2 * distances
        assert np.all(np.any(met, axis=0))
    assert np.array_equal(strips.widths, distances)
    for members in strips.members:
        assert len(set(signs[members])) == 1
        assert len(members) <= TOGETHER
    together = min(TOGETHER, d // 2 + biases) or 1
    # where hyperplanes meet far away they do not share a token
    assert len(x) <= 2 * (2.0 * m / together + 2)
    assert np.all(np.linalg.norm(x, axis=1) < 20 * (1 + np.abs(planes.offsets).max()))


def test_hyperplanes_out_of_reach_are_said():
    planes, _, strips, _ = drawn(30, 4, longest=0.3)
    assert np.all(np.linalg.norm(strips.tokens, axis=1) <= 0.3)
    beyond = np.abs(planes.offsets) > 0.3
    assert np.any(beyond)
    assert np.all(np.isinf(strips.widths[beyond]))
    assert np.sum(np.isinf(strips.widths)) <= np.sum(np.abs(planes.offsets) > 0.29)
    unseen = np.sum(np.isinf(strips.widths))
    assert strips.said()[-1] == f"Beside {unseen} of 30 hyperplanes nothing was asked."


def test_what_strips_hide_is_their_width_times_the_slope():
    planes = Hyperplanes(np.eye(3), np.array([0.5, -0.2, 100.0]))
    strips = Strips.beside(
        planes, np.ones(3), lambda x, j: np.full(len(j), NEAR), 1.0, np.inf, np.random.default_rng()
    )
    constant, slope = strips.hide(np.array([3.0, 4.0, 2.0]))
    assert constant == pytest.approx(5 * NEAR)
    assert slope == pytest.approx(2 * NEAR / 100)


# -- analytic centres of cells, thin and wide, and steps that stay inside


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
