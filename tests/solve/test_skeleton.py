"""The skeleton solve on synthetic readings: what it finds, and errors never above their bound.

A W of rank r is built first, then its columns and rows are read with errors E and F of a given
size, which the solver does not see.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unsoftmax.solve.skeleton import Skeleton, basis_of, dependence, rank_by_gap

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


def test_rank_by_the_gap():
    singular = np.array([2.0, 1.0, 1e-3, 1e-9])
    assert rank_by_gap(singular) == 4
    assert rank_by_gap(singular, noise=1e-6) == 3
    assert rank_by_gap(singular, share=1e-3) == 2
    assert rank_by_gap(singular, noise=5.0) == 0
    assert rank_by_gap(np.zeros(2)) == rank_by_gap(np.zeros(0)) == 0


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


def test_rows_that_do_not_see_the_span_have_no_bound():
    basis = np.eye(4)[:, :2]
    blind = Skeleton(basis, np.eye(4)[2:])
    assert blind.amplification() == (np.inf, np.inf)
    assert blind.amplification().error(1e-9, 1.0, 1e-9) == np.inf
    with pytest.raises(np.linalg.LinAlgError):
        blind.solve(np.zeros((2, 3)))
