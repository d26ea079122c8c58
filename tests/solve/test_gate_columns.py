"""Columns of zeros and ones in a span, without a layer."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.solve.gate_columns import gate_columns, independent_rows


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


def test_too_few_rows_leave_more_columns():
    true = gates(9, 5, seed=3)
    found = as_set(gate_columns(span_of(true)))
    assert as_set(true) < found


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


def test_without_a_first_row_there_are_none():
    span = span_of(gates(20, 3))
    span[0] = 0
    assert independent_rows(span) is None
    assert gate_columns(span).shape == (20, 0)
    assert independent_rows(np.ones((2, 3))) is None


def test_rows_are_independent_and_begin_with_the_first():
    span = span_of(gates(40, 7))
    rows = independent_rows(span)
    assert rows is not None
    assert rows[0] == 0
    assert np.linalg.cond(span[rows]) < 1e3


def test_many_columns_are_tried_in_parts(monkeypatch):
    monkeypatch.setattr("unsoftmax.solve.gate_columns.AT_ONCE", 17)
    true = gates(50, 9)
    assert as_set(gate_columns(span_of(true))) == as_set(true)
