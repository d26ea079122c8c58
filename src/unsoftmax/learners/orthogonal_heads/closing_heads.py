"""The hold-out of heads in orthogonal subspaces: fresh sequences over all of R^d.

The learner asks within one subspace at a time; only sequences that leave the subspaces show that
the heads add up and that there is nothing between them. The opening is a single head's
(`learners.single_head.first_round`); the closing has three to six tokens, at sizes that make the
logits of one head after the other moderate. Every sequence counts. A residual may be what the
heads' bounds allow, but exact answers must be missed by no more than a right model misses them.
Where coarse answers allow more, at a head's own logits, than what that head contributes, they
confirm nothing of it. Beside them are the long sequences of `unsoftmax.validate.long_sequences`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.single_head.first_round import FirstRound
from unsoftmax.measure.precision import KAPPA, Precision, why
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models import MultiHead
from unsoftmax.models.attention import (
    largest_mean_shift,
)
from unsoftmax.probes import Array, Sequences
from unsoftmax.protocol import Certificate, Evidence
from unsoftmax.theory.information import score_gradient
from unsoftmax.validate.head_comparison import UNBOUNDED, score_shift, sum_rounding
from unsoftmax.validate.judge import Judgement, Residuals, fresh_answers, judge
from unsoftmax.validate.long_sequences import LongSequenceTuning, draw_long, looked_at
from unsoftmax.validate.sequences import by_length

# Tokens of a sequence, in turn: three at least, for two do not tell a head from its opposite.
LENGTHS = (3, 4, 5, 6)
# Root mean square of the logits of the head that a sequence is for, in turn: small ones show v_h,
# moderate ones W_h, larger ones what bounds on W_h leave open.
LOGITS = (2.0, 0.5, 6.0)
# Every other time offsets are this much longer and query tokens shorter, which leaves the logits
# of a head without a query bias what they are, and shows one that has a bias.
STRETCH = 32.0
# Random directions meet ‖ΔW‖_F in about 1/d of its size; this many times that is allowed. Smaller:
# right heads are refused by chance; larger: wrong ones pass.
ALIGNMENT = 2.0
# Share of their size by which exact answers may be missed at most, whatever the bounds say: right
# models miss them by 1e-12, and five of 4,500, ill-conditioned, by more (measured).
AGREES = 2e-8
# Answers too coarse to find heads rightly are missed by more than expected, but not by this much:
# up to it the refusal says coarse, beyond it wrong class.
CLEARLY = 10.0
# A head within its error of W = 0 counts as W = 0 where that error is this small beside the
# largest ‖W_h‖.
NOTHING = 1e-12
# A tolerance of more than this share of what a head's scores contribute tells nothing of that
# head.
MOST_SHARE = 0.3
# The long sequences.
LONG = LongSequenceTuning()


@dataclass(frozen=True, slots=True)
class BoundedHeads:
    """The heads that were found, with a bound for each."""

    model: MultiHead
    W_error: Array
    v_error: Array

    def compared(
        self, X: Array, y: Array, precision: Precision
    ) -> tuple[Residuals, NDArray[np.bool_]]:
        """Compare answers with predictions, within what the heads' bounds allow.

        Returns also, (B, H), whether what each head contributes stands out of the tolerance.
        """
        model = self.model
        W_error, v_error = (np.minimum(e, UNBOUNDED) for e in (self.W_error, self.v_error))
        met = min(1.0, ALIGNMENT / model.dim)
        moved = score_shift(X, met * W_error[None])
        moved = moved + KAPPA * precision.unit * model.score_sizes(X)
        weights, values = model.attention(X), model.v @ X.transpose(0, 2, 1)
        deviations = np.abs(values - np.sum(weights * values, axis=2, keepdims=True))
        by_weights = largest_mean_shift(weights, deviations, moved.max(axis=2, initial=0.0))

        longest = np.linalg.norm(X, axis=2).max(axis=1, initial=0.0)
        size = longest * np.sum(np.linalg.norm(model.v, axis=1))
        size = np.where(size > 0, size, 1.0)
        allowed = by_weights.sum(axis=1) + longest * np.sum(v_error)
        if precision == Precision():
            # a right model of exact answers misses them by far less than its bounds allow
            allowed = np.minimum(allowed, AGREES * size)
        own = precision.error(size, y)
        own = own + sum_rounding(weights, values, precision.unit).sum(axis=1)
        contribution = np.sum(np.abs(score_gradient(weights, values)), axis=2)
        telling = (own + allowed)[:, None] <= MOST_SHARE * contribution
        return Residuals.of(y - model(X), own=own, allowed=allowed, size=size), telling


def certificate_of_heads(
    found: BoundedHeads, values: Values, checks: int, further: tuple[str, ...]
) -> Certificate:
    """Return the bounds with all they assume."""
    precision = values.precision
    return Certificate(
        {
            "W": float(np.max(found.W_error, initial=0.0)),
            "v": float(np.max(found.v_error, initial=0.0)),
            "w": 0.0,
            "c": 0.0,
        },
        (
            "The target is a sum of heads in mutually orthogonal subspaces: the hold-out tests "
            "this but cannot prove it.",
            f"Rounding changes an answer by at most {KAPPA:.0f} × {precision.unit:.1e} × "
            "max‖x_i‖·Σ‖v_h‖; other errors are named here.",
            *precision.why,
            *(() if checks else ("Nothing was checked: exact answers are assumed.",)),
            *further,
        ),
    )


def judged(
    found: BoundedHeads, opened: FirstRound, rng: np.random.Generator
) -> Asking[tuple[Evidence, str]]:
    """Ask the closing hold-out; return how the model stands and how far it was looked, or refuse.

    Sequences of a length are either short ones, drawn for one head after the other, or long ones.
    """
    precision, scored = opened.values.precision, _scored(found)
    short, long = _drawn(found, opened.closing, scored, rng)
    answered = yield from fresh_answers(short, [opened.answered], LONG.rounds(long))
    compared = [found.compared(X, y, precision) for X, y in answered]
    judgement = judge([residuals for residuals, _ in compared], opened.checks)
    tells = np.concatenate([telling for _, telling in compared[1:] or compared])
    unseen = int(np.count_nonzero(~tells[:, scored].any(axis=0))) if opened.closing else 0
    if unseen and precision != Precision() and judgement.excess <= CLEARLY:
        raise NotIdentifiable(
            f"The answers are too coarse for {unseen} of {found.model.H} heads: with bounds like "
            "theirs fresh sequences tell nothing of them, where their logits are moderate. "
            "LowRankHead and ApproximateHead learn a single head from coarse answers."
            + why(precision),
            determined={"v": opened.values.v},
        )
    if judgement.refuses:
        raise _contradicted(found.model.H, judgement, precision)
    return judgement.evidence, looked_at(found.model, answered, long)


def _contradicted(H: int, judgement: Judgement, precision: Precision) -> ModelMismatch:
    return ModelMismatch(
        f"The {H} heads that were found miss fresh answers by {judgement.worst[0]:.1e} of their "
        f"size, {judgement.excess:.3g} times what is expected at most. The target is not a sum of "
        f"heads in mutually orthogonal subspaces{' like these' if H > 1 else ''}: ExactHead learns "
        f"a single head, MultiHeadLearner heads in any position.{why(precision)}"
    )


def _scored(found: BoundedHeads) -> list[int]:
    """Return the heads that have logits: values of one without any are seen at any size."""
    sizes = np.linalg.norm(found.model.W, axis=(1, 2))
    nothing = np.minimum(found.W_error, NOTHING * np.max(sizes, initial=0.0))
    return [h for h in range(found.model.H) if sizes[h] > nothing[h]]


def _drawn(
    found: BoundedHeads, count: int, scored: list[int], rng: np.random.Generator
) -> tuple[list[Sequences], list[Sequences]]:
    """Draw short sequences at moderate logits of one head after the other, and long ones.

    These are at logits of the strongest head.
    """
    model, d = found.model, found.model.dim

    def scaled(offsets: Array, query: Array, wanted: float, first: int = 0, n: int = d) -> Array:
        X = np.vstack([offsets, query])
        u = model.scores_of(query[None])[0, scored[first : first + n]]
        logit = np.sqrt(np.mean((u @ offsets.T) ** 2, axis=1)).max(initial=0.0)
        return np.asarray(np.sqrt(wanted / logit) * X if logit else X)

    long = draw_long(model, count, rng, scaled, LONG)
    short = []
    for n in range(count - len(long)):
        x = rng.standard_normal((LENGTHS[n % len(LENGTHS)], d)) / np.sqrt(d)
        turn, k = divmod(n, max(1, len(scored)))
        if turn % 2 and scored:
            x[:-1], x[-1] = STRETCH * x[:-1], x[-1] / STRETCH
        short.append(scaled(x[:-1], x[-1], LOGITS[n % len(LOGITS)], k, 1))
    return by_length(short, "hold-out, closing"), by_length(long, "hold-out, long")
