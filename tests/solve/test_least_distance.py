"""The shortest vector within half-spaces."""

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
    # the shortest exactly if it is a sum of active rows, none of them negative
    active = N[np.isclose(N @ y, 1)]
    assert optimize.nnls(active.T, y)[1] < 1e-9 * np.linalg.norm(y)


def test_nothing_is_within_opposite_half_spaces():
    a = np.random.default_rng(0).standard_normal(5)
    assert shortest_within(np.array([a, -2 * a])) is None
