"""What a page says of a run of `learn`: what was asked and why, and how it ended.

A recovery: what was recovered, how sure it is, and what is left open. A refusal: what is determined
all the same, and what no answers tell. Numbers are in words, for readers who do not know the field.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unsoftmax import learners
from unsoftmax.campaign import Recovery
from unsoftmax.campaign.recovery import DETERMINED_FILE, RECOVERY_FILE, RefusedRun
from unsoftmax.figures.model_panels import NamedMatrix, matrices, matrix_panels, spectrum_panel
from unsoftmax.figures.panel import scientific
from unsoftmax.figures.run_panels import bounds_panel, course_panels, residuals_panel
from unsoftmax.models import RotaryHead, RotaryHeads, RotaryLayer
from unsoftmax.probes import Array
from unsoftmax.protocol import Course, FunctionBound
from unsoftmax.report.blocks import (
    PROTECT,
    DataTable,
    Listing,
    Paragraph,
    Part,
    Pictures,
    Section,
    Severity,
    copied,
)
from unsoftmax.report.certified_bounds import CertifiedBound, certified_bounds


def recovery_section(folder: Path) -> Section:
    """Read ``recovery.json`` and ``model.safetensors``."""
    recovery = Recovery.load(folder)
    facts = LearnerFacts.of(recovery.learner)
    checked, asked = recovery.evidence.passed, recovery.queries
    found = matrices(recovery.model)
    maps, over_time = matrix_panels(found), course_panels(recovery.course)[:1]
    residuals = residuals_panel(recovery.evidence)
    return Section(
        name="learn",
        answer=f"{copied(asked, shown=True)} It was done."
        if checked
        else f"A copy was made by {asked:,} questions. Nobody checked it, and it may be wrong.",
        severity=Severity.CRITICAL if checked else Severity.HIGH,
        cost=(("questions of the attack", f"{asked:,}"),),
        questions=asked,
        advice=(
            "Treat what the model has learned as known to everyone who could ask that often."
            if checked
            else "Check it: repeat the command with --holdout 32.",
            PROTECT,
        ),
        pictures=(*maps, *([] if residuals is None else [residuals]), *over_time),
        title=f"Recovered: {recovery.model!r}",
        summary=_summary(recovery),
        parts=(
            _asked(recovery, facts),
            _recovered(recovery, found, len(maps)),
            _how_sure(recovery),
            _fresh_answers(recovery),
            _open(recovery, facts),
        ),
        settings=recovery.learner,
        versions=recovery.versions,
    )


def _summary(recovery: Recovery[Any]) -> str:
    known = [
        f"{one.label} is {one.words}"
        for one in certified_bounds(recovery.model, recovery.certificate.errors)
        if one.bound and one.norm
    ]
    checked = (
        "Fresh answers were predicted within what the certificate allows."
        if recovery.evidence.passed
        else "It was not checked by fresh answers, and may be wrong."
    )
    sure = f" By its certificate {', '.join(known)}." if known else ""
    return f"{recovery.queries:,} queries recovered a model, {recovery.model!r}.{sure} {checked}"


def _asked(recovery: Recovery[Any], facts: LearnerFacts) -> Part:
    learner = str(recovery.learner.get("learner", "a learner"))
    rows = (*purpose_rows(recovery.counts), ("in all", f"{recovery.queries:,}", ""))
    asked = f" It asked {recovery.queries:,} questions."
    source = f" Its source: {facts.source}" if facts.source else ""
    grows = f"How the number of queries grows: {facts.queries}"
    panels = course_panels(recovery.course)
    when = [] if panels else [Paragraph(_without_times(recovery.course))]
    return Part(
        "What was asked, and why",
        (
            Paragraph(f"{learner}: {facts.purpose}{asked}{source}"),
            DataTable("Queries by purpose", ("purpose", "queries", "why"), rows),
            *([Paragraph(grows)] if facts.queries else []),
            *when,
            Pictures(tuple(panels[1:])),
        ),
    )


def _without_times(course: Course | None) -> str:
    if course is None:
        return "When the answers came is not recorded."
    return (
        f"All {course.recorded:,} answers were in the ledger when this run began: when they came "
        "is not recorded."
    )


def _recovered(recovery: Recovery[Any], found: list[NamedMatrix], drawn: int) -> Part:
    left, panel = len(found) - drawn, spectrum_panel(found, recovery.certificate.errors)
    note = f"{left} matrices are not drawn; the table has their norms."
    return Part(
        "What was recovered",
        (
            *([Paragraph(note)] if left else []),
            Pictures(() if panel is None else (panel,)),
            DataTable(
                "Parameters", ("name", "shape", "norm, or value"), parameter_rows(recovery.model)
            ),
        ),
    )


def _whose(one: CertifiedBound) -> str:
    """Say whose norm stands in a row, where it is not the parameter's own."""
    return "" if one.beside == "its norm" else f", {one.beside}"


