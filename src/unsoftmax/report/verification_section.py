"""What a page says of a verification: the verdict, its grounds, and what would have shown."""

from pathlib import Path

from unsoftmax.figures.panel import scientific
from unsoftmax.figures.run_panels import power_panel
from unsoftmax.questions import Verification
from unsoftmax.questions.verification import UNTESTABLE
from unsoftmax.report.blocks import DataTable, Listing, Paragraph, Part, Section, Severity

FINDINGS = {
    "same": (
        "The target serves the claimed weights, as far as its answers show.",
        Severity.LOW,
        "A check holds for its moment alone. Repeat it now and then, with another --seed.",
    ),
    "different": (
        "The target does not serve the claimed weights.",
        Severity.CRITICAL,
        "Ask whoever runs the target what was changed, and do not rely on its answers until then.",
    ),
    "undecided": (
        "The answers do not decide whether the target serves the claimed weights.",
        Severity.UNKNOWN,
        "The appendix says what hides the difference: mend that, or ask a more precise target.",
    ),
}
"""Of a verdict: the answer, how bad it is, and what to do."""


def verification_section(folder: Path) -> Section:
    """Read ``verification.json``."""
    result = Verification.load(folder)
    changed = f" What was changed: {result.tensor}." if result.tensor else ""
    answer, severity, advice = FINDINGS[result.verdict]
    answer += f" It holds them as {result.held}." if result.held else ""
    panel = power_panel(result.power)
    rows = tuple(
        (name, scientific(change) if change <= UNTESTABLE else "not testable by these answers")
        for name, change in result.power.items()
    )
    return Section(
        name="verify",
        answer=f"{answer}{changed}",
        severity=severity,
        cost=(("questions of this check", f"{result.queries:,}"),),
        questions=result.queries,
        advice=(advice,),
        pictures=() if panel is None else (panel,),
        title=f"Verified: {result.verdict}",
        summary=f"{answer}{changed} {result.queries:,} queries were asked.",
        parts=(
            Part(
                "What the verdict rests on",
                (
                    Paragraph(
                        "Every answer is compared with what the claimed weights predict. The "
                        "errors of the target's own arithmetic, format and noise were measured: "
                        f"up to {scientific(result.precision)} of the size of an answer's terms. "
                        f"The largest miss is {scientific(result.largest_miss)} times what that "
                        "allows. Up to 1 counts as the same, above 2 as different."
                    ),
                    Listing(result.notes),
                ),
            ),
            Part(
                "Which changes would have shown",
                (
                    Paragraph(
                        "For each tensor, the smallest relative change in a random direction that "
                        "would have been called different in 95 of 100 cases. Smaller changes are "
                        "not excluded. For a tensor that is 0, or may be 0 within its bound, the "
                        "table has the norm of the change."
                    ),
                    DataTable(
                        "Smallest changes that would show", ("tensor", "relative change"), rows
                    ),
                ),
            ),
        ),
    )
