"""How the recovery of several heads ends: fresh sequences, and a certificate or a refusal.

Heads are compared with fresh answers beside others that are moved by as much as their errors may
be: what that moves predictions by, a right model may miss answers by.

Three to six tokens, some of them twice, at three sizes each: rms logits of about 2 for the
weakest, the median and the strongest head. Two single tokens could not tell (W, v) from
(−W, −v) beside a linear part, and one size not a wrong strong head from a right one. The hold-out
asks the long sequences of `unsoftmax.validate.long_sequences` as well, and of heads with positions
those of `unsoftmax.validate.sequences.at_distances` alone.

The certificate bounds the parameters, or, where no heads explain all answers and only the
function is wanted, the function: question (ii) of section 7.1 of arXiv 2601.16873, answered as
`unsoftmax.validate.function_bound` has it, on the distribution of the pilots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from unsoftmax.errors import UnsoftmaxError
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.single_head.distances import undetermined
from unsoftmax.measure.precision import KAPPA
from unsoftmax.models import MultiHead, RotaryHeads, canonical
from unsoftmax.probes import Array, Flags, Purpose, Round
from unsoftmax.protocol import Certificate, Evidence, Found, Steps
from unsoftmax.refusals import Reason
from unsoftmax.validate import head_comparison, long_sequences
from unsoftmax.validate.close_heads import bounds_of_close, nearest
from unsoftmax.validate.drawn_models import SAFETY
from unsoftmax.validate.judge import Judgement, Residuals, fresh_answers, judge
from unsoftmax.validate.sequences import at_distances, by_length

# Tokens of the short sequences, in turn.
LENGTHS = (3, 4, 5, 6)
# Rms logits that one head has on average: its softmax neither flat nor a step.
LOGIT = 2.0
# Sizes where no head has logits: what seems to have none at one size has some at another.
SIZES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)
# The logits of other sequences than short ones are so many times larger, at most.
STEEPER = max([LOGIT, *(shape.logits for shape in long_sequences.SHAPES)]) / LOGIT
# Times that the model is moved at random by its errors, to see what those do to answers.
MOVED = 3
# Right models miss answers by up to 40 times what the answers' precision and random errors of the
# estimated size do (1,000 targets of low rank, spread sizes, few dimensions). So much is allowed.
TIMES = 100.0
# The same for a model without heads: it has no errors that precision leads to, and precision itself
# was estimated from few answers.
NOTHING = 4.0
# What errors of the parameters may be allowed at such logits, as a share of the answers: with more
# a wrong model passes for an imprecise one.
MOST = 1e-6
# The same in units of the answers' own precision; the larger of the two counts.
MOST_COARSE = 1e5
# Largest share that is allowed in all: answers so coarse that they need more confirm nothing.
BLUNT = 1e-2
# Sequences from which a bound on the function is taken: the largest residual of n is beyond those
# of all but a share ln(1/δ)/n of such sequences. A multiple of all that is varied in turn; drawn in
# turn instead of at random, the share is smaller, if anything.
PILOTS = 96
# δ: the bound is right with confidence 1 − δ.
DELTA = 0.01
# How the bounds on W(Δ) leave a sequence open.
# A largest residual above this share of the answers is refused: such a target is no attention.
WORST = 1e-3


@dataclass(frozen=True, slots=True)
class RecoveredHeads:
    """A recovered model, not in canonical form, and what the errors of each head may be."""

    model: MultiHead
    errors: dict[str, Array]
    length: float
    """Norm of the query tokens that were asked."""
    low_rank: bool = False
    notes: tuple[str, ...] = ()
    times_off: float = 1.0
    """How many times ``errors`` the values miss Σ v_h by, at least 1. The certificate counts it;
    the judgement does not: a model that lacks a head misses Σ v_h as well."""

    def vague(self, most: float) -> bool:
        """Tell whether the error of some head is more than ``most`` of it.

        Such a head is made of what others miss, or its values are too small for these answers.
        """
        size = np.linalg.norm(self.model.W, axis=(1, 2))
        size = size + np.linalg.norm(self.model.w, axis=1) / self.length
        return bool(np.any((self.errors["W"][: len(size)] > most * size) & (size > 0)))

    def above(self, rank: int | None, errors: float) -> bool:
        """Tell whether some [W_h w_h] has a rank above the one that was given.

        Singular values above so many ``errors`` count to it.
        """
        if rank is None:
            return False
        both = np.concatenate([self.model.W, self.model.w[:, :, None] / self.length], axis=2)
        sizes = np.linalg.svd(both, compute_uv=False)
        error = (self.errors["W"] + self.errors["w"] / self.length)[: len(sizes), None]
        return bool(np.any(sizes[:, rank:] > errors * error))

    @property
    def largest(self) -> dict[str, float]:
        """The largest error of each parameter over heads."""
        return {name: float(np.max(error, initial=0.0)) for name, error in self.errors.items()}

    def with_note(self, note: str) -> RecoveredHeads:
        """Add a sentence to the notes."""
        return replace(self, notes=(*self.notes, note))

    # -- how it ends

    kind = ""
    """What the target is taken for, beside attention heads."""

    def telling(self, X: Array) -> Flags:
        """Tell which sequences count: all do."""
        return np.ones(len(X), dtype=bool)

    def drawn(self, rng: np.random.Generator) -> Iterable[MultiHead]:
        """Draw models each of whose heads is moved by its own errors."""
        model = self.model
        for _ in range(MOVED):
            W, v, w = (
                array + (self.errors[name] * _unit(array, rng).T).T
                for name, array in (("W", model.W), ("v", model.v), ("w", model.w))
            )
            yield MultiHead(W, v, w, model.c)

    def sequences(
        self,
        count: int,
        reduced: ReducedAnswers,
        rng: np.random.Generator,
        purpose: Purpose,
        alike: bool,
    ) -> tuple[Sequence[Any], list[Round]]:
        """Draw fresh sequences, the last token of about the norm of those asked.

        Under a cap tokens that were too long are shortened together. ``alike``: all tokens but the
        last are the same, so that a target with positions can be asked these as one without.
        """
        model, d = self.model, self.model.dim

        def shortened(X: Array) -> Array:
            longest = float(np.max(np.linalg.norm(X, axis=1)))
            return np.asarray(reduced.lengths.single(longest) / longest * X)

        def scaled(offsets: Array, query: Array, logit: float, n: int = 2) -> Array:
            """Stretch offsets for the weakest, the median or the strongest head."""
            b = self.length * query
            rms = np.linalg.norm(model.scores_of(b[None])[0], axis=1) / np.sqrt(d)
            rms = np.sort(rms[rms > 0])
            if not len(rms):  # no logits
                return shortened(SIZES[n % len(SIZES)] * np.vstack([offsets + b, b]))
            stretch = float(logit / rms[(0, len(rms) // 2, -1)[n % 3]])
            return shortened(np.vstack([stretch * offsets + b, b]))

        rounds: list[Round] = []
        if purpose == "check":
            long = [shortened(X) for X in long_sequences.draw_long(model, count, rng, scaled)]
            rounds = long_sequences.in_rounds(by_length(long, "hold-out, long"))
            count -= len(long)

        def ordinary(n: int) -> Array:
            query = rng.standard_normal(d) / np.sqrt(d)
            offsets = rng.standard_normal((LENGTHS[n % len(LENGTHS)] - 1, d)) / np.sqrt(d)
            if alike:
                offsets[:] = offsets[0]
            elif n % 2:
                offsets[1] = offsets[0]
            return scaled(offsets, query, LOGIT, n)

        def tells(X: Array) -> bool:
            off = head_comparison.score_shift(
                X[None], self.errors["W"][None], self.errors["w"][None]
            )
            return bool(off.max(initial=0.0) <= most)

        most = _most_missed(reduced)
        longest = reduced.lengths.single(long_sequences.LONGEST)
        tokens = long_sequences.LongTokens(model, tells, longest)
        if purpose == "check":
            short = tokens.among(count, rng, ordinary)
        else:
            short = [ordinary(n) for n in range(count)]
        return by_length(short, "hold-out" if purpose == "check" else "check", purpose), rounds

    def refusal(self, judgement: Judgement, explained: bool) -> UnsoftmaxError:
        """Say why fresh answers contradict the heads."""
        missed, allowed = judgement.worst
        return Reason.FRESH_ANSWERS_MISSED.error(
            model=f"sum of {self.model.H} heads",
            missed=missed,
            allowed=allowed,
            contrary="no sum of attention heads, or has heads too close for these answers",
        )

    def bounded(self, c_error: float) -> tuple[MultiHead, Certificate, tuple[str, ...]]:
        """Return the model, bounds with what they are, and what is to be noted."""
        errors = {
            name: SAFETY * self.times_off * error
            for name, error in {**self.largest, "c": c_error}.items()
        }
        errors, close = bounds_of_close(errors, heads_apart(self.model))
        how = (
            f"Bounds are {SAFETY:.0f} times the first-order effect of that precision, with "
            "independent errors of answers; each is the largest over heads.",
            "Answers do not drift from query to query: only Σ v_h was read twice.",
        )
        return canonical(self.model), Certificate(errors, (*how, *close)), self.notes


@dataclass(frozen=True, slots=True)
class PositionedHeads:
    """Heads with positions as they were recovered, with what bounds their errors."""

    model: RotaryHeads
    errors: tuple[head_comparison.PositionErrors, ...]
    """Bounds on the errors of W_h(Δ), one for each head."""
    others: tuple[RotaryHeads, ...]
    """What readings give that are moved by as much as they may be off."""
    v_error: float
    """Bound on the error of every v_h."""
    reduced: ReducedAnswers
    farthest: int
    """The certificate's bound is for distances up to this."""
    notes: tuple[str, ...] = ()

    @property
    def biases(self) -> bool:
        """Whether biases of keys and queries were looked for."""
        return any(errors.biases for errors in self.errors)

    @property
    def W_error(self) -> float:
        """Bound on the error of all W_h(Δ) at distances up to ``farthest``."""
        ends = np.array([0.0, self.farthest])
        return max((float(one.at(ends).max()) for one in self.errors), default=0.0)

    def telling(self, X: Array) -> Flags:
        """Tell at which sequences the bounds on W(Δ) leave scores nearly as they are."""
        met = np.full(len(X), min(1.0, head_comparison.ALIGNMENT / X.shape[2]))
        tells, unit = np.ones(len(X), dtype=bool), self.reduced.precision.unit
        for head, errors in zip(self.model.heads, self.errors, strict=True):
            moved = head_comparison.HeadAt.of(head, X).score_moves_at(unit, errors, met)
            tells &= moved.max(axis=1) <= head_comparison.MOST_MOVED
        return tells

    @property
    def kind(self) -> str:
        """What the target is taken for, beside attention heads."""
        without = "" if self.biases else ", without biases of keys and queries"
        return f" with rotary positions{without}"

    def drawn(self, rng: np.random.Generator) -> Iterable[RotaryHeads]:
        """Return models that are moved by as much as errors may be."""
        for other in self.others:
            v = other.v + self.v_error / SAFETY * _unit(other.v, rng)
            yield RotaryHeads.from_arrays({**other.arrays(), "v": v})

    def sequences(
        self,
        count: int,
        reduced: ReducedAnswers,
        rng: np.random.Generator,
        purpose: Purpose,
        alike: bool,
    ) -> tuple[Sequence[Any], list[Round]]:
        """Draw fresh sequences of 1 to 512 tokens."""

        def tells(X: Array) -> bool:
            X = X[None]
            answer = self.model(X)
            away = TIMES * np.abs([other(X) - answer for other in self.others])
            most = STEEPER * _most_missed(reduced) * _size(self.model, reduced, X)
            return bool(self.telling(X)[0] and np.all(away <= most))

        return at_distances(self.model, count, rng, tells)

    def refusal(self, judgement: Judgement, explained: bool) -> UnsoftmaxError:
        """Say why fresh answers contradict the heads, or confirm nothing."""
        why = "".join(f" {sentence}" for sentence in self.reduced.precision.why)
        if self.biases:
            why = f" Biases that nearly saturate a head leave few digits of it.{why}"
        if explained or not np.isfinite(self.W_error):
            return Reason.TURNING_UNKNOWN.error(
                {"v": self.model.v},
                also=f"{why} Positions need float64 answers: ask for these if the target has them.",
                does="changes every fresh answer too much for a test",
            )
        missed, allowed = judgement.worst
        return Reason.FRESH_ANSWERS_MISSED.error(
            model=f"sum of {self.model.H} heads",
            missed=missed,
            allowed=allowed,
            contrary="no sum of attention heads with rotary positions; or these change beyond "
            "some distance, as with windows or scaled frequencies, or are counted from the other "
            "end; or something else is added to scores, as ALiBi does"
            + ("" if self.biases else "; or keys or queries have biases: then biases=True"),
            also=why,
        )

    def bounded(self, c_error: float) -> tuple[RotaryHeads, Certificate, tuple[str, ...]]:
        """Return the model, bounds with what they are, and what is to be noted."""
        errors, W = self.errors, self.W_error
        turning = max((one.turning for one in errors), default=0.0)
        of_w = " The bound on w is one on Kᵀ R(Δ) b_q and on (Q, b_q)ᵀ (R(−Δ) − I) b_k."
        how = (
            f"The bound on W is one on W(Δ) = Kᵀ R(Δ) Q of every head for distances Δ from 0 to "
            f"{self.farthest}; beyond it grows by {turning:.1e} a token." + of_w * self.biases,
            "It is several times the change of W(Δ) when the readings are changed by their errors "
            "in a few random directions, with independent errors of answers.",
        )
        bounds = {"W": W, "v": self.v_error, "c": SAFETY * c_error}
        bounds |= {"w": W} if self.biases else {}
        left = undetermined(self.model.heads, errors, self.farthest)
        return self.model, Certificate(bounds, how), (*self.notes, *left)


