"""Kinks of a continuous piecewise sinusoid on half a circle, on functions that are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.arrangement.circles import add, angles, bending, counted, driven, noisy
from unsoftmax.arrangement.breakpoints import TooManyBreakpoints
from unsoftmax.arrangement.kink_lines import EndLines, KinkIntervals, KinkTuning
from unsoftmax.arrangement.kink_states import KinkQuestions, KinkState
from unsoftmax.arrangement.kinks import KinkSearch, find_kinks
from unsoftmax.arrangement.pieces import Pieces

ROUNDING = 2e-16


def search(noise=ROUNDING, most=100, seed=0, **tuning):
    return KinkSearch(angles, noise, most, np.random.default_rng(seed), tuning=KinkTuning(**tuning))


def found(function, low=0.0, high=np.pi, **given):
    """The kinks that are found, the noise that is assumed at the end, and all angles asked."""
    (kinks, noise), asked = driven(find_kinks(search(**given), low, high), function)
    assert np.all(np.diff(kinks) > 0)
    return kinks, noise, asked


def assert_all(kinks, theta, near):
    """All true kinks are found to within ``near``, and none is made up."""
    assert len(kinks) == len(theta)
    assert np.all(np.abs(kinks - np.sort(theta)) <= near)


# -- found


@pytest.mark.parametrize("n", [1, 2, 8, 40])
def test_every_kink_is_found_from_few_values(n, trials):
    for seed in range(trials(3, 100)):
        rng = np.random.default_rng([n, seed])
        theta, bend = np.sort(rng.uniform(0.01, 3.1, n)), rng.choice([-1, 1], n)
        bend = bend * rng.uniform(0.1, 1, n)
        kinks, noise, asked = found(bending(theta, bend, rng.standard_normal(2)), seed=seed)
        # lines cross to within what 50 times the error of their values leaves
        assert_all(kinks, theta, 1e-9)
        assert noise == ROUNDING
        # the most that 100 functions of each kind took: 12 more for one kink, none for 40
        assert len(asked) <= 97 + 32 + 12 * (n + 1)


@given(
    kinks=st.lists(
        st.tuples(st.floats(0.01, 3.1), st.floats(0.01, 1.0), st.booleans()),
        max_size=20,
        unique_by=lambda kink: round(kink[0], 4),
    ),
    base=st.tuples(st.floats(-10, 10), st.floats(-10, 10)),
)
def test_any_kinks_that_differ_are_found(kinks, base):
    theta = np.array([theta for theta, _, _ in kinks])
    bend = np.array([bend if up else -bend for _, bend, up in kinks])
    if np.any(np.diff(np.sort(theta)) < 1e-4):
        return
    noise = ROUNDING * (10 + len(theta))
    assert_all(found(bending(theta, bend, base), noise=noise)[0], theta, 1e-8)


@pytest.mark.parametrize("function", [lambda t: 0 * t, lambda t: np.cos(t) - 3 * np.sin(t)])
def test_no_kink_is_made_of_a_line(function):
    kinks, _, asked = found(function)
    assert len(kinks) == 0
    assert len(asked) == 97 + 32  # three values for each of 32 intervals and one more; a look each


@pytest.mark.parametrize("away", [1e-3, 1e-5, 1e-7])
def test_kinks_near_the_ends(away):
    theta = np.array([away, 1.0, np.pi - away])
    kinks, *_ = found(bending(theta, [1.0, -0.5, 0.7], (0.2, 0.1)))
    assert_all(kinks, theta, 1e-10)


@pytest.mark.parametrize("apart", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("second", [1.0, -0.9, -1.0])
def test_close_pairs_are_told_from_one(apart, second):
    theta = np.array([0.5, 1.234, 1.234 + apart, 2.5])
    bend = np.array([0.3, 1.0, second, 0.6])
    kinks, *_ = found(bending(theta, bend, (1.0, 0.0)))
    assert_all(kinks, theta, 1e-12 + 1e-13 / apart)


def test_kinks_closer_than_float64_tells_count_as_one():
    theta = np.array([1.0, 1.0 + 1e-11])
    kinks, *_ = found(bending(theta, [1.0, 0.5]))
    assert_all(kinks, theta[:1], 1e-9)


@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-9])
def test_a_kink_much_smaller_than_others(size):
    theta, bend = np.array([0.7, 1.5, 2.2]), np.array([1.0, size, -1.0])
    kinks, *_ = found(bending(theta, bend))
    assert_all(kinks, theta, [1e-12, 1e-13 / size, 1e-12])


def test_a_kink_smaller_than_errors_is_not_made_up():
    kinks, *_ = found(bending([0.7, 1.5], [1.0, 1e-15]))
    assert_all(kinks, [0.7], 1e-12)


@pytest.mark.parametrize("steep", [1e3, 1e6])
def test_kinks_of_a_steep_function_as_far_as_its_rounding_shows_them(steep):
    theta = np.array([0.7, 1.5, 2.2])
    kinks, *_ = found(bending(theta, [1.0, -1.0, 0.5], (0.0, steep)), noise=ROUNDING * steep)
    assert_all(kinks, theta, 1e-12 * steep)


# -- noise


@pytest.mark.parametrize("deviation", [1e-12, 1e-8])
def test_noise_makes_no_kinks_and_hides_none(deviation, trials):
    for seed in range(trials(3, 100)):
        rng = np.random.default_rng(seed)
        theta, bend = np.sort(rng.uniform(0.05, 3.1, 5)), rng.uniform(0.5, 1, 5)
        if np.min(np.diff(theta)) < 0.01:
            continue
        function = noisy(bending(theta, bend), deviation, seed)
        kinks, *_ = found(function, noise=deviation, seed=seed)
        assert_all(kinks, theta, 2000 * deviation)


@pytest.mark.parametrize("seed", range(3))
def test_noise_that_is_larger_somewhere_is_noticed_where_intervals_crowd(seed):
    """A hundred times as large as told, in a share of 0.2 % of the circle."""
    theta, end = np.array([0.7, 1.5, 2.2]), 10.31 * np.pi / 32  # of one of the first intervals
    function, rng = bending(theta, [1.0, -0.5, 0.8]), np.random.default_rng(seed)

    def louder(t):
        there = np.abs(t - end) < 0.0025
        return function(t) + np.where(there, 1e-11, 1e-13) * rng.standard_normal(len(t))

    kinks, noise, _ = found(louder, noise=1e-13, most=1000)
    assert noise > 1e-12
    distance = np.abs(kinks[:, None] - theta)
    assert np.all(np.min(distance, axis=0) <= 1e-9)
    # what was made of noise before is left to others, who see that its slope hardly jumps
    assert np.all(np.abs(kinks[np.min(distance, axis=1) > 1e-9] - end) < 0.003)
    assert refused(louder, noise=1e-13, most=1000, crowd=10**9)


# -- refused


def refused(function, **given):
    function, asked = counted(function)
    with pytest.raises(TooManyBreakpoints) as error:
        found(function, **given)
    return error.value, sum(asked)


def test_too_many_kinks_are_refused():
    rng = np.random.default_rng(0)
    theta = np.sort(rng.uniform(0.01, 3.1, 60))
    error, asked = refused(bending(theta, rng.uniform(0.5, 1, 60)), most=10)
    assert not error.everywhere
    assert error.most == 10
    assert asked <= 2000
    assert len(found(bending(theta, np.ones(60)), most=60)[0]) == 60


@pytest.mark.parametrize("function", [lambda t: np.cos(3 * t), lambda t: np.exp(-t)])
def test_a_smooth_function_bends_everywhere(function):
    error, asked = refused(function, most=32)
    assert error.everywhere
    assert asked <= 1500


def test_noise_alone_bends_everywhere():
    error, _ = refused(noisy(lambda t: 0 * t, 1.0), most=32)
    assert error.everywhere


# -- the states


LINE = (1.0, 0.0)  # value and slope at t = 1


def interval(left, right, low=1.0, high=1.1, baseline=1e-3, doubted=False, value=np.nan):
    """One interval with lines of these values and slopes, at its ends."""
    pieces = Pieces.none()
    rows = add(pieces, low, *left, baseline), add(pieces, high, *right, baseline)
    ends = np.array([low]), np.array([high])
    return KinkIntervals(pieces, *ends, *rows, np.array([doubted]), np.array([value]))


def along(line, t, base=1.0):
    """Value and slope of a line at another angle."""
    (y, k), turn = line, t - base
    return y * np.cos(turn) + k * np.sin(turn), k * np.cos(turn) - y * np.sin(turn)


def crossing(at=1.05, bend=1.0):
    """The line at 1.1 that crosses LINE with so much more slope at an angle."""
    y, k = along(LINE, at)
    return along((y, k + bend), 1.1, at)


ON, OFF = along(LINE, 1.05)[0], along(LINE, 1.05)[0] + 1e-3
STATES = {
    KinkState.NARROW: interval(LINE, LINE, high=1.0 + 1e-10),
    KinkState.STALE: interval(LINE, LINE, baseline=0.05),
    KinkState.EMPTY: interval(LINE, along(LINE, 1.1)),
    KinkState.CROSSING: interval(LINE, crossing()),
    KinkState.TOUCHING: interval(LINE, crossing(), value=ON),
    KinkState.MISSED: interval(LINE, crossing(), value=OFF),
    KinkState.DOUBTED: interval(LINE, crossing(), doubted=True),
}


def questions(now, noise=1e-15):
    left, right = (EndLines.of(now, rows, noise, KinkTuning()) for rows in (now.left, now.right))
    return KinkQuestions.of(now, left, right, np.array([0.4]))


@pytest.mark.parametrize("state", KinkState)
def test_each_state_of_an_interval(state):
    now = STATES[state]
    seen = questions(now)
    assert seen.are(state)
    assert seen.are(*KinkState)
    if state >= KinkState.CROSSING:
        assert seen.cut[0] == pytest.approx(1.05, abs=1e-12)
    elif state != KinkState.NARROW:
        assert seen.cut[0] == pytest.approx(1.04)
    assert seen.step[0] > 0 or state < KinkState.DOUBTED


def test_lines_that_cross_outside_and_intervals_with_a_value_off_them_are_doubted():
    outside = interval(LINE, crossing(at=1.2))
    assert questions(outside).are(KinkState.DOUBTED)
    doubted = interval(LINE, along(LINE, 1.1), doubted=True)
    assert questions(doubted).are(KinkState.DOUBTED)


def test_a_touching_crossing_is_asked_as_close_as_tells_the_lines_apart():
    steps = []
    for bend in (1.0, 1e-3, 1e-6):
        now = interval(LINE, crossing(bend=bend), value=ON)
        steps.append(questions(now).step[0])
    assert steps[0] < steps[1] < steps[2] <= 0.3 * 0.05
    difference = steps[0] * 1.0  # of the two lines there
    assert difference > 5 * questions(now).left.deviation(np.array([1.05]))[0]
