"""Columns of zeros and ones in a span, without a layer."""

import numpy as np
import pytest

from unsoftmax.solve.gate_columns import gate_columns


def gates(rows, heads, seed=0):
    drawn = np.random.default_rng([rows, heads, seed]).integers(0, 2, (rows, heads)).astype(float)
    drawn[0] = 1
    return drawn


def span_of(columns, seed=0, noise=0.0):
    """An orthonormal basis, as an SVD of answers gives it."""
    rng = np.random.default_rng(seed)
    mixed = columns @ rng.standard_normal((columns.shape[1], 20))
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
