"""`unsoftmax ledger`: what was asked and paid; what is sound, and a copy of that."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unsoftmax.cli.console import AsJson, show_json, show_table, with_exit_status
from unsoftmax.errors import LedgerError

if TYPE_CHECKING:
    from unsoftmax.campaign.ledger_salvage import LedgerSummary


@with_exit_status
def ledger(
    file: Annotated[Path, typer.Argument(help="A ledger.sqlite.", metavar="FILE")],
    *,
    salvage_to: Annotated[
        Path | None,
        typer.Option("--salvage", help="Copy what is sound into this new file.", metavar="NEW"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a ledger holds, whether it is sound, and copy what is."""
    from unsoftmax.campaign.ledger_salvage import salvage, summary

    found = summary(file)
    copied = None if salvage_to is None else salvage(file, salvage_to)
    if as_json:
        copy = {} if copied is None else {"salvaged": asdict(copied)}
        show_json({**asdict(found), "sound": not found.damage, **copy})
    else:
        show_table(str(file), _rows(found))
        if copied is not None:
            show_table(f"{salvage_to}: go on with this one", _rows(copied))
    if found.damage and copied is None:
        raise LedgerError(
            f"{file} is damaged; it was not changed. --salvage NEW copies what is sound."
        )


def _rows(found: LedgerSummary) -> list[tuple[str, str]]:
    settings = found.learner or {}
    learner = ", ".join(f"{name} {value}" for name, value in settings.items())
    return [
        ("health", "; ".join(found.damage) or "sound"),
        ("target, by its first answers", found.fingerprint or "no answers yet"),
        ("learner", learner or "unknown"),
        ("revision", "unknown" if found.revision is None else str(found.revision)),
        ("rounds", f"{found.rounds:,}"),
        ("answers", f"{found.answers:,}"),
        ("queries paid", f"{found.paid:,}"),
        ("tokens paid", f"{found.tokens:,}"),
        ("queries in doubt", f"{found.in_doubt:,}"),
    ]
