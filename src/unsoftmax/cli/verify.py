"""`unsoftmax verify`: whether a target serves the weights of a model file."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import unsoftmax as us
from unsoftmax.cli import console, out_folder, targets
from unsoftmax.cli.run_options import Asked, asking, sentences
from unsoftmax.errors import DimensionRefused

if TYPE_CHECKING:
    from unsoftmax.questions import Verification

OTHER_PART = "This endpoint returns a {whole}, with these weights; the claim is the {claimed}."

_STATUS = {"same": 0, "different": 1, "undecided": 3}


@console.with_exit_status
@asking
def verify(
    target: Annotated[str, typer.Argument(help=targets.HELP)],
    *,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="What it should serve: a model.safetensors, the folder that `learn` wrote, or "
            "a checkpoint with its config.json."
        ),
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option(
            help="Instead of weights a function that it should compute: module:function or a "
            "model.onnx. Nothing is named then."
        ),
    ] = None,
    dim: Annotated[
        int | None, typer.Option(min=1, help="Dimension d of a token, where no target says it.")
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(help="Blocks of a checkpoint, counted from 0: 3, or 3:5 for 3 and 4."),
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="Of one block: block, attention or feed-forward.")
    ] = None,
    alternative: Annotated[
        list[Path] | None,
        typer.Option(
            help="What it may serve instead, such as an earlier revision: named if it does. "
            "May be repeated."
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(help="Vectors of ids (V, d), where TARGET takes ids: an .npy file."),
    ] = None,
    locate: Annotated[
        bool, typer.Option(help="Find what was changed: up to 100 queries instead of 20.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the questions.")] = 0,
    like: Annotated[
        Path | None,
        typer.Option(
            help="Ordinary inputs, an .npy file of tokens (n, d) or sequences (n, N, d): half of "
            "the questions are drawn among them and like them."
        ),
    ] = None,
    asked: Asked,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="SQLite file that keeps every answer, to go on after an interrupt "
            "[OUT/verification.sqlite, of one verification; without --out none]."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for verification.json and report.html.")
    ] = None,
    sarif: out_folder.Sarif = None,
    report: out_folder.WithReport = True,
    as_json: console.AsJson = False,
    debug: console.Debug = False,
) -> None:
    """Say whether TARGET serves these weights: 0 the same, 1 different, 3 undecided.

    For weights that `learn` wrote, the certificate beside them is read: differences within it
    count as the same.
    """
    from unsoftmax.cli.model_files import (
        certified_errors,
        claimed_model,
        model_path,
        numbers_in,
        other_parts,
    )
    from unsoftmax.questions.claim import can_be_claimed
    from unsoftmax.questions.verification import VERIFICATION_FILE
    from unsoftmax.report.sarif import of_verification, write_sarif

    if out is not None:
        out_folder.refuse_file(out)
    out_folder.refuse_no_file(sarif)
    if (weights is None) == (claim is None):
        raise console.Refusal(
            "Give either --weights, what it should serve, or --claim, a function."
        )
    parts: dict[str, Any] = {}
    if weights is None:
        if layers is not None or part is not None:
            raise console.Refusal("--layers and --part choose blocks of --weights: leave them out.")
        model, errors = targets.resolve(str(claim)), dict[str, float]()
    else:
        weights = model_path(weights)
        model, errors = claimed_model(weights, layers, part), certified_errors(weights)
        parts = other_parts(model, weights, layers, part)
    claimed = str(weights or claim)
    if weights is not None and not can_be_claimed(model):
        models = type(model).__name__.rstrip("s") + "s"
        raise console.Refusal(
            f"verify does not know {models}: recover the target with `unsoftmax learn`, then "
            "compare what was recovered with these weights by `unsoftmax compare`."
        )
    inputs = None if like is None else numbers_in(like, "--like")
    others = {str(one): claimed_model(model_path(one), layers, part) for one in alternative or ()}
    oracle = asked.oracle(target)
    if out is not None:
        out_folder.prepare(out, (VERIFICATION_FILE,))
        ledger = ledger or _of_this_time(out / "verification.sqlite", out / VERIFICATION_FILE)

    def alert(verdict: str, tensor: str | None = None) -> None:
        if sarif is not None:
            with out_folder.written(sarif, ledger):
                found = of_verification(verdict, target, claimed, tensor)
                write_sarif(sarif, found, target, claimed)

    began = time.monotonic()
    with _answering_no(alert), sentences(ledger), console.watching() as watcher:
        result = us.verify(
            oracle,
            model,
            errors=errors,
            locate=locate,
            seed=seed,
            ledger=ledger,
            progress=watcher,
            like=inputs,
            alternatives=parts | others,
            dim=dim,
            table=None if table is None else numbers_in(table, "--table"),
            **asked.arguments(),
        )
    if result.alternative in parts:
        said = OTHER_PART.format(whole=_called(result.alternative), claimed=_called(part))
        how = _command_of(target, claimed, layers, result.alternative)
        result = replace(result, verdict="undecided", notes=(f"{said} {how}", *result.notes))
    alert(result.verdict, result.tensor)
    files = ""
    if out is not None:
        with out_folder.written(out, ledger):
            result.save(out)
        drawn = out_folder.finish(
            out, VERIFICATION_FILE, report=report, target=target, weights=claimed
        )
        files = f"{out}/{VERIFICATION_FILE}" + out_folder.and_more(
            f"{out}/{name}" for name in drawn
        )
    if as_json:
        console.show_json(result.to_json())
    else:
        console.say(f"{target} and {claimed}", soft_wrap=True)
        rows = _rows(result, time.monotonic() - began, kept=out is not None)
        console.show_table("", rows, most=len(rows))  # of many tensors it shows a few already
        console.say_notes(result.notes)
        if files:
            console.say(f"Written: {files}", soft_wrap=True)
    raise typer.Exit(_STATUS[result.verdict])


def _called(part: str | None) -> str:
    return "whole block" if part in (None, "block") else f"block's {part} sub-layer"


def _command_of(target: str, weights: str, layers: str | None, part: str | None) -> str:
    """Return the command that verifies another part."""
    words = ["unsoftmax", "verify", target, "--weights", weights]
    words += [] if layers is None else ["--layers", layers]
    return f"Verify that: {shlex.join([*words, '--part', str(part)])}"


def _of_this_time(book: Path, result: Path) -> Path:
    """Return where answers are kept; those of a verification that has ended are set aside.

    With them only the questions that recognise the target would be asked: what it serves now would
    not show.
    """
    with suppress(FileNotFoundError):
        if result.stat().st_mtime_ns >= book.stat().st_mtime_ns:
            book.replace(book.with_name("verification.before.sqlite"))
    return book


@contextmanager
def _answering_no(alert: Callable[[str], None]) -> Iterator[None]:
    """Turn a target of other shapes into the answer that it does not serve the weights."""
    try:
        yield
    except DimensionRefused as error:
        if error.__cause__ is not None:  # an exception of the target's own may mean anything
            raise
        alert("different")
        raise console.NotServed(" ".join([str(error), *getattr(error, "__notes__", ())])) from error


def _rows(
    result: Verification, seconds: float, *, kept: bool, most: int = 6
) -> list[tuple[str, str]]:
    """Return the rows of the table; of many tensors those whose changes show least, ``most``."""
    from unsoftmax.questions.verification import UNTESTABLE, VERIFICATION_FILE

    rows = [("verdict", result.verdict), ("queries", str(result.queries))]
    if result.tensor is not None:
        rows.append(("changed", result.tensor))
    if result.alternative is not None:
        rows.append(("serves instead", result.alternative))
    if result.held is not None:
        rows.append(("held as", result.held))
    rows.append(("answers' precision", f"{result.precision:.1e} of the size of their terms"))
    rows.append(("largest miss", f"{result.largest_miss:.2g} times the allowed error"))
    most = len(result.power) if console.ALL_ROWS.get() else most
    worst = [item for item in result.power.items() if item[1] <= UNTESTABLE]
    if len(worst) > most:
        worst.sort(key=lambda item: -item[1])
    for name, change in worst[:most]:
        rows.append((f"smallest change of {name} that would show", f"{change:.1e}"))
    if rest := worst[most:]:
        where = f"all are in {VERIFICATION_FILE}" if kept else "--out keeps them all"
        rows.append((f"of {len(rest)} others ({where}), at most", f"{rest[0][1]:.1e}"))
    if untested := [name for name, change in result.power.items() if not change <= UNTESTABLE]:
        more = f" and {len(untested) - most} more" if len(untested) > most else ""
        rows.append(("not testable by these answers", ", ".join(untested[:most]) + more))
    return [*rows, ("seconds", f"{seconds:.1f}")]
