"""The rules of the scale search, on logits that are given."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.measure.logit_grid import (
    LogitGridTuning,
    SeenLogits,
    better_scale,
    common_scale,
    first_scale,
    poor_readings,
    scale_for,
    suggested_scale,
)
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.single_tokens import Values
from unsoftmax.measure.two_tokens import TwoTokenAnswers, Vectors

TUNING = LogitGridTuning()


def seen(logit, error=1e-15, scale=1.0):
    logit = np.asarray(logit, dtype=float)
    error, scale = (np.broadcast_to(x, logit.shape).astype(float) for x in (error, scale))
    return SeenLogits(logit, logit, error, scale)


@pytest.mark.parametrize(
    ("logit", "step", "why"),
    [
        (1.0, 0, "in range"),
        (0.2, 0, "in range"),
        (-5.9, 0, "in range"),
        (8.0, -4, "brought to one half"),
        (-32.0, -6, "brought to one half"),
        (0.0, 42, "not resolved: its error is brought to a two-hundredth"),
        (np.nan, -20, "saturated: a million times less"),
    ],
)
def test_pilots_out_of_range_are_moved(logit, step, why):
    k = better_scale(seen([logit]), np.array([3]), 20, False, TUNING)
    assert k - 3 == step, why


def test_small_pilots_are_moved_where_they_are_much_of_the_data():
    for few, step in ((True, 5), (False, 0)):
        assert better_scale(seen([2.0**-6]), np.array([0]), 20, few, TUNING) == step


def test_scales_stay_in_range():
    k = better_scale(seen([np.nan, 0.0], 1e-40), np.array([-90, 90]), 20, False, TUNING)
    assert list(k) == [-TUNING.farthest, TUNING.farthest]


def test_the_root_mean_square_is_put_where_it_is_wanted():
    k = suggested_scale(seen([[8.0, -8.0], [1e-3, 0.0]], scale=2.0), np.array([9, 9]), TUNING)
    assert list(k) == [-3, 10]


def test_what_is_below_its_error_leaves_the_scale():
    k = suggested_scale(seen([[1e-9, -1e-9]], 1e-8), np.array([7]), TUNING)
    assert list(k) == [7]


def test_saturated_answers_bound_the_scale():
    """Two small logits ask for more; the third was saturated at scale 1."""
    k = suggested_scale(seen([[1e-6, 1e-6, np.nan]]), np.array([0]), TUNING)
    assert list(k) == [-TUNING.saturated_step]
    k = suggested_scale(seen([[np.nan, np.nan]]), np.array([4]), TUNING)
    assert list(k) == [-TUNING.saturated_step]


def test_poor_readings_come_worst_first_with_better_scales():
    logit = np.full((2, 8), 0.5)
    error = np.full((2, 8), 1e-15)
    logit[0, 3], error[0, 3] = 16.0, 1e-12  # out of range
    logit[1, 5], error[1, 5] = np.nan, np.inf  # saturated
    asked = np.ones((2, 8), dtype=bool)
    found = seen(logit, error, scale=4.0)
    j, i, k = poor_readings(found, asked, np.ones(8), np.array([2, 2]), TUNING)
    assert list(zip(j, i, k, strict=True)) == [(1, 5, -4), (0, 3, -2)]


def test_offsets_that_tell_little_are_not_blamed_on_the_scale():
    """An offset nearly orthogonal to v has large errors at any scale."""
    error = np.full((1, 8), 1e-15)
    error[0, 2] = 1e-12
    weight = np.ones(8)
    weight[2] = 1e-3
    asked = np.ones((1, 8), dtype=bool)
    j, _, _ = poor_readings(seen(np.full((1, 8), 0.5), error), asked, weight, np.array([0]), TUNING)
    assert not len(j)
    j, _, _ = poor_readings(
        seen(np.full((1, 8), 0.5), error), asked, np.ones(8), np.array([0]), TUNING
    )
    assert len(j) == 1


def answers(y, scale):
    """Offsets with a·v = 1 and the query token 0: y is the gate itself."""
    y = np.asarray(y, dtype=float)
    values = Values(np.ones(1), 0.0, np.zeros(1), 0.0, Precision())
    one, zero = np.ones(y.shape[1]), np.zeros((len(y), 1))
    a, b = Vectors(one, 0 * one, one), Vectors(zero, zero, zero)
    alpha = np.full(y.shape, float(scale))
    return TwoTokenAnswers(alpha * y, a, b, alpha, np.ones(y.shape), values)


def test_one_scale_for_all_tokens():
    p = 1 / (1 + np.exp(-0.25))
    asked = answers([[p, 1 - p], [np.nan, np.nan]], 4.0)
    assert common_scale(asked, asked.measured(), None, TUNING) == 3
    nothing = answers([[np.nan, np.nan]], 4.0)
    assert common_scale(nothing, nothing.measured(), 5, TUNING) == 5
    saturated = answers([[p, 1.0]], 4.0)
    assert common_scale(saturated, saturated.measured(), None, TUNING) == 2 - TUNING.saturated_step


def test_first_guesses():
    assert list(first_scale(2, 16, TUNING)) == [1, 1]
    assert scale_for(0.125) == 2
    assert scale_for(0.0) == 0
