"""What a ledger's file holds: its tables, their versions, and what its rows say.

Designs are kept as arrays by hash, and compared when a run is resumed.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unsoftmax.probes import Array, Indices, Probes

FORMAT_VERSION = 3
SCHEMA = f"""
PRAGMA user_version = {FORMAT_VERSION};
CREATE TABLE file (
    id TEXT NOT NULL, open INTEGER NOT NULL, holes INTEGER NOT NULL,
    queries INTEGER NOT NULL, tokens INTEGER NOT NULL,
    settled INTEGER NOT NULL, answered INTEGER NOT NULL, crc INTEGER NOT NULL
);
CREATE TABLE runs (
    run TEXT NOT NULL, batch INTEGER, environment TEXT NOT NULL, crc INTEGER NOT NULL
);
CREATE TABLE designs (
    hash BLOB PRIMARY KEY, dtype TEXT NOT NULL, shape TEXT NOT NULL, data BLOB,
    crc INTEGER NOT NULL
);
CREATE TABLE parts (
    round INTEGER, part INTEGER, head TEXT NOT NULL, arrays TEXT NOT NULL,
    crc INTEGER NOT NULL, PRIMARY KEY (round, part)
);
CREATE TABLE asked (
    id INTEGER PRIMARY KEY, purpose TEXT NOT NULL,
    queries INTEGER NOT NULL, tokens INTEGER NOT NULL, outcome TEXT, crc INTEGER NOT NULL
);
CREATE TABLE answers (
    round INTEGER, part INTEGER, start INTEGER, count INTEGER NOT NULL, data BLOB NOT NULL,
    width INTEGER NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (round, part, start)
);
"""
# What Python's sqlite3 raises: where a flipped bit is in SQLite's own message, this is no text.
SQLITE_FAILURES = (sqlite3.Error, UnicodeDecodeError)
# The columns of every table but its last, `crc`.
COLUMNS = {
    "file": "id, open, holes, queries, tokens, settled, answered",
    "runs": "run, batch, environment",
    "designs": "hash, dtype, shape, data",
    "parts": "round, part, head, arrays",
    "asked": "id, purpose, queries, tokens, outcome",
    "answers": "round, part, start, count, data, width",
}
# The tables whose rows hold bytes.
_WITH_BLOBS = ("designs", "answers")
# A mark for every column, the checksum's included.
_MARKS = {
    table: ", ".join("?" for _ in f"{names}, crc".split(",")) for table, names in COLUMNS.items()
}


def columns(version: int) -> dict[str, str]:
    """Return the columns of every table of a format, which make rows of today's.

    Before format 3 there was no `file`, and nothing but the data of answers had a checksum. In
    format 1 answers were numbers, m = 1.
    """
    if version == FORMAT_VERSION:
        return COLUMNS
    older = {table: names for table, names in COLUMNS.items() if table != "file"}
    if version == 1:
        older["answers"] = "round, part, start, count, data, 1"
    return older


def checksum(table: str, values: Sequence[object]) -> int:
    """Return the checksum of a row: every field counts, its type, and the table it is in."""
    if table in _WITH_BLOBS:
        values = [(len(x), zlib.crc32(x)) if isinstance(x, bytes) else x for x in values]
    return zlib.crc32(repr((table, *values)).encode())


def said(failure: Exception) -> str:
    """Return SQLite's message, as far as it is text."""
    if isinstance(failure, UnicodeDecodeError):
        return failure.object.decode(errors="replace")
    return str(failure)


Verb: TypeAlias = Literal["INSERT", "INSERT OR IGNORE", "INSERT OR REPLACE"]


def insertion(table: str, *values: object, verb: Verb = "INSERT") -> Statement:
    """Return the statement that adds a row, with its checksum, and its values."""
    return f"{verb} INTO {table} VALUES ({_MARKS[table]})", (*values, checksum(table, values))


Place: TypeAlias = tuple[int, int, int]
"""Round, part, start."""
Statement: TypeAlias = tuple[str, tuple[object, ...]]


class Totals(NamedTuple):
    """Sums over a ledger's tables. None of them ever shrinks: one that did, was lost.

    Attributes
    ----------
    queries, tokens : int
        What was intended over the ledger's life, whatever became of it.
    settled : int
        Intents whose outcome is known.
    answered : int
        Answers recorded.
    """

    queries: int = 0
    tokens: int = 0
    settled: int = 0
    answered: int = 0

    @classmethod
    def of(cls, db: sqlite3.Connection) -> Totals:
        """Sum up the tables."""
        [asked] = db.execute(
            "SELECT coalesce(sum(queries), 0), coalesce(sum(tokens), 0), count(outcome) FROM asked"
        )
        [[answered]] = db.execute("SELECT coalesce(sum(count), 0) FROM answers")
        queries, tokens, settled = asked
        return cls(queries, tokens, settled, answered)

    def plus(self, **more: int) -> Totals:
        """Return these and so many more."""
        return Totals(*map(add, self, Totals(**more)))

    def most(self, other: Totals) -> Totals:
        """Return the larger one of each."""
        return Totals(*map(max, self, other))

    def beyond(self, other: Totals) -> Totals:
        """Return by how much each of these is the larger one, 0 where it is not."""
        pairs = zip(self, other, strict=True)
        return Totals(*(max(0, mine - its) for mine, its in pairs))


