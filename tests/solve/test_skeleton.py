"""The skeleton solve on synthetic readings: what it finds, and errors never above their bound.

A W of rank r is built first, then its columns and rows are read with errors E and F of a given
size, which the solver does not see.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unsoftmax.solve.skeleton import Skeleton, basis_of, dependence, pivots, rank_by_gap

shapes = st.integers(1, 9).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d)))


class Scene:
    """W = L M of rank r, r query tokens X, r offsets A, and errors of columns and rows."""

    def __init__(self, seed, shape, condition=1.0, E=0.0, F=0.0):
        d, rank = shape
        rng = np.random.default_rng([seed, d, rank])
        self.rng, self.rank = rng, rank
        left = np.linalg.qr(rng.standard_normal((d, rank)))[0] if rank else np.zeros((d, 0))
        right = np.linalg.qr(rng.standard_normal((d, rank)))[0] if rank else np.zeros((d, 0))
        self.W = left * np.geomspace(1, 1 / condition, rank) @ right.T
        self.right = right.T
        self.X, self.A = rng.standard_normal((2, rank, d))
        self.C = self.W @ self.X.T
        self.E, self.F = E * unit(rng, (d, rank)), F * unit(rng, (rank, d))
        self.columns, self.rows = self.C + self.E, self.A @ self.W + self.F

    def solved(self):
        skeleton = Skeleton(basis_of(self.columns, self.rank), self.A)
        return skeleton, skeleton.solve(self.rows)


def unit(rng, shape):
    """A random matrix of Frobenius norm 1."""
    x = rng.standard_normal(shape)
    return x / (np.linalg.norm(x) or 1.0)


def rounding(skeleton, scene):
    """What float64 adds to the bound, generously: the solve's condition times the sizes."""
    size = np.linalg.norm(scene.W) + np.linalg.norm(scene.rows) + np.linalg.norm(scene.columns)
    C = np.linalg.svd(scene.columns, compute_uv=False)
    condition = (
        (C[0] / C[-1] if len(C) else 1.0)
        * skeleton.amplification().tilt
        * (1 + skeleton.amplification().gain)
    )
    return 1e-14 * condition * (1 + size) * (1 + dependence(scene.right, scene.X))


# -- what it finds


@given(st.integers(0, 2**32), shapes, st.sampled_from([1.0, 1e3, 1e6]))
def test_exact_readings_give_the_matrix(seed, shape, condition):
    scene = Scene(seed, shape, condition)
    skeleton, W = scene.solved()
    assert W.shape == scene.W.shape
    assert np.linalg.norm(W - scene.W) <= rounding(skeleton, scene)


def test_full_rank_and_rank_zero():
    scene = Scene(0, (5, 5))
    skeleton, W = scene.solved()
    np.testing.assert_allclose(W, scene.W, rtol=0, atol=1e-12)
    assert skeleton.amplification().tilt == pytest.approx(1.0)  # Π = I: nothing is projected away
    nothing = Skeleton(basis_of(np.zeros((5, 0))), np.zeros((0, 5)))
    assert nothing.core.shape == (0, 0)
    np.testing.assert_array_equal(nothing.solve(np.zeros((0, 5))), np.zeros((5, 5)))
    assert nothing.amplification() == (0.0, 0.0)
    assert nothing.amplification().error(1.0, 1.0, 1.0) == 0.0


def test_one_vector_is_solved_as_a_matrix_is():
    scene = Scene(1, (6, 3))
    skeleton, W = scene.solved()
    np.testing.assert_allclose(skeleton.solve(scene.rows[:, 2]), W[:, 2], rtol=1e-12, atol=1e-12)


def test_more_rows_than_the_rank_are_least_squares_and_show_what_the_span_misses():
    scene = Scene(2, (8, 3))
    A = scene.rng.standard_normal((5, 8))
    skeleton = Skeleton(basis_of(scene.C), A)
    np.testing.assert_allclose(skeleton.solve(A @ scene.W), scene.W, rtol=0, atol=1e-12)
    assert np.linalg.norm(skeleton.residual(A @ scene.W)) < 1e-12
    beyond = scene.rng.standard_normal(8)
    assert np.linalg.norm(skeleton.residual(A @ beyond)) > 1e-3
    square = Skeleton(basis_of(scene.C), A[:3])  # as many rows as the rank: any vector is explained
    assert np.linalg.norm(square.residual(A[:3] @ beyond)) < 1e-12


# -- the span and its rank


@given(st.integers(0, 2**32), shapes, st.floats(-150, 150))
def test_short_columns_count_as_much_as_long_ones(seed, shape, octaves):
    scene = Scene(seed, shape)
    scaled = scene.C * np.exp2(octaves * scene.rng.uniform(-1, 1, scene.rank))
    basis = basis_of(scaled, share=1e-12)
    assert basis.shape == (shape[0], min(shape))
    np.testing.assert_allclose(basis.T @ basis, np.eye(scene.rank), rtol=0, atol=1e-12)
    size = np.linalg.norm(scene.C) * (1 + dependence(scene.right, scene.X)) ** 2
    assert np.linalg.norm(scene.C - basis @ (basis.T @ scene.C)) <= 1e-13 * (1 + size)


def test_columns_of_zeros_and_copies_add_nothing():
    scene = Scene(4, (6, 2))
    columns = np.column_stack([np.zeros(6), scene.C, scene.C @ [1.0, -2.0], scene.C[:, :1] * 1e9])
    assert basis_of(columns, share=1e-6).shape == (6, 2)
    assert basis_of(np.zeros((6, 3)), share=1e-6).shape == (6, 0)
    assert basis_of(columns, rank=2).shape == (6, 2)


