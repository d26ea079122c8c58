"""Parameters as every model keeps them: float64 copies that nobody can change."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.probes import Array

UNIT = 2.0**-53
"""Unit roundoff of float64: rounding to nearest changes a number by at most this share of it."""


def frozen(name: str, values: ArrayLike) -> Array:
    """Copy real, finite numbers into a read-only float64 array."""
    given = np.asarray(values)
    if given.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real numbers; it holds {given.dtype}.")
    # C order whatever was given: a saved copy then gives the same products, to the last bit
    array = np.array(given, dtype=np.float64, order="C")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite; it holds NaN or infinity.")
    array.flags.writeable = False
    return array
