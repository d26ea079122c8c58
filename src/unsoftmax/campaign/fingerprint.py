"""Is this still the same target? Some recorded questions, asked again on every resume.

`recorded_questions` chooses them; here their answers are compared. Each may differ by what the
target's arithmetic allows at that question's own size, and by the format of all answers. Where
some differ by more, all are asked a third time, each alone: answers that change from call to call
are noise, whose size goes into the notes; answers that stay come from another target.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.campaign.recorded_questions import Witness, Witnesses
from unsoftmax.campaign.spans import Span
from unsoftmax.errors import LedgerMismatch
from unsoftmax.measure.precision import KAPPA, Precision
from unsoftmax.probes import Array, Flags, Sequences

# Roundoffs, times `KAPPA`, by which answers of the same target may differ: in a batch of another
# size it adds up in another order. Smaller refuses good targets.
UNITS = 64.0
# Relative difference that is always allowed. Where tokens are long and W x is short, the terms of a
# score cancel, and their rounding moves the answer: by 1.6e-12 (measured). Smaller refuses good
# targets; larger takes a changed target for the same.
LEAST = 2.0**-37
# The coarsest format that answers are taken to have: bfloat16. A few answers may be short numbers
# by chance, and a changed target would pass for a rounded one.
COARSEST = 2.0**-8
# Numbers off which that format is read, evenly spaced over the coordinates. A decimal number takes
# 10 µs to read: all of 8 vectors of 10⁶ would take a minute on every resume.
FORMAT_NUMBERS = 2**14
# Share of the first difference below which a third answer counts as the second one again.
STEADY = 0.1
# Answers that may differ by at most so many times as much as those that do differ show noise, too:
# where few differ, one in 16 is as near itself by chance. Larger: a changed target passes whose
# larger answers waver in proportion.
ALIKE = 64.0
# Share of the answers that differ of which more must stay where they are, in another target. Noise
# comes as near to itself in 6 of 100.
MOST = 0.5


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Recorded questions that are asked again, and what is known of their answers.

    Attributes
    ----------
    asked : tuple of Witness
        The questions, those of one shape beside each other.
    recorded : array (n, m)
        Answers to all questions that were looked at.
    sizes : array (n,)
        Longest tokens of those questions.
    labels : bool
        Whether answers are labels.
    moved : float
        Largest relative difference between the recorded questions and those asked now.
    """

    asked: tuple[Witness, ...]
    recorded: Array
    sizes: Array
    labels: bool
    moved: float

    @classmethod
    def of(cls, known: Witnesses, moved: float) -> Fingerprint:
        """Read it off what is recorded."""
        asked = tuple(sorted(known.chosen(), key=lambda witness: witness.X.shape))
        sizes = np.array([witness.size for witness in known.found])
        return cls(asked, known.answers(), sizes, known.labels(), moved)

    @property
    def before(self) -> Array:
        """Recorded answers to what is asked: (k, m)."""
        return np.array([witness.y for witness in self.asked])

    def spans(self, *, alone: bool = False) -> list[Span]:
        """Return the questions, one family per shape; ``alone``: one per call.

        One that is alone of its shape is asked beside itself then: in another batch than before.
        """
        found = []
        for family, shape in enumerate(sorted({witness.X.shape for witness in self.asked})):
            X = np.stack([witness.X for witness in self.asked if witness.X.shape == shape])
            probes = Sequences(X, phase="fingerprint", purpose="check")
            if alone and len(X) == 1:
                twice = Sequences(np.repeat(X, 2, axis=0), phase="fingerprint", purpose="check")
                found.append(Span(family, 0, 2, twice))
                continue
            step = 1 if alone else len(X)
            found += [Span(family, k, k + step, probes) for k in range(0, len(X), step)]
        return found

    def in_order(self, answers: dict[tuple[int, int], Array]) -> Array:
        """Arrange rows, by family and start of their piece, in the order of the questions."""
        pieces = [answers[place] for place in sorted(answers)]
        families = [family for family, _ in sorted(answers)]
        alone = [len(y) == 2 and self._sizes[f] == 1 for f, y in zip(families, pieces, strict=True)]
        return np.concatenate([y[:1] if one else y for one, y in zip(alone, pieces, strict=True)])

    @property
    def _sizes(self) -> list[int]:
        """How many questions each family has."""
        shapes = [witness.X.shape for witness in self.asked]
        return [shapes.count(shape) for shape in sorted({*shapes})]

    def differs(self, now: Array) -> bool:
        """Whether any answer differs by more than one target's may."""
        return bool(np.any(self._excess(now) > 1))

    def noise(self, now: Array, again: Array) -> float:
        """Return the deviation of answers that change from call to call.

        Raises
        ------
        LedgerMismatch
            They do not: this is another target.
        """
        excess, changes = self._excess(now), np.abs(again - now)
        differs = excess > 1
        moved, wavers = np.abs(now - self.before)[differs], changes[differs]
        # one large answer decides the mean, and may come near itself by chance: ask the others
        stays = np.mean(wavers < STEADY * moved) > MOST
        least = STEADY * rms(moved)
        if stays and rms(wavers) < least and self._wavering(now, changes, differs) < least:
            question, number = np.unravel_index(np.argmax(excess), now.shape)
            which = f", number {number}" if now.shape[1] > 1 else ""
            raise LedgerMismatch(
                "The ledger was written for another target, or the target has changed: the answer "
                f"to its question {question}{which} was {self.before[question, number]} and is "
                f"{now[question, number]}. Start another ledger to learn the target as it is now."
            )
        return float(rms(changes) / np.sqrt(2))

    def _wavering(self, now: Array, changes: Array, differs: Flags) -> float:
        """Return by how much answers change that are not much larger than those that differ.

        Rounding is no such change, and noise may be in proportion to the answers. Of a few answers
        that differ by noise all come near themselves by chance.
        """
        allowed, rounding = self._allowed(now), self._allowed(now, 0.0)
        alike = allowed <= ALIKE * np.max(allowed[differs])
        wavers = alike & (changes > rounding) & (not self.labels)
        return float(np.max(changes[wavers], initial=0.0))

    def _excess(self, now: Array) -> Array:
        excess: Array = np.abs(now - self.before) / np.maximum(self._allowed(now), 1e-300)
        return excess

    def _allowed(self, now: Array, least: float | None = None) -> Array:
        """Bound how far each second answer (k, m) of one target may be from the first.

        ``least`` is a relative difference that is always allowed, if not `LEAST`.

        Questions that moved by a few bits move their answers as coarser arithmetic would. Answers
        that are finer now than those recorded come from a target that does not round as it did.
        """
        if self.labels:
            return np.zeros_like(now)
        numbers = [self.recorded, now]
        every = max(1, -(-sum(y.size for y in numbers) // FORMAT_NUMBERS))
        precision = Precision.of_format([y.ravel()[::every] for y in numbers])
        arithmetic = UNITS * KAPPA * max(precision.unit, self.moved)
        arithmetic = max(arithmetic, LEAST if least is None else least)
        # Two numbers that are nearly the same are rounded to neighbours at most.
        relative = min(precision.relative, COARSEST)
        bound: Array = arithmetic * self._natural_sizes()
        return bound + 2 * (relative * np.abs(self.before) + precision.absolute)

    def _natural_sizes(self) -> Array:
        """Bound the size of the terms of each answer (k, m) from below, by recorded answers.

        Terms grow with the longest token, at most in proportion but for a constant. So an answer
        to shorter tokens is a bound as it is, and one to longer tokens in proportion to the
        lengths. Every coordinate has its own, as if it were asked for alone.
        """
        found = []
        for witness in self.asked:
            size = max(witness.size, np.finfo(float).tiny)
            share = size / np.maximum(self.sizes, size)
            found.append(np.max(share[:, None] * np.abs(self.recorded), axis=0))
        return np.array(found)


def rms(x: Array) -> float:
    """Return the root mean square."""
    return float(np.sqrt(np.mean(x**2)))
