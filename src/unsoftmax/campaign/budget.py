"""What a ledger may spend over its life."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any


@dataclass(frozen=True, slots=True)
class Budget:
    """What a ledger may spend over its life, retries and queries in doubt included.

    A batch that the target refuses with `unsoftmax.RetryLater` is not spent: the target says
    that it answered none of it.

    Parameters
    ----------
    queries, tokens : int, optional
        Sequences asked, and tokens in them; None for no limit.
    """

    queries: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        for name, limit in (("queries", self.queries), ("tokens", self.tokens)):
            if limit is not None:
                whole(f"A budget of {name}", limit, 0)

    def __str__(self) -> str:
        limits = (("queries", self.queries), ("tokens", self.tokens))
        return " and ".join(f"{limit:,} {name}" for name, limit in limits if limit is not None)


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return an argument as an int.

    Raises
    ------
    ValueError
        It is no whole number, too small or too large.
    """
    fits = isinstance(value, Integral) and not isinstance(value, bool)
    if not fits or value < least or (most is not None and value > most):
        limits = f"{least} or more" if most is None else f"{least} to {most:,}"
        raise ValueError(f"{name} must be a whole number (int), {limits}; it is {value!r}.")
    return int(value)