def _how_sure(recovery: Recovery[Any]) -> Part:
    bounds = certified_bounds(recovery.model, recovery.certificate.errors)
    rows = tuple(
        (
            one.label,
            scientific(one.bound),
            "" if one.norm is None else scientific(one.norm) + _whose(one),
            one.words.removeprefix("known to ").removesuffix(f" of {one.beside}"),
        )
        for one in bounds
    )
    named = zip(recovery.certificate.errors, bounds, strict=True)
    norms = {name: one.norm for name, one in named if one.norm is not None}
    panel = bounds_panel(recovery.certificate.errors, norms)
    return Part(
        "How sure it is",
        (
            Paragraph(
                "The certificate bounds how far each parameter can be from the true one. It needs "
                "no ground truth: it follows from the theorem, the answers' precision and the "
                "answers themselves. Errors of matrices are Frobenius norms, errors of vectors "
                "2-norms. For several heads the table has the worst case: the largest error and "
                "the smallest norm. The words count digits of that norm."
            ),
            DataTable("The certificate", ("parameter", "error at most", "norm", "in words"), rows),
            Pictures(() if panel is None else (panel,)),
            Paragraph("It assumes:"),
            Listing(recovery.certificate.assumes),
        ),
    )


def _fresh_answers(recovery: Recovery[Any]) -> Part:
    evidence, bound = recovery.evidence, recovery.function
    largest, rms, most = map(
        scientific, (evidence.max_residual, evidence.rms_residual, evidence.tolerance)
    )
    text = (
        f"{evidence.queries:,} queries were held out: nothing was learned from their answers. The "
        f"largest residual is {largest} of its answer's natural size, the root mean square {rms}; "
        f"the certificate allows up to {most}. "
        + ("All are within their tolerance." if evidence.passed else "Some exceed their tolerance.")
    )
    if not evidence.queries or np.isnan(evidence.max_residual):
        text = "No query was held out, so it was not tested whether the target is of this class."
    told = () if bound is None else (Paragraph(_function_bound(bound)),)
    return Part("How it predicts fresh answers", (Paragraph(text), *told))


def _function_bound(bound: FunctionBound) -> str:
    return (
        f"On the distribution sampled, answers are predicted to {scientific(bound.bound)} for all "
        f"but a share of {bound.eps:g} of its sequences, with confidence {1 - bound.delta:g}. That "
        f"is the largest miss in {bound.samples:,} samples."
    )


def _open(recovery: Recovery[Any], facts: LearnerFacts) -> Part:
    items = []
    if facts.determined_up_to:
        items.append(_gauge(facts.determined_up_to))
    for one in certified_bounds(recovery.model, recovery.certificate.errors):
        if one.words.startswith("not"):
            items.append(f"{one.label} is {one.words}.")
    said = [*items, *recovery.notes]
    nothing = "Nothing, under the assumptions of the certificate."
    return Part("What is not determined, and notes", (Listing(tuple(said) or (nothing,)),))


def _gauge(determined_up_to: str) -> str:
    """Make a sentence of a learner's own note."""
    first, _, rest = determined_up_to.partition("; ")
    if first == "nothing":
        return f"The answers determine every parameter; {rest}" if rest else "Nothing is free."
    return f"The answers determine the model up to {determined_up_to}"


REFUSALS = {
    "NotIdentifiable": (
        "Refused: no answers can determine this",
        "This model cannot be copied whole: its answers do not show all of it.",
        "What the answers do show is in the appendix: whether that matters is for you to judge.",
    ),
    "ModelMismatch": (
        "Refused: the target is of another class",
        "This model is not of the kind that was looked for, so it was not copied.",
        "Find out what it is, and whether that can be copied: unsoftmax audit TARGET --out DIR.",
    ),
}
"""Of a kind of refusal: the appendix' title, the answer, and what to do."""


def refusal_section(folder: Path) -> Section:
    """Read ``refusal.json`` and ``determined.safetensors``."""
    refused = RefusedRun.load(folder)
    facts, course = LearnerFacts.of(refused.learner), refused.course
    learner = str(refused.learner.get("learner", "a learner"))
    answers = course.points[-1][1] if course.points else course.recorded
    earlier = (folder / RECOVERY_FILE).is_file()
    notes = [Paragraph("The recovery on this page is from another run.")] if earlier else []
    title, answer, advice = REFUSALS.get(refused.kind, ("Refused", *REFUSALS["ModelMismatch"][1:]))
    partly = Severity.MEDIUM if refused.determined else Severity.LOW
    over_time, by_phase = course_panels(course)[:1], course_panels(course)[1:]
    return Section(
        name="refusal",
        answer=answer,
        severity=partly if refused.kind == "NotIdentifiable" else Severity.UNKNOWN,
        cost=(("questions of this run", f"{course.paid:,}"),),
        questions=course.paid,
        advice=(advice,),
        pictures=tuple(over_time),
        title=title,
        summary=f"{course.paid:,} queries, and no model: {refused.message}",
        parts=(
            Part(
                "What was asked, and why",
                (
                    Paragraph(f"{learner}: {facts.purpose}"),
                    Paragraph(f"{course.paid:,} queries were paid; {answers:,} answers are known."),
                    *notes,
                    Pictures(tuple(by_phase)),
                ),
            ),
            _determined(refused),
        ),
        settings=refused.learner,
        versions=refused.versions,
    )


