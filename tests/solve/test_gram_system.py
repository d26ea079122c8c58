"""Solving with 𝒜𝒜ᵀ + D: by the inverse or by conjugate gradients, the same solution."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.learners.single_head.sensing import nuclear_norm
from unsoftmax.learners.single_head.sensing.nuclear_norm import GramSystem
from unsoftmax.learners.single_head.sensing.rank_one import Measurements


@pytest.fixture
def free(monkeypatch):
    """How a system is made that nothing is inverted of."""

    def made(measured, ridge):
        with monkeypatch.context() as patched:
            patched.setattr(nuclear_norm, "INVERTED", 0)
            return GramSystem.of(measured, ridge)

    return made


def scene(d, m, ridge):
    rng = np.random.default_rng([d, m])
    a, b = rng.standard_normal((2, m, d))
    measured = Measurements(a, b, rng.standard_normal(m), np.zeros(m)).normalised()
    return measured, ridge * rng.uniform(0, 2, m), rng.standard_normal(m)


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 100.0])
@pytest.mark.parametrize(("d", "m"), [(1, 1), (10, 30), (10, 80)])
def test_both_ways_solve_alike(d, m, ridge, free):
    measured, D, c = scene(d, m, ridge)
    nowhere = np.zeros(m), np.zeros((d, d))
    exact, free = GramSystem.of(measured, D), free(measured, D)
    assert exact.exact
    assert not free.exact
    y, back = exact.solve(c, *nowhere)
    np.testing.assert_allclose((measured.gram() + np.diag(D)) @ y, c, atol=1e-8)
    other, others_back = free.solve(c, *nowhere, exactly=True)
    assert np.linalg.norm(other - y) <= 1e-7 * np.linalg.norm(y)
    for solution, image in ((y, back), (other, others_back)):
        np.testing.assert_allclose(image, measured.adjoint(solution), atol=1e-10)


def test_each_solution_starts_from_the_last(free):
    measured, D, c = scene(10, 30, 0.01)
    system, y, back, left = free(measured, D), np.zeros(30), np.zeros((10, 10)), []
    G = measured.gram() + np.diag(D)
    for _ in range(4):
        y, back = system.solve(c, y, back)
        left.append(np.linalg.norm(G @ y - c) / np.linalg.norm(c))
    assert left[0] <= 0.3
    assert left[3] <= 1e-3
    assert left == sorted(left, reverse=True)


def test_nothing_to_solve_is_nothing(free):
    measured, D, _ = scene(4, 6, 0.0)
    y, back = free(measured, D).solve(np.zeros(6), np.zeros(6), np.zeros((4, 4)))
    assert not y.any()
    assert not back.any()
