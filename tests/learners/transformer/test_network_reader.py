"""Vectors W x + w read through a known network, the generator driven by hand."""

from __future__ import annotations

import numpy as np
import pytest

import unsoftmax as us
from tests.by_hand import driven
from tests.learners.transformer.synthetic import exact
from tests.networks import KINDS, network
from unsoftmax.learners.transformer.aimed_segments import TokenLines
from unsoftmax.learners.transformer.learned_network import LearnedNetwork
from unsoftmax.learners.transformer.network_reader import (
    LARGEST,
    SPARE,
    NetworkReader,
    PooledTokens,
    most_again,
)
from unsoftmax.measure.precision import Precision


def target(kind, d, m, seed, size=1.0, w=0.0):
    rng = np.random.default_rng([d, m, seed])
    W = rng.standard_normal((d, d))
    W *= size / np.linalg.norm(W, 2)
    return us.Transformer(W, network(kind, d, m, seed), w * rng.standard_normal(d))


def lines(d, k, beta=1.0, reach=1.0):
    return TokenLines.alike(np.linalg.qr(np.random.default_rng(d).standard_normal((d, d)))[0][:k],
                            beta, reach)  # fmt: skip


def read(oracle, reader, tokens, basis=None):
    """Return the answers, what they say of Qᵀu, and the queries."""
    d = tokens.b.shape[1]
    answers, queries = driven(reader.read(tokens, basis, np.zeros(d), "W"), oracle)
    return answers, answers.vectors(), queries


def within_bounds(answers, model):
    """Tell whether all logits are as far off as their bounds say at most."""
    aimed, read = answers.aimed, answers.logits(answers.every)
    x, a = aimed.vectors(answers.every)
    return np.all(np.abs(read.value - np.sum(a * model.scores_of(x), axis=1)) <= read.error)


@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_read_within_their_bounds(kind, anchored, trials):
    for seed in range(trials(1, 40)):
        d, k = 6, 4
        model = target(kind, d, 12, seed, w=0.3)
        reader = NetworkReader(exact(model.network), anchored)
        answers, found, queries = read(model, reader, lines(d, k))
        truth = model.scores_of(answers.aimed.x)
        assert within_bounds(answers, model)
        assert np.linalg.norm(found - truth) <= 1e-9 * np.linalg.norm(truth)
        logits = k * d
        again = most_again(logits)
        once = 2 * logits if anchored else logits + max(k, logits // SPARE)
        assert once <= queries <= once + again


@pytest.mark.parametrize(("absolute", "reached"), [(1e-12, 1e-9), (1e-8, 1e-5), (1e-5, 1e-2)])
def test_errors_of_answers_come_out_in_proportion(absolute, reached):
    model = target("random", 5, 8, 0)
    reader = NetworkReader(exact(model.network, absolute))
    noise = np.random.default_rng(0)
    off = lambda X: model(X) + absolute * noise.uniform(-1, 1, len(X))  # noqa: E731
    answers, found, _ = read(off, reader, lines(5, 5))
    missed = np.linalg.norm(found - model.scores_of(answers.aimed.x), axis=1)
    assert within_bounds(answers, model)
    assert missed.max() <= reached


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_tokens_are_rescaled_until_logits_are_moderate(size):
    model = target("random", 5, 8, 1, size)
    reader = NetworkReader(exact(model.network), anchored=True)
    answers, found, _ = read(model, reader, lines(5, 5))
    truth = model.scores_of(answers.aimed.x)
    assert within_bounds(answers, model)
    assert np.linalg.norm(found - truth) <= 1e-10 * np.linalg.norm(truth)
    largest = np.abs(answers.logits(answers.every).value).max()
    assert 1e-3 < largest <= LARGEST
    assert answers.again <= most_again(25) + 25


def test_within_a_basis_a_token_costs_as_many_queries_as_it_has_columns():
    d, r = 7, 2
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((d, r)))[0]
    model = us.Transformer(Q @ rng.standard_normal((r, d)), network("random", d, 9, 0))
    reader = NetworkReader(exact(model.network), anchored=True)
    answers, found, queries = read(model, reader, lines(d, 3), Q)
    assert found.shape == (3, r)
    assert within_bounds(answers, model)
    assert queries <= 2 * 3 * r + answers.again


def test_anchors_remove_the_error_of_the_network():
    model = target("random", 5, 8, 2)
    g = model.network
    wrong = us.ReluNetwork(g.A * (1 + 1e-8), g.w_o, g.b, g.c)
    slope = 2e-8 * float(np.linalg.norm(g.A, axis=0) @ np.abs(g.w_o))
    learned = LearnedNetwork(wrong, 1e-16, slope, Precision())
    missed = []
    for anchored in (False, True):
        answers, found, _ = read(model, NetworkReader(learned, anchored), lines(5, 5))
        off = np.linalg.norm(found - model.scores_of(answers.aimed.x), axis=1)
        assert within_bounds(answers, model)
        missed.append(off.max())
    assert missed[1] < 1e-3 * missed[0]


def test_a_flat_network_is_refused_before_anything_is_asked():
    flat = us.ReluNetwork(np.zeros((3, 0)), [], None, 1.0)
    steps = NetworkReader(exact(flat)).read(lines(3, 2), None, np.zeros(3), "W")
    with pytest.raises(us.NotIdentifiable, match="flat, or turns"):
        next(steps)


def test_hard_attention_is_refused():
    model = target("random", 4, 6, 0)

    def hard(X):
        scores = np.einsum("bnd,bd->bn", X, model.scores_of(X[:, -1]))
        return model.network(X[np.arange(len(X)), scores.argmax(axis=1)])

    with pytest.raises(us.NotIdentifiable, match="out of the answers' reach"):
        read(hard, NetworkReader(exact(model.network)), lines(4, 4))


def test_answers_beyond_the_segment_are_refused():
    model = target("random", 4, 6, 0)
    beyond = lambda X: model.network(2 * X[:, 0] - X[:, -1])  # noqa: E731
    with pytest.raises(us.ModelMismatch, match="attention weights"):
        read(beyond, NetworkReader(exact(model.network)), lines(4, 4))


def test_pooled_tokens_are_made_when_they_are_asked_for():
    model = target("random", 4, 6, 0)
    aimed = NetworkReader(exact(model.network)).aim(lines(4, 2), None)
    step = np.linspace(0, 1, 8)
    pooled = PooledTokens(aimed.x, aimed.offsets, step)
    assert pooled.shape == (8, 4)
    index = np.array([5, 2])
    rows = pooled.pick(index)
    assert np.array_equal(rows[np.arange(2)], pooled[index])
    x = aimed.x[aimed.offsets.token[index]] + step[index, None] * aimed.offsets[index]
    assert np.array_equal(pooled[index], x)
    assert {"x", "step", "h"} <= set(pooled.design())
