"""The attention before a known network, step by step, the generator driven by hand."""

import numpy as np
import pytest

import unsoftmax as us
from tests.by_hand import driven
from unsoftmax.learners.transformer import attention_recovery
from unsoftmax.learners.transformer.attention_recovery import AssumedAttention, recover_attention
from unsoftmax.learners.transformer.learned_network import LearnedNetwork
from unsoftmax.measure.precision import Precision


def known(g):
    return LearnedNetwork(g, 0.0, 0.0, Precision())


def recovered(model, assumed, anchored=False, seed=0):
    rng = np.random.default_rng(seed)
    steps = recover_attention(known(model.network), assumed, anchored, rng)
    return driven(steps, model)


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
