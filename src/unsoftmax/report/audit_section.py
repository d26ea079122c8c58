"""What a page says of an audit: what the target is, why, what can be read out, at which cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unsoftmax.figures.run_panels import course_panels
from unsoftmax.questions import Audit
from unsoftmax.report.blocks import DataTable, Facts, Listing, Paragraph, Part, Pictures, Section

CERTAINTIES = {
    "certain": "That is certain: an answer contradicts every other class.",
    "likely": "That is likely: it was seen only on a few random dimensions, or behind answers "
    "that may hide something else.",
    "undecided": "The answers do not decide it.",
}
ANSWERS = {
    "kind": "what they are",
    "width": "numbers per sequence",
    "coordinate": "the one looked at",
    "tokens": "tokens that count",
    "single_tokens": "as a function of single tokens",
    "residual": "beside the last token itself",
    "longest_token": "longest token asked, where longer ones are refused",
}


def audit_section(folder: Path) -> Section:
    """Read ``audit.json``, and the recovery beside it where there is one."""
    result = Audit.load(folder)
    return Section(
        name="audit",
        title=f"Audited: {result.target_class}",
        summary=f"{_named(result)} {_certainty(result)} {_bill(result)}",
        parts=(
            Part("What it is, and why", (Facts(result.known), Listing(result.reasons))),
            Part("What its answers are", _answers(result)),
            _recoverable(result),
            Part(
                "What was asked",
                (
                    Paragraph(_bill(result)),
                    Pictures(() if result.course is None else tuple(course_panels(result.course))),
                    Listing(result.notes),
                ),
            ),
        ),
        versions=result.versions,
    )


def _named(result: Audit) -> str:
    if result.target_class == "undecided":
        return "The class of the target is undecided."
    if result.target_class == "none of these":
        return "The target is of none of the known classes."
    return f"The target: {result.target_class}."


def _certainty(result: Audit) -> str:
    if result.certainty == "certain" and result.recovery is not None:
        return (
            "That is certain: the whole target was recovered, and the model predicts fresh answers "
            "within its certificate."
        )
    return CERTAINTIES[result.certainty]


def _bill(result: Audit) -> str:
    money = f", {result.money:,.2f} at the prices given" if result.money else ""
    return f"{result.queries:,} queries with {result.tokens:,} tokens were paid{money}."


def _answers(result: Audit) -> tuple[Any, ...]:
    rows = tuple(
        (said, _word(result.answers[name]))
        for name, said in ANSWERS.items()
        if result.answers.get(name) not in (None, False)
    )
    return Facts(rows), Listing(tuple(map(str, result.answers.get("precision", ()))))


def _word(value: Any) -> str:
    return "yes" if value is True else str(value)


def _recoverable(result: Audit) -> Part:
    blocks: list[Any] = [Paragraph(result.recoverable)]
    cost, whole = result.cost, result.whole
    if whole is not None:
        of = f"{whole.model}, with rotary positions" if whole.rotary else whole.model
        said = f"All numbers of the answers together take about {whole.queries:,} queries ({of})."
        blocks.append(Paragraph(said))
    if cost is not None:
        rows = [
            ("typically, hold-out included", f"{cost.queries:,}", f"{cost.tokens:,}"),
            ("never more than", f"{cost.at_most:,}", ""),
        ]
        it = "all of it" if whole is None else "one number of the answers"
        caption = f"Recovering {it} with {cost.learner.get('learner', 'its learner')}"
        blocks.append(DataTable(caption, ("how many", "queries", "tokens"), tuple(rows)))
        if cost.counted:
            blocks.append(Paragraph(f"That is {cost.counted}."))
        if cost.money:
            blocks.append(Paragraph(f"At the prices given that is {cost.money:,.2f}."))
    if result.recovery is not None:
        blocks.append(Paragraph("It was recovered: the section on the recovery shows it."))
    return Part("What can be read out, and at which cost", tuple(blocks))
