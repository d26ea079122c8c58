"""Check a learner's settings: a wrong one is told where it is given, not where it is used."""

from __future__ import annotations

from typing import Any

import numpy as np

# Squares of numbers beyond leave float64.
_SMALLEST = 1e-60


def whole(name: str, value: Any, least: int) -> None:
    """Refuse what is no whole number of at least ``least``.

    Raises
    ------
    TypeError, ValueError
        It is of another type, or too small.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number; it is {value!r}.")
    if value < least:
        raise ValueError(f"{name} must be {least} or more; it is {value}.")


def flag(name: str, value: Any) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False; it is {value!r}.")


def positive(name: str, value: Any) -> None:
    """Refuse what is no finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a number; it is {value!r}.")
    if not _SMALLEST <= value <= 1 / _SMALLEST:
        raise ValueError(
            f"{name} must be a number above 0, from {_SMALLEST:.0e} to {1 / _SMALLEST:.0e}; it is "
            f"{value}."
        )


def one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    """Refuse a name that is not known."""
    if value not in known:
        listed = " or ".join([", ".join(f'"{one}"' for one in known[:-1]), f'"{known[-1]}"'])
        raise ValueError(f"{name} must be {listed}; it is {value!r}.")
