"""An attack: a head with biases, from coarse answers to tokens of any length.

Without biases longer tokens make rounding and noise negligible (`ApproximateHead`); with them the
query bias w grows along, a·(W b + w), and saturates the softmax. Around the token b₀ at which
W b₀ + w = 0 there is none: with every token moved by b₀ a head with biases is one without,

    f([a + b + b₀; b + b₀]) = b·v + c' + (a·v)·σ(a·(W b + r)),   r = W b₀ + w ≈ 0.

b₀ is as good as W and w are known, offsets a may be as long as 1/‖error of r‖, and that error falls
with the square of their length. So fits (`pair_fit`) of all that was asked, with longer and
longer offsets and shorter and shorter query tokens b, end near roundoff after a few, where answers
are so many and so precise that the first lengths are enough to begin with: otherwise they end
at about ten times the error of `FittedHead`, whose questions tell more.
c is known no better than by its share: nothing makes it larger.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.settings import Configured
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Sequences
from unsoftmax.protocol import Plan, Steps
from unsoftmax.questions.defence.fitted_head import FittedHead, unproved
from unsoftmax.questions.defence.pair_fit import PairAnswers, PairFit, PairFitTuning, PairParameters


@dataclass(frozen=True, slots=True)
class StretchTuning:
    """Knobs of stretching."""

    logit: float = 2.0
    """Typical size of the logits that are asked for."""
    open: float = 0.3
    """Offsets are so long that what is not known of r moves logits by about this."""
    growth: float = 2.0**6
    """Offsets become no more than so many times longer at once."""
    longest: float = 2.0**24
    """And no longer than so many times the first: W b₀ + w cancels in the target's arithmetic."""
    shorter: float = 0.25
    """Where a fit misses answers, the next offsets are so much shorter."""
    missed: float = 1.5
    """A fit misses them where its residuals are so many times those of the first."""
    first: float = 0.4
    """Share of the questions that the first fit gets: the others begin with what it finds."""
    guessed: float = 0.03
    """Share of W that the first fit may be off by."""
    unresolved: float = 5.0
    """Singular values of W below so many times its error are not divided by to find b₀."""
    fit: PairFitTuning = field(default=PairFitTuning())


@dataclass(frozen=True, slots=True)
class StretchedHead(Configured):
    """Learn a single head with biases from coarse answers, by ever longer tokens."""

    dim: int
    radius: float
    """Length of the first tokens."""
    queries: int
    """Questions asked in all."""
    rounds: int = 10
    """Fits, each with its share of the questions."""
    seed: int = 0
    tuning: StretchTuning = field(default=StretchTuning(), kw_only=True)

    revision: ClassVar[int] = 2

    def plan(self) -> Plan:
        """Say beforehand what it costs."""
        opening, more = self._opening.plan(), self._each * (int(self.rounds) - 1)
        queries = self._first + more
        return Plan(
            queries=queries,
            at_most=queries,
            tokens=opening.tokens + 2 * more,
            rounds=opening.rounds + int(self.rounds) - 1,
            formula="as given",
            most_tokens=opening.most_tokens,
        )

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; nothing is certified, and nothing checked."""
        rng, tuning, d = np.random.default_rng([self.seed, 1]), self.tuning, int(self.dim)
        found = yield from self._opening.steps(0)
        length, nothing = self.radius / 2, np.empty((0, d))
        empty = PairAnswers(nothing, nothing, np.empty(0))
        best = Refined(found.model, self._zero(found.model, tuning.guessed), empty)
        for _ in range(1, self.rounds):
            tried = yield from self._refined(best, length, rng)
            if tried.missed > tuning.missed * best.missed:
                length *= tuning.shorter
                continue
            best = tried
            grown = min(tuning.open / best.off, tuning.growth * length)
            length = min(max(grown, self.radius / 2), tuning.longest * self.radius)
        return unproved(best.head)

    @property
    def _opening(self) -> FittedHead:
        return FittedHead(int(self.dim), self.radius, self._first, True, self.seed)

    @property
    def _first(self) -> int:
        return int(self.tuning.first * self.queries)

    @property
    def _each(self) -> int:
        return (int(self.queries) - self._first) // (int(self.rounds) - 1)

    def _zero(self, head: SingleHead, share: float) -> Array:
        """Return b₀, in the directions in which W is known but for a share of its size."""
        rcond = min(max(self.tuning.unresolved * share, 1e-12), 0.5)
        return np.asarray(-np.linalg.lstsq(head.W, head.w, rcond=rcond)[0])

    def _pairs(self, best: Refined, length: float, rng: np.random.Generator) -> Array:
        """Draw pairs around b₀, with logits of a few."""
        tuning, head = self.tuning, best.head
        # a·W b of unit tokens is about ‖W‖/d
        size = max(head.parameter_norm("W"), 1 / self.radius) / head.dim
        short = min(tuning.logit / (length * size), self.radius)
        a, b = (scale * _unit(self._each, head.dim, rng) for scale in (length, short))
        # where W is not known well enough to cancel w, offsets are short
        left = head.W @ best.zero + head.w
        along = left / (float(np.linalg.norm(left)) or 1.0)
        open_at = float(np.linalg.norm(left)) * length / tuning.logit
        a -= (1 - 1 / max(1.0, open_at)) * np.outer(a @ along, along)
        return np.stack([a + b + best.zero, b + best.zero], axis=1)

    def _refined(self, best: Refined, length: float, rng: np.random.Generator) -> Asking[Refined]:
        """Ask around b₀ with offsets of a length, and fit all that was asked so far."""
        pairs = self._pairs(best, length, rng)
        [y] = yield [Sequences(pairs, phase="around W b + w = 0", purpose="data")]
        asked = PairAnswers(
            np.vstack([best.asked.a, pairs[:, 0] - pairs[:, 1]]),
            np.vstack([best.asked.b, pairs[:, 1]]),
            np.append(best.asked.y, y),
        )
        fit = PairFit(PairParameters(int(self.dim), True), self.tuning.fit)
        theta = fit.fitted(moved(fit, best.head, best.zero), asked.around(best.zero))
        W, v, r, c = fit.of.parts(theta)
        head = SingleHead(W, v, r - W @ best.zero, c - float(best.zero @ v))
        W_off, _, _, _ = fit.of.parts(fit.deviations(theta, asked.around(best.zero)))
        zero = self._zero(head, float(np.linalg.norm(W_off)) / (head.parameter_norm("W") or 1.0))
        around = asked.around(zero)
        _, _, off, _ = fit.of.parts(fit.deviations(moved(fit, head, zero), around))
        missed = np.sqrt(fit.misfit(moved(fit, head, zero), around) / len(asked.y))
        return Refined(head, zero, asked, float(missed), float(np.max(off)))


def moved(fit: PairFit, head: SingleHead, zero: Array) -> Array:
    """Return a head's parameters with every token moved by ``zero``."""
    shifted = head.W @ zero + head.w
    return fit.of.joined(head.W, head.v, shifted, head.c + float(zero @ head.v))


@dataclass(frozen=True, slots=True)
class Refined:
    """A head as the last fit gave it."""

    head: SingleHead
    zero: Array
    """b₀."""
    asked: PairAnswers
    """All pairs that it was fitted to."""
    missed: float = np.inf
    """Root mean square of the residuals."""
    off: float = np.inf
    """How far an entry of W b₀ + w may be off."""


def _unit(count: int, dim: int, rng: np.random.Generator) -> Array:
    x = rng.standard_normal((count, dim))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))
