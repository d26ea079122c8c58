"""What is asked: probes, made slice by slice from a small design.

A *probe* is one sequence of real vectors, N×d; its last row is the query token. Where a target
takes ids of a vocabulary a token is its id: a sequence is N×1, of whole numbers. `Probes` is a
family of probes of one length N. Its *design* (the factor arrays) is small and its slices
are made on demand, so that memory is bounded by the slice and never by the number of
queries. A *round* is a list of `Probes` that may be answered in any order.

Nothing here knows what the probes are for: that is the learner's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.intp]
Flags: TypeAlias = NDArray[np.bool_]
Design: TypeAlias = "dict[str, NDArray[np.float64] | NDArray[np.intp]]"
Purpose: TypeAlias = Literal["data", "pilot", "again", "check"]
Round: TypeAlias = "list[Probes]"

FARTHEST = 2.0**127
"""Norm of the longest token that float32, in which most targets compute, holds in any direction."""


class Designed(ABC):
    """A dataclass that a few arrays determine: by default its fields, those that are there."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def design(self) -> Design:
        """Everything that determines it, as named arrays."""
        found: Design = {}
        for name in (one.name for one in fields(self) if one.name not in ("phase", "purpose")):
            value = getattr(self, name)
            if isinstance(value, Designed):
                found |= {f"{name}.{part}": array for part, array in value.design().items()}
            elif value is not None:
                found[name] = np.atleast_1d(value)
        return found


class LazyRows(Designed):
    """Rows of a matrix that are made when they are asked for."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Number of rows and their dimension."""

    @abstractmethod
    def __getitem__(self, index: Indices) -> Array: ...

    @abstractmethod
    def pick(self, index: Indices) -> LazyRows | Array:
        """Return some of the rows."""


@dataclass(frozen=True, slots=True)
class UnitVectors(LazyRows):
    """The rows e_1 … e_d of the identity, without the d×d array."""

    dim: int

    @property
    def shape(self) -> tuple[int, int]:  # noqa: D102
        return self.dim, self.dim

    def __getitem__(self, index: Indices) -> Array:
        rows = np.zeros((len(index), self.dim))
        rows[np.arange(len(index)), index] = 1.0
        return rows

    def pick(self, index: Indices) -> LazyRows | Array:  # noqa: D102
        return self if np.array_equal(index, np.arange(self.dim)) else self[index]

    def design(self) -> Design:  # noqa: D102
        return {"unit_vectors": np.array([self.dim], dtype=np.intp)}


Rows: TypeAlias = "Array | LazyRows"


def pick(rows: Rows, index: Indices) -> Rows:
    """Return some of the rows, lazy if they were."""
    return rows.pick(index) if isinstance(rows, LazyRows) else rows[index]


@dataclass(frozen=True, slots=True)
class Probes(Designed):
    """A lazy family of sequences of one length.

    Attributes
    ----------
    phase : str
        The step of the learner that asks, in the words of its module; shown as progress.
    purpose : {"data", "pilot", "again", "check"}
        What the answers are for; queries are counted by it. Pilots are data that also set a
        scale, "again" repeats a probe that taught nothing, "check" is never learned from.
    """

    phase: str = field(kw_only=True)
    purpose: Purpose = field(kw_only=True)

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Length N of every sequence."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Dimension d of every token."""

    @property
    def of_ids(self) -> bool:
        """Whether tokens are ids of a vocabulary, one number each."""
        return False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, span: slice) -> Array:
        """Make the probes of a span: a fresh array of shape (stop − start, N, d)."""


@dataclass(frozen=True, slots=True)
class Sequences(Probes):
    """Probes written out: ``X`` of shape (n, N, d)."""

    X: Array

    @property
    def tokens(self) -> int:  # noqa: D102
        return int(self.X.shape[1])

    @property
    def dim(self) -> int:  # noqa: D102
        return int(self.X.shape[2])

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, span: slice) -> Array:
        return self.X[span].copy()


