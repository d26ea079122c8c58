"""Poles of gates along a line: rates of heads from synthetic answers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from unsoftmax.learners.multi_head import pole_search
from unsoftmax.learners.multi_head.pole_search import read_rates

SHIFT = np.log(3.0)


def line(rates, weights, shift=SHIFT, points=200, noise=0.0, seed=0):
    """Answers at offsets that show the slowest rate to logits of 12; their noise."""
    rates, weights = np.array(rates), np.array(weights)
    fastest, far = np.max(np.abs(rates)), 12 / np.min(np.abs(rates))
    end = np.arcsinh(far * fastest / 2)
    x = 2 / fastest * np.sinh(np.linspace(-end, end, points))
    gates = expit(np.outer(x, rates) + shift) - expit(shift)
    y = x * (gates @ weights)
    deviation = noise * np.max(np.abs(y))
    y = y + deviation * np.random.default_rng(seed).standard_normal(points)
    return x, y, shift, np.full(points, max(deviation, 1e-16))


def nearest(found, rates):
    """For every rate the nearest that was found."""
    return [int(np.argmin(np.abs(found - rate))) for rate in rates]


@pytest.mark.parametrize(
    ("rates", "accuracy"),
    [
        ([1.0], 1e-10),
        ([1.0, 2.0], 1e-6),
        ([1.0, -1.0], 1e-6),
        ([1.0, 1.01], 1e-4),
        ([1.0, 0.2], 1e-3),
        ([1.0, 2.0, 3.0, -1.5], 1e-2),
    ],
)
@pytest.mark.parametrize("shift", [np.log(2.0), SHIFT, np.log(9.0)])
def test_rates_are_read(rates, accuracy, shift):
    weights = np.array([1.0, -0.7, 0.4, 0.6])[: len(rates)]
    found = read_rates(*line(rates, weights, shift))
    near = nearest(found, rates)
    assert sorted(near) == list(range(len(rates)))  # the surest first
    np.testing.assert_allclose(found[near], rates, rtol=accuracy)


def test_equal_heads_have_one_pole():
    found = read_rates(*line([1.0, 1.0, -0.6], [2.0, -0.5, 1.0]))
    assert found[:2] == pytest.approx([1.0, -0.6], abs=1e-6)


@pytest.mark.parametrize("noise", [1e-12, 1e-9, 1e-6])
def test_noise_is_not_followed(noise):
    found = read_rates(*line([1.0, 2.0], [1.0, -0.5], noise=noise))
    near = nearest(found, [1.0, 2.0])
    np.testing.assert_allclose(found[near], [1.0, 2.0], rtol=0.1)
    assert len(found) <= 12


def test_nothing_is_read_from_nothing():
    x, y, shift, noise = line([1.0], [0.0])
    assert len(read_rates(x, y, shift, noise)) == 0
    assert len(read_rates(x, x**2, shift, noise)) == 0


def test_poles_off_their_ray_are_none(monkeypatch):
    monkeypatch.setattr(pole_search, "OFF_RAY", 1e-3)
    x, y, shift, noise = line([1.0, 2.0], [1.0, -0.5])
    assert len(read_rates(x, y, shift, noise)) == 2
    # answers without copies have their poles on the imaginary axis
    assert len(read_rates(x, x * np.tanh(x), shift, noise)) == 0
