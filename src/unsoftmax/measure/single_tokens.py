"""v and c from single tokens, entry by entry, with their errors.

    f([0]) = c              with biases, one query
    f([ρe_k]) = ρv_k + c    k = 1 … d, d queries

A softmax over one token gives it the weight 1, so these answers hold whatever W is, for one head
and for sums of heads. Nothing is asked or refused here: `SingleTokens` says what to ask and reads
the answers. Source: the first step of Theorem 4.1; c and the errors go beyond it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from unsoftmax.measure.precision import UNIT, Precision
from unsoftmax.probes import Array, Singles, UnitVectors


@dataclass(frozen=True, slots=True)
class Values:
    """What single tokens gave: f([x]) = x·v + c.

    Attributes
    ----------
    v, c : ndarray (d,), float
        The estimates.
    v_error, c_error : ndarray (d,), float
        Bounds ν on their errors, entry by entry.
    precision : Precision
        Of the answers they came from, and of those to come.
    reread : callable, optional
        Where single tokens may be answered by round numbers because v is round: exact answers
        are assumed, and this reads v and c again from what telling answers say, None where
        these are too few to say anything.
    """

    v: Array
    c: float
    v_error: Array
    c_error: float
    precision: Precision
    reread: Callable[[Array], Values | None] | None = field(default=None, compare=False, repr=False)

    def told_by(self, y: Array) -> Values:
        """Return v and c with the precision that answers ``y`` tell, if it was open."""
        told = None if self.reread is None else self.reread(y)
        return self if told is None else told

    @property
    def norm(self) -> float:
        """‖v‖, which sets the natural size of an answer."""
        return float(np.linalg.norm(self.v))


@dataclass(frozen=True, slots=True)
class SingleTokens:
    """Answers to ρe_1 … ρe_d, and to the zero token where there may be a c.

    Attributes
    ----------
    y : ndarray (d,)
        f([ρe_k]).
    scale : float
        ρ.
    at_zero : float, optional
        f([0]); c is 0 where None.

    Examples
    --------
    >>> read = SingleTokens(np.array([3.0, 5.0]), 2.0, 1.0).values(Precision())
    >>> read.v.tolist(), read.c
    ([1.0, 2.0], 1.0)
    """

    y: Array
    scale: float
    at_zero: float | None = None

    @staticmethod
    def probes(dim: int, scale: float, biases: bool) -> list[Singles]:
        """Return what to ask: the zero token where there may be a c, then ρe_1 … ρe_d."""
        units = Singles(UnitVectors(dim), scale, phase="v", purpose="data")
        zero = Singles(np.zeros((1, dim)), phase="c", purpose="data")
        return [zero, units] if biases else [units]

    @classmethod
    def of(cls, answers: list[Array], scale: float) -> SingleTokens:
        """Take the answers to `probes`, in its order."""
        *at_zero, y = answers
        return cls(y, scale, float(at_zero[0][0]) if at_zero else None)

    def values(self, precision: Precision) -> Values:
        """Read v and c from answers of this precision."""
        c = 0.0 if self.at_zero is None else self.at_zero
        rounding = precision.of_one_term
        c_error = 0.0 if self.at_zero is None else rounding * abs(c) + precision.absolute
        v = (self.y - c) / self.scale
        v_error = (rounding * np.abs(self.y) + precision.absolute + c_error) / self.scale
        # y − c rounds, and so does y/ρ; y/2^k does not
        exact = self.at_zero is None and np.frexp(self.scale)[0] == 0.5
        if not exact:
            v_error = v_error + 2 * UNIT * np.abs(v)
        return Values(v, c, v_error, c_error, precision)
