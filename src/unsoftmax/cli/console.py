"""What a terminal shows: results, progress, and errors as sentences with an exit status."""

from __future__ import annotations

import functools
import json
import logging
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from unsoftmax import cli, errors

if TYPE_CHECKING:
    from unsoftmax.campaign import Progress as Report
    from unsoftmax.campaign import Recovery, Watcher
    from unsoftmax.protocol import Model

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show with an error the whole chain of its causes.")
]
F = TypeVar("F", bound=Callable[..., None])


class Aside(Console):
    """Where progress and errors are shown: without a reader what is paid for goes on."""

    def on_broken_pipe(self) -> None:
        """Say no more; rich would exit."""
        self.quiet = True


stdout = Console()
stderr = Aside(stderr=True)


# Between two lines of progress where there is no terminal: a log of a run of hours stays readable.
EVERY_S = 10.0
# Rows of a table: more than that is not read. --all shows the others.
MOST_ROWS = 10
QUIET: ContextVar[bool] = ContextVar("QUIET", default=False)
"""Whether results and errors are all that is said: --quiet."""
ALL_ROWS: ContextVar[bool] = ContextVar("ALL_ROWS", default=False)
"""Whether tables are shown whole: --all."""
# Before this the rate of queries says nothing.
STEADY_S = 1.0


class Refusal(Exception):
    """A user's mistake; its message says what to do instead."""


DIM_IS_MISSING = "--dim is missing: the dimension of a token, such as --dim 384."


class NotServed(errors.ModelMismatch):
    """The target takes or gives other shapes than the weights it is asked about: `verify`'s no."""


def status_of(error: BaseException) -> int:
    """Return the exit status that tells programs what happened."""
    if isinstance(error, errors.Terminated):
        return int(error.code or 0)
    statuses: tuple[tuple[type[BaseException], int], ...] = (
        (Refusal, 2),
        (errors.LedgerError, 2),
        (errors.AlgorithmError, 2),
        (NotServed, 1),
        (errors.NotIdentifiable, 3),
        (errors.ModelMismatch, 3),
        (errors.BudgetExceeded, 4),
        (errors.OracleError, 5),
        (KeyboardInterrupt, 130),
    )
    return next(status for kind, status in statuses if isinstance(error, kind))


def with_exit_status(command: F) -> F:
    """Turn errors of a command into a sentence on stderr and an exit status."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            cli.begin_command()
            command(*args, **kwargs)
        except (Refusal, errors.UnsoftmaxError) as error:
            _tell(error, kwargs)
            raise typer.Exit(status_of(error)) from error
        except BaseException as error:
            end = signal_behind(error)
            if end is None:
                raise
            cli.end_at_once()
            with suppress(OSError):  # a terminal that has gone
                _tell(end, kwargs)
            raise typer.Exit(status_of(end)) from error

    return run  # type: ignore[return-value]


def signal_behind(error: BaseException) -> BaseException | None:
    """Return what a signal raised, whatever Python made of it (in 3.11, while a class is made)."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, (KeyboardInterrupt, errors.Terminated)):
        seen = seen.__cause__ or seen.__context__
    return seen


def _tell(error: BaseException, options: dict[str, Any]) -> None:
    """Say what ended a command: on stderr, and with --json on stdout too."""
    name, message = _named(error)
    if options.get("debug"):
        chain = printable("".join(traceback.format_exception(error)))
        _print(chain, stderr, soft_wrap=True)
    said = f"{'Error' if name == 'Refusal' else name}: {message}"
    _print(printable(said), stderr, soft_wrap=True)
    if options.get("as_json"):
        content = {"error": name, "message": message, "status": status_of(error)}
        if isinstance(error, (errors.NotIdentifiable, errors.ModelMismatch)) and error.reason:
            content["reason"] = error.reason
        if isinstance(error, NotServed):
            content["verdict"] = "different"
        if isinstance(error, errors.BudgetExceeded):
            content |= {"spent": error.spent, "needed": error.needed}
            content["needed_tokens"] = error.needed_tokens
        show_json(content)