def no_heads(reduced: ReducedAnswers) -> RecoveredHeads:
    """Return what answers that are all one constant tell: nothing."""
    d = reduced.dim
    model = MultiHead(np.zeros((0, d, d)), np.zeros((0, d)), c=reduced.c)
    return RecoveredHeads(model, dict.fromkeys("Wvw", np.zeros(0)), reduced.lengths.length)


def heads_apart(model: MultiHead) -> float:
    """Return the smallest distance between two heads' [W w]; inf of fewer than two."""
    scores = np.concatenate([model.W, model.w[:, :, None]], axis=2)
    return nearest(scores.reshape(model.H, model.dim * (model.dim + 1)))


# -- fresh answers


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
    found: RecoveredHeads | PositionedHeads,
    reduced: ReducedAnswers,
    count: int,
    rng: np.random.Generator,
    purpose: Purpose,
    *,
    alike: bool = False,
) -> Asking[FreshResiduals]:
    """Ask fresh sequences; return how far the heads miss them, and may."""
    if not count:
        return FreshResiduals(Residuals.joined([]), np.zeros(0))
    short, rounds = found.sequences(count, reduced, rng, purpose, alike)
    answered = yield from fresh_answers(short, further=rounds)
    model: MultiHead | RotaryHeads = found.model
    asked = [X for X, _ in answered]
    predicted = [model(X) for X in asked]
    missed = np.concatenate([y - of for (_, y), of in zip(answered, predicted, strict=True)])
    size = np.concatenate([_size(model, reduced, X) for X in asked])
    own = (TIMES if model.H else NOTHING) * reduced.precision.error(size)
    own = own + np.concatenate([_rounding(model, X, reduced.precision.unit) for X in asked])
    moved = np.zeros(len(size))
    for other in found.drawn(rng):
        away = [other(X) - of for X, of in zip(asked, predicted, strict=True)]
        moved = np.maximum(moved, TIMES * np.abs(np.concatenate(away)))
    most, turned = _most_missed(reduced), isinstance(found, PositionedHeads)
    steep = [STEEPER if turned or X.shape[1] not in LENGTHS else 1.0 for X in asked]
    steeper, several = (
        np.concatenate([np.full(len(X), of) for X, of in zip(asked, each, strict=True)])
        for each in (steep, [X.shape[1] > 1 for X in asked])
    )
    # single tokens show nothing of attention
    tells = np.concatenate([found.telling(X) for X in asked])
    residuals = Residuals.of(
        missed,
        own=own,
        allowed=np.minimum(moved, most * steeper * size),
        size=size,
        telling=tells & (several | np.any(tells & several)),
        most=BLUNT,
    )
    looked = long_sequences.looked_at(model, answered, chain(*rounds))
    return FreshResiduals(residuals, (own + moved) / size, looked)


