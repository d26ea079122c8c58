"""A reading: numbers read off answers, with what they may be off by.

It is all that ``measure`` hands to ``solve``, which need not know how a number was read: from
two-token answers, through a network, in one head's window, or by bisecting labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.probes import Array


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

    Examples
    --------
    >>> Reading.independent(np.zeros(2), np.array([3.0, 4.0])).total
    5.0
    """

    value: Array
    error: Array
    total: float

    @classmethod
    def independent(cls, value: Array, error: Array) -> Reading:
        """Make a reading whose errors have nothing in common."""
        return cls(value, error, float(np.linalg.norm(error)))

    @property
    def bounded(self) -> bool:
        """Whether all errors are bounded."""
        return bool(np.isfinite(self.total))
