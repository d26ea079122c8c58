"""An attack: a head with biases, from coarse answers to tokens of any length.

Without biases longer tokens make rounding and noise negligible (`ApproximateHead`); with them the
query bias w grows along, a·(W b + w), and saturates the softmax. Around the token b₀ at which
W b₀ + w = 0 there is none: with every token moved by b₀ a head with biases is one without,

    f([a + b + b₀; b + b₀]) = b·v + c' + (a·v)·σ(a·(W b + r)),   r = W b₀ + w ≈ 0.

b₀ is as good as W and w are known, offsets a may be as long as 1/‖error of r‖, and that error falls
with the square of their length. So fits (`fitted_head.HeadFit`) of all that was asked, with longer
and longer offsets and shorter and shorter query tokens b, end near roundoff after a few, where
answers are so many and so precise that the first lengths are enough to begin with: otherwise they
end at about ten times the error of `FittedHead`, whose questions tell more.
c is known no better than by its share: nothing makes it larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.settings import Configured
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Sequences
from unsoftmax.protocol import Plan, Steps
from unsoftmax.questions.defence.fitted_head import FittedHead, HeadFit, unproved


@dataclass(frozen=True, slots=True)
class Refined:
    """A head as the last fit gave it."""

    head: SingleHead
    zero: Array
    """b₀."""
    X: Array
    y: Array
    """All pairs that it was fitted to, and their answers."""
    missed: float = np.inf
    """Root mean square of the residuals."""
    off: float = np.inf
    """How far an entry of W b₀ + w may be off."""


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

    revision: ClassVar[int] = 2

    def plan(self) -> Plan:
        """Say beforehand what it costs."""
        opening, more = self._opening.plan(), self._each * (int(self.rounds) - 1)
        queries = self._opening.queries + more
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
        rng, d = np.random.default_rng([self.seed, 1]), int(self.dim)
        found = yield from self._opening.steps(0)
        # it may be off by about 3 % of W
        zero = _zero(found.model, 0.03)
        best = Refined(found.model, zero, np.empty((0, 2, d)), np.empty(0))
        length = self.radius / 2
        for _ in range(1, self.rounds):
            tried = yield from self._refined(best, length, rng)
            if tried.missed > 1.5 * best.missed:
                length /= 4
                continue
            best = tried
            # so long that what is not known of r moves logits by about 0.3; not 64 times longer at
            # once; and from 2²⁴ on W b₀ + w no longer cancels in the target's arithmetic
            grown = min(0.3 / best.off, 2.0**6 * length)
            length = min(max(grown, self.radius / 2), 2.0**24 * self.radius)
        return unproved(best.head)

    @property
    def _opening(self) -> FittedHead:
        """The first fit, with two in five questions: the others begin with what it finds."""
        return FittedHead(int(self.dim), self.radius, int(0.4 * self.queries), True, self.seed)

    @property
    def _each(self) -> int:
        return (int(self.queries) - self._opening.queries) // (int(self.rounds) - 1)

    def _pairs(self, best: Refined, length: float, rng: np.random.Generator) -> Array:
        """Draw pairs around b₀, with logits of about 2."""
        head = best.head
        # a·W b of unit tokens is about ‖W‖/d
        size = max(head.parameter_norm("W"), 1 / self.radius) / head.dim
        short = min(2 / (length * size), self.radius)
        a, b = (scale * _unit(self._each, head.dim, rng) for scale in (length, short))
        # where W is not known well enough to cancel w, offsets are short
        left = head.W @ best.zero + head.w
        along = left / (float(np.linalg.norm(left)) or 1.0)
        open_at = float(np.linalg.norm(left)) * length / 2
        a -= (1 - 1 / max(1.0, open_at)) * np.outer(a @ along, along)
        return np.stack([a + b + best.zero, b + best.zero], axis=1)

    def _refined(self, best: Refined, length: float, rng: np.random.Generator) -> Asking[Refined]:
        """Ask around b₀ with offsets of a length, and fit all that was asked so far."""
        pairs = self._pairs(best, length, rng)
        [more] = yield [Sequences(pairs, phase="around W b + w = 0", purpose="data")]
        X, y, zero = np.concatenate([best.X, pairs]), np.append(best.y, more), best.zero
        fit = HeadFit(int(self.dim), True)
        theta = fit.fitted(fit.parameters(_moved(best.head, zero)), X - zero, y)
        head = _moved(fit.head(theta), -zero)
        W_off = float(np.linalg.norm(fit.head(fit.deviations(theta, X - zero, y)).W))
        zero = _zero(head, W_off / (head.parameter_norm("W") or 1.0))
        theta = fit.parameters(_moved(head, zero))
        off = fit.head(fit.deviations(theta, X - zero, y)).w
        missed = np.sqrt(fit.misfit(theta, X - zero, y) / len(y))
        return Refined(head, zero, X, y, float(missed), float(np.max(off)))


def _zero(head: SingleHead, share: float) -> Array:
    """Return b₀, in the directions in which W is known but for a share of its size.

    Singular values below five times their error are not divided by.
    """
    rcond = min(max(5 * share, 1e-12), 0.5)
    return np.asarray(-np.linalg.lstsq(head.W, head.w, rcond=rcond)[0])


def _moved(head: SingleHead, zero: Array) -> SingleHead:
    """Return the head that answers tokens as this one does those moved by ``zero``."""
    return SingleHead(head.W, head.v, head.W @ zero + head.w, head.c + float(zero @ head.v))


def _unit(count: int, dim: int, rng: np.random.Generator) -> Array:
    x = rng.standard_normal((count, dim))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))
