"""Products of thin factors: what is computed of them is what the whole matrices have."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unsoftmax.models.products import Product, distances


def product(seed, m, d, r):
    rng = np.random.default_rng([seed, m, d, r])
    return Product(rng.standard_normal((m, r)), rng.standard_normal((r, d)))


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 6), st.integers(0, 8))
def test_norms_sums_and_inner_products(seed, m, d, r):
    one, other = product(seed, m, d, r), product(seed + 1, m, d, 2)
    a, b = one.whole, other.whole
    assert one.norm == pytest.approx(np.linalg.norm(a), rel=1e-12, abs=1e-12)
    assert (one - other).norm == pytest.approx(np.linalg.norm(a - b), rel=1e-12, abs=1e-12)
    assert one.inner(other) == pytest.approx(np.sum(a * b), rel=1e-12, abs=1e-10)
    np.testing.assert_allclose((one + other).whole, a + b, atol=1e-12)


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 6), st.integers(0, 8))
def test_the_compact_form_is_the_same_matrix_of_its_rank(seed, m, d, r):
    given = product(seed, m, d, r)
    found = given.compact()
    assert len(found.right) == min(m, d, r)
    np.testing.assert_allclose(found.whole, given.whole, atol=1e-12)
    gram = found.left.T @ found.left
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-13)
    # of another pair of factors it is the same
    turn = np.linalg.qr(np.random.default_rng(seed).standard_normal((r, r)))[0]
    again = Product(given.left @ turn, turn.T @ given.right).compact()
    np.testing.assert_allclose(np.linalg.norm(again.right, axis=1),
                               np.linalg.norm(found.right, axis=1), atol=1e-11)  # fmt: skip


def test_differences_do_not_cancel():
    one = product(0, 40, 50, 3)
    near = Product(one.left, one.right * (1 + 1e-12))
    assert (one - near).norm == pytest.approx(1e-12 * one.norm, rel=1e-2)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4)])
def test_a_whole_matrix_is_a_product(shape):
    matrix = np.random.default_rng(0).standard_normal(shape)
    np.testing.assert_array_equal(Product.of(matrix).whole, matrix)
    assert Product.of(matrix).right.shape[0] == min(shape)
    assert len(Product.of(np.zeros(shape)).compact().right) == 0


def test_distances_of_all_pairs():
    far = [product(seed, 6, 7, 2) for seed in range(3)]
    near = [Product(p.left, p.right * (1 + 1e-9 * k)) for k, p in enumerate(far)]
    expected = [[np.linalg.norm(p.whole - q.whole) for q in near] for p in far]
    np.testing.assert_allclose(distances(far, near), expected, rtol=1e-5, atol=1e-14)
    among = distances(far, far)
    np.testing.assert_array_equal(among, among.T)
    assert not among.diagonal().any()
    assert distances(far, []).shape == (3, 0)
