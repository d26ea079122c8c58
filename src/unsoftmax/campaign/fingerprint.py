"""Is this still the same target? The first questions of a ledger, asked again on every resume.

Their answers may differ by what the target's arithmetic and the format of its answers allow.
Where they differ by more they are asked a third time: answers that change from call to call are
noise, whose size goes into the notes; answers that stay where they are come from another target.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.campaign.ledger import Ledger
from unsoftmax.campaign.spans import Span
from unsoftmax.errors import LedgerMismatch
from unsoftmax.measure.precision import KAPPA, Precision
from unsoftmax.probes import Array, Round


@dataclass(frozen=True, slots=True)
class FingerprintTuning:
    """How the first answers are compared with later ones."""

    # Most questions that are asked again. More cost more on every resume; fewer may miss a
    # parameter, and a format is read off 4 answers or more.
    questions: int = 8
    # Roundoffs, times `KAPPA`, by which answers of the same target may differ: in a batch of
    # another size it adds up in another order. Smaller refuses good targets.
    units: float = 64.0
    # The coarsest format that answers are taken to have: bfloat16. A few answers may be short
    # numbers by chance, and a changed target would pass for a rounded one.
    coarsest: float = 2.0**-8
    # Share of the first difference below which a third answer counts as the second one again.
    steady: float = 0.1


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The first questions of a ledger and their recorded answers.

    Attributes
    ----------
    spans : tuple of Span
        The questions.
    before : array (k, m)
        Their answers, in the order of the spans.
    moved : float
        Largest relative difference between the recorded questions and those asked now.
    """

    spans: tuple[Span, ...]
    before: Array
    moved: float
    tuning: FingerprintTuning

    @classmethod
    def of(cls, ledger: Ledger, parts: Round, tuning: FingerprintTuning) -> Fingerprint | None:
        """Read it off a ledger; None where round 0 has no answer."""
        pieces = ledger.first_answers(tuning.questions)
        if not pieces:
            return None
        spans = tuple(Span(part, start, start + len(y), parts[part]) for part, start, y in pieces)
        return cls(spans, np.concatenate([y for _, _, y in pieces]), ledger.moved, tuning)

    def in_order(self, answers: dict[tuple[int, int], Array]) -> Array:
        """Arrange rows, by part and start of their piece, in the order of the spans."""
        return np.concatenate([answers[place] for place in sorted(answers)])

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
        changes = rms(again - now)
        if changes < self.tuning.steady * rms(now - self.before):
            question, number = np.unravel_index(np.argmax(self._excess(now)), now.shape)
            which = f", number {number}" if now.shape[1] > 1 else ""
            raise LedgerMismatch(
                "The ledger was written for another target, or the target has changed: the answer "
                f"to its question {question}{which} was {self.before[question, number]} and is "
                f"{now[question, number]}. Start another ledger to learn the target as it is now."
            )
        return float(changes / np.sqrt(2))

    def _excess(self, now: Array) -> Array:
        bound = _allowed_change(self.before, self._sizes(), self.moved, self.tuning)
        excess: Array = np.abs(now - self.before) / np.maximum(bound, 1e-300)
        return excess

    def _sizes(self) -> Array:
        """Measure the largest token of every question: (k, 1)."""
        probes = [span.probes[span.start : span.stop] for span in self.spans]
        return np.concatenate([np.linalg.norm(X, axis=2).max(axis=1) for X in probes])[:, None]


def _allowed_change(before: Array, size: Array, moved: float, tuning: FingerprintTuning) -> Array:
    """Bound how far a second answer (k, m) of one target may be from the first.

    Questions that moved by a few bits move their answers as coarser arithmetic would. Every
    coordinate has its own scale, as if it were asked for alone.
    """
    precision = Precision.of_format([before])
    scale = np.max(np.abs(before) / np.maximum(size, 1e-300), axis=0)
    arithmetic = tuning.units * KAPPA * max(precision.unit, moved) * scale * size
    # Two numbers that are nearly the same are rounded to neighbours at most.
    relative = min(precision.relative, tuning.coarsest)
    bound: Array = arithmetic + 2 * (relative * np.abs(before) + precision.absolute)
    return bound


def rms(x: Array) -> float:
    """Return the root mean square."""
    return float(np.sqrt(np.mean(x**2)))
