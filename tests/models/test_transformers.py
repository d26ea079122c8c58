"""Heads before a ReLU network: the forward map, what does not fit, and equality."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
from tests.networks import network


def several(seed, H=3, d=4, m=6, rank=None, biases=True, residual=False):
    """A random Transformer of several heads, its W in factors where a rank is given."""
    rng = np.random.default_rng(seed)
    K, Q = rng.standard_normal((2, H, rank or d, d)) / d**0.25
    B, w_o = rng.standard_normal((H, m, d)) / d**0.5, rng.standard_normal(m)
    b, w, c = rng.standard_normal(m), rng.standard_normal((H, d)), 0.5
    if not biases:
        b, w, c = np.zeros(m), np.zeros((H, d)), 0.0
    R = rng.standard_normal((m, d)) if residual else None
    if rank:
        return us.MultiHeadTransformer.from_factors(K, Q, B, w_o, b, w, c, R)
    return us.MultiHeadTransformer(K.swapaxes(1, 2) @ Q, B, w_o, b, w, c, R)


def shown(result):
    """The witness of a difference."""
    assert result.verdict == "different"
    assert result.witness is not None
    return result.witness[None]


def changed(model, **arrays):
    return us.MultiHeadTransformer.from_arrays({**model.arrays(), **arrays})


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
    assert repr(several(0, rank=2)) == "MultiHeadTransformer(H=3, d=4, rank ≤ 2, m=6)"


def one_function(model, rng):
    """The same function: heads and neurons in another order, a head and a neuron in two parts."""
    heads, order = rng.permutation(model.H), rng.permutation(len(model.b))
    scale = 2.0 ** rng.integers(-3, 4, len(order))
    B = (model.B * scale[:, None])[heads][:, order]
    w_o, b = (model.w_o / scale)[order], (model.b * scale)[order]
    B = np.concatenate([B, B[:, :1]], axis=1)  # the first neuron twice, with ¾ and ¼ of its weight
    w_o, b = np.append(w_o, w_o[0] / 4), np.append(b, b[0])
    w_o[0] *= 0.75
    R = model.residual
    if R is not None:
        R = (R * scale[:, None])[order]
        R = np.concatenate([R, R[:1]])
    share = rng.standard_normal(B[:1].shape)
    W, w = model.W[heads], model.w[heads]
    return us.MultiHeadTransformer(
        np.concatenate([W, W[:1]]), np.concatenate([B[:1] - share, B[1:], share]), w_o, b,
        np.concatenate([w, w[:1]]), model.c, R,
    )  # fmt: skip


def test_equal_whatever_stands_for_it():
    for seed in range(10):
        model = several(seed, residual=bool(seed % 2))
        rng = np.random.default_rng(seed)
        other = one_function(model, rng)
        X = rng.standard_normal((20, 3, 4))
        np.testing.assert_allclose(other(X), model(X), rtol=1e-12, atol=1e-12)
        assert us.equivalent(model, other)
        assert us.equivalent(us.canonical(other), model)
        np.testing.assert_allclose(us.canonical(other)(X), model(X), rtol=1e-9, atol=1e-9)


def test_one_head_is_a_transformer():
    for seed in range(5):
        for rank in (None, 2):
            several_heads = several(seed, 1, rank=rank)
            scores = {n: x[0] for n, x in several_heads.arrays().items() if n in "WKQw"}
            one = us.Transformer.from_arrays(
                {**scores, **{f"network.{n}": x for n, x in several_heads.network.arrays().items()}}
            )
            X = np.random.default_rng(seed).standard_normal((20, 3, 4))
            np.testing.assert_allclose(one(X), several_heads(X), rtol=1e-12, atol=1e-12)
            assert us.equivalent(one, several_heads, rtol=0)
            assert us.equivalent(several_heads, one, rtol=0)
            assert us.equivalent(us.MultiHeadTransformer.of(one), one, rtol=0)
            W = one.W.copy()
            W[0, 1] += 1e-6
            other = us.Transformer(W, one.network, one.w)
            X = shown(us.equivalent(several_heads, other))
            assert several_heads(X) != other(X)


def test_an_affine_network_makes_it_several_heads_and_a_constant_one_makes_it_none():
    rng = np.random.default_rng(0)
    W, w, v = (rng.standard_normal(shape) for shape in ((3, 4, 4), (3, 4), (3, 4)))
    heads = us.MultiHead(W, v, w, 0.5)
    model = us.MultiHeadTransformer(W, np.stack([v, -v], axis=1), [1.0, -1.0], None, w, 0.5)
    assert us.equivalent(model, heads)
    assert us.equivalent(heads, model)
    assert us.equivalent(model, us.MultiHead(W, 1.001 * v, w, 0.5)).verdict == "different"
    for constant in (
        us.MultiHeadTransformer(W, np.zeros((3, 2, 4)), [1.0, 2.0], [0.5, -3.0], w),
        us.MultiHeadTransformer(W, rng.standard_normal((3, 2, 4)), [0.0, 0.0], None, w, 0.5),
        us.MultiHeadTransformer(W[:0], np.zeros((0, 1, 4)), [1.0], [0.5]),
    ):
        assert us.equivalent(constant, us.SingleHead(np.eye(4), np.zeros(4), None, 0.5))
        assert us.equivalent(constant, us.MultiHead(W[:0], v[:0], w[:0], 0.5))
        assert us.canonical(constant).H == 0
    bent = several(0)
    X = shown(us.equivalent(bent, heads))
    assert bent(X) != heads(X)


def test_a_head_that_single_tokens_do_not_show_is_told():
    """Σ B_h stays, so single tokens answer alike."""
    rng = np.random.default_rng(3)
    model = several(3)
    moved = 1e-3 * rng.standard_normal(model.B[0].shape)
    other = changed(model, B=model.B + np.array([1.0, -1.0, 0.0])[:, None, None] * moved)
    assert shown(us.equivalent(model, other)).shape[1] > 1
    # one head less is another function; a head that the network does not see is none
    fewer = changed(model, B=model.B * [[[1]], [[1]], [[0]]])
    assert us.equivalent(model, fewer).verdict == "different"
    assert us.canonical(fewer).H == 2


def test_a_residual_is_no_head():
    """Single tokens do not tell R from B, and a model without heads pools nothing."""
    for seed in range(5):
        model, rng = several(seed, seed % 3, residual=True), np.random.default_rng(seed)
        without = us.MultiHeadTransformer(
            model.W, model.B, model.w_o, model.b, model.w, model.c, 0 * model.residual
        )
        assert us.canonical(without).residual is None
        plain = {name: x for name, x in model.arrays().items() if name != "residual"}
        assert us.equivalent(without, us.MultiHeadTransformer.from_arrays(plain))
        X = shown(us.equivalent(model, without))
        assert model(X) != without(X)
        assert us.equivalent(model, us.SingleHead(np.eye(4), np.ones(4))).verdict == "different"
        if model.H:
            moved = 1e-6 * rng.standard_normal(model.residual.shape)
            B = model.B.copy()
            B[0] += moved
            other = changed(model, B=B, residual=model.residual - moved)
            assert shown(us.equivalent(model, other)).shape[1] > 1
    network = us.ReluNetwork(np.ones((4, 5)), np.ones(5))
    inside = us.MultiHeadTransformer.from_heads(several(0).W, np.ones((3, 4, 4)), network)
    beside = us.MultiHeadTransformer.from_heads(
        several(0).W, np.ones((3, 4, 4)), network, residual=True
    )
    assert beside.residual is not None
    assert np.array_equal(beside.residual, network.A.T)
    assert inside.residual is None
    assert repr(beside).endswith("m=5, residual)")


def test_heads_closer_than_the_tolerance_are_undecided():
    model = several(4, 2)
    W = np.concatenate([model.W, model.W[1:] * (1 + 1e-12)])
    w = np.concatenate([model.w, model.w[1:]])
    B = np.concatenate([model.B[:1], 0.5 * model.B[1:], 0.5 * model.B[1:]])
    split = us.MultiHeadTransformer(W, B, model.w_o, model.b, w, model.c)
    assert us.equivalent(model, split).verdict == "undecided"
    exactly = us.equivalent(model, split, rtol=0)
    assert exactly.verdict == "different"
    X = shown(exactly)
    assert model(X) != split(X)


@given(st.integers(0, 10**6))
def test_equality_and_its_witness_never_contradict(seed):
    rng = np.random.default_rng(seed)
    H, m = (int(rng.integers(1, 4)) for _ in range(2))
    a = several(seed, H, 2, m, residual=bool(seed % 2))
    b = one_function(a, rng) if rng.integers(2) else several(seed + 1, H, 2, m)
    result = us.equivalent(a, b)
    X = rng.standard_normal((20, 3, 2))
    if result.verdict == "different":
        assert a(shown(result)) != b(shown(result))
    else:
        assert result
        np.testing.assert_allclose(a(X), b(X), rtol=1e-8, atol=1e-8)


def test_what_does_not_fit():
    W, B = np.ones((2, 3, 3)), np.ones((2, 4, 3))
    with pytest.raises(ValueError, match=r"residual must have shape \(4, 3\)"):
        us.MultiHeadTransformer(W, B, np.ones(4), residual=np.ones((3, 4)))
    with pytest.raises(ValueError, match="several heads takes sequences"):
        us.MultiHeadTransformer(W, B, np.ones(4))(np.zeros((2, 3)))
    network: Any = us.ReluNetwork(np.ones((5, 4)), np.ones(4))
    with pytest.raises(ValueError, match=r"V must have shape \(H, 5, d\)"):
        us.MultiHeadTransformer.from_heads(W, np.ones((2, 4, 3)), network)
    with pytest.raises(TypeError, match="ReluNetwork"):
        us.MultiHeadTransformer.from_heads(W, np.ones((2, 4, 3)), cast("Any", W))


@pytest.mark.parametrize("heads", [0, 1, 2])
def test_certificates_hold_what_is_left_of_a_network_without_kinks(heads):
    """A constant, a head or several: bounds on the network are bounds on v and c."""
    rng = np.random.default_rng(3)
    W, w = rng.standard_normal((2, 3, 3)), rng.standard_normal((2, 3))
    B = np.zeros((2, 2, 3))
    B[:heads, 0] = rng.standard_normal((heads, 3))
    B[:, 1] = -B[:, 0]
    step = 1e-6 * (B != 0)
    step[:, 1] *= -1
    a = us.MultiHeadTransformer(W, B, [1.0, -1.0], None, w, 1.0)
    b = us.MultiHeadTransformer(W, B + step, [1.0, -1.0], None, w, 1.0 + 1e-6)
    bounds = {"W": 0.0, "w": 0.0, "constant": 2e-6, "slope": 4e-6}
    assert us.equivalent(a, b).verdict == "different"
    assert us.equivalent(a, b, errors=bounds).verdict == "equal"
    tight = {name: bound / 10 for name, bound in bounds.items()}
    assert us.equivalent(a, b, errors=tight).verdict == "different"


def test_an_affine_network_behind_a_residual_counts_by_what_it_answers():
    """Neurons u·z and −u·z are linear: of the first layer only its product with w_o shows."""
    rng = np.random.default_rng(0)
    W, u, r = rng.standard_normal((1, 3, 3)), rng.standard_normal(3), rng.standard_normal(3)

    def model(first, last, out):
        B, R = np.array([[first, -first]]), np.array([last, -last])
        return us.MultiHeadTransformer(W, B, [out, -out], residual=R)

    one = model(u, r, 1.0)
    assert us.equivalent(model(2 * u, 2 * r, 1.0), model(u, r, 2.0))
    for other in (model(u, r, 2.0), model(u, 2 * r, 1.0), model(2 * u, r, 1.0)):
        for bounds in (None, {"W": 1e-9, "w": 1e-9, "constant": 1e-9, "slope": 1e-9}):
            result = us.equivalent(one, other, errors=bounds)
            assert result.verdict == "different"
            assert result.witness is not None
            assert one(result.witness[None]) != other(result.witness[None])


# -- the one-layer Transformer: what does not fit, and equality


def test_what_does_not_fit_one_head():
    g = network("random", 4, 6, 0)
    with pytest.raises(TypeError, match="ReluNetwork"):
        us.Transformer(np.eye(4), us.SingleHead(np.eye(4), np.ones(4)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="This Transformer takes sequences"):
        us.Transformer(np.eye(4), g)(np.zeros((2, 4)))
    K, Q = np.ones((2, 2, 4))
    assert repr(us.Transformer.from_factors(K, Q, g)) == "Transformer(d=4, rank ≤ 2, m=6)"


# -- equality


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