def _size(model: MultiHead | RotaryHeads, reduced: ReducedAnswers, X: Array) -> Array:
    """Return the size of the terms of answers to sequences (B, N, d): (B,)."""
    values = max(float(np.linalg.norm(model.v)), reduced.scale)
    size = np.linalg.norm(X, axis=2).max(axis=1) * values / np.sqrt(model.dim) + abs(reduced.c)
    return np.where(size > 0, size, 1.0)


def _most_missed(reduced: ReducedAnswers) -> float:
    """Return the largest share of answers that errors of the model may explain."""
    return max(MOST, MOST_COARSE * reduced.eta)


def _rounding(model: MultiHead | RotaryHeads, X: Array, unit: float) -> Array:
    """Bound what scores and sums of many tokens round, (n,)."""
    total = np.zeros(len(X))
    for head in model.heads:
        at, values = head_comparison.HeadAt.of(head, X), X @ head.v
        deviations = np.abs(values - at.predicted[:, None])
        total += head_comparison.mean_shift(at.weights, deviations, KAPPA * unit * at.rounded)
        total += head_comparison.sum_rounding(at.weights, values, unit)
    return total


def _unit(like: Array, rng: np.random.Generator) -> Array:
    """Draw an array whose every head has norm 1."""
    x = rng.standard_normal(like.shape)
    flat = np.linalg.norm(x.reshape(len(x), -1), axis=1) if len(x) else np.zeros(0)
    return np.asarray(x / flat.reshape(-1, *[1] * (x.ndim - 1)))


