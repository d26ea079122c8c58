"""What a map knows of itself at given inputs: its value, its derivatives, what may round.

A map takes sequences X (B, N, d) to answers (B, P, m) at P positions: the last one, or all. With
θ one of its arrays and y a covector of an answer, `jvp` gives ∂f/∂θ·δθ + ∂f/∂X·δX and `vjp` the
products y·∂f/∂θ and y·∂f/∂X. Arrays that multiply tokens have gradients of few outer products,
Σ_t l_t r_tᵀ, which are kept as such: their norms and inner products need no array of θ's size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from unsoftmax.probes import Array, Indices

Changes: TypeAlias = Mapping[str, Array]
"""Changes of a map's arrays by their names, of their shapes; what is not there does not change."""
Sizes: TypeAlias = Callable[[], Array]
"""The sizes of terms that numbers are made of, computed once they are asked for: fits need none."""


class Size(NamedTuple):
    """How large an array of a map is."""

    shape: tuple[int, ...]
    norms: tuple[float, ...]
    """Of every head or group, where it has an axis for them; none of an array that is not there."""
    each: bool = False
    """Whether it has one."""

    @classmethod
    def of(cls, array: Array | None) -> Size:
        """Measure an array that all share."""
        return cls((), ()) if array is None else cls(array.shape, (_norm(array),))

    @classmethod
    def of_each(cls, stack: Array | None) -> Size:
        """Measure an array with an axis for heads or groups."""
        if stack is None:
            return cls((), ())
        return cls(stack.shape, tuple(_norm(one) for one in stack), True)


@dataclass(frozen=True, slots=True)
class Direct:
    """The products of C covectors of each of B answers with the derivative by one array."""

    values: Array
    """(C, B, …)."""

    @property
    def norms(self) -> Array:
        """Their norms (C, B)."""
        C, B, *shape = self.values.shape
        return lengths_of(self.values.reshape(C, B, int(np.prod(shape))))

    @property
    def whole(self) -> Array:
        """The products themselves (C, B, …), an array of θ's shape each."""
        return self.values

    def dot(self, change: Array) -> Array:
        """Return their inner products (C, B) with a change of the array."""
        return np.asarray(np.tensordot(self.values, change, axes=self.values.ndim - 2))


@dataclass(frozen=True, slots=True)
class Outer:
    """Such products Σ_t l_t r_tᵀ of a matrix."""

    left: Array
    """l, (C, B, T, o)."""
    right: Array
    """r, (B, T, i)."""

    @property
    def norms(self) -> Array:  # noqa: D102
        T, o, i = *self.left.shape[2:], self.right.shape[2]
        if T == 1:
            return lengths_of(self.left[:, :, 0]) * lengths_of(self.right[:, 0])
        if o * i < T * T:
            return Direct(self.whole).norms
        (left, a), (right, b) = in_units(self.left, (2, 3)), in_units(self.right, (1, 2))
        gram = right @ right.swapaxes(1, 2)
        squares = np.sum(left * (gram @ left), axis=(2, 3))
        return np.asarray(np.ldexp(np.sqrt(np.maximum(squares, 0.0)), (a + b)[:, :, 0, 0]))

    @property
    def whole(self) -> Array:  # noqa: D102
        return np.asarray(self.left.swapaxes(2, 3) @ self.right)

    def dot(self, change: Array) -> Array:  # noqa: D102
        return np.asarray(np.sum(self.left * (self.right @ change.T), axis=(2, 3)))


@dataclass(frozen=True, slots=True)
class Transposed:
    """Such products of a matrix by their transposes: of arrays that people store the other way."""

    of: Gradient

    @property
    def norms(self) -> Array:  # noqa: D102
        return self.of.norms

    @property
    def whole(self) -> Array:  # noqa: D102
        return self.of.whole.swapaxes(-2, -1)

    def dot(self, change: Array) -> Array:  # noqa: D102
        return self.of.dot(change.T)


Gradient: TypeAlias = Direct | Outer | Transposed
Gradients: TypeAlias = tuple[Gradient, ...]
"""By one array: a gradient for every head or group of an array that has one for each."""


class OnDemand(Mapping[str, Gradients]):
    """Gradients by name, computed when they are asked for: few are needed at a time."""

    def __init__(self, made: Mapping[str, Callable[[], Gradients]]) -> None:
        self._made = made

    def __getitem__(self, name: str) -> Gradients:
        return self._made[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


@dataclass(frozen=True, slots=True)
class Pullback:
    """The products of covectors with all derivatives."""

    by: Mapping[str, Gradients]
    """By arrays."""
    tokens: Callable[[], Array]

    @property
    def X(self) -> Array:
        """By the tokens, (C, B, N, d)."""
        return self.tokens()


@dataclass(frozen=True, slots=True)
class Linearised:
    """A map at sequences X."""

    value: Array
    """f(X), (B, P, m)."""
    sizes: Sizes
    """Gives `rounding`."""
    jvp: Callable[[Changes, Array | None], Array]
    """Changes of arrays, and of X (B, N, d) or None, to the change of the answer (B, P, m)."""
    vjp: Callable[[Array], Pullback]
    """Covectors (C, B, P, m) to their products with the derivatives."""

    @property
    def rounding(self) -> Array:
        """The size of the terms that are added up, (B, P, m): errors in units of the roundoff."""
        return self.sizes()

    @property
    def every(self) -> Pullback:
        """The products with the m unit covectors, of answers at one position."""
        B, P, m = self.value.shape
        return self.vjp(np.broadcast_to(np.eye(m)[:, None, None], (m, B, P, m)))


# Of lengths between these the squares are sums without any loss, and need no unit: the same bits.
_SHORT, _LONG = 1e-140, 1e140


def in_units(x: Array, axis: int | tuple[int, ...] = -1) -> tuple[Array, Indices]:
    """Return x / 2^e and e, of each part along the axes: its squares then neither vanish nor grow.

    Powers of two are exact: what is computed of entries of usual sizes is the same, bit by bit.
    """
    largest = np.maximum(
        x.max(axis, keepdims=True, initial=0.0), -x.min(axis, keepdims=True, initial=0.0)
    )
    exponents = np.clip(np.frexp(largest)[1], -1000, 1000)
    return x * np.ldexp(1.0, -exponents), exponents


def lengths_of(x: Array) -> Array:
    """Return 2-norms along the last axis, of entries of any size."""
    with np.errstate(over="ignore"):
        lengths = np.asarray(np.linalg.norm(np.asarray(x, dtype=float), axis=-1))
        if np.all((lengths > _SHORT) & (lengths < _LONG)):
            return lengths
        scaled, exponents = in_units(x)
        return np.asarray(np.ldexp(np.linalg.norm(scaled, axis=-1), exponents[..., 0]))


def joint_lengths(left: Array, right: Array) -> Array:
    """Return √Σ_j (l_ij r_kj)², (…, i, k), for l (…, i, j) and r (…, k, j) of any size."""
    (left, a), (right, b) = in_units(left), in_units(right)
    squares = np.square(left) @ np.square(right).swapaxes(-2, -1)
    with np.errstate(over="ignore"):
        return np.asarray(np.ldexp(np.sqrt(squares), a + b.swapaxes(-2, -1)))


def _norm(array: Array) -> float:
    return float(lengths_of(array.reshape(-1)))


def at_last(of_x: Array, tokens: int) -> Array:
    """Return products by the last tokens as products by all of them, (C, B, N, d)."""
    whole = np.zeros((*of_x.shape[:2], tokens, of_x.shape[3]))
    whole[:, :, tokens - of_x.shape[2] :] = of_x
    return whole
