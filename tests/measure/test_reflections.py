"""Householder reflections: orthonormal to rounding, for any vector and any dimension."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unsoftmax.measure.reflections import HouseholderFrames, mirrors, orthogonal_to

ROUNDING = 1e-14


def vectors(dim, count, seed, spread=0.0):
    rng = np.random.default_rng([dim, count, seed])
    return rng.standard_normal((count, dim)) * 10.0 ** (spread * rng.standard_normal((count, dim)))


@given(dim=st.integers(1, 12), seed=st.integers(0, 999), spread=st.floats(0, 8))
def test_a_frame_is_orthonormal_and_its_first_axis_lies_along_the_vector(dim, seed, spread):
    given_vectors = vectors(dim, 3, seed, spread)
    frames = HouseholderFrames.of(given_vectors)
    every, number = np.repeat(np.arange(3), dim), np.tile(np.arange(dim), 3)
    axes = frames.axes(every, number).reshape(3, dim, dim)
    for frame, vector in zip(axes, given_vectors, strict=True):
        assert np.abs(frame @ frame.T - np.eye(dim)).max() <= ROUNDING
        size = np.linalg.norm(vector)
        assert np.abs(size * frame[0] - vector).max() <= ROUNDING * size
    assert np.allclose(frames.size, np.linalg.norm(given_vectors, axis=1), rtol=ROUNDING, atol=0)


@given(dim=st.integers(1, 12), seed=st.integers(0, 999))
def test_coordinates_combine_to_the_sum_of_axes(dim, seed):
    frames = HouseholderFrames.of(vectors(dim, 4, seed))
    x = vectors(dim, 4, seed + 1)
    axes = frames.axes(np.repeat(np.arange(4), dim), np.tile(np.arange(dim), 4))
    expected = np.einsum("kl,kld->kd", x, axes.reshape(4, dim, dim))
    before = x.copy()
    assert np.abs(frames.combine(x) - expected).max() <= ROUNDING * np.abs(x).max() * dim
    assert np.array_equal(x, before)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_axes_near_the_first_coordinate_do_not_cancel(sign):
    """Y = ±e_0 + 1e-9 e_1: the other sign of the reflection would lose nine digits."""
    Y = np.array([[sign, 1e-9, 0.0]])
    Y /= np.linalg.norm(Y)
    u = mirrors(Y)
    assert np.isclose(np.linalg.norm(u), np.sqrt(2), rtol=ROUNDING)
    rows = np.concatenate([orthogonal_to(Y, np.array([j])) for j in (0, 1)])
    assert np.abs(rows @ Y[0]).max() <= 2e-16
    assert np.abs(rows @ rows.T - np.eye(2)).max() <= ROUNDING
