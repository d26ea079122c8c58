"""Norms of tokens: nothing beyond the radius, gates as steep as it allows."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.learners.multi_head import reduced_answers
from unsoftmax.learners.multi_head.reduced_answers import TokenLengths

RADII = (1e-5, 0.1, 3.0, 30.0, 1e3, 1e6, 1e9, 1e14, 1e20)


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("change", ["", "with_longest_tokens", "with_tiny_tokens"])
def test_no_token_is_longer_than_the_radius(radius, biases, change):
    rng = np.random.default_rng(3)
    lengths = TokenLengths.under(radius, biases)
    lengths = getattr(lengths, change)() if change else lengths
    b, a = rng.standard_normal((2, 50, 6))
    b *= lengths.length / np.linalg.norm(b, axis=1, keepdims=True)
    a *= lengths.longest(lengths.length) / np.linalg.norm(a, axis=1, keepdims=True)
    tokens = lengths.turned(a, b) + b
    assert np.linalg.norm(tokens, axis=1).max() <= radius
    assert lengths.length <= radius
    assert lengths.far(lengths.length) <= lengths.longest(lengths.length)
    assert max(lengths.single(1e300), np.sqrt(2) * lengths.short) <= radius


@pytest.mark.parametrize("radius", RADII[2:])
def test_moved_query_tokens_leave_room(radius):
    lengths = TokenLengths.under(radius, False)
    step = lengths.step(lengths.length)
    longest = lengths.longest(lengths.length, step)
    assert (lengths.length + step) ** 2 + longest**2 <= radius**2 * (1 + 1e-9)
    assert 0 < step <= lengths.length / 2


def test_without_a_cap_offsets_are_far_and_nothing_is_turned():
    lengths, a = TokenLengths.under(None, True), np.ones((3, 2))
    assert not lengths.capped
    assert not lengths.soft
    assert (lengths.length, lengths.far(1.0), lengths.near, lengths.silent) == (1.0, 1e14, 0, 0)
    assert lengths.turned(a, np.ones(2)) is a
    assert lengths.single(7.0) == 7.0
    assert lengths.short == 1.0


def test_offsets_are_turned_away_from_the_query_token():
    lengths = TokenLengths.under(5.0, False)
    a, b = np.array([[1.0, 0.0], [-1.0, 2.0], [0.0, 1.0]]), np.array([1.0, 0.0])
    assert lengths.turned(a, b).tolist() == [[-1.0, 0.0], [-1.0, 2.0], [0.0, 1.0]]


def test_gates_are_soft_below_a_radius():
    soft = [TokenLengths.under(radius, False).soft for radius in RADII]
    assert soft == sorted(soft, reverse=True)
    assert TokenLengths.under(1e3, False).soft
    assert not TokenLengths.under(1e9, False).soft
    soft_lengths = TokenLengths.under(30.0, False)
    assert soft_lengths.silent > 0
    assert soft_lengths.baseline > reduced_answers.BASELINE
    assert soft_lengths.narrowest == soft_lengths.baseline / 100
