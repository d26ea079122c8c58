"""Fillers that open one head among several, and the logits read beside them."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.learners.multi_head.distance_readings import NearHeads, OpenedAnswers, fillers
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers, TokenLengths
from unsoftmax.measure.precision import Precision


def test_a_filler_shuts_all_heads_but_the_first():
    rng = np.random.default_rng(0)
    u, v = rng.standard_normal((7, 4, 9)) * 10.0 ** np.arange(-2, 2)[:, None], np.ones(9)
    lengths = rng.uniform(1, 3, 7)
    z = fillers(u, v, lengths)
    assert z is not None
    scores = np.einsum("mgd,md->mg", u, z)
    assert np.allclose(scores[:, 0], -12)
    assert np.allclose(z @ v, 0, atol=1e-9)
    others = np.linalg.norm(u[:, 1:], axis=2) * lengths[:, None]
    assert np.allclose(scores[:, 1:], 40 + 1.5 * others)


def test_as_many_heads_as_dimensions_and_no_more():
    u = np.random.default_rng(1).standard_normal((3, 4, 4))
    assert fillers(u, np.ones(4), 1.0) is not None
    u[1, 3] = u[1, 2] - u[1, 1]
    assert fillers(u, np.ones(4), 1.0) is None


@pytest.mark.parametrize("noise", [0.0, 1e-9])
@pytest.mark.parametrize("with_constant", [False, True])
def test_logits_come_back_within_their_error(noise, with_constant):
    rng = np.random.default_rng(2)
    G, d, m, n = 3, 8, 4, 5
    u, v = rng.standard_normal((m, G, d)), rng.standard_normal((G, d))
    constant = rng.standard_normal(d) * with_constant
    u_two, a = rng.standard_normal((m, G, d)), rng.standard_normal((n, d)) / np.sqrt(d)
    a += v[0] / np.linalg.norm(v[0])
    alpha = rng.uniform(0.5, 2.0, m)
    z = fillers(u, v[0], alpha * np.linalg.norm(a, axis=1).max())
    assert z is not None
    parts = np.broadcast_arrays(alpha[:, None, None] * a, z[:, None], np.zeros((m, 1, d)))
    tokens = np.stack(parts, axis=2)
    scores = np.zeros((m, n, G, 3))
    scores[..., 0] = np.einsum("mgd,mnd->mng", u_two, tokens[:, :, 0])
    scores[..., 1] = np.einsum("mgd,md->mg", u, z)[:, None]
    weights = np.exp(scores - scores.max(axis=3, keepdims=True))
    weights /= weights.sum(axis=3, keepdims=True)
    pooled = np.einsum("mngi,mnid->mngd", weights, tokens)
    y = np.einsum("mngd,gd->mn", pooled, v) + tokens.sum(axis=2) @ constant / 3
    size = np.linalg.norm(tokens, axis=3).sum(axis=2) * np.linalg.norm(v)
    y += noise * size * rng.standard_normal(y.shape)
    precision, scale = Precision.relative_to_terms(max(noise, 4e-16)), float(np.linalg.norm(v))
    reduced = ReducedAnswers(v.sum(axis=0) + constant, 0.0, precision, scale, TokenLengths())
    flat, none = np.zeros((G, d + 1)), np.zeros(d)
    columns = np.zeros((G, d + 1, d))
    near = NearHeads(reduced, v, flat, columns, np.eye(d), none, 1.0, 1.0, 0.0, constant)
    read = OpenedAnswers.of(tokens, y, near, 0)
    off = np.linalg.norm((read.logits - scores[:, :, 0, 0]) / alpha[:, None])
    bound = np.linalg.norm(read.off / alpha[:, None])
    assert off <= 4 * bound
    assert bound <= 1e4 * max(noise, 1e-15)
