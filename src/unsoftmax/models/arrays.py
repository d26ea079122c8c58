"""Arrays that models keep and take: read-only float64 parameters, batches of the right shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.probes import Array
from unsoftmax.protocol import as_array

UNIT = 2.0**-53
"""Unit roundoff of float64: rounding to nearest changes a number by at most this share of it."""

TINY = 2.0**-1022
"""The smallest float64 of full precision; a bound on rounding errors is never smaller."""


def frozen(name: str, values: ArrayLike) -> Array:
    """Copy real, finite numbers into a read-only float64 array."""
    given = as_array(values)
    if given.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real numbers; it holds {given.dtype}.")
    # C order whatever was given: a saved copy then gives the same products, to the last bit
    array = np.array(given, dtype=np.float64, order="C")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite; it holds NaN, infinity or masked numbers.")
    array.flags.writeable = False
    return array


def refuse_shapes(
    arrays: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]], beside: str
) -> None:
    """Raise ValueError for the first array of another shape; ``beside`` ends the sentence."""
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise ValueError(
                f"{name} must have shape {shape} {beside}; it has shape {arrays[name].shape}."
            )


def split(arrays: Mapping[str, Any], prefix: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arrays whose names begin with a prefix, without it, and the others."""
    own = {name[len(prefix) :]: x for name, x in arrays.items() if name.startswith(prefix)}
    return own, {name: x for name, x in arrays.items() if not name.startswith(prefix)}


def numbered(arrays: Mapping[str, Any], noun: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return arrays named as ``heads.0.W`` is for every number, by the rest of it, and the others.

    Raises
    ------
    ValueError
        Numbers do not run from 0.
    """
    named, others = split(arrays, f"{noun}.")
    parts: dict[str, dict[str, Any]] = {}
    for name, x in named.items():
        place, _, own = name.partition(".")
        parts.setdefault(place, {})[own] = x
    places = [str(k) for k in range(len(parts))]
    if parts.keys() != {*places}:
        found = ", ".join(sorted(f"{noun}.{place}" for place in parts))
        raise ValueError(f"{noun} must be numbered from 0; here are {found}.")
    return [parts[place] for place in places], others


def sequences(X: ArrayLike, dim: int, what: str) -> Array:
    """Return X as float64 if it has shape (B, N, d) with N ≥ 1, or raise ValueError."""
    X = np.asarray(as_array(X), dtype=np.float64)
    if X.ndim != 3 or X.shape[2] != dim or not X.shape[1]:
        raise ValueError(
            f"This {what} takes sequences of shape (B, N, {dim}) with N ≥ 1; "
            f"it was given shape {X.shape}."
        )
    return X


def points(X: ArrayLike, dim: int, what: str) -> Array:
    """Return X as float64 points (B, d) if it is that or (B, 1, d), or raise ValueError."""
    x = np.asarray(as_array(X), dtype=np.float64)
    if x.ndim == 3 and x.shape[1] == 1:
        x = x[:, 0]
    if x.ndim != 2 or x.shape[1] != dim:
        raise ValueError(
            f"This {what} takes points of shape (B, {dim}), or sequences of one token, "
            f"(B, 1, {dim}); it was given shape {np.shape(X)}."
        )
    return x
