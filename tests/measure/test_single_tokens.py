"""What single tokens tell: values, a map with its residual, a norm behind or before."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unsoftmax.measure import normalised
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.reflections import HouseholderFrames, mirrors, orthogonal_to
from unsoftmax.measure.single_tokens import SingleTokens
from unsoftmax.measure.token_map import AnswerNoise, TokenMapAnswers
from unsoftmax.models import LayerNorm


def read(v, c, scale, precision, biases, sign=0.0):
    """Read answers that are off by most of what the precision allows; float64 rounds by itself."""

    def off(exact):
        """Bounds are relative to the answer that is seen."""
        return sign * 0.7 * precision.error_at_unit_vector(np.abs(exact), exact)

    exact = scale * np.longdouble(1) * v + (c if biases else 0.0)
    y, zero = (exact + off(exact)).astype(float), c - off(c)
    return SingleTokens(y, scale, float(zero) if biases else None).values(precision)


@given(
    st.integers(0, 2**32),
    st.sampled_from([1.0, 2.0**10, 2.0**46, 3.0, 0.1]),
    st.booleans(),
    st.sampled_from(
        [
            Precision(),
            Precision(absolute=1e-6),
            Precision(unit=2.0**-25, relative=2.0**-24),
            Precision(relative=1e-4, absolute=1e-2),
        ]
    ),
    st.sampled_from([1.0, -1.0, 0.0]),
)
def test_v_and_c_are_within_their_errors(seed, scale, biases, precision, sign):
    rng = np.random.default_rng(seed)
    v = rng.standard_normal(5) * 10.0 ** rng.integers(-6, 6, 5)
    c = float(rng.standard_normal())
    found = read(v, c, scale, precision, biases, sign)
    assert np.all(np.abs(found.v - v) <= found.v_error + 1e-300)
    assert abs(found.c - (c if biases else 0.0)) <= found.c_error
    assert found.precision is precision


def test_entries_whose_terms_cancel_are_as_coarse_as_the_others():
    """Rows of V times an output vector, each rounded as NumPy does."""
    worst = 0.0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        V, o = rng.standard_normal((16, 32)), rng.standard_normal(32)
        V[0] -= (V[0] @ o) / (o @ o) * o  # what is left is rounding
        exact = V.astype(np.longdouble) @ o
        found = SingleTokens(V @ o, 1.0).values(Precision())
        assert np.linalg.norm(found.v - exact) <= np.linalg.norm(found.v_error)
        worst = max(worst, float(np.max(np.abs(found.v / exact - 1))))
    assert worst > 1e-3


def test_long_tokens_save_digits_beside_a_bias():
    v, c = np.array([1e-3, 1e-3]), 1e3
    short, long = (read(v, c, scale, Precision(), True) for scale in (1.0, 2.0**10))
    assert np.all(long.v_error < short.v_error / 500)
    assert np.all(np.abs(long.v - v) <= long.v_error)


# -- what single tokens say, on synthetic answers


def read_map(target, dim=12, scale=2.0**10, seed=0):
    asked = TokenMapAnswers.probes(dim, scale, np.random.default_rng(seed))
    return TokenMapAnswers.of(asked, [target(part[0 : len(part)][:, 0]) for part in asked], scale)


def affine(dim=12, outputs=20, seed=0):
    rng = np.random.default_rng([dim, seed])
    M, c = rng.standard_normal((outputs, dim)), rng.standard_normal(outputs)
    return M, c, lambda x: x @ M.T + c


def test_an_affine_map_is_read():
    M, c, target = affine()
    answers = read_map(target)
    assert np.array_equal(answers.constant, c)
    assert answers.map == pytest.approx(M, rel=1e-12, abs=1e-13)
    assert answers.noise().relative < 1e-14
    assert answers.noise().absolute == 0
    assert np.all(answers.missed <= 10 * answers.explained())


def test_float32_is_seen_and_explained():
    _, _, target = affine()
    answers = read_map(lambda x: target(x).astype(np.float32).astype(np.float64))
    assert 1e-9 < answers.noise().relative < 1e-6
    assert np.all(answers.missed <= 10 * answers.explained())


def test_decimals_are_an_absolute_error():
    _, _, target = affine()
    answers = read_map(lambda x: np.round(target(x), 3))
    assert 1e-4 < answers.noise().absolute < 1e-2
    assert np.all(answers.missed <= 10 * answers.explained())


def test_noise_explains_what_is_missed():
    _, _, target = affine()
    rng = np.random.default_rng(3)
    answers = read_map(lambda x: target(x) + 1e-3 * rng.standard_normal((len(x), 20)))
    assert np.all(answers.missed <= 10 * answers.explained())


@pytest.mark.parametrize("size", [1e-9, 1e-3])
def test_what_is_not_affine_is_not_explained(size):
    _, _, target = affine()
    answers = read_map(lambda x: target(x) + size * np.tanh(x[:, :1]))
    assert np.any(answers.missed > 100 * answers.explained())


def test_drawn_errors_are_as_large_as_stated():
    answers = np.random.default_rng(0).standard_normal((200, 30))
    noise = AnswerNoise(1e-3, 1e-2)
    drawn = noise.drawn(answers, np.random.default_rng(1))
    ratio = np.linalg.norm(drawn, axis=1) / noise.of(answers)
    assert np.mean(ratio) == pytest.approx(1, abs=0.05)


# -- directions of answers behind a LayerNorm, each with one unknown scale


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


# -- householder reflections: orthonormal to rounding, for any vector and any dimension


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
