"""Answers that are known up to a factor: read from what they are made of."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.learners.attention_layer.score_reading import SpreadRows
from unsoftmax.learners.attention_layer.value_answers import DirectionMap
from unsoftmax.measure.normalised import NormedAnswers

DIM = 12


@pytest.fixture
def behind():
    """A map in the coordinates behind a norm, and how answers come from vectors in them."""
    rng = np.random.default_rng(0)
    gain = rng.uniform(0.5, 2, DIM)
    norm = NormedAnswers.of(rng.standard_normal(DIM), gain)
    M, c = norm.projection @ rng.standard_normal((DIM, DIM)), rng.standard_normal(DIM - 1)

    def answered(u):
        return norm.shift + rng.uniform(0.1, 3, (*u.shape[:-1], 1)) * u @ norm.basis

    return DirectionMap(c, M, True, norm, 1e-16), answered, rng


def test_a_factor_is_read_beside_known_columns(behind):
    layer, answered, rng = behind
    b, columns = rng.standard_normal((5, DIM)), rng.standard_normal((DIM - 1, 6))
    z = rng.standard_normal((5, 6)) @ columns.T
    y = layer.read(answered(layer.known(b) + z), b, columns)
    assert np.allclose(layer.beyond(y, b), z, rtol=0, atol=1e-11)


def test_factors_are_read_beside_known_weights(behind):
    layer, answered, rng = behind
    b, weights = rng.standard_normal((20, DIM)), rng.integers(0, 2, (20, 3)).astype(float)
    z = weights @ rng.standard_normal((3, DIM - 1))
    y = layer.read_weighted(answered(layer.known(b) + z), b, weights)
    assert np.allclose(layer.beyond(y, b), z, rtol=0, atol=1e-10)


def test_factors_are_read_by_the_sum_over_heads(behind):
    layer, answered, rng = behind
    a, b = rng.standard_normal((4, DIM)), rng.standard_normal((3, 1, DIM))
    parts = rng.standard_normal((3, 4, DIM - 1))
    parts[2] = a @ layer.heads.T - parts[:2].sum(axis=0)
    y = layer.read_shares(answered(layer.known(b) + parts), b, a)
    assert np.allclose(layer.beyond(y, b), parts, rtol=0, atol=1e-10)


def test_a_factor_is_read_along_what_is_expected(behind):
    layer, answered, rng = behind
    b, z = 1e-3 * rng.standard_normal((5, DIM)), rng.standard_normal((5, DIM - 1))
    near = z + 1e-4 * rng.standard_normal(z.shape)
    y = layer.read_along(answered(layer.known(b) + z), b, near)
    assert np.allclose(layer.beyond(y, b), z, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("rank", "keys"), [(4, 3), (5, 3), (3, 3), (2, 3)])
def test_scores_follow_from_fewer_keys_than_directions(rank, keys):
    rng = np.random.default_rng(rank)
    C = np.linalg.qr(rng.standard_normal((DIM, rank)))[0]
    tokens, R = rng.standard_normal((DIM + 41, DIM)), rng.standard_normal((rank, DIM + 1))
    known, rest = rank + 2, DIM - 1 - rank
    blocks = rng.standard_normal((5, keys, DIM))
    block = np.arange(len(tokens) - known) % 5
    x = R @ np.hstack([tokens, np.ones((len(tokens), 1))]).T
    scores = np.einsum("jnd,dr,rj->jn", blocks[block], C, x[:, known:])
    parts = np.split(tokens, [known, known + rest])
    spread = SpreadRows(parts[0], parts[1], parts[2], blocks, block)
    assert 1 <= spread.condition(C) < 1e4
    found = spread.solved(C, x[:, :known], scores)
    assert np.allclose(found, x[:, known : known + rest], rtol=0, atol=1e-9)
