"""Scores of query tokens that were asked with fewer keys than a head has directions."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.learners.attention_layer.score_reading import SpreadRows

DIM = 12


@pytest.mark.parametrize(("rank", "keys"), [(4, 3), (5, 3), (3, 3), (2, 3)])
def test_scores_follow_from_fewer_keys_than_directions(rank, keys):
    rng = np.random.default_rng(rank)
    C = np.linalg.qr(rng.standard_normal((DIM, rank)))[0]
    tokens, R = rng.standard_normal((DIM + 41, DIM)), rng.standard_normal((rank, DIM + 1))
    known, rest = rank + 2, DIM - 1 - rank
    blocks = rng.standard_normal((5, keys, DIM))
    block = np.arange(len(tokens) - known) % 5
    x = R @ np.hstack([tokens, np.ones((len(tokens), 1))]).T
    scores = np.einsum("jnd,dr,rj->jn", blocks[block], C, x[:, known:])
    parts = np.split(tokens, [known, known + rest])
    spread = SpreadRows(parts[0], parts[1], parts[2], blocks, block)
    assert 1 <= spread.condition(C) < 1e4
    found = spread.solved(C, x[:, :known], scores)
    assert np.allclose(found, x[:, known : known + rest], rtol=0, atol=1e-9)
