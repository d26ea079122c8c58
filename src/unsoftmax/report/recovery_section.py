"""What a page says of a recovery: asked, recovered, how sure, and what is left open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unsoftmax.campaign import Recovery
from unsoftmax.figures.model_panels import matrices, matrix_panels, spectrum_panel
from unsoftmax.figures.panel import scientific
from unsoftmax.figures.run_panels import bounds_panel, course_panels, residuals_panel
from unsoftmax.protocol import Course, FunctionBound
from unsoftmax.report.blocks import DataTable, Listing, Paragraph, Part, Pictures, Section
from unsoftmax.report.certified_bounds import CertifiedBound, certified_bounds
from unsoftmax.report.learner_facts import LearnerFacts
from unsoftmax.report.wording import parameter_rows, purpose_rows


def recovery_section(folder: Path) -> Section:
    """Read ``recovery.json`` and ``model.safetensors``."""
    recovery = Recovery.load(folder)
    facts = LearnerFacts.of(recovery.learner)
    return Section(
        name="learn",
        title=f"Recovered: {recovery.model!r}",
        summary=_summary(recovery),
        parts=(
            _asked(recovery, facts),
            _recovered(recovery),
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
    panels = tuple(course_panels(recovery.course))
    when = [] if panels else [Paragraph(_without_times(recovery.course))]
    return Part(
        "What was asked, and why",
        (
            Paragraph(f"{learner}: {facts.purpose}{asked}{source}"),
            DataTable("Queries by purpose", ("purpose", "queries", "why"), rows),
            *([Paragraph(grows)] if facts.queries else []),
            *when,
            Pictures(panels),
        ),
    )


def _without_times(course: Course | None) -> str:
    if course is None:
        return "When the answers came is not recorded."
    return (
        f"All {course.recorded:,} answers were in the ledger when this run began: when they came "
        "is not recorded."
    )


def _recovered(recovery: Recovery[Any]) -> Part:
    found = matrices(recovery.model)
    panels = [*matrix_panels(found), spectrum_panel(found, recovery.certificate.errors)]
    shown = tuple(panel for panel in panels if panel is not None)
    maps = len(shown) - (panels[-1] is not None)
    left = len(found) - maps
    note = []
    if maps > 1:
        note.append(Paragraph("Each matrix is on a scale of its own: red above 0, blue below."))
    if left:
        note.append(Paragraph(f"{left} matrices are not drawn; the table has their norms."))
    return Part(
        "What was recovered",
        (
            *note,
            Pictures(shown),
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
    panel = residuals_panel(evidence)
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
    shown = Pictures(() if panel is None else (panel,))
    told = () if bound is None else (Paragraph(_function_bound(bound)),)
    return Part("How it predicts fresh answers", (Paragraph(text), shown, *told))


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
