"""Whether a file is a ledger, and whole: its first bytes, every row, all of it against its totals.

The first bytes tell a ledger from other files, before SQLite touches it. SQLite looks at the
structure of the file and at its indices; the checksums at what the rows say; the totals, in the
file and in its counter, at rows that are no longer there.

What SQLite commits goes to ``LEDGER-wal`` first. Where that file is lost or cut short, or one of
its bits has flipped, SQLite takes what is sound before that place for all there ever was. So
``LEDGER-paid`` holds the ledger's totals after every commit, one line that is overwritten in
place. They never shrink: a ledger that has less has lost something. It is not flushed: a power
cut may leave it behind the ledger, which is flushed at every commit, and never ahead of it.

The counter is there while the ledger is in use and after a crash. A ledger that was closed is one
file. An empty counter was left by a run that was killed before it wrote the first line: the ledger
does not say yet that it is open, and nothing was paid.
"""

import json
import math
import os
import sqlite3
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from unsoftmax.campaign.ledger_format import (
    COLUMNS,
    FORMAT_VERSION,
    SCHEMA,
    SQLITE_FAILURES,
    Totals,
    checksum,
    columns,
    said,
)
from unsoftmax.errors import LedgerError


def beside(file: Path) -> tuple[Path, Path]:
    """Return the two files that belong to a ledger in use."""
    return Path(f"{file}-wal"), Path(f"{file}-paid")


def last_totals(file: Path) -> tuple[str, Totals] | None:
    """Read a ledger's counter: the ledger's id and its last totals; None where it has none.

    Raises
    ------
    ValueError
        It is damaged, or cannot be read.
    """
    try:
        text = beside(file)[1].read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(str(error)) from error
    if not text:
        return None
    line, _, crc = text.rpartition(b" ")
    if crc.strip() != b"%08x" % zlib.crc32(line):
        raise ValueError("it does not match its checksum")
    name, *numbers = line.decode().split()
    return name, Totals(*map(int, numbers))


class PaidCounter:
    """The counter of a ledger in use, and a watch over the ledger's files."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._line: int | None = None
        self._identities: dict[Path, tuple[int, int]] = {}

    def begin(self, name: str, totals: Totals) -> None:
        """Make the file, before the ledger says that it is open."""
        self._name = name
        path = beside(self._file)[1]
        try:
            # a link that lies in wait is not written through
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            self._line = os.open(path, flags, 0o600)
            self.count(totals)
            os.fsync(self._line)
        except OSError as error:
            raise self._unwritten(error) from error

    def watch(self) -> None:
        """Remember which files these are: from now on they must stay where they are."""
        for path in (self._file, *beside(self._file)):
            known = path.stat()
            self._identities[path] = (known.st_dev, known.st_ino)

    def count(self, totals: Totals) -> None:
        """Write the totals of the last commit."""
        assert self._line is not None
        numbers = " ".join(f"{number:020d}" for number in totals)
        line = f"{self._name} {numbers}".encode()
        try:
            os.pwrite(self._line, line + b" %08x\n" % zlib.crc32(line), 0)
        except OSError as error:
            raise self._unwritten(error) from error

    def gone(self) -> Path | None:
        """Return the first of the ledger's files that is no longer where it was; once."""
        for path, identity in self._identities.items():
            try:
                known = os.stat(path)
            except OSError:
                known = None
            if known is None or (known.st_dev, known.st_ino) != identity:
                self._identities = {}
                return path
        return None

    def _unwritten(self, error: OSError) -> LedgerError:
        return LedgerError(
            f"{beside(self._file)[1]} cannot be written ({error.strerror}): see that its folder "
            "can be written and its disk is not full, or name another ledger."
        )

    def end(self, *, closed: bool) -> None:
        """Let go of the file, and delete it where the ledger was closed."""
        if self._line is None:
            return
        if closed:
            beside(self._file)[1].unlink(missing_ok=True)
        os.close(self._line)
        self._line = None


APPLICATION_ID = 0x756E736D  # "unsm", in SQLite's header: tells a ledger from any other file


class UnreadableLedger(LedgerError):
    """A file that cannot be read as a ledger; it may hold what is left of one all the same.

    Attributes
    ----------
    why : tuple of str
        What is wrong with it.
    """

    def __init__(self, message: str, *why: str) -> None:
        super().__init__(message)
        self.why = why


def damaged(file: Path, *why: str) -> UnreadableLedger:
    """Return the error for a ledger that is damaged."""
    return UnreadableLedger(
        f"{file} is damaged ({'; '.join(why)}); it was not changed. Restore a copy of it and its "
        f"-wal and -paid; or copy what is sound: unsoftmax ledger {file} --salvage NEW, and go on "
        "with NEW.",
        *why,
    )


