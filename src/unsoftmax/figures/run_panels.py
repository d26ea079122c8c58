"""How a run went, how sure its result is, and how well it predicts fresh answers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unsoftmax.figures.model_panels import matrices, matrix_panels, spectrum_panel
from unsoftmax.figures.panel import THEME, Panel, in_tens, in_whole_numbers, label, scientific
from unsoftmax.protocol import Certificate, Course, Evidence

# Points of a curve: a file may hold any number.
POINTS = 512
# Phases with a bar of their own; the rest are one.
PHASES = 9
# Phases with a colour of their own: more are not told apart.
COLOURED = 5
# Residuals that are 0 are drawn here: below what float64 tells.
SMALLEST = 1e-18
# Rows of a chart; a table has all.
BARS = 36


def recovery_panels(
    model: Any, certificate: Certificate, evidence: Evidence, course: Course | None
) -> list[Panel]:
    """Return all panels of a recovery."""
    found = matrices(model)
    norms = {name: model.parameter_norm(name) for name in certificate.errors}
    every = [
        *matrix_panels(found),
        spectrum_panel(found, certificate.errors),
        bounds_panel(certificate.errors, norms),
        residuals_panel(evidence),
        *course_panels(course),
    ]
    return [panel for panel in every if panel is not None]


def bounds_panel(errors: Mapping[str, float], norms: Mapping[str, float]) -> Panel | None:
    """Return what the certificate bounds beside the size of what it bounds."""
    rows = [
        (name, bound, norm if np.isfinite(norm := norms.get(name, 0.0)) else 0.0)
        for name, bound in errors.items()
        if np.isfinite(bound) and bound > 0
    ]
    if not rows:
        return None

    def draw(axis: Any) -> None:
        for y, (_, bound, norm) in enumerate(rows):
            if norm > 0:
                axis.plot([bound, norm], [y, y], color=THEME.grid, lw=5, zorder=1)
                axis.plot([norm], [y], "o", mfc="none", ms=8, color=THEME.series[0])
            axis.plot([bound], [y], "D", ms=6, color=THEME.series[1])
        axis.plot([], [], "D", ms=6, color=THEME.series[1], label="error at most")
        axis.plot([], [], "o", mfc="none", ms=8, color=THEME.series[0], label="norm")
        axis.set_xscale("log")
        axis.set_yticks(range(len(rows)), [label(name) for name, _, _ in rows])
        axis.set_ylim(len(rows) - 0.5, -0.9)
        axis.grid(axis="x", alpha=0.6)
        axis.legend(loc="upper center", ncols=2)
        in_tens(axis.xaxis)

    said = [
        f"{name} is off by at most {scientific(bound)}"
        + (f", its norm is {scientific(norm)}" if norm else "")
        for name, bound, norm in rows
    ]
    return Panel("What the certificate bounds", "; ".join(said) + ".", draw)


def residuals_panel(evidence: Evidence) -> Panel | None:
    """Return the hold-out's residuals, each beside its tolerance."""
    pairs = np.array(evidence.residuals, dtype=np.float64).reshape(-1, 2)
    pairs = np.abs(pairs[np.isfinite(pairs).all(axis=1)])
    pairs = pairs[:: -(-len(pairs) // POINTS) or 1]
    if not len(pairs):
        return None
    zeros = int(np.sum(pairs[:, 0] == 0))

    def draw(axis: Any) -> None:
        index = np.arange(1, len(pairs) + 1)
        missed, allowed = np.maximum(pairs, SMALLEST).T
        axis.semilogy(index, allowed, "_", ms=7, color=THEME.series[1], label="allowed")
        axis.semilogy(index, missed, ".", ms=5, color=THEME.series[0], label="missed by")
        axis.set(xlabel="fresh answers, best predicted first", ylabel="share of natural size")
        axis.grid(alpha=0.6)
        in_whole_numbers(axis.xaxis)
        axis.legend(loc="upper left", ncols=2)
        low, high = axis.get_ylim()
        axis.set_ylim(low, high * (high / low) ** 0.15)
        in_tens(axis.yaxis)

    exact = f" {zeros} are 0, drawn at {SMALLEST:.0e}." if zeros else ""
    others = evidence.queries - len(evidence.residuals)
    if others > 0 and len(evidence.residuals) < evidence.MOST:
        exact += (
            f" The other {others} of {evidence.queries} queries have no dot: questions asked "
            "twice, which must be answered alike, and single tokens."
        )
    within = int(np.sum(pairs[:, 0] <= pairs[:, 1]))
    return Panel(
        "How fresh answers were predicted",
        f"{within} of {len(pairs)} residuals are within their tolerance. The largest is "
        f"{scientific(evidence.max_residual)} of the answer's natural size, the largest tolerance "
        f"{scientific(evidence.tolerance)}.{exact}",
        draw,
        "Each dot is how far the copy was off at a question that it had not seen; up to the dash "
        f"above it that is within what was promised.{exact}",
    )


def course_panels(
    course: Course | None, bars: int = PHASES, coloured: int = COLOURED
) -> list[Panel]:
    """Return the answers over time, and by phase; nothing where none came."""
    if course is None or not course.points:
        return []
    phases = sorted(course.phases.items(), key=lambda item: -item[1][0])
    colours = {phase: THEME.series[n] for n, (phase, _) in enumerate(phases[:coloured])}
    points = course.points[:: -(-len(course.points) // POINTS)]
    return [
        _over_time(replace(course, points=(*points, course.points[-1])), colours),
        _by_phase(phases, colours, bars),
    ]


def _over_time(course: Course, colours: Mapping[str, str]) -> Panel:
    last_s, answers, _ = course.points[-1]

    def draw(axis: Any) -> None:
        before_s, before = 0.0, course.recorded
        for seconds, count, phase in course.points:
            colour = colours.get(phase, THEME.muted)
            axis.plot([before_s, seconds, seconds], [before, before, count], color=colour, lw=2)
            before_s, before = seconds, count
        for phase, colour in colours.items():
            axis.plot([], [], color=colour, lw=2, label=label(phase))
        if len(course.phases) > len(colours):
            axis.plot([], [], color=THEME.muted, lw=2, label="other phases")
        axis.set(xlabel="seconds since the run began", ylabel="answers")
        axis.set_ylim(0, answers * 1.05)
        in_whole_numbers(axis.yaxis)
        axis.grid(alpha=0.6)
        # beside the axes, where no curve runs
        axis.legend(loc="upper left", bbox_to_anchor=(-0.05, -0.18))

    earlier = (
        f" {course.recorded:,} answers were in the ledger before; when those came is not recorded."
        if course.recorded
        else ""
    )
    return Panel(
        "Answers over time",
        f"{answers - course.recorded:,} answers came in {scientific(last_s)} seconds.{earlier}",
        draw,
        f"How many answers there were by then; a colour is a step of the work.{earlier}",
        height=3.3 + 0.2 * len(colours),
    )


def _by_phase(
    phases: Sequence[tuple[str, tuple[int, float]]], colours: Mapping[str, str], bars: int
) -> Panel:
    shown = [(phase, count) for phase, (count, _) in phases[:bars]]
    if rest := [count for _, (count, _) in phases[bars:]]:
        shown.append((f"{len(rest)} other phases", sum(rest)))

    def draw(axis: Any) -> None:
        most = max(count for _, count in shown)
        for y, (phase, count) in enumerate(shown):
            axis.barh(y, count, color=colours.get(phase, THEME.muted), height=0.35)
            axis.text(0, y - 0.27, f"{label(phase)}: {count:,}", va="bottom", fontsize=9)
        axis.set_ylim(len(shown) - 0.6, -0.9)
        axis.set_xlim(0, most * 1.05)
        axis.set_yticks([])
        in_whole_numbers(axis.xaxis)
        axis.set_xlabel("answers")

    return Panel(
        "Answers by phase",
        "; ".join(f"{phase}: {count:,}" for phase, count in shown) + ".",
        draw,
        height=max(2.2, 0.9 + 0.42 * len(shown)),
    )


def power_panel(power: Mapping[str, float], bars: int = BARS) -> Panel | None:
    """Return the smallest change of every tensor that a verification would have shown."""
    finite = {name: change for name, change in power.items() if np.isfinite(change) and change > 0}
    rows = [*finite.items()][:bars]
    if not rows:
        return None

    def draw(axis: Any) -> None:
        changes = [change for _, change in rows]
        axis.plot(changes, range(len(rows)), "D", ms=5, color=THEME.series[0])
        axis.set_xscale("log")
        axis.set_yticks(range(len(rows)), [label(name) for name, _ in rows], fontsize=8.5)
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_xlabel("relative change that would have shown")
        axis.grid(alpha=0.6)
        in_tens(axis.xaxis)

    left = len(power) - len(rows)
    return Panel(
        "Smallest changes that would have shown",
        "; ".join(f"{name}: {scientific(change)}" for name, change in rows) + ".",
        draw,
        "Each dot is the smallest change of a part of the model that would have been noticed: the "
        "further to the left, the smaller."
        + (f" {left} tensors more are in the table." if left else ""),
        height=max(2.2, 1.0 + 0.22 * len(rows)),
    )
