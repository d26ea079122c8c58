"""Which ReLU networks compute the same function: flips, merges, scales, and what differs."""

import numpy as np
import pytest

import unsoftmax as us
from tests.models.test_feed_forward import rewritten as rewritten_layer
from tests.networks import KINDS, network


def test_biases_and_the_constant_are_zero_by_default():
    g = us.ReluNetwork([[1.0, -2.0]], [1, 3])
    np.testing.assert_array_equal(g.b, [0.0, 0.0])
    assert g.c == 0.0
    np.testing.assert_array_equal(g([[2], [-1]]), [2.0, 6.0])


def test_no_neurons_is_a_constant():
    g = us.ReluNetwork(np.zeros((3, 0)), [], c=2.0)
    np.testing.assert_array_equal(g(np.ones((4, 3))), 2.0)
    assert (g.dim, repr(g)) == (3, "ReluNetwork(d=3, m=0)")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"A": np.ones(3), "w_o": np.ones(3)}, "A must have shape"),
        ({"A": np.ones((0, 3)), "w_o": np.ones(3)}, "d ≥ 1"),
    ],
)
def test_wrong_parameters(arguments, said):
    with pytest.raises(ValueError, match=said):
        us.ReluNetwork(**arguments)


def rewritten(g, seed):
    """The same function, as a layer of one output, and with two neurons that have no effect."""
    f = rewritten_layer(us.FeedForward(g.A.T, g.b, g.w_o[None], [g.c]), seed)
    A, b = np.column_stack([f.A.T, g.A[:, :1], np.zeros(g.dim)]), np.append(f.b, [g.b[0], -2.0])
    return us.ReluNetwork(A, np.append(f.B[0], [0.0, 3.0]), b, f.c[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("biases", [True, False])
def test_the_same_function_written_otherwise_is_equal(kind, biases):
    for seed, (d, m) in enumerate([(1, 1), (1, 6), (4, 4), (9, 30)]):
        g = network(kind, d, m, seed, biases)
        other = rewritten(g, seed)
        x = np.random.default_rng(seed).standard_normal((50, d))
        np.testing.assert_allclose(g(x), other(x), rtol=1e-10, atol=1e-10)
        verdict = us.equivalent(g, other, rtol=1e-12)
        assert verdict
        assert verdict.witness is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_canonical_form_is_one_and_the_same_function(kind):
    for seed, (d, m) in enumerate([(1, 6), (4, 4), (9, 30)]):
        g = network(kind, d, m, seed)
        mine, other = us.canonical(g), us.canonical(rewritten(g, seed))
        assert mine.A.shape == other.A.shape
        assert mine.A.shape[1] <= m + 2
        np.testing.assert_allclose(mine.A, other.A, rtol=0, atol=1e-11)
        np.testing.assert_allclose(mine.w_o, other.w_o, rtol=1e-9, atol=1e-10)
        x = np.random.default_rng(seed).standard_normal((50, d))
        np.testing.assert_allclose(mine(x), g(x), rtol=1e-9, atol=1e-9)
        again = us.canonical(mine)
        np.testing.assert_allclose(again.A, mine.A, rtol=0, atol=1e-12)


def test_nothing_is_nothing():
    none = us.ReluNetwork(np.zeros((3, 0)), [], c=2.0)
    cancelled = us.ReluNetwork([[1.0, 1.0], [2.0, 2.0], [0.0, 0.0]], [1.0, -1.0], c=2.0)
    assert us.equivalent(none, cancelled, rtol=0)
    assert us.canonical(cancelled).A.shape == (3, 0)
    zero = us.ReluNetwork(np.zeros((3, 0)), [])
    assert us.equivalent(zero, zero, rtol=0)
    assert us.equivalent(zero, none).verdict == "different"


def changed(g, name):
    A, b, w_o, c = g.A.copy(), g.b.copy(), g.w_o.copy(), g.c
    if name == "a linear part":
        A = np.column_stack([A, A[:, 0], -A[:, 0]])
        b, w_o = np.append(b, [0.0, 0.0]), np.append(w_o, [1e-6, -1e-6])
    elif name == "a neuron less":
        A, b, w_o = A[:, 1:], b[1:], w_o[1:]
    elif name == "a neuron turned around":
        A[:, 0], b[0] = -A[:, 0], -b[0]
    return us.ReluNetwork(A, w_o, b, c)


@pytest.mark.parametrize("name", ["a linear part", "a neuron less", "a neuron turned around"])
def test_a_small_change_is_seen_and_shown(name):
    for seed in range(5):
        g = network("random", 5, 8, seed)
        other = changed(g, name)
        verdict = us.equivalent(g, other)
        assert verdict.verdict == "different"
        assert verdict.gap > 1e-9
        assert verdict.witness is not None
        X = verdict.witness[None]
        assert g(X) != other(X)
        assert us.equivalent(g, other, atol=1e3)


def test_parameters_below_the_rounding_are_undecided():
    g = network("random", 3, 4, 0)
    other = us.ReluNetwork(g.A, g.w_o, g.b, g.c + 1e-17 + 2e-16)
    verdict = us.equivalent(g, other, rtol=0)
    assert verdict.verdict in ("equal", "undecided")


@pytest.mark.parametrize("bias", [-1.0, 1.0])
def test_a_neuron_far_out_counts_by_what_it_shows(bias):
    """Of a neuron that is constant up to a distance of 1e13 nothing but the constant is left."""
    g = network("random", 5, 8, 0)
    for distance, verdict in ((1e13, "equal"), (1e3, "different")):
        A = np.column_stack([g.A, np.full(5, 1 / (distance * np.sqrt(5)))])
        far = us.ReluNetwork(A, np.append(g.w_o, 0.5), np.append(g.b, bias), g.c)
        without = us.ReluNetwork(g.A, g.w_o, g.b, g.c + 0.5 * max(bias, 0.0))
        for pair in ((far, without), (without, far)):
            assert us.equivalent(*pair).verdict == verdict
    other = us.ReluNetwork(A, np.append(g.w_o, 0.5 * (1 + 1e-3)), np.append(g.b, bias), g.c)
    assert us.equivalent(far, other).verdict == "different"


def test_neurons_that_nearly_cancel_are_compared_by_what_they_do():
    """Each of a pair may be off by 1e-5 where together they are not."""
    rng = np.random.default_rng(0)
    plain = network("random", 8, 10, 0)
    A, w_o, b = plain.A.copy(), plain.w_o.copy(), plain.b.copy()
    A[:, 1] = A[:, 0] + 1e-9 * rng.standard_normal(8)
    w_o[1], b[1] = -w_o[0], b[0]
    one = us.ReluNetwork(A, w_o, b, plain.c)
    more = w_o.copy()
    more[:2] *= 1 + 1e-5
    result = us.equivalent(one, us.ReluNetwork(A, more, b, plain.c), rtol=1e-9)
    assert (result.verdict, result.by) == ("equal", "cells")
    assert us.equivalent(one, us.ReluNetwork(A, more, b, plain.c), rtol=0).verdict != "equal"
    more[1] += 1e-6
    result = us.equivalent(one, us.ReluNetwork(A, more, b, plain.c), rtol=1e-9)
    assert (result.verdict, result.by) == ("different", "witness")
