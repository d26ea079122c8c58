"""Tokens on a coarse binary grid: what is asked is what float32 sees.

Most targets compute in float32. Offsets a, query tokens b and sums a + b that are multiples of
one step, and less than 2^23 steps, reach such a target as they are; so no error of the tokens has
to be bounded, and what is subtracted from answers belongs to the tokens that were asked.
"""

import numpy as np

from unsoftmax.measure.precision import FLOAT32_BITS
from unsoftmax.probes import Array


def on_one_grid(*tokens: Array, spare: int = 4) -> tuple[Array, ...]:
    """Round arrays of tokens to multiples of one step; sums of two of them are float32 numbers.

    Parameters
    ----------
    *tokens : ndarray
        Tokens that are added to each other.
    spare : int
        Bits of float32 that are not used: 2 for the sum of two of them and its sign, others so
        that sums of three or four, and products with small numbers, stay exact as well.

    Examples
    --------
    >>> a, b = on_one_grid(np.array([np.pi * 1024]), np.array([np.e]))
    >>> float(a[0]), float(b[0]), bool(np.float32(a[0] + b[0]) == a[0] + b[0])
    (3216.9921875, 2.71875, True)
    """
    largest = max((float(np.max(np.abs(part), initial=0.0)) for part in tokens), default=0.0)
    if not largest:
        return tokens
    step = 2.0 ** (np.ceil(np.log2(largest)) - (FLOAT32_BITS - spare))
    return tuple(step * np.rint(part / step) for part in tokens)
