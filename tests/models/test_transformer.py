"""The one-layer Transformer: forward map, files, canonical form, equality."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
from tests.networks import network


def transformer(seed, d=4, m=6, rank=None, biases=True):
    rng = np.random.default_rng(seed)
    g, w = network("random", d, m, seed, biases), rng.standard_normal(d)
    K, Q = rng.standard_normal((2, rank or d, d))
    if rank is None:
        return us.Transformer(K.T @ Q, g, w)
    return us.Transformer.from_factors(K, Q, g, w)


def literal(model, X):
    """The definition, a sequence at a time."""
    answers = []
    for x in X:
        scores = np.array([token @ (model.W @ x[-1] + model.w) for token in x])
        weights = np.exp(scores - scores.max())
        pooled = (weights / weights.sum()) @ x
        hidden = np.maximum(pooled @ model.network.A + model.network.b, 0)
        answers.append(hidden @ model.network.w_o + model.network.c)
    return np.array(answers)


@given(st.integers(0, 10**6), st.integers(1, 8), st.sampled_from([None, 1, 2]))
def test_it_is_what_it_says(seed, length, rank):
    model = transformer(seed % 7, rank=rank)
    X = np.random.default_rng(seed).standard_normal((3, length, 4))
    np.testing.assert_allclose(model(X), literal(model, X), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(model.attention(X).sum(axis=1), 1.0, rtol=1e-14)


def test_a_file_without_its_network_is_damaged(tmp_path):
    from unsoftmax.models import files

    files.write(tmp_path / "x.safetensors", "Transformer", {"W": np.eye(2), "w": np.zeros(2)})
    with pytest.raises(ValueError, match="damaged"):
        us.load(tmp_path / "x.safetensors")


def test_norms_and_arrays():
    model = transformer(0, rank=2)
    assert np.isclose(model.parameter_norm("W"), np.linalg.norm(model.W), rtol=1e-14)
    assert model.parameter_norm("w") == np.linalg.norm(model.w)
    assert model.parameter_norm("slope") == 0.0
    with pytest.raises(ValueError, match="read-only"):
        model.w[0] = 1.0
    assert "rank ≤ 2, m=6" in repr(model)


def test_what_does_not_fit():
    g = network("random", 4, 6, 0)
    with pytest.raises(ValueError, match="W must have shape"):
        us.Transformer(np.eye(3), g)
    with pytest.raises(ValueError, match="w must have shape"):
        us.Transformer(np.eye(4), g, np.ones(3))
    with pytest.raises(TypeError, match="ReluNetwork"):
        us.Transformer(np.eye(4), us.SingleHead(np.eye(4), np.ones(4)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="This Transformer takes sequences"):
        us.Transformer(np.eye(4), g)(np.zeros((2, 4)))


# -- equality


def same_network(g, rng):
    """The same function with neurons permuted, rescaled and split."""
    order = rng.permutation(g.A.shape[1])
    scale = 2.0 ** rng.integers(-3, 4, len(order))
    A, b, w_o = g.A[:, order] * scale, g.b[order] * scale, g.w_o[order] / scale
    A, b = np.column_stack([A, A[:, 0]]), np.append(b, b[0])
    return us.ReluNetwork(A, np.append(w_o, w_o[0] / 2) - np.append(w_o[0] / 2, 0 * w_o), b, g.c)


def test_equal_whatever_stands_for_its_network():
    for seed in range(10):
        model, rng = transformer(seed), np.random.default_rng(seed)
        other = us.Transformer(model.W, same_network(model.network, rng), model.w)
        assert us.equivalent(model, other)
        assert us.equivalent(us.canonical(model), model)
        X = rng.standard_normal((20, 3, 4))
        np.testing.assert_allclose(us.canonical(model)(X), model(X), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("part", ["W", "w", "network", "last of W"])
def test_different_with_a_witness(part):
    for seed in range(10):
        model = transformer(seed)
        W, w, g = model.W.copy(), model.w.copy(), model.network
        if part == "W":
            W[0, 1] += 1e-3
        elif part == "w":
            w[0] += 1e-3
        elif part == "network":
            g = us.ReluNetwork(g.A * (1 + 1e-6), g.w_o, g.b, g.c)
        else:
            W[-1, -1] *= 1 + 1e-6
        other = us.Transformer(W, g, w)
        result = us.equivalent(model, other)
        assert result.verdict == "different"
        assert result.witness is not None
        assert model(result.witness[None]) != other(result.witness[None])
        assert us.equivalent(model, other, rtol=1e-2)


def test_where_the_network_is_constant_W_is_nothing():
    for g in (us.ReluNetwork(np.zeros((3, 0)), [], None, 2.0),
              us.ReluNetwork(np.ones((3, 2)), [1.0, -1.0], None, 2.0)):  # fmt: skip
        a, b = us.Transformer(np.eye(3), g), us.Transformer(-np.eye(3), g, np.ones(3))
        assert us.equivalent(a, b, rtol=0)
        assert not np.any(us.canonical(b).W)
        assert us.equivalent(a, us.SingleHead(np.eye(3), np.zeros(3), None, 2.0))


def test_an_affine_network_makes_it_a_head():
    rng = np.random.default_rng(0)
    W, v, w = rng.standard_normal((3, 3)), rng.standard_normal(3), rng.standard_normal(3)
    head = us.SingleHead(W, v, w, 0.5)
    model = us.Transformer(W, us.ReluNetwork(np.column_stack([v, -v]), [1, -1], None, 0.5), w)
    assert us.equivalent(model, head)
    assert us.equivalent(head, model)
    bent = us.Transformer(W, us.ReluNetwork(v[:, None], [1.0], [0.0], 0.5), w)
    result = us.equivalent(head, bent)
    assert result.verdict == "different"
    assert result.witness is not None
    assert head(result.witness[None]) != bent(result.witness[None])


def test_several_heads_beside_a_network_that_is_affine_within_the_tolerance():
    """One head decides as SingleHead does; of more no witness is claimed that is none."""
    rng = np.random.default_rng(0)
    W, v, w = rng.standard_normal((3, 3)), rng.standard_normal(3), rng.standard_normal(3)
    A = np.column_stack([v, -v, np.ones(3)])
    kinked = us.Transformer(W, us.ReluNetwork(A, [1.0, -1.0, 1e-7], [0.0, 0.0, -0.5]), w)
    halves = [v / 2, v / 2]
    one = (
        us.SingleHead(W, v, w),
        us.MultiHead([W], [v], [w]),
        us.MultiHead([W] * 2, halves, [w] * 2),
    )
    for model in one:
        assert us.equivalent(model, kinked, rtol=1e-5)
        assert us.equivalent(kinked, model).verdict == "different"
    for other, verdict in ((W + 1e-12, "undecided"), (-W, "different")):
        several = us.MultiHead([W, other], halves, [w, w])
        nearly_one = us.equivalent(several, kinked, rtol=1e-5)
        assert nearly_one.verdict == verdict
        result = us.equivalent(several, kinked)
        assert result.verdict == "different"
        for found in (nearly_one, result):
            if found.witness is not None:
                assert several(found.witness[None]) != kinked(found.witness[None])
    constant = us.Transformer(W, us.ReluNetwork(A, [0.0, 0.0, 0.0], c=2.0), w)
    assert us.equivalent(us.MultiHead(np.zeros((0, 3, 3)), np.zeros((0, 3)), c=2.0), constant)


def test_a_network_alone_takes_other_sequences():
    model = transformer(0)
    assert us.equivalent(model, model.network).verdict == "different"
