"""What a certificate leaves open of a claim that was recovered: how far right answers may miss it.

Recovered weights are off by something, and their certificate bounds by what. An answer to random
tokens meets an error θ̂ − θ of norm at most δ, n entries, in ‖∂f/∂θ‖·δ/√n as a rule, as in
`questions.answer_errors.power`; errors of several tensors are independent. A function's bound,
constant + slope·‖x‖, holds whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class LeftOpenTuning:
    """Knobs of what a certificate allows."""

    alignment: float = 2.0
    """Errors may move an answer by so many standard deviations of random directions, as in
    `validate.head_comparison.JudgeTuning`; ``different`` is said from twice that on."""


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """The bounds of a certificate, by parameter; none are 0."""

    errors: Mapping[str, float] = field(default_factory=dict)
    tuning: LeftOpenTuning = field(default=LeftOpenTuning())

    def __post_init__(self) -> None:
        for name, bound in self.errors.items():
            if not bound >= 0:
                raise ValueError(f"errors: the bound on {name} must be 0 or more; it is {bound!r}.")

    def bound(self, tensor: str) -> float:
        """Return the bound on a tensor's error, 0 without one: "W of head 2" has that on W."""
        return self.errors.get(tensor.split(" of ")[0], 0.0)

    def at(self, moves: Mapping[str, Array], entries: Mapping[str, int], lengths: Array) -> Array:
        """Return what right answers may miss the claim by, (B,).

        Parameters
        ----------
        moves : mapping of str to ndarray (B,), or (B, m)
            ‖∂f/∂θ‖ by tensor; "W of head 2" has the bound on W.
        entries : mapping of str to int
            Entries of each tensor.
        lengths : ndarray (B,), or (B, 1) beside moves of vectors
            Norms that a function's slope counts with.
        """
        squares: Array | float = 0.0
        for tensor, move in moves.items():
            bound = self.bound(tensor)
            share = min(1.0, self.tuning.alignment / np.sqrt(max(1, entries[tensor])))
            squares = squares + np.square(_times(share * bound, move))
        whole = self.errors.get("constant", 0.0) + _times(self.errors.get("slope", 0.0), lengths)
        return np.asarray(np.sqrt(squares) + whole)


def _times(bound: float, x: Array) -> Array:
    """Multiply, with 0 where an infinite bound meets nothing."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(x > 0, bound * x, 0.0)
