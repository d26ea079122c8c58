"""From vectors W x + w at a few tokens to W and w, on synthetic vectors."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unsoftmax.learners.transformer.attention_recovery import without_bias

CASES = {
    "seed": st.integers(0, 9999),
    "k": st.integers(1, 6),
    "r": st.integers(1, 6),
    "gamma": st.sampled_from((0.0, -1.0, 0.5, 8.0, 64.0)),
}


@given(**CASES)
def test_W_and_w_from_vectors_on_lines(seed, k, r, gamma):
    """x_j = β_j b_j and x_0 = γβ_1 b_1."""
    rng = np.random.default_rng(seed)
    columns, w = rng.standard_normal((k, r)), rng.standard_normal(r)
    beta = rng.uniform(0.5, 2, k) * rng.choice([-1.0, 1.0], k)
    zero = gamma * float(beta[0]) if gamma != 1 else 0.0
    found, found_w = without_bias(beta, beta[:, None] * columns + w, (zero, zero * columns[0] + w))
    assert np.allclose(found, columns, rtol=0, atol=1e-12 * (1 + abs(gamma)))
    assert np.allclose(found_w, w, rtol=0, atol=1e-12 * (1 + abs(gamma)))


def test_without_a_bias_vectors_are_divided_by_their_lengths():
    found, w = without_bias(np.array([2.0, -4.0]), np.array([[2.0], [4.0]]), None)
    assert found.tolist() == [[1.0], [-1.0]]
    assert w.tolist() == [0.0]
