"""What a user says of a layer's frequencies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.settings import positive
from unsoftmax.models.rotary import Rotary


@dataclass(frozen=True, slots=True)
class ToldTurning:
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


def told_turning(
    rotary: bool | Rotary, base: float | None, head_dim: int | None
) -> ToldTurning | None:
    """Return what is said of positions, None where there are none.

    Raises
    ------
    ValueError, TypeError
        Settings are out of range, not of their type, or do not go together.
    """
    if not isinstance(rotary, (bool, np.bool_, Rotary)):
        raise TypeError(f"rotary must be True, False or a Rotary; it is {rotary!r}.")
    told = rotary if isinstance(rotary, Rotary) else None
    if base is not None:
        positive("rotary_base", base)
        if told is not None:
            raise ValueError("rotary_base is given beside rotary: one of them says the same.")
        if head_dim is not None and head_dim % 2:
            raise ValueError(
                "rotary_base needs an even head_dim of keys and queries, whose planes have two "
                f"coordinates each; it is {head_dim}."
            )
        return ToldTurning(base=float(base))
    return ToldTurning(told) if told is not None or rotary else None
