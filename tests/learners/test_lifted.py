"""A head with positions and biases, read with one offset more: exact, counted, within bounds."""

from __future__ import annotations

import numpy as np
import pytest

import unsoftmax as us
from tests.by_hand import driven
from tests.rotary_heads import rotary_head, scores_apart
from unsoftmax.learners.single_head.column_space import LowRankProbes
from unsoftmax.learners.single_head.lifted import LENGTHS, PILOTS, Table, read_lifted
from unsoftmax.measure import offsets
from unsoftmax.measure.logit_grid import even
from unsoftmax.measure.offsets import DENSE_GRID
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.single_tokens import Values
from unsoftmax.probes import Grid, Spaced


def known(head):
    return Values(head.v, head.c, np.zeros(head.dim), 0.0, Precision())


def read(head, rank, seed=0):
    rng, values = np.random.default_rng(seed), known(head)
    Z, T = offsets.balanced(values.v, rng, DENSE_GRID), offsets.rotation(head.dim, rng)
    probes = LowRankProbes(values, Z, T, even, True)
    return driven(read_lifted(probes, rank, None, rng), head)


@pytest.mark.parametrize(("d", "r"), [(2, 2), (3, 2), (9, 4), (16, 16)])
def test_as_many_queries_as_are_counted(d, r):
    target = rotary_head(d, r, 1, biases=0.3)
    found, queries = read(target, r)
    again = queries - r * (2 * d + 3)
    assert again % PILOTS == 0 or d < PILOTS
    assert 0 <= again <= PILOTS * LENGTHS
    assert scores_apart(found.model, target, range(21)) <= 1e-9
    errors = found.bounds().positions
    off = [np.linalg.norm(found.model.scores.whole(n) - target.scores.whole(n)) for n in range(21)]
    assert np.all(off <= errors.at(np.arange(21.0)))


@pytest.mark.parametrize("size", [1e-4, 1e4])
def test_tokens_are_as_long_as_scores_ask_for(size):
    target = rotary_head(8, 4, 2, biases=0.3 * min(size, 1.0) ** 0.5, scale=size)
    found, queries = read(target, 4)
    assert queries > 4 * 19
    assert scores_apart(found.model, target, range(21)) <= 1e-8


@pytest.mark.parametrize("zeros", [0, 1])
def test_logits_beside_a_zero_token(zeros):
    target, rng = rotary_head(6, 4, 3, biases=0.4), np.random.default_rng(0)
    a, b = rng.standard_normal((5, 6)), rng.standard_normal((3, 6)) / 2
    alpha, beta = np.array([1.0, 0.5, 2.0]), np.ones(3)
    grid = Grid(a, b, alpha, beta, phase="test", purpose="data")
    y = target(Spaced.of(grid, zeros)[:] if zeros else grid[:])
    scores = target.scores
    X = np.stack([alpha[:, None, None] * a + b[:, None], np.broadcast_to(b[:, None], (3, 5, 6))], 2)
    true = scores.of(np.insert(X.reshape(15, 2, 6), 1, np.zeros((zeros, 15, 6)), axis=1))
    between = None
    if zeros:
        near = scores.of(np.stack([np.zeros_like(b), b], axis=1))
        between = near[:, 0] - near[:, 1]
    t = Table(a, b, alpha, grid.table(y)).logits(known(target), between)
    assert np.allclose(t.ravel(), true[:, 0] - true[:, -1], rtol=1e-10, atol=1e-10)


def test_a_rank_above_that_of_keys_and_queries_is_refused():
    with pytest.raises(us.ModelMismatch, match="have rank 4 together, below the 6"):
        read(rotary_head(8, 4, 0, biases=0.3), 6)


def test_biases_that_saturate_every_length_are_refused():
    head = rotary_head(6, 4, 0, biases=0.3)
    arrays = {**head.arrays(), "k_bias": 60 * head.k_bias, "q_bias": 60 * head.q_bias}
    with pytest.raises(us.NotIdentifiable, match=r"out of the answers' reach|large biases"):
        read(us.RotaryHead.from_arrays(arrays), 4)
