"""Keys that read all heads' weights and scores well."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from unsoftmax.solve import key_blocks
from unsoftmax.solve.key_blocks import KeyAims, chosen_keys


def frames(heads, rank, dim, seed=0):
    return list(np.random.default_rng(seed).standard_normal((heads, rank, dim)))


def conditions(keys, aims):
    return [np.linalg.cond(V @ block.T) for V in aims.frames for block in keys]


def test_every_block_is_far_from_singular_and_all_span_everything():
    aims = KeyAims(frames(4, 8, 32), [np.eye(32)])
    rng = np.random.default_rng(1)
    keys = chosen_keys(aims, 4, 8, rng)
    random = rng.standard_normal(keys.shape)
    assert max(conditions(keys, aims)) < 8 < max(conditions(random, aims)) / 3
    assert np.linalg.cond(keys.reshape(-1, 32)) < 4
    assert np.mean(np.sum(keys**2, axis=2)) == pytest.approx(1)


@pytest.mark.parametrize("groups", [1, 2])
def test_very_many_keys_begin_near_the_best(groups, monkeypatch):
    """Few steps do; heads of one group of values see one space, and others are left unseen."""
    own = frames(4 // groups, 8, 32)
    rng = np.random.default_rng(3)
    aims = KeyAims([rng.standard_normal((8, 8)) @ own[h // groups] for h in range(4)], [np.eye(32)])
    monkeypatch.setattr(key_blocks, "MANY", 1)
    monkeypatch.setattr(key_blocks, "FEW", 2)
    keys = chosen_keys(aims, 4, 8, np.random.default_rng(1))
    monkeypatch.undo()
    monkeypatch.setattr(key_blocks, "STEPS", 2)
    whole = np.linalg.cond(keys.reshape(-1, 32))
    assert whole < 30
    random = chosen_keys(aims, 4, 8, np.random.default_rng(1))
    assert np.median(conditions(keys, aims)) < np.median(conditions(random, aims))
    assert max(conditions(keys, aims)) < max(conditions(random, aims)) / 3


def test_keys_are_aimed_at_the_columns_that_are_asked_for():
    columns = [np.linalg.qr(C.T)[0] for C in frames(3, 5, 24, 7)]
    aims = KeyAims(frames(3, 6, 24), columns)
    [block] = chosen_keys(aims, 1, 6, np.random.default_rng(2))
    assert max(np.linalg.cond(C.T @ block.T) for C in columns) < 10
    assert max(conditions([block], aims)) < 20


def test_the_gradient_is_that_of_the_cost(monkeypatch):
    monkeypatch.setattr(key_blocks, "WORST", 0.0)
    V, C = frames(2, 4, 6), [np.eye(6), np.eye(6)[:, :3]]
    A = np.random.default_rng(3).standard_normal((6, 2, 4))

    def cost(flat):
        return key_blocks._cost(V, C, flat.reshape(A.shape))[0]

    def slope(flat):
        return key_blocks._cost(V, C, flat.reshape(A.shape))[1].ravel()

    size = np.linalg.norm(slope(A.ravel()))
    assert optimize.check_grad(cost, slope, A.ravel()) < 1e-5 * size
