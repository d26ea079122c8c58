"""`unsoftmax audit`: what a target is, what can be recovered of it, and at which cost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import unsoftmax as us
from unsoftmax.cli import console, out_folder, targets
from unsoftmax.cli.commands import WORDS
from unsoftmax.cli.run_options import Asked, KeptIn, MostTokens, asking, sentences
from unsoftmax.learners import MODELS

if TYPE_CHECKING:
    from unsoftmax.questions.exposure import WholeCost

_STATUS = {"done": 0, "undecided": 3, "budget": 4}


@console.with_exit_status
@asking
def audit(
    target: Annotated[str, typer.Argument(help=targets.HELP)],
    *,
    out: Annotated[Path, typer.Option(help="Folder for audit.json, what is recovered, ledger.")],
    dim: Annotated[
        int | None,
        typer.Option(min=1, help="Dimension d of a token. Needed, unless the target knows it."),
    ] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(min=2, help="Number of ids, where TARGET takes ids and does not say it."),
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="Vectors of ids (V, d), where they are known: an .npy file.")
    ] = None,
    context: Annotated[
        int, typer.Option(min=2, help="Most ids of a sequence that are asked.")
    ] = 512,
    recover: Annotated[
        bool, typer.Option("--recover", help="Recover it as well, if the budget allows that.")
    ] = False,
    asked: Asked,
    price: Annotated[float, typer.Option(min=0, help="What 1,000 queries cost.")] = 0.0,
    token_price: Annotated[float, typer.Option(min=0, help="What 1,000 tokens cost.")] = 0.0,
    ledger: KeptIn = None,
    holdout: Annotated[int, typer.Option(min=0, help="Queries to check a recovery with.")] = 32,
    most_tokens: MostTokens = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the questions.")] = 0,
    sarif: out_folder.Sarif = None,
    report: out_folder.WithReport = True,
    as_json: console.AsJson = False,
    debug: console.Debug = False,
) -> None:
    """Say what TARGET is, what can be recovered of it, and at which cost.

    The same command, with --recover too, goes on where an interrupted one stopped.
    """
    from unsoftmax.campaign.recovery import MODEL_FILE, RECOVERY_FILE
    from unsoftmax.cli.model_files import numbers_in
    from unsoftmax.questions.exposure import AUDIT_FILE
    from unsoftmax.report.sarif import of_audit, write_sarif

    out_folder.refuse_file(out)
    out_folder.refuse_no_file(sarif)
    oracle = asked.oracle(target)
    of_ids = hasattr(oracle, "vocabulary")
    known = dim if dim or of_ids else getattr(oracle, "dim", None)
    if table is None and vocabulary is None and not of_ids and not isinstance(known, Integral):
        raise console.Refusal(console.DIM_IS_MISSING)
    rows = None if table is None else numbers_in(table, "--table")
    out_folder.prepare(out, (AUDIT_FILE, RECOVERY_FILE, MODEL_FILE))
    book, began = ledger or out / "ledger.sqlite", time.monotonic()
    with sentences(book), console.watching() as watcher:
        result = us.audit(
            oracle,
            int(known) if isinstance(known, Integral) else None,
            vocabulary=vocabulary,
            table=rows,
            context=context,
            recover=recover,
            price=price,
            token_price=token_price,
            holdout=holdout,
            seed=seed,
            ledger=book,
            progress=watcher,
            most_tokens=most_tokens,
            **asked.arguments(),
        )
    with out_folder.written(out, book):
        result.save(out)
        if sarif is not None:
            write_sarif(sarif, of_audit(result, target), target, str(out / AUDIT_FILE))
    if result.recovery is not None:
        out_folder.finish(out, RECOVERY_FILE, report=False, target=target)  # the page comes once
    more = out_folder.finish(out, AUDIT_FILE, report=report, target=target)
    seconds = time.monotonic() - began
    if as_json:
        console.show_json({**result.to_json(), "seconds": round(seconds, 3), "out": str(out)})
    else:
        _show(target, result, seconds)
        files = [AUDIT_FILE, *([RECOVERY_FILE, MODEL_FILE] if result.recovery is not None else [])]
        said = out_folder.and_more(f"{out}/{name}" for name in (*files, *more)).removeprefix(", ")
        console.say(f"Written: {said}", soft_wrap=True)
        if result.whole is not None:
            line = _whole_line(result.whole, target, int(known or 0), out, asked.auth)
            console.say(f"Next: {line}", soft_wrap=True)
        if result.target_class in ("whole block", "normalised vectors"):
            ids = of_ids or vocabulary is not None or table is not None
            line = _verify_line(target, asked.auth, ids=ids)
            console.say(f"Does it serve your weights? {line}", soft_wrap=True)
        if following := _following(result, asked.limit(), out):
            label = "Next" if result.whole is None else "Or, for one number of the answers"
            console.say(f"{label}: {following}", soft_wrap=True)
    raise typer.Exit(_STATUS[_end(result, recover)])


def _end(result: us.Audit, recover: bool) -> str:
    """Say how it ended: what was asked for was done, or why not."""
    if not result.decided:
        return "undecided"
    if not recover or result.recovery is not None or result.target_class == "constant":
        return "done"
    return "budget" if result.afforded is False else "undecided"


def _line(*words: str, auth: str | None = None) -> str:
    """Say a command as one would type it."""
    from unsoftmax.report.command_record import CommandRecord

    return CommandRecord.now([*words, *(["--auth", auth] if auth else [])]).line


def _whole_line(whole: WholeCost, target: str, dim: int, out: Path, auth: str | None) -> str:
    """Say how to recover all numbers of the answers: the audit's folder keeps its own ledger."""
    words = "learn", target, "--model", whole.model, "--dim", str(dim), *whole.options
    return _line(*words, "--out", str(out / "whole"), auth=auth)


