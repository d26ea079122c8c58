"""Newton's method on gates: exact answers, noisy ones, close heads with a second solution."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from unsoftmax.learners.multi_head import newton_correction
from unsoftmax.learners.multi_head.newton_correction import (
    GateEquations,
    newton,
    solve_gates,
)


def drawn(heads, dim, checks=4, apart=None, noise=1e-15, seed=0):
    """Equations of heads at moderate logits; two of them ``apart`` from each other."""
    rng = np.random.default_rng([heads, dim, seed])
    u, v = rng.standard_normal((2, heads, dim))
    if apart is not None:
        u[1] = u[0] + apart * u[1]
    a = 1.5 * rng.standard_normal((heads * dim + checks, dim))
    y = np.sum((a @ v.T) * expit(a @ u.T), axis=1)
    y = y + noise * rng.standard_normal(len(y))
    return GateEquations(v, a, y, np.full(len(y), noise), checks), u, rng


@pytest.mark.parametrize(("heads", "dim"), [(1, 2), (3, 5), (6, 4)])
def test_an_estimate_becomes_exact(heads, dim, trials):
    for seed in range(trials(1, 30)):
        equations, u, rng = drawn(heads, dim, seed=seed)
        found = solve_gates(equations, u + 1e-5 * rng.standard_normal(u.shape))
        assert found is not None
        missed = np.linalg.norm(found[0] - u, axis=1)
        assert np.all(missed < 20 * found[1] + 1e-13)


@pytest.mark.parametrize("noise", [1e-12, 1e-8])
def test_errors_are_those_of_the_noise(noise, trials):
    ratios = []
    for seed in range(trials(3, 100)):
        equations, u, rng = drawn(3, 5, noise=noise, seed=seed)
        found = solve_gates(equations, u + 1e-6 * rng.standard_normal(u.shape))
        if found is not None:
            ratios.append(np.linalg.norm(found[0] - u, axis=1) / found[1])
    assert 0.2 < np.median(ratios) < 2
    assert np.max(ratios) < 5


def test_the_jacobian_is_the_derivative():
    equations, u, rng = drawn(2, 3)
    step = 1e-6 * rng.standard_normal(u.shape)
    change = (equations.of(u + step) - equations.of(u - step)) / 2
    np.testing.assert_allclose(equations.jacobian(u) @ step.ravel(), change, rtol=1e-6, atol=1e3)


def test_close_heads_are_solved_from_either_side():
    """The other solution, as far away as the heads are apart, fails the equations that check."""
    right = 0
    for seed in range(8):
        equations, u, rng = drawn(2, 4, apart=1e-2, seed=seed)
        for sign in (1.0, -1.0):
            start = u + sign * 3e-3 * (u[1] - u[0]) + 1e-7 * rng.standard_normal(u.shape)
            found = solve_gates(equations, start)
            if found is None:
                continue
            missed = np.linalg.norm(found[0] - u, axis=1)
            right += bool(np.all(missed < 1e-8))
            assert np.all(missed < 20 * found[1] + 1e-8)
    assert right >= 12


def test_exchanged_close_heads_are_seen_through():
    """From the mean of two heads Newton may go to either root; the checks tell."""
    equations, u, _ = drawn(2, 4, apart=1e-3)
    mirrored = u + np.array([[0.9], [-0.9]]) * (u[1] - u[0])
    found = solve_gates(equations, mirrored)
    assert found is None or np.all(np.linalg.norm(found[0] - u, axis=1) < 20 * found[1] + 1e-6)


def test_singular_equations_give_nothing():
    equations, u, _ = drawn(2, 3)
    a = np.repeat(equations.a[:1], 10, axis=0)
    same = GateEquations(equations.v, a, equations.y, equations.noise)
    assert newton(same, u) is None
    assert solve_gates(same, u) is None
    equal, u, _ = drawn(2, 3, apart=1e-13)
    assert solve_gates(equal, u) is None


def test_a_start_that_is_too_far_gives_nothing(monkeypatch):
    equations, u, _ = drawn(2, 3)
    assert solve_gates(equations, 50 * u) is None
    monkeypatch.setattr(newton_correction, "STEPS", 1)
    assert newton(equations, u + 1e-3) is None
