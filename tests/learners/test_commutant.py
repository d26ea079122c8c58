"""Blocks that symmetric matrices have in common: drawn here, and found from the matrices alone."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.learners.orthogonal_heads.subspace_search import Commutant, common_blocks

DRAWS = 32


def symmetric(x):
    return x + np.swapaxes(x, -1, -2)


def drawn(sizes, count=4, seed=0, dim=None, scales=None):
    """Symmetric matrices with random blocks on random orthogonal subspaces, and their bases."""
    rng = np.random.default_rng([*sizes, seed])
    d = sum(sizes) if dim is None else dim
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0][:, : sum(sizes)]
    bases = np.split(Q, np.cumsum(sizes)[:-1], axis=1)
    scales = np.ones(len(sizes)) if scales is None else scales
    A = np.zeros((count, d, d))
    for E, scale in zip(bases, scales, strict=True):
        A += scale * E @ symmetric(rng.standard_normal((count, E.shape[1], E.shape[1]))) @ E.T
    return A, bases


def found(A, limit=1e-9, seed=0):
    blocks = common_blocks(A, limit)
    return blocks, blocks.subspaces(np.random.default_rng(seed), DRAWS)


def apart(E, F):
    """The sine of the largest angle between two subspaces; 1 where they differ in dimension."""
    if E.shape[1] != F.shape[1]:
        return 1.0
    return float(np.linalg.norm(E - F @ (F.T @ E), 2))


def farthest(subspaces, bases):
    """How far the found subspaces are from the true ones, each taken once."""
    assert len(subspaces) == len(bases)
    angles = np.array([[apart(E, F) for F in bases] for E in subspaces])
    assert sorted(np.argmin(angles, axis=1)) == list(range(len(bases)))
    return float(angles.min(axis=1).max())


# -- known blocks


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3, 1, 4), (1, 5), (3, 3, 3), (6, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_known_blocks_are_found(sizes, seed):
    A, bases = drawn(sizes, seed=seed)
    blocks, subspaces = found(A, seed=seed)
    assert blocks.shape == (sum(sizes), len(sizes))
    assert farthest(subspaces, bases) < 1e-12
    assert blocks.zero < 1e-13
    assert blocks.smallest > 1e-3
    for E in subspaces:
        np.testing.assert_allclose(E.T @ E, np.eye(E.shape[1]), atol=1e-13)


@pytest.mark.parametrize("dim", [5, 6, 9])
def test_what_no_matrix_reaches_is_left_out(dim):
    A, bases = drawn((2, 3), dim=dim)
    blocks, subspaces = found(A)
    assert blocks.within.shape == (dim, 5)
    assert farthest(subspaces, bases) < 1e-12


def test_what_is_found_commutes_and_spans_all_that_does():
    A, bases = drawn((2, 4, 1))
    blocks = common_blocks(A, 1e-9)
    E = blocks.within
    for X in blocks.null:
        np.testing.assert_allclose(X, X.T, atol=1e-15)
        full = E @ X @ E.T
        np.testing.assert_allclose(full @ A, A @ full, atol=1e-12)
    null = (E @ blocks.null @ E.T).reshape(3, -1)
    np.testing.assert_allclose(null @ null.T, np.eye(3), atol=1e-12)
    for F in bases:
        P = (F @ F.T).ravel()
        np.testing.assert_allclose(null.T @ (null @ P), P, atol=1e-12)


def test_one_block_is_one_subspace():
    A, _ = drawn((5,))
    blocks, [E] = found(A)
    assert blocks.shape == (5, 1)
    np.testing.assert_allclose(np.abs(blocks.null[0]), np.eye(5) / np.sqrt(5), atol=1e-13)
    np.testing.assert_allclose(E @ E.T, np.eye(5), atol=1e-13)
    assert blocks.smallest > 1e-3


def test_all_subspaces_may_be_lines():
    A, bases = drawn((1,) * 6, count=3)
    blocks, subspaces = found(A)
    assert blocks.shape == (6, 6)
    assert farthest(subspaces, bases) < 1e-12


def test_lines_that_one_matrix_does_not_tell_apart_another_does():
    A = np.array([np.diag([1.0, 1.0, 2.0]), np.diag([3.0, 4.0, 4.0])])
    assert common_blocks(A[:1], 1e-9).shape == (3, 4)  # any X on the plane, and the third line
    blocks, subspaces = found(A)
    assert blocks.shape == (3, 3)
    assert farthest(subspaces, np.split(np.eye(3), 3, axis=1)) < 1e-14


def test_a_single_line_and_nothing():
    blocks, [E] = found(np.array([np.diag([0.0, 2.0, 0.0])]))
    assert blocks.shape == (1, 1)
    np.testing.assert_allclose(np.abs(E[:, 0]), [0, 1, 0], atol=1e-15)
    assert blocks.smallest == np.inf
    assert blocks.gap == np.inf
    nothing, subspaces = found(np.zeros((2, 3, 3)))
    assert nothing.shape == (0, 0)
    assert subspaces == []


# -- equal spectra


def test_blocks_of_equal_spectra_are_told_apart():
    """Every matrix has each eigenvalue twice: only two together tell the blocks apart."""
    rng = np.random.default_rng(1)
    turn = [np.linalg.qr(rng.standard_normal((3, 3)))[0] for _ in range(4)]
    B = symmetric(rng.standard_normal((4, 3, 3)))
    A = np.zeros((4, 6, 6))
    A[:, :3, :3] = B
    A[:, 3:, 3:] = [R @ x @ R.T for R, x in zip(turn, B, strict=True)]
    np.testing.assert_allclose(*np.linalg.eigvalsh(A).reshape(4, 3, 2).transpose(2, 0, 1))
    blocks, subspaces = found(A)
    assert blocks.shape == (6, 2)
    assert farthest(subspaces, np.split(np.eye(6), 2, axis=1)) < 1e-12


def test_equivalent_blocks_are_more_than_two():
    """The same block twice: any orthogonal mix of the two subspaces is as good."""
    B = symmetric(np.random.default_rng(0).standard_normal((4, 3, 3)))
    A = np.zeros((4, 6, 6))
    A[:, :3, :3] = A[:, 3:, 3:] = B
    assert common_blocks(A, 1e-9).shape == (6, 3)


# -- noise, and what is nearly one block


@pytest.mark.parametrize("noise", [1e-12, 1e-9, 1e-6])
@pytest.mark.parametrize("seed", range(3))
def test_noise_moves_subspaces_by_as_much(noise, seed):
    A, bases = drawn((2, 3, 4), seed=seed)
    size = max(np.linalg.norm(x, 2) for x in A)
    noisy = A + noise * size * symmetric(np.random.default_rng(seed).standard_normal(A.shape))
    blocks, subspaces = found(noisy, np.sqrt(noise))
    assert blocks.shape == (9, 3)
    assert farthest(subspaces, bases) < 300 * noise
    assert noise / 30 < blocks.zero < 100 * noise
    assert blocks.gap > 1e-4 / noise


def test_the_gap_says_what_the_limit_decides():
    """Two blocks that a coupling of 1e-6 joins: one subspace or two, as the limit says."""
    A, bases = drawn((2, 3))
    E, F = bases
    bridge = E @ np.random.default_rng(0).standard_normal((4, 2, 3)) @ F.T
    coupled = A + 1e-6 * symmetric(bridge)
    loose, two = found(coupled, 1e-4)
    assert loose.shape == (5, 2)
    assert farthest(two, bases) < 1e-4
    assert 1e-8 < loose.zero < 1e-5
    tight, _ = found(coupled, 1e-10)
    assert tight.shape == (5, 1)
    assert tight.smallest == pytest.approx(loose.zero, rel=1e-6)
    assert tight.zero < 1e-13


def test_the_singular_values_of_a_small_case():
    """X ↦ [X, diag(1, 2)] is 1 on (e₁e₂ᵀ + e₂e₁ᵀ)/√2 up to √½, 0 on diagonal ones."""
    blocks = common_blocks(np.array([np.diag([1.0, 2.0]), np.diag([1.0, 1.0])]), 1e-9)
    assert (blocks.zero, blocks.smallest) == (0.0, 1.0)
    three = common_blocks(np.array([np.diag([1.0, 2.0, 5.0])]), 1e-9)
    assert three.shape == (3, 3)
    assert three.smallest == pytest.approx(1 / 4)  # gaps of eigenvalues: 1 beside 4


# -- ill-conditioned


@pytest.mark.parametrize("small", [1e-3, 1e-6])
def test_a_small_block_beside_a_large_one(small):
    """Singular values of X ↦ [X, A] within the small block are ``small`` of the largest."""
    A, bases = drawn((3, 3), scales=(1.0, small))
    blocks, subspaces = found(A, 1e-9)
    assert blocks.shape == (6, 2)
    assert farthest(subspaces, bases) < 1e-13 / small
    assert blocks.smallest < small
    # below the limit the small block is no part of the joint range
    assert common_blocks(A, 10 * small).shape == (3, 1)


def test_lines_of_nearly_equal_eigenvalues():
    A = np.array([np.diag([1.0, 1.0 + 1e-6, 2.0]), np.diag([3.0, 3.0 - 2e-6, 1.0])])
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
    blocks, subspaces = found(Q @ A @ Q.T)
    assert blocks.shape == (3, 3)
    assert farthest(subspaces, np.split(Q, 3, axis=1)) < 1e-8
    assert 1e-8 < blocks.smallest < 1e-5


def test_scaling_changes_nothing():
    A, _ = drawn((2, 3), dim=6)
    blocks, scaled = common_blocks(A, 1e-9), common_blocks(1e-120 * A, 1e-9)
    assert scaled.shape == blocks.shape
    assert scaled.smallest == pytest.approx(blocks.smallest)


# -- one after the other


def test_matrices_one_by_one_are_matrices_at_once():
    A, bases = drawn((2, 3), count=6)
    commutant = Commutant(1e-9)
    for x in A:
        commutant.add(x[None])
    one_by_one, at_once = commutant.blocks(), common_blocks(A, 1e-9)
    assert one_by_one.shape == at_once.shape
    assert one_by_one.smallest == pytest.approx(at_once.smallest)
    assert farthest(one_by_one.subspaces(np.random.default_rng(0), DRAWS), bases) < 1e-12
    assert commutant.blocks() is one_by_one
    assert commutant.settled(3)
    np.testing.assert_allclose(commutant.blocks().null, one_by_one.null)


def test_blocks_settle_where_range_and_number_stay():
    A, _ = drawn((2, 3), count=6)
    commutant, settled, shapes = Commutant(1e-9), [], []
    for x in A:
        commutant.add(x[None])
        settled.append(commutant.settled(3))
        shapes.append(commutant.blocks().shape)
    # one matrix leaves every eigenline; from two on there are the two blocks
    assert shapes == [(5, 5)] + [(5, 2)] * 5
    assert settled == [False, False, False, True, True, True]


def test_a_range_that_grows_does_not_settle():
    A = np.array([np.diag(row) for row in np.eye(4)])
    commutant = Commutant(1e-9)
    for x in A:
        commutant.add(x[None])
        assert not commutant.settled(3)
    for x in A:
        commutant.add(x[None])
    assert commutant.settled(3)
    assert commutant.blocks().shape == (4, 4)


def test_the_limit_is_the_largest_that_was_told():
    commutant = Commutant(1e-9)
    A, _ = drawn((2, 3))
    commutant.add(A[:2], 1e-5)
    commutant.add(A[2:], 1e-7)
    assert commutant.limit == 1e-5
