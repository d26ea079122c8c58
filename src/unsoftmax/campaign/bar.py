"""A bar that shows how far a run is, on a terminal or in a notebook."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rich import get_console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from rich.console import Console

    from unsoftmax.campaign.watching import Progress as Report
    from unsoftmax.campaign.watching import Watcher


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[Watcher]:
    """Show a bar while it is open: phase, queries, rate and the time that is left.

    Parameters
    ----------
    console : rich.console.Console, optional
        Where; by default the notebook that this runs in, or standard output. Nothing is shown
        where that is a file.

    Yields
    ------
    callable
        What `learn`, `audit`, `defend` and `verify` take as ``progress``.

    Examples
    --------
    >>> import unsoftmax as us
    >>> from io import StringIO
    >>> from rich.console import Console
    >>> secret = us.SingleHead([[1.0]], [1.0])
    >>> with us.progress_bar(Console(file=StringIO())) as bar:  # us.progress_bar() as a rule
    ...     recovery = us.learn(secret, us.learners.ExactHead(1), progress=bar)
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.completed:,.0f} queries"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    screen = console or get_console()
    shows = screen.is_terminal or screen.is_jupyter
    progress = Progress(*columns, console=screen, transient=True, disable=not shows)
    task = progress.add_task("", total=None, rate="")
    began: tuple[float, int] | None = None

    def report(event: Report) -> None:
        nonlocal began
        now = time.monotonic()
        began = began or (now, event.answered)
        seconds, answers = now - began[0], event.answered - began[1]
        progress.update(
            task,
            description=event.phase,
            completed=event.answered,
            total=event.expected,
            rate=f"{answers / seconds:,.0f}/s" if seconds else "",
        )

    progress.start()
    try:
        yield report
    finally:
        with suppress(OSError):  # a terminal that has gone
            progress.stop()
