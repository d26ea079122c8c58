"""The table of refusals: every row is raised, reads well, and keeps its name."""

import pickle
import string
from pathlib import Path
from typing import Any

import unsoftmax
from unsoftmax.refusals import Reason

SOURCE = Path(unsoftmax.__file__).parent


def numbers(reason):
    text = f"{reason.sentence} {reason.remedy}"
    return [(name, form) for _, name, form, _ in string.Formatter().parse(text) if name]


def sample(reason) -> dict[str, Any]:
    """Return something to say for each name in a sentence."""
    return {
        name: 1.5 if form and form[-1] != "," else 1 if form else "some"
        for name, form in numbers(reason)
    }


def test_every_reason_is_raised_somewhere():
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    assert [reason for reason in Reason if f"Reason.{reason.name}" not in text] == []


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
