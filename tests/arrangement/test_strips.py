"""Tokens beside hyperplanes: on both sides of each, at the distances wanted, few of them."""

import numpy as np
import pytest

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