# -- what is promised


def concluded(
    found: RecoveredHeads | PositionedHeads,
    reduced: ReducedAnswers,
    checks: int,
    biases: bool,
    rng: np.random.Generator,
) -> Steps[Any]:
    """Ask the hold-out, and say how sure the heads are."""
    fresh = yield from fresh_residuals(found, reduced, checks, rng, "check")
    judgement = judge(fresh.residuals, checks)
    if judgement.refuses:
        raise found.refusal(
            judgement, judgement.blunt or bool(np.all(fresh.missed <= fresh.explained))
        )
    # terms that cancel in c, as an output bias and value biases do, are no larger than other
    # answers': those to tokens of norm 1
    terms = abs(reduced.c) + reduced.scale
    c_error = float(reduced.precision.error(terms, reduced.c)) * biases
    model, bounds, notes = found.bounded(c_error)
    evidence, precision = judgement.evidence, reduced.precision
    absolute = f", and {precision.absolute:.1e} beside it" if precision.absolute else ""
    assumes = (
        f"The target is a sum of attention heads{found.kind}, and all of them were found: the "
        "hold-out tests this but cannot prove it." + (unseen_heads(evidence) if checks else ""),
        f"Answers are precise to {reduced.eta:.1e} of the size of their terms{absolute}.",
        *bounds.assumes,
        *precision.why,
        fresh.looked if checks else "Nothing was checked.",
    )
    return Found(model, Certificate(bounds.errors, assumes), evidence, notes)


