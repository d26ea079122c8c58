"""Where labels flip, and bounds on it: against exact arithmetic and against random errors."""

from __future__ import annotations

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.learners.single_head.labels import bisection as thresholds
from unsoftmax.theory import counts


def flip(label, low, high):
    """Where a label goes from 1 to 0, to the last bit."""
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if label(middle) else (low, middle)
    return low


def test_rounding_moves_flips_of_ratios_by_no_more_than_its_bound():
    rng = np.random.default_rng(4)
    moved = []
    for _ in range(300):
        d = int(rng.integers(2, 30))
        v = rng.standard_normal(d) * 10.0 ** rng.uniform(-3, 0, d)
        v /= np.linalg.norm(v)
        p, i = np.argsort(np.abs(v))[[-1, 0]]
        target = us.SingleHead(np.eye(d), v)

        def label(rho, v=v, i=i, p=p, target=target):
            x = np.zeros((1, 1, len(v)))
            x[0, 0, i], x[0, 0, p] = np.sign(v[i]), -rho * np.sign(v[p])
            return target(x)[0] > 0

        ratio = np.abs(v[i]) / np.abs(v[p])
        bound = thresholds.ratio_rounding(np.array([ratio]), 1 / np.abs(v[p]))[0]
        moved.append(abs(flip(label, 0.0, 1.0) - ratio) / bound)
    assert max(moved) <= 1


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_rounding_moves_flips_of_logits_by_no_more_than_its_bound(size):
    """The larger a and b are beside their scores, the more rounding moves a flip."""
    rng = np.random.default_rng(5)
    moved, d = [], 6
    for _ in range(150):
        W, v = rng.standard_normal((d, d)), rng.standard_normal(d)
        v /= np.linalg.norm(v)
        a, b = size * rng.standard_normal(d), rng.standard_normal(d)
        a, b = a * np.sign(a @ v), b * np.sign(b @ v)
        if min(a @ v / np.linalg.norm(a), b @ v / np.linalg.norm(b)) < 0.2:
            continue
        t = rng.uniform(-3, 3)
        scale = -t / (a @ W @ b)
        if scale < 0:
            W, scale = -W, -scale
        target, ratio = us.SingleHead(W, v), np.array([(b @ v) / (a @ v)])

        def label(at, a=a, b=b, scale=scale, ratio=ratio, target=target):
            alpha, beta = (x[0] for x in thresholds.threshold_scales(np.array([at]), scale, ratio))
            return target(np.array([[alpha * a - beta * b, -beta * b]]))[0] > 0

        alpha, beta = thresholds.threshold_scales(np.array([t]), scale, ratio)
        bound = thresholds.logit_rounding(
            np.array([t]),
            np.array([a @ v]),
            np.array([scale * np.linalg.norm(W @ b)]),
            np.linalg.norm(a) + beta / alpha * np.linalg.norm(b),
        )[0]
        moved.append(abs(flip(label, -4.0, 4.0) - t) / bound)
    assert len(moved) > 50
    assert max(moved) <= 1
    # of the size of what it bounds: 1/50 of it is reached
    assert max(moved) > 0.02


@pytest.mark.parametrize("size", [1e-9, 1e-3, 0.05])
def test_the_error_through_the_values_is_a_bound(size):
    """Logits read through a wrong v̂, against those read through the right one."""
    rng = np.random.default_rng(2)
    for _ in range(100):
        d = 4
        v = rng.standard_normal(d)
        v /= np.linalg.norm(v)
        a, b = 0.7 * v + 0.5 * rng.standard_normal((2, d, d)) / 2
        a, b = (rows * np.sign(rows @ v)[:, None] for rows in (a, b))
        if min((a @ v).min(), (b @ v).min()) < 0.3:
            continue
        found = v + size * rng.standard_normal(d) / 2
        found /= np.linalg.norm(found)
        c = rng.uniform(0.5, 2, (d, d))
        true, seen = (np.divide.outer(b @ x, a @ x) for x in (v, found))
        alpha, beta = thresholds.threshold_scales(rng.uniform(-2, 1, (d, d)), c, true)
        logits = [thresholds.threshold(alpha, beta, ratio) for ratio in (true, seen)]
        bound = thresholds.ThroughValues.of(found, float(np.linalg.norm(found - v)), a, b)
        assert np.linalg.norm((logits[1] - logits[0]) / c) <= bound.error(logits[1], c)


def test_the_papers_counts_at_known_places():
    """Its sample sizes as computed independently, by d, μ, W, ε_W, δ."""
    for (d, error, margin, failure), k in {
        (64, 1e-6, 1 / 8, 0.01): 1.3e28,
        (64, 1e-6, 0.01, 0.01): 4.9e34,
        (2, 0.9, 0.5, 0.05): 4.4e7,
        (3, 0.9, 0.5, 0.05): 1.7e8,
    }.items():
        samples, steps = counts.label_head_paper(d, error, margin, 2.0, failure)
        assert samples == pytest.approx(k, rel=0.05)
        assert 5 <= steps <= 60


def test_the_mean_projection_is_one():
    rng = np.random.default_rng(3)
    for d in (1, 2, 3, 10):
        x = rng.standard_normal((200_000, d))
        mean = np.mean(np.abs(x[:, 0]) / np.linalg.norm(x, axis=1))
        assert mean == pytest.approx(counts.mean_projection(d), abs=4e-3)


@pytest.mark.parametrize(("d", "bits"), [(1, 40), (2, 40), (64, 50), (512, 40)])
def test_labels_cost_little_more_than_a_bit_each(d, bits):
    asked = counts.label_head(d, bits) + counts.label_head_again(d)
    assert bits * (d * d + d - 1) < asked <= 1.1 * bits * (d * d + d) + 500
