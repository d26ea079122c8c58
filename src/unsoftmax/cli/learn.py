"""`unsoftmax learn`: recover a model, safe against interruption."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import unsoftmax as us
from unsoftmax.cli import console, run_options, targets
from unsoftmax.cli.options import Settings, blamed_on, build, with_settings
from unsoftmax.cli.out_folder import WithReport, and_more, finish, prepare, refuse_file, written
from unsoftmax.cli.plan import ModelName, within
from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners import MODELS
from unsoftmax.refusals import Reason

if TYPE_CHECKING:
    from unsoftmax.campaign import Watcher
    from unsoftmax.protocol import Learner, Oracle, Plan
    from unsoftmax.protocol import Model as AnyModel

# What a certificate bounds that is no parameter of its own.
PICTURE = "recovery.png"


@with_settings
@console.with_exit_status
@run_options.asking
def learn(
    target: Annotated[str, typer.Argument(help=targets.HELP)],
    *,
    out: Annotated[Path, typer.Option(help="Folder for model, recovery.json and ledger.")],
    model: ModelName = "exact",
    asked: run_options.Asked,
    ledger: run_options.KeptIn = None,
    holdout: Annotated[int, typer.Option(min=0, help="Queries to check the result with.")] = 32,
    most_tokens: run_options.MostTokens = None,
    radius: run_options.Radius = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            help="Also bound the function on a distribution: module:function, which draws a "
            "sequence (N, d) with the numpy.random.Generator it is given.",
            metavar="<module:function>",
        ),
    ] = None,
    eps: Annotated[
        float | None,
        typer.Option(help="Share of --sampler's sequences left out of the bound. [default: 0.05]"),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="The bound is right with confidence 1 − delta. [default: 0.01]"),
    ] = None,
    report: WithReport = True,
    as_json: console.AsJson = False,
    debug: console.Debug = False,
    settings: Settings,
) -> None:
    """Recover TARGET's parameters by asking it.

    The same command goes on where an interrupted one stopped: nothing recorded is asked again.
    """
    from unsoftmax.campaign.recovery import RECOVERY_FILE, REFUSAL_FILE, forget

    refuse_file(out)
    learner, oracle = _resolved(target, asked, model, settings)
    sampling = run_options.sampling_options(sampler, eps, delta)
    book, (learner, plan) = ledger or out / "ledger.sqlite", within(learner, radius)
    if not book.exists():
        _warn_of_budget(asked.limit(), plan, holdout, run_options.samples_of(sampling))
        console.say(plan.lengths, console.stderr)
    prepare(out, ("model.safetensors", "recovery.json", PICTURE, REFUSAL_FILE))
    began = time.monotonic()
    with run_options.sentences(book):
        with (
            blamed_on(model),
            console.watching() as shown,
            _refusal_kept(learner, out, report, shown, target) as watcher,
        ):
            recovery = us.learn(
                oracle,
                learner,
                ledger=book,
                holdout=holdout,
                progress=watcher,
                most_tokens=most_tokens,
                radius=radius,
                **asked.arguments(),
                **sampling,
            )
            seconds = time.monotonic() - began
            with written(out, book):
                recovery.save(out)
                forget(out)
        pictures = partial(_draw, recovery, out)
        drawn = finish(out, RECOVERY_FILE, report=report, pictures=pictures, target=target)
        if as_json:
            console.show_json({**recovery.to_json(), "seconds": round(seconds, 3), "out": str(out)})
            return
        show_recovery(recovery, plan.formula, seconds)
        written_files = f"Written: {out}/model.safetensors, {out}/recovery.json"
        more = and_more(f"{out}/{name}" for name in drawn)
        console.say(written_files + more, soft_wrap=True)


def _resolved(
    target: str, asked: run_options.Asked, model: str, settings: Settings
) -> tuple[Learner[AnyModel], Oracle]:
    """Make the learner and the oracle; a target that knows its dimension need not be told."""
    # with these nothing of the target runs before the settings are checked
    learner = build(model, settings) if {"dim", "vocabulary", "table"} & {*settings} else None
    oracle = asked.oracle(target)
    if learner is None:
        name = "vocabulary" if hasattr(oracle, "vocabulary") else "dim"
        if name == "vocabulary" and model in MODELS and MODELS[model] != "TokenHeadLearner":
            raise Reason.TAKES_IDS.error()
        size = getattr(oracle, name, None)
        learner = build(model, {name: size, **settings} if isinstance(size, Integral) else settings)
    return learner, oracle


def _warn_of_budget(budget: us.Budget, plan: Plan, holdout: int, samples: int) -> None:
    """Say beforehand that a budget is too small, where the plan knows it."""
    checks = holdout + samples
    beside = f"a hold-out of {holdout}{f' and {samples:,} samples' if samples else ''}"
    known = plan.queries is not None
    needed, tokens = (plan.queries or 0) + checks, plan.tokens if known else 0
    if budget.queries is not None and budget.queries < needed:
        all_that = f"the plan and {beside} need {needed:,} queries"
        alone = f"{beside} alone needs {needed:,} queries, and what the plan bounds comes before"
        short = f"A budget of {budget.queries:,} will not be enough"
        console.say(
            f"{short}: {all_that if known else f'{alone}, {plan.at_most:,} at most'}.",
            console.stderr,
        )
    if budget.tokens is not None and budget.tokens < tokens + checks:
        planned = f"the plan needs {tokens:,}, and " if known else ""
        short = f"A budget of {budget.tokens:,} tokens will not be enough"
        console.say(
            f"{short}: {planned}{beside} has {checks:,} queries{' more' * known}.", console.stderr
        )


def _draw(recovery: us.Recovery[AnyModel], out: Path) -> tuple[str]:
    """Draw what was recovered, without the truth; return the picture's name."""
    figure = recovery.plot()
    from unsoftmax.figures.panel import write_png

    write_png(figure, out / PICTURE)
    return (PICTURE,)


