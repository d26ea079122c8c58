"""Read t_k = a_k·(W b_k) for Gaussian pairs (a_k, b_k), one answer each (Theorem 5.1).

By the two-token identity each answer gives one logit αβ t_k. All pairs share the scale 2^k = αβ:
E t² = ‖W‖²_F whatever the pair. It is found on the way, with queries that count as data:

1. the first few are pilots, asked again at another scale when their logits are out of range;
2. the rest, at the scale that puts the pilots' RMS at ¼;
3. again, what is still out of range.

To lower a logit the query token is scaled down, to raise it the offset is scaled up: an answer
is off by about u·‖a+b‖ and by its rounding, so ‖b‖ ≤ ‖a‖ and a large a are best.

*Queries*: one per pair; asked again `spare_of` at most. v must be known.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.precision import why
from unsoftmax.measure.scales import Exponents
from unsoftmax.measure.single_tokens import Values
from unsoftmax.measure.two_tokens import Gates, TwoTokenAnswers, Vectors
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Indices, Pairs, Purpose
from unsoftmax.solve.rank_one_measurements import Measurements

# Facts of float32, whose numbers have 24 bits: Gaussians are below 8, and on a grid of 2⁻¹⁰
# a + b is exact with b up to 2¹⁰ times smaller.
_GRID = 2.0**-10
_APART = 10


# So many measurements set the scale. A product of Gaussians is anywhere: fewer may all be small,
# or large, by chance.
PILOTS = 8
# Root mean square of the logits. At rank 1 they are products of two Gaussians: the largest is 12
# times that.
WANTED = 0.25
# Octaves that the pilots' scale may be off before they are asked again.
MOST_OFF = 4
# A logit beyond this has lost four digits and is asked again.
LARGEST = 8.0
# Octaves by which pilots are lowered when none can be read, once for each entry; the pilots are
# asked again as often at most.
SATURATED = (20, 24, 24)
# Octaves by which single answers that cannot be read are lowered.
LOWERED = 6
# Rounds in which answers out of range are asked again.
PASSES = 3
# Of all answers one in so many may be asked again, but as many as there are pilots.
SPARE_SHARE = 4
# Scales are within 2^±100: tokens and answers must stay in float32's range, 2^±126.
MOST_OCTAVES = 100
# A logit is read where p is this many times its error away from 0 and 1; an answer further than
# that outside of [0, 1] is no head's.
TRUSTED = 3.0
# Where p is known no better than this no scale helps: the offset is nearly orthogonal to v. Such
# answers are not asked again.
HOPELESS = 0.25
# Rounds at most.
ROUNDS = 2 + len(SATURATED) + PASSES


def spare_of(count: int) -> int:
    """Return how many of ``count`` may be asked again: pilots, and a quarter of all."""
    return len(SATURATED) * min(PILOTS, count) + max(PILOTS, count // SPARE_SHARE)


def _split(k: Exponents) -> tuple[Array, Array]:
    """Split s = 2^k: offsets scaled up, query tokens down, and both where that is too far apart."""
    size = np.abs(k)
    apart = np.where(size > _APART, _APART - (size - _APART) % 2, size)
    both = np.sign(k) * (size - apart) // 2
    return np.exp2(both + np.where(k > 0, apart, 0)), np.exp2(both - np.where(k < 0, apart, 0))


@dataclass(slots=True)
class GaussianReadings:
    """The answers to all pairs (a_k, b_k), with the scales they were asked at; NaN before."""

    a: Array
    b: Array
    values: Values
    y: Array = field(init=False)
    alpha: Array = field(init=False)
    beta: Array = field(init=False)

    @classmethod
    def draw(cls, count: int, values: Values, rng: np.random.Generator) -> GaussianReadings:
        """Draw the pairs; a vector of zeros, as one dimension may draw, would measure nothing."""
        drawn = np.zeros((2, count, len(values.v)))
        while not np.all(some := np.any(drawn, axis=2)):
            fresh = rng.standard_normal((np.count_nonzero(~some), len(values.v)))
            drawn[~some] = np.round(fresh / _GRID) * _GRID
        return cls(drawn[0], drawn[1], values)

    def __post_init__(self) -> None:
        self.y, self.alpha, self.beta = np.full((3, len(self.a)), np.nan)

    # -- asking

    def ask(self) -> Asking[None]:
        """Ask every pair once, and some again at another scale."""
        spare = spare_of(len(self.a))
        pilots = np.arange(min(PILOTS, len(self.a)))
        k, again = yield from self._piloted(pilots)
        spare -= again
        rest = np.arange(len(pilots), len(self.a))
        if len(rest):
            yield from self._put(rest, np.full(len(rest), k), "data")
        for _ in range(PASSES):
            which, scales = self._out_of_range()
            which, scales = which[:spare], scales[:spare]
            if not len(which):
                break
            yield from self._put(which, scales, "again")
            spare -= len(which)
        self._refuse_unreadable()

    def _piloted(self, pilots: Indices) -> Asking[tuple[int, int]]:
        """Find the scale with the pilots; return it with how many queries were asked again."""
        # a guess at ‖W‖_F = √d, as for trained heads
        k, again = int(np.round(np.log2(WANTED / np.sqrt(self.a.shape[1])))), 0
        yield from self._put(pilots, np.full(len(pilots), k), "pilot")
        for lowered in SATURATED:
            better = self._better(pilots, k, lowered)
            # asked near enough to the scale wanted, and all of them can be read
            near = abs(better - k) <= MOST_OFF
            settled = near and bool(np.all(np.isfinite(self._logits(pilots))))
            k, before = better, k
            if settled or better == before:
                return k, again
            yield from self._put(pilots, np.full(len(pilots), k), "again")
            again += len(pilots)
        return self._better(pilots, k, 0), again

    def _better(self, pilots: Indices, k: int, lowered: int) -> int:
        """Suggest a scale from the pilots asked at 2^k; ``lowered`` where none can be read."""
        logits = self._logits(pilots)
        usable = np.isfinite(logits)
        if not np.any(usable):
            return max(k - lowered, -MOST_OCTAVES)
        rms = float(np.sqrt(np.mean(logits[usable] ** 2)))
        # where W = 0 as far as the answers tell, an RMS of their error is assumed beside it
        unsure = float(np.median(self.gates().logit_error[pilots][usable]))
        octaves = int(np.round(np.log2(WANTED / (rms + unsure))))
        step = octaves if np.all(usable) else min(octaves, -LOWERED)
        return int(np.clip(k + step, -MOST_OCTAVES, MOST_OCTAVES))

    def _put(self, which: Indices, k: Exponents, purpose: Purpose) -> Asking[None]:
        """Ask some pairs at scale 2^k."""
        alpha, beta = _split(k)
        self.alpha[which], self.beta[which] = alpha, beta
        name = "W, again" if purpose == "again" else "W"
        [y] = yield [Pairs(self.a, self.b, which, which, alpha, beta, phase=name, purpose=purpose)]
        self.y[which] = y
        if self.values.reread is not None:
            self.values = self.values.told_by(self.answered().telling)

    def _out_of_range(self) -> tuple[Indices, Exponents]:
        """Find answers whose logit is too large, the worst first, and better scales."""
        gates = self.gates()
        hopeful = gates.p_error < HOPELESS
        size = np.where(gates.margin > TRUSTED * gates.p_error, np.abs(gates.logit), np.inf)
        which = np.flatnonzero(hopeful & (size > LARGEST))
        which = which[np.argsort(-size[which], kind="stable")]
        k = np.log2(self.alpha[which] * self.beta[which])
        with np.errstate(divide="ignore"):
            at_one = np.round(-np.log2(size[which]))
        k += np.where(np.isfinite(size[which]), at_one, -LOWERED)
        return which, np.maximum(k, -MOST_OCTAVES).astype(np.int64)

    # -- what the answers say

    def answered(self, values: Values | None = None) -> TwoTokenAnswers:
        """Return all answers as they were asked; ``values`` may assume another precision."""
        values = values or self.values
        a, b = Vectors.of(self.a, values), Vectors.of(self.b, values)
        return TwoTokenAnswers(self.y, a, b, self.alpha, self.beta, values)

    def gates(self) -> Gates:
        """Read every answer through the two-token identity."""
        return self.answered().gates()

    def measurements(
        self, values: Values | None = None, W: SingleHead | None = None
    ) -> Measurements:
        """Return all that can be read, with bounds on their errors.

        ``values`` holds the precision that is assumed; ``W`` is the head whose scores were
        rounded, estimated by their size while there is none.
        """
        answered = self.answered(values)
        known = np.isfinite(answered.gates().logit_error)
        if W is None:  # for Gaussian b the norm ‖W b‖ is about ‖W‖_F, and that is the RMS of t
            norm = np.sqrt(np.mean(answered.measured()[known] ** 2))
        else:
            norm = np.linalg.norm(W.scores_of(self.b), axis=1)
        read = answered.reading(self.beta * norm, 0.0)
        return Measurements(self.a[known], self.b[known], read.value[known], read.error[known])

    def drawn_errors(self, values: Values, W: SingleHead, count: int) -> Array:
        """Draw errors of all that can be read, (count, m), as large as they are as a rule."""
        answered, rng = self.answered(values), np.random.default_rng(0)
        known = np.isfinite(answered.gates().logit_error)
        norm = self.beta * np.linalg.norm(W.scores_of(self.b), axis=1)
        read, drawn = answered.measured()[known], []
        for _ in range(count):
            y, other = answered.moved(rng, norm), values.moved(rng)
            drawn.append(replace(self.answered(other), y=y).measured()[known] - read)
        return np.array(drawn)

    def _logits(self, which: Indices) -> Array:
        """Return logits, NaN where an answer is out of reach."""
        gates = self.gates()
        known = gates.margin > TRUSTED * gates.p_error
        return np.asarray(np.where(known, gates.logit, np.nan)[which])

    def _refuse_unreadable(self) -> None:
        """Refuse answers outside of what any weights can give."""
        gates, values = self.gates(), self.values
        outside = np.maximum(-gates.p, gates.p - 1) > TRUSTED * gates.p_error
        if np.any(outside):
            raise ModelMismatch(
                f"{np.count_nonzero(outside)} of {outside.size} answers to two tokens lie outside "
                "of what any attention weights between them can give: the target is not a single "
                "attention head."
            )
        readable = np.count_nonzero(np.isfinite(gates.logit_error))
        if readable < len(self.a) / 2:
            raise NotIdentifiable(
                f"{len(self.a) - readable} of {len(self.a)} logits are out of the answers' reach: "
                "the answers are too coarse, or attention is hard. v is determined, W is not."
                + why(values.precision),
                determined={"v": values.v, "c": values.c},
            )
