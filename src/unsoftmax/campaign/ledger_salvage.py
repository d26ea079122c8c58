"""What is in a ledger, sound or not; and what is sound in it, copied into a new one.

The ledger itself is only read, also where nothing may be written beside it. A copy keeps every
sound answer whose questions are known, and the bill: what the totals know and no sound row says
is booked as in doubt, so that it never shrinks. What is missing is asked again by the run that
goes on with the copy.
"""

import hashlib
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unsoftmax.campaign import ledger_file, ledger_health
from unsoftmax.campaign.fingerprint import FEWEST
from unsoftmax.campaign.ledger_format import SQLITE_FAILURES, Totals, columns, insertion
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
    first: list[ledger_health.Row] = field(default_factory=list)

    @property
    def lost(self) -> Totals:
        """What no sound row says."""
        return self.known.beyond(self.totals)


def summary(path: str | os.PathLike[str]) -> LedgerSummary:
    """Read a ledger through, changing nothing.

    Raises
    ------
    LedgerError
        It is no ledger, is in use, or no sound row is left in it.
    """
    file = ledger_file.real_path(path)
    with _reading(file) as (db, damage):
        return _summary(_sums(db, file), damage)


def salvage(path: str | os.PathLike[str], new: str | os.PathLike[str]) -> LedgerSummary:
    """Copy what is sound in a ledger into a new one; return what is in that.

    Raises
    ------
    LedgerError
        The ledger cannot be read, or ``new`` exists or cannot be made.
    """
    file, copy = ledger_file.real_path(path), Path(new)
    with _reading(file) as (db, _), ledger_file.empty() as into:
        _copy(db, into, _sums(db, file))
        # all or nothing: a copy of half of it would look sound
        if not ledger_file.create(copy, into):
            raise LedgerError(f"{copy} exists: name a new file to copy into.")
    return summary(copy)


@contextmanager
def _reading(file: Path) -> Iterator[tuple[sqlite3.Connection, list[str]]]:
    """Yield a ledger in memory, as well as it can be read, and what is wrong with it."""
    try:
        main, wal, error = _files(file)
    except OSError as failure:
        raise ledger_file.unread(file, failure) from failure
    with ledger_file.empty() as db:
        found = images(main, wal or b"", db.serialize())
    best = next(found)
    with ledger_file.in_memory(best) as db:
        damage = (
            list(error.why) if error else ledger_file.problems(db, file, has_wal=wal is not None)
        )
        if error and ledger_health.is_newer(db):
            raise error
    if damage:
        best = max((best, *found), key=lambda image: _sound_rows(image, file))
    if error and not _sound_rows(best, file):
        raise LedgerError(
            f"{file} holds no sound row of a ledger ({error.why[0]}): nothing can be salvaged."
        ) from error
    with ledger_file.in_memory(best) as db:
        yield db, damage


def _files(file: Path) -> tuple[bytes, bytes | None, ledger_health.UnreadableLedger | None]:
    """Read a ledger's file and its WAL; and why SQLite would not open them."""
    if not any(path.exists() for path in (file, *ledger_health.beside(file))):
        raise LedgerError(f"There is no ledger at {file}.")
    if not file.exists():
        return (
            b"",
            ledger_file.wal_of(file),
            ledger_health.UnreadableLedger(f"{file} is missing.", "it is missing"),
        )
    try:
        # the stream first: as soon as it is closed, the lock ends
        with ledger_file.alone(file) as wal, file.open("rb") as stream, _unchanged(file, wal):
            return stream.read(), wal, None
    except ledger_health.UnreadableLedger as error:
        return file.read_bytes(), ledger_file.wal_of(file), error


