"""The Jacobian against finite differences; the bound against an estimate that reaches it."""

from __future__ import annotations

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.theory.information import cramer_rao, jacobian


@pytest.mark.parametrize("N", [1, 2, 5])
def test_the_jacobian_is_the_derivative(N):
    d, h = 4, 1e-6
    rng = np.random.default_rng(N)
    theta, X = rng.standard_normal(d + d * d), rng.standard_normal((7, N, d))

    def answers(theta):
        return us.SingleHead(theta[d:].reshape(d, d), theta[:d])(X)

    steps = h * np.eye(len(theta))
    numeric = np.array([(answers(theta + s) - answers(theta - s)) / (2 * h) for s in steps]).T
    head = us.SingleHead(theta[d:].reshape(d, d), theta[:d])
    assert np.allclose(jacobian(head, X), numeric, rtol=0, atol=1e-7)


def test_the_bound_is_what_linearised_least_squares_reaches():
    d, sigma = 3, 1e-3
    rng = np.random.default_rng(0)
    head = us.SingleHead(rng.standard_normal((d, d)), rng.standard_normal(d))
    X = rng.standard_normal((40, 2, d))
    errors = np.linalg.pinv(jacobian(head, X)) @ (sigma * rng.standard_normal((40, 4000)))
    v_error, W_error = cramer_rao(head, X, sigma)
    assert np.sqrt(np.mean(np.sum(errors[:d] ** 2, axis=0))) == pytest.approx(v_error, rel=0.05)
    assert np.sqrt(np.mean(np.sum(errors[d:] ** 2, axis=0))) == pytest.approx(W_error, rel=0.05)


def test_more_answers_never_make_it_larger():
    rng = np.random.default_rng(1)
    head = us.SingleHead(rng.standard_normal((2, 2)), rng.standard_normal(2))
    X = rng.standard_normal((30, 3, 2))
    bounds = [cramer_rao(head, X[:n], 0.1) for n in (6, 10, 30)]
    assert bounds == sorted(bounds, reverse=True)
