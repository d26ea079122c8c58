"""Kinks of a piecewise affine function along a line, by themselves: two values for each."""

import numpy as np
import pytest

from tests.truth import driven
from unsoftmax.arrangement.kinks import KinkSearch, TooManyBreakpoints
from unsoftmax.errors import ModelMismatch
from unsoftmax.probes import Sequences


def ask(t):
    """Ask places as tokens of one dimension."""
    [y] = yield [Sequences(t[:, None, None], phase="line", purpose="data")]
    return y


def bends(count, width, seed, parallel=False):
    """Return kinks (count,) and the slope's jumps there (count, width), and the function."""
    rng = np.random.default_rng([count, width, seed])
    t, jumps = np.sort(rng.standard_cauchy(count)), rng.standard_normal((count, width))
    if parallel:
        jumps = np.outer(rng.standard_normal(count), jumps[0])
    slope, at = rng.standard_normal((2, width))

    def f(X):
        x = X[:, 0]
        return at + x * slope + np.maximum(x - t, 0.0) @ jumps

    return t, jumps, f


def searched(f, most=500, thorough=False, noise=1e-15):
    counted = [0]

    def counting(X):
        counted[0] += len(X)
        return f(X)

    search = KinkSearch(ask, 1.0, noise, most, thorough)
    found, _ = driven(search.run(), counting)
    return found, counted[0]


@pytest.mark.parametrize("width", [2, 3, 16])
@pytest.mark.parametrize("count", [1, 2, 9, 120])
def test_all_kinks_are_found(count, width):
    for seed in range(3):
        t, jumps, f = bends(count, width, seed)
        found, queries = searched(f, thorough=width == 2)
        np.testing.assert_allclose(found.t, t, rtol=1e-4, atol=1e-4)
        error = np.linalg.norm(found.jumps - jumps, axis=1) / np.linalg.norm(jumps, axis=1)
        assert np.median(error) < 1e-7
        assert width == 2 or queries < 2.5 * count + 60


@pytest.mark.parametrize(("noise", "seed"), [(1e-9, 10), (1e-9, 19), (1e-8, 16), (1e-8, 42)])
def test_no_piece_of_one_value_reaches_over_a_kink(noise, seed):
    """Of many kinks some are close to each other, and what is between is known from one value."""
    rng = np.random.default_rng([50, 64, seed])
    t, jumps = np.sort(rng.uniform(-0.9, 0.9, 50)), 0.3 * rng.standard_normal((50, 64))
    slope, at = rng.standard_normal((2, 64))
    off = noise * (np.linalg.norm(at) + 2 * np.linalg.norm(slope)) / 8

    def f(X):
        y = at + X[:, 0] * slope + np.maximum(X[:, 0] - t, 0) @ jumps
        return y + off * rng.standard_normal(y.shape)

    search = KinkSearch(ask, 1.0, noise, 500, far=0.96, start=4, exact=1e-8, tight=0.1)
    found, _ = driven(search.run(), f)
    np.testing.assert_allclose(found.t, t, rtol=0, atol=1e-3)


def test_an_affine_function_has_none():
    _, _, f = bends(0, 5, 0)
    found, queries = searched(f)
    assert len(found.t) == 0
    assert queries < 60


def test_parallel_jumps_are_told_apart_by_a_thorough_search():
    for seed in range(5):
        t, _, f = bends(12, 6, seed, parallel=True)
        found, _ = searched(f, thorough=True)
        np.testing.assert_allclose(found.t, t, rtol=1e-3, atol=1e-3)


def test_errors_of_slopes_are_bounded():
    for seed in range(5):
        _, jumps, f = bends(40, 8, seed)
        found, _ = searched(f)
        slopes = np.array([piece.slope_error for piece in found.pieces])
        off = np.linalg.norm(found.jumps - jumps, axis=1)
        assert np.all(off <= 8 * (slopes[1:] + slopes[:-1]))


def test_a_smooth_function_is_refused():
    with pytest.raises(TooManyBreakpoints) as refused:
        searched(lambda X: np.tanh(X[:, 0] * [1.0, 2.0, 3.0, 0.5]), most=100)
    assert refused.value.everywhere


def test_a_jump_is_refused():
    with pytest.raises(ModelMismatch, match="the answers jump"):
        searched(lambda X: (X[:, 0] > 0.3) * [1.0, 2.0, 3.0, 0.5])
