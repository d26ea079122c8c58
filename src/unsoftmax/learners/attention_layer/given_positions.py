"""What a user says of a layer's frequencies."""

from __future__ import annotations

from dataclasses import dataclass

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.settings import refuse_contrary
from unsoftmax.models.rotary import Rotary


@dataclass(frozen=True, slots=True)
class GivenPositions:
    """The frequencies or their base, or neither: then they are found."""

    rotary: Rotary | None = None
    base: float | None = None

    def of(self, rank: int) -> Rotary | None:
        """Return the frequencies of keys of so many rows, None where nothing was said."""
        if self.base is None:
            return self.rotary
        if rank % 2:
            raise ModelMismatch(
                f"Keys and queries have rank {rank}, and planes have two coordinates each: at no "
                "base are these rotary positions. rotary=True without rotary_base finds "
                "frequencies of any rank."
            )
        return Rotary.of(self.base, rank)


def given_positions(
    rotary: bool | Rotary, base: float | None, head_dim: int | None
) -> GivenPositions | None:
    """Return what is said of positions, None where there are none.

    Raises
    ------
    ValueError, TypeError
        Settings are out of range, not of their type, or do not go together.
    """
    refuse_contrary(rotary, base, "head_dim", head_dim)
    if base is not None:
        return GivenPositions(base=float(base))
    given = rotary if isinstance(rotary, Rotary) else None
    return GivenPositions(given) if given is not None or rotary else None
