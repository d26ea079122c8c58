"""What all searches for breakpoints share: the table of pieces, intervals, and the rounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.arrangement.circles import add, angles, driven
from unsoftmax.arrangement.breakpoints import Intervals, TooManyBreakpoints, ask_where, refine
from unsoftmax.arrangement.pieces import Pieces, slope
from unsoftmax.errors import ModelMismatch

FLOATS = st.floats(-1e3, 1e3)


def sinusoid(x, y):
    return lambda t: x * np.cos(t) + y * np.sin(t)


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


def test_a_slope_that_means_nothing_has_no_leverage_and_is_read_anew():
    pieces = Pieces.none()
    row = add(pieces, 1.0, 3.0, 99.0, np.inf)
    assert pieces.leverage(row, np.array([2.0])) == 0
    pieces.reread(row, np.array([3.0 * np.cos(0.1)]), np.array([-0.1]))
    assert pieces.k[row] == pytest.approx(0.0, abs=1e-14)
    assert pieces.baseline[row] == 0.1


# -- intervals


def intervals(n=3):
    pieces = Pieces.none()
    pieces.add(np.arange(n + 1.0), np.zeros(n + 1), np.zeros(n + 1), np.ones(n + 1))
    edges, rows = np.arange(n + 1.0), np.arange(n + 1)
    return Intervals(pieces, edges[:-1], edges[1:], rows[:-1], rows[1:])


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
    joined = Intervals.joined([whole.take(whole.low > 0), whole.take(np.array([0]))])
    assert joined.pieces is whole.pieces
    assert np.array_equal(joined.low, [1.0, 2.0, 0.0])
    assert np.array_equal(joined.right, [2, 3, 1])
    assert len(Intervals.joined([whole.take(np.zeros(3, dtype=bool))])) == 0


def test_what_is_asked_in_one_round_comes_back_column_by_column():
    one, two = np.array([True, False, True]), np.array([False, True, False])
    steps = ask_where(angles, [(one, np.array([1.0, 2.0, 3.0])), (two, np.array([4.0, 5.0, 6.0]))])
    [first, second], asked = driven(steps, lambda t: 10 * t)
    assert np.array_equal(asked, [1.0, 3.0, 5.0])
    assert np.array_equal(first, [10.0, np.nan, 30.0], equal_nan=True)
    assert np.array_equal(second, [np.nan, 50.0, np.nan], equal_nan=True)


class Halving:
    """Halves what is wider than 0.1; asks for it."""

    def unfinished(self, now):
        return now.width > 0.1

    def cut(self, now, chosen):
        middle = (now.low + now.high) / 2
        yield middle[chosen]
        return now.changed(high=np.where(chosen, middle, now.high))


@pytest.mark.parametrize(("rounds", "width"), [(0, 1.0), (2, 0.25), (100, 0.0625)])
def test_refining_ends_when_all_is_finished_or_rounds_are_spent(rounds, width):
    left, asked = driven(refine(intervals(), Halving(), rounds), lambda t: t)
    assert np.allclose(left.width, width)
    assert len(asked) == 3 * -np.log2(width)


def test_too_many_is_a_mismatch_that_says_what_was_seen():
    few, all_over = TooManyBreakpoints(7), TooManyBreakpoints(7, everywhere=True)
    assert isinstance(few, ModelMismatch)
    assert "more than 7" in str(few)
    assert "everywhere" in str(all_over)
