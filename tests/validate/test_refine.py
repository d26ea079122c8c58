"""Gauss–Newton by conjugate gradients, on synthetic problems: as good as a solver, never worse."""

from dataclasses import dataclass

import numpy as np
import pytest

from unsoftmax.learners.attention_layer.range_fit import refine, step, whitening


@dataclass(frozen=True)
class Curved:
    """Answers y to A θ + bent (A θ)², coordinates θ = T x."""

    A: np.ndarray
    y: np.ndarray
    theta: np.ndarray
    T: np.ndarray
    bent: float = 0.0

    @property
    def residual(self):
        z = self.A @ self.theta
        return self.y - z - self.bent * z**2

    def _slope(self):
        return 1 + 2 * self.bent * (self.A @ self.theta)

    def forward(self, x):
        return self._slope() * (self.A @ (self.T @ x))

    def back(self, rows):
        return self.T.T @ (self.A.T @ (self._slope() * rows))

    def moved(self, x):
        return Curved(self.A, self.y, self.theta + self.T @ x, self.T, self.bent)


def problem(condition, noise, seed=0, bent=0.0):
    rng = np.random.default_rng(seed)
    A = np.linalg.qr(rng.standard_normal((40, 8)))[0] * np.geomspace(1, 1 / condition, 8)
    theta = rng.standard_normal(8)
    z = A @ theta
    y = z + bent * z**2 + noise * rng.standard_normal(40)
    return Curved(A, y, theta + rng.standard_normal(8) / 10, whitening(A.T @ A), bent), theta


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6])
def test_linear_problems_are_solved_whatever_their_condition(condition):
    start, _ = problem(condition, 1e-9)
    best = np.linalg.lstsq(start.A, start.y, rcond=None)[0]
    found = refine(start)
    missed = np.linalg.norm(start.y - start.A @ best)
    assert np.linalg.norm(found.residual) <= missed * (1 + 1e-6)
    assert np.linalg.norm(start.A @ (found.theta - best)) < 1e-12


def test_bent_problems_take_further_steps():
    start, theta = problem(10.0, 0.0, bent=0.1)
    first = start.moved(step(start))
    found = refine(start, steps=5)
    assert np.linalg.norm(found.theta - theta) < 1e-9
    assert np.linalg.norm(first.theta - theta) > 1e-6


def test_a_step_that_does_not_help_is_not_taken():
    """The derivative has the wrong sign: every step leads away."""

    class Misled(Curved):
        def moved(self, x):
            return Misled(self.A, self.y, self.theta - self.T @ x, self.T, self.bent)

    start, _ = problem(10.0, 0.0)
    misled = Misled(start.A, start.y, start.theta, start.T)
    assert refine(misled) is misled
    nowhere = Misled(start.A, np.full_like(start.y, np.nan), start.theta, start.T)
    assert refine(nowhere) is nowhere