@contextmanager
def _refusal_kept(
    learner: Learner[AnyModel], out: Path, report: bool, watcher: Watcher, target: str
) -> Iterator[Watcher]:
    """Write what was refused, and what is determined all the same, with its page."""
    from unsoftmax.campaign.recovery import REFUSAL_FILE, RefusedRun
    from unsoftmax.campaign.watching import CourseWatch
    from unsoftmax.refusals import has_remedy

    watch = CourseWatch(watcher)
    try:
        yield watch
    except (NotIdentifiable, ModelMismatch) as error:
        with suppress(OSError):  # the refusal is said anyway
            RefusedRun.of(error, learner.settings(), watch.course()).save(out)
            kept = f"{out}/{REFUSAL_FILE}"
            drawn = finish(out, REFUSAL_FILE, report=report, target=target)
            more = and_more(f"{out}/{name}" for name in drawn)
            error.add_note(f"Kept: {kept}{more}.")
        if isinstance(error, ModelMismatch) and not has_remedy(error.reason):
            error.add_note("unsoftmax audit says what a target is.")
        raise


def show_recovery(recovery: us.Recovery[AnyModel], formula: str, seconds: float) -> None:
    """Print what was recovered, at what cost, and how sure it is."""
    from unsoftmax.report.certified_bounds import WITHIN, certified_bounds

    rows = [console.holdout_row(recovery)]
    for one in certified_bounds(recovery.model, recovery.certificate.errors):
        if not one.norm and not one.bound:
            continue  # assumed to be 0, not learned
        relative = f", {one.bound / one.norm:.1e} of {one.beside}" if one.norm else ""
        told = f", {WITHIN}" if one.words == WITHIN else relative
        rows.append((f"error of {one.label} at most", f"{one.bound:.1e}{told}"))
    rows += [*console.query_rows(recovery, formula), ("seconds", f"{seconds:.1f}")]
    checked = "" if recovery.evidence.passed else ", unchecked"
    console.show_table(f"Recovered{checked}: {recovery.model!r}", rows)
    console.say_notes(recovery.notes)
