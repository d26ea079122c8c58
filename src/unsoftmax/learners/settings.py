"""A learner's settings: checked where they are given, and written as JSON."""

import functools
import hashlib
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar, get_args, get_type_hints

import numpy as np

from unsoftmax.learners.compose import refusing_no_numbers
from unsoftmax.models.rotary import Rotary
from unsoftmax.protocol import Outputs

# Squares of sums of numbers below this, or above its inverse, leave float64.
_SMALLEST = 1e-60


def whole_number(name: str, value: Any, least: int) -> None:
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


def rank_up_to(dim: int, rank: Any, least: int) -> None:
    """Refuse what is no rank, of at least ``least``, of matrices (dim, dim).

    Raises
    ------
    TypeError, ValueError
        It is of another type, too small or too large.
    """
    whole_number("rank", rank, least)
    if rank > dim:
        raise ValueError(f"rank must be at most dim = {dim}; it is {rank}.")


def flag(name: str, value: Any) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False; it is {value!r}.")


def positive(name: str, value: Any) -> None:
    """Refuse what is no finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a number; it is {value!r}.")
    if not _SMALLEST <= float(value) <= 1 / _SMALLEST:
        raise ValueError(
            f"{name} must be a number above 0, from {_SMALLEST:.0e} to {1 / _SMALLEST:.0e}; it is "
            f"{value}."
        )


def at_least_0(name: str, value: Any) -> None:
    """Refuse what is no finite number of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a number; it is {value!r}.")
    if not 0 <= float(value) < float("inf"):
        raise ValueError(f"{name} must be a finite number, 0 or more; it is {value}.")


def one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    """Refuse a name that is not known."""
    if value not in known:
        listed = " or ".join([", ".join(f'"{one}"' for one in known[:-1]), f'"{known[-1]}"'])
        raise ValueError(f"{name} must be {listed}; it is {value!r}.")


def given_frequencies(
    rotary: bool | Rotary, rotary_base: float | None, rank: int | None
) -> tuple[bool, Rotary | None]:
    """Return whether a learner is to learn of positions, and the frequencies where it was given.

    Raises
    ------
    ValueError, TypeError
        Settings are out of range, not of their type, or do not go together.
    """
    if rotary_base is not None and rank is None and not isinstance(rotary, Rotary):
        raise ValueError(
            "rank must be given beside rotary_base: it is the head size, twice as many as there "
            "are frequencies."
        )
    refuse_contrary(rotary, rotary_base, "rank", rank)
    given = rotary if isinstance(rotary, Rotary) else None
    if rotary_base is not None and rank is not None:
        given = Rotary.of(float(rotary_base), rank)
    if given is not None and rank is not None and 2 * len(given) < rank:
        raise ValueError(
            f"rotary has {len(given)} frequencies, too few for the planes of rank = {rank}."
        )
    return given is not None or bool(rotary), given


def refuse_contrary(
    rotary: bool | Rotary, rotary_base: float | None, rows: str, count: int | None
) -> None:
    """Refuse what cannot be said of frequencies; ``rows`` names the setting that counts rows.

    Raises
    ------
    ValueError, TypeError
        Settings are out of range, not of their type, or do not go together.
    """
    if not isinstance(rotary, (bool, np.bool_, Rotary)):
        raise TypeError(f"rotary must be True, False or a Rotary; it is {rotary!r}.")
    if rotary_base is None:
        return
    positive("rotary_base", rotary_base)
    if isinstance(rotary, Rotary):
        raise ValueError("rotary_base is given beside rotary: one of them says the same.")
    if count is not None and count % 2:
        raise ValueError(
            f"rotary_base needs an even {rows} of keys and queries, whose planes have two "
            f"coordinates each; it is {count}."
        )


class Configured:
    """A learner whose settings are its fields.

    Keyword-only fields, those that were added later, are named only where they differ from their
    defaults: a ledger stays valid when a learner gets another setting.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse targets whose answers end in errors of solvers, whatever the learner."""
        super().__init_subclass__(**options)
        steps = cls.__dict__.get("steps")
        if steps is not None and not hasattr(steps, "__wrapped__"):

            @functools.wraps(steps)
            def refusing(self: Any, checks: int) -> Any:
                return refusing_no_numbers(steps(self, checks))

            cls.steps = refusing  # type: ignore[attr-defined]

    outputs: ClassVar[Outputs] = "scalar"

    def settings(self) -> dict[str, Any]:
        """Return everything that determines the probes, as nested JSON; arrays by their hash."""
        settings: dict[str, Any] = {"learner": type(self).__name__}
        learner: Any = type(self)
        hints = _declared(learner)
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.kw_only and value == field.default:
                continue
            settings[field.name] = as_json(value, hints[field.name])
        return settings


@cache
def _declared(learner: Any) -> dict[str, Any]:
    """Return the declared types of a class's fields, which are evaluated once."""
    return get_type_hints(learner)


def as_json(value: Any, hint: Any = None) -> Any:
    """Return a setting as JSON.

    Numbers by their declared type, arrays by hash, learners nested, functions by name.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, float, np.number)):
        whole_number = isinstance(value, (int, np.integer))
        return int(value) if whole_number and float not in _alternatives(hint) else float(value)
    if isinstance(value, np.ndarray):
        return hashlib.sha256(repr(value.shape).encode() + value.tobytes()).hexdigest()
    if hasattr(value, "vectors"):  # a table
        return as_json(value.vectors)
    if hasattr(value, "settings"):
        return {**value.settings(), "revision": value.revision}
    if callable(value):
        return name_of(value)
    return [as_json(part) for part in value]


def name_of(function: Any) -> str:
    """Return what a function is called, module:function; of other callables, their class's name.

    Examples
    --------
    >>> import functools
    >>> name_of(functools.partial(name_of, 3))
    'unsoftmax.learners.settings:name_of'
    """
    if isinstance(function, functools.partial):
        return name_of(function.func)
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the types that a hint such as ``float | None`` allows."""
    return get_args(hint) or (hint,)