def inspect(file: Path) -> None:
    """Refuse what is no ledger of ours.

    Raises
    ------
    UnreadableLedger
        Its first bytes are not a ledger's.
    LedgerError
        It is no file, or may not be read.
    """
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise LedgerError(f"{file} is not a file: name a file for the ledger.")
        with file.open("rb") as stream:
            head = stream.read(100)
            size = stream.seek(0, os.SEEK_END)
    except OSError as error:
        raise LedgerError(f"{file} cannot be read: {error.strerror}.") from error
    _identify(file, head)
    if not int.from_bytes(head[60:64], "big"):
        raise damaged(file, "its format is 0")
    # to a file that does not say that it has one, SQLite takes no notice of a WAL
    if head[18:20] != b"\x02\x02" and beside(file)[0].is_file():
        raise damaged(file, f"it does not say that {beside(file)[0].name} belongs to it")
    page = int.from_bytes(head[16:18], "big")
    # SQLite takes a page cut short for one that ends in zeros. A checkpoint on a full disk
    # leaves one too, but then the WAL has it whole.
    if (not page or size % page) and not os.path.exists(f"{file}-wal"):
        raise damaged(file, f"its size of {size:,} bytes is no whole number of pages")


def _identify(file: Path, head: bytes) -> None:
    """Refuse a file that does not say that it is a ledger of a format that is known."""
    if left := [path.name for path in beside(file) if path.exists()]:
        ours = f"{' and '.join(left)} beside it says that it was one"
    else:
        ours = "If it was one"
    salvage = f"{ours}: unsoftmax ledger {file} --salvage NEW copies what is sound"
    if not head:
        raise UnreadableLedger(
            f"{file} is empty, not a ledger. {salvage}."
            if left
            else f"{file} is empty, not a ledger: delete it or name another file.",
            "it is empty",
        )
    if len(head) < 100 or not head.startswith(b"SQLite format 3\x00"):
        raise UnreadableLedger(
            f"{file} is not a ledger of unsoftmax. It was not touched: name another file. "
            f"{salvage}.",
            "it does not begin as an SQLite file",
        )
    if int.from_bytes(head[68:72], "big") != APPLICATION_ID:
        raise UnreadableLedger(
            f"{file} is another program's SQLite file. It was not touched: name another file. "
            f"{salvage}.",
            "it does not say that it is a ledger",
        )
    if (version := int.from_bytes(head[60:64], "big")) > FORMAT_VERSION:
        raise UnreadableLedger(
            f"{file} has format {version}, this program reads up to {FORMAT_VERSION}: upgrade "
            "unsoftmax. The file was not touched.",
            f"it says that its format is {version}",
        )


def writable(path: Path) -> bool:
    """Whether a file or folder may be changed: root may change what nobody should."""
    return bool(path.stat().st_mode & 0o222) and os.access(path, os.W_OK)


Row: TypeAlias = tuple[Any, ...]


class TableWalk:
    """The sound rows of a table, one by one, of any format, as rows of today's."""

    def __init__(self, db: sqlite3.Connection, table: str) -> None:
        self._db, self._table = db, table
        self._version = version_of(db)
        self.damage = ""
        """What is wrong with the others; known when all have been seen."""

    def __iter__(self) -> Iterator[Row]:
        seen: set[int] = set()
        wrong = 0
        # what lies behind a page that cannot be read is reached from the other end
        for direction in ("", " DESC"):
            try:
                for number, crc, *values in self._db.execute(self._query() + direction):
                    first, sound = number not in seen, crc == self._checksum(values)
                    sound = sound and makes_sense(self._table, values)
                    seen.add(number)
                    wrong += first and not sound
                    if first and sound:
                        yield tuple(values)
            except SQLITE_FAILURES as error:
                self.damage = f"{self._table}: {said(error)}"
            else:
                break
        if wrong:
            rows = "1 row does" if wrong == 1 else f"{wrong} rows do"
            self.damage = f"{self._table}: {rows} not match the checksum, or make no sense"

    def _query(self) -> str:
        names = columns(self._version)[self._table]
        crc = "crc" if self._version == FORMAT_VERSION or self._table == "answers" else "NULL"
        return f"SELECT rowid, {crc}, {names} FROM {self._table} NOT INDEXED ORDER BY rowid"

    def _checksum(self, values: list[Any]) -> int | None:
        if self._version == FORMAT_VERSION:
            return checksum(self._table, values)
        return _older_checksum(self._table, values)


def _older_checksum(table: str, values: list[Any]) -> int | None:
    """Return the checksum of a row before format 3; one that no row has where it makes no sense."""
    numbers, texts = {
        "runs": ([], values[:1]),
        "designs": ([], values[2:3]),
        "parts": (values[:2], values[2:4]),
        "asked": (values[2:4], []),
        "answers": (values[:4] + values[5:], []),
    }[table]
    try:
        for text in texts:
            json.loads(text)
    except (TypeError, ValueError):
        return -1
    if not all(isinstance(number, int) for number in numbers):
        return -1
    if table != "answers":
        return None
    count, data, width = values[3:6]
    fits = isinstance(data, bytes) and len(data) == 8 * count * width
    return zlib.crc32(data) if fits else -1


