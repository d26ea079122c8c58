"""What confirms several heads: fresh sequences, and how far a right model may miss them.

Three to six tokens, some of them twice, at three sizes each: rms logits of about 2 for the
weakest, the median and the strongest head. Two single tokens could not tell (W, v) from
(−W, −v) beside a linear part, and one size not a wrong strong head from a right one. The hold-out
asks the long sequences of `unsoftmax.validate.long_sequences` as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.recovered_heads import RecoveredHeads
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.measure.precision import KAPPA
from unsoftmax.models import MultiHead
from unsoftmax.models.attention import mean_shift, score_rounding
from unsoftmax.probes import Array, Purpose, Sequences
from unsoftmax.validate.head_comparison import sum_rounding
from unsoftmax.validate.judge import Residuals, fresh_answers
from unsoftmax.validate.long_sequences import LongSequenceTuning, draw_long, looked_at
from unsoftmax.validate.sequences import by_length


@dataclass(frozen=True, slots=True)
class FreshTuning:
    """What is asked, and how much a right model may miss it by."""

    lengths: tuple[int, ...] = (3, 4, 5, 6)
    """Tokens of the sequences, in turn."""
    logit: float = 2.0
    """Rms logits that one head has on average: its softmax neither flat nor a step."""
    sizes: tuple[float, ...] = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)
    """Sizes where no head has logits: what seems to have none at one size has some at another."""
    moved: int = 3
    """Times that the model is moved at random by its errors, to see what those do to answers."""
    times: float = 100.0
    """Right models miss answers by up to 40 times what the answers' precision and random errors of
    the estimated size do (1,000 targets of low rank, spread sizes, few dimensions). So much is
    allowed."""
    nothing: float = 4.0
    """The same for a model without heads: it has no errors that precision leads to, and precision
    itself was estimated from few answers."""
    most: float = 1e-6
    """What errors of the parameters may be allowed at such logits, as a share of the answers: with
    more a wrong model passes for an imprecise one."""
    most_coarse: float = 1e5
    """The same in units of the answers' own precision; the larger of the two counts."""
    blunt: float = 1e-2
    """Largest share that is allowed in all: answers so coarse that they need more confirm
    nothing."""
    alike: bool = False
    """Whether all tokens but the last are the same: a target with positions can be asked these as
    one without (`multi_head.distances.one_apart`)."""
    long: LongSequenceTuning = field(default=LongSequenceTuning())
    """The long sequences of the hold-out."""

    def steeper(self, tokens: int) -> float:
        """Say how many times larger than ``logit`` logits of so many tokens are wanted at most."""
        wanted = [shape.logits for shape in self.long.shapes] if tokens not in self.lengths else []
        return max([self.logit, *wanted]) / self.logit


@dataclass(frozen=True, slots=True)
class FreshResiduals:
    """How far a model misses fresh answers, and may, in shares of their natural size (n,)."""

    residuals: Residuals
    """A model within what these allow is confirmed."""
    explained: Array
    """What its errors explain (n,); it may be more than tells a right model from a wrong one."""
    looked: str = ""
    """Up to which length and size of logits was looked."""

    @property
    def missed(self) -> Array:
        """How far the model misses them."""
        return np.abs(self.residuals.relative)

    @property
    def precise(self) -> Array:
        """How far a right model may whose heads are known precisely."""
        return np.asarray(self.residuals.own / self.residuals.size)

    @property
    def allowed(self) -> Array:
        """How far a right model may."""
        return self.residuals.tolerance


def fresh_residuals(
    found: RecoveredHeads,
    reduced: ReducedAnswers,
    count: int,
    rng: np.random.Generator,
    purpose: Purpose,
    *,
    tuning: FreshTuning,
) -> Asking[FreshResiduals]:
    """Ask fresh sequences; return how far the heads miss them, and may."""
    if not count:
        return FreshResiduals(Residuals.joined([]), np.zeros(0))
    drawn = FreshSequences(found, reduced, rng, tuning)
    long = drawn.long(count) if purpose == "check" else []
    short = drawn.short(count - sum(map(len, long)), purpose)
    answered = yield from fresh_answers(short, further=tuning.long.rounds(long))
    model = found.model
    missed = np.concatenate([y - model(X) for X, y in answered])
    longest = np.concatenate([np.linalg.norm(X, axis=2).max(axis=1) for X, _ in answered])
    values = max(float(np.linalg.norm(model.v)), reduced.scale)
    size = longest * values / np.sqrt(model.dim) + abs(reduced.c)
    size = np.where(size > 0, size, 1.0)
    own = (tuning.times if model.H else tuning.nothing) * reduced.precision.error(size)
    own = own + np.concatenate([_rounding(model, X, reduced.precision.unit) for X, _ in answered])
    moved = tuning.times * _moved(found, [X for X, _ in answered], rng, tuning)
    most = max(tuning.most, tuning.most_coarse * reduced.eta)
    steeper = [tuning.steeper(X.shape[1]) * np.ones(len(X)) for X, _ in answered]
    allowed = np.minimum(moved, most * np.concatenate(steeper) * size)
    residuals = Residuals.of(missed, own=own, allowed=allowed, size=size, most=tuning.blunt)
    return FreshResiduals(residuals, (own + moved) / size, looked_at(model, answered, long))


