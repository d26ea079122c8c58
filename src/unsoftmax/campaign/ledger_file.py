"""Open the ledger's file: make it, or find out whose it is, whether it is whole, who has it.

What is no ledger, or cannot be used as one, is left byte for byte as it was found. A ledger
that is open belongs to one run: no other process, and no other run of this process, gets in.
"""

import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from unsoftmax.campaign import ledger_health
from unsoftmax.campaign.ledger import Ledger
from unsoftmax.campaign.ledger_format import SCHEMA, SQLITE_FAILURES, Totals, insertion, said
from unsoftmax.errors import LedgerError
from unsoftmax.models.files import temporary_beside

_open: set[tuple[int, int, int]] = set()
"""Ledgers in use here: process, device, inode. See `_sole`."""
_opening = threading.Lock()


@contextmanager
def open_ledger(
    path: str | os.PathLike[str] | None, environment: Mapping[str, Any]
) -> Iterator[Ledger]:
    """Open a ledger for one run, making it if there is none; None keeps the bill in memory alone.

    Raises
    ------
    LedgerError
        The file is no ledger, is damaged, read-only, newer than this program, or in use by
        another run. It is left as it was found.
    """
    if path is None:
        with empty() as db:
            yield Ledger(db, "The ledger", environment)
        return
    file = real_path(path)
    if not file.exists():
        with empty() as db:
            create(file, db)  # where another process was faster, its lock decides
    with alone(file) as wal:
        if not ledger_health.writable(file):
            raise LedgerError(
                f"{file} is read-only: make it writable (chmod u+w), or copy it and name the copy."
            )
        counter, closed = ledger_health.PaidCounter(file), False
        try:
            with closing(_sound(file, wal)) as db:
                ledger = Ledger(db, str(file), environment, counter)
                try:
                    yield ledger
                finally:
                    closed = ledger.close()
        finally:
            counter.end(closed=closed)


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return where a ledger is, beside which SQLite keeps its WAL, wherever the target goes."""
    # a link to nowhere is refused by its own name
    follow = os.path.islink(path) and os.path.exists(path)
    return Path(os.path.realpath(path) if follow else os.path.abspath(path))


def _sound(file: Path, wal: bytes | None) -> sqlite3.Connection:
    """Connect to a ledger that is whole."""
    try:
        db = connect(file)
        if found := problems(db, file, has_wal=wal is not None):
            close_unchanged(db)
            raise ledger_health.damaged(file, *found)
    except LedgerError:
        restore(file, wal)
        raise
    return db


@contextmanager
def alone(file: Path) -> Iterator[bytes | None]:
    """Have a ledger's file for oneself in this process; yield its WAL, None without one."""
    with _sole(file):
        ledger_health.inspect(file)
        yield wal_of(file)


def wal_of(file: Path) -> bytes | None:
    """Read a ledger's WAL; None without one."""
    wal = ledger_health.beside(file)[0]
    try:
        return wal.read_bytes() if wal.is_file() else None
    except OSError as error:
        raise unread(wal, error) from error


def unread(file: Path, error: OSError) -> LedgerError:
    """Return the error for a file that may not be read, or on a disk that is damaged."""
    return LedgerError(
        f"{file} cannot be read: {error.strerror}. Nothing was changed; copy what can be read of "
        "the ledger and the files beside it elsewhere, and go on with that copy."
    )


@contextmanager
def empty() -> Iterator[sqlite3.Connection]:
    """Make an empty ledger in memory."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute(f"PRAGMA application_id = {ledger_health.APPLICATION_ID}")
        db.executescript(SCHEMA)
        db.execute(*insertion("file", secrets.token_hex(8), 0, 0, *Totals()))
        yield db


@contextmanager
def in_memory(image: bytes) -> Iterator[sqlite3.Connection]:
    """Read the bytes of a file that has no WAL."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.text_factory = _text
        db.deserialize(image)
        yield db


def _text(data: bytes) -> str:
    """Read a text; one that is none is a row that is damaged, and not the end of its table."""
    return data.decode(errors="replace")


