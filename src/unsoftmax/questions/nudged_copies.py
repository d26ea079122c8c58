"""Is a composition served as claimed? A wrong claim's misses are smooth, rounding is rough.

Misses e(X) = answer − claim are smooth in X where a tensor is wrong, and rough where they come from
the target's arithmetic: its order of sums, float32, 16-bit operands, rounded or noisy answers. So
every sequence is asked as a cluster of four nudged copies. With m the mean of a cluster's misses
and s² their scatter around it (divisor 3), both as means over all numbers of the answers,

    F = 4·mean(m²)/s²

is about 1 for any rough error, whatever its size, and large for a wrong claim. Errors are alike
within an answer, so that F of one cluster varies: the median of five decides. Nothing is assumed
of the class, its precision or its noise; a stack of any depth has a verdict of 20 questions.

Weights that are held rounded are other weights, whose misses are smooth. So the claim is computed
as they may be held (`held_weights`), too: what fits is named, "same, held as bfloat16".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from unsoftmax.measure.precision import UNIT, Precision
from unsoftmax.models.composition import Composition
from unsoftmax.probes import Array
from unsoftmax.questions.claimed_function import ClaimedFunction

CLUSTERS, COPIES = 5, 4
TOKENS = 6
"""Of every sequence. Fewer: less of attention is seen; more: they cost the square to name."""
# Copies are nudged by so much of their size. Smaller: a format of 8 bits is smooth across them;
# larger: a wrong claim's own misses scatter.
_NUDGE = 2.0**-6
# The last cluster's tokens are so many times as long as the model's own.
_LONGER = 3.0
# Up to this ratio the same, above the other different. Right services were seen up to 3.5 (16-bit
# numbers throughout, d = 32) with the claim as they hold it, and up to 6 with the claim as given.
SAME, DIFFERENT = 4.0, 16.0
# So many answers show their format.
_WITNESSES = 512


def model_size(maps: Composition | ClaimedFunction, dim: int, tokens: Array) -> float:
    """Return the size of the numbers that tokens have in such a model, from standard ones.

    What the maps add to tokens: behind norms about the size of all answers; where norms are
    before, answers are tokens and what is added, which then counts as much as they do.
    """
    answers = maps.answers(tokens)[:, 0]
    last = tokens[:, -1]
    if answers.shape != last.shape:
        return 1.0
    added = answers - last * (np.sum(answers * last) / np.sum(last * last))
    size = float(np.sqrt(np.mean(added**2)))
    return size if np.isfinite(size) and size > 0 else 1.0


@dataclass(frozen=True, slots=True)
class NudgedCopies:
    """Sequences of five clusters, (20, N, d): the copies of one stand beside each other."""

    X: Array
    size: float

    @classmethod
    def of(
        cls, maps: Composition | ClaimedFunction, dim: int, attends: bool, rng: np.random.Generator
    ) -> NudgedCopies:
        """Draw them, of the size of the claim's own numbers."""
        tokens = TOKENS if attends else 1
        drawn = rng.standard_normal((CLUSTERS, 1, tokens, dim))
        size = model_size(maps, dim, drawn[:, 0])
        drawn *= size * np.append(np.ones(CLUSTERS - 1), _LONGER)[:, None, None, None]
        spread = np.sqrt(np.mean(drawn**2, axis=(1, 2, 3), keepdims=True))
        nudges = rng.standard_normal((CLUSTERS, COPIES, tokens, dim))
        X = drawn + _NUDGE * spread * nudges
        return cls(X.reshape(-1, tokens, dim), size)


@dataclass(frozen=True)
class Misses:
    """What answers miss a claim by, e (20, n), with the variance of their rounding to a step."""

    e: Array
    step: float = 0.0
    size: float = 1.0
    """Of the answers."""

    @cached_property
    def _clusters(self) -> Array:
        return self.e.reshape(-1, COPIES, self.e.shape[1])

    @cached_property
    def scatter(self) -> Array:
        """s² of every cluster, (5,)."""
        around = self._clusters - self._clusters.mean(axis=1, keepdims=True)
        rough = np.sum(around**2, axis=1) / (COPIES - 1)
        # float64's own rounding, where a target computes as the claim does
        return np.asarray(rough.mean(axis=1) + self.step + (UNIT * self.size) ** 2)

    def at_last(self, m: int) -> Misses:
        """Return those of the last position alone, of m numbers."""
        return Misses(self.e[:, -m:], self.step, self.size)

    @cached_property
    def ratio(self) -> float:
        """The median of F."""
        means = np.mean(self._clusters.mean(axis=1) ** 2, axis=1)
        return float(np.median(COPIES * means / self.scatter))


def step_of(answers: Array) -> float:
    """Return the variance of answers' rounding where they are multiples of a step, else 0."""
    some = np.unique(answers.ravel()[:: max(1, answers.size // _WITNESSES)])
    # off by at most `absolute`, a step
    return Precision.of_format([some]).absolute ** 2 / 12
