"""How one search for all heads ends, and the exceptions that end it early.

A search goes through half a circle of offsets with one query token. It ends early where the
geometry of that token and that half circle does not let the heads be read one by one: another
query token may do better. What happens then is a table, `learners.multi_head.restarts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType

import numpy as np

from unsoftmax.arrangement.breakpoints import TooManyBreakpoints
from unsoftmax.arrangement.jumps import SoftStart, SoftTransition
from unsoftmax.measure.windows import NoWindow


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


class CoincidentJumps(Exception):
    """Jumps that this half circle does not tell apart, or readings that contradict each other."""


class UnsaturatedGates(Exception):
    """Gates that are open at the longest tokens that may be asked, or open together there."""


ENDINGS: Mapping[type[Exception], SearchOutcome] = MappingProxyType(
    {
        TooManyBreakpoints: SearchOutcome.TOO_MANY,
        CoincidentJumps: SearchOutcome.COINCIDENT,
        np.linalg.LinAlgError: SearchOutcome.COINCIDENT,
        UnsaturatedGates: SearchOutcome.UNSATURATED,
        NoWindow: SearchOutcome.UNSATURATED,
        SoftTransition: SearchOutcome.UNSATURATED,
        SoftStart: SearchOutcome.OPEN_START,
    }
)
"""What ends a search early → its outcome."""