@contextmanager
def _unchanged(file: Path, wal: bytes | None) -> Iterator[None]:
    """Keep a ledger from being written: by a lock, or where that needs a file, by looking."""
    if ledger_health.writable(file) and ledger_health.writable(file.parent):
        try:
            with closing(ledger_file.connect(file)) as db:
                try:
                    yield
                finally:
                    ledger_file.close_unchanged(db)
        finally:
            ledger_file.restore(file, wal)
        return
    paths = [path for path in (file, *ledger_health.beside(file)) if path.exists()]
    before = [_state(path) for path in paths]
    yield
    if [_state(path) for path in paths] != before:
        raise ledger_file.in_use(file)


def _state(path: Path) -> tuple[int, int]:
    known = path.stat()
    return known.st_size, known.st_mtime_ns


def _sound_rows(image: bytes, file: Path) -> tuple[int, ...]:
    """Count what is sound in an image, answers first; nothing where SQLite cannot read it."""
    try:
        with ledger_file.in_memory(image) as db:
            sums = _sums(db, file)
    except SQLITE_FAILURES:
        return ()
    seen = (sums.totals.answered, sums.totals.queries, sums.rounds, *sums.known, len(sums.run))
    return seen if any(seen) else ()


def _sums(db: sqlite3.Connection, file: Path) -> _SoundSums:
    sums = _SoundSums()
    if "file" in columns(ledger_health.version_of(db)):
        for _, _, _, *totals in ledger_health.TableWalk(db, "file"):
            sums.known = Totals(*totals)
        sums.known = sums.known.most(_counted(file))
    for run, *_ in ledger_health.TableWalk(db, "runs"):
        sums.run = json.loads(run)
    for _, _, queries, tokens, outcome in ledger_health.TableWalk(db, "asked"):
        settled = int(outcome is not None)
        sums.totals = sums.totals.plus(queries=queries, tokens=tokens, settled=settled)
        if outcome == "put off":
            sums.put_off = sums.put_off.plus(queries=queries, tokens=tokens)
        sums.in_doubt += queries if outcome in (None, "in doubt") else 0
    for index, part, start, count, data, _ in ledger_health.TableWalk(db, "answers"):
        sums.totals = sums.totals.plus(answered=count)
        if index == 0:
            sums.first.append((part, start, data))
    for index, *_ in ledger_health.TableWalk(db, "parts"):
        sums.rounds = max(sums.rounds, index + 1)
    return sums


def _counted(file: Path) -> Totals:
    try:
        last = ledger_health.last_totals(file)
    except ValueError:
        last = None
    return Totals() if last is None else last[1]


def _summary(sums: _SoundSums, damage: list[str]) -> LedgerSummary:
    run, lost = sums.run, sums.lost
    first = [data for _, _, data in sorted(sums.first)[:FEWEST]]
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
        for row in ledger_health.TableWalk(db, table):
            if table == "parts":
                asked_for.add(row[:2])
            if table != "answers" or row[:2] in asked_for:
                into.execute(*insertion(table, *row))
    last = 0  # rows behind a broken page come in descending order
    for number, *fields, outcome in ledger_health.TableWalk(db, "asked"):
        last = max(last, number)
        into.execute(*insertion("asked", number, *fields, outcome or "in doubt"))
    if (lost := sums.lost).queries:
        doubt = ("lost", lost.queries, lost.tokens, "in doubt")
        into.execute(*insertion("asked", last + 1, *doubt))
    [[name]] = into.execute("SELECT id FROM file")
    into.execute("DELETE FROM file")
    into.execute(*insertion("file", name, 0, 1, *Totals.of(into)))
    into.execute("COMMIT")


_HEADER, _FRAME = 100, 24  # bytes: of a file, and before each page of a WAL


@dataclass(frozen=True, slots=True)
class _Frame:
    """A page in a WAL."""

    number: int
    """Of the page, from 1."""
    ends: bool
    """Whether it is the last one of a commit."""
    salts: bytes
    """The same in all of a WAL, but for what is left of an earlier one."""
    sound: bool
    """Whether SQLite takes it: it, and all before it, match their checksums."""
    page: bytes