def _determined(refused: RefusedRun) -> Part:
    arrays = refused.determined
    if not arrays:
        return Part("What is determined", (Paragraph("Nothing that could be kept."),))
    found = [NamedMatrix(name, array) for name, array in arrays.items() if array.ndim == 2]
    return Part(
        "What is determined",
        (
            DataTable(
                f"In {DETERMINED_FILE}", ("name", "shape", "norm, or value"), array_rows(arrays)
            ),
            Pictures(tuple(matrix_panels(found))),
        ),
    )


@dataclass(frozen=True, slots=True)
class LearnerFacts:
    """A learner in its own words; "" where it has none for something.

    Attributes
    ----------
    purpose : str
        What it learns, in a sentence.
    queries, determined_up_to, source : str
        The notes of these names.
    """

    purpose: str = ""
    queries: str = ""
    determined_up_to: str = ""
    source: str = ""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> LearnerFacts:
        """Look up the learner that settings are of; one that is not ours says nothing.

        Examples
        --------
        >>> LearnerFacts.of({"learner": "ExactHead"}).purpose
        'Learn a single head from exact values (Theorem 4.1).'
        """
        name = str(settings.get("learner", ""))
        if name not in learners.__all__ or name == "BY_NAME":
            return cls()
        text = inspect.getdoc(getattr(learners, name)) or ""
        turned = settings.get("rotary") or settings.get("rotary_base") is not None
        up_to = "With rotary positions up to" if turned else "Determined up to"
        notes = [_note(text, what) for what in ("Queries", up_to, "Source")]
        return cls(text.split("\n")[0], *notes)


def _note(text: str, name: str) -> str:
    """Return what follows *name* in a docstring, up to the next of its kind."""
    found = re.search(rf"\*{name}\*:?\s+(.*?)(?=\s*\*[A-Z][\w ]*\*|\n\n|\Z)", text, re.DOTALL)
    return "" if found is None else " ".join(found[1].split()).replace("``", "").replace("`", "")


PURPOSES = {
    "data": "the parameters are read from these",
    "pilot": "these too, and they set a scale first",
    "again": "asked again where a first answer taught nothing",
    "check": "the hold-out: predicted, never learned from",
    "fingerprint": "recorded questions asked again, to recognise the target",
    "failed": "paid, and nothing usable came back",
    "in doubt": "in flight when an earlier process died",
}
"""Why something was asked, by what the ledger calls it."""


def purpose_rows(counts: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    """Return what was asked, how often, and why."""
    names = [*(name for name in PURPOSES if name in counts), *(counts.keys() - PURPOSES.keys())]
    return tuple(
        (name, f"{counts[name]:,}", PURPOSES.get(name, "")) for name in names if counts[name]
    )


def parameter_rows(model: Any) -> tuple[tuple[str, ...], ...]:
    """Return a model's arrays: name, shape, norm or value."""
    parts = matrices(model)
    rows: list[tuple[str, ...]] = [(x.name, x.shape, scientific(x.norm)) for x in parts]
    shown = {part.name.split(" ")[0] for part in parts}
    shown |= {"K", "Q"} if "W" in shown else set()
    shown |= {"O", "V"} if "M" in shown else set()
    arrays = model.arrays() if hasattr(model, "arrays") else {}
    rest = {name: x for name, x in arrays.items() if _own_name(name) not in shown}
    if isinstance(model, RotaryLayer):
        groups = ", ".join(map(str, model.groups.tolist())) or "none"
        rows.append(("groups", str(rest.pop("groups").size), f"{groups}, of each head in turn"))
    if isinstance(model, (RotaryHead, RotaryLayer)):
        listed = rest.pop("frequencies")
        values = ", ".join(map(scientific, listed.tolist())) or "none"
        rows.append(("frequencies", str(listed.size), f"{values}, in radians per token"))
    elif isinstance(model, RotaryHeads):
        listed = rest.pop("frequencies")
        ends = [scientific(end) for end in (listed.min(initial=np.inf), listed.max(initial=0.0))]
        values = f"{' to '.join(ends)}, in radians per token" if listed.size else "none"
        rows.append(("frequencies", " × ".join(map(str, listed.shape)), values))
    return (*rows, *array_rows(rest))


def _own_name(name: str) -> str:
    """Return the name of a head's array without the head's."""
    return name.rpartition(".")[2] if name.startswith("heads.") else name


def array_rows(arrays: Mapping[str, Array]) -> tuple[tuple[str, ...], ...]:
    """Return arrays by name, shape, and norm or value."""
    return tuple(
        (
            name,
            " × ".join(map(str, array.shape)) or "a number",
            scientific(float(np.linalg.norm(array)) if array.shape else float(array)),
        )
        for name, array in arrays.items()
    )
