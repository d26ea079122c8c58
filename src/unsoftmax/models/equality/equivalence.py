"""The answer to whether two models are equal, and the tolerance that it is given within."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from unsoftmax.probes import Array

Verdict = Literal["equal", "different", "undecided"]
Basis = Literal["canonical form", "cells"]

# Models that differ by more than this share of their parameters are not equal by a certificate,
# however wide: it tells too little.
_VAGUE = 0.1


@dataclass(frozen=True, slots=True)
class Equivalence:
    """The answer to `equivalent`; true exactly when the verdict is "equal".

    Attributes
    ----------
    verdict : {"equal", "different", "undecided"}
        "undecided": the parameters differ by more than the tolerance, yet no sequence was
        found on which float64 tells the functions apart; or heads of one model are within
        the tolerance of each other, and only if they count as one are the models equal; or
        several heads are compared with a Transformer whose network is affine within the
        tolerance; or a certificate is so wide that it allows differences of a tenth.
    witness : ndarray, shape (N, d), or None
        A sequence on which the two functions differ; only with "different", and None even
        then when the two do not take the same sequences.
    gap : float
        The largest difference between canonical parameters, [W w] and [v c] each relative
        to the larger of the two norms, of several heads [W w] head by head and all v with c;
        of ReLU networks, between all jumps of the gradient and the affine parts, relative to
        theirs; a neuron whose hyperplane is far from 0 counts by its slope. Products W = KᵀQ
        are rounded for it: it may be 0 where they differ.
    by : {"canonical form", "cells", "certificate", "witness", "shape", "nothing"}
        What decided: equal canonical forms; a network's values in the cells at all
        hyperplanes; the bounds on one model's errors that were given; the witness; that the two
        take other sequences; or nothing.
    share : float or None
        By a certificate: the largest share of its bounds that the differences take. Above 1 the
        verdict is "different", whatever answers differ by: the witness then shows two functions,
        as it would for a recovery and its own target, and is no proof.
    reason : str
        Why the verdict is "undecided".
    """

    verdict: Verdict
    witness: Array | None
    gap: float
    by: Basis | Literal["certificate", "witness", "shape", "nothing"] = "canonical form"
    share: float | None = None
    reason: str = ""

    def __bool__(self) -> bool:
        return self.verdict == "equal"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far parameters of equal models may be apart: ``rtol`` times their size plus ``atol``."""

    rtol: float = 0.0
    atol: float = 0.0

    def __post_init__(self) -> None:
        if not (self.rtol >= 0 and self.atol >= 0):
            raise ValueError("rtol and atol must be 0 or more.")

    @property
    def exact(self) -> bool:
        """Whether only equal numbers will do."""
        return not (self.rtol or self.atol)

    def allows(self, difference: float, size: float, unit: float = 1.0) -> bool:
        """Tell whether a difference is within the tolerance; both were divided by ``unit``."""
        return difference <= self.rtol * size + self.atol / unit

    def compare(self, mine: Array, other: Array) -> tuple[bool, float]:
        """Tell whether two arrays are within the tolerance, and their relative difference."""
        unit = octave(max(largest_of(mine), largest_of(other)))
        difference = norm_of(mine / unit - other / unit)
        size = max(norm_of(mine / unit), norm_of(other / unit))
        within = self.allows(difference, size, unit)
        if self.exact:
            within = np.array_equal(mine, other)
        return within, difference / size if size else 0.0


def within_certificate(result: Equivalence, share: float) -> Equivalence:
    """Say what the bounds of a certificate make of models that are not equal without it.

    ``share`` is the part of the bounds that the differences take; infinite where a bound is not
    there, which decides nothing.
    """
    if share <= 1:
        verdict: Verdict = "equal" if result.gap <= _VAGUE else "undecided"
        reason = "" if verdict == "equal" else "the bounds allow differences of a tenth"
        return Equivalence(verdict, None, result.gap, "certificate", share, reason)
    if result.verdict == "different" and share < float("inf"):
        return replace(result, by="certificate", share=share)
    return result


def share_of(difference: float, errors: Mapping[str, float], name: str) -> float:
    """Return a difference over its bound; 0 where nothing differs.

    A bound that is not finite says nothing: no difference is within it.
    """
    if not difference:
        return 0.0
    bound = errors.get(name, 0.0)
    return difference / bound if 0 < bound < float("inf") else float("inf")


def octave(size: float) -> float:
    """Return the power of two up to ``size``: dividing by it is exact."""
    return float(2.0 ** (np.frexp(size)[1] - 1))


def largest_of(x: Array) -> float:
    """Return the largest size of an entry, 0 of none."""
    return float(np.max(np.abs(x), initial=0.0))


def norm_of(x: Array) -> float:
    """Return the 2-norm (Frobenius), also where the squares leave float64's range."""
    unit = largest_of(x)
    return unit * float(np.linalg.norm(x / unit)) if unit else 0.0
