"""Feed-forward layers of any activation, gated or not: which are equal; canonical forms."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
from unsoftmax.models.neurons import ACTIVATIONS

D, M = 4, 6
NORMS: dict[str, Any] = {
    "none": None,
    "before": us.LayerNorm([1.0, -2.0, 0.5, 3.0], [0.1, 0.2, 0.3, 0.4], 1e-3, True),
    "RMS before": us.LayerNorm([1.0, -2.0, 0.5, 3.0], None, 1e-3, True, False),
    "behind": us.LayerNorm([-1.0, 2.0, 0.5, 3.0], [0.1, 0.2, 0.3, 0.4], 1e-3),
}
TURNED = [name for name in ACTIVATIONS if name not in ("identity", "tanh", "sigmoid")]
"""φ(z) = z + φ(−z)."""


def drawn(phi, gated, rng, norm="none", residual=True, outputs=D):
    gate = (rng.standard_normal((M, D)), rng.standard_normal(M)) if gated else None
    A, B = rng.standard_normal((M, D)), rng.standard_normal((outputs, M))
    b, c = rng.standard_normal(M), rng.standard_normal(outputs)
    return us.FeedForward(A, b, B, c, residual, NORMS[norm], phi, gate)


def rewritten(f, rng):
    """The same function in other parameters: by the identities of φ, written out."""
    phi, (A, b, B, c) = f.activation, map(np.array, (f.A, f.b, f.B, f.c))
    G, g = (A, b) if f.gate is None else map(np.array, f.gate)
    # a neuron in two parts
    share = rng.uniform(0.2, 0.8)
    A, b, G, g = (np.concatenate([x, x[:1]]) for x in (A, b, G, g))
    B = np.hstack([B, (1 - share) * B[:, :1]])
    B[:, 0] *= share
    sign = rng.choice([-1.0, 1.0], len(b))
    if phi == "tanh":
        G, g, B = G * sign[:, None], g * sign, B * sign
    if f.gate is None:
        if phi == "sigmoid":  # σ(z) = 1 − σ(−z)
            c = c + B[:, sign < 0].sum(axis=1)
            G, g, B = G * sign[:, None], g * sign, B * sign
        if phi == "relu":
            size = np.exp(rng.standard_normal(len(b)))
            G, g, B = G * size[:, None], g * size, B / size
        if phi == "quick_gelu":
            phi, G, g, B = "silu", 1.702 * G, 1.702 * g, B / 1.702
        A, b = G, g
    else:
        size = rng.choice([-1.0, 1.0], len(b)) * np.exp(rng.standard_normal(len(b)))
        A, b, B = A * size[:, None], b * size, B / size
    order = rng.permutation(len(b))
    gate = None if f.gate is None else (G[order], g[order])
    norm = f.norm
    if norm is not None and not norm.before and norm.centred and not f.residual:
        # the size of the sum does not show
        B, c, norm = -2 * B, -2 * c, us.LayerNorm(-norm.scale, norm.shift, 4 * norm.eps)
    return us.FeedForward(A[order], b[order], B[:, order], c, f.residual, norm, phi, gate)


def changed(f, name, rng):
    """One entry of one array, by a millionth of its row: of a neuron that tokens reach."""
    arrays = {n: np.array(x) for n, x in f.arrays().items()}
    of_row = arrays[name]
    place = tuple(rng.integers(n) for n in of_row.shape)
    of_row[place] += 1e-6 * max(1.0, abs(of_row[place]))
    return type(f).from_arrays(arrays)


def shown(result, *models):
    assert result.verdict == "different"
    one, other = (np.ravel(model(result.witness[None])) for model in models)
    assert np.max(np.abs(one - other)) > 0


@pytest.mark.parametrize("gated", [False, True])
@given(
    st.sampled_from(list(ACTIVATIONS)),
    st.integers(0, 2**32),
    st.sampled_from(list(NORMS)),
    st.booleans(),
)
def test_what_the_function_does_not_show_leaves_layers_equal(gated, phi, seed, norm, residual):
    rng = np.random.default_rng(seed)
    f = drawn(phi, gated, rng, norm, residual)
    g = rewritten(f, rng)
    X = rng.standard_normal((3, D))
    np.testing.assert_allclose(g(X), f(X), rtol=1e-9, atol=1e-9)
    result = us.equivalent(f, g)
    assert result
    assert result.by == "canonical form"
    assert result.gap < 1e-12
    name = rng.choice(["A", "b", "B", *(["G", "g"] if gated else [])])
    near = changed(g, name, rng)
    if np.max(np.abs(near(3 * X) - f(3 * X))) > 1e-8:
        shown(us.equivalent(f, near), f, near)


@pytest.mark.parametrize("phi", list(ACTIVATIONS))
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("norm", list(NORMS))
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.few
def test_one_layer_stands_for_all_of_a_function(phi, gated, norm, residual):
    rng = np.random.default_rng(list(ACTIVATIONS).index(phi))
    f = drawn(phi, gated, rng, norm, residual)
    if phi == "identity" and gated:
        with pytest.raises(ValueError, match="quadratic"):
            us.canonical(f)
        return
    X = rng.standard_normal((9, D))
    forms = us.canonical(f), us.canonical(rewritten(f, rng))
    for form in (forms[1], us.canonical(forms[0])):
        arrays = form.arrays()
        assert arrays.keys() == forms[0].arrays().keys()
        for name, array in forms[0].arrays().items():
            np.testing.assert_allclose(arrays[name], array, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(forms[0](X), f(X), rtol=1e-9, atol=1e-9)
    assert us.equivalent(forms[0], f)


@pytest.mark.parametrize("phi", TURNED)
def test_neurons_turned_around_take_the_residual_in(phi):
    rng = np.random.default_rng(0)
    f = drawn(phi, False, rng, residual=False)
    B, sign = np.array(f.B), np.ones(M)
    B[:, :D], sign[:D] = np.linalg.inv(f.A[:D]), -1
    f = us.FeedForward(f.A, f.b, B, f.c, activation=phi)
    A, b, c = f.A * sign[:, None], f.b * sign, f.c + B[:, :D] @ f.b[:D]
    g = us.FeedForward(A, b, B, c, residual=True, activation=phi)
    X = rng.standard_normal((9, D))
    np.testing.assert_allclose(g(X), f(X), rtol=1e-10, atol=1e-10)
    assert us.equivalent(f, g).gap < 1e-12
    off = us.FeedForward(A, b, B, c, activation=phi)
    shown(us.equivalent(f, off), f, off)


def test_gates_of_sigmoids_turned_around_take_the_residual_in():
    rng = np.random.default_rng(0)
    f = drawn("sigmoid", True, rng, residual=False)
    B, sign = np.array(f.B), np.ones(M)
    B[:, :D], sign[:D] = np.linalg.inv(f.A[:D]), -1
    G, g = f.gate
    f = us.FeedForward(f.A, f.b, B, f.c, activation="sigmoid", gate=(G, g))
    c, gate = f.c + B[:, :D] @ f.b[:D], (G * sign[:, None], g * sign)
    other = us.FeedForward(f.A, f.b, B * sign, c, True, activation="sigmoid", gate=gate)
    X = rng.standard_normal((9, D))
    np.testing.assert_allclose(other(X), f(X), rtol=1e-10, atol=1e-10)
    assert us.equivalent(f, other).gap < 1e-12
    # SiLU's gates do not turn: the difference is quadratic
    silu, back = (
        us.FeedForward(f.A, f.b, one.B, one.c, one.residual, activation="silu", gate=one.gate)
        for one in (f, other)
    )
    shown(us.equivalent(silu, back), silu, back)


def test_two_linear_factors_have_no_order():
    rng = np.random.default_rng(0)
    f = drawn("identity", True, rng)
    G, g = f.gate
    other = us.FeedForward(G, g, f.B, f.c, True, activation="identity", gate=(f.A, f.b))
    assert us.equivalent(f, other).gap < 1e-12
    shown(us.equivalent(f, changed(other, "G", rng)), f, changed(other, "G", rng))


def test_products_of_two_linear_factors_equal_themselves_without_rounding():
    """In any order of neurons; products that differ in the last digit are not called equal."""
    rng = np.random.default_rng(5)
    A, G, b, g = *rng.standard_normal((2, 7, 5)), *rng.standard_normal((2, 7))
    B = rng.standard_normal((5, 7))

    def layer(order: Any, B: Any = B) -> us.FeedForward:
        gate = G[order], g[order]
        c = np.zeros(5)
        return us.FeedForward(A[order], b[order], B[:, order], c, activation="identity", gate=gate)

    near, as_they_are = np.where(np.eye(5, 7) > 0, np.nextafter(B, 9), B), np.arange(7)
    model = layer(as_they_are)
    for order in (as_they_are, as_they_are[::-1]):
        assert us.equivalent(model, layer(order), rtol=0)
        assert us.equivalent(layer(order), model, rtol=0)
    assert us.equivalent(model, layer(as_they_are, near), rtol=0).verdict != "equal"


def test_gates_of_one_value_leave_a_plain_layer_and_plain_neurons_in_gates():
    rng = np.random.default_rng(0)
    f = drawn("silu", False, rng)
    ones = us.FeedForward(np.zeros((M, D)), np.ones(M), f.B, f.c, True, None, "silu", (f.A, f.b))
    assert us.equivalent(f, ones)
    assert us.equivalent(us.canonical(ones), f)
    linear = us.FeedForward(f.A, f.b, f.B, f.c, True, None, "silu", (0 * f.A, np.ones(M)))
    affine = us.FeedForward(f.A, f.b, f.B / (1 + np.exp(-1)), f.c, True, None, "identity")
    assert us.equivalent(linear, affine)
    assert us.equivalent(us.canonical(linear), us.canonical(affine))


@pytest.mark.parametrize("pair", [("gelu", "gelu_tanh"), ("gelu", "relu"), ("tanh", "softplus")])
@pytest.mark.parametrize("gated", [False, True])
def test_other_activations_are_other_functions(pair, gated):
    f = drawn(pair[0], gated, np.random.default_rng(0))
    g = us.FeedForward(f.A, f.b, f.B, f.c, True, activation=pair[1], gate=f.gate)
    shown(us.equivalent(f, g), f, g)
    alike = us.FeedForward(f.A, f.b, 0 * f.B, f.c, True, activation=pair[0], gate=f.gate)
    assert us.equivalent(alike, us.FeedForward(f.A, f.b, 0 * f.B, f.c, True, activation=pair[1]))
