"""The attention before a known network, step by step, the generator driven by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import unsoftmax as us
from tests.by_hand import driven
from tests.networks import KINDS, network
from tests.truth import relative
from unsoftmax.learners.transformer import attention_recovery
from unsoftmax.learners.transformer.attention_recovery import (
    LARGEST_STEP,
    LONGEST,
    SCALE_ROUNDS,
    AssumedAttention,
    find_token_lengths,
    guess_bias,
    most_queries,
    recover_attention,
)
from unsoftmax.learners.transformer.learned_network import LearnedNetwork
from unsoftmax.learners.transformer.network_reader import NetworkReader
from unsoftmax.learners.transformer.transformer_learner import TransformerLearner
from unsoftmax.measure.precision import Precision


def known(g):
    return LearnedNetwork(g, 0.0, 0.0, Precision())


def target(kind, d, m, seed, rank=None, size=1.0, bias=0.0):
    rng = np.random.default_rng([d, m, seed])
    K, Q = rng.standard_normal((2, rank or d, d))
    K *= size / np.linalg.norm(K.T @ Q, 2)
    w = bias * K.T @ rng.standard_normal(len(K))
    return us.Transformer.from_factors(K, Q, network(kind, d, m, seed), w)


def recovered(model, assumed, anchored=False, seed=0):
    rng = np.random.default_rng(seed)
    steps = recover_attention(known(model.network), assumed, anchored, rng)
    return driven(steps, model)


@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("rank", [None, 1, 3, 6])
def test_W_and_w_within_their_bounds_and_queries_within_the_plan(rank, biases, anchored, trials):
    d = 6
    for seed in range(trials(1, 20)):
        model = target(KINDS[seed % 4], d, 9, seed, rank, bias=float(biases))
        assumed = AssumedAttention(d, rank, biases)
        found, queries = recovered(model, assumed, anchored, seed=seed)
        assert np.linalg.norm(found.model.W - model.W) <= found.W_error
        assert np.linalg.norm(found.model.w - model.w) <= found.w_error
        assert relative(found.model.W, model.W) <= 1e-9
        assert queries <= most_queries(assumed, anchored)
        assert ("K" in found.model.arrays()) == (rank is not None and rank < d)


def test_rank_0_asks_nothing():
    model = target("random", 3, 4, 0)
    found, queries = recovered(model, AssumedAttention(3, 0, False))
    assert queries == 0
    assert not np.any(found.model.W)


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_the_scale_makes_logits_moderate(size):
    model = target("random", 5, 9, 1, size=size)
    B = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 5)))[0]
    steps = find_token_lengths(NetworkReader(known(model.network)), B[:2], np.zeros(5))
    (beta, reach), queries = driven(steps, model)
    typical = beta * reach * np.linalg.norm(model.W) / 5
    assert 0.02 <= typical <= 5
    assert queries <= 4 * SCALE_ROUNDS


def test_the_scale_stays_finite_where_W_is_0():
    model = us.Transformer(np.zeros((3, 3)), network("random", 3, 5, 0))
    learned = known(model.network)
    (beta, reach), _ = driven(
        find_token_lengths(NetworkReader(learned), np.eye(3)[:2], np.zeros(3)), model
    )
    assert max(beta, reach) <= LONGEST * learned.length * LARGEST_STEP


@pytest.mark.parametrize("bias", [1e-2, 1.0, 1e2, 1e5])
def test_the_size_of_a_bias_is_guessed_to_an_order_of_magnitude(bias):
    model = target("random", 5, 9, 2, bias=bias)
    guess, queries = driven(guess_bias(NetworkReader(known(model.network))), model)
    assert 0.05 <= np.linalg.norm(guess) / np.linalg.norm(model.w) <= 20
    assert queries <= 2 * SCALE_ROUNDS


def test_a_bias_that_saturates_every_offset_tried_is_not_guessed(monkeypatch):
    model = target("random", 5, 9, 2, bias=1e12)
    monkeypatch.setattr(attention_recovery, "SCALE_ROUNDS", 7)
    guess, queries = driven(guess_bias(NetworkReader(known(model.network))), model)
    assert queries == 2 * 7
    assert not np.any(guess)


def test_where_the_network_is_flat_at_0_nothing_is_asked_of_the_bias():
    A = np.random.default_rng(0).standard_normal((4, 2))
    g = us.ReluNetwork(A, np.ones(2), -30 * np.linalg.norm(A, axis=0), 0.3)
    model = us.Transformer(np.eye(4), g, np.ones(4))
    guess, queries = driven(guess_bias(NetworkReader(known(g))), model)
    assert queries == 0
    assert not np.any(guess)


def test_w_is_read_elsewhere_where_the_network_is_flat_at_0(monkeypatch):
    rng = np.random.default_rng(3)
    A = rng.standard_normal((4, 2))
    g = us.ReluNetwork(A, np.ones(2), -30 * np.linalg.norm(A, axis=0), 0.3)
    model = us.Transformer(rng.standard_normal((4, 4)) / 30, g, rng.standard_normal(4) / 30)
    found, _ = recovered(model, AssumedAttention(4, None, True), anchored=True)
    assert np.linalg.norm(found.model.w - model.w) <= found.w_error <= 1e-6
    monkeypatch.setattr(attention_recovery, "PLACES", (0.0,))
    with pytest.raises(us.NotIdentifiable, match="flat, or turns"):
        recovered(model, AssumedAttention(4, None, True), anchored=True)


def test_knobs_of_a_head_that_does_not_ask_are_refused():
    head = us.learners.ExactHead(
        3, tuning=replace(us.learners.ExactHead(3).tuning, again_per_token=9)
    )
    with pytest.raises(ValueError, match="tuning"):
        TransformerLearner(3, head=head)
    assert TransformerLearner(3, head=head, attention="antisymmetric").settings()["head"]["tuning"]