@dataclass(frozen=True, slots=True)
class Ids(Probes):
    """Sequences of ids of a vocabulary: ``ids`` of shape (n, N)."""

    ids: Indices

    @property
    def tokens(self) -> int:  # noqa: D102
        return int(self.ids.shape[1])

    @property
    def dim(self) -> int:  # noqa: D102
        return 1

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def of_ids(self) -> bool:  # noqa: D102
        return True

    def __getitem__(self, span: slice) -> Array:
        return self.ids[span, :, None].astype(np.float64)


@dataclass(frozen=True, slots=True)
class Singles(Probes):
    """Sequences of one token: the rows, times one scale."""

    rows: Rows
    scale: float = 1.0

    @property
    def tokens(self) -> int:  # noqa: D102
        return 1

    @property
    def dim(self) -> int:  # noqa: D102
        return int(self.rows.shape[1])

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    def __getitem__(self, span: slice) -> Array:
        picked = np.arange(*span.indices(len(self)))
        return (self.scale * self.rows[picked])[:, None, :]


@dataclass(frozen=True, slots=True)
class OffsetProbes(Probes):
    """Two tokens, an offset beside a query token: [α a + β b; β b]."""

    offsets: Rows
    queries: Rows

    @property
    def tokens(self) -> int:  # noqa: D102
        return 2

    @property
    def dim(self) -> int:  # noqa: D102
        return int(self.offsets.shape[1])


@dataclass(frozen=True, slots=True)
class Grid(OffsetProbes):
    """Every offset a_i with every query token b_j: the two tokens [α_j a_i + β_j b_j; β_j b_j].

    Ordered by query token, then by offset; the other way round where offsets are lazy, so
    that each is made once.
    """

    alpha: Array
    beta: Array

    def __len__(self) -> int:
        return int(self.offsets.shape[0]) * int(self.queries.shape[0])

    def table(self, y: Array) -> Array:
        """Arrange answers as (query tokens, offsets)."""
        if isinstance(self.offsets, LazyRows):
            return y.reshape(self.offsets.shape[0], -1).T
        return y.reshape(-1, self.offsets.shape[0])

    def __getitem__(self, span: slice) -> Array:
        start, stop, _ = span.indices(len(self))
        X = np.empty((max(0, stop - start), 2, self.dim))
        if not len(X):
            return X
        if isinstance(self.offsets, LazyRows):
            return self._by_offset(self.offsets, start, stop, X)
        per_token = len(self.offsets)
        first, last = start // per_token, (stop - 1) // per_token
        b = self.beta[first : last + 1, None] * self.queries[np.arange(first, last + 1)]
        # scales are few: tokens that share one share its scaled offsets
        scale, scaled = 1.0, self.offsets
        done = start
        while done < stop:
            j, i = divmod(done, per_token)
            take = min(per_token - i, stop - done)
            if self.alpha[j] != scale:
                scale, scaled = self.alpha[j], self.alpha[j] * self.offsets
            rows = X[done - start : done - start + take]
            np.add(scaled[i : i + take], b[j - first], out=rows[:, 0])
            rows[:, 1] = b[j - first]
            done += take
        return X

    def _by_offset(self, offsets: LazyRows, start: int, stop: int, X: Array) -> Array:
        per_offset = int(self.queries.shape[0])
        b = self.beta[:, None] * self.queries[np.arange(per_offset)]
        first, last = start // per_offset, (stop - 1) // per_offset
        rows = offsets[np.arange(first, last + 1)]
        for i in range(first, last + 1):
            low, high = max(start, i * per_offset), min(stop, (i + 1) * per_offset)
            j = slice(low - i * per_offset, high - i * per_offset)
            pair = X[low - start : high - start]
            np.multiply(self.alpha[j, None], rows[i - first], out=pair[:, 0])
            pair[:, 0] += b[j]
            pair[:, 1] = b[j]
        return X


