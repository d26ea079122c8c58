"""What a learner's own documentation says of it, so that a page says the same."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unsoftmax import learners


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
