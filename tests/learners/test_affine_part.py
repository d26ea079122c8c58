"""Sides of neurons, and the residual, from the Jacobian where none is active ahead."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.learners.feed_forward.found_neurons import sides_of


def neurons(d, m, d_out, seed):
    rng = np.random.default_rng([d, m, d_out, seed])
    columns = rng.standard_normal((m, d_out))
    columns /= np.linalg.norm(columns, axis=1, keepdims=True)
    return rng.standard_normal((m, d)), columns, rng.random(m) < 0.5


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("d", "m", "d_out"), [(6, 20, 6), (6, 1, 6), (6, 0, 6), (4, 11, 3)])
def test_sides_and_the_residual(d, m, d_out, residual):
    if residual and d != d_out:
        return
    rows, columns, back = neurons(d, m, d_out, 0)
    first = -columns[back].T @ rows[back] + residual * np.eye(d_out, d)
    sides = sides_of(rows, columns, first + 1e-9, 1e-8)
    np.testing.assert_array_equal(sides.back, back)
    assert sides.residual == residual
    assert sides.linear is None
    assert sides.sure


def test_what_is_left_is_a_linear_part_of_its_rank():
    rows, columns, back = neurons(6, 12, 6, 1)
    extra = np.outer(np.arange(6.0), np.ones(6))
    first = -columns[back].T @ rows[back] + extra
    sides = sides_of(rows, columns, first, 1e-10)
    assert sides.linear is not None
    U, V = sides.linear
    again = -columns[sides.back].T @ rows[sides.back] + sides.residual * np.eye(6) + U.T @ V
    np.testing.assert_allclose(again, first, atol=1e-9)
    assert not sides.sure


def test_too_few_equations_determine_no_sides():
    rows, columns, back = neurons(2, 9, 2, 0)
    first = -columns[back].T @ rows[back]
    sides = sides_of(rows, columns, first, 1e-10)
    assert not sides.known
    left = np.zeros((2, 2)) if sides.linear is None else sides.linear[0].T @ sides.linear[1]
    again = -columns[sides.back].T @ rows[sides.back] + sides.residual * np.eye(2) + left
    np.testing.assert_allclose(again, first, atol=1e-8)
