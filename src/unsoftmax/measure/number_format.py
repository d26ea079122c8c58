"""How round numbers are: significant bits, shortest decimals, their digits and decimals.

Facts of given numbers; `unsoftmax.measure.precision` says what they mean for answers.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np

from unsoftmax.probes import Array, Indices


def significant_bits(y: Array) -> int:
    """Count the significant bits that every number of ``y`` fits into (0 for none).

    Examples
    --------
    >>> significant_bits(np.array([0.5, 3.0, 10.0])), significant_bits(np.array([0.1]))
    (3, 52)
    """
    y = y[y != 0]
    if not len(y):
        return 0
    mantissa, _ = np.frexp(y)
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    lowest = whole & -whole
    return 53 - int(np.log2(lowest.min()))


def shortest(y: Array, compared: int, zeros: int) -> list[Decimal]:
    """Write float64 numbers with the fewest digits that mean them, last bits aside.

    Multiples of 0.1 are decimals but for their last bits: where all numbers have ``zeros``
    zeros at the end of ``compared`` digits they are taken for what these say.
    """
    nearly = [Decimal(f"{number:.{compared}g}") for number in y.tolist()]
    if int(digits_of(nearly).max()) <= compared - zeros:
        return nearly
    return [Decimal(repr(number)) for number in y.tolist()]


def shortest_float32(y: Array) -> list[Decimal]:
    """Write float32 numbers with the fewest digits that mean them."""
    return [Decimal(str(number)) for number in y.astype(np.float32)]


def digits_of(numbers: list[Decimal]) -> Indices:
    """Count significant digits."""
    return np.array([len(number.normalize().as_tuple().digits) for number in numbers])


def decimals_of(numbers: list[Decimal]) -> Indices:
    """Count decimals; fewer than 0 for multiples of ten."""
    return -np.array([int(number.normalize().as_tuple().exponent) for number in numbers])
