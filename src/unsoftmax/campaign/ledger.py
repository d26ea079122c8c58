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

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from unsoftmax.campaign.designs import DesignArray, family
from unsoftmax.campaign.ledger_format import (
    FORMAT_VERSION,
    UPGRADES,
    Bill,
    RecordedPart,
    Settlement,
    Spent,
)
from unsoftmax.errors import LedgerError, LedgerMismatch
from unsoftmax.probes import Array, Probes, Round


class Ledger:
    """An open ledger, locked for this process; see `ledger_file.open_ledger`."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        name: str,
        environment: Mapping[str, Any],
        *,
        lasting: bool = True,
        same_design: float = 1e-9,
    ) -> None:
        self._db = connection
        self._name = name
        self.lasting = lasting
        """Whether the answers outlive this process."""
        self._environment = dict(environment)
        # Largest relative difference by which another BLAS may move a design: its last bits.
        # Larger would take another question for the same.
        self._same_design = same_design
        self.resumed = False
        self.moved = 0.0
        """Largest relative difference between a recorded design and today's."""
        self.width: int | None = None
        """Numbers per answer, m; None until the first."""
        [[self.answered]] = self._db.execute("SELECT coalesce(sum(count), 0) FROM answers")
        """Recorded answers."""
        self._rounds = 0  # recorded by earlier runs
        self._pending: list[tuple[str, tuple[object, ...]]] = []
        self._spent = self._sum()

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
        # a ledger without answers belongs to nobody: only what was paid stays
        anew = recorded is None or (recorded[0] != text and not self.answered)
        if not anew and recorded[0] != text:
            changed = _differences(json.loads(recorded[0]), run)
            raise LedgerMismatch(
                f"{self._name} belongs to another run: {changed}. "
                "Use the same settings to go on with it, or another ledger, which asks all anew."
            )
        [[version]] = self._db.execute("PRAGMA user_version").fetchall()
        with self._commit():
            self._upgrade(version)
            self._db.execute("UPDATE asked SET outcome = 'in doubt' WHERE outcome IS NULL")
            if anew:
                for table in ("runs", "parts", "designs"):
                    self._db.execute(f"DELETE FROM {table}")
                self._db.execute(
                    "INSERT INTO runs VALUES (?, ?, ?)",
                    (text, batch, json.dumps(self._environment)),
                )
        if version < FORMAT_VERSION:
            # into the file's header, where older programs look: after kill -9 the WAL has it alone
            with suppress(sqlite3.Error):
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._spent = self._sum()
        known = self._db.execute("SELECT width FROM answers LIMIT 1").fetchone()
        self.width = width if known is None else known[0]
        if width is not None and self.width != width:
            raise LedgerMismatch(
                f"{self._name} holds answers of {self.width} numbers per sequence, where this "
                f"learner takes {width}. Use the learner that it was written for, or another "
                "ledger."
            )
        [[self._rounds]] = self._db.execute("SELECT coalesce(max(round) + 1, 0) FROM parts")
        self.resumed = not anew
        return batch if anew else batch or recorded[1]

    def _upgrade(self, version: int) -> None:
        for older in range(version, FORMAT_VERSION):
            self._db.execute(UPGRADES[older])
        self._db.execute(f"PRAGMA user_version = {FORMAT_VERSION}")

    def begin(self, index: int, parts: Round) -> bool:
        """Record a round, or check that the recorded one asks the same: return whether it was."""
        if index >= self._rounds:
            self._record(index, parts)
            return False
        recorded = self._db.execute(
            "SELECT part, head, arrays FROM parts WHERE round = ? ORDER BY part", (index,)
        ).fetchall()
        same = len(recorded) == len(parts)
        for (_, head, arrays), probes in zip(recorded, parts, strict=False):
            same = same and head == family(probes) and self._same(json.loads(arrays), probes)
        if not same:
            was = self._db.execute("SELECT environment FROM runs").fetchone()[0]
            raise LedgerMismatch(
                f"{self._name} holds other questions in round {index} than this program asks now. "
                f"It was written with {was}; this is {json.dumps(self._environment)}. Go on in "
                "that environment, or start another ledger."
            )
        return True

    def known(self, index: int, part: int) -> Iterator[tuple[int, Array]]:
        """Yield the recorded answers of a part in order: (start, rows)."""
        for start, data in self._db.execute(
            "SELECT start, data FROM answers WHERE round = ? AND part = ? ORDER BY start",
            (index, part),
        ):
            yield start, self._rows(data)

    def recorded(self) -> list[RecordedPart]:
        """Return the parts that have answers, up to the first round that is not complete."""
        pieces: dict[tuple[int, int, str], list[tuple[int, int]]] = {}
        for index, part, head, start, count in self._db.execute(
            "SELECT parts.round, parts.part, head, start, count FROM parts LEFT JOIN answers "
            "USING (round, part) ORDER BY parts.round, parts.part, start"
        ):
            known = pieces.setdefault((index, part, head), [])
            known += [] if count is None else [(start, count)]
        parts, last = [], float("inf")
        for (index, part, head), known in pieces.items():
            _, length, tokens, dim, purpose = json.loads(head)
            if index > last:
                break
            if known:
                parts.append(RecordedPart(index, part, tokens, dim, purpose, tuple(known)))
            if sum(count for _, count in known) < length:
                last = index
        return parts

    def _rows(self, data: bytes) -> Array:
        return np.frombuffer(data, dtype="<f8").reshape(-1, self.width or 1)

    def _record(self, index: int, parts: Round) -> None:
        """Write a round; it is committed with the first intent to ask for any of it."""
        for part, probes in enumerate(parts):
            names = {}
            for name, array in probes.design().items():
                kept = DesignArray.of(array)
                names[name] = kept.key.hex()
                self._pending.append(
                    (
                        "INSERT OR IGNORE INTO designs VALUES (?, ?, ?, ?)",
                        (kept.key, kept.array.dtype.str, json.dumps(kept.array.shape), kept.blob),
                    )
                )
            self._pending.append(
                (
                    "INSERT INTO parts VALUES (?, ?, ?, ?)",
                    (index, part, family(probes), json.dumps(names)),
                )
            )

    def _same(self, recorded: Mapping[str, str], probes: Probes) -> bool:
        """Compare a recorded design with today's, and note how far it has moved."""
        design = probes.design()
        if recorded.keys() != design.keys():
            return False
        for name, array in design.items():
            now = DesignArray.of(array)
            if now.key.hex() == recorded[name]:
                continue
            was = DesignArray.read(
                *self._db.execute(
                    "SELECT dtype, shape, data FROM designs WHERE hash = ?",
                    (bytes.fromhex(recorded[name]),),
                ).fetchone()
            )
            moved = now.moved_from(was)
            if not moved <= self._same_design:
                return False
            self.moved = max(self.moved, moved)
        return True

    # -- asking

    def intend(self, bill: Bill) -> int:
        """Commit the intent to ask; return its number."""
        with self._commit():
            return self._intend(bill)

    def settle(self, intent: int, settled: Settlement, following: Bill | None = None) -> int | None:
        """Commit what became of an intent and, with it, the next intent if there is one.

        One commit per call: the answers of this one and the intent of the following one.
        """
        with self._commit():
            self._close(intent, settled)
            for place, rows in settled.recorded:
                data = np.ascontiguousarray(rows, dtype="<f8").tobytes()
                self._db.execute(
                    "INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (*place, len(rows), data, zlib.crc32(data), rows.shape[1]),
                )
                self.width = rows.shape[1]
                self.answered += len(rows)
            return None if following is None else self._intend(following)

    def _close(self, intent: int, settled: Settlement) -> None:
        """Give an intent its outcome, and a second row where it has two."""
        bill, answered = settled.bill, settled.answered
        outcome, missing = "answered" if answered else settled.otherwise, bill.queries - answered
        self._db.execute("UPDATE asked SET outcome = ? WHERE id = ?", (outcome, intent))
        if answered and missing:
            self._db.execute(
                "UPDATE asked SET queries = ?, tokens = ? WHERE id = ?",
                (answered, answered * bill.tokens, intent),
            )
            self._db.execute(
                "INSERT INTO asked (purpose, queries, tokens, outcome) VALUES (?, ?, ?, ?)",
                (bill.purpose, missing, missing * bill.tokens, settled.otherwise),
            )
        if settled.otherwise == "put off":
            self._pay(-missing, -missing * bill.tokens)

    def _intend(self, bill: Bill) -> int:
        for statement, values in self._pending:
            self._db.execute(statement, values)
        self._pending = []
        row = self._db.execute(
            "INSERT INTO asked (purpose, queries, tokens) VALUES (?, ?, ?)",
            (bill.purpose, bill.queries, bill.queries * bill.tokens),
        )
        self._pay(bill.queries, bill.queries * bill.tokens)
        assert row.lastrowid is not None
        return row.lastrowid

    def _pay(self, queries: int, tokens: int) -> None:
        was = self._spent
        self._spent = Spent(was.queries + queries, was.tokens + tokens, was.in_doubt)

    # -- counting

    @property
    def spent(self) -> Spent:
        """What was paid over the ledger's life, this moment's intents included."""
        return self._spent

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

    def _sum(self) -> Spent:
        queries, tokens, doubt = self._db.execute(
            "SELECT coalesce(sum(queries), 0), coalesce(sum(tokens), 0), "
            "coalesce(sum(queries) FILTER (WHERE outcome = 'in doubt'), 0) FROM asked "
            "WHERE outcome IS NOT 'put off'"
        ).fetchone()
        return Spent(queries, tokens, doubt)

    @contextmanager
    def _commit(self) -> Iterator[None]:
        """Commit a block. What interrupts it ends the run, and closing the file undoes it."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise LedgerError(
                f"{self._name} could not be written ({error}). Everything recorded before is "
                "safe; free some disk space, or move the ledger, and run the same again."
            ) from error


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> str:
    """List the settings that differ by their full names, with both values.

    Settings that came later and knobs are written only where they differ from their defaults.
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
