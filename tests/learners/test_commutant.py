"""Blocks that symmetric matrices have in common, where they are hard to tell apart.

That ordinary ones are found, exact or noisy, tests of `OrthogonalHeads` say (`test_c_2`).
"""

import numpy as np
import pytest

from unsoftmax.learners.orthogonal_heads.subspace_search import aligned, common_blocks

DRAWS = 32


def symmetric(x):
    return x + np.swapaxes(x, -1, -2)


def drawn(sizes, scales=(1.0, 1.0)):
    """Symmetric matrices with random blocks on random orthogonal subspaces, and their bases."""
    rng, d = np.random.default_rng([*sizes, 0]), sum(sizes)
    bases = np.split(np.linalg.qr(rng.standard_normal((d, d)))[0], np.cumsum(sizes)[:-1], axis=1)
    A = np.zeros((4, d, d))
    for E, scale in zip(bases, scales, strict=True):
        A += scale * E @ symmetric(rng.standard_normal((4, E.shape[1], E.shape[1]))) @ E.T
    return A, bases


def found(A, limit=1e-9):
    blocks = common_blocks(A, limit)
    return blocks, blocks.subspaces(np.random.default_rng(0), DRAWS)


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


# -- what is nearly one block


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


# -- subspaces that are nearly right, aligned with matrices that leave the right ones invariant


def nearly_drawn(sizes, count=4, seed=0, noise=0.0, scales=None):
    """Matrices of random blocks, the right bases, and bases turned by about 1e-4."""
    rng = np.random.default_rng([*sizes, seed])
    d = sum(sizes)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    right = np.split(Q, np.cumsum(sizes)[:-1], axis=1)
    A = np.zeros((count, d, d))
    for E, scale in zip(right, np.ones(len(sizes)) if scales is None else scales, strict=True):
        x = scale * rng.standard_normal((count, E.shape[1], E.shape[1]))
        A += E @ (x + x.transpose(0, 2, 1)) @ E.T
    N = noise * rng.standard_normal((count, d, d))
    turn = 1e-4 * rng.standard_normal((d, d))
    near = np.linalg.qr(Q + Q @ (turn - turn.T))[0]
    return A + N + N.transpose(0, 2, 1), right, np.split(near, np.cumsum(sizes)[:-1], axis=1)


def off(bases, right):
    """By how much each subspace leans to each other one."""
    lean = np.array([[np.linalg.norm(E.T @ F) for F in right] for E in bases])
    np.fill_diagonal(lean, 0.0)
    return lean


def often(bases, A, noise, times=3):
    for _ in range(times):
        found = aligned(bases, A, noise)
        bases = found.bases
    return found


def test_what_the_caller_says_bounds_what_few_equations_estimate():
    A, _, near = nearly_drawn((1, 1), count=2, noise=1e-9)
    stated, unstated = (often(near, A, noise).entry_error for noise in (2e-9, 1.0))
    assert stated <= 6 * 2e-9 < unstated
    # the residual is there whatever the caller says
    assert often(near, A, 0.0).entry_error > 0


def test_nearly_equal_blocks_are_bounded_by_what_tells_them_apart():
    """Two lines whose eigenvalues are 1e-6 apart: the bound is noise over that."""
    A = np.array([np.diag([1.0, 1.0 + gap]) for gap in (1e-6, 2e-6, -1e-6)])
    rng = np.random.default_rng(0)
    N = 1e-12 * rng.standard_normal(A.shape)
    found = often(np.split(np.eye(2), 2, axis=1), A + N + N.transpose(0, 2, 1), 1e-11)
    assert 1e-7 < found.errors[0, 1] < 1e-3
    assert off(found.bases, np.split(np.eye(2), 2, axis=1)).max() <= found.errors[0, 1]


def test_blocks_that_nothing_tells_apart_have_no_bound():
    """The same multiple of the identity on both: any rotation is as good, and none is made."""
    A = np.array([x * np.eye(4) for x in (1.0, -2.0, 0.5)])
    A[:, 3, 3] = [5.0, 6.0, 7.0]
    bases = np.split(np.eye(4), [1, 3], axis=1)
    found = aligned(bases, A, 1e-12)
    assert found.errors[0, 1] == found.errors[1, 0] == 1.0
    assert found.errors[0, 2] < 1e-6
    np.testing.assert_allclose(np.hstack(found.bases), np.eye(4), atol=1e-15)
