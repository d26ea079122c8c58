"""What a ledger's file holds: its tables, their versions, and what a row of ``asked`` says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from unsoftmax.probes import Array, Indices

FORMAT_VERSION = 2
SCHEMA = f"""
PRAGMA user_version = {FORMAT_VERSION};
CREATE TABLE runs (
    run TEXT NOT NULL, batch INTEGER, environment TEXT NOT NULL
);
CREATE TABLE designs (hash BLOB PRIMARY KEY, dtype TEXT NOT NULL, shape TEXT NOT NULL, data BLOB);
CREATE TABLE parts (
    round INTEGER, part INTEGER, head TEXT NOT NULL, arrays TEXT NOT NULL,
    PRIMARY KEY (round, part)
);
CREATE TABLE asked (
    id INTEGER PRIMARY KEY, purpose TEXT NOT NULL,
    queries INTEGER NOT NULL, tokens INTEGER NOT NULL, outcome TEXT
);
CREATE TABLE answers (
    round INTEGER, part INTEGER, start INTEGER, count INTEGER NOT NULL, data BLOB NOT NULL,
    crc INTEGER NOT NULL, width INTEGER NOT NULL DEFAULT 1,
    PRIMARY KEY (round, part, start)
);
"""
# What turns a file of a format into one of the next, when a run goes on with it. Format 1 knew
# numbers alone: m = 1.
UPGRADES = {1: "ALTER TABLE answers ADD COLUMN width INTEGER NOT NULL DEFAULT 1"}

Place: TypeAlias = tuple[int, int, int]
"""Round, part, start."""


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


@dataclass(frozen=True, slots=True)
class Spent:
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
