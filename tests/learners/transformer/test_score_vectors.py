"""From vectors W x + w at a few tokens to W and w, with errors, on synthetic vectors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unsoftmax.learners.transformer.attention_recovery import ScoreSpan, ScoreVectors, without_bias

CASES = {
    "seed": st.integers(0, 9999),
    "k": st.integers(1, 6),
    "r": st.integers(1, 6),
    "gamma": st.sampled_from((0.0, -1.0, 0.5, 8.0, 64.0)),
    "exponent": st.integers(-12, -2),
}


def off_by(rng, shape, size):
    """Vectors of norm ``size``, a row each."""
    z = rng.standard_normal(shape)
    return size * z / np.linalg.norm(z, axis=-1, keepdims=True)


@given(**CASES)
def test_W_and_w_from_vectors_on_lines(seed, k, r, gamma, exponent):
    """x_j = β_j b_j and x_0 = γβ_1 b_1: errors of W b_j and w stay within their bounds."""
    rng = np.random.default_rng(seed)
    columns, w = rng.standard_normal((k, r)), rng.standard_normal(r)
    beta = rng.uniform(0.5, 2, k) * rng.choice([-1.0, 1.0], k)
    errors, near = 10.0**exponent * rng.uniform(0.1, 1, k), 10.0**exponent
    k_j = beta[:, None] * columns + w + off_by(rng, (k, r), errors[:, None])
    zero = gamma * beta[:1]
    k_0 = zero[:, None] * columns[:1] + w + off_by(rng, (1, r), near)
    found, off, found_w, w_error = without_bias(
        ScoreVectors(beta, k_j, errors), ScoreVectors(zero, k_0, np.array([near]))
    )
    rounding = 1e-13 * (1 + abs(gamma))
    assert np.all(np.linalg.norm(found - columns, axis=1) <= off + rounding)
    assert np.linalg.norm(found_w - w) <= w_error + rounding


def test_without_a_bias_vectors_are_divided_by_their_lengths():
    beta = np.array([2.0, -4.0])
    found, off, w, w_error = without_bias(
        ScoreVectors(beta, np.array([[2.0], [4.0]]), np.array([1.0, 1.0])), None
    )
    assert found.tolist() == [[1.0], [-1.0]]
    assert off.tolist() == [0.5, 0.25]
    assert w.tolist() == [0.0]
    assert w_error == 0


def test_a_bias_is_worse_known_the_farther_it_is_read_from_0():
    one = ScoreVectors(np.array([1.0]), np.ones((1, 1)), np.array([1e-6]))
    errors = [
        without_bias(one, ScoreVectors(np.array([gamma]), np.ones((1, 1)), np.array([1e-6])))[3]
        for gamma in (0.0, -1.0, 8.0)
    ]
    assert np.allclose(errors, [1e-6, 2e-6, (1 + 8 * 2 / 7) * 1e-6])


def low_rank(rng, d, r, singular):
    U, V = (np.linalg.qr(rng.standard_normal((d, r)))[0] for _ in range(2))
    return U * singular @ V.T


@pytest.mark.parametrize("smallest", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("size", [1e-10, 1e-7])
def test_what_the_span_is_off_by_reaches_the_other_tokens(smallest, size, trials):
    """Columns of condition 1/smallest, off by ``size``: Q k_j misses W b_j by its bound at most."""
    d, r = 9, 3
    for seed in range(trials(2, 100)):
        rng = np.random.default_rng(seed)
        W = low_rank(rng, d, r, np.array([1.0, 0.5, smallest]))
        B = np.linalg.qr(rng.standard_normal((d, d)))[0]
        beta = rng.uniform(0.5, 2, d)
        u = (W @ (B * beta)).T
        errors = np.full(r, size)
        columns = ScoreVectors(beta[:r], u[:r] + off_by(rng, (r, d), size), errors)
        span = ScoreSpan.of(columns)
        Q = span.basis
        assert np.allclose(Q.T @ Q, np.eye(r), atol=1e-14)
        read = u[r:] @ Q
        rest = span.tilted(ScoreVectors(beta[r:], read, np.zeros(d - r)))
        missed = np.linalg.norm(read @ Q.T - u[r:], axis=1)
        assert np.all(missed <= rest.errors + 1e-14)
        own = span.coordinates(columns)
        assert np.all(np.linalg.norm(own.vectors @ Q.T - u[:r], axis=1) <= errors + 1e-14)
        assert len((own + rest).vectors) == d


def test_exact_columns_leave_no_tilt():
    rng = np.random.default_rng(0)
    W = low_rank(rng, 5, 2, np.ones(2))
    columns = ScoreVectors(np.ones(2), W[:, :2].T, np.zeros(2))
    span = ScoreSpan.of(columns)
    rest = span.tilted(ScoreVectors(np.ones(3), W[:, 2:].T @ span.basis, np.full(3, 1e-3)))
    assert np.allclose(rest.errors, 1e-3, rtol=1e-12)
