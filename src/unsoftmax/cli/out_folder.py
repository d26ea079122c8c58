"""The folder that a command writes into: looked at before anything is paid."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from unsoftmax.cli.console import Refusal


def prepare(out: Path, names: Iterable[str]) -> None:
    """Make the folder, and refuse it unless files of these names can be written there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"--out {out} cannot be made: {error.strerror}.") from error
    try:
        tempfile.TemporaryFile(dir=out).close()  # has no name, so that a kill leaves none
    except OSError as error:
        raise Refusal(f"--out {out} cannot be written: {error.strerror}.") from error
    for name in names:
        if (out / name).is_dir():
            raise Refusal(f"--out {out} is occupied: {out / name} is a folder, not a file.")


@contextmanager
def written(out: Path, book: Path | None = None) -> Iterator[None]:
    """Say what is kept where a result could not be written."""
    try:
        yield
    except OSError as error:
        kept = "" if book is None else f" Every answer is in {book}: name it with --ledger."
        raise Refusal(
            f"The result could not be written to {out} ({error.strerror}).{kept} Free some disk "
            "space, or name another --out, and run the command again."
        ) from error
