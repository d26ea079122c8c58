"""Scales of tokens under Theorem 6.1: as long as allowed, exact in float32, moved by pilots."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.learners.single_head.approximate import passes as constants
from unsoftmax.learners.single_head.approximate.passes import LogitIntervals, TokenScales


def scales(radius):
    return TokenScales(radius)


def pilots(logit, p_error=1e-9, open_ends=None):
    logit = np.asarray(logit, dtype=float)
    high = np.where(np.zeros(len(logit), bool) if open_ends is None else open_ends, np.inf, logit)
    return LogitIntervals(
        logit, logit, high, np.full(len(logit), p_error), np.zeros(len(logit), bool)
    )


@pytest.mark.parametrize("radius", [0.3, 1.0, 7.0, 1e6])
def test_under_a_radius_the_longest_token_is_the_radius(radius):
    for k in (scales(radius).most, scales(radius).most - 3.5, -80.0):
        alpha, beta = scales(radius).split(k)
        assert alpha + beta <= radius * (1 + 1e-15)
        assert alpha + beta >= radius * (1 - constants.SHORTEST)
        assert 0 < alpha * beta <= 2 ** (k + 0.6)
        assert alpha * beta >= 2 ** (k - 0.6 - (k < scales(radius).most - 1))
    alpha, beta = scales(radius).split(scales(radius).most)
    assert alpha * beta == pytest.approx(2 ** scales(radius).most)


@pytest.mark.parametrize("k", [-60.0, 0.0, 3.0, 40.0])
def test_without_a_radius_offsets_are_stretched_and_queries_shrunk(k):
    alpha, beta = scales(None).split(k)
    assert alpha * beta == 2**k
    assert alpha >= 2.0**constants.STRETCH
    assert np.log2(alpha) % 1 == np.log2(beta) % 1 == 0
    # for scales that are typical float32 does not see the query token beside the offset
    if k <= 3:
        assert np.float32(alpha) + np.float32(beta) == np.float32(alpha)


def test_pilots_in_range_stay():
    for logit in ([0.9, -0.9], [1.2, 1.2], [0.5, -0.5]):
        assert scales(None).better(pilots(logit), 3.0, 0) == 3.0


def test_pilots_too_small_or_too_large_are_moved_to_the_target():
    for size, octaves in ((2.0**-10, 9), (0.1, 3), (30.0, -6)):
        k = scales(None).better(pilots([size, -size]), 3.0, 0)
        assert k == 3 + octaves
        moved = size * 2.0 ** (k - 3)
        assert constants.WANTED / 2 < moved <= constants.WANTED
    # never beyond what the radius allows
    short = scales(1.0)
    assert short.better(pilots([1e-6, 1e-6]), short.most - 2, 0) == short.most


def test_pilots_hidden_by_the_tolerance_ask_for_what_it_resolves():
    k = scales(None).better(pilots([1e-5, -1e-5], p_error=0.01), 0.0, 0)
    assert k == np.floor(np.log2(constants.WANTED / (1e-5 + 0.04)))


def test_saturated_pilots_are_lowered_by_the_table():
    ends = np.array([True, True, False])
    for radius, steps in ((1.0, constants.LOWER), (None, constants.LOWER_STRETCHED)):
        for attempt in range(4):
            k = scales(radius).better(pilots([30.0, 30.0, 1.0], open_ends=ends), 5.0, attempt)
            assert k == 5 - steps[min(attempt, 2)]


@pytest.mark.parametrize("d", [1, 2, 16])
def test_directions_are_on_the_grid_and_no_longer_than_1(d):
    rng = np.random.default_rng(0)
    v = rng.standard_normal(d)
    for rows in (scales(1.0).basis(d, rng), scales(1.0).balanced(v, rng)):
        assert np.array_equal(rows / constants.GRID, np.round(rows / constants.GRID)) or d == 1
        assert np.linalg.norm(rows, axis=1).max() < 1
        assert np.linalg.cond(rows) < 10
    signal = np.abs(scales(1.0).balanced(v, rng) @ v) / np.linalg.norm(v)
    assert signal.min() > 0.2 / np.sqrt(d)


def test_a_norm_bound_keeps_logits_in_range():
    for norm_bound in (1e-3, 2.0, 1e5):
        k = scales(None).within(norm_bound)
        assert constants.WITHIN_BOUND / 2 < 2**k * norm_bound <= constants.WITHIN_BOUND
