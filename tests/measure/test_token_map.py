"""What single tokens say, on synthetic answers."""

import numpy as np
import pytest

from unsoftmax.measure.token_map import AnswerNoise, TokenMapAnswers


def read(target, dim=12, scale=2.0**10, seed=0):
    asked = TokenMapAnswers.probes(dim, scale, np.random.default_rng(seed))
    return TokenMapAnswers.of(asked, [target(part[0 : len(part)][:, 0]) for part in asked], scale)


def affine(dim=12, outputs=20, seed=0):
    rng = np.random.default_rng([dim, seed])
    M, c = rng.standard_normal((outputs, dim)), rng.standard_normal(outputs)
    return M, c, lambda x: x @ M.T + c


def test_an_affine_map_is_read():
    M, c, target = affine()
    answers = read(target)
    assert np.array_equal(answers.constant, c)
    assert answers.map == pytest.approx(M, rel=1e-12, abs=1e-13)
    assert answers.noise().relative < 1e-14
    assert answers.noise().absolute == 0
    assert np.all(answers.missed <= 10 * answers.explained())


def test_float32_is_seen_and_explained():
    _, _, target = affine()
    answers = read(lambda x: target(x).astype(np.float32).astype(np.float64))
    assert 1e-9 < answers.noise().relative < 1e-6
    assert np.all(answers.missed <= 10 * answers.explained())


def test_decimals_are_an_absolute_error():
    _, _, target = affine()
    answers = read(lambda x: np.round(target(x), 3))
    assert 1e-4 < answers.noise().absolute < 1e-2
    assert np.all(answers.missed <= 10 * answers.explained())


def test_noise_explains_what_is_missed():
    _, _, target = affine()
    rng = np.random.default_rng(3)
    answers = read(lambda x: target(x) + 1e-3 * rng.standard_normal((len(x), 20)))
    assert np.all(answers.missed <= 10 * answers.explained())


@pytest.mark.parametrize("size", [1e-9, 1e-3])
def test_what_is_not_affine_is_not_explained(size):
    _, _, target = affine()
    answers = read(lambda x: target(x) + size * np.tanh(x[:, :1]))
    assert np.any(answers.missed > 100 * answers.explained())


def test_drawn_errors_are_as_large_as_stated():
    answers = np.random.default_rng(0).standard_normal((200, 30))
    noise = AnswerNoise(1e-3, 1e-2)
    drawn = noise.drawn(answers, np.random.default_rng(1))
    ratio = np.linalg.norm(drawn, axis=1) / noise.of(answers)
    assert np.mean(ratio) == pytest.approx(1, abs=0.05)
