"""The curve of a comparison of defences: what the best attack gets, by loss and by strength."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unsoftmax.audit import DefenceComparison, DefenceTrial

Look: TypeAlias = tuple[str, str, str]
"""Colour, marker and name of a curve."""


@dataclass(frozen=True, slots=True)
class DefenceFigureStyle:
    """How the curve is drawn."""

    colours: tuple[str, ...] = (
        "#1b6ca8",
        "#c8553d",
        "#2f855a",
        "#805ad5",
        "#b7791f",
        "#4a5568",
        "#d53f8c",
        "#0b7285",
    )
    least_loss: float = 1e-7
    """Smaller losses are drawn here: on a logarithmic axis 0 has no place."""
    least_error: float = 1e-16
    """Smaller errors are drawn here."""
    log_from: float = 30.0
    """Strengths that span this factor are drawn on a logarithmic axis."""
    columns: int = 4
    """Panels beside each other."""
    markers: tuple[str, ...] = field(default=("o", "s", "^"))
    """Of combinations with one cap, another, a third."""


def draw_defences(
    result: DefenceComparison, path: str | os.PathLike[str], style: DefenceFigureStyle | None = None
) -> None:
    """Draw the error of W by the loss of utility, and by the strength of every defence.

    Parameters
    ----------
    result : DefenceComparison
        What `unsoftmax.defend` returned.
    path : path
        Where to write; the suffix decides the format.
    style : DefenceFigureStyle, optional
        How to draw it.
    """
    defences_figure(result, style or DefenceFigureStyle()).savefig(
        path, dpi=100, metadata={"Software": "unsoftmax"} if str(path).endswith("png") else None
    )


def defences_figure(result: DefenceComparison, style: DefenceFigureStyle) -> Figure:
    """Make the figure that `draw_defences` writes."""
    kinds = [kind for kind in dict.fromkeys(t.kind for t in result.trials) if kind != "nothing"]
    ladders = [kind for kind in kinds if sum(t.kind == kind for t in result.trials) > 1]
    rows = -(-len(ladders) // style.columns)
    figure = Figure(figsize=(3.1 * style.columns, 5.2 + 2.4 * rows), layout="constrained")
    grid = figure.add_gridspec(rows + 2, style.columns)
    whole = figure.add_subplot(grid[:2, :])
    for number, kind in enumerate(kinds):
        colour = style.colours[number % len(style.colours)]
        drawn = list(zip(style.markers, curves(result.trials, kind), strict=False))
        for marker, trials in drawn:
            label = ": ".join([kind, *filter(None, [trials[0].beside])])
            _by_loss(whole, trials, (colour, marker, label), style)
        if kind in ladders:
            place = divmod(ladders.index(kind), style.columns)
            panel = figure.add_subplot(grid[2 + place[0], place[1]])
            for marker, trials in drawn:
                _by_strength(panel, trials, (colour, marker, ""), style)
            panel.set_title(kind, fontsize=9)
            panel.set_xlabel(drawn[0][1][0].unit, fontsize=7)
            panel.tick_params(labelsize=7)
            panel.axhline(result.threshold, color="0.6", linewidth=0.8, linestyle=":")
    whole.axhline(result.threshold, color="0.6", linewidth=0.8, linestyle=":")
    whole.axvline(result.most_loss, color="0.6", linewidth=0.8, linestyle=":")
    whole.set(
        xscale="log",
        yscale="log",
        ylim=(style.least_error / 3, 5),
        xlabel="utility lost, in spreads of the answers (0 is drawn at the left end)",
        ylabel="error of W that the best attack is left with",
        title=f"Defences of {result.target}: attacks of up to {result.attack_queries:,} queries. "
        "Crosses: every attack was refused",
    )
    whole.grid(alpha=0.3)
    whole.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def curves(trials: Sequence[DefenceTrial], kind: str) -> Iterator[list[DefenceTrial]]:
    """Yield the trials of a kind, those with one cap together, weakest first."""
    mine = [trial for trial in trials if trial.kind == kind]
    for _, alike in groupby(mine, key=lambda trial: trial.beside):
        yield list(alike)


def _by_loss(
    axis: Axes, trials: Sequence[DefenceTrial], look: Look, style: DefenceFigureStyle
) -> None:
    known = [trial for trial in trials if trial.loss is not None]
    if known:
        _points(axis, [max(t.loss or 0.0, style.least_loss) for t in known], known, look, style)


def _by_strength(
    axis: Axes, trials: Sequence[DefenceTrial], look: Look, style: DefenceFigureStyle
) -> None:
    x = [trial.strength for trial in trials]
    _points(axis, x, trials, look, style)
    wide = max(x) > style.log_from * min(x)
    axis.set(xscale="log" if wide else "linear", yscale="log", ylim=(style.least_error / 3, 5))
    axis.grid(alpha=0.3)


def _points(
    axis: Axes,
    x: Sequence[float],
    trials: Sequence[DefenceTrial],
    look: Look,
    style: DefenceFigureStyle,
) -> None:
    """Mark what was measured, and cross where every attack was refused."""
    colour, marker, label = look
    errors = [max(trial.error, style.least_error) for trial in trials]
    axis.plot(x, errors, color=colour, linewidth=0.8, alpha=0.5)
    for mark, size, measured in ((marker, 4, True), ("x", 7, False)):
        some = [k for k, trial in enumerate(trials) if trial.measured is measured]
        axis.plot(
            [x[k] for k in some],
            [errors[k] for k in some],
            mark,
            color=colour,
            markersize=size,
            label=label if measured and label else "_",
        )
