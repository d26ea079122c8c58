"""The four stages of a crossing: what each reading of a gate changes, and what it does not."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.arrangement.jumps import Jumps, Pieces
from unsoftmax.learners.multi_head.in_plane import (
    SPAN,
    STEEPER,
    Crossings,
    CrossingStage,
    along,
    grows,
    through,
)

ROOT, SLOPE = 1.08, 40.0
U = SLOPE * np.array([-np.sin(ROOT), np.cos(ROOT)])  # r(θ) = SLOPE·sin(θ − ROOT)
T = 2.0
ONE = np.zeros(1, dtype=np.intp)


def gate(theta, length=T):
    return 1 / (1 + np.exp(-length * SLOPE * np.sin(theta - ROOT)))


def jumps_between(low, high):
    ends = np.zeros(1, dtype=np.intp)
    return Jumps(Pieces.none(), np.array([low]), np.array([high]), ends, ends, np.ones(1), 0 * ends)


def bracketed(**known):
    """One crossing in [1, 1.2], whose estimate was missed once."""
    crossings = Crossings.unread(jumps_between(1.0, 1.2), 50.0)
    for name, value in {"missed": 1, **known}.items():
        crossings.rows[name] = value
    return crossings


def read_once(theta=1.15, r=0.5):
    return bracketed(stage=CrossingStage.READ_ONCE, theta=theta, r=r, T=T)


def after_one(crossings, theta, value):
    suspects = crossings.after_one(
        ONE, np.array([theta]), np.array([T]), np.array([value]), STEEPER
    )
    return crossings.rows[0], bool(suspects[0])


def state(row):
    return (CrossingStage(row["stage"]), row["low"], row["high"], row["missed"])


@pytest.mark.parametrize("begin", [bracketed, read_once])
@pytest.mark.parametrize(
    ("value", "ends", "slope", "suspect"),
    [
        (0.0, (1.1, 1.2), 150.0, False),
        (0.0005, (1.1, 1.2), 150.0, False),
        (-0.005, (1.1, 1.2), 150.0, False),
        (1.0, (1.0, 1.1), 150.0, False),
        (1.005, (1.0, 1.1), 150.0, False),
        (1.5, (1.0, 1.2), 5.0, True),
        (-0.02, (1.0, 1.2), 5.0, True),
    ],
)
def test_a_gate_that_is_not_open_narrows_or_flattens(begin, value, ends, slope, suspect):
    row, suspected = after_one(begin(), 1.1, value)
    assert state(row) == (CrossingStage.BRACKETED, *ends, 1)
    assert row["slope"] == pytest.approx(slope)
    assert suspected is suspect


@pytest.mark.parametrize("theta", [1.05, 1.1])
def test_an_open_gate_is_kept_and_narrows(theta):
    row, suspect = after_one(bracketed(), theta, gate(theta))
    assert row["stage"] == CrossingStage.READ_ONCE
    assert not suspect
    assert row["low"] <= ROOT <= row["high"]
    assert theta in (row["low"], row["high"])
    assert row["r"] == pytest.approx(SLOPE * np.sin(theta - ROOT))
    assert (row["theta"], row["T"], row["slope"], row["missed"]) == (theta, T, 50.0, 1)


def test_two_open_gates_are_an_estimate():
    crossings = bracketed()
    after_one(crossings, 1.1, gate(1.1))
    [second] = crossings.next_angles(ONE, 0.0)
    assert ROOT < second < 1.1
    row, suspect = after_one(crossings, second, gate(second))
    assert row["stage"] == CrossingStage.ESTIMATED
    assert not suspect
    np.testing.assert_allclose(row["u"], U, rtol=1e-6)
    assert (row["slope"], row["missed"]) == (50.0, 1)


def test_two_gates_that_fall_or_are_none_are_no_estimate():
    for value in (gate(1.12), np.nan):  # larger before the first one
        row, suspect = after_one(read_once(1.1, SLOPE * np.sin(1.1 - ROOT)), 1.05, value)
        assert suspect
        assert state(row) == (CrossingStage.BRACKETED, 1.0, 1.2, 1)
        assert row["slope"] == pytest.approx(5.0)
        assert np.all(np.isnan(row["u"]))


@pytest.mark.parametrize(("noise", "share"), [(0.0, 1e-3), (4e-12, 0.05), (4e-14, 1e-2)])
def test_the_second_reading_is_further_away_where_answers_are_noisy(noise, share):
    assert 1.1 - read_once(1.1).next_angles(ONE, noise)[0] == pytest.approx(share * 0.2)
    assert bracketed().next_angles(ONE, noise)[0] == pytest.approx(1.1)


def after_two(theta, gates):
    crossings = bracketed(stage=CrossingStage.ESTIMATED, u=U)
    two = (np.reshape(x, (2, 1)) for x in (theta, gates))
    theta, gates = two
    with np.errstate(divide="ignore", invalid="ignore"):
        crossings.after_two(ONE, theta, np.array([T]), gates, np.array([0.25]))
    return crossings.rows[0]


def test_two_gates_where_they_should_be_are_a_measurement():
    step = np.arcsin(2 / (T * SLOPE))
    theta = (ROOT - step, ROOT + step)
    after = after_two(theta, (gate(theta[0]), gate(theta[1])))
    assert after["stage"] == CrossingStage.MEASURED
    np.testing.assert_allclose(after["u"], U, rtol=1e-9)
    assert (after["T"], after["slope"], after["missed"], after["shift"]) == (T, 50.0, 1, 0.25)


def test_two_open_gates_elsewhere_are_a_better_estimate():
    theta = (ROOT + 0.03, ROOT + 0.05)
    after = after_two(theta, (gate(theta[0]), gate(theta[1])))
    assert after["stage"] == CrossingStage.ESTIMATED
    np.testing.assert_allclose(after["u"], U, rtol=1e-6)
    assert after["missed"] == 2


@pytest.mark.parametrize(
    "gates",
    [(0.0, 1.0), (0.5, 1.0), (1.4, 0.5), (np.nan, 0.5), (0.7, 0.3)],
    ids=["both saturated", "one saturated", "no gate", "nothing", "falling"],
)
def test_gates_that_tell_nothing_begin_anew(gates):
    after = after_two((ROOT - 0.01, ROOT + 0.01), gates)
    assert state(after) == (CrossingStage.BRACKETED, 1.0, 1.2, 2)
    assert after["slope"] == pytest.approx(SPAN / (0.2 * T))
    assert np.all(np.isnan(after["u"]))


def test_readings_give_the_sinusoid_through_them():
    theta = (np.array([0.3]), np.array([1.9]))
    [u] = through(theta, (SLOPE * np.sin(theta[0] - ROOT), SLOPE * np.sin(theta[1] - ROOT)))
    np.testing.assert_allclose(u, U)
    r, slope = along(U[None], np.array([ROOT]))
    np.testing.assert_allclose(r, 0, atol=1e-12)
    np.testing.assert_allclose(slope, SLOPE)


def test_growing_through_the_interval():
    interval = jumps_between(1.0, 1.2)
    assert grows(U[None], interval)
    assert not grows(-U[None], interval)
    assert not grows(U[None], jumps_between(2.0, 2.01))
    assert not grows(np.full((1, 2), np.nan), interval)
