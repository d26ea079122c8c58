"""v and c from single tokens: the worst errors that answers may have are within what it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unsoftmax.measure.precision import UNIT, Precision
from unsoftmax.measure.single_tokens import SingleTokens


def read(v, c, scale, precision, biases, sign=0.0):
    """Read answers that are off by all that the precision allows; float64 rounds by itself."""
    sign = 0.0 if precision == Precision() else sign
    most = precision.of_one_term

    def off(exact):
        """Bounds are relative to the answer that is seen."""
        return sign * (1 - 1e-4) * (most * np.abs(exact) + precision.absolute) / (1 + most)

    exact = scale * np.longdouble(1) * v + (c if biases else 0.0)
    y, zero = (exact + off(exact)).astype(float), c - off(c)
    # beside large answers the error asked for may be rounded up: take the float before it
    beyond = np.abs(y - exact) > most * np.abs(exact) + precision.absolute
    y = np.where(beyond, np.nextafter(y, exact.astype(float)), y)
    return SingleTokens(y, scale, float(zero) if biases else None).values(precision)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([1.0, 2.0**10, 2.0**46, 3.0, 0.1]),
    st.booleans(),
    st.sampled_from(
        [
            Precision(),
            Precision(absolute=1e-6),
            Precision(unit=2.0**-25, relative=2.0**-24),
            Precision(relative=1e-3, absolute=1e-2),
        ]
    ),
    st.sampled_from([1.0, -1.0, 0.0]),
)
def test_v_and_c_are_within_their_errors(seed, scale, biases, precision, sign):
    rng = np.random.default_rng(seed)
    v = rng.standard_normal(5) * 10.0 ** rng.integers(-6, 6, 5)
    c = float(rng.standard_normal())
    found = read(v, c, scale, precision, biases, sign)
    assert np.all(np.abs(found.v - v) <= found.v_error + 1e-300)
    assert abs(found.c - (c if biases else 0.0)) <= found.c_error
    assert found.precision is precision


def test_powers_of_two_cost_nothing_and_biases_a_rounding():
    v = np.array([0.1, -3.0, 7e-9])
    for scale in (1.0, 2.0**10, 0.5):
        np.testing.assert_array_equal(read(v, 0.0, scale, Precision(), False).v, v)
        error = read(v, 0.0, scale, Precision(), False).v_error
        np.testing.assert_allclose(error, UNIT * np.abs(v), rtol=1e-12)
    thirds = read(v, 0.0, 3.0, Precision(), False).v_error
    np.testing.assert_allclose(thirds, 3 * UNIT * np.abs(v), rtol=1e-12)


def test_long_tokens_save_digits_beside_a_bias():
    v, c = np.array([1e-3, 1e-3]), 1e3
    short, long = (read(v, c, scale, Precision(), True) for scale in (1.0, 2.0**10))
    assert np.all(long.v_error < short.v_error / 500)
    assert np.all(np.abs(long.v - v) <= long.v_error)


@pytest.mark.parametrize("biases", [False, True])
def test_what_is_asked_and_in_which_order(biases):
    probes = SingleTokens.probes(3, 4.0, biases)
    asked = np.concatenate([part[:][:, 0] for part in probes])
    expected = np.vstack([np.zeros((int(biases), 3)), 4 * np.eye(3)])
    np.testing.assert_array_equal(asked, expected)
    answers = [part[:][:, 0] @ np.array([1.0, 2.0, 3.0]) + 0.5 * biases for part in probes]
    found = SingleTokens.of(answers, 4.0).values(Precision())
    np.testing.assert_array_equal(found.v, [1.0, 2.0, 3.0])
    assert found.c == 0.5 * biases
    assert found.norm == pytest.approx(np.sqrt(14))
