"""Heads with positions, asked as if they had none: W_h(1) stands in for W_h.

Two tokens far apart in length, g = 2⁴⁰, have one score that is not nearly 0:

    f([g a; b/g]) = c + g·Σ_h (a·v_h) σ(a·W_h(1) b)
    f([0 × (n−1); −g a; b/g]) = c − g·Σ_h (a·v_h) σ(−a·W_h(1) b − ln n)

since zero tokens score exactly 0; and f([0]) = c. A learner of heads without positions asks
[a+b; b], and n copies of a+b with one b. With s = Σ v_h, which single tokens tell whatever the
positions, it would be answered

    f([a+b; b]) = b·s + Σ_h (a·v_h) σ(a·W_h b)
    f([(a+b) × n; b]) = b·s + Σ_h (a·v_h) σ(a·W_h b + ln n),

and σ(t) = 1 − σ(−t) makes the second of the second: one query for one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.learners.compose import Asking, T, mapped
from unsoftmax.probes import Array, Parted, Probes, Round, Singles, UnitVectors
from unsoftmax.protocol import Answers


def one_apart(steps: Asking[T], gain: float) -> Asking[tuple[T, float]]:
    """Let a learner of heads without positions and biases learn W_h(1) of heads with positions.

    It is shown answers without c; what it found is returned with c.
    """
    view = _OneApart(gain)
    found = yield from mapped(steps, ask=view.asked, answer=view.answered)
    return found, view.c


@dataclass(slots=True)
class _OneApart:
    """Turns rounds, and their answers back."""

    gain: float
    at_once: int = 2**18
    """Numbers of tokens that are made at a time."""
    asked_last: Round = field(default_factory=list)
    s: Array = field(default_factory=lambda: np.zeros(0))
    c: float = 0.0

    def asked(self, given: Round) -> Round:
        """Part the tokens of all sequences of more than one."""
        self.asked_last = [
            probes if probes.tokens == 1 else Parted.of(probes, self.gain) for probes in given
        ]
        return self.asked_last

    def answered(self, answers: Answers) -> Answers:
        """Return what would have been answered without positions."""
        singles = [
            (probes, y)
            for probes, y in zip(self.asked_last, answers, strict=True)
            if isinstance(probes, Singles)
        ]
        for probes, y in singles:
            if not isinstance(probes.rows, UnitVectors) and not np.any(probes[:]):
                self.c = float(y[0])
        for probes, y in singles:
            if isinstance(probes.rows, UnitVectors):
                self.s = np.asarray((y - self.c) / probes.scale)
        pairs = zip(self.asked_last, answers, strict=True)
        return [self._seen(probes, y - self.c) for probes, y in pairs]

    def _seen(self, probes: Probes, y: Array) -> Array:
        if not isinstance(probes, Parted):
            return y
        found, step = y / self.gain, max(1, self.at_once // probes.dim)
        for start in range(0, len(y), step):
            span = slice(start, start + step)
            a, b = probes.parts(span)
            found[span] += (b if probes.tokens == 2 else a + b) @ self.s
        return found
