"""Answers → places of pooled tokens → logits: errors in, errors out, within the bounds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

import unsoftmax as us
from unsoftmax.learners.transformer import learned_network
from unsoftmax.learners.transformer.learned_network import (
    AnsweredSegments,
    LearnedNetwork,
    logits_of,
    pooled_positions,
)
from unsoftmax.measure.precision import Precision


def exact(network, absolute=0.0):
    """A network without error; answers off by round-off, and by ``absolute``."""
    return LearnedNetwork(network, 0.0, 0.0, Precision(absolute=absolute))


def monotone(seed, d, m):
    """A network that is steep along every direction with positive entries: slope 1 to 3."""
    rng = np.random.default_rng([seed, d, m])
    A = np.abs(rng.standard_normal((d, m))) + 1e-3
    A /= A.sum(axis=0)
    line = np.full(d, 1 / d)
    b = 0.3 * rng.standard_normal(m)
    w_o = rng.uniform(0, 2, m) / max(m, 1)
    return us.ReluNetwork(np.column_stack([A, line, -line]), [*w_o, 1, -1], [*b, 0, 0], 0.4)


def disturbed(network, constant, slope, rng):
    """A learned network that is off by constant + slope·‖x‖, or nearly, but no more."""
    d = network.dim
    direction = rng.standard_normal(d)
    direction *= slope / np.linalg.norm(direction)
    wrong = us.ReluNetwork(
        np.column_stack([network.A, direction]),
        [*network.w_o, rng.choice([-1.0, 1.0])],
        [*network.b, 0.0],
        network.c + constant * rng.choice([-1.0, 1.0]),
    )
    return LearnedNetwork(wrong, constant, slope, Precision())


def segments(rng, n, d):
    """Query tokens and offsets with positive entries, of length about 1."""
    a = np.abs(rng.standard_normal((n, d))) + 0.1
    return rng.standard_normal((n, d)), a / np.linalg.norm(a, axis=1, keepdims=True)


def answered(network, x, a, sigma, off=0.0, at_start=0.0):
    """Answers of a network where pooled tokens lie at σ, off by ``off``; no anchors."""
    n = len(x)
    y = network(x + sigma[:, None] * a) + off
    return AnsweredSegments(
        x, a, y, np.broadcast_to(at_start, (n,)).copy(), *np.full((2, n), np.nan)
    )


CASES = {"seed": st.integers(0, 9999), "d": st.integers(1, 5), "m": st.integers(0, 9)}


def drawn(seed, d, m, n=6):
    rng = np.random.default_rng([seed, 1])
    network = monotone(seed, d, m)
    x, a = segments(rng, n, d)
    return network, x, a, rng.uniform(0.02, 0.98, n), rng


@given(**CASES, exponent=st.integers(-12, -3))
def test_errors_of_answers(seed, d, m, exponent):
    network, x, a, sigma, rng = drawn(seed, d, m)
    eta = 10.0**exponent
    off = eta * rng.choice([-1.0, 1.0, 0.3], len(x))
    learned = exact(network, eta)
    found, bound = pooled_positions(learned, answered(network, x, a, sigma, off))
    assert np.all(np.abs(found - sigma) <= bound)
    # slopes along segments of length 1 are 1/√d or more
    assert bound.max() <= 2 * np.sqrt(d) * eta * 10


@given(**CASES, exponent=st.integers(-12, -4))
def test_errors_of_the_network(seed, d, m, exponent):
    """ĝ is off by constant + slope·‖x‖, by nearly as much at many points.

    The bound is to first order: it divides by ĝ's smallest slope, not g's.
    """
    network, x, a, sigma, rng = drawn(seed, d, m)
    small = 10.0**exponent
    learned, second_order = disturbed(network, small, small, rng), 1 + 4 * np.sqrt(d) * small
    segment = answered(network, x, a, sigma)
    found, bound = pooled_positions(learned, segment)
    assert np.all(np.abs(found - sigma) <= second_order * bound)
    at_start = network(x) - learned.network(x)
    found, bound = pooled_positions(learned, replace(segment, at_start=at_start))
    assert np.all(np.abs(found - sigma) <= second_order * bound)


def test_g_at_the_query_token_takes_off_a_constant_error():
    network, x, a, sigma, rng = drawn(3, 4, 6)
    learned = disturbed(network, 1e-4, 0.0, rng)
    segment = answered(network, x, a, sigma)
    plain, _ = pooled_positions(learned, segment)
    corrected, _ = pooled_positions(
        learned, replace(segment, at_start=network(x) - learned.network(x))
    )
    assert np.abs(plain - sigma).min() > 1e-5
    assert np.abs(corrected - sigma).max() < 1e-14


@given(**CASES, exponent=st.integers(-9, -5))
def test_anchors_leave_an_error_of_second_order(seed, d, m, exponent):
    network, x, a, sigma, rng = drawn(seed, d, m)
    small = 10.0**exponent
    learned = disturbed(network, small, small, rng)
    segment = answered(network, x, a, sigma)
    first, first_bound = pooled_positions(learned, segment)
    at = x + first[:, None] * a
    anchored = replace(segment, anchor=first, at_anchor=network(at) - learned.network(at))
    found, bound = pooled_positions(learned, anchored)
    # ĝ's slopes are right to 1e-3 as the tuning says: the added neuron has slope 1e-5 at most
    assert np.all(np.abs(found - sigma) <= bound)
    # a kink beside the anchor: the correction itself is the bound
    assert np.all(bound <= np.maximum(1e-13 + 2e-3 * first_bound, 30 * np.abs(found - first)))


@pytest.mark.parametrize("flat", [1e-2, 1e-5, 1e-8])
def test_nearly_flat_pieces_cost_as_much_as_they_are_flat(flat):
    """Slope 1, then ``flat``: the bound follows the smallest slope."""
    network = us.ReluNetwork([[1.0, -1.0, 1.0]], [1.0, -1.0, flat - 1.0], [0.0, 0.0, -0.5])
    x, a, eta = np.zeros((2, 1)), np.ones((2, 1)), 1e-12
    sigma = np.array([0.25, 0.75])
    segment = answered(network, x, a, sigma, np.array([eta, -eta]))
    found, bound = pooled_positions(exact(network, eta), segment)
    assert np.all(np.abs(found - sigma) <= bound)
    assert np.all(bound >= eta / flat)
    assert np.all(bound <= 1e-15 + 3 * eta / flat)


# -- from σ to logits


@given(t=st.floats(-12, 12), exponent=st.floats(-15, 0), sign=st.sampled_from((-1.0, 1.0, 0.5)))
def test_errors_of_logits(t, exponent, sign):
    bound = np.array([10.0**exponent])
    sigma = np.clip(expit(np.array([t])) + sign * bound, 0.0, 1.0)
    read = logits_of(sigma, bound)
    if np.isfinite(read.error[0]):
        rounding = 4e-16 / min(sigma[0], 1 - sigma[0])
        assert abs(read.value[0] - t) <= read.error[0] + 1e-15 * abs(t) + rounding
    else:
        assert min(sigma[0], 1 - sigma[0]) <= bound[0]


@pytest.mark.parametrize("sigma", [-1e-3, 1 + 1e-3])
def test_what_no_attention_weights_give_is_refused(sigma, monkeypatch):
    at = np.array([0.5, sigma])
    with pytest.raises(us.ModelMismatch, match="attention weights"):
        logits_of(at, np.array([1e-6, 1e-6]))
    # within three times its error it is rounding
    logits_of(at, np.array([1e-6, 4e-4]))
    monkeypatch.setattr(learned_network, "OUTSIDE_ROUNDING", 1e-2)
    logits_of(at, np.array([1e-6, 1e-6]))
