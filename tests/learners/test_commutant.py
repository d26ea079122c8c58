"""Blocks that symmetric matrices have in common: drawn here, and found from the matrices alone."""

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


# -- one after the other


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
