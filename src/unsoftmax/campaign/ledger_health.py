"""Whether a ledger's file is whole: every row against its checksum, all of it against its totals.

SQLite looks at the structure of the file and at its indices; the checksums at what the rows say;
the totals, in the file and in its counter, at rows that are no longer there. It only reads.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

from unsoftmax.campaign.ledger_format import COLUMNS, FORMAT_1, SCHEMA, Totals, checksum
from unsoftmax.campaign.paid_counter import beside, last_totals

Row: TypeAlias = tuple[Any, ...]


class TableWalk:
    """The sound rows of a table, one by one, of any format, as rows of today's."""

    def __init__(self, db: sqlite3.Connection, table: str) -> None:
        self._db, self._table = db, table
        self._old = is_old(db)
        self.damage = ""
        """What is wrong with the others; known when all have been seen."""

    def __iter__(self) -> Iterator[Row]:
        seen: set[int] = set()
        wrong: set[int] = set()
        # what lies behind a page that cannot be read is reached from the other end
        for direction in ("", " DESC"):
            try:
                for number, crc, *values in self._db.execute(self._query() + direction):
                    if number in seen or number in wrong:
                        continue
                    sound = crc == self._checksum(values)
                    (seen if sound else wrong).add(number)
                    if sound:
                        yield tuple(values)
            except sqlite3.Error as error:
                self.damage = f"{self._table}: {error}"
            else:
                break
        if wrong:
            rows = "1 row does" if len(wrong) == 1 else f"{len(wrong)} rows do"
            self.damage = f"{self._table}: {rows} not match the checksum"

    def _query(self) -> str:
        columns = (FORMAT_1 if self._old else COLUMNS)[self._table]
        crc = "NULL" if self._old and self._table != "answers" else "crc"
        return f"SELECT rowid, {crc}, {columns} FROM {self._table} NOT INDEXED ORDER BY rowid"

    def _checksum(self, values: list[Any]) -> int | None:
        if not self._old:
            return checksum(self._table, values)
        if self._table != "answers":
            return None
        # a count that is none, or data that are no bytes, match nothing
        count, data = values[3:5]
        whole = isinstance(data, bytes) and len(data) == 8 * count
        return zlib.crc32(data) if whole else -1


def tables_of(db: sqlite3.Connection) -> tuple[str, ...]:
    """Return the tables of a file, of any format."""
    return tuple(FORMAT_1 if is_old(db) else COLUMNS)


def is_old(db: sqlite3.Connection) -> bool:
    """Whether a file is of format 1."""
    [[version]] = db.execute("PRAGMA user_version").fetchall()
    return bool(version == 1)


def damage(db: sqlite3.Connection, file: Path, *, has_wal: bool) -> list[str]:
    """Say all that is wrong with a ledger; nothing where it is whole.

    ``has_wal``: whether its WAL was there before SQLite made one.
    """
    found = _structure(db)
    for table in tables_of(db):
        walk = TableWalk(db, table)
        for _ in walk:
            pass
        if walk.damage:
            found.append(walk.damage)
    if not found and not is_old(db):
        found += _lost(db, file, has_wal=has_wal)
    return found


def _structure(db: sqlite3.Connection) -> list[str]:
    """Say what SQLite finds, and whether the tables are those of the format."""
    [[said]] = db.execute("PRAGMA integrity_check(1)").fetchall()
    if said != "ok":
        return [str(said)]
    written = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
    with closing(sqlite3.connect(":memory:")) as model:
        model.executescript(SCHEMA)
        same = model.execute(written).fetchall() == db.execute(written).fetchall()
    return [] if same or is_old(db) else ["its tables are not those of a ledger"]


def _lost(db: sqlite3.Connection, file: Path, *, has_wal: bool) -> list[str]:
    """Say what the tables do not hold that they once held."""
    known = db.execute(f"SELECT {COLUMNS['file']} FROM file").fetchall()
    if len(known) != 1:
        return [f"file: {len(known)} rows instead of 1"]
    [[name, is_open, _, *totals]] = known
    lost = [_shortfall(Totals(*totals), db)]
    if is_open:
        wal, counter = beside(file)
        try:
            last = last_totals(file)
        except ValueError as error:
            return [f"{counter.name}: {error}"]
        if last is None or last[0] != name:
            whose = "is missing" if last is None else "belongs to another ledger"
            return [
                f"it was in use, and {counter.name} {whose}, which tells whether {wal.name} is "
                "whole: the three belong together"
            ]
        lost.append(_shortfall(last[1], db))
        if lost[-1] and not has_wal:
            lost[-1] += f"; {wal.name}, which belongs to it, is missing"
    return [text for text in lost if text]


def _shortfall(known: Totals, db: sqlite3.Connection) -> str:
    short = known.beyond(Totals.of(db))
    if not any(short):
        return ""
    return (
        f"{short.queries:,} paid queries, {short.answered:,} answers and {short.settled:,} "
        "outcomes that were recorded are not in it"
    )
