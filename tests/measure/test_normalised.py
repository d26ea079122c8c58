"""Directions of answers behind a LayerNorm, each with one unknown scale."""

import numpy as np
import pytest

from unsoftmax.measure import normalised
from unsoftmax.models import LayerNorm


def norm(dim, seed=0, scale=None):
    rng = np.random.default_rng([dim, seed])
    scale = rng.uniform(0.5, 2, dim) * rng.choice([-1, 1], dim) if scale is None else scale
    return LayerNorm(scale, rng.standard_normal(dim), 1e-12), rng


@pytest.mark.parametrize("dim", [3, 8, 40])
def test_directions_are_those_of_what_was_normalised(dim):
    layer_norm, rng = norm(dim)
    answers = normalised.NormedAnswers.of(layer_norm.shift, 1 / layer_norm.scale)
    u = rng.standard_normal((20, dim))
    w, expected = answers.directions(layer_norm(u)), u @ answers.projection.T
    scales = np.sum(w * expected, axis=1) / np.sum(expected**2, axis=1)
    assert np.allclose(w, scales[:, None] * expected, rtol=0, atol=1e-13)
    assert np.allclose(scales, 1 / u.std(axis=1), rtol=1e-12)
    assert np.allclose(answers.centred(expected.T).T, u - u.mean(axis=1, keepdims=True))
    assert np.allclose(answers.basis @ answers.basis.T, np.eye(dim - 1))


@pytest.mark.parametrize("decades", [0, 3, 6])
def test_the_size_of_an_rms_norms_gain_is_found(decades):
    dim, rng = 12, np.random.default_rng(3)
    scale = 10 ** np.linspace(-decades / 2, decades / 2, dim) * (-1.0) ** np.arange(dim)
    rms = LayerNorm(scale, None, 1e-12, centred=False)
    found = normalised.uncentred_gain_of(rms(rng.standard_normal((dim + 3, dim)) * 1e9))
    assert np.max(np.abs(found.gain * np.abs(scale) - 1)) <= 1e-12
    assert found.missed <= 1e-12
    assert found.next > 0
    bent = np.tanh(rms(rng.standard_normal((2 * dim, dim))) / np.abs(scale)) * scale
    assert normalised.uncentred_gain_of(bent).missed > 1e-3


@pytest.mark.parametrize("decades", [0, 3, 6])
def test_the_gain_is_found_of_any_sizes(decades):
    dim = 12
    scale = 10 ** np.linspace(-decades / 2, decades / 2, dim) * (-1.0) ** np.arange(dim)
    layer_norm, rng = norm(dim, scale=scale)
    centred = layer_norm(rng.standard_normal((dim + 3, dim)) * 1e9) - layer_norm.shift
    found = normalised.gain_of(centred)
    gain = found.gain * np.sign(found.gain[0] * scale[0])
    # the shift was added and taken off again
    rounding = 1e-15 * (1 + np.abs(layer_norm.shift / scale).max())
    assert np.max(np.abs(gain * scale - 1)) <= 100 * rounding
    assert found.missed < 1e-6 * found.next
    assert np.all(normalised.spreads(centred) > 0)


def test_without_a_mean_taken_off_there_is_no_gain():
    rng = np.random.default_rng(0)
    rms = LayerNorm(np.ones(9), None, 1e-6, centred=False)
    found = normalised.gain_of(rms(rng.standard_normal((14, 9))))
    assert found.missed > 1e-2 * found.next


@pytest.mark.parametrize("seed", range(5))
def test_lengths_of_columns_follow_from_sums(seed):
    rng = np.random.default_rng(seed)
    columns = rng.standard_normal((11, 12)) * rng.uniform(0.1, 10, 12)
    signs = rng.choice([-1.0, 1.0], (2, 12))
    directions = columns / np.linalg.norm(columns, axis=0)
    sums = columns @ signs.T * [3.0, 0.2]
    found = normalised.column_scales(directions, signs, sums)
    ratios = found.gain / np.linalg.norm(columns, axis=0)
    assert np.allclose(ratios, ratios[0], rtol=1e-11)
    assert ratios[0] > 0
    assert found.missed < 1e-10 * found.next


def test_scales_follow_from_the_null_space_of_patterns():
    rng = np.random.default_rng(2)
    gates, values = rng.integers(0, 2, (3, 20)).astype(float), rng.standard_normal((25, 3))
    plane = rng.standard_normal((25, 5))
    known = plane @ rng.standard_normal((5, 20))
    scales = rng.uniform(0.5, 2, 20)
    w = (known + values @ gates) * scales
    null = np.linalg.svd(gates * scales)[2][3:].T
    inside = np.linalg.qr(plane)[0]
    found = normalised.scales_by_null_space(inside.T @ w, inside.T @ known, null)
    # the part of the values in the plane is part of the unknowns' equations too
    assert np.allclose(found, scales, rtol=1e-11)
