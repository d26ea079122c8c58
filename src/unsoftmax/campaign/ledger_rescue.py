"""A copy of a ledger whose file was taken away while it is in use.

SQLite still has the file open, so all that was recorded can be read.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from pathlib import Path


def rescued(db: sqlite3.Connection, file: Path) -> str:
    """Copy a ledger beside its former place, or where temporary files are; say where."""
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
