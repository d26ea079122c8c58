"""The ledger: what was asked, what was answered, and nothing twice.

One SQLite file. The order of commits is the whole idea: the *intent* to ask a batch is
committed before the oracle is called, its answers after, before the learner sees them. So a
process killed at any moment leaves a file that says what is paid and known (``answers``), and
what is paid and unknown (an ``asked`` row without an outcome: in doubt).

An answer's identity is its place, (round, part, start), never its content: asking the same
probe twice on purpose is two rows. A place is answered if it has a row, whatever the value. An
answer is a row of m numbers, m = 1 for an oracle of numbers; the first answer of the file's life
fixes m.

What became of the queries of an ``asked`` row: *answered*; *failed* (paid, nothing usable came
back); *in doubt* (in flight when an earlier process died: paid); *put off* (the target asked to
wait and says that it answered none: not paid). A call that was answered in part is two rows.

The file belongs to one run: one target (checked by the runner with a fingerprint), one
learner with its settings and revision, one hold-out. It may not know what the answers mean,
nor how the file came to be open: that is `ledger_file`.
"""

import json
import logging
import os
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from unsoftmax.campaign.ledger_format import (
    COLUMNS,
    FORMAT_VERSION,
    SCHEMA,
    Bill,
    RecordedPart,
    Settlement,
    Spent,
    Totals,
    columns,
    family,
    insertion,
    moved_since,
    part_rows,
)
from unsoftmax.campaign.ledger_health import PaidCounter, TableWalk, version_of
from unsoftmax.errors import LedgerError, LedgerMismatch
from unsoftmax.old_spellings import as_spelled_now
from unsoftmax.probes import Array, Probes, Round

T = TypeVar("T")

_log = logging.getLogger("unsoftmax")


# Largest relative difference by which another BLAS may move a design: its last bits. Larger would
# take another question for the same.
SAME_DESIGN = 1e-9
# Share of the time that may go into checkpoints, each some flushes of the disk: one of 2 ms every
# 40 ms. Larger: a run of short rounds takes longer, twice to three times as long where every round
# has one. Smaller: more answers are lost with a WAL.
CHECKPOINTS = 0.05


