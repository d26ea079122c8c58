"""How one search for all heads ends, and the exceptions that end it early.

A search goes through half a circle of offsets with one query token. It ends early where the
geometry of that token and that half circle does not let the heads be read one by one: another
query token may do better. What happens then is a table, `learners.multi_head.restarts`.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import ClassVar


class SearchOutcome(Enum):
    """What came of one search."""

    CONFIRMED = auto()
    """A model that predicts fresh answers."""
    CONTRADICTED = auto()
    """A model that fresh answers contradict."""
    COINCIDENT = auto()
    """Jumps too close to be told apart, or readings that do not agree."""
    TOO_MANY = auto()
    """More jumps than there may be heads."""
    UNSATURATED = auto()
    """Gates that stay open at the longest tokens allowed, or two that are open together."""
    OPEN_START = auto()
    """A gate that is open where the half circle begins; found out after four queries."""


class SearchFailed(Exception):
    """A search that did not end with a model."""

    outcome: ClassVar[SearchOutcome]


class CoincidentJumps(SearchFailed):
    """Jumps that this half circle does not tell apart, or readings that contradict each other."""

    outcome = SearchOutcome.COINCIDENT


class UnsaturatedGates(SearchFailed):
    """Gates that are open at the longest tokens that may be asked, or open together there."""

    outcome = SearchOutcome.UNSATURATED


class UnsaturatedStart(UnsaturatedGates):
    """A gate that is open where the half circle begins."""

    outcome = SearchOutcome.OPEN_START
