"""Gates between 0 and 1 in a span, without a layer."""

import numpy as np
import pytest

from unsoftmax.solve.soft_gates import columns_at, distinct, nearest_gates


def drawn(heads, coordinates, rows, seed=0, size=1.0):
    """True gates, and what is known of the questions."""
    rng = np.random.default_rng([heads, coordinates, rows, seed])
    theta = size * rng.standard_normal((heads, 1 + coordinates))
    s = rng.standard_normal((rows, coordinates))
    design = np.hstack([np.ones((rows, 1)), s / np.linalg.norm(s, axis=1, keepdims=True)])
    return theta, design, np.log(rng.choice([1 / 32, 1 / 8, 1 / 2, 1, 2, 8, 32], rows))


def span_of(theta, design, shift, noise=0.0, seed=0):
    """An orthonormal basis, as an SVD of answers gives it."""
    rng = np.random.default_rng(seed)
    rows = columns_at(theta, design, shift).T @ rng.standard_normal((len(theta), 40))
    rows += noise * rng.standard_normal(rows.shape)
    return np.linalg.svd(rows, full_matrices=False)[0][:, : len(theta)]


def searched(span, design, shift, most, seed=1):
    starts = 2 * np.random.default_rng(seed).standard_normal((400, design.shape[1]))
    return distinct(nearest_gates(span, design, shift, starts), most)


def farthest(theta, found):
    return max(np.min(np.linalg.norm(found - one, axis=1)) for one in theta)


@pytest.mark.parametrize(("heads", "coordinates"), [(1, 1), (2, 2), (5, 4), (12, 6)])
@pytest.mark.parametrize("size", [0.3, 1.0, 3.0])
def test_all_gates_are_found_and_no_others(heads, coordinates, size):
    theta, design, shift = drawn(heads, coordinates, heads + coordinates + 12, size=size)
    found = searched(span_of(theta, design, shift), design, shift, 1e-9)
    assert found.shape == theta.shape
    assert farthest(theta, found) < 1e-7


def test_spans_without_gates_have_none():
    rng = np.random.default_rng(2)
    _, design, shift = drawn(3, 3, 30)
    span = np.linalg.qr(rng.standard_normal((31, 3)))[0]
    assert not len(searched(span, design, shift, 1e-6))
