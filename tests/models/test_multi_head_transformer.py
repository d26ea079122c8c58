"""Several heads before a network: forward map, files, canonical form, equality."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us


def several(seed, H=3, d=4, m=6, rank=None, biases=True):
    """A random Transformer of several heads, its W in factors where a rank is given."""
    rng = np.random.default_rng(seed)
    K, Q = rng.standard_normal((2, H, rank or d, d)) / d**0.25
    B, w_o = rng.standard_normal((H, m, d)) / d**0.5, rng.standard_normal(m)
    b, w, c = rng.standard_normal(m), rng.standard_normal((H, d)), 0.5
    if not biases:
        b, w, c = np.zeros(m), np.zeros((H, d)), 0.0
    if rank:
        return us.MultiHeadTransformer.from_factors(K, Q, B, w_o, b, w, c)
    return us.MultiHeadTransformer(K.swapaxes(1, 2) @ Q, B, w_o, b, w, c)


def changed(model, **arrays):
    return us.MultiHeadTransformer.from_arrays({**model.arrays(), **arrays})


def literal(model, X):
    """The definition, a sequence and a head at a time."""
    answers = []
    for x in X:
        z = model.b.copy()
        for W, B, w in zip(model.W, model.B, model.w, strict=True):
            scores = x @ (W @ x[-1] + w)
            weights = np.exp(scores - scores.max())
            z += B @ ((weights / weights.sum()) @ x)
        answers.append(np.maximum(z, 0) @ model.w_o + model.c)
    return np.array(answers)


@given(st.integers(0, 10**6), st.integers(1, 8), st.sampled_from([None, 1, 2]), st.integers(0, 3))
def test_it_is_what_it_says(seed, length, rank, H):
    model = several(seed % 7, H, rank=rank)
    X = np.random.default_rng(seed).standard_normal((3, length, 4))
    np.testing.assert_allclose(model(X), literal(model, X), rtol=1e-12, atol=1e-12)
    assert model.attention(X).shape == (3, H, length)


def test_batches_are_answered_in_parts_alike(monkeypatch):
    model, X = several(0), np.random.default_rng(0).standard_normal((9, 3, 4))
    whole = model(X)
    monkeypatch.setattr(us.MultiHeadTransformer, "_numbers_at_once", 24)
    np.testing.assert_allclose(model(X), whole, rtol=1e-14)


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("H", [0, 1, 3])
def test_files_and_pickles(tmp_path, rank, H):
    model = several(0, H, rank=rank)
    model.save(tmp_path / "model.safetensors")
    X = np.random.default_rng(0).standard_normal((5, 3, 4))
    for again in (us.load(tmp_path / "model.safetensors"), pickle.loads(pickle.dumps(model))):
        assert isinstance(again, us.MultiHeadTransformer)
        assert again.arrays().keys() == model.arrays().keys()
        assert np.array_equal(again(X), model(X))
        assert us.equivalent(again, model, rtol=0)


def test_from_heads_is_a_network_on_the_sum_of_values():
    rng = np.random.default_rng(0)
    W, V, w = (rng.standard_normal(shape) for shape in ((2, 4, 4), (2, 3, 4), (2, 4)))
    g = us.ReluNetwork(rng.standard_normal((3, 5)), rng.standard_normal(5), np.ones(5), 0.25)
    model = us.MultiHeadTransformer.from_heads(W, V, g, w)
    X = rng.standard_normal((7, 4, 4))
    values = np.einsum("hkd,bhd->bk", V, model.pooled(X))
    np.testing.assert_allclose(model(X), g(values), rtol=1e-12)
    one = rng.standard_normal((6, 1, 4))
    np.testing.assert_allclose(model.on_single_tokens(one), model(one), rtol=1e-12, atol=1e-14)


def one_function(model, rng):
    """The same function: heads and neurons in another order, a head and a neuron in two parts."""
    heads, order = rng.permutation(model.H), rng.permutation(len(model.b))
    scale = 2.0 ** rng.integers(-3, 4, len(order))
    B = (model.B * scale[:, None])[heads][:, order]
    w_o, b = (model.w_o / scale)[order], (model.b * scale)[order]
    B = np.concatenate([B, B[:, :1]], axis=1)  # the first neuron twice, with ¾ and ¼ of its weight
    w_o, b = np.append(w_o, w_o[0] / 4), np.append(b, b[0])
    w_o[0] *= 0.75
    share = rng.standard_normal(B[:1].shape)
    W, w = model.W[heads], model.w[heads]
    return us.MultiHeadTransformer(
        np.concatenate([W, W[:1]]), np.concatenate([B[:1] - share, B[1:], share]), w_o, b,
        np.concatenate([w, w[:1]]), model.c,
    )  # fmt: skip


def test_equal_whatever_stands_for_it():
    for seed in range(10):
        model, rng = several(seed), np.random.default_rng(seed)
        other = one_function(model, rng)
        X = rng.standard_normal((20, 3, 4))
        np.testing.assert_allclose(other(X), model(X), rtol=1e-12, atol=1e-12)
        assert us.equivalent(model, other)
        assert us.equivalent(us.canonical(other), model)
        np.testing.assert_allclose(us.canonical(other)(X), model(X), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["W", "B", "w_o", "b", "w", "c"])
@pytest.mark.parametrize("by", [1e-1, 1e-6])
def test_different_with_a_witness(name, by):
    for seed in range(5):
        model = several(seed)
        array = model.arrays()[name].copy()
        array[(0,) * array.ndim] += by
        other = changed(model, **{name: array})
        result = us.equivalent(model, other)
        assert result.verdict == "different"
        assert result.witness is not None
        assert model(result.witness[None]) != other(result.witness[None])
        assert us.equivalent(model, other, rtol=1e3 * by)