@contextmanager
def _sole(file: Path) -> Iterator[None]:
    """Refuse a ledger that this process has open, without opening it.

    SQLite's lock keeps other processes out, and POSIX drops it as soon as this process closes
    the file again, through any handle: so a second run here must not even look into it.
    """
    try:
        known = file.stat()
    except OSError as error:
        raise LedgerError(f"{file} cannot be read: {error.strerror}.") from error
    key = (os.getpid(), known.st_dev, known.st_ino)
    with _opening:
        if key in _open:
            raise in_use(file)
        _open.add(key)
    try:
        yield
    finally:
        _open.discard(key)


def create(file: Path, db: sqlite3.Connection) -> bool:
    """Write a ledger to a new file, all or nothing, mode 0600; return False where one exists.

    Raises
    ------
    LedgerError
        It cannot be written, or other files lie there that belong to a ledger of this name.
    """
    for left in ledger_health.beside(file):
        if os.path.lexists(left):
            raise LedgerError(
                f"{file} is missing, and {left.name} is there, which belongs to it: answers that "
                "were paid may be in them. Bring the ledger back to where it was; or copy what is "
                f"left: unsoftmax ledger {file} --salvage NEW; or delete {left.name} as well to "
                "ask all anew."
            )
    data = db.serialize()
    try:
        try:
            _link_nameless(file, data)
        except FileExistsError:
            raise
        except (OSError, AttributeError):  # not Linux, or another kind of file system
            _link_named(file, data)
    except FileExistsError:
        return False
    except OSError as error:
        raise LedgerError(f"No ledger can be made at {file}: {error.strerror}.") from error
    return True


def _link_nameless(file: Path, data: bytes) -> None:
    """Write a file that has no name yet: where this is killed nothing is left behind."""
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        with open(os.open(file.parent, os.O_TMPFILE | os.O_WRONLY, 0o600), "wb") as stream:
            _write(stream, data)
            # with a folder's handle, Python follows the link in /proc
            os.link(f"/proc/self/fd/{stream.fileno()}", file, src_dir_fd=folder)
    finally:
        os.close(folder)


def _link_named(file: Path, data: bytes) -> None:
    with temporary_beside(file) as temporary:
        with temporary.open("wb") as stream:
            _write(stream, data)
        os.link(temporary, file)


def _write(stream: BinaryIO, data: bytes) -> None:
    stream.write(data)
    stream.flush()
    os.fsync(stream.fileno())


def connect(file: Path) -> sqlite3.Connection:
    """Connect, locking the file, without changing it.

    Raises
    ------
    LedgerError
        Another process has it, SQLite cannot read it, or the folder cannot be used.
    """
    db = sqlite3.connect(file, isolation_level=None, timeout=0, check_same_thread=False)
    db.text_factory = _text
    try:
        # EXCLUSIVE before WAL: the lock is held until the connection closes or the process dies
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        db.execute("COMMIT")
    except SQLITE_FAILURES as error:
        close_unchanged(db)
        # SQLite's own text that cannot be decoded has no code
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise in_use(file) from error
        if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL):
            raise LedgerError(
                f"{file} cannot be used ({error}): see that its folder can be written and its "
                "disk is not full, or name another ledger."
            ) from error
        raise ledger_health.damaged(file, said(error)) from error
    return db


def problems(db: sqlite3.Connection, file: Path, *, has_wal: bool) -> list[str]:
    """Say all that is wrong with a ledger, as far as SQLite can read it."""
    try:
        return ledger_health.damage(db, file, has_wal=has_wal)
    except SQLITE_FAILURES as error:
        return [said(error)]


def restore(file: Path, before: bytes | None) -> None:
    """Leave the WAL of a refused ledger as it was: SQLite deletes one that it has no use for."""
    wal = ledger_health.beside(file)[0]
    if before is not None and not wal.exists():
        with open(os.open(wal, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as stream:
            stream.write(before)


def close_unchanged(db: sqlite3.Connection) -> None:
    """Close, leaving the file as it is: an interrupted connection moves nothing from the WAL."""
    db.interrupt()
    db.close()


def in_use(file: Path) -> LedgerError:
    """Return the error for a ledger that another run has."""
    return LedgerError(f"{file} is in use by another run: wait for it, or name another ledger.")
