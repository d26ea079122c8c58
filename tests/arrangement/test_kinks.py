"""Kinks of a continuous piecewise sinusoid on half a circle, on functions that are known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.arrangement.circles import angles, bending, circle_kinks, counted, driven, noisy
from unsoftmax.arrangement.kinks import TooManyBreakpoints

ROUNDING = 2e-16


def found(function, noise=ROUNDING, most=100):
    """The kinks that are found, the noise that is assumed at the end, and all angles asked."""
    (kinks, noise), asked = driven(circle_kinks(angles, noise, most), function)
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
        kinks, noise, asked = found(bending(theta, bend, rng.standard_normal(2)))
        # lines cross to within what 50 times the error of their values leaves
        assert_all(kinks, theta, 1e-9)
        assert noise == ROUNDING
        # the most that 100 functions of each kind took: 7 for one kink, 3.6 each of 40
        assert len(asked) <= 96 + 4 * (n + 1)


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
    assert len(asked) == 96  # two values for each of 48 pieces


@pytest.mark.parametrize("away", [1e-3, 1e-5, 1e-7])
def test_kinks_near_the_ends(away):
    theta = np.array([away, 1.0, np.pi - away])
    kinks, *_ = found(bending(theta, [1.0, -0.5, 0.7], (0.2, 0.1)))
    assert_all(kinks, theta, 1e-10)


@pytest.mark.parametrize("first", [7e-3, 2.5e-2])
def test_a_small_kink_inside_the_first_pair_makes_no_other_one(first):
    """A line through a pair that straddles it is off by little, and by more at the next kink."""
    theta = np.array([6e-5, first, *np.linspace(0.2, 3.1, 40)])
    function = bending(theta, [6e-9, 0.03, *np.full(40, 0.1)], (1.0, 0.5))
    (kinks, _), asked = driven(circle_kinks(angles, 4e-16, far=1e5), function)
    assert len(kinks) == len(theta)
    assert np.all(np.abs(kinks[1:] - theta[1:]) <= 1e-9)
    assert abs(kinks[0] - theta[0]) <= 1e-6
    assert len(asked) <= 96 + 4 * (len(theta) + 1)


@pytest.mark.parametrize("apart", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("second", [1.0, -0.9, -1.0])
def test_close_pairs_are_told_from_one(apart, second):
    theta = np.array([0.5, 1.234, 1.234 + apart, 2.5])
    bend = np.array([0.3, 1.0, second, 0.6])
    kinks, *_ = found(bending(theta, bend, (1.0, 0.0)))
    assert_all(kinks, theta, 1e-12 + 1e-13 / apart)


def test_a_kink_smaller_than_errors_is_not_made_up():
    kinks, *_ = found(bending([0.7, 1.5], [1.0, 1e-15]))
    assert_all(kinks, [0.7], 1e-12)


# -- noise


@pytest.mark.parametrize("deviation", [1e-12, 1e-8])
def test_noise_makes_no_kinks_and_hides_none(deviation, trials):
    for seed in range(trials(3, 100)):
        rng = np.random.default_rng(seed)
        theta, bend = np.sort(rng.uniform(0.05, 3.1, 5)), rng.uniform(0.5, 1, 5)
        if np.min(np.diff(theta)) < 0.01:
            continue
        function = noisy(bending(theta, bend), deviation, seed)
        kinks, *_ = found(function, noise=deviation)
        assert_all(kinks, theta, 2000 * deviation)


@pytest.mark.parametrize("seed", range(3))
def test_noise_that_is_larger_somewhere_is_noticed_where_intervals_crowd(seed):
    """A hundred times as large as told, in a share of 0.2 % of the circle."""
    theta, rng = np.array([0.7, 1.5, 2.2]), np.random.default_rng(seed)
    _, _, asked = found(bending(theta, [1.0, -0.5, 0.8]))
    function, loud = bending(theta, [1.0, -0.5, 0.8]), asked[10]  # of one of the first pieces

    def louder(t):
        there = np.abs(t - loud) < 0.0025
        return function(t) + np.where(there, 1e-11, 1e-13) * rng.standard_normal(len(t))

    kinks, _, asked = found(louder, noise=1e-13, most=1000)
    assert len(asked) < 3000
    distance = np.abs(kinks[:, None] - theta)
    assert np.all(np.min(distance, axis=0) <= 1e-9)
    # what was made of noise before is left to others, who see that its slope hardly jumps
    assert np.all(np.abs(kinks[np.min(distance, axis=1) > 1e-9] - loud) < 0.07)


# -- refused


def refused(function, **given):
    function, asked = counted(function)
    with pytest.raises(TooManyBreakpoints) as error:
        found(function, **given)
    return error.value, sum(asked)


def test_too_many_kinks_are_refused():
    rng = np.random.default_rng(0)
    theta = np.sort(rng.uniform(0.01, 3.1, 60))
    error, asked = refused(bending(theta, rng.uniform(0.5, 1, 60)), noise=20 * ROUNDING, most=10)
    assert not error.everywhere
    assert error.most == 10
    assert asked <= 2000
    # its values of up to 40 are rounded by as much
    assert len(found(bending(theta, np.ones(60)), 20 * ROUNDING, most=60)[0]) == 60


@pytest.mark.parametrize("function", [lambda t: np.cos(3 * t), lambda t: np.exp(-t)])
def test_a_smooth_function_bends_everywhere(function):
    error, asked = refused(function, most=32)
    assert error.everywhere
    assert asked <= 1500
