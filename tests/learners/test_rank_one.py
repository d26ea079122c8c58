"""Lines that belong to one head: of rank one, it shows as two, and nothing else does."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.learners.orthogonal_heads.subspace_search import joined_lines, without_small


def of_rank_one(heads, count=4, seed=0, noise=0.0):
    """A(b) of heads (k, v, q·b) in orthogonal planes, and all eigenlines."""
    rng = np.random.default_rng([heads, seed])
    Q = np.linalg.qr(rng.standard_normal((2 * heads, 2 * heads)))[0]
    A, lines, planes = np.zeros((count, 2 * heads, 2 * heads)), [], []
    for E in np.split(Q, heads, axis=1):
        k, v = (E @ rng.standard_normal(2) for _ in range(2))
        form = np.outer(k, v) + np.outer(v, k)
        A += rng.standard_normal(count)[:, None, None] * form
        vectors = np.linalg.eigh(E.T @ form @ E)[1]
        lines += [E @ vectors[:, :1], E @ vectors[:, 1:]]
        planes.append(E)
    N = noise * rng.standard_normal(A.shape)
    return A + N + N.transpose(0, 2, 1), lines, planes


def spans(E, F):
    return E.shape == F.shape and np.linalg.norm(E - F @ (F.T @ E)) < 1e-12


@pytest.mark.parametrize("noise", [0.0, 1e-8])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_two_lines_of_each_head_are_joined(heads, noise):
    A, lines, planes = of_rank_one(heads, noise=noise)
    order = np.random.default_rng(0).permutation(len(lines))
    joined = joined_lines([lines[k] for k in order], A, 1e-5)
    assert len(joined) == heads
    assert all(any(spans(E, F) for F in planes) for E in joined)


def test_lines_of_heads_in_lines_stay():
    """A head of dimension one has one eigenvalue, of any sign for any b."""
    rng = np.random.default_rng(0)
    A = np.array([np.diag(row) for row in rng.standard_normal((4, 3))])
    lines = np.split(np.eye(3), 3, axis=1)
    assert joined_lines(lines, A, 1e-5) == lines


def test_other_subspaces_stay_where_they_are():
    A, lines, _ = of_rank_one(1)
    big = np.zeros((4, 5, 5))
    big[:, :2, :2] = A
    x = np.random.default_rng(0).standard_normal((4, 3, 3))
    big[:, 2:, 2:] = x + x.transpose(0, 2, 1)
    block = np.eye(5)[:, 2:]
    wide = [np.vstack([line, np.zeros((3, 1))]) for line in lines]
    first, plane = joined_lines([wide[0], block, wide[1]], big, 1e-5)
    assert first is block
    assert plane.shape == (5, 2)
    assert joined_lines([block], big, 1e-5) == [block]


def test_profiles_known_well_must_agree_well():
    """Opposite but for 1e-3: not of one head where A is known to 1e-9, possibly of one at 1e-3."""
    q = np.array([1.0, -0.5, 2.0])
    A = np.array([np.diag([x, -x + 1e-3 * np.sign(x)]) for x in q])
    lines = np.split(np.eye(2), 2, axis=1)
    assert len(joined_lines(lines, A, 1e-9)) == 2
    assert len(joined_lines(lines, A, 1e-3)) == 1


def test_what_is_small_is_left_out():
    A = np.array([np.diag([1.0, 1e-3, 1e-9]), np.diag([-1.0, 1e-6, 1e-8])])
    lines = np.split(np.eye(3), 3, axis=1)
    assert without_small(lines, A, 1e-5) == lines[:2]
    assert without_small(lines, A, 1e-2) == lines[:1]
