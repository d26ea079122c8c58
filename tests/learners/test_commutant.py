"""Blocks that symmetric matrices have in common, where they are hard to tell apart.

That ordinary ones are found, exact or noisy, tests of `OrthogonalHeads` say (`test_c_2`).
"""

import numpy as np
import pytest

from unsoftmax.learners.orthogonal_heads.subspace_search import common_blocks

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
