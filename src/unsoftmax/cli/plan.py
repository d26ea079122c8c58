"""`unsoftmax plan`: what learning would cost."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from unsoftmax.cli.console import AsJson, say, show_json, show_table, with_exit_status
from unsoftmax.cli.options import Settings, build, with_settings
from unsoftmax.cli.run_options import Radius, sentences
from unsoftmax.learners import MODELS

if TYPE_CHECKING:
    from unsoftmax.protocol import Learner, Model, Plan

_HOLDOUT = 32

ModelName = Annotated[
    str,
    typer.Option(
        help=f"What to learn: {', '.join(MODELS)}; or module:Learner, your own. Its settings: "
        "--model NAME --help.",
        show_default=True,
    ),
]


@with_settings
@with_exit_status
def plan(
    *,
    model: ModelName = "exact",
    radius: Radius = None,
    as_json: AsJson = False,
    settings: Settings,
) -> None:
    """Say what recovering a model would cost, without asking anything."""
    learner, cost = within(build(model, settings), radius)
    if as_json:
        budget = cost.at_most + _HOLDOUT
        show_json({"learner": learner.settings(), **asdict(cost), "budget": budget})
        return
    rows = [("queries", "a bound only" if cost.queries is None else f"{cost.queries:,}")]
    if cost.queries is not None:
        rows.append((f"in all, with a hold-out of {_HOLDOUT}", f"{cost.queries + _HOLDOUT:,}"))
    rows += [
        ("formula", cost.formula),
        ("at most, with those asked again and a hold-out", f"{cost.at_most + _HOLDOUT:,}"),
        ("tokens", f"{cost.tokens:,}"),
        ("rounds, at most", f"{cost.rounds:,}"),
    ]
    show_table(f"Plan for --model {model}, asking nothing", rows)
    say(cost.lengths)


def within(learner: Learner[Model], radius: float | None) -> tuple[Learner[Model], Plan]:
    """Return a learner that keeps to the radius, if one is given, and its plan."""
    if radius is None:
        return learner, learner.plan()
    from unsoftmax.campaign.runner import kept_to

    with sentences(None):
        learner = kept_to(learner, radius)
    return learner, replace(learner.plan(), longest_token=radius)
