"""The folder that a command writes into: tried before anything is paid, described at the end."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from unsoftmax.cli.commands import WORDS, value_of
from unsoftmax.cli.console import Refusal, say, stderr

PAGE_NEEDS = "matplotlib and jinja2"
PAGE_FILE = "report.html"

WithReport = Annotated[
    bool,
    typer.Option(
        "--report/--no-report",
        envvar="UNSOFTMAX_REPORT",
        help="Also draw what was found: OUT/report.html.",
    ),
]
"""The option of every command that has --out."""

Sarif = Annotated[
    Path | None,
    typer.Option(
        help="Also write what was found as SARIF, for alerts of a CI system.", metavar="FILE"
    ),
]


def refuse_no_file(path: Path | None) -> None:
    """Refuse a --sarif that cannot be written, before anything is paid."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise Refusal(f"--sarif {path} cannot be written: {error.strerror}.") from error
    if path.is_dir():
        raise Refusal(f"--sarif {path} is a folder. Name a file.")


def refuse_file(out: Path) -> None:
    """Refuse what cannot be a folder, since it or one above it is a file."""
    # as a path "" is the current folder, which a variable that is not set does not mean
    if value_of(("--out",), WORDS.get()) == "":
        raise Refusal("--out is empty. Name a folder; --out . is the current one.")
    for place in (out, *out.parents):
        if place.exists() and not place.is_dir():
            raise Refusal(f"--out {out} cannot be made: {place} is a file. Name a folder.")


def prepare(out: Path, names: Iterable[str]) -> None:
    """Make the folder, and refuse it unless files of these names can be written there."""
    from unsoftmax.report.command_record import COMMANDS_FILE

    refuse_file(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"--out {out} cannot be made: {error.strerror}.") from error
    try:
        tempfile.TemporaryFile(dir=out).close()  # has no name, so that a kill leaves none
    except OSError as error:
        raise Refusal(f"--out {out} cannot be written: {error.strerror}.") from error
    for name in (*names, PAGE_FILE, COMMANDS_FILE):
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


def finish(
    out: Path,
    result: str,
    *,
    report: bool,
    pictures: Callable[[], Iterable[str]] = tuple,
    **about: object,
) -> tuple[str, ...]:
    """Note which command wrote a result, and draw the page; return the names of its files.

    What cannot be drawn is no failure of the command, whose result is written: one line says why.

    Parameters
    ----------
    out : Path
        The folder.
    result : str
        The file of the result, one of `unsoftmax.report.page.SECTIONS`.
    report : bool
        Whether to draw.
    pictures : callable
        Draws what belongs beside the page, and returns the names of the files.
    about
        What the page names on top: ``target``, ``weights``.
    """
    from unsoftmax.errors import missing_extra
    from unsoftmax.report.command_record import CommandRecord, note_command

    try:
        note_command(out, result, CommandRecord.now(WORDS.get(), **about))
        if not report:
            return ()
        from unsoftmax.report.page import write_page

        return (*pictures(), write_page(out).name)
    except ImportError:
        later = f"Then: unsoftmax report {out}"
        say(
            f"No {PAGE_FILE}. {missing_extra(PAGE_NEEDS, 'report')} {later}", stderr, soft_wrap=True
        )
    except Exception as error:  # whatever drawing meets: the result is paid for, and written
        named = "" if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: "
        say(f"{PAGE_FILE} was not written: {named}{error}", stderr, soft_wrap=True)
    return ()


def and_more(names: Iterable[Any]) -> str:
    """Continue a list of files."""
    return "".join(f", {name}" for name in names)