class Bill(NamedTuple):
    """What a call costs: ``queries`` sequences of ``tokens`` tokens each."""

    purpose: str
    queries: int
    tokens: int


class Settlement(NamedTuple):
    """What became of a call, in queries: so many ``answered``, and ``otherwise`` the rest."""

    bill: Bill
    answered: int
    otherwise: Literal["failed", "put off"] = "failed"
    recorded: Sequence[tuple[Place, Array]] = ()
    """Rows (n, m) to keep, by place."""


class Spent(NamedTuple):
    """What was paid over the ledger's life."""

    queries: int
    tokens: int
    in_doubt: int


@dataclass(frozen=True, slots=True)
class RecordedPart:
    """A part of a round of which answers are recorded.

    Attributes
    ----------
    round, part : int
        Its place.
    tokens, dim : int
        Shape of its sequences.
    purpose : str
        What they are for.
    pieces : tuple of (start, count)
        Which rows are answered, in order.
    """

    round: int
    part: int
    tokens: int
    dim: int
    purpose: str
    pieces: tuple[tuple[int, int], ...]

    @property
    def answered(self) -> int:
        """How many rows are answered."""
        return sum(count for _, count in self.pieces)

    def rows(self, numbers: Indices) -> Indices:
        """Return the rows that are the ``numbers``-th of those answered."""
        starts, counts = np.array(self.pieces, dtype=np.intp).T
        ends = np.cumsum(counts)
        piece = np.searchsorted(ends, numbers, side="right")
        found: Indices = starts[piece] + numbers - (ends - counts)[piece]
        return found


@dataclass(frozen=True, slots=True)
class DesignArray:
    """An array of a design.

    Attributes
    ----------
    array : array
        Contiguous.
    blob : bytes
        Its bytes.
    key : bytes
        Hash of its type, shape and bytes.
    """

    array: NDArray[Any]
    blob: bytes
    key: bytes

    @classmethod
    def of(cls, array: NDArray[Any]) -> DesignArray:
        """Make it contiguous and hash it."""
        data = np.ascontiguousarray(array)
        blob = data.tobytes()
        kind = hashlib.sha256(f"{data.dtype.str} {data.shape}".encode())
        kind.update(blob)
        return cls(data, blob, kind.digest())

    @classmethod
    def read(cls, dtype: str, shape: str, blob: bytes) -> DesignArray:
        """Take it from a row of the table."""
        return cls.of(np.frombuffer(blob, dtype=dtype).reshape(json.loads(shape)))

    def moved_from(self, was: DesignArray) -> float:
        """Return the largest relative difference; infinite for another type or shape.

        Entries of a row move together, in proportion to its norm; scales and indices alone.
        """
        before, now = was.array, self.array
        if before.dtype != now.dtype or before.shape != now.shape:
            return float("inf")
        size = np.abs(before)
        if now.ndim > 1:
            size = np.linalg.norm(before, axis=-1, keepdims=True)
        moved, size = np.broadcast_arrays(np.abs(before - now), size)
        # a zero that is no longer one is another question, however small
        share = np.where(moved == 0, 0.0, np.inf)
        return float(np.max(np.divide(moved, size, out=share, where=size > 0)))


def part_rows(index: int, part: int, probes: Probes) -> list[Statement]:
    """Return what records a part of a round: its arrays by their hash, and what they are of."""
    names, rows = {}, []
    for name, array in probes.design().items():
        kept = DesignArray.of(array)
        names[name] = kept.key.hex()
        fields = kept.key, kept.array.dtype.str, json.dumps(kept.array.shape), kept.blob
        rows.append(insertion("designs", *fields, verb="INSERT OR IGNORE"))
    return [*rows, insertion("parts", index, part, family(probes), json.dumps(names))]


def moved_since(db: sqlite3.Connection, recorded: Mapping[str, str], probes: Probes) -> float:
    """Return how far today's design is from a recorded one; infinite where that is another."""
    design, moved = probes.design(), 0.0
    if recorded.keys() != design.keys():
        return float("inf")
    for name, array in design.items():
        now = DesignArray.of(array)
        if now.key.hex() == recorded[name]:
            continue
        kept = db.execute(
            "SELECT dtype, shape, data FROM designs WHERE hash = ?",
            (bytes.fromhex(recorded[name]),),
        ).fetchone()
        if kept is None:  # a salvaged ledger may lack it
            return float("inf")
        moved = float(np.maximum(moved, now.moved_from(DesignArray.read(*kept))))
    return moved


def family(probes: Probes) -> str:
    """Describe a family of probes by everything but its arrays."""
    return json.dumps(
        [type(probes).__name__, len(probes), probes.tokens, probes.dim, probes.purpose]
    )
