"""Intervals of logits under every sign of every error: the truth is inside, and not by much."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import expit, logit

from unsoftmax.measure.intervals import read_within
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.two_tokens import Values, Vectors

SIGNS = list(itertools.product((-1.0, 1.0), repeat=5))


def read(t, a, b, v, tau, nu, signs, alpha=2.0, beta=0.5, most=np.inf):
    """Read one answer whose errors all have the signs given; d = 4."""
    wrong = v + nu * np.array(signs[:4])
    y = beta * (b @ v) + alpha * (a @ v) * expit(t) + tau * signs[4]
    values = Values(wrong, 0.0, np.full(4, nu), 0.0, Precision(unit=0.0, absolute=tau))
    seen_a, seen_b = (Vectors.of(x[None], values).take(0) for x in (a, b))
    scales = np.array(alpha), np.array(beta)
    return read_within(np.array(y), seen_a, seen_b, *scales, values, most)


@pytest.mark.parametrize(("tau", "nu"), [(1e-6, 1e-6), (1e-3, 0.0), (1e-2, 1e-2), (0.2, 0.1)])
def test_the_truth_is_inside_whatever_the_signs(tau, nu, trials):
    shares = []
    for seed in range(trials(10, 200)):
        rng = np.random.default_rng(seed)
        a, b, v = rng.standard_normal((3, 4))
        t = rng.uniform(-3, 3)
        far = 0.0
        for signs in SIGNS:
            for most in (np.inf, 3.0):
                found = read(t, a, b, v, tau, nu, signs, most=most)
                assert not found.impossible
                assert found.low - 1e-12 <= t <= found.high + 1e-12
                assert abs(found.logit - t) <= found.error + 1e-12
                assert abs(found.logit) <= most
            far = max(far, abs(found.logit - t))
        shares.append(far / found.error)
    # one combination of signs is as bad as the bound, or nearly
    assert np.median(shares) > (0.4 if tau > 0.1 else 0.7)


def test_an_answer_that_no_logit_gives_is_impossible():
    v, tau = np.ones(4), 1e-3
    for y, most, impossible in (
        (2.0 + 8.0 * expit(0.5), np.inf, False),
        (2.0 + 8.0 + 3e-3, np.inf, True),
        (2.0 - 3e-3, np.inf, True),
        (2.0 + 8.0 * expit(1.0), 0.5, True),
        (2.0 + 8.0 * expit(-1.0), 0.5, True),
        (2.0 + 8.0 * expit(0.5) + 0.9e-3, 0.5, False),
    ):
        values = Values(v, 0.0, np.zeros(4), 0.0, Precision(unit=0.0, absolute=tau))
        seen = Vectors.of(v[None], values).take(0)
        found = read_within(np.array(y), seen, seen, np.array(2.0), np.array(0.5), values, most)
        assert bool(found.impossible) is impossible
        assert np.isfinite(found.logit)


def test_saturated_answers_have_one_open_end():
    a = b = v = np.ones(4)
    found = read(20.0, a, b, v, 1e-3, 0.0, [0] * 5)
    assert np.isinf(found.high)
    assert np.isfinite(found.low)
    assert found.logit == pytest.approx(-logit(1e-3 / 8 / 10), abs=0.01)  # a tenth of its error
    assert read(20.0, a, b, v, 1e-3, 0.0, [0] * 5, most=25.0).high == 25.0


def test_an_offset_without_value_says_nothing():
    a, v = np.array([1.0, -1.0, 0.0, 0.0]), np.ones(4)
    found = read(1.0, a, v, v, 1e-3, 0.0, [0] * 5)
    assert (found.low, found.high, found.logit) == (-np.inf, np.inf, 0.0)
    assert not found.impossible
    assert read(1.0, a, v, v, 1e-3, 0.0, [0] * 5, most=2.0).error == 2.0
