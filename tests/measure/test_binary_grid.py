"""Tokens that float32 sees as they are."""

import numpy as np
import pytest

from unsoftmax.measure.binary_grid import on_one_grid


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e15])
def test_sums_are_exact_in_float32(scale):
    rng = np.random.default_rng(0)
    a, b = on_one_grid(scale * rng.standard_normal((40, 7)), scale * rng.standard_normal(7) / 100)
    for x in (a, b, a + b):
        assert np.array_equal(x.astype(np.float32).astype(np.float64), x)
    assert np.array_equal(a.astype(np.float32) + b.astype(np.float32), (a + b).astype(np.float32))


def test_rounding_is_small_beside_the_largest():
    x = np.random.default_rng(1).standard_normal((3, 50))
    [rounded] = on_one_grid(x)
    assert np.max(np.abs(rounded - x)) <= 2.0**-20 * np.max(np.abs(x))


def test_nothing_stays_nothing():
    [zero] = on_one_grid(np.zeros((2, 3)))
    assert not zero.any()
    assert on_one_grid() == ()
