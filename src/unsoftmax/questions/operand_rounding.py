"""Whether a target rounds what it multiplies, behind answers of more bits, and to how many.

TF32 and autocast round the operands of products to 11 or 8 bits and add up in float32. What scores
and values lose by that shows in no identity, since it leaves another model of the class. But inputs
are operands, too: of a token x of 8 bits and x + δ, x + 8δ beside it, 11 bits hold no δ and 8 bits
no 8δ. Then answers to these are those to x, whatever the weights are.

With operands of k bits answers miss a head's by up to 0.32 κ 2^−k/√d of their terms' size, whatever
d is (measured: 400 targets with 1 or 4 heads, d = 4 to 128): the roundings of d products add up as
random numbers do.
"""

from __future__ import annotations

import numpy as np

from unsoftmax.measure.precision import Precision
from unsoftmax.probes import Array

# Significant bits of float16 and TF32, and of bfloat16: what does not hold δ, and 8δ.
OPERAND_BITS = (11, 8)
# δ, as a share of the power of two below a token's entries.
_STEP = 2.0**-12
# The roundoff that is assumed, in units of 2^−k/√d: as large as identities show it in the median.
# Smaller: right weights are called different; larger: changes go unseen.
_SHARE = 0.25
# By the claim answers must change by so many times their rounding, and change by less than this
# part of it.
_CLEARLY = 8.0


def to_bits(x: Array, bits: int) -> Array:
    """Round to so many significant bits.

    Examples
    --------
    >>> to_bits(np.array([1.001, -3.0]), 8).tolist()
    [1.0, -3.0]
    """
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits))


def with_steps(x: Array, scale: float, slope: Array) -> tuple[Array, Array, Array]:
    """Return x or −x to 8 bits, and x + δ and x + 8δ, away from 0 and to larger answers.

    Entries of x are ``scale`` to twice that; single tokens are answered with x·slope by the claim.
    """
    short = to_bits(np.sign(x) * np.minimum(np.abs(x), scale * (2 - 2.0**-7)), min(OPERAND_BITS))
    rising = short * slope >= 0
    if 2 * np.sum(rising) < len(rising):
        short, rising = -short, short * slope <= 0
    step = scale * _STEP * np.sign(short) * rising
    return short, short + step, short + 8 * step


def operand_bits(y: Array, predicted: Array, size: float, precision: Precision) -> int | None:
    """Say to how many bits operands are rounded; None where nothing shows that they are.

    Parameters
    ----------
    y, predicted : ndarray, shape (3,)
        Answers to the three tokens, and those that the claim foresees.
    size : float
        The size of their terms.
    """
    largest = float(np.abs(y).max())
    rounding = precision.unit * size + precision.relative * largest + precision.absolute
    foreseen, changes = (np.abs(some[1:] - some[0]) for some in (predicted, y))
    told = foreseen > _CLEARLY * rounding
    # values of 11 bits may be lost where those of 8 bits are
    told[1] &= foreseen[1] > 2 * 2.0 ** -OPERAND_BITS[0] * largest
    lost = told & (changes < foreseen / _CLEARLY)
    found = [bits for bits, gone in zip(OPERAND_BITS, lost, strict=True) if gone]
    return min(found, default=None)


def operand_roundoff(bits: int, dim: int) -> float:
    """Return the roundoff that products of operands of so many bits are taken to have."""
    return _SHARE * 2.0**-bits / float(np.sqrt(dim))
