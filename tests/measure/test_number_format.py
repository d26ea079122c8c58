"""How round numbers are: the facts that the answers' precision is recognised by."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unsoftmax.measure.precision import (
    decimals_of,
    digits_of,
    shortest,
    shortest_float32,
    significant_bits,
)


@given(st.integers(1, 53), st.integers(-300, 300), st.integers(0, 2**32))
def test_bits_of_numbers_that_were_cut_to_them(bits, octaves, seed):
    whole = np.random.default_rng(seed).integers(0, 2 ** (bits - 1), 5) + 2 ** (bits - 1)
    whole[0] |= 1  # so that all bits are needed
    y = whole * 2.0 ** (octaves - bits)
    assert significant_bits(y) == bits
    assert significant_bits(-y) == bits


def test_nothing_needs_no_bits():
    assert significant_bits(np.zeros(3)) == significant_bits(np.zeros(0)) == 0


def test_decimals_show_through_their_last_bits():
    """3·0.1 is 0.30000000000000004: thirteen digits of it end in zeros."""
    y = np.array([1, 2, 3, 7]) * 0.1
    assert shortest(y, 13, 3) == [Decimal(text) for text in ("0.1", "0.2", "0.3", "0.7")]
    assert digits_of(shortest(y, 17, 0)).max() == 17


def test_generic_numbers_keep_all_their_digits():
    y = np.array([0.1, 1 / 3])
    assert [float(number) for number in shortest(y, 13, 3)] == list(y)


def test_float32_numbers_have_fewer_digits():
    y = np.array([0.1, 2.5], dtype=np.float32).astype(float)
    assert shortest_float32(y) == [Decimal("0.1"), Decimal("2.5")]


@pytest.mark.parametrize(
    ("text", "digits", "decimals"),
    [("1.250", 3, 2), ("-0.004", 1, 3), ("1200", 2, -2), ("7", 1, 0)],
)
def test_digits_and_decimals(text, digits, decimals):
    assert list(digits_of([Decimal(text)])) == [digits]
    assert list(decimals_of([Decimal(text)])) == [decimals]