def unseen_heads(evidence: Evidence) -> str:
    """Say how small or close heads may be that are missing."""
    return (
        " A further head could have been missed only if it contributes less than "
        f"{evidence.tolerance:.1e} of the size of an answer; heads that differ by less may have "
        "been merged."
    )


def predicting(
    found: RecoveredHeads,
    share: float,
    reduced: ReducedAnswers,
    checks: int,
    rng: np.random.Generator,
) -> Steps[MultiHead]:
    """Ask pilots, which bound the function, and the hold-out, which looks farther.

    ``share`` is the most that fresh answers were missed by so far, in shares of their size.
    """
    pilots = yield from fresh_residuals(found, reduced, PILOTS, rng, "pilot")
    share = max(share, float(pilots.missed.max()))
    if share > WORST:
        raise Reason.PILOTS_MISSED.error(share=share)
    fresh = yield from fresh_residuals(found, reduced, checks, rng, "check")
    missed, natural = fresh.residuals.missed, fresh.residuals.size
    judgement = judge(Residuals.of(missed, allowed=WORST * natural, size=natural), checks)
    if judgement.refuses:
        raise Reason.MORE_MISSED_THAN_PILOTS.error(
            pilots=PILOTS, share=share, missed=judgement.evidence.max_residual
        )
    model = canonical(found.model)
    size = max(float(np.linalg.norm(model.v)), reduced.scale) / np.sqrt(model.dim)
    errors = {"constant": float(share * abs(model.c)), "slope": float(share * size)}
    shorter = ", shortened together where they are longer than the radius" * reduced.lengths.capped
    assumes = (
        "``|f̂(X) − f(X)|`` ≤ constant + slope·max‖x_i‖ for all but a share of "
        f"{np.log(1 / DELTA) / PILOTS:.2g} of sequences drawn like the pilots, with confidence "
        f"{1 - DELTA:g}: three to six tokens, the last normal of norm about "
        f"{found.length:.1e}, the others at random distances that give the weakest, the median or "
        f"the strongest head logits of about 2{shorter}.",
        f"The bounds are the largest misses among {PILOTS} such sequences. The parameters have no "
        "bounds.",
        f"{fresh.looked} What is predicted there was held against {WORST:g} alone."
        if checks
        else "Nothing else was checked.",
    )
    note = (
        f"These {model.H} heads predict the answers but are not the target's own heads, some of "
        "which are too close to be told apart, have values too small to be seen, or are missing."
    )
    return Found(model, Certificate(errors, assumes), judgement.evidence, (note,))