class Ledger:
    """An open ledger, locked for this process; see `ledger_file.open_ledger`."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        name: str,
        environment: Mapping[str, Any],
        counter: PaidCounter | None = None,
    ) -> None:
        self._db = connection
        # one cursor for all that is written: making one for every statement takes a third longer
        self._write = connection.cursor().execute
        self._name = name
        self._counter = counter
        self._claimed = False
        self.lasting = counter is not None
        """Whether the answers outlive this process."""
        self._environment = dict(environment)
        self._next_checkpoint = float("-inf")
        self.resumed = False
        self.moved = 0.0
        """Largest relative difference between a recorded design and today's."""
        self.width: int | None = None
        """Numbers per answer, m; None until the first."""
        self._totals = Totals.of(self._db)
        self._put_off, self._in_doubt = self._not_answered()
        self._rounds = 0  # recorded by earlier runs
        self._pending: list[tuple[str, tuple[object, ...]]] = []
        last = self._db.execute("SELECT coalesce(max(id), 0) FROM asked").fetchone()
        self._last_intent: int = last[0]

    # -- the run

    def claim(
        self, run: Mapping[str, Any], batch: int | None, width: int | None = None
    ) -> int | None:
        """Make the file this run's, or check that it already is; return the batch size.

        ``width`` is how many numbers an answer has, where the learner knows it beforehand.
        The file of another run is left as it is. One of an older format becomes today's.
        """
        recorded = self._db.execute("SELECT run, batch FROM runs").fetchone()
        text = json.dumps(run, sort_keys=True)
        before = None if recorded is None else _spelled_now(json.loads(recorded[0]))
        own = before is not None and json.dumps(before, sort_keys=True) == text
        # a ledger without answers belongs to nobody: only what was paid stays
        if before is not None and not own and self.answered:
            raise LedgerMismatch(f"{self._name} {_otherwise(before, run)}")
        mine = None if own else (text, batch, json.dumps(self._environment))
        self._commit(lambda: self._take_over(mine))
        self._claimed = True
        self.checkpoint()
        if self._counter is not None:
            self._counter.watch()
        self._put_off, self._in_doubt = self._not_answered()
        known = self._db.execute("SELECT width FROM answers LIMIT 1").fetchone()
        self.width = width if known is None else known[0]
        if width is not None and self.width != width:
            raise LedgerMismatch(
                f"{self._name} holds answers of {self.width} numbers per sequence, where this "
                f"learner takes {width}. Use the learner that it was written for, or another "
                "ledger."
            )
        [[self._rounds]] = self._db.execute("SELECT coalesce(max(round) + 1, 0) FROM parts")
        self.resumed = own or bool(self.answered)
        return batch or recorded[1] if own else batch

    def _take_over(self, run: tuple[object, ...] | None) -> None:
        """Make the file today's, and this run's; None where it is already."""
        upgrade(self._db)
        if self._counter is not None:
            [[name]] = self._db.execute("SELECT id FROM file")
            self._counter.begin(name, Totals.of(self._db))
        self._doubt()
        if run is not None and self.answered:
            # A salvaged ledger that has lost its run: whose it is shows when `begin` has compared
            # the questions.
            self._pending.append(insertion("runs", *run))
        elif run is not None:
            for table in ("runs", "parts", "designs"):
                self._db.execute(f"DELETE FROM {table}")
            self._insert("runs", *run)
        self._mark(is_open=True)

    def _doubt(self) -> None:
        """Call what was in flight when an earlier process died by its name."""
        flying = self._db.execute(f"SELECT {COLUMNS['asked']} FROM asked WHERE outcome IS NULL")
        for *fields, _ in flying.fetchall():
            self._replace("asked", *fields, "in doubt")

    def _mark(self, *, is_open: bool) -> None:
        """Write whether the file is in use, and its totals as of now."""
        [[name, holes]] = self._db.execute("SELECT id, holes FROM file")
        self._totals = Totals.of(self._db)
        self._db.execute("DELETE FROM file")
        self._insert("file", name, int(is_open and self.lasting), holes, *self._totals)

    def _insert(self, table: str, *values: object) -> None:
        self._write(*insertion(table, *values))

    def _replace(self, table: str, *values: object) -> None:
        self._write(*insertion(table, *values, verb="INSERT OR REPLACE"))

    def checkpoint(self) -> None:
        """Move what the WAL holds into the file, and empty it: as often as `CHECKPOINTS` allows."""
        began = time.monotonic()
        if not self.lasting or began < self._next_checkpoint:
            return
        try:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            raise self._unwritten(error) from error
        ended = time.monotonic()
        self._next_checkpoint = ended + (ended - began) / CHECKPOINTS

    def close(self) -> bool:
        """Put everything into the one file; return whether that was done."""
        if not self._claimed or self._counter is None:
            return False
        if (gone := self._counter.gone()) is not None:
            _log.warning(self._taken_away(gone))
        return self._put_together()

    def _put_together(self) -> bool:
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._db.execute("BEGIN IMMEDIATE")
            self._mark(is_open=False)
            self._db.execute("COMMIT")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error:
            return False  # it stays marked as in use, with its WAL and counter beside it
        return True

    def begin(self, index: int, parts: Round) -> bool:
        """Record a round, or check that the recorded one asks the same: return whether it was."""
        if index >= self._rounds:
            self._record(index, parts, range(len(parts)))
            return False
        recorded = {
            part: (head, arrays)
            for part, head, arrays in self._db.execute(
                "SELECT part, head, arrays FROM parts WHERE round = ?", (index,)
            )
        }
        [[holes]] = self._db.execute("SELECT holes FROM file")
        lost = set(range(len(parts))) - recorded.keys() if holes else set()
        same = recorded.keys() | lost == set(range(len(parts)))
        for part, (head, arrays) in sorted(recorded.items()) if same else ():
            same = same and head == family(parts[part])
            same = same and self._same(json.loads(arrays), parts[part])
        if not same:
            known = self._db.execute("SELECT environment FROM runs").fetchone()
            was = "settings that are not known" if known is None else known[0]
            raise LedgerMismatch(
                f"{self._name} holds other questions in round {index} than this program asks now. "
                f"It was written with {was}; this is {json.dumps(self._environment)}. Go on in "
                "that environment, or start another ledger."
            )
        self._record(index, parts, lost)
        return True

    def known(self, index: int, part: int) -> Iterator[tuple[int, Array]]:
        """Yield the recorded answers of a part in order: (start, rows)."""
        for start, data in self._db.execute(
            "SELECT start, data FROM answers WHERE round = ? AND part = ? ORDER BY start",
            (index, part),
        ):
            yield start, self._rows(data)

    def recorded(self) -> list[RecordedPart]:
        """Return the parts that have answers, up to a round that is not complete.

        A salvaged ledger may have lost its first rounds; these are skipped.
        """
        pieces: dict[tuple[int, int, str], list[tuple[int, int]]] = {}
        for index, part, head, start, count in self._db.execute(
            "SELECT parts.round, parts.part, head, start, count FROM parts LEFT JOIN answers "
            "USING (round, part) ORDER BY parts.round, parts.part, start"
        ):
            known = pieces.setdefault((index, part, head), [])
            known += [] if count is None else [(start, count)]
        last = float("inf")
        parts: list[RecordedPart] = []
        for (index, part, head), known in pieces.items():
            _, length, tokens, dim, purpose = json.loads(head)
            if parts and index > last:
                break
            if known:
                parts.append(RecordedPart(index, part, tokens, dim, purpose, tuple(known)))
            if sum(count for _, count in known) < length:
                last = index
        return parts

    def _rows(self, data: bytes) -> Array:
        return np.frombuffer(data, dtype="<f8").reshape(-1, self.width or 1)

    def _record(self, index: int, parts: Round, which: Iterable[int]) -> None:
        """Write parts of a round; committed with the first intent to ask for any of it.

        A ledger in memory holds the bill alone: nobody reads its questions and answers again.
        """
        for part in which if self.lasting else ():
            self._pending += part_rows(index, part, parts[part])

    def _same(self, recorded: Mapping[str, str], probes: Probes) -> bool:
        """Compare a recorded design with today's, and note how far it has moved."""
        moved = moved_since(self._db, recorded, probes)
        if not moved <= SAME_DESIGN:
            return False
        self.moved = max(self.moved, moved)
        return True

    # -- asking

    def intend(self, bill: Bill) -> int:
        """Commit the intent to ask; return its number."""
        return self._commit(lambda: self._intend(bill))

    def settle(self, intent: int, settled: Settlement, following: Bill | None = None) -> int | None:
        """Commit what became of an intent and, with it, the next intent if there is one.

        One commit per call: the answers of this one and the intent of the following one.
        """
        return self._commit(lambda: self._settle(intent, settled, following))

    def _settle(self, intent: int, settled: Settlement, following: Bill | None) -> int | None:
        outcomes, recorded = self._close(intent, settled), 0
        for place, rows in settled.recorded:
            count, self.width = rows.shape
            recorded += count
            if self.lasting:
                data = rows.astype("<f8", copy=False).tobytes()
                self._insert("answers", *place, count, data, self.width)
        self._totals = self._totals.plus(settled=outcomes, answered=recorded)
        return None if following is None else self._intend(following)

    def _close(self, intent: int, settled: Settlement) -> int:
        """Give an intent its outcome, and a second row where it has two; return how many."""
        bill, answered = settled.bill, settled.answered
        outcome, missing = "answered" if answered else settled.otherwise, bill.queries - answered
        queries = answered or missing
        self._replace("asked", intent, bill.purpose, queries, queries * bill.tokens, outcome)
        if settled.otherwise == "put off":
            self._put_off = self._put_off.plus(queries=missing, tokens=missing * bill.tokens)
        if not (answered and missing):
            return 1
        self._add(bill.purpose, missing, missing * bill.tokens, settled.otherwise)
        return 2

    def _intend(self, bill: Bill) -> int:
        for statement, values in self._pending:
            self._write(statement, values)
        self._pending = []
        tokens = bill.queries * bill.tokens
        self._totals = self._totals.plus(queries=bill.queries, tokens=tokens)
        return self._add(bill.purpose, bill.queries, tokens, None)

    def _add(self, purpose: str, queries: int, tokens: int, outcome: str | None) -> int:
        self._last_intent += 1
        self._insert("asked", self._last_intent, purpose, queries, tokens, outcome)
        return self._last_intent

    # -- counting

    @property
    def spent(self) -> Spent:
        """What was paid over the ledger's life, this moment's intents included."""
        asked, not_paid = self._totals, self._put_off
        queries, tokens = asked.queries - not_paid.queries, asked.tokens - not_paid.tokens
        return Spent(queries, tokens, self._in_doubt)

    @property
    def answered(self) -> int:
        """Recorded answers."""
        return self._totals.answered

    def counts(self) -> dict[str, int]:
        """Count the queries by purpose; failed ones and ones in doubt apart."""
        rows = self._db.execute(
            "SELECT CASE outcome WHEN 'answered' THEN purpose ELSE coalesce(outcome, 'in doubt') "
            "END AS what, sum(queries) FROM asked WHERE outcome IS NOT 'put off' "
            "GROUP BY what ORDER BY what"
        )
        return {what: int(total) for what, total in rows}

    def tokens(self) -> dict[str, int]:
        """Count the tokens of the queries that were answered, by purpose."""
        rows = self._db.execute(
            "SELECT purpose, sum(tokens) FROM asked WHERE outcome = 'answered' GROUP BY purpose"
        )
        return {purpose: int(total) for purpose, total in rows}

    def longest(self) -> int:
        """Return the most tokens of a sequence that was asked."""
        most = "SELECT coalesce(max(tokens / queries), 0) FROM asked WHERE queries > 0"
        return int(self._db.execute(most).fetchone()[0])

    def put_off(self) -> int:
        """Count the calls that the target put off; they are not paid."""
        return int(
            self._db.execute("SELECT count(*) FROM asked WHERE outcome = 'put off'").fetchone()[0]
        )

    def _not_answered(self) -> tuple[Totals, int]:
        """Sum up what was put off, and the queries in doubt."""
        queries, tokens, doubt = self._db.execute(
            "SELECT coalesce(sum(queries) FILTER (WHERE outcome = 'put off'), 0), "
            "coalesce(sum(tokens) FILTER (WHERE outcome = 'put off'), 0), "
            "coalesce(sum(queries) FILTER (WHERE outcome = 'in doubt'), 0) FROM asked"
        ).fetchone()
        return Totals(queries, tokens), doubt

    def _commit(self, change: Callable[[], T]) -> T:
        """Make a change and commit it. What interrupts it ends the run; closing undoes it."""
        if self._counter is None:  # in memory there is nobody to find it half done
            return change()
        try:
            self._write("BEGIN IMMEDIATE")
            made = change()
            self._write("COMMIT")
        except sqlite3.Error as error:
            raise self._unwritten(error) from error
        if self._claimed:
            self._counter.count(self._totals)
            if (gone := self._counter.gone()) is not None:
                raise LedgerError(f"{self._taken_away(gone)} Nothing more was asked.")
            self.checkpoint()
        return made

    def _unwritten(self, error: sqlite3.Error) -> LedgerError:
        return LedgerError(
            f"{self._name} could not be written ({error}). Everything recorded before is "
            "safe; free some disk space, or move the ledger together with the files beside it, "
            f"{self._name}-wal and {self._name}-paid, and run the same again."
        )

    def _taken_away(self, gone: Path) -> str:
        """Say that a file of the ledger is no longer there, and keep what it held."""
        kept = "Everything recorded is in the ledger: run the same again to go on."
        if str(gone) == self._name:
            self._put_together()
            kept = rescued(self._db, gone)
        return f"{gone} was deleted, moved or replaced while the ledger was in use. {kept}"


