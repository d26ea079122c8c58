"""What a page says of a comparison of defences: what is recommended, at what price, and why."""

from __future__ import annotations

from pathlib import Path

from unsoftmax.figures.panel import scientific
from unsoftmax.questions import AttackOutcome, DefenceComparison, DefenceTrial
from unsoftmax.report.blocks import DataTable, Facts, Listing, Paragraph, Part, Pictures, Section
from unsoftmax.report.defence_panels import loss_panel, strength_panels


def defence_section(folder: Path) -> Section:
    """Read ``defence.json``."""
    result = DefenceComparison.load(folder)
    panel = loss_panel(result)
    return Section(
        name="defend",
        title=f"Defences of {result.target}",
        summary=result.recommendation,
        parts=(
            Part(
                "What each costs, and what the best attack still gets",
                (
                    Paragraph(
                        "Loss: how much the defence changes answers to legitimate sequences (root "
                        "mean square), in standard deviations of the undefended answers. Errors: "
                        "what the best attack is left with, as the relative error of the "
                        "parameters (of W), and as the error of the function on such sequences, in "
                        "the units of the loss."
                    ),
                    Pictures(() if panel is None else (panel,)),
                    DataTable(
                        "Every defence",
                        ("defence", "loss", "refused", "error", "function", "by", "queries"),
                        tuple(map(_row, result.trials)),
                    ),
                    Listing(result.notes),
                ),
            ),
            Part("By strength", (Pictures(strength_panels(result)),)),
            Part(
                "Every attack",
                (
                    Paragraph(
                        "The attacker knows the defence, and the class and size of the model. "
                        "There may be better attacks than those tried here."
                    ),
                    DataTable(
                        "Attacks",
                        ("defence", "attack", "error", "function", "queries", "refused as"),
                        tuple(_attack(trial, a) for trial in result.trials for a in trial.attacks),
                    ),
                ),
            ),
            Part("How it was measured", (Facts(_facts(result)),)),
        ),
    )


def _row(trial: DefenceTrial) -> tuple[str, ...]:
    best = trial.best
    found = ("?", "?") if best is None else tuple(map(scientific, _errors(trial)))
    return (
        trial.brief,
        "?" if trial.loss is None else f"{trial.loss:.2%}",
        "?" if trial.refused is None else f"{trial.refused:.1%}",
        *found,
        "every attack was refused" if best is None else best.name,
        f"{trial.queries:,}",
    )


def _errors(trial: DefenceTrial) -> tuple[float, float]:
    return trial.error, trial.function_error


def _attack(trial: DefenceTrial, attack: AttackOutcome) -> tuple[str, ...]:
    refusal = "" if attack.refusal is None else attack.refusal.partition(":")[0]
    known = f", {', '.join(attack.determined)} known" if attack.determined else ""
    return (
        trial.brief,
        attack.name,
        "" if attack.refusal else scientific(attack.error),
        scientific(attack.function_error),
        f"{attack.queries:,}",
        f"{refusal}{known}",
    )


def _facts(result: DefenceComparison) -> tuple[tuple[str, str], ...]:
    return (
        ("model", f"{result.target}, {result.parameters:,} parameters"),
        ("queries paid to the target", f"{result.paid:,}"),
        ("most queries of an attack", f"{result.attack_queries:,}"),
        ("standard deviation of undefended answers", scientific(result.spread)),
        ("longest legitimate token", scientific(result.longest)),
        ("errors that a defence must leave", f"{result.threshold:.0%}"),
        ("most that it may cost", f"{result.most_loss:.0%}"),
    )
