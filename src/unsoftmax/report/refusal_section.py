"""What a page says of a refusal: asked, determined all the same, and what no answers tell."""

from __future__ import annotations

from pathlib import Path

from unsoftmax.campaign.recovery import DETERMINED_FILE, RECOVERY_FILE, RefusedRun
from unsoftmax.figures.model_panels import NamedMatrix, matrix_panels
from unsoftmax.figures.run_panels import course_panels
from unsoftmax.report.blocks import DataTable, Paragraph, Part, Pictures, Section
from unsoftmax.report.learner_facts import LearnerFacts
from unsoftmax.report.wording import array_rows

TITLES = {
    "NotIdentifiable": "Refused: no answers can determine this",
    "ModelMismatch": "Refused: the target is of another class",
}


def refusal_section(folder: Path) -> Section:
    """Read ``refusal.json`` and ``determined.safetensors``."""
    refused = RefusedRun.load(folder)
    facts, course = LearnerFacts.of(refused.learner), refused.course
    learner = str(refused.learner.get("learner", "a learner"))
    answers = course.points[-1][1] if course.points else course.recorded
    earlier = (folder / RECOVERY_FILE).is_file()
    notes = [Paragraph("The recovery on this page is from another run.")] if earlier else []
    return Section(
        name="refusal",
        title=TITLES.get(refused.kind, "Refused"),
        summary=f"{course.paid:,} queries, and no model: {refused.message}",
        parts=(
            Part(
                "What was asked, and why",
                (
                    Paragraph(f"{learner}: {facts.purpose}"),
                    Paragraph(f"{course.paid:,} queries were paid; {answers:,} answers are known."),
                    *notes,
                    Pictures(tuple(course_panels(course))),
                ),
            ),
            Part("What is not determined", (Paragraph(refused.message),)),
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
