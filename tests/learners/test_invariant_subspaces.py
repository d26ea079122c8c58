"""Subspaces that are nearly right, aligned with matrices that leave the right ones invariant."""

import numpy as np

from unsoftmax.learners.orthogonal_heads.subspace_search import aligned


def drawn(sizes, count=4, seed=0, noise=0.0, scales=None):
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
    A, _, near = drawn((1, 1), count=2, noise=1e-9)
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
