"""Jumps of an even piecewise sinusoid on half a circle, on functions that are known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.arrangement.circles import angles, counted, driven, jumping, noisy
from unsoftmax.arrangement.jumps import (
    CUTS,
    JumpSearch,
    SoftTransition,
    bisect,
    find_jumps,
    isolate,
)
from unsoftmax.arrangement.kinks import TooManyBreakpoints

EXACT = 1e-14


def search(error=EXACT, most=16, baseline=1e-5):
    return JumpSearch(angles, error, most, baseline)


def found(function, start=1, longer=1.0, narrow=None, **given):
    """Isolate all jumps; bisect all intervals further, until they are ``narrow``."""

    def steps():
        own = search(**given)
        jumps = yield from find_jumps(own, start, longer)
        while narrow and np.any(jumps.width > narrow):
            jumps = yield from bisect(jumps, jumps.width > narrow, own)
        return (yield from isolate(jumps, own))

    return driven(steps(), function)


def assert_isolated(jumps, theta):
    """Every jump is in an interval of its own, much narrower than its distance to the next."""
    theta = np.sort(theta)
    assert len(jumps) == len(theta)
    assert np.all((jumps.low <= theta) & (theta <= jumps.high))
    assert np.all((jumps.width <= jumps.gap() / 5) | (jumps.width <= 1e-12))


def spread(rng, n, apart):
    """Angles in (0, π), none closer to another or to an end than ``apart``."""
    while True:
        theta = np.sort(rng.uniform(0, np.pi, n))
        if np.all(np.diff(np.concatenate([[0.0], theta, [np.pi]])) > apart):
            return theta


@pytest.mark.parametrize("n", [1, 2, 5, 16])
def test_every_jump_is_isolated_and_intervals_are_far_from_each_other(n, trials):
    """But where a jump falls between the two values that a slope is read from: then too many."""
    straddled, count = 0, trials(4, 200)
    for seed in range(count):
        rng = np.random.default_rng([n, seed])
        theta = spread(rng, n, 1e-3)
        size, slope = rng.uniform(0.2, 1, n) * rng.choice([-1, 1], n), rng.standard_normal(n)
        function = jumping(theta, size, slope)
        try:
            jumps, asked = found(function)
        except TooManyBreakpoints:
            straddled += 1
            continue
        # close ones may share an interval, whose pieces differ by their sum
        inside = (jumps.low[:, None] <= theta) & (theta <= jumps.high[:, None])
        assert np.all(np.sum(inside, axis=0) == 1)
        assert np.all(jumps.width <= jumps.gap() / 5)
        assert len(asked) <= 2 + n * (3 + np.log2(np.pi / 2e-4) + 2)
        x = size * np.cos(theta) - slope * np.sin(theta)
        y = size * np.sin(theta) + slope * np.cos(theta)
        vectors = inside @ np.stack([x, y], axis=1)
        assert np.allclose(jumps.plane_vectors(), vectors, atol=1e-6)
        for side, at in ((jumps.before, jumps.low), (jumps.after, jumps.high)):
            assert np.allclose(side(at), function(at), atol=1e-9)
        assert_isolated(found(function, narrow=2e-4)[0], theta)
    assert straddled <= (0.02 * count if n == 16 else 0)


@given(
    jumps=st.lists(
        st.tuples(st.floats(1e-3, np.pi - 1e-3), st.floats(0.05, 1.0), st.floats(-1.0, 1.0)),
        max_size=8,
        unique_by=lambda jump: round(jump[0], 2),
    )
)
def test_any_jumps_that_differ_are_found(jumps):
    theta, size, slope = np.array(sorted(jumps)).reshape(-1, 3).T
    if np.any(np.diff(theta) < 1e-3):
        return
    # far ends of intervals on an irregular grid: no jump vanishes at all of them
    assert_isolated(found(jumping(theta, size, slope), start=64, narrow=1e-4)[0], theta)


@pytest.mark.parametrize("apart", [1e-4, 1e-6, 1e-8])
def test_close_pairs_pass_for_one_until_they_are_looked_at(apart):
    theta = np.array([0.7, 1.3, 1.3 + apart, 2.0])
    function = jumping(theta, [1.0, 0.5, -0.3, 0.8], [0.1, -0.7, 0.4, 0.3])
    assert len(found(function, baseline=apart / 100)[0]) == 3
    jumps, asked = found(function, narrow=apart / 5, baseline=apart / 100)
    assert_isolated(jumps, theta)
    assert len(asked) <= 40 + 8 * np.log2(1 / apart)


def test_a_jump_smaller_than_errors_is_not_made_up():
    theta = np.array([0.4, 1.7, 2.8])
    jumps, _ = found(jumping(theta, [1.0, 1e-15, -1.0]), start=16)
    assert_isolated(jumps, theta[[0, 2]])


@pytest.mark.parametrize("deviation", [1e-10, 1e-7, 1e-4])
def test_noise_hides_no_jump_and_seldom_makes_one(deviation, trials):
    right, count = 0, trials(20, 400)
    for seed in range(count):
        rng = np.random.default_rng(seed)
        theta = spread(rng, 4, 0.05)
        size, slope = rng.uniform(0.5, 1, (2, 4))
        function = noisy(jumping(theta, size, slope), deviation, seed)
        jumps, _ = found(function, error=deviation, start=16, narrow=0.01)
        inside = (jumps.low[:, None] <= theta) & (theta <= jumps.high[:, None])
        assert np.all(np.any(inside, axis=0)), seed
        right += len(jumps) == 4
    # a new piece is read across a jump in 3 % of all cuts, of which there are four a jump
    assert right >= 0.8 * count


def test_too_many_are_refused_before_much_is_asked():
    theta = np.linspace(0.01, 3.1, 40)
    function, asked = counted(jumping(theta, np.ones(40)))
    with pytest.raises(TooManyBreakpoints, match="more than 4"):
        found(function, most=4)
    assert sum(asked) <= 100
    jumps, _ = found(function, most=40)
    assert_isolated(jumps, theta)


# -- transitions


def softened(function, theta, width):
    """A function that is on no piece within ``width`` of its jumps."""

    def soft(t):
        near = np.abs(np.asarray(t)[:, None] - theta) < width
        return np.where(np.any(near, axis=1), np.nan, function(t))

    return soft


@pytest.mark.parametrize("width", [1e-6, 1e-3, 0.02])
def test_intervals_stay_as_wide_as_transitions(width):
    theta = np.array([0.5, 1.5, 2.6])
    function = softened(jumping(theta, [1.0, -0.4, 0.8]), theta, width)
    jumps, _ = found(function)
    assert np.all((jumps.low <= theta) & (theta <= jumps.high))
    assert np.all(jumps.softened <= len(CUTS))
    assert np.all(jumps.width <= max(0.3, 40 * width))


def test_a_transition_that_has_to_be_cut_and_cannot_is_said():
    theta = np.array([1.0])
    function = softened(jumping(theta, [1.0]), theta, 1e-3)
    own = search()
    jumps, _ = driven(find_jumps(own, 4), function)
    for _ in range(1 + len(CUTS)):
        inside = jumps.changed(low=np.array([1.0 - 9e-4]), high=np.array([1.0 + 9e-4]))
        if inside.softened[0] == len(CUTS):
            break
        jumps, _ = driven(bisect(inside, np.array([True]), own), function)
    with pytest.raises(SoftTransition):
        driven(bisect(jumps, np.array([True]), own), function)


# -- pieces


# -- intervals
