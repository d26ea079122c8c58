"""Settings that had another name, or other values, before 0.1.0: taken until 0.2.0, with a warning.

`OLD` is all there is to keep: programs, the command line and ledgers read it. A name is taken out
of it one minor release after it got there.
"""

import functools
import warnings
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Old(NamedTuple):
    """A setting's old name, or its old values under the same name."""

    name: str
    now: str
    kind: type = int
    """What it is on a command line."""
    values: Mapping[Any, Any] = {}
    """Old values and what they are now; others are the same."""

    def value(self, old: Any) -> Any:
        """Return what a value is now."""
        return self.values.get(old, old) if old is None or isinstance(old, str) else old

    def __contains__(self, given: object) -> bool:
        """Whether settings have this spelling."""
        if not isinstance(given, Mapping) or self.name not in given:
            return False
        return self.name != self.now or self.value(given[self.name]) is not given[self.name]


_PROFILES = {"auto": None, "lean": False, "finest": True}

OLD: Mapping[str, tuple[Old, ...]] = {
    "AttentionLayerLearner": (
        Old("head_dim", "rank"),
        Old("profile", "polish", str, _PROFILES),
        Old("polish", "polish", str, _PROFILES),
        Old("max_heads", "max_heads", int, {None: 64}),
    )
}
"""The old spellings of each learner's settings."""


def takes_old_spellings(learner: type[T]) -> type[T]:
    """Let a learner be made, and read, with its settings' old names as well.

    Examples
    --------
    >>> import warnings, unsoftmax as us
    >>> with warnings.catch_warnings(record=True):
    ...     warnings.simplefilter("always")
    ...     old = us.learners.AttentionLayerLearner(8, head_dim=2, profile="finest")
    >>> old == us.learners.AttentionLayerLearner(8, rank=2, polish=True)
    True
    """
    kind: Any = learner
    made, spellings = kind.__init__, OLD[learner.__name__]
    in_place = [field.name for field in fields(kind) if not field.kw_only]

    @functools.wraps(made)
    def __init__(self: Any, *args: Any, **given: Any) -> None:
        placed = dict(zip(in_place, args, strict=False))
        if len(args) == len(placed) and not placed.keys() & given.keys():
            args, given = (), {**placed, **given}
        for old in spellings:
            if given in old:
                _warn(learner, old)
                if old.now != old.name and old.now in given:
                    raise TypeError(f"{old.name} is the old name of {old.now}: give {old.now}.")
                given[old.now] = old.value(given.pop(old.name))
        made(self, *args, **given)

    kind.__init__ = __init__
    for old in spellings:
        if old.name != old.now:
            setattr(kind, old.name, property(functools.partial(_read, old=old)))
    return learner


def as_spelled_now(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded settings of a learner, and of those within it, as they are written now.

    Examples
    --------
    >>> as_spelled_now({"learner": "AttentionLayerLearner", "head_dim": 2, "profile": "auto"})
    {'learner': 'AttentionLayerLearner', 'rank': 2, 'polish': None}
    """
    now = {
        name: as_spelled_now(value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
    }
    for old in OLD.get(str(settings.get("learner")), ()):
        if now in old:
            now[old.now] = old.value(now.pop(old.name))
    return now


def _read(learner: Any, old: Old) -> Any:
    """Return a setting under its old name."""
    _warn(type(learner), old)
    value = getattr(learner, old.now)
    return next((was for was, now in old.values.items() if now is value), value)


def _warn(learner: type, old: Old) -> None:
    said = f"{old.name} is spelled {old.now}" if old.name != old.now else f"{old.now} changed"
    warnings.warn(
        f"{learner.__name__}: {said} from 0.1.0 on, and the old spelling goes with 0.2.0; see "
        "docs/learners.md.",
        DeprecationWarning,
        stacklevel=3,
    )
