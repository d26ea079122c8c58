"""What is in a ledger, sound or not; and what is sound in it, copied into a new one.

The ledger itself is only read. A copy keeps every sound answer whose questions are known, and
the bill: what the totals know and no sound row says is booked as in doubt, so that it never
shrinks. What is missing is asked again by the run that goes on with the copy.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unsoftmax.campaign.ledger_file import (
    alone,
    connect,
    create,
    empty,
    leave,
    problems,
    real_path,
    restore,
)
from unsoftmax.campaign.ledger_format import Totals, columns, insertion
from unsoftmax.campaign.ledger_health import Row, TableWalk, version_of
from unsoftmax.campaign.paid_counter import last_totals
from unsoftmax.campaign.recorded_questions import RecordedQuestionTuning
from unsoftmax.errors import LedgerError


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """What is in a ledger.

    Attributes
    ----------
    fingerprint : str or None
        Hash of the first answers, by which targets are told apart; None without answers.
    learner : dict or None
        Its settings; None where the ledger says nothing sound of it.
    revision : int or None
        Of the learner.
    rounds, answers : int
        Recorded.
    paid, tokens : int
        Queries and tokens paid over the ledger's life.
    in_doubt : int
        Of these queries: those whose answers were never recorded.
    damage : tuple of str
        What is wrong; empty for a sound ledger.
    """

    fingerprint: str | None
    learner: dict[str, Any] | None
    revision: int | None
    rounds: int
    answers: int
    paid: int
    tokens: int
    in_doubt: int
    damage: tuple[str, ...]


@dataclass(slots=True)
class _SoundSums:
    """Sums over the sound rows of a ledger."""

    run: dict[str, Any] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    known: Totals = field(default_factory=Totals)
    """What the file or its counter says that they were."""
    put_off: Totals = field(default_factory=Totals)
    in_doubt: int = 0
    rounds: int = 0
    first: list[Row] = field(default_factory=list)

    @property
    def lost(self) -> Totals:
        """What no sound row says."""
        return self.known.beyond(self.totals)


def summary(path: str | os.PathLike[str]) -> LedgerSummary:
    """Read a ledger through, changing nothing.

    Raises
    ------
    LedgerError
        It is no ledger, is in use, or is damaged so that SQLite cannot read it at all.
    """
    file = real_path(path)
    with _reading(file) as (db, damage):
        sums = _sums(db, file)
    return _summary(sums, damage)


def salvage(path: str | os.PathLike[str], new: str | os.PathLike[str]) -> LedgerSummary:
    """Copy what is sound in a ledger into a new one; return what is in that.

    Raises
    ------
    LedgerError
        The ledger cannot be read, or ``new`` exists or cannot be made.
    """
    file, copy = real_path(path), Path(new)
    with _reading(file) as (db, _), empty() as into:
        _copy(db, into, _sums(db, file))
        # all or nothing: a copy of half of it would look sound
        if not create(copy, into):
            raise LedgerError(f"{copy} exists: name a new file to copy into.")
    return summary(copy)


@contextmanager
def _reading(file: Path) -> Iterator[tuple[sqlite3.Connection, list[str]]]:
    if not file.exists():
        raise LedgerError(f"There is no ledger at {file}.")
    with alone(file) as wal:
        try:
            with closing(connect(file)) as db:
                try:
                    yield db, problems(db, file, has_wal=wal is not None)
                finally:
                    leave(db)
        finally:
            restore(file, wal)


def _sums(db: sqlite3.Connection, file: Path) -> _SoundSums:
    sums = _SoundSums()
    if "file" in columns(version_of(db)):
        for _, _, _, *totals in TableWalk(db, "file"):
            sums.known = Totals(*totals)
        sums.known = sums.known.most(_counted(file))
    for run, *_ in TableWalk(db, "runs"):
        sums.run = json.loads(run)
    for _, _, queries, tokens, outcome in TableWalk(db, "asked"):
        settled = int(outcome is not None)
        sums.totals = sums.totals.plus(queries=queries, tokens=tokens, settled=settled)
        if outcome == "put off":
            sums.put_off = sums.put_off.plus(queries=queries, tokens=tokens)
        sums.in_doubt += queries if outcome in (None, "in doubt") else 0
    for index, part, start, count, data, _ in TableWalk(db, "answers"):
        sums.totals = sums.totals.plus(answered=count)
        if index == 0:
            sums.first.append((part, start, data))
    for index, *_ in TableWalk(db, "parts"):
        sums.rounds = max(sums.rounds, index + 1)
    return sums


def _counted(file: Path) -> Totals:
    try:
        last = last_totals(file)
    except ValueError:
        last = None
    return Totals() if last is None else last[1]


def _summary(sums: _SoundSums, damage: list[str]) -> LedgerSummary:
    run, lost = sums.run, sums.lost
    first = [data for _, _, data in sorted(sums.first)[: RecordedQuestionTuning().fewest]]
    return LedgerSummary(
        fingerprint=hashlib.sha256(b"".join(first)).hexdigest()[:16] if first else None,
        learner=run.get("learner"),
        revision=run.get("revision"),
        rounds=sums.rounds,
        answers=sums.totals.answered,
        paid=sums.totals.queries - sums.put_off.queries + lost.queries,
        tokens=sums.totals.tokens - sums.put_off.tokens + lost.tokens,
        in_doubt=sums.in_doubt + lost.queries,
        damage=tuple(damage),
    )


def _copy(db: sqlite3.Connection, into: sqlite3.Connection, sums: _SoundSums) -> None:
    """Copy the sound rows; answers whose questions are not known are asked again."""
    into.execute("BEGIN IMMEDIATE")
    asked_for: set[tuple[int, int]] = set()
    for table in ("runs", "designs", "parts", "answers"):
        for row in TableWalk(db, table):
            if table == "parts":
                asked_for.add(row[:2])
            if table != "answers" or row[:2] in asked_for:
                into.execute(*insertion(table, *row))
    last = 0  # rows behind a broken page come in descending order
    for number, *fields, outcome in TableWalk(db, "asked"):
        last = max(last, number)
        into.execute(*insertion("asked", number, *fields, outcome or "in doubt"))
    if (lost := sums.lost).queries:
        doubt = ("lost", lost.queries, lost.tokens, "in doubt")
        into.execute(*insertion("asked", last + 1, *doubt))
    [[name]] = into.execute("SELECT id FROM file")
    into.execute("DELETE FROM file")
    into.execute(*insertion("file", name, 0, 1, *Totals.of(into)))
    into.execute("COMMIT")
