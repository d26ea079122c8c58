"""Labels → readings: unknowns found by halving intervals, a bit per label.

A label says whether an unknown is above the place where it was asked. `Brackets` holds one
interval per unknown; a round asks all of them at their middles at once (`halve`). An unknown
that is read at a scale (a logit t = s·m of which m is wanted) may turn out to lie beyond the
range at which labels can tell: `ScaledBrackets` starts it again at a smaller scale.

Queries: one per unknown and bit. Nothing is known here of heads, or of how a place becomes a
probe. Source: beyond Theorem B.1, which bisects one unknown at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import ModelMismatch
from unsoftmax.probes import Array, Indices, Probes, Round
from unsoftmax.protocol import Answers
from unsoftmax.theory.label_counts import SCHEDULE

Labels: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BisectionTuning:
    """Knobs of bisecting logits.

    Thresholds are placed through a v that is known to 1 %. That still separates σ(3.5) from 1,
    and not σ(4).
    """

    range: float = 4.0
    """Logits are bisected on [−range, range]. Larger: σ' is small and rounding moves the flip;
    smaller: more logits start again."""
    edge: float = 3.0
    """A logit found beyond this after the first bits starts again at a smaller scale."""
    smaller: float = 8.0
    """Divides the scale of a logit that starts again: beyond ±3 it lies within ±4 at the next
    scale unless it is larger than 32 at this one."""
    lost: float = 3.5
    """A logit that ends beyond this after all its restarts is refused."""
    first_bits: int = SCHEDULE.first_bits
    """Bits after which a logit is looked at, once, whether it starts again."""
    restarts: int = SCHEDULE.restarts
    """How often one logit may start again."""


def read_labels(answers: Sequence[Array]) -> list[Labels]:
    """Read labels: 1 where f(X) > 0, else 0 or −1; so `np.sign`, which is 0 at 0, gives labels.

    Raises
    ------
    ModelMismatch
        Anything but 1, 0 and −1.
    """
    for y in answers:
        if other := np.unique(y[(y != 0) & (np.abs(y) != 1)])[:3].tolist():
            raise ModelMismatch(
                "A label is 1 (or True) where f(X) > 0 and 0 or −1 elsewhere; the target answered "
                f"{', '.join(f'{value:g}' for value in other)}. If it answers values wrap it: "
                "us.oracles.labels(oracle)."
            )
    return [y == 1 for y in answers]


@dataclass(slots=True)
class Brackets:
    """Intervals that each hold one unknown, halved by labels.

    Examples
    --------
    >>> brackets = Brackets.of(2, 0.0, 1.0)
    >>> brackets.narrow(np.array([1]), np.array([True]))
    >>> brackets.middle.tolist(), brackets.bits.tolist()
    ([0.5, 0.75], [0, 1])
    """

    low: Array
    high: Array
    bits: Indices
    """How often each was halved."""

    @classmethod
    def of(cls, count: int, low: float, high: float) -> Brackets:
        """Start ``count`` intervals alike."""
        return cls(np.full(count, low), np.full(count, high), np.zeros(count, dtype=np.intp))

    @property
    def middle(self) -> Array:
        """Where to ask next."""
        return (self.low + self.high) / 2

    def narrow(self, index: Indices, above: Labels) -> None:
        """Keep the half that the labels name: the unknown is above the middle, or below."""
        middle = self.middle[index]
        self.low[index] = np.where(above, middle, self.low[index])
        self.high[index] = np.where(above, self.high[index], middle)
        self.bits[index] += 1

    def start(self, index: Indices, low: float, high: float) -> None:
        """Start some of them anew."""
        self.low[index], self.high[index], self.bits[index] = low, high, 0


@dataclass(slots=True)
class ScaledBrackets:
    """Unknowns t = s·m, each at a scale s of its own, smaller every time it starts again."""

    brackets: Brackets
    scale: Array
    starts: Indices
    tuning: BisectionTuning

    @classmethod
    def of(cls, count: int, scale: float, tuning: BisectionTuning) -> ScaledBrackets:
        """Start ``count`` unknowns at one scale."""
        brackets = Brackets.of(count, -tuning.range, tuning.range)
        return cls(brackets, np.full(count, scale), np.ones(count, dtype=np.intp), tuning)

    @property
    def repeating(self) -> Labels:
        """Which of them ask bits again that were asked at another scale."""
        return (self.starts > 1) & (self.brackets.bits < self.tuning.first_bits)

    @property
    def lost(self) -> Labels:
        """Which of them lie at the end of the range."""
        return np.abs(self.brackets.middle) > self.tuning.lost

    def start_again(self, spare: int) -> int:
        """Give unknowns at the end of the range a smaller scale, ``spare`` at most.

        They are looked at once, after the first bits. Returns how many started again.
        """
        found, edge = self.brackets, self.tuning.edge
        beyond = (found.low >= edge) | (found.high <= -edge)
        looked_at = (found.bits == self.tuning.first_bits) & (self.starts <= self.tuning.restarts)
        index = np.flatnonzero(beyond & looked_at)[:spare]
        found.start(index, -self.tuning.range, self.tuning.range)
        self.scale[index] /= self.tuning.smaller
        self.starts[index] += 1
        return len(index)


@dataclass(frozen=True, slots=True)
class Question:
    """Probes whose labels say which unknowns are above the middle of their brackets."""

    probes: Probes
    brackets: Brackets
    index: Indices


def halve(
    questions: Sequence[Question], beside: Sequence[Probes] = ()
) -> Generator[Round, Answers, list[Labels]]:
    """Ask in one round and narrow the brackets; return the labels of what was asked ``beside``."""
    asked: Round = [*beside, *(question.probes for question in questions)]
    labels = read_labels((yield asked))
    for question, above in zip(questions, labels[len(beside) :], strict=True):
        question.brackets.narrow(question.index, above)
    return labels[: len(beside)]