def test_nearly_dependent_columns_are_a_rank_less_below_the_gap():
    """Two columns at an angle of 1e-8: one direction at a gap of 1e-6, two at 1e-10."""
    columns = np.array([[1.0, 1.0], [0.0, 1e-8], [0.0, 0.0]])
    assert basis_of(columns, share=1e-6).shape[1] == 1
    assert basis_of(columns, share=1e-10).shape[1] == 2


def test_rank_by_the_gap():
    singular = np.array([2.0, 1.0, 1e-3, 1e-9])
    assert rank_by_gap(singular) == 4
    assert rank_by_gap(singular, noise=1e-6) == 3
    assert rank_by_gap(singular, share=1e-3) == 2
    assert rank_by_gap(singular, noise=5.0) == 0
    assert rank_by_gap(np.zeros(2)) == rank_by_gap(np.zeros(0)) == 0


def test_pivots_leave_out_what_is_nearly_dependent():
    rng = np.random.default_rng(0)
    M = rng.standard_normal((4, 4))
    columns = np.column_stack([M[:, 0], M[:, 0] * (1 + 1e-9), M[:, 1], np.zeros(4), M[:, 2]])
    chosen = pivots(columns, 3)
    assert list(chosen) in ([0, 2, 4], [1, 2, 4])
    assert len(pivots(columns, 0)) == 0


def test_rows_chosen_by_pivots_condition_the_core():
    scene = Scene(5, (12, 3))
    candidates = scene.rng.standard_normal((12, 12))
    candidates[:3] = candidates[0] + 1e-9 * scene.rng.standard_normal((3, 12))
    basis = basis_of(scene.C)
    chosen = pivots((candidates @ basis).T, 3)
    assert Skeleton(basis, candidates[chosen]).amplification().gain < 10
    assert Skeleton(basis, candidates[:3]).amplification().gain > 1e6


# -- errors


@given(
    st.integers(0, 2**32),
    shapes,
    st.sampled_from([1.0, 1e2, 1e4]),
    st.sampled_from([0.0, 1e-8, 1e-4, 1e-1]),
    st.sampled_from([0.0, 1e-8, 1e-4, 1e-1]),
)
def test_errors_are_within_their_bound_and_exactly_what_the_formula_says(
    seed, shape, condition, E, F
):
    scene = Scene(seed, shape, condition, E, F)
    skeleton, W = scene.solved()
    K = np.linalg.lstsq(scene.C, scene.W, rcond=None)[0]
    project = skeleton.solve(scene.A)  # Π
    said = (np.eye(len(W)) - project) @ scene.E @ K + skeleton.solve(scene.F)
    slack = rounding(skeleton, scene)
    np.testing.assert_allclose(W - scene.W, said, rtol=0, atol=slack)
    of_columns = np.linalg.norm(scene.E)
    bound = skeleton.amplification().error(
        of_columns, dependence(scene.right, scene.X), np.linalg.norm(scene.F)
    )
    assert np.linalg.norm(W - scene.W) <= bound * (1 + 1e-9) + slack


def test_the_bound_is_reached():
    """The worst errors: of columns along what A tilts most, of rows along the weakest direction."""
    for seed in range(20):
        scene = Scene(seed, (6, 2))
        skeleton, _ = scene.solved()
        u, _, _ = np.linalg.svd(skeleton.core)
        rows = scene.A @ scene.W + 1e-6 * np.outer(u[:, -1], np.eye(6)[0])
        off = np.linalg.norm(skeleton.solve(rows) - scene.W)
        assert off == pytest.approx(skeleton.amplification().error(0.0, 1.0, 1e-6), rel=1e-6)


@pytest.mark.parametrize("given", [1, 2])
def test_a_rank_too_low_leaves_out_what_it_cannot_hold(given):
    scene = Scene(6, (8, 3))
    skeleton = Skeleton(basis_of(scene.C, given), scene.A[:given])
    assert np.linalg.matrix_rank(skeleton.solve(scene.rows[:given])) == given
    check = Skeleton(basis_of(scene.C, given), scene.A)  # more rows than the rank say so
    assert np.linalg.norm(check.residual(scene.rows)) > 1e-2


def test_a_rank_too_high_is_harmless_but_for_noise_that_is_taken_for_a_direction():
    """A direction of pure noise joins the basis: W stays within what the errors allow."""
    scene = Scene(7, (8, 3), E=1e-9)
    X = scene.rng.standard_normal((5, 8))
    columns = scene.W @ X.T + 1e-9 * unit(scene.rng, (8, 5))
    A = scene.rng.standard_normal((5, 8))
    skeleton = Skeleton(basis_of(columns, 5), A)
    off = np.linalg.norm(skeleton.solve(A @ scene.W) - scene.W)
    assert (
        off
        <= skeleton.amplification().error(1e-9, dependence(scene.right, X[:3]) + 10, 0.0) + 1e-12
    )


def test_rows_that_do_not_see_the_span_have_no_bound():
    basis = np.eye(4)[:, :2]
    blind = Skeleton(basis, np.eye(4)[2:])
    assert blind.amplification() == (np.inf, np.inf)
    assert blind.amplification().error(1e-9, 1.0, 1e-9) == np.inf
    with pytest.raises(np.linalg.LinAlgError):
        blind.solve(np.zeros((2, 3)))


def test_tokens_that_do_not_see_the_row_space_have_no_bound():
    assert dependence(np.eye(3)[:1], np.eye(3)[1:2]) == float("inf")
    assert dependence(np.zeros((0, 3)), np.zeros((0, 3))) == 0.0
