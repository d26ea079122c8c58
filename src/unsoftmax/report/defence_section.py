"""What a page says of a comparison of defences: what is recommended, at what price, and why.

Its curves show what the best attack gets, by loss and by strength.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from unsoftmax.figures.panel import THEME, Panel, in_tens, scientific, themed, write_png
from unsoftmax.questions import AttackOutcome, DefenceComparison, DefenceTrial
from unsoftmax.report import blocks


def defence_section(folder: Path) -> blocks.Section:
    """Read ``defence.json``."""
    result = DefenceComparison.load(folder)
    panel = loss_panel(result)
    answer, severity, attacked = _finding(result)
    questions = 0 if attacked is None else attacked.queries
    return blocks.Section(
        name="defend",
        answer=answer,
        severity=severity,
        cost=(
            *([("questions of the best attack", f"{questions:,}")] if questions else []),
            *_price(result.recommended),
        ),
        questions=questions,
        advice=_advice(result),
        pictures=() if panel is None else (panel,),
        title=f"Defences of {result.target}",
        summary=result.recommendation,
        parts=(
            blocks.Part(
                "What each costs, and what the best attack still gets",
                (
                    blocks.Paragraph(
                        "Loss: how much the defence changes answers to legitimate sequences (root "
                        "mean square), in standard deviations of the undefended answers. Errors: "
                        "what the best attack is left with, as the relative error of the "
                        "parameters (of W), and as the error of the function on such sequences, in "
                        "the units of the loss."
                    ),
                    blocks.DataTable(
                        "Every defence",
                        ("defence", "loss", "refused", "error", "function", "by", "queries"),
                        tuple(map(_row, result.trials)),
                    ),
                    blocks.Listing(result.notes),
                ),
            ),
            blocks.Part("By strength", (blocks.Pictures(strength_panels(result)),)),
            blocks.Part(
                "Every attack",
                (
                    blocks.Paragraph(
                        "The attacker knows the defence, and the class and size of the model. "
                        "There may be better attacks than those tried here."
                    ),
                    blocks.DataTable(
                        "Attacks",
                        ("defence", "attack", "error", "function", "queries", "refused as"),
                        tuple(_attack(trial, a) for trial in result.trials for a in trial.attacks),
                    ),
                ),
            ),
            blocks.Part("How it was measured", (blocks.Facts(_facts(result)),)),
        ),
    )


def _finding(result: DefenceComparison) -> tuple[str, blocks.Severity, DefenceTrial | None]:
    """Say whether a defence holds, how bad that is, and against which trial's best attack."""
    best, measured = result.recommended, [trial for trial in result.trials if trial.measured]
    if best is not None:
        said = f"One protection holds against every attack tried here: {best.words}."
        return said, blocks.Severity.MEDIUM, best
    if not measured:
        return "Whether a protection holds could not be judged.", blocks.Severity.UNKNOWN, None
    bare = next((trial for trial in measured if trial.kind == "nothing"), None)
    broken = bare is not None and not bare.holds(result.threshold)
    said = "No protection tried here stops copying without spoiling ordinary users' answers."
    return said, blocks.Severity.CRITICAL if broken else blocks.Severity.HIGH, bare


def _price(best: DefenceTrial | None) -> tuple[tuple[str, str], ...]:
    """Say what the recommended defence costs, and what an attack still gets."""
    if best is None:
        return ()
    return (
        ("ordinary answers change by", f"{best.loss:.1%} of how much they vary"),
        ("the best copy is still off by", f"{best.function_error:.1%} of how much they vary"),
    )


def _advice(result: DefenceComparison) -> tuple[str, ...]:
    """Say what to do next."""
    limited = (
        "Say how many questions an ordinary user needs (--needs N): then limits on questions are "
        "compared as well."
    )
    better = "Other attacks may do better than those tried: repeat this when the model changes."
    first = (
        "Do not rely on these protections: control who may ask, and how often."
        if result.recommended is None
        else "Put this protection in place, and measure again what it costs your own users."
    )
    unpriced = any(trial.loss is None for trial in result.trials)
    return first, *([limited] if unpriced else []), better


def _row(trial: DefenceTrial) -> tuple[str, ...]:
    by = "every attack was refused" if trial.best is None else trial.best.name
    return (*trial.cells(scientific), by, f"{trial.queries:,}")


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


# Smaller losses are drawn here: on a logarithmic axis 0 has no place.
LEAST_LOSS = 1e-7
# Smaller errors are drawn here.
LEAST_ERROR = 1e-16
MOST_ERROR = 5.0
# Strengths that span this factor are drawn on a logarithmic axis.
LOG_FROM = 30.0
# Panels beside each other in a picture.
COLUMNS = 4


@dataclass(frozen=True, slots=True)
class DefenceCurve:
    """The trials of one kind, those that share another measure together, weakest first."""

    kind: str
    trials: tuple[DefenceTrial, ...]
    colour: str
    marker: str

    @property
    def name(self) -> str:
        """The kind, and what its trials share."""
        return ": ".join([self.kind, *filter(None, [self.trials[0].beside])])

    def drawn(
        self, axis: Any, x: Sequence[float], trials: Sequence[DefenceTrial], least: float
    ) -> None:
        """Mark what was measured, and cross where every attack was refused."""
        errors = [max(trial.error, least) for trial in trials]
        axis.plot(x, errors, color=self.colour, linewidth=0.8, alpha=0.6)
        for mark, size, measured in ((self.marker, 4, True), ("x", 7, False)):
            some = [k for k, trial in enumerate(trials) if trial.measured is measured]
            axis.plot(
                [x[k] for k in some],
                [errors[k] for k in some],
                mark,
                color=self.colour,
                markersize=size,
                label=self.name if measured else "_",
            )


