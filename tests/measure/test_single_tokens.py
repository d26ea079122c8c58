"""v and c from single tokens: the worst errors that answers may have are within what it says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unsoftmax.measure.precision import Precision
from unsoftmax.measure.single_tokens import SingleTokens


def read(v, c, scale, precision, biases, sign=0.0):
    """Read answers that are off by most of what the precision allows; float64 rounds by itself."""

    def off(exact):
        """Bounds are relative to the answer that is seen."""
        return sign * 0.7 * precision.error_at_unit_vector(np.abs(exact), exact)

    exact = scale * np.longdouble(1) * v + (c if biases else 0.0)
    y, zero = (exact + off(exact)).astype(float), c - off(c)
    return SingleTokens(y, scale, float(zero) if biases else None).values(precision)


@given(
    st.integers(0, 2**32),
    st.sampled_from([1.0, 2.0**10, 2.0**46, 3.0, 0.1]),
    st.booleans(),
    st.sampled_from(
        [
            Precision(),
            Precision(absolute=1e-6),
            Precision(unit=2.0**-25, relative=2.0**-24),
            Precision(relative=1e-4, absolute=1e-2),
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


def test_entries_whose_terms_cancel_are_as_coarse_as_the_others():
    """Rows of V times an output vector, each rounded as NumPy does."""
    worst = 0.0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        V, o = rng.standard_normal((16, 32)), rng.standard_normal(32)
        V[0] -= (V[0] @ o) / (o @ o) * o  # what is left is rounding
        exact = V.astype(np.longdouble) @ o
        found = SingleTokens(V @ o, 1.0).values(Precision())
        assert np.linalg.norm(found.v - exact) <= np.linalg.norm(found.v_error)
        worst = max(worst, float(np.max(np.abs(found.v / exact - 1))))
    assert worst > 1e-3


def test_long_tokens_save_digits_beside_a_bias():
    v, c = np.array([1e-3, 1e-3]), 1e3
    short, long = (read(v, c, scale, Precision(), True) for scale in (1.0, 2.0**10))
    assert np.all(long.v_error < short.v_error / 500)
    assert np.all(np.abs(long.v - v) <= long.v_error)