_QUESTIONS = {
    "Identifier": ("an audit's questions", "an audit goes on with it, whether it recovers or not"),
    "Verifier": ("a verification's questions", "a verification of those weights goes on with it"),
}
"""Whose questions they are that no learner asks, and what goes on with such a ledger; by the name
that the ledger has."""


def _spelled_now(run: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded run with its learner's settings as they are spelled now."""
    learner = run.get("learner")
    return {**run, "learner": as_spelled_now(learner)} if isinstance(learner, dict) else run


def _otherwise(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say whose a ledger is that is not this run's, and what to do."""
    was, is_now = (str(dict(run.get("learner") or {}).get("learner")) for run in (before, now))
    if was == is_now or not {was, is_now} & _QUESTIONS.keys():
        return (
            f"belongs to another run: {_differences(before, now)}. Use the same settings to go on "
            "with it, or another ledger, which asks all anew."
        )
    whose, goes_on = _QUESTIONS.get(was, (f"the questions of {was}", f"{was} goes on with it"))
    mine, _ = _QUESTIONS.get(is_now, (f"those of {is_now}", ""))
    return f"holds {whose}, not {mine}: {goes_on}. Use another ledger, which asks all anew."


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> str:
    """List the settings that differ by their full names, with both values.

    Settings that came later are written only where they differ from their defaults.
    """
    differences = []
    for name in sorted(before.keys() | now.keys()):
        was, is_now = before.get(name, _DEFAULT), now.get(name, _DEFAULT)
        path, nested = f"{within}{name}", [x for x in (was, is_now) if isinstance(x, Mapping)]
        if nested and all(x is _DEFAULT or isinstance(x, Mapping) for x in (was, is_now)):
            mine, other = ({} if x is _DEFAULT else x for x in (was, is_now))
            differences.append(_differences(mine, other, f"{path}."))
        elif was != is_now:
            values = ("its default" if x is _DEFAULT else repr(x) for x in (was, is_now))
            differences.append("{} was {} and is now {}".format(path, *values))
    return "; ".join(filter(None, differences))


_DEFAULT = object()
"""Stands for a setting that is not written."""


def rescued(db: sqlite3.Connection, file: Path) -> str:
    """Copy a ledger whose file was taken away beside its former place, or to temporary files.

    SQLite still has the file open, so all that was recorded can be read. Returns what became of it.
    """
    failures = []
    for folder in (file.parent, Path(tempfile.gettempdir())):
        try:
            copy = _copy(db, folder / f"{file.name}-rescued")
        except (OSError, sqlite3.Error) as error:
            failures.append(str(error))
        else:
            return f"Everything recorded was copied into {copy}; see `unsoftmax ledger`."
    return f"What it held could not be copied ({'; '.join(failures)})."


def _copy(db: sqlite3.Connection, path: Path) -> Path:
    """Copy it to this name, or to one like it that is not yet taken; mode 0600."""
    copy, number = path, 1
    while os.path.lexists(copy):
        number += 1
        copy = path.with_name(f"{path.name}-{number}")
    os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        db.execute("VACUUM INTO ?", (str(copy),))
    except BaseException:
        copy.unlink()
        raise
    return copy


def upgrade(db: sqlite3.Connection) -> None:
    """Rewrite an older format's tables as today's, whose rows get their checksums now.

    It happens when a run takes the ledger over, in that commit.
    """
    version = version_of(db)
    if version == FORMAT_VERSION:
        return
    rows = {table: list(TableWalk(db, table)) for table in columns(version)}
    for table in rows:
        db.execute(f"DROP TABLE {table}")
    for statement in SCHEMA.split(";"):
        db.execute(statement)
    db.execute(*insertion("file", secrets.token_hex(8), 0, 0, *Totals()))
    for table, known in rows.items():
        for row in known:
            db.execute(*insertion(table, *row))
