"""What `audit` and `verify` found as SARIF 2.1.0, which code hosts and CI systems show as alerts.

One run of one tool, its rules, and one result. A result of kind "fail" is an alert; the others say
that the rule was checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from unsoftmax.campaign.recovery import versions
from unsoftmax.models.files import write_json
from unsoftmax.report.command_record import without_secret

if TYPE_CHECKING:
    from unsoftmax.questions.exposure import Audit

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


class Rule(NamedTuple):
    """What was checked."""

    id: str
    """How suppressions and code hosts name it: it never changes."""
    name: str
    short: str
    full: str
    level: str
    """Of a result that fails it: "error", "warning" or "note"."""


RULES = (
    Rule(
        "different-weights",
        "DifferentWeights",
        "The endpoint does not serve these weights.",
        "Answers to random questions differ from those of the claimed weights by more than "
        "arithmetic explains. Deploy the weights again, or claim those that are served.",
        "error",
    ),
    Rule(
        "undecided-weights",
        "UndecidedWeights",
        "It could not be told whether the endpoint serves these weights.",
        "Answers are too coarse, or changed from call to call. Ask a replica that answers in "
        "float32 or float64.",
        "warning",
    ),
    Rule(
        "recoverable-parameters",
        "RecoverableParameters",
        "Whoever may ask this endpoint can recover its parameters.",
        "A learner recovers parameters of the target from its answers. Limit questions, or coarsen "
        "answers: `unsoftmax defend` compares the ways.",
        "error",
    ),
    Rule(
        "undecided-target",
        "UndecidedTarget",
        "There is no learner for this target, or it could not be told.",
        "That does not show that it is safe.",
        "note",
    ),
)


class Outcome(NamedTuple):
    """Which rule was checked, with which outcome, and what to say."""

    rule: str
    kind: str
    """ "pass" or "fail"."""
    said: str


def of_verification(verdict: str, target: str, weights: str, tensor: str | None) -> Outcome:
    """Say how a verification ended.

    Examples
    --------
    >>> of_verification("same", "served:f", "m.safetensors", None)[:2]
    ('different-weights', 'pass')
    """
    if verdict == "undecided":
        said = f"It could not be told whether {target} serves {weights}."
        return Outcome("undecided-weights", "fail", said)
    if verdict == "same":
        return Outcome("different-weights", "pass", f"{target} serves {weights}.")
    changed = "" if tensor is None else f" Changed: {tensor}."
    return Outcome("different-weights", "fail", f"{target} does not serve {weights}.{changed}")


def of_audit(found: Audit, target: str) -> Outcome:
    """Say how an audit ended."""
    recoverable = found.cost is not None or found.recovery is not None or found.whole is not None
    named = "probabilities", "normalised vectors", "normalised tokens", "pre-norm block"
    said = f"{target}: {found.target_class} ({found.certainty}). "
    if recoverable or found.target_class in named:
        cost = found.cost
        about = "" if cost is None else f" It typically takes {cost.queries:,} queries."
        return Outcome("recoverable-parameters", "fail", f"{said}{found.recoverable}{about}")
    kind = "pass" if found.target_class == "constant" else "fail"
    rule = "recoverable-parameters" if kind == "pass" else "undecided-target"
    return Outcome(rule, kind, said + found.recoverable)


def write_sarif(path: Path, outcome: Outcome, target: str, artifact: str) -> None:
    """Write a SARIF file about one target; ``artifact`` is the file that an alert points at."""
    write_json(path, sarif(outcome, target, artifact))


def sarif(outcome: Outcome, target: str, artifact: str) -> dict[str, Any]:
    """Return the content of a SARIF file.

    Examples
    --------
    >>> outcome = of_verification("different", "served:f", "m.safetensors", "W")
    >>> sarif(outcome, "served:f", "m.safetensors")["runs"][0]["results"][0]["level"]
    'error'
    """
    index = [rule.id for rule in RULES].index(outcome.rule)
    place = {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(Path(artifact).as_posix(), safe="/")},
            "region": {"startLine": 1},
        },
        "logicalLocations": [{"fullyQualifiedName": without_secret(target), "kind": "resource"}],
    }
    result = {
        "ruleId": outcome.rule,
        "ruleIndex": index,
        "kind": outcome.kind,
        "level": RULES[index].level if outcome.kind == "fail" else "none",
        "message": {"text": outcome.said},
        "locations": [place],
    }
    driver = {
        "name": "unsoftmax",
        "version": versions()["unsoftmax"],
        "rules": [
            {
                "id": rule.id,
                "name": rule.name,
                "shortDescription": {"text": rule.short},
                "fullDescription": {"text": rule.full},
                "defaultConfiguration": {"level": rule.level},
            }
            for rule in RULES
        ],
    }
    run = {"tool": {"driver": driver}, "results": [result], "columnKind": "utf16CodeUnits"}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
