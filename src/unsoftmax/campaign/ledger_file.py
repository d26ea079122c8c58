"""Open the ledger's file: make it, or find out whose it is, whether it is whole, who has it.

What is no ledger, or cannot be used as one, is left byte for byte as it was found. A ledger
that is open belongs to one run: no other process, and no other run of this process, gets in.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from unsoftmax.campaign.ledger import Ledger
from unsoftmax.campaign.ledger_format import FORMAT_VERSION, SCHEMA, Totals, insertion
from unsoftmax.campaign.ledger_health import damage
from unsoftmax.campaign.paid_counter import PaidCounter, beside
from unsoftmax.errors import LedgerError

_APPLICATION_ID = 0x756E736D  # "unsm", in SQLite's header: tells a ledger from any other file

_open: set[tuple[int, int, int]] = set()
"""Ledgers in use here: process, device, inode. See `_sole`."""
_opening = threading.Lock()


@contextmanager
def open_ledger(
    path: str | os.PathLike[str] | None, environment: Mapping[str, Any]
) -> Iterator[Ledger]:
    """Open a ledger for one run, making it if there is none; None keeps it in memory.

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
        counter, closed = PaidCounter(file), False
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
            leave(db)
            raise _damaged(file, found)
    except LedgerError:
        restore(file, wal)
        raise
    return db


@contextmanager
def alone(file: Path) -> Iterator[bytes | None]:
    """Have a ledger's file for oneself in this process; yield its WAL, None without one."""
    with _sole(file):
        _inspect(file)
        wal = beside(file)[0]
        yield wal.read_bytes() if wal.is_file() else None


@contextmanager
def empty() -> Iterator[sqlite3.Connection]:
    """Make an empty ledger in memory."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        db.executescript(SCHEMA)
        db.execute(*insertion("file", secrets.token_hex(8), 0, 0, *Totals()))
        yield db


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
            raise _in_use(file)
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
    for left in beside(file):
        if os.path.lexists(left):
            raise LedgerError(
                f"{file} is missing, and {left.name} is there, which belongs to it: answers that "
                "were paid may be in them. Bring the ledger back to where it was, or delete "
                f"{left.name} as well to ask all anew."
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
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".new")
    try:
        with open(handle, "wb") as stream:
            _write(stream, data)
        os.link(temporary, file)
    finally:
        os.unlink(temporary)


def _write(stream: BinaryIO, data: bytes) -> None:
    stream.write(data)
    stream.flush()
    os.fsync(stream.fileno())


def _inspect(file: Path) -> None:
    """Refuse what is no ledger of ours, from the file's first bytes, before SQLite touches it."""
    try:
        mode = file.stat().st_mode
        if not stat.S_ISREG(mode):
            raise LedgerError(f"{file} is not a file: name a file for the ledger.")
        with file.open("rb") as stream:
            head = stream.read(100)
            size = stream.seek(0, os.SEEK_END)
    except OSError as error:
        raise LedgerError(f"{file} cannot be read: {error.strerror}.") from error
    if not head:
        raise LedgerError(f"{file} is empty, not a ledger: delete it or name another file.")
    if len(head) < 100 or not head.startswith(b"SQLite format 3\x00"):
        raise LedgerError(f"{file} is not a ledger of unsoftmax; it was not touched.")
    if int.from_bytes(head[68:72], "big") != _APPLICATION_ID:
        raise LedgerError(f"{file} is another program's SQLite file; it was not touched.")
    if (version := int.from_bytes(head[60:64], "big")) > FORMAT_VERSION:
        raise LedgerError(
            f"{file} has format {version}, this program reads up to {FORMAT_VERSION}: upgrade "
            "unsoftmax. The file was not touched."
        )
    if not version:
        raise _damaged(file, ["its format is 0"])
    # to a file that does not say that it has one, SQLite takes no notice of a WAL
    if head[18:20] != b"\x02\x02" and beside(file)[0].is_file():
        raise _damaged(file, [f"it does not say that {beside(file)[0].name} belongs to it"])
    page = int.from_bytes(head[16:18], "big")
    # SQLite takes a page cut short for one that ends in zeros. A checkpoint on a full disk
    # leaves one too, but then the WAL has it whole.
    if (not page or size % page) and not os.path.exists(f"{file}-wal"):
        raise _damaged(file, [f"its size of {size:,} bytes is no whole number of pages"])
    if not mode & 0o222 or not os.access(file, os.W_OK):
        raise LedgerError(
            f"{file} is read-only: make it writable (chmod u+w), or copy it and name the copy."
        )


def connect(file: Path) -> sqlite3.Connection:
    """Connect, locking the file, without changing it.

    Raises
    ------
    LedgerError
        Another process has it, SQLite cannot read it, or the folder cannot be used.
    """
    db = sqlite3.connect(file, isolation_level=None, timeout=0, check_same_thread=False)
    # a text that is none is a row that is damaged, and not the end of its table
    db.text_factory = lambda data: data.decode(errors="replace")
    try:
        # EXCLUSIVE before WAL: the lock is held until the connection closes or the process dies
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        db.execute("COMMIT")
    except sqlite3.Error as error:
        leave(db)
        # SQLite's own text that cannot be decoded has no code
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise _in_use(file) from error
        if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL):
            raise LedgerError(
                f"{file} cannot be used ({error}): see that its folder can be written and its "
                "disk is not full, or name another ledger."
            ) from error
        raise _damaged(file, [str(error)]) from error
    return db


def problems(db: sqlite3.Connection, file: Path, *, has_wal: bool) -> list[str]:
    """Say all that is wrong with a ledger, as far as SQLite can read it."""
    try:
        return damage(db, file, has_wal=has_wal)
    except sqlite3.Error as error:
        return [str(error)]


def restore(file: Path, before: bytes | None) -> None:
    """Leave the WAL of a refused ledger as it was: SQLite deletes one that it has no use for."""
    wal = beside(file)[0]
    if before is not None and not wal.exists():
        with open(os.open(wal, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as stream:
            stream.write(before)


def leave(db: sqlite3.Connection) -> None:
    """Close, leaving the file as it is: an interrupted connection moves nothing from the WAL."""
    db.interrupt()
    db.close()


def _in_use(file: Path) -> LedgerError:
    return LedgerError(f"{file} is in use by another run: wait for it, or name another ledger.")


def _damaged(file: Path, why: list[str]) -> LedgerError:
    return LedgerError(
        f"{file} is damaged ({'; '.join(why)}); it was not changed. Restore a copy of it and its "
        f"-wal and -paid; or copy what is sound: unsoftmax ledger {file} --salvage NEW, and go on "
        "with NEW."
    )
