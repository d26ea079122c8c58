"""The first bytes of a ledger's file, which tell it from other files, before SQLite touches it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from unsoftmax.campaign.ledger_format import FORMAT_VERSION
from unsoftmax.campaign.paid_counter import beside
from unsoftmax.errors import LedgerError

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
        ours = "if it was one"
    salvage = f"{ours}: unsoftmax ledger {file} --salvage NEW copies what is sound"
    if not head:
        raise UnreadableLedger(
            f"{file} is empty, not a ledger; {salvage}."
            if left
            else f"{file} is empty, not a ledger: delete it or name another file.",
            "it is empty",
        )
    if len(head) < 100 or not head.startswith(b"SQLite format 3\x00"):
        raise UnreadableLedger(
            f"{file} is not a ledger of unsoftmax, it was not touched; {salvage}.",
            "it does not begin as an SQLite file",
        )
    if int.from_bytes(head[68:72], "big") != APPLICATION_ID:
        raise UnreadableLedger(
            f"{file} is another program's SQLite file, it was not touched; {salvage}.",
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
