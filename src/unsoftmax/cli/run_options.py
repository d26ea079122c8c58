"""Options of every command that asks a target, and what its errors say about them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from unsoftmax.campaign.retries import Retries
from unsoftmax.cli.console import Refusal
from unsoftmax.cli.options import in_flags
from unsoftmax.errors import DimensionRefused, LedgerMismatch, Terminated, UnsoftmaxError

MostQueries = Annotated[
    int | None, typer.Option("--budget", min=0, help="Most queries over the ledger's life.")
]
MostTokens = Annotated[
    int | None, typer.Option("--token-budget", min=0, help="Most tokens over the ledger's life.")
]
BatchSize = Annotated[int | None, typer.Option("--batch", min=1, help="Sequences per call.")]
Workers = Annotated[
    int, typer.Option("--workers", min=1, help="Calls at the same time, 2,048 at most.")
]
Coordinate = Annotated[
    int | None,
    typer.Option("--coordinate", help="One coordinate of a target that answers with vectors."),
]
Authorization = Annotated[
    str | None,
    typer.Option("--auth", help="Environment variable with an endpoint's Authorization header."),
]
Tries = Annotated[
    int, typer.Option("--retries", min=1, help="Tries for a sequence that is not answered.")
]
LongestWait = Annotated[
    float,
    typer.Option(
        "--longest-wait",
        min=0,
        help="Seconds for which a target may put off a call (RetryLater).",
    ),
]
CallTimeout = Annotated[
    float | None,
    typer.Option(
        "--timeout", min=0.001, help="Seconds after which a call has failed. [default: none]"
    ),
]

RETRIES = Retries()

# What messages name by other words than those of a learner's settings.
_FLAGS = {
    "us.oracles.coordinate": "--coordinate",
    "longest_wait_s": "--longest-wait",
    "retries": "--retries",
    "batch": "--batch",
    "holdout": "--holdout",
    "timeout": "--timeout",
}


@contextmanager
def sentences(book: Path | None) -> Iterator[None]:
    """Say what settings that cannot be run and an interrupt mean on the command line."""
    try:
        yield
    except ValueError as error:  # it cannot be run with these settings
        raise Refusal(str(error)) from error
    except UnsoftmaxError as error:
        if isinstance(error, LedgerMismatch):
            error.add_note("Another --out or --ledger has a ledger of its own.")
        if isinstance(error, DimensionRefused):
            said = re.sub(r"\buse dim=(\d+)", r"use --dim \1", str(error))
            error.args = (said.replace("use that as dim.", "name it with --dim."),)
        if named := in_flags(str(error), _FLAGS):
            error.add_note(named)
        if error.__cause__ is not None:
            error.add_note("--debug shows the causes.")
        raise
    except (Exception, KeyboardInterrupt, Terminated) as end:
        if book is not None and book.exists() and not isinstance(end, Refusal):
            end.add_note(f"Every answer so far is in {book}. Run the same command to go on.")
        raise