def version_of(db: sqlite3.Connection) -> int:
    """Return a file's format, as its tables say, so that a flipped bit loses nothing."""
    names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return FORMAT_VERSION if ("file",) in names.fetchall() else _declared(db)


def _declared(db: sqlite3.Connection) -> int:
    [[version]] = db.execute("PRAGMA user_version").fetchall()
    return int(version)


def damage(db: sqlite3.Connection, file: Path, *, has_wal: bool) -> list[str]:
    """Say all that is wrong with a ledger; nothing where it is whole.

    ``has_wal``: whether its WAL was there before SQLite made one.
    """
    found = _structure(db)
    for table in columns(version_of(db)):
        walk = TableWalk(db, table)
        for _ in walk:
            pass
        if walk.damage:
            found.append(walk.damage)
    if not found and version_of(db) == FORMAT_VERSION:
        found += _lost(db, file, has_wal=has_wal)
    return found


def _structure(db: sqlite3.Connection) -> list[str]:
    """Say what SQLite finds, and whether the tables are those of the format."""
    [[said]] = db.execute("PRAGMA integrity_check(1)").fetchall()
    if said != "ok":
        return [str(said)]
    version = version_of(db)
    if version == FORMAT_VERSION:
        same = _has_todays_tables(db)
    else:
        names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        same = {name for [name] in names} == columns(version).keys()
    if same and _declared(db) == version:
        return []
    return ["its tables are not those of a ledger of its format"]


def _has_todays_tables(db: sqlite3.Connection) -> bool:
    written = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
    with closing(sqlite3.connect(":memory:")) as model:
        model.executescript(SCHEMA)
        return bool(model.execute(written).fetchall() == db.execute(written).fetchall())


def is_newer(db: sqlite3.Connection) -> bool:
    """Whether a file is of a format to come, and does not say so by a flipped bit alone."""
    try:
        return _declared(db) > FORMAT_VERSION and not _has_todays_tables(db)
    except SQLITE_FAILURES:
        return False


def _lost(db: sqlite3.Connection, file: Path, *, has_wal: bool) -> list[str]:
    """Say what the tables do not hold that they once held."""
    known = db.execute(f"SELECT {COLUMNS['file']} FROM file").fetchall()
    if len(known) != 1:
        return [f"file: {len(known)} rows instead of 1"]
    [[name, is_open, _, *totals]] = known
    lost = [_shortfall(Totals(*totals), db)]
    wal, counter = beside(file)
    try:
        last = last_totals(file)
    except ValueError as error:
        return [f"{counter.name}: {error}"]
    if last is None and is_open:
        return [
            f"it was in use, and {counter.name} is missing or empty, which tells whether "
            f"{wal.name} is whole: the three belong together"
        ]
    if last is not None:
        if last[0] != name:
            return [f"{counter.name} belongs to another ledger, and {wal.name} may as well"]
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


def makes_sense(table: str, values: Sequence[Any]) -> bool:
    """Tell whether a row's values, without its checksum, are of the form that its table has.

    A checksum tells what an accident has changed. Whoever makes a ledger to do harm knows how
    checksums are made; what this refuses never reaches the code that believes it.
    """
    try:
        return _FORMS[table](*values)
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        return False


def _file(name: Any, *numbers: Any) -> bool:
    return isinstance(name, str) and _counts(*numbers)


def _runs(run: str, batch: Any, environment: str) -> bool:
    known = (json.loads(text) for text in (run, environment))
    return all(isinstance(content, dict) for content in known) and (batch is None or batch >= 1)


def _designs(key: Any, dtype: str, shape: str, data: Any) -> bool:
    kind, sizes = np.dtype(dtype), json.loads(shape)
    return (
        isinstance(key, bytes)
        and kind.kind in "fiu"
        and _counts(*sizes)
        and len(data) == kind.itemsize * math.prod(sizes)
    )


def _parts(index: Any, part: Any, head: str, arrays: str) -> bool:
    family, *numbers, purpose = json.loads(head)
    texts = isinstance(family, str) and isinstance(purpose, str)
    hashes = [bytes.fromhex(key) for key in json.loads(arrays).values()]
    return texts and len(numbers) == 3 and _counts(index, part, *numbers) and all(hashes)


def _asked(number: Any, purpose: str, queries: Any, tokens: Any, outcome: str | None) -> bool:
    texts = purpose.isprintable() and (outcome is None or outcome.isprintable())
    return texts and _counts(queries, tokens) and isinstance(number, int)


def _answers(index: Any, part: Any, start: Any, count: Any, data: bytes, width: Any) -> bool:
    return _counts(index, part, start, count, width) and len(data) == 8 * count * width


def _counts(*numbers: Any) -> bool:
    return all(isinstance(number, int) and number >= 0 for number in numbers)


_FORMS: Mapping[str, Callable[..., bool]] = {
    "file": _file,
    "runs": _runs,
    "designs": _designs,
    "parts": _parts,
    "asked": _asked,
    "answers": _answers,
}
