"""What a search for a changed tensor ends with."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from unsoftmax.probes import Round
from unsoftmax.protocol import Answers

NEAR = "the change is near what answers hide."


@dataclass(frozen=True, slots=True)
class Located:
    """What was changed; None with the reason why that could not be told."""

    tensor: str | None
    why: str = ""

    @classmethod
    def of(cls, names: Sequence[str], why: str = NEAR) -> Located:
        """List what was changed, or say why nothing is listed."""
        return cls(", ".join(names)) if names else cls(None, why)


Search: TypeAlias = Generator[Round, Answers, Located]
