"""Gates in a span, without a layer: of zeros and ones, and between them."""

import numpy as np
import pytest

from unsoftmax.solve.gate_columns import gate_columns
from unsoftmax.solve.soft_gates import columns_at, distinct, nearest_gates


def gates(rows, heads, seed=0):
    drawn = np.random.default_rng([rows, heads, seed]).integers(0, 2, (rows, heads)).astype(float)
    drawn[0] = 1
    return drawn


def span_of(columns, seed=0, noise=0.0):
    """An orthonormal basis, as an SVD of answers gives it."""
    rng = np.random.default_rng(seed)
    mixed = columns @ rng.standard_normal((columns.shape[1], 40))
    mixed += noise * rng.standard_normal(mixed.shape)
    return np.linalg.svd(mixed, full_matrices=False)[0][:, : columns.shape[1]]


def as_set(columns):
    return {tuple(column) for column in columns.T}


@pytest.mark.parametrize("heads", [1, 2, 5, 12, 15])
@pytest.mark.parametrize("noise", [0.0, 1e-4])
def test_all_columns_are_found_and_no_others(heads, noise):
    true = gates(heads + 40, heads)
    assert as_set(gate_columns(span_of(true, noise=noise))) == as_set(true)


def test_a_column_of_halves_makes_every_complement_a_column():
    true = gates(40, 3)
    true[1:, 2] = 1 / 2
    found = as_set(gate_columns(span_of(true)))
    flipped = true[:, :2].copy()
    flipped[1:] = 1 - flipped[1:]
    assert found >= as_set(true[:, :2]) | as_set(flipped)


def test_spans_without_such_columns_have_none():
    rng = np.random.default_rng(1)
    assert gate_columns(rng.standard_normal((30, 4))).shape == (30, 0)


# -- between 0 and 1


def drawn(heads, coordinates, rows, seed=0, size=1.0):
    """True gates, and what is known of the questions."""
    rng = np.random.default_rng([heads, coordinates, rows, seed])
    theta = size * rng.standard_normal((heads, 1 + coordinates))
    s = rng.standard_normal((rows, coordinates))
    design = np.hstack([np.ones((rows, 1)), s / np.linalg.norm(s, axis=1, keepdims=True)])
    return theta, design, np.log(rng.choice([1 / 32, 1 / 8, 1 / 2, 1, 2, 8, 32], rows))


def soft_span(theta, design, shift, noise=0.0, seed=0):
    return span_of(columns_at(theta, design, shift).T, seed, noise)


def searched(span, design, shift, most, seed=1):
    starts = 2 * np.random.default_rng(seed).standard_normal((400, design.shape[1]))
    return distinct(nearest_gates(span, design, shift, starts), most)


def farthest(theta, found):
    return max(np.min(np.linalg.norm(found - one, axis=1)) for one in theta)


@pytest.mark.parametrize(("heads", "coordinates"), [(1, 1), (2, 2), (5, 4), (12, 6)])
@pytest.mark.parametrize("size", [0.3, 1.0, 3.0])
def test_all_gates_are_found_and_no_others(heads, coordinates, size):
    theta, design, shift = drawn(heads, coordinates, heads + coordinates + 12, size=size)
    found = searched(soft_span(theta, design, shift), design, shift, 1e-9)
    assert found.shape == theta.shape
    assert farthest(theta, found) < 1e-7


def test_spans_without_gates_have_none():
    rng = np.random.default_rng(2)
    _, design, shift = drawn(3, 3, 30)
    span = np.linalg.qr(rng.standard_normal((31, 3)))[0]
    assert not len(searched(span, design, shift, 1e-6))
