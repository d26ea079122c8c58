"""A reading: numbers read off answers, with what they may be off by.

It is all that ``measure`` hands to ``solve``, which need not know how a number was read: from
two-token answers, through a network, in one head's window, or by bisecting labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class Alike:
    """Errors that one unknown makes in all of a token's readings, nearly alike.

    Readings are Z x, one x per query token. An error Z δ of them, or one that is the same for
    all offsets, is solved as δ, or as a multiple of Z⁻¹(1, …, 1): smaller by far than errors that
    differ from offset to offset, which are divided by Z's smallest singular value.

    Attributes
    ----------
    of_solution : float
        Norm of those that are Z δ, as they are solved.
    of_ones : float
        Norm, over the query tokens, of those that are the same for all offsets.
    of_shift : float
        How many times an error of the shift a·w, measured before, is in the readings.
    apart : float
        Bound on the norm of all that is left.
    """

    of_solution: float
    of_ones: float
    of_shift: float
    apart: float


@dataclass(frozen=True, slots=True)
class Reading:
    """Numbers with bounds on their errors.

    Attributes
    ----------
    value : ndarray
        What was read, NaN or ±inf where the answer says nothing.
    error : ndarray
        Bound on what each may be off by, infinity where there is none.
    total : float
        Bound on the norm of all errors together: at most that of ``error``, and less where
        one unknown (an error of v, say) is behind many of them.
    alike : Alike, optional
        The same errors, divided for those who solve Z x = value.

    Examples
    --------
    >>> Reading.independent(np.zeros(2), np.array([3.0, 4.0])).total
    5.0
    """

    value: Array
    error: Array
    total: float
    alike: Alike | None = None

    @classmethod
    def independent(cls, value: Array, error: Array) -> Reading:
        """Make a reading whose errors have nothing in common."""
        return cls(value, error, float(np.linalg.norm(error)))

    @property
    def bounded(self) -> bool:
        """Whether all errors are bounded."""
        return bool(np.isfinite(self.total))
