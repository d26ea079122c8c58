"""Jumps of an even piecewise sinusoid on half a circle, on functions that are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.arrangement.circles import add, angles, counted, driven, jumping, noisy
from unsoftmax.arrangement.jumps import (
    Jumps,
    JumpSearch,
    JumpTuning,
    Pieces,
    SoftStart,
    SoftTransition,
    bisect,
    find_jumps,
    isolate,
    slope,
)
from unsoftmax.arrangement.kinks import TooManyBreakpoints
from unsoftmax.errors import ModelMismatch

EXACT = 1e-14
FLOATS = st.floats(-1e3, 1e3)


def sinusoid(x, y):
    return lambda t: x * np.cos(t) + y * np.sin(t)


def search(error=EXACT, most=16, baseline=1e-5, **tuning):
    return JumpSearch(angles, error, most, baseline, tuning=JumpTuning(**tuning))


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


@pytest.mark.parametrize("at", [0.2, 2.9])
def test_every_value_on_a_piece_makes_it_more_precise(at):
    """The first piece is that at 0 and, turned, that at π: it is met on either side."""
    jumps, _ = found(jumping(at, 1.0, np.array([0.5])))
    assert jumps.pieces.baseline[0] == pytest.approx(1.0)  # at π/2


def test_a_pair_that_cancels_is_seen_where_an_interval_ends_between():
    theta = np.array([1.0, 1.2])
    function = jumping(theta, [1.0, -np.cos(0.2)], [0.0, np.sin(0.2)])  # the same outside
    assert len(found(function, start=1)[0]) in (0, 2)
    assert_isolated(found(function, start=32)[0], theta)


def test_where_the_first_values_are_zero_more_intervals_are_tried():
    # the two jumps at 1.0 and 1.1 make a function that is 0 elsewhere
    theta = np.array([1.0, 1.25])
    function = jumping(theta, [1.0, -np.cos(0.25)], [0.0, np.sin(0.25)])
    assert np.allclose(function(np.array([0.0, 0.5, 2.0])), 0, atol=1e-15)
    assert_isolated(found(function, start=1)[0], theta)


def test_nothing_is_found_in_nothing():
    jumps, asked = found(lambda t: np.zeros(len(t)))
    assert len(jumps) == 0
    assert len(jumps.gap()) == 0
    assert len(asked) == 32


@pytest.mark.parametrize("at", [1e-9, 1e-6, np.pi - 1e-6, np.pi - 1e-9])
def test_a_jump_near_an_end(at):
    theta = np.sort([at, 1.4])
    # values are exact to 1e-16: a baseline of 1e-11 leaves five digits of a slope
    jumps, _ = found(jumping(theta, [1.0, 0.6], [0.3, -0.4]), baseline=1e-11)
    assert_isolated(jumps, theta)


@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-9])
def test_a_jump_much_smaller_than_others(size):
    theta = np.array([0.4, 1.7, 2.8])
    jumps, _ = found(jumping(theta, [1.0, size, -1.0]), start=16, longer=100.0)
    assert_isolated(jumps, theta)


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
    assert np.all(jumps.softened <= len(JumpTuning().cuts))
    assert np.all(jumps.width <= max(0.3, 40 * width))


def test_a_start_in_a_transition_is_said():
    theta = np.array([0.0])
    steps = find_jumps(search(), 1, 1.0)
    first = next(steps)
    with pytest.raises(SoftStart):
        steps.send(softened(jumping(theta, [1.0]), theta, 1e-3)(first))


def test_a_transition_that_has_to_be_cut_and_cannot_is_said():
    theta = np.array([1.0])
    function = softened(jumping(theta, [1.0]), theta, 1e-3)
    own = search()
    jumps, _ = driven(find_jumps(own, 4), function)
    for _ in range(1 + len(own.tuning.cuts)):
        inside = jumps.changed(low=np.array([1.0 - 9e-4]), high=np.array([1.0 + 9e-4]))
        if inside.softened[0] == len(own.tuning.cuts):
            break
        jumps, _ = driven(bisect(inside, np.array([True]), own), function)
    with pytest.raises(SoftTransition):
        driven(bisect(jumps, np.array([True]), own), function)


# -- pieces


@given(x=FLOATS, y=FLOATS, t=st.floats(0, 3), baseline=st.floats(1e-6, 0.5))
def test_a_piece_is_read_from_two_values_to_what_its_leverage_says(x, y, t, baseline):
    f, pieces = sinusoid(x, y), Pieces.none()
    first, second = np.array([f(t)]), np.array([f(t + baseline)])
    turn = np.array([(t + baseline) - t])
    pieces.add(np.array([t]), first, slope(first, second, turn), np.sin(turn))
    where, rows = np.linspace(0, np.pi, 7), np.zeros(7, dtype=np.intp)
    error = np.abs(pieces.at(rows, where) - f(where))
    rounding = 1e-15 * (abs(x) + abs(y)) + 1e-300
    assert np.all(error <= 3 * rounding * (1 + pieces.leverage(rows, where)))


def test_a_longer_baseline_makes_a_piece_more_precise_and_a_shorter_one_changes_nothing():
    f, pieces = sinusoid(1.0, 2.0), Pieces.none()
    row, far = add(pieces, 0.0, f(0.0), (f(1e-8) - f(0.0)) / 1e-8, 1e-8), np.array([2.0])
    before = abs(pieces.at(row, far)[0] - f(2.0))
    pieces.extend(row, np.array([0.5]), np.array([f(0.5)]))
    after = abs(pieces.at(row, far)[0] - f(2.0))
    assert after < 1e-14 < before
    assert pieces.baseline[row] == np.sin(0.5)
    pieces.extend(row, np.array([0.4]), np.array([1e9]))
    assert pieces.k[row] == pytest.approx(2.0, abs=1e-14)


def test_two_values_on_one_piece_extend_it_by_the_farther_one():
    pieces = Pieces.none()
    add(pieces, 0.0, 1.0, 0.0, 1e-8)
    far = np.array([0.3, 0.1])
    pieces.extend(np.array([0, 0]), far, sinusoid(1.0, 2.0)(far))
    assert pieces.baseline[0] == np.sin(0.3)
    assert pieces.k[0] == pytest.approx(2.0, abs=1e-14)


# -- intervals


def intervals(n=3):
    pieces = Pieces.none()
    pieces.add(np.arange(n + 1.0), np.zeros(n + 1), np.zeros(n + 1), np.ones(n + 1))
    edges, rows = np.arange(n + 1.0), np.arange(n + 1)
    own = np.ones(n), np.zeros(n, dtype=np.intp)
    return Jumps(pieces, edges[:-1], edges[1:], rows[:-1], rows[1:], *own)


def test_halves_share_the_cut_and_keep_the_outer_pieces():
    whole = intervals()
    first, second = whole.split(np.array([0.5, 1.5, 2.5]), np.array([7, 8, 9]), np.array([4, 5, 6]))
    assert np.array_equal(first.high, second.low)
    assert np.array_equal(first.left, whole.left)
    assert np.array_equal(second.right, whole.right)
    assert np.array_equal(first.right, [7, 8, 9])
    assert np.array_equal(second.left, [4, 5, 6])


def test_taking_and_joining_keeps_one_table_of_pieces():
    whole = intervals()
    joined = Jumps.joined([whole.take(whole.low > 0), whole.take(np.array([0]))])
    assert joined.pieces is whole.pieces
    assert np.array_equal(joined.low, [1.0, 2.0, 0.0])
    assert np.array_equal(joined.right, [2, 3, 1])
    assert len(Jumps.joined([whole.take(np.zeros(3, dtype=bool))])) == 0


def test_too_many_is_a_mismatch_that_says_what_was_seen():
    few, all_over = TooManyBreakpoints(7), TooManyBreakpoints(7, everywhere=True)
    assert isinstance(few, ModelMismatch)
    assert "more than 7" in str(few)
    assert "everywhere" in str(all_over)
