"""Arrays that models keep and take: read-only float64 parameters, batches of the right shape.

Every class says of what axes its arrays are; `declared` alone checks them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.probes import Array
from unsoftmax.protocol import as_array

T = TypeVar("T")

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


def declared(
    given: Mapping[str, ArrayLike | None],
    axes: Mapping[str, str],
    sizes: Mapping[str, int] | None = None,
    beside: str = "",
) -> dict[str, Array]:
    """Return frozen arrays of the axes that are declared, or raise ValueError for one of others.

    Parameters
    ----------
    given : mapping
        Arrays by name; None, or none of a name, where one is not there.
    axes : mapping
        Names of every array's axes. An axis is as long wherever it stands, "2p" twice as long as
        "p", and "d≥1" at least 1: arrays with such axes come first, and others must fit them.
        Behind "=" stands what may be left out: "= 0" is zeros then, "= none" is not there.
    sizes : mapping, optional
        How long some axes are.
    beside : str, optional
        Where these sizes come from, to end a sentence with.

    Examples
    --------
    >>> declared({"A": [[1, 2]], "b": None}, {"A": "m d≥1", "b": "m = 0"})
    {'A': array([[1., 2.]]), 'b': array([0.])}
    >>> declared({"A": [[1, 2]], "b": [1, 2]}, {"A": "m d≥1", "b": "m = 0"})
    Traceback (most recent call last):
    ValueError: b must have shape (1,) beside A of shape (1, 2); it has shape (2,).
    """
    known, found, fixed = {**(sizes or {})}, dict[str, Array](), [beside] if beside else []
    for name in sorted(axes, key=lambda name: "≥" not in axes[name]):
        names, least, default = _read(axes[name])
        array = given.get(name)
        if array is None:
            if default != "0":
                continue
            array = np.zeros([known[axis] for axis in names])
        x = found[name] = frozen(name, array)
        wanted = [known.get(axis, axis) for axis in names]
        fits = len(wanted) == x.ndim and all(
            n == known.get(axis, n) >= least.get(axis, 0)
            for axis, n in zip(names, x.shape, strict=True)
        )
        if not fits:
            shape = str(tuple(wanted)).replace("'", "")
            some = " and ".join(f"{axis} ≥ {n}" for axis, n in least.items() if n)
            hint = f" with {some}" if some else ""
            hint += f" beside {', '.join(fixed)}" if fixed else ""
            raise ValueError(f"{name} must have shape {shape}{hint}; it has shape {x.shape}.")
        for axis, n in zip(names, x.shape, strict=True):
            known |= {axis: n, f"2{axis}": 2 * n}
        if least:
            fixed.append(f"{name} of shape {x.shape}")
    return {name: found[name] for name in axes if name in found}


@cache
def _read(axes: str) -> tuple[list[str], dict[str, int], str]:
    """Return the names of axes, what some must be at least, and what stands behind "="."""
    words, _, default = axes.partition("=")
    pairs = [word.split("≥") for word in words.split()]
    least = {name: int(n) for name, *some in pairs for n in some}
    return [name for name, *_ in pairs], least, default.strip()


def axes(**of: str) -> Mapping[str, str]:
    """Name the axes of every array, as `declared` takes them."""
    return MappingProxyType(of)


def of_several(axes: Mapping[str, str]) -> Mapping[str, str]:
    """Return the axes of several heads' arrays, where each has one of everything but c."""
    return {name: own if name == "c" else f"H {own}" for name, own in axes.items()}


class Parameter(property, Generic[T]):
    """A parameter of a model, read by its name: an array, or one number or flag."""

    def __init__(self, kind: Callable[[Array], T], doc: str) -> None:
        super().__init__(lambda model: kind(model._arrays[self.name]), doc=doc)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    if TYPE_CHECKING:

        def __get__(self, model: Any, owner: type | None = None) -> T: ...  # type: ignore[override]


class Length(property):
    """How long an axis of a model's arrays is."""

    def __init__(self, axis: str, doc: str) -> None:
        super().__init__(lambda model: model._length(axis), doc=doc)

    if TYPE_CHECKING:

        def __get__(self, model: Any, owner: type | None = None) -> int: ...  # type: ignore[override]


class FrozenArrays(ABC):
    """Named arrays that nobody can change: the parameters of a model, or of a part of one."""

    _axes: ClassVar[Mapping[str, str]]
    """The axes of its arrays, as `declared` takes them."""
    _products: ClassVar[Mapping[str, str]] = {"W": "KQ", "M": "OV"}
    """Which two arrays may stand in place of one."""
    _inner: ClassVar[tuple[str, ...]] = ()
    """What names of its parts' arrays begin with."""
    _arrays: dict[str, Array]

    @classmethod
    def _of(cls, given: Mapping[str, ArrayLike | None], *parts: Any) -> Self:
        """Build it from arrays, and what is no array: what its constructors do."""
        made = cls.__new__(cls)
        made._set(given, *parts)
        return made

    def _set(self, given: Mapping[str, ArrayLike | None]) -> None:
        self._arrays = declared(given, self._axes)

    def arrays(self) -> dict[str, Array]:
        """Return the parameters by name, as `from_arrays` takes them."""
        return dict(self._arrays)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Build it from what `arrays` returned."""
        cls._refuse_others(arrays)
        return cls._of(arrays)

    @classmethod
    def _refuse_others(cls, arrays: Mapping[str, Any]) -> None:
        """Refuse names that are not those of its arrays."""
        if not cls.has_parameters(arrays):
            needed = [name for name, own in cls._axes.items() if "=" not in own]
            either = {name: pair for name, pair in cls._products.items() if name in needed}
            parts = (name for name in needed if name not in "".join(either.values()))
            said = (f"{n}, or {' and '.join(either[n])}" if n in either else n for n in parts)
            raise ValueError(
                f"A {cls.__name__} has {', beside '.join(said)}; given were "
                f"{', '.join(sorted(arrays)) or 'none'}."
            )

    @classmethod
    def has_parameters(cls, names: Iterable[str]) -> bool:
        """Tell whether `from_arrays` takes arrays of these names."""
        known, axes = {n for n in names if not n.startswith(cls._inner)}, {**cls._axes}
        for whole, factors in cls._products.items():
            for name in (factors if whole in known else whole) if whole in axes else ():
                del axes[name]
        return {name for name in axes if "=" not in axes[name]} <= known <= axes.keys()

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return self._length("d")

    def _length(self, axis: str) -> int:
        """Return how long an axis is, by the first array that has it."""
        places = ((name, _read(own)[0]) for name, own in self._axes.items())
        name, axes = next(x for x in places if axis in x[1] and x[0] in self._arrays)
        return int(self._arrays[name].shape[axes.index(axis)])

    def parameter_norm(self, name: str) -> float:
        """Return the norm of a parameter, 0 for what is none (a bound on the function)."""
        return float(np.linalg.norm(self._arrays[name])) if name in self._arrays else 0.0

    @abstractmethod
    def _sizes(self) -> tuple[str, ...]:
        """Return the sizes that `repr` shows, such as "d=8"."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._sizes())})"

    def __getstate__(self) -> dict[str, Any]:
        return {"arrays": self._arrays}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = type(self).from_arrays(state["arrays"]).__dict__


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
