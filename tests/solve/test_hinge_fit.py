"""All parameters at once: what errors of the answers do to them is what the fit says."""

from __future__ import annotations

import numpy as np
import pytest

from tests.feed_forward import balanced, layer
from unsoftmax.learners.feed_forward.fitted_layer import (
    HingeFit,
    HingeParameters,
    balanced_parameters,
)


def problem(noise, seed, off=1e-3):
    f, rng = layer(6, 10, 6, seed), np.random.default_rng(seed)
    A, b, B = balanced(f)
    true = HingeParameters(A, b, B, f.c)
    x = rng.standard_normal((400, 6)) * rng.choice([0.5, 2.0, 5.0], (400, 1))
    y = f(x) + noise * rng.standard_normal((400, 6))
    start = true.of_flat(true.flat * (1 + off * rng.standard_normal(true.flat.size)))
    return true, start, HingeFit(x, y, np.ones(400)), rng


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_a_layer_that_is_nearly_right_becomes_right(noise):
    for seed in range(3):
        true, start, fit, _ = problem(noise, seed)
        found, size = fit.run(start)
        assert size == pytest.approx(noise, rel=0.2, abs=1e-10)
        off = np.linalg.norm(balanced_parameters(found).flat - true.flat)
        assert off < max(200 * noise, 1e-7)


def test_drawn_errors_are_as_large_as_real_ones():
    ratios = []
    for seed in range(6):
        true, start, fit, rng = problem(1e-6, seed)
        found, size = fit.run(start)
        drawn = fit.errors(found, size, rng)
        real = np.linalg.norm(balanced_parameters(found).flat - true.flat)
        errors = [
            np.linalg.norm(balanced_parameters(found.moved(by)).flat - true.flat) for by in drawn
        ]
        ratios.append(real / np.median(errors))
    assert 0.3 < np.median(ratios) < 1.5