def curves(trials: Sequence[DefenceTrial]) -> Iterator[DefenceCurve]:
    """Yield the curves of all kinds that are a defence, each with a colour and a marker."""
    colours, markers = (*THEME.series, THEME.muted, THEME.ink), "os^v"
    kinds = [kind for kind in dict.fromkeys(t.kind for t in trials) if kind != "nothing"]
    for number, kind in enumerate(kinds):
        mine = [trial for trial in trials if trial.kind == kind]
        for n, (_, alike) in enumerate(groupby(mine, key=lambda trial: trial.beside)):
            colour, marker = colours[number % len(colours)], markers[n % len(markers)]
            yield DefenceCurve(kind, tuple(alike), colour, marker)


def loss_panel(result: DefenceComparison) -> Panel | None:
    """Return the error of the parameters by the loss of utility; None where none is known."""
    known = [
        (curve, some)
        for curve in curves(result.trials)
        if (some := [trial for trial in curve.trials if trial.loss is not None])
    ]
    if not known:
        return None

    def draw(axis: Any) -> None:
        for curve, some in known:
            x = [max(trial.loss or 0.0, LEAST_LOSS) for trial in some]
            curve.drawn(axis, x, some, LEAST_ERROR)
        _framed(axis, result.threshold)
        axis.axvline(result.most_loss, color=THEME.muted, linewidth=0.8, linestyle=":")
        axis.set(
            xscale="log",
            xlabel="utility lost, in spreads of the answers",
            ylabel="error that the best attack is left with",
        )
        in_tens(axis.xaxis)
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16)}
        axis.legend(fontsize=7, ncols=2, columnspacing=1, handletextpad=0.2, **below)

    said = [
        f"{curve.name}: errors from {scientific(min(t.error for t in some))} to "
        f"{scientific(max(t.error for t in some))}, losses up to "
        f"{scientific(max(t.loss or 0.0 for t in some))}"
        for curve, some in known
    ]
    return Panel(
        "What the best attack gets, by what the defence costs",
        f"{'; '.join(said)}.",
        draw,
        "Each mark is a protection: the further to the right, the more it disturbs ordinary users; "
        "the higher, the worse the copy that the best attack gets. "
        f"A loss of 0 is drawn at {LEAST_LOSS:.0e}. Dotted: the error that a defence must "
        "leave, and the most that it may cost. A cross: every attack was refused, which is no "
        "evidence.",
        width=5.0,
        height=4.6,
    )


def strength_panels(result: DefenceComparison) -> tuple[Panel, ...]:
    """Return the error of the parameters by the strength of every defence that has several."""
    every = list(curves(result.trials))
    kinds = dict.fromkeys(curve.kind for curve in every if len(curve.trials) > 1)
    return tuple(
        _strength_panel(kind, [curve for curve in every if curve.kind == kind], result)
        for kind in kinds
    )


def _strength_panel(kind: str, mine: Sequence[DefenceCurve], result: DefenceComparison) -> Panel:
    def draw(axis: Any) -> None:
        every = [trial.strength for curve in mine for trial in curve.trials]
        for curve in mine:
            x = [trial.strength for trial in curve.trials]
            curve.drawn(axis, x, curve.trials, LEAST_ERROR)
        _framed(axis, result.threshold)
        axis.set(xlabel=mine[0].trials[0].unit, ylabel="error")
        if max(every) > LOG_FROM * min(every):
            axis.set_xscale("log")
            in_tens(axis.xaxis)

    said = [
        f"{trial.brief}: {scientific(trial.error) if trial.measured else 'all attacks refused'}"
        for curve in mine
        for trial in curve.trials
    ]
    return Panel(f"Strength: {kind}", "; ".join(said) + ".", draw)


def _framed(axis: Any, threshold: float) -> None:
    axis.set(yscale="log", ylim=(LEAST_ERROR / 3, MOST_ERROR))
    in_tens(axis.yaxis)
    axis.grid(alpha=0.6)
    axis.axhline(threshold, color=THEME.muted, linewidth=0.8, linestyle=":")


def draw_defences(result: DefenceComparison, path: str | os.PathLike[str]) -> None:
    """Draw all curves into one picture.

    Parameters
    ----------
    result : DefenceComparison
        What `unsoftmax.defend` returned.
    path : path
        Where to write a PNG.
    """
    small = strength_panels(result)
    rows = -(-len(small) // COLUMNS)
    with themed():
        figure = Figure(figsize=(3.1 * COLUMNS, 6.0 + 2.4 * rows), layout="constrained")
        grid = figure.add_gridspec(rows + 2, COLUMNS)
        places = [grid[2 + n // COLUMNS, n % COLUMNS] for n in range(len(small))]
        panels = [(loss_panel(result), grid[:2, :]), *zip(small, places, strict=True)]
        for panel, place in panels:
            if panel is not None:
                axis = figure.add_subplot(place)
                axis.set_title(panel.title, fontsize=9)
                panel.draw(axis)
                axis.tick_params(labelsize=7)
                axis.xaxis.label.set_fontsize(8)
        figure.suptitle(
            f"{result.target}: attacks of up to {result.attack_queries:,} queries. A cross: every "
            "attack was refused",
            fontsize=11,
        )
    write_png(figure, path)
