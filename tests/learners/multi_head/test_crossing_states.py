"""The four states of a crossing: what each reading of a gate changes, and what it does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from unsoftmax.learners.multi_head.crossing_states import (
    Bracketed,
    CrossingTuning,
    Estimated,
    GateReading,
    Measured,
    ReadOnce,
    Sight,
    along,
    grows,
    through,
    with_slope,
)

TUNING = CrossingTuning()
BRACKET = Bracketed(1.0, 1.2, 50.0, missed=1)
ROOT, SLOPE = 1.08, 40.0
U = SLOPE * np.array([-np.sin(ROOT), np.cos(ROOT)])  # r(θ) = SLOPE·sin(θ − ROOT)
T = 2.0


def gate(theta, length=T):
    return 1 / (1 + np.exp(-length * SLOPE * np.sin(theta - ROOT)))


@pytest.mark.parametrize(
    ("value", "sight"),
    [
        (-0.02, Sight.OUTSIDE),
        (1.02, Sight.OUTSIDE),
        (-0.005, Sight.BELOW),
        (0.0005, Sight.BELOW),
        (0.5, Sight.OPEN),
        (0.9995, Sight.ABOVE),
        (1.005, Sight.ABOVE),
        (np.nan, Sight.OPEN),
    ],
)
def test_what_a_gate_says(value, sight):
    assert Sight.of(value, TUNING) is sight


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, replace(BRACKET, low=1.1, slope=150.0)),
        (1.0, replace(BRACKET, high=1.1, slope=150.0)),
        (1.5, replace(BRACKET, slope=5.0)),
        (-0.5, replace(BRACKET, slope=5.0)),
    ],
)
def test_a_gate_that_is_not_open_narrows_or_flattens(value, expected):
    after = BRACKET.after(1.1, T, value, TUNING.steeper, TUNING)
    assert isinstance(after, Bracketed)
    assert (after.low, after.high, after.missed) == (expected.low, expected.high, 1)
    assert after.slope == pytest.approx(expected.slope)
    once = ReadOnce(BRACKET, T, GateReading(1.15, 0.5))
    assert once.after(1.1, T, value, TUNING.steeper, TUNING) == after


@pytest.mark.parametrize("theta", [1.05, 1.1])
def test_an_open_gate_is_kept_and_narrows(theta):
    once = BRACKET.after(theta, T, gate(theta), TUNING.steeper, TUNING)
    assert isinstance(once, ReadOnce)
    assert once.bracket.low <= ROOT <= once.bracket.high
    assert theta in (once.bracket.low, once.bracket.high)
    assert once.first.r == pytest.approx(SLOPE * np.sin(theta - ROOT))
    assert (once.slope, once.missed) == (50.0, 1)


def test_two_open_gates_are_an_estimate():
    once = BRACKET.after(1.1, T, gate(1.1), TUNING.steeper, TUNING)
    second = once.theta(0.0, TUNING)
    assert ROOT < second < 1.1
    after = once.after(second, T, gate(second), TUNING.steeper, TUNING)
    assert isinstance(after, Estimated)
    np.testing.assert_allclose(after.u, U, rtol=1e-6)
    assert (after.slope, after.missed) == (50.0, 1)


@pytest.mark.parametrize(("noise", "share"), [(0.0, 1e-3), (4e-12, 0.05), (4e-14, 1e-2)])
def test_the_second_reading_is_further_away_where_answers_are_noisy(noise, share):
    once = ReadOnce(BRACKET, T, GateReading(1.1, 0.5))
    assert 1.1 - once.theta(noise, TUNING) == pytest.approx(share * 0.2)
    assert BRACKET.theta(noise, TUNING) == pytest.approx(1.1)


ENDS = (1.0, 1.2)


def after_two(theta, gates, missed=1):
    return Estimated(U, 50.0, missed).after(theta, T, gates, ENDS, TUNING)


def test_two_gates_where_they_should_be_are_a_measurement():
    step = np.arcsin(2 / (T * SLOPE))
    theta = (ROOT - step, ROOT + step)
    after = after_two(theta, (gate(theta[0]), gate(theta[1])))
    assert isinstance(after, Measured)
    np.testing.assert_allclose(after.u, U, rtol=1e-9)
    assert (after.T, after.slope, after.missed) == (T, 50.0, 1)


def test_two_open_gates_elsewhere_are_a_better_estimate():
    theta = (ROOT + 0.03, ROOT + 0.05)
    after = after_two(theta, (gate(theta[0]), gate(theta[1])))
    assert isinstance(after, Estimated)
    np.testing.assert_allclose(after.u, U, rtol=1e-6)
    assert after.missed == 2


@pytest.mark.parametrize(
    "gates",
    [(0.0, 1.0), (0.5, 1.0), (1.4, 0.5), (np.nan, 0.5), (0.7, 0.3)],
    ids=["both saturated", "one saturated", "no gate", "nothing", "falling"],
)
def test_gates_that_tell_nothing_begin_anew(gates):
    with np.errstate(divide="ignore", invalid="ignore"):
        after = after_two((ROOT - 0.01, ROOT + 0.01), gates)
    assert isinstance(after, Bracketed)
    assert (after.low, after.high, after.missed) == (*ENDS, 2)
    assert after.slope == pytest.approx(TUNING.span / (0.2 * T))


def test_readings_give_the_sinusoid_through_them():
    one, two = (GateReading(t, SLOPE * np.sin(t - ROOT)) for t in (0.3, 1.9))
    np.testing.assert_allclose(through(one, two), U)
    r, slope = along(U[None], np.array([ROOT]))
    np.testing.assert_allclose(r, 0, atol=1e-12)
    np.testing.assert_allclose(slope, SLOPE)


def test_growing_through_the_interval():
    assert grows(U, *ENDS)
    assert not grows(-U, *ENDS)
    assert not grows(U, 2.0, 2.01)
    assert not grows(np.full(2, np.nan), *ENDS)


@pytest.mark.parametrize(
    "state",
    [BRACKET, ReadOnce(BRACKET, T, GateReading(1.1, 1.0)), Estimated(U, 1.0), Measured(U, T, 1.0)],
)
def test_every_state_takes_another_guess_of_the_slope(state):
    assert with_slope(state, 7.0).slope == 7.0
    assert type(with_slope(state, 7.0)) is type(state)
