"""Intervals of logits under every sign of every error: the truth is inside, and not by much."""

import itertools

import numpy as np
import pytest
from scipy.special import expit

from unsoftmax.learners.single_head.approximate.passes import Pass, read_intervals
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.single_tokens import Values
from unsoftmax.measure.two_tokens import TwoTokenAnswers, Vectors

SIGNS = list(itertools.product((-1.0, 1.0), repeat=5))


def read(t, a, b, v, tau, nu, signs, alpha=2.0, beta=0.5, most=np.inf):
    """Read one answer whose errors all have the signs given; d = 4."""
    wrong = v + nu * np.array(signs[:4])
    y = beta * (b @ v) + alpha * (a @ v) * expit(t) + tau * signs[4]
    values = Values(wrong, 0.0, np.full(4, nu), 0.0, Precision(unit=0.0, absolute=tau))
    seen_a, seen_b = (Vectors.of(x[None], values).take(0) for x in (a, b))
    scales = np.array(alpha), np.array(beta)
    return read_intervals(TwoTokenAnswers(np.array(y), seen_a, seen_b, *scales, values), most)


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
        scales = np.array(2.0), np.array(0.5)
        answers = TwoTokenAnswers(np.array(y), seen, seen, *scales, values)
        found = read_intervals(answers, most)
        assert bool(found.impossible) is impossible
        assert np.isfinite(found.logit)


def a_pass(d, rng, size=1.0):
    """Offsets, query tokens, scales, and exact answers of a random head."""
    W, v = size * rng.standard_normal((d, d)), rng.standard_normal(d)
    Z, B = rng.standard_normal((2, d, d))
    alpha, beta = 2.0 ** rng.integers(-2, 3, (2, d, d))
    t = alpha * beta * (B @ W.T @ Z.T)
    y = beta * (B @ v)[:, None] + alpha * (Z @ v) * expit(t)
    return W, v, Pass(Z, B, alpha, beta, y)


def test_a_pass_reads_every_pair_within_its_bound():
    rng, tau = np.random.default_rng(3), 1e-6
    for d in (1, 2, 5):
        W, v, exact = a_pass(d, rng, 0.2)
        y = exact.y + tau * rng.choice([-1, 1], exact.y.shape)
        asked = Pass(exact.Z, exact.B, exact.alpha, exact.beta, y)
        values = Values(v, 0.0, np.zeros(d), 0.0, Precision(absolute=tau))
        intervals = asked.read(values, None)
        reading = asked.reading(intervals, W, values)
        truth = exact.B @ W.T @ exact.Z.T
        assert reading.bounded
        assert np.all(np.abs(reading.value - truth) <= reading.error)
        assert np.linalg.norm(reading.value - truth) <= reading.total
        assert np.array_equal(reading.value, asked.measured(intervals))