@dataclass(frozen=True, slots=True)
class Pairs(OffsetProbes):
    """One offset, one query token and one pair of scales each.

    Probe k is [α_k a_i + β_k b_j; β_k b_j] with i = ``i[k]``, j = ``j[k]``.
    """

    i: Indices
    j: Indices
    alpha: Array
    beta: Array

    def __len__(self) -> int:
        return len(self.i)

    def __getitem__(self, span: slice) -> Array:
        b = self.beta[span, None] * self.queries[self.j[span]]
        return np.stack([self.alpha[span, None] * self.offsets[self.i[span]] + b, b], axis=1)


@dataclass(frozen=True, slots=True)
class Changed(Probes):
    """Probes made of others, ``inner``."""

    inner: Probes

    @classmethod
    def of(cls, inner: Probes, *how: Any) -> Self:
        """Change probes under their own phase and purpose."""
        made: type[Any] = cls
        changed: Self = made(inner, *how, phase=inner.phase, purpose=inner.purpose)
        return changed

    @property
    def tokens(self) -> int:  # noqa: D102
        return self.inner.tokens

    @property
    def dim(self) -> int:  # noqa: D102
        return self.inner.dim

    @property
    def of_ids(self) -> bool:  # noqa: D102
        return self.inner.of_ids

    def __len__(self) -> int:
        return len(self.inner)


@dataclass(frozen=True, slots=True)
class Embedded(Changed):
    """Probes of a subspace: every token x of ``inner`` becomes E x, E of shape (d, k)."""

    basis: Array

    @property
    def dim(self) -> int:  # noqa: D102
        return len(self.basis)

    def __getitem__(self, span: slice) -> Array:
        return np.asarray(self.inner[span] @ self.basis.T)


@dataclass(frozen=True, slots=True)
class Moved(Changed):
    """Probes around another place: every token x of ``inner`` becomes x + b, b (d,)."""

    by: Array

    def __getitem__(self, span: slice) -> Array:
        return np.asarray(self.inner[span] + self.by)


@dataclass(frozen=True, slots=True)
class Copies(Changed):
    """Probes whose tokens are repeated: the i-th token of every sequence, ``copies[i]`` times."""

    copies: Indices

    @property
    def tokens(self) -> int:  # noqa: D102
        return int(np.sum(self.copies))

    def __getitem__(self, span: slice) -> Array:
        return np.repeat(self.inner[span], self.copies, axis=1)


@dataclass(frozen=True, slots=True)
class Spaced(Changed):
    """Probes of ``inner`` with zero tokens before the query token: it is so much farther away."""

    zeros: int

    @property
    def tokens(self) -> int:  # noqa: D102
        return self.inner.tokens + self.zeros

    def __getitem__(self, span: slice) -> Array:
        X = self.inner[span]
        zeros = np.zeros((len(X), self.zeros, self.dim))
        return np.concatenate([X[:, :-1], zeros, X[:, -1:]], axis=1)


@dataclass(frozen=True, slots=True)
class Parted(Changed):
    """Probes of ``inner``, [a+b; …; a+b; b], as one token before the other: [0; …; ±g a; b/g].

    Zero tokens come first, one for each further copy of a+b; a has a minus where there are some.
    """

    gain: float
    """g, a power of two."""

    def parts(self, span: slice) -> tuple[Array, Array]:
        """Return a and b of a span, (n, d) each."""
        X = self.inner[span]
        b = X[:, -1]
        if isinstance(self.inner, (Grid, Pairs)):  # a without the rounding of a + b
            return replace(self.inner, beta=0.0 * self.inner.beta)[span][:, 0], b
        return X[:, 0] - b, b

    def __getitem__(self, span: slice) -> Array:
        a, b = self.parts(span)
        X = np.zeros((len(a), self.tokens, self.dim))
        X[:, -2] = (self.gain if self.tokens == 2 else -self.gain) * a
        X[:, -1] = b / self.gain
        return X
