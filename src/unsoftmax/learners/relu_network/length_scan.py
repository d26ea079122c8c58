"""One line through 0, asked at lengths from 4·10⁻⁹ to 10¹²: at which lengths a network bends.

A line through 0 crosses every hyperplane that 0 is not on, on one of its two sides. Asked at
lengths 4^k on both sides, the slopes between neighbours change where hyperplanes are crossed,
wherever these are: 70 queries for 20 decades. The change's place tells the length scale λ for the
search, and the answers are kept: a network that is found has to predict them.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from unsoftmax.measure.precision import FLOAT32_UNIT, UNIT
from unsoftmax.probes import Array, Round, Singles
from unsoftmax.protocol import Answers

# Two slopes differ if their difference is more than this many times their error.
BENT = 4.0
# Error of an answer, in roundoffs of the larger of the two that give a slope, and of its terms.
ROUNDOFFS = 16.0
# Number of the shortest lengths, where answers are as large as near 0.
NEAR = 8
# Noise is NOISY times the QUIET quantile of what answers near 0 miss the line through
# their neighbours by: at most lengths no hyperplane is crossed.
QUIET, NOISY = 0.2, 10.0
# Lengths at which both sides are asked, 4·10⁻⁹ to 10¹². Hyperplanes nearer than that pass for some
# through 0, those farther away are not looked for. With a larger ratio λ is less precise; a smaller
# one takes more queries.
LENGTHS: Array = 4.0 ** np.arange(-14.0, 21.0)


@dataclass(frozen=True, slots=True)
class LengthScan:
    """Answers along a line through 0."""

    lengths: Array
    direction: Array
    """Of norm 1, (d,)."""
    y: Array
    """Answers at ± the lengths, (2, n)."""

    @classmethod
    def none(cls) -> LengthScan:
        """Return a scan without answers, for targets in which all lengths are alike."""
        return cls(np.zeros(0), np.zeros(0), np.zeros((2, 0)))

    @property
    def tokens(self) -> Array:
        """What was asked, (2n, d)."""
        return np.outer(np.concatenate([self.lengths, -self.lengths]), self.direction)

    @property
    def answers(self) -> Array:
        """What was answered, (2n,)."""
        return np.asarray(self.y.ravel())

    @property
    def farthest(self) -> float:
        """Length up to which was looked, infinite where lengths do not matter."""
        return float(self.lengths[-1]) if len(self.lengths) else np.inf

    @property
    def bends(self) -> Array:
        """How much the slope changes at each inner length, on both sides; 0 where it need not."""
        h, size = np.diff(self.lengths), np.abs(self.y)
        change = np.abs(np.diff(np.diff(self.y, axis=1) / h, axis=1))
        # what an answer misses the line through its neighbours by: |w_k b_k| where a neuron's
        # hyperplane is crossed. Their sum, and that of the changes, is the size of answers' terms
        missed = change / (1 / h[1:] + 1 / h[:-1])
        terms = np.sum(missed) + self.lengths[1:] * np.sum(change)
        own = self._unit * (np.maximum(size[:, 1:], size[:, :-1]) + terms)
        # far out answers are large, and rounding hides noise of a fixed size
        inner = size[:, 1:-1] <= 2 * size[:, :NEAR].max()
        own += NOISY * np.quantile(missed[inner], QUIET)
        # noise that is a share of the answers grows with them
        largest = np.maximum(np.maximum(size[:, 2:], size[:, :-2]), size[:, 1:-1])
        if np.any(some := largest > 0):
            share = np.quantile(missed[some] / largest[some], QUIET)
            own += NOISY * share * np.maximum(size[:, 1:], size[:, :-1])
        own /= h
        return np.where(change > BENT * (own[:, 1:] + own[:, :-1]), change, 0.0)

    @property
    def length(self) -> float:
        """Median of the distances from 0 at which the slope changes.

        Where it changes at 0 alone, the length at which answers are twice as large as there; 1
        where the target is straight.
        """
        if not len(self.lengths):
            return 1.0
        # each change counts alike: where sizes differ, large jumps are near and would hide far ones
        changes = self.bends > 0
        places = np.broadcast_to(self.lengths[1:-1], changes.shape)[changes]
        return float(np.exp(np.median(np.log(places)))) if len(places) else self._length_of_a_fold

    @property
    def _length_of_a_fold(self) -> float:
        """Answer at 0 beside the slopes on either side, if they differ: the nearest length."""
        at_0 = float(np.mean(self.y[:, 0]))
        rise, far = self.y[:, -1] - at_0, float(np.abs(self.y[:, -1]).max())
        steepest = float(np.abs(rise).max()) / self.lengths[-1]
        if abs(rise.sum()) <= BENT * self._unit * far or not at_0 * steepest:
            return 1.0
        places = np.abs(np.log(self.lengths * (steepest / abs(at_0))))
        return float(self.lengths[np.argmin(places)])

    @property
    def _unit(self) -> float:
        """Relative error of an answer."""
        single = np.array_equal(self.y, self.y.astype(np.float32))
        return ROUNDOFFS * (FLOAT32_UNIT if single else UNIT)


def scan_lengths(dim: int, rng: np.random.Generator) -> Generator[Round, Answers, LengthScan]:
    """Ask along a random line through 0."""
    v = rng.standard_normal(dim)
    v /= np.linalg.norm(v)
    tokens = np.outer(np.concatenate([LENGTHS, -LENGTHS]), v)
    [y] = yield [Singles(tokens, phase="length", purpose="data")]
    return LengthScan(LENGTHS, v, y.reshape(2, -1))
