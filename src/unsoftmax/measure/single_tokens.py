"""v and c from single tokens, entry by entry, with their errors.

    f([0]) = c              with biases, one query
    f([ρe_k]) = ρv_k + c    k = 1 … d, d queries

A softmax over one token gives it the weight 1, so these answers hold whatever W is, for one head
and for sums of heads. Nothing is asked or refused here: `SingleTokens` says what to ask and reads
the answers. Source: the first step of Theorem 4.1; c and the errors go beyond it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from unsoftmax.measure.precision import KAPPA, UNIT, Precision
from unsoftmax.probes import Array, Singles, UnitVectors


class Shared(NamedTuple):
    """Errors of v and c as they are as a rule.

    Bounds on v and c themselves allow for bad luck. Where they are one error among thousands,
    each bounded as if all had the worst sign, the usual size does.
    """

    v: Array
    """Entry by entry."""
    c: float


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
    shared : Shared, optional
        What v̂ and ĉ are taken to be off by where the errors of many answers are bounded together;
        ``v_error`` and ``c_error`` where None.
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
    shared: Shared | None = None
    reread: Callable[[Array], Values | None] | None = field(default=None, compare=False, repr=False)

    def told_by(self, y: Array) -> Values:
        """Return v and c with the precision that answers ``y`` tell, if it was open."""
        told = None if self.reread is None else self.reread(y)
        return self if told is None else told

    @property
    def among_others(self) -> Shared:
        """What v̂ and ĉ are off by beside the errors of many answers."""
        return Shared(self.v_error, self.c_error) if self.shared is None else self.shared

    def moved(self, rng: np.random.Generator) -> Values:
        """Return v and c moved by about as much as they are off."""
        off = self.among_others
        v = self.v + off.v / KAPPA * rng.standard_normal(len(self.v))
        return replace(self, v=v, c=self.c + off.c / KAPPA * float(rng.standard_normal()))

    def coarser(self, factor: float, reason: str) -> Values:
        """Assume that answers are off by ``factor`` times as much, those to single tokens too."""
        return replace(
            self,
            v_error=factor * self.v_error,
            c_error=factor * self.c_error,
            precision=self.precision.coarser(factor, reason),
        )

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

    @property
    def constant(self) -> float:
        """ĉ."""
        return 0.0 if self.at_zero is None else self.at_zero

    @property
    def v(self) -> Array:
        """v̂."""
        return (self.y - self.constant) / self.scale

    def values(self, precision: Precision, terms: float = 0.0, hidden: float = 0.0) -> Values:
        """Read v and c from answers of this precision.

        Parameters
        ----------
        precision : Precision
            Of the answers.
        terms : float
            Size of the products that an entry of v is the sum of, at least.
        hidden : float
            Size of the terms that cancel in c, beside what ``precision`` says of every answer.
        """
        c, v, c_error, c_shared = self.constant, self.v, 0.0, 0.0
        if self.at_zero is not None:
            c_error = float(precision.error(abs(c) + hidden, c))
            c_shared = float(precision.error_at_unit_vector(abs(c), c))
        usual = size_of_terms(self.y)
        sizes = np.maximum(usual, abs(self.scale) * terms)
        v_error = (precision.error(sizes, self.y) + c_shared) / self.scale
        v_shared = (precision.error_at_unit_vector(usual, self.y) + c_shared) / self.scale
        # y − c rounds, and so does y/ρ; y/2^k does not
        exact = self.at_zero is None and np.frexp(self.scale)[0] == 0.5
        if not exact:
            own = 2 * UNIT * np.abs(v)
            v_error, v_shared = v_error + own, v_shared + own
        return Values(v, c, v_error, c_error, precision, Shared(v_shared, c_shared))


def size_of_terms(y: Array) -> Array:
    """Estimate the sizes of the products that answers to ρe_k are sums of.

    A target that holds v multiplies once. One that computes X → V → output adds up as many
    products as a value has entries, and where they cancel for one k the answer is small and its
    rounding is not: no answer is taken to be less coarse than the root mean square of all.
    """
    return np.asarray(np.maximum(np.abs(y), np.sqrt(np.mean(y**2))))
