"""The shortest vector within half-spaces."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from unsoftmax.solve.least_distance import shortest_within


@pytest.mark.parametrize("seed", range(6))
def test_it_is_the_shortest(seed):
    rng = np.random.default_rng(seed)
    N = rng.standard_normal((6, 9))
    y = shortest_within(N)
    assert y is not None
    assert np.all(N @ y >= 1 - 1e-9)
    best = optimize.minimize(
        lambda x: x @ x,
        2 * y + rng.standard_normal(9) / 10,
        constraints={"type": "ineq", "fun": lambda x: N @ x - 1},
        tol=1e-12,
    ).x
    assert np.linalg.norm(y) <= np.linalg.norm(best) * (1 + 1e-6)


def test_nothing_is_within_opposite_half_spaces():
    a = np.random.default_rng(0).standard_normal(5)
    assert shortest_within(np.array([a, -2 * a])) is None


def test_more_inequalities_than_dimensions():
    angles = np.linspace(-1, 1, 9)
    y = shortest_within(np.column_stack([np.cos(angles), np.sin(angles)]))
    assert y == pytest.approx([1 / np.cos(1), 0], abs=1e-9)