@dataclass(frozen=True, slots=True)
class FreshSequences:
    """Fresh sequences of some heads, the last token of about the norm of those asked.

    Under a cap tokens that were too long are shortened together.
    """

    found: RecoveredHeads
    reduced: ReducedAnswers
    rng: np.random.Generator
    tuning: FreshTuning

    def short(self, count: int, purpose: Purpose) -> list[Sequences]:
        """Draw sequences of three to six tokens, one family per length."""
        d, rng, tuning = self.found.model.dim, self.rng, self.tuning
        sequences: list[Array] = []
        for n in range(count):
            size = tuning.lengths[n % len(tuning.lengths)]
            query = rng.standard_normal(d) / np.sqrt(d)
            offsets = rng.standard_normal((size - 1, d)) / np.sqrt(d)
            if tuning.alike:
                offsets[:] = offsets[0]
            elif n % 2:
                offsets[1] = offsets[0]
            sequences.append(self._scaled(offsets, query, tuning.logit, n))
        return by_length(sequences, "hold-out" if purpose == "check" else "check", purpose)

    def long(self, count: int) -> list[Sequences]:
        """Draw the long ones of a hold-out of ``count`` queries, at logits of the strongest."""

        def scaled(offsets: Array, query: Array, logits: float) -> Array:
            return self._scaled(offsets, query, logits, n=2)

        drawn = draw_long(self.found.model, count, self.rng, scaled, self.tuning.long)
        return by_length([self._shortened(X) for X in drawn], "hold-out, long")

    def _scaled(self, offsets: Array, query: Array, logit: float, n: int) -> Array:
        b = self.found.length * query
        stretch = _stretch(self.found.model, b, n % 3, logit)
        X = np.concatenate([stretch * offsets + b, b[None]])
        if not stretch:  # no logits
            small = self.tuning.sizes[n % len(self.tuning.sizes)]
            X = small * np.concatenate([offsets + b, b[None]])
        return self._shortened(X)

    def _shortened(self, X: Array) -> Array:
        longest = float(np.max(np.linalg.norm(X, axis=1)))
        return np.asarray(self.reduced.lengths.single(longest) / longest * X)


def _rounding(model: MultiHead, X: Array, unit: float) -> Array:
    """Bound what scores and sums of many tokens round, (n,)."""
    weights, values = model.attention(X), model.v @ X.transpose(0, 2, 1)
    deviations = np.abs(values - np.sum(weights * values, axis=2, keepdims=True))
    moved = score_rounding(X, model.scores_of(X[:, -1]), KAPPA * unit)
    each = mean_shift(weights, deviations, moved) + sum_rounding(weights, values, unit)
    return np.asarray(each.sum(axis=1))


def _stretch(model: MultiHead, b: Array, which: int, logit: float) -> float:
    """Return what makes logits of the weakest, median or strongest head those wanted on average.

    0 where no head has any.
    """
    rms = np.linalg.norm(model.scores_of(b[None])[0], axis=1) / np.sqrt(model.dim)
    rms = np.sort(rms[rms > 0])
    if not len(rms):
        return 0.0
    return float(logit / rms[(0, len(rms) // 2, -1)[which]])


def _moved(
    found: RecoveredHeads, sequences: list[Array], rng: np.random.Generator, tuning: FreshTuning
) -> Array:
    """Return what errors of the parameters do to answers, each head moved by its own at random."""
    model, moved = found.model, np.zeros(sum(map(len, sequences)))
    for _ in range(tuning.moved):
        W, v, w = (
            array + (found.errors[name] * _unit(array, rng).T).T
            for name, array in (("W", model.W), ("v", model.v), ("w", model.w))
        )
        other = MultiHead(W, v, w, model.c)
        difference = np.concatenate([other(X) - model(X) for X in sequences])
        moved = np.maximum(moved, np.abs(difference))
    return moved


def _unit(like: Array, rng: np.random.Generator) -> Array:
    """Draw an array whose every head has norm 1."""
    x = rng.standard_normal(like.shape)
    flat = np.linalg.norm(x.reshape(len(x), -1), axis=1) if len(x) else np.zeros(0)
    return np.asarray(x / flat.reshape(-1, *[1] * (x.ndim - 1)))