def images(main: bytes, wal: bytes, fresh: bytes) -> Iterator[bytes]:
    """Yield a ledger's file as SQLite reads it, then mended in all ways; for reading alone.

    To open a file with a WAL, SQLite must be able to write beside it; an image in memory needs
    nothing of the kind. And where SQLite gives up, an image may be mended:

    - *its header, or its first page*, which holds the header and where the tables begin, may be
      those of an empty ledger: all ledgers have the same tables, on the same pages;
    - *the WAL's pages* may all be taken, where SQLite ignores those behind a flipped bit.

    A page in the wrong place does no harm: every row has a checksum that says its table.

    Parameters
    ----------
    main, wal : bytes
        The file and its WAL; empty where they are missing.
    fresh : bytes
        The file of an empty ledger.
    """
    size = _page_size(main) or _page_size(fresh)
    every = list(_frames(wal, size))
    sound = _committed([frame for frame in every if frame.sound])
    yield _readable(_overlaid(main, sound, size))
    # behind its end, a file that was cut short is as it was made
    main += fresh[len(main) :]
    for frames in (sound, _committed(every)):
        pages = _overlaid(main, frames, size)
        header = fresh[:28] + (len(pages) // size).to_bytes(4, "big") + fresh[32:_HEADER]
        for mended in (b"", header, header + fresh[_HEADER:size]):
            yield _readable(mended + pages[len(mended) :])


def _readable(image: bytes) -> bytes:
    """Say in the header that no WAL belongs to it: in memory there is none."""
    return image[:18] + b"\x01\x01" + image[20:]


def _page_size(main: bytes) -> int:
    """Return what a file says that its pages are long; 0 where that is impossible."""
    size = int.from_bytes(main[16:18], "big")
    return size if size >= 512 and size & (size - 1) == 0 else 0


def _overlaid(main: bytes, frames: list[_Frame], size: int) -> bytes:
    """Put a WAL's pages into their places; one that is too far out has a flipped bit."""
    image = bytearray(main)
    most = len(main) // size + len(frames)
    for frame in frames:
        if 0 < frame.number <= most:
            start = (frame.number - 1) * size
            image.extend(bytes(max(0, start - len(image))))
            image[start : start + size] = frame.page
    return bytes(image)


def _committed(frames: list[_Frame]) -> list[_Frame]:
    """Return the frames of the latest WAL, up to its last commit."""
    [(salts, _)] = Counter(frame.salts for frame in frames).most_common(1) or [(b"", 0)]
    frames = [frame for frame in frames if frame.salts == salts]
    last = max((k for k, frame in enumerate(frames) if frame.ends), default=-1)
    return frames[: last + 1]


def _frames(wal: bytes, size: int) -> Iterator[_Frame]:
    """Yield a WAL's pages in order."""
    order = ">u4" if wal[3:4] == b"\x83" else "<u4"
    total = _checksum(wal[:24], order, (0, 0))
    sound = _stored(wal[24:32]) == total and wal[:3] == b"\x37\x7f\x06"
    for start in range(32, len(wal) - size - _FRAME + 1, size + _FRAME):
        head, page = wal[start : start + _FRAME], wal[start + _FRAME : start + _FRAME + size]
        if sound:
            total = _checksum(head[:8] + page, order, total)
        salts = head[8:16]
        sound = sound and _stored(head[16:]) == total and salts == wal[16:24]
        yield _Frame(int.from_bytes(head[:4], "big"), any(head[4:8]), salts, sound, page)


def _stored(checksum: bytes) -> tuple[int, int]:
    return int.from_bytes(checksum[:4], "big"), int.from_bytes(checksum[4:], "big")


def _checksum(data: bytes, order: str, total: tuple[int, int]) -> tuple[int, int]:
    """Return SQLite's checksum of a WAL, going on from another one."""
    one, two = total
    words = np.frombuffer(data, dtype=order).tolist()
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two
