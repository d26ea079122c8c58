"""`unsoftmax defend`: what defences cost, and what they are worth."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import unsoftmax as us
from unsoftmax.cli import console, targets
from unsoftmax.cli.options import Settings, build, with_settings
from unsoftmax.cli.out_folder import WithReport, and_more, finish, prepare, refuse_file, written
from unsoftmax.cli.run_options import Asked, KeptIn, asking, sampling_options, sentences

if TYPE_CHECKING:
    from unsoftmax.protocol import Oracle
    from unsoftmax.questions import DefenceTrial

PICTURE = "defence.png"


@with_settings
@console.with_exit_status
@asking
def defend(
    target: Annotated[str, typer.Argument(help=targets.HELP)],
    *,
    out: Annotated[Path, typer.Option(help="Folder for defence.json, a picture and the ledger.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="What to recover the target with, undefended. [default: any single head]",
            show_default=False,
        ),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            help="What legitimate clients ask: module:function, which draws a sequence (N, d) with "
            "the numpy.random.Generator it is given. [default: standard normal tokens]",
            metavar="<module:function>",
        ),
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="Relative error that a defence must leave the best attack.")
    ] = 0.1,
    most_loss: Annotated[
        float, typer.Option(help="The most that it may cost, in s.d. of the answers.")
    ] = 0.5,
    attack_queries: Annotated[
        int | None,
        typer.Option(min=1, help="Most queries of an attack. [default: 64 per parameter]"),
    ] = None,
    needs: Annotated[
        int | None, typer.Option(min=1, help="Queries that a legitimate client needs.")
    ] = None,
    asked: Asked,
    ledger: KeptIn = None,
    report: WithReport = True,
    as_json: console.AsJson = False,
    debug: console.Debug = False,
    settings: Settings,
) -> None:
    """Say what defences of TARGET would cost, and what the best attack still gets.

    TARGET is asked undefended, once, to recover it; a model file is not asked. Defences are tried
    on what was recovered. The same command goes on where an interrupted one stopped.
    """
    from unsoftmax.campaign.recovery import MODEL_FILE, RECOVERY_FILE
    from unsoftmax.questions.defence.defence_comparison import DEFENCE_FILE
    from unsoftmax.questions.defence.defending import DefenceQuestion

    refuse_file(out)
    seed, book = int(settings.get("seed", 0)), ledger or out / "ledger.sqlite"
    use = sampling_options(sampler, None, None)
    oracle = asked.oracle(target)
    dim = settings.get("dim", getattr(oracle, "dim", None))
    if not isinstance(dim, Integral):
        raise console.Refusal(console.DIM_IS_MISSING)
    with sentences(None):
        question = DefenceQuestion(
            int(dim),
            threshold=threshold,
            most_loss=most_loss,
            attack_queries=attack_queries,
            needs=needs,
            seed=seed,
            **use,
        )
    prepare(out, (MODEL_FILE, RECOVERY_FILE, DEFENCE_FILE, PICTURE))
    began = time.monotonic()
    with sentences(book):
        campaign = {"ledger": book, **asked.arguments()}
        known = _known(oracle, model, {**settings, "dim": int(dim)}, campaign)
        result = question.compared(known, _watch())
    drawn = _kept(known, result, out, book, report=report, target=target)
    if as_json:
        seconds = round(time.monotonic() - began, 3)
        console.show_json({**result.to_json(), "seconds": seconds, "out": str(out)})
        return
    _show(result, target)
    more = and_more(f"{out}/{name}" for name in drawn)
    console.say(f"Written: {out}/{DEFENCE_FILE}{more}", soft_wrap=True)


def _kept(
    known: Any, result: us.DefenceComparison, out: Path, book: Path, *, report: bool, target: str
) -> tuple[str, ...]:
    """Write everything; return the names of what was drawn."""
    from unsoftmax.campaign.recovery import RECOVERY_FILE
    from unsoftmax.questions.defence.defence_comparison import DEFENCE_FILE

    recovered = isinstance(known, us.Recovery)
    with written(out, book if recovered else None):
        if recovered:
            known.save(out)
            finish(out, RECOVERY_FILE, report=False, target=target)  # the page comes once
        result.save(out)
    pictures = partial(_draw, result, out)
    return finish(out, DEFENCE_FILE, report=report, pictures=pictures, target=target)


def _known(oracle: Oracle, model: str | None, settings: Settings, campaign: dict[str, Any]) -> Any:
    """Take a model as it is; recover any other target, and say beforehand what that costs."""
    from unsoftmax.models.model import FrozenModel
    from unsoftmax.questions.defence.attacks import check_learner

    if isinstance(oracle, FrozenModel):
        if model is not None or {*settings} - {"dim", "seed"}:
            raise console.Refusal("TARGET is a model, which is not recovered: leave --model out.")
        if settings["dim"] != oracle.dim:
            raise console.Refusal(
                f"The model takes tokens of dimension {oracle.dim}: use --dim {oracle.dim}."
            )
        return oracle
    learner = build(model or "low-rank", settings if model else {"biases": True, **settings})
    check_learner(learner, learner.dim)
    plan = learner.plan()
    console.say(
        f"The target is asked at most {plan.at_most + 32:,} queries, all to recover it "
        "undefended; defences are tried on what is recovered.",
        console.stderr,
    )
    console.say(plan.lengths, console.stderr)
    with console.watching() as watcher:
        return us.learn(oracle, learner, progress=watcher, **campaign)


def _watch() -> Callable[[int, int, DefenceTrial], None]:
    """Say now and then how far the trials are."""
    said = time.monotonic()

    def report(number: int, count: int, trial: DefenceTrial) -> None:
        nonlocal said
        if time.monotonic() - said > console.EVERY_S:
            said = time.monotonic()
            console.say(f"defence {number} of {count}: {trial.words}", console.stderr)

    return report


def _draw(result: us.DefenceComparison, out: Path) -> tuple[str]:
    from unsoftmax.report.defence_section import draw_defences

    draw_defences(result, out / PICTURE)
    return (PICTURE,)


def _show(result: us.DefenceComparison, target: str) -> None:
    console.say(f"{target}: {result.target}", soft_wrap=True)
    console.say(result.recommendation)
    console.say_notes(result.notes)
    heads = ("defence", "lost", "refused", "error", "function", "queries")
    trials = _telling_first(result)
    rows = [(*trial.cells("{:.1e}".format), f"{trial.queries:,}") for trial in trials]
    console.show_rows("", heads, rows)
    console.say(
        "lost: change of the answers, in their spread; error: of W (of the parameters), relative, "
        "and of the function, by the best attack, with its queries; ?: not known."
    )


def _telling_first(result: us.DefenceComparison) -> list[DefenceTrial]:
    """Put what is recommended before what leaves an attack most at an affordable loss."""

    def order(trial: DefenceTrial) -> tuple[bool, bool, float]:
        left = min(trial.error, trial.function_error)
        affordable = trial.measured and trial.affordable(result.most_loss)
        return trial != result.recommended, not affordable, -left

    return list(result.trials if console.ALL_ROWS.get() else sorted(result.trials, key=order))
