"""The file beside an open ledger that shows when its WAL has lost something.

What SQLite commits goes to ``LEDGER-wal`` first. Where that file is lost or cut short, or one of
its bits has flipped, SQLite takes what is sound before that place for all there ever was. So
``LEDGER-paid`` holds the ledger's totals after every commit, one line that is overwritten in
place. They never shrink: a ledger that has less has lost something. It is not flushed: a power
cut may leave it behind the ledger, which is flushed at every commit, and never ahead of it.

The file is there while the ledger is in use and after a crash. A ledger that was closed is one
file. An empty one was left by a run that was killed before it wrote the first line: the ledger
does not say yet that it is open, and nothing was paid. It may not know what the totals mean.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from unsoftmax.campaign.ledger_format import Totals
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