def printable(text: str) -> str:
    """Leave out what moves a terminal's cursor or hides lines: a target's words may hold it."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def _named(error: BaseException) -> tuple[str, str]:
    status = status_of(error)
    notes = getattr(error, "__notes__", ())
    if status == 130:
        return "Interrupted", " ".join(notes) or "Stopped by Ctrl-C."
    if isinstance(error, errors.Terminated):
        return "Terminated", " ".join(notes) or f"Stopped by {signal.Signals(status - 128).name}."
    return type(error).__name__, " ".join([str(error), *notes])


def say(line: str, console: Console = stdout, *, soft_wrap: bool = False) -> None:
    """Print a line as it is; with ``soft_wrap`` without breaking it, as paths and commands want.

    With --quiet nothing is said on stderr.
    """
    if not (QUIET.get() and isinstance(console, Aside)):
        _print(line, console, soft_wrap=soft_wrap)


def _print(line: str, console: Console, *, soft_wrap: bool) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=soft_wrap)


def say_notes(notes: Iterable[str], label: str = "Note") -> None:
    """Print sentences, a line each; none with --quiet."""
    for note in () if QUIET.get() else notes:
        say(f"{label}: {note}")


def show_json(content: dict[str, Any]) -> None:
    """Print one JSON object."""
    print(json.dumps(content, ensure_ascii=False, allow_nan=False))


def show_table(title: str, rows: list[tuple[str, str]], most: int = MOST_ROWS) -> None:
    """Print names and values, what matters most first."""
    _print_rows(Table(title=title, title_justify="left", show_header=False), rows, most)


def show_rows(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of several columns, the first left and the others right."""
    table = Table(title=title, title_justify="left")
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", overflow="fold")
    _print_rows(table, list(rows))


def _print_rows(table: Table, rows: Sequence[Sequence[str]], most: int = MOST_ROWS) -> None:
    """Print a table of at most so many rows, and say how many more there are."""
    shown = len(rows) if ALL_ROWS.get() else most
    for row in rows[:shown]:
        table.add_row(*row)
    stdout.print(table)
    if left := len(rows[shown:]):
        say(f"{left} more {'row' if left == 1 else 'rows'}: --all shows them.", stdout)


def show_columns(title: str, columns: dict[str, list[tuple[str, str]]]) -> None:
    """Print several lists of the same names and their values side by side."""
    table = Table("", *columns, title=title, title_justify="left")
    for row in zip(*columns.values(), strict=True):
        table.add_row(row[0][0], *(value for _, value in row))
    stdout.print(table)


def query_rows(recovery: Recovery[Model], formula: str) -> list[tuple[str, str]]:
    """Say what was asked, each purpose apart."""
    counts = dict(recovery.counts)
    data = counts.pop("data", 0) + counts.pop("pilot", 0)
    names = {"again": "asked again", "check": "hold-out"}
    return [
        (f"queries ({formula})", f"{data:,}"),
        *((names[key], f"{counts.pop(key, 0):,}") for key in names),
        *((name, f"{count:,}") for name, count in counts.items()),
        ("in all", f"{recovery.queries:,}"),
    ]


def holdout_row(recovery: Recovery[Model]) -> tuple[str, str]:
    """Say how well fresh answers were predicted."""
    evidence = recovery.evidence
    if not evidence.passed:
        return "hold-out error, relative", "not checked: the result may be wrong"
    error = f"{evidence.max_residual:.1e} (at most {evidence.tolerance:.1e} expected: passed)"
    return "hold-out error, relative", error


@contextmanager
def watching() -> Iterator[Watcher]:
    """Show progress on stderr: a bar on a terminal, now and then a line elsewhere."""
    log = logging.getLogger("unsoftmax")
    handler = logging.StreamHandler()
    log.addHandler(handler)
    # what a target prints must not end up among the results
    with redirect_stdout(sys.stderr):
        yield from _watch(log, handler)


def _watch(log: logging.Logger, handler: logging.Handler) -> Iterator[Watcher]:
    try:
        if QUIET.get():
            yield lambda _: None
        elif stderr.is_terminal:
            from unsoftmax.campaign.bar import progress_bar

            with progress_bar(stderr) as bar:
                yield _unheard(bar)
        else:
            with _lines() as lines:
                yield _unheard(lines)
    finally:
        log.removeHandler(handler)


def _unheard(watcher: Watcher) -> Watcher:
    """Go on where nobody listens: a terminal that has gone, or a closed pipe."""

    def report(event: Report) -> None:
        with suppress(OSError):
            watcher(event)

    return report


@contextmanager
def _lines() -> Iterator[Watcher]:
    """Say how far it is, `EVERY_S` apart; at its end where a run was too short for a line."""
    began = time.monotonic()
    said: float | None = None
    first: int | None = None
    last: Report | None = None

    def report(event: Report) -> None:
        nonlocal said, first, last
        now, last = time.monotonic(), event
        first = event.answered if first is None else first
        # that a target makes one wait is said at once where nothing was said before
        waits = said is None and event.phase.startswith("waiting")
        if waits or now - (began if said is None else said) >= EVERY_S:
            said = now
            say(line(event, now), stderr)

    def line(event: Report, now: float) -> str:
        text = f"{event.phase}: {event.answered:,}"
        if event.expected is not None:
            text += f" of {event.expected:,} queries"
            if now - began > STEADY_S:
                rate = (event.answered - (first or 0)) / (now - began)
                left = max(0, event.expected - event.answered) / max(rate, 1e-9)
                text += f", {rate:,.0f}/s, {left:,.0f} s left"
        return text

    try:
        yield report
    finally:
        if last is not None and said is None:
            with suppress(OSError):
                say(line(last, time.monotonic()), stderr)
