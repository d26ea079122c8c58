"""What a run may spend over its life, and how patient it is with a target that fails or waits."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

# Upper limit of both durations, 11 days: the operating system may refuse a longer sleep.
_MOST_S = 1e6


def in_seconds(duration: float) -> str:
    """Write a duration for people: three digits, and all of them from 100 s on."""
    return f"{duration:,.0f} s" if 100 <= duration < 1e9 else f"{duration:.3g} s"


def duration(name: str, seconds: Any, least_s: float = 0.0) -> float:
    """Return an argument as seconds.

    Raises
    ------
    ValueError, TypeError
        It is out of range, or no number.
    """
    fits = isinstance(seconds, Real) and not isinstance(seconds, bool)
    if not fits:
        raise TypeError(f"{name} must be a number of seconds; it is {seconds!r}.")
    if not least_s <= seconds <= _MOST_S:
        raise ValueError(f"{name} must be {least_s:g} s to {_MOST_S:,.0f} s; it is {seconds}.")
    return float(seconds)


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a sequence is asked, and how long the runner waits between the tries.

    Every try counts in the budget. A batch that the target refuses with `unsoftmax.RetryLater`
    counts neither as a try nor in the budget: it is bounded by ``longest_wait_s`` alone.

    Parameters
    ----------
    tries : int
        Calls in which a sequence may fail before the run ends with an `OracleError`; 1 asks
        once. A failure is an exception (MemoryError and `OracleError` end the run at once) or
        an answer that is not finite.
    pause_s : float
        Pause before the second try, in seconds; it doubles from try to try, up to
        ``longest_wait_s``. Also the shortest wait after a `unsoftmax.RetryLater`, so that
        a target that says 0 again and again is not asked in a busy loop.
    longest_wait_s : float
        Longest time, in seconds, for which the target may put off a batch with
        `unsoftmax.RetryLater`, from its first refusal on; then the run ends with an
        `OracleError`. 0 waits for nothing. 10 minutes outlast a limit by the minute, and
        report an endpoint that is down within the hour.

    Raises
    ------
    ValueError, TypeError
        An argument is out of range, or not of its type.

    Examples
    --------
    >>> patient = Retries(tries=5, longest_wait_s=3600.0)
    >>> [patient.pause(failed) for failed in (1, 2, 3)]
    [0.1, 0.2, 0.4]
    """

    tries: int = 3
    pause_s: float = 0.1
    longest_wait_s: float = 600.0

    def __post_init__(self) -> None:
        whole("retries counts all tries and", self.tries, 1)
        for name in ("pause_s", "longest_wait_s"):
            duration(name, getattr(self, name))

    @classmethod
    def of(cls, retries: int | Retries) -> Retries:
        """Take a number of tries for a `Retries` with that many."""
        return retries if isinstance(retries, Retries) else cls(tries=retries)

    def pause(self, failed: int) -> float:
        """Return the pause in seconds after so many failed tries."""
        # beyond 2⁶⁰ every pause is the longest
        return min(self.pause_s * 2.0 ** min(failed - 1, 60), self.longest_wait_s)


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
