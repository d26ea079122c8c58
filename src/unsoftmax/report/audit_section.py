"""What a page says of an audit: what the target is, why, what can be read out, at which cost."""

from pathlib import Path
from typing import Any

from unsoftmax.figures.run_panels import course_panels
from unsoftmax.questions import Audit
from unsoftmax.report.blocks import (
    PROTECT,
    Facts,
    Listing,
    Paragraph,
    Part,
    Pictures,
    Section,
    Severity,
    copied,
)

CERTAINTIES = {
    "certain": "That is certain: an answer contradicts every other class.",
    "likely": "That is likely: it was seen only on a few random dimensions, or in answers that "
    "may hide something else.",
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
    answer, severity, questions = _finding(result)
    copied_it = result.recovery is not None and result.recovery.evidence.passed
    # the recovery's own section draws the same course
    panels = course_panels(None if result.recovery is not None else result.course)
    asked = Part("What was asked", (Pictures(tuple(panels[1:])), Listing(result.notes)))
    return Section(
        name="audit",
        answer=answer,
        severity=severity,
        cost=(
            *([("questions of the attack", f"{questions:,}")] if questions else []),
            *([] if copied_it else [("questions of this audit", f"{result.queries:,}")]),
        ),
        questions=questions,
        advice=_advice(result, questions),
        pictures=tuple(panels[:1]),
        title=f"Audited: {result.target_class}",
        summary=f"{_named(result)} {_certainty(result)} {_bill(result)}",
        parts=(
            Part("What it is, and why", (Facts(result.known), Listing(result.reasons))),
            Part("What its answers are", _answers(result)),
            _recoverable(result),
            *([asked] if panels or result.notes else []),
        ),
        money=_money(result),
        covers="learn" if copied_it else "",
        versions=result.versions,
    )


def _finding(result: Audit) -> tuple[str, Severity, int]:
    """Say whether the target can be copied, how bad that is, and by how many questions."""
    if result.recovery is not None and result.recovery.evidence.passed:
        said = f"{copied(result.queries, shown=True)} This audit did it."
        return said, Severity.CRITICAL, result.queries
    needed = result.whole or result.cost
    if result.target_class == "constant":
        return (
            "Every answer of this target is the same, so it has nothing to copy.",
            Severity.LOW,
            0,
        )
    if result.whole is not None and result.whole.of_block:
        said = copied(result.whole.queries, shown=False).replace("this model", "its attention")
        return said, Severity.HIGH, result.whole.queries
    if needed is not None:
        return copied(needed.queries, shown=False), Severity.HIGH, needed.queries
    if result.target_class == "none of these":
        said = "No attack of this program copies this target. Other attacks may."
        return said, Severity.LOW, 0
    if result.target_class == "undecided":
        said = "The answers do not show whether this target can be copied."
        return said, Severity.UNKNOWN, 0
    said = (
        "Some models of this kind can be copied, and this audit cannot tell whether this one can."
    )
    return said, Severity.MEDIUM, 0


def _advice(result: Audit, questions: int) -> tuple[str, ...]:
    """Say what to do next."""
    if questions:
        done = (
            "Treat what the model has learned as known to everyone who could ask that often."
            if result.recovery is not None
            else "To make sure, copy it: unsoftmax learn with --model block --part block. Its "
            "attention alone takes --part attention."
            if result.whole is not None and result.whole.of_block
            else "To make sure, copy it: repeat this audit with --recover."
        )
        limit = (
            f"Allow each client fewer than {questions:,} questions. That slows an attack down; "
            "clients that share their answers get round it."
        )
        return done, limit, PROTECT
    again = "Audit it again when the model or its interface changes."
    if result.target_class == "undecided":
        return "The appendix says what was tried. A larger --budget may decide it.", again
    return "This is no proof of safety: the appendix says what was tried.", again


def _money(result: Audit) -> str:
    if result.recovery is not None and result.money:
        return f"{result.money:,.2f}"
    if result.cost is None or not result.cost.money:
        return ""
    alone = " for one number of each answer" if result.whole is not None else ""
    return f"{result.cost.money:,.2f}{alone}"


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
        what = "Its attention takes" if whole.of_block else "All numbers of the answers take"
        said = f"{what} about {whole.queries:,} queries together ({of})."
        blocks.append(Paragraph(said))
    if cost is not None:
        it = "all of it" if whole is None else "one number of the answers"
        learner = cost.learner.get("learner", "its learner")
        said = f"Recovering {it} with {learner} typically takes {cost.queries:,} queries with "
        said += f"{cost.tokens:,} tokens, the hold-out included. "
        said += f"It stops after {cost.at_most:,} at the latest: so many are asked only where its "
        said += "search finds nothing, or the target is as large as its settings allow."
        blocks.append(Paragraph(said))
        if cost.counted:
            blocks.append(Paragraph(f"That is {cost.counted}."))
        if cost.money:
            blocks.append(Paragraph(f"At the prices given that is {cost.money:,.2f}."))
    if result.recovery is not None:
        said = f"It was recovered: the section on the recovery shows it. The {result.queries:,} "
        said += "queries of this audit include those that found out what the target is."
        blocks.append(Paragraph(said))
    return Part("What can be read out, and at which cost", tuple(blocks))
