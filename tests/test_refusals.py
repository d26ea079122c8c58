"""The table of refusals: every row is raised, reads well, keeps its name, and stands in the docs.

``python -m tests.test_refusals`` draws docs/refusals.md again.
"""

import ast
import pickle
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import unsoftmax
from tests.test_layers import parsed
from unsoftmax.errors import DimensionRefused, ModelMismatch, NotIdentifiable
from unsoftmax.refusals import Reason, reworded

SOURCE = Path(unsoftmax.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "refusals.md"

# What refuses a target. Classes derived from these are found in the sources.
ERRORS = {"ModelMismatch", "NotIdentifiable", "DimensionRefused"}
# The rooms that refuse targets.
REFUSING = ("measure", "solve", "arrangement", "validate", "learners", "oracles", "questions")


def numbers(reason):
    text = f"{reason.sentence} {reason.remedy}"
    return [(name, form) for _, name, form, _ in string.Formatter().parse(text) if name]


def sample(reason) -> dict[str, Any]:
    """Return something to say for each name in a sentence."""
    forms = dict(numbers(reason))
    return {
        name: "some" if not form else 1 if form.endswith(",") else 1.5
        for name, form in forms.items()
    }


# -- the table


def test_every_reason_is_raised_somewhere():
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    unused = [one.name for one in Reason if not re.search(rf"Reason\.{one.name}\b", text)]
    assert unused == []


def test_reasons_are_sentences_that_keep_their_names():
    for reason in Reason:
        error = reason.error({"v": 1.0}, **sample(reason))
        assert type(error) is reason.kind
        assert error.determined == {"v": 1.0}
        assert str(error).endswith((".", ".)")) or reason.sentence.endswith("}")
        assert "{" not in str(error)
        assert "  " not in str(error)
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.reason) == (str(error), reason.name)


def test_two_reasons_do_not_say_the_same():
    sentences = [(reason.kind, reason.sentence) for reason in Reason]
    assert len({*sentences}) == len(sentences)


def test_what_was_noticed_stands_before_the_remedy():
    error = Reason.NO_KINK.error(also=" Answers are float32.")
    assert str(error).endswith(f" Answers are float32. {Reason.NO_KINK.remedy}")


def test_other_words_keep_the_reason_and_what_is_known():
    error = reworded(Reason.NETWORK_IS_CONSTANT.error({"c": 2.0}, c=2.0), "No.")
    assert (type(error), str(error)) == (NotIdentifiable, "No.")
    assert (error.reason, error.determined) == ("NETWORK_IS_CONSTANT", {"c": 2.0})


# -- nothing is refused beside it


def constructed(source: str, kinds: set[str]) -> Iterator[str]:
    """Give the classes of refusals that a module makes itself, ``super().__init__`` apart."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in kinds:
            yield f"line {node.lineno}: {ast.unparse(node.func)}"
        if isinstance(node, ast.Raise) and getattr(node.exc, "id", None) in kinds:
            yield f"line {node.lineno}: {ast.unparse(node)}"


def derived(sources: dict[Path, str]) -> set[str]:
    """Return the refusals that rooms define for themselves and do not name by a reason."""
    return {
        node.name
        for source in sources.values()
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.ClassDef)
        and {getattr(base, "id", "") for base in node.bases} & ERRORS
        and "Reason." not in ast.unparse(node)
    }


def test_every_refusal_has_a_name_in_the_table():
    sources = {
        path: path.read_text(encoding="utf-8")
        for room in REFUSING
        for path in sorted((SOURCE / room).rglob("*.py"))
    }
    kinds = ERRORS | derived(sources)
    assert "HeadsAlike" in kinds
    found = {str(path): [*constructed(text, kinds)] for path, text in sources.items()}
    assert {path: made for path, made in found.items() if made} == {}


@pytest.mark.parametrize(
    "line",
    [
        'raise ModelMismatch("No.")',
        'error = NotIdentifiable("No.", determined={})',
        "raise HeadsAlike",
    ],
)
def test_a_refusal_beside_the_table_is_seen(line):
    assert [*constructed(line, ERRORS | {"HeadsAlike"})]


# -- the page


KINDS: dict[type[Exception], str] = {
    ModelMismatch: "contradicted",
    NotIdentifiable: "undetermined",
    DimensionRefused: "other shape",
}


def readable(text: str) -> str:
    """Write what is filled in as words in italics."""
    return re.sub(r"\{(\w+)[^}]*\}", r"*\1*", text).replace("|", "\\|")


def page() -> str:
    """Draw the page from the table, under the headings of its source; its introduction stays."""
    parts = [PAGE.read_text(encoding="utf-8").partition("\n## ")[0]]
    source = (SOURCE / "refusals.py").read_text(encoding="utf-8")
    for heading, name in re.findall(r"^    (?:# (.+)|([A-Z0-9_]+) = )", source, re.MULTILINE):
        if heading:
            head = "| Name | What was found | What to do |\n| --- | --- | --- |"
            parts.append(f"\n## {heading}\n\n{head}\n")
            continue
        row = Reason[name]
        sentence = readable(row.sentence).rstrip(":;")
        remedy = readable(row.remedy[:1].upper() + row.remedy[1:])
        parts.append(f"| `{name}`, {KINDS[row.kind]} | {sentence} | {remedy} |\n")
    return "".join(parts)


def test_the_page_lists_the_table():
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.test_refusals"
    assert all(f"`{reason.name}`" in page() for reason in Reason)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
