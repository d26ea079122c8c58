"""Keys that read all heads' weights and scores well."""

import numpy as np
import pytest

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


def test_keys_are_aimed_at_the_columns_that_are_asked_for():
    columns = [np.linalg.qr(C.T)[0] for C in frames(3, 5, 24, 7)]
    aims = KeyAims(frames(3, 6, 24), columns)
    [block] = chosen_keys(aims, 1, 6, np.random.default_rng(2))
    assert max(np.linalg.cond(C.T @ block.T) for C in columns) < 10
    assert max(conditions([block], aims)) < 20