def _verify_line(target: str, auth: str | None, *, ids: bool) -> str:
    """Say how to tell whether it serves a block of a checkpoint; of ids, a layer of a table."""
    weights = ("MODEL", "--table", "TABLE") if ids else ("CHECKPOINT", "--layers", "K")
    return _line("verify", target, "--weights", *weights, auth=auth)


def _following(result: us.Audit, most: us.Budget, out: Path) -> str:
    """Say how to recover what was not; "" where there is nothing to recover, or no learner."""
    cost = result.cost
    if result.target_class == "probabilities":
        return _line(*WORDS.get(), "--answers", targets.PROBABILITIES, "--out", str(out / "logits"))
    if cost is None or result.recovery is not None:
        return ""
    if result.afforded is None:
        return _line(*WORDS.get(), "--recover")
    bills = (
        ("--budget", most.queries, result.queries, cost.queries),
        ("--token-budget", most.tokens, result.tokens, cost.tokens),
    )
    # a run that goes on asks some long questions again, to recognise its target
    flags = [
        f"{flag} {2 * (paid + needed)}"
        for flag, limit, paid, needed in bills
        if limit is not None and limit < paid + needed
    ]
    return f"the same command with {' '.join(flags)}" if flags else ""


def _model_words(settings: Mapping[str, Any]) -> str:
    """Name a learner as the command line does: its --model, and the options that say what it is."""
    names = {learner: model for model, learner in MODELS.items()}
    name = str(settings["learner"])
    said = [names.get(name, name)]
    said += [f"--{option}" for option in ("rotary", "biases") if settings.get(option) is True]
    said += [f"--max-heads {settings['max_heads']}"] if "max_heads" in settings else []
    return " ".join(said)


def _show(target: str, result: us.Audit, seconds: float) -> None:
    facts = [f"{name} {value}" for name, value in result.known]
    answers = result.answers
    rows = [
        ("class", result.target_class),
        ("certainty", result.certainty),
        *([("known of it", ", ".join(facts))] if facts else []),
        ("answers", f"{answers['kind']}, {answers['width']} per sequence"),
        ("recoverable", result.recoverable),
    ]
    if (whole := result.whole) is not None:
        part = whole.part.replace("all numbers", f"all {answers['width']} numbers")
        what = f"{part} ({whole.model}{' --rotary' * whole.rotary})"
        rows.append((f"recovering {what}", f"about {whole.queries:,} queries"))
    if result.cost is not None:
        cost = result.cost
        price = f", {cost.money:,.2f} at these prices" if cost.money else ""
        said = f"about {cost.queries:,} queries, {cost.tokens:,} tokens{price}"
        said += f", {cost.counted}" if cost.counted else ""
        it = "it" if whole is None else f"number {answers['coordinate']} alone"
        rows.append((f"recovering {it} ({_model_words(cost.learner)})", said))
    paid = f"{result.queries:,} queries, {result.tokens:,} tokens"
    rows.append(("paid", paid + (f", {result.money:,.2f}" if result.money else "")))
    if result.recovery is not None:
        errors = result.recovery.certificate.errors.items()
        bounds = ", ".join(f"{name} to {bound:.1e}" for name, bound in errors)
        rows.append(("recovered", f"{result.recovery.model!r}: {bounds}"))
    console.say(target, soft_wrap=True)
    console.show_table("", [*rows, ("seconds", f"{seconds:.1f}")])
    console.say_notes(result.reasons, "Because")
    console.say_notes(result.notes)
