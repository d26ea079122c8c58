"""How the recovery of several heads with positions ends: fresh sequences of 1 to 512 tokens.

What an answer may be off by is the sum over the heads of what one head's may be: scores are off by
at most ‖x_i‖‖x_N‖·E_h(Δ), and answers then by Σ_h Σ_i α_hi |y_hi − f_h|·m_hi to first order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.conclusions import HeadsConclusionTuning, unseen_heads
from unsoftmax.learners.multi_head.multi_head_tuning import MultiHeadTuning
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.single_head.distances import undetermined
from unsoftmax.measure.precision import KAPPA
from unsoftmax.models.attention import mean_shift, pooled_tokens
from unsoftmax.models.rotary_heads import RotaryHeads
from unsoftmax.probes import Array
from unsoftmax.protocol import Certificate, Evidence, Found
from unsoftmax.validate.head_comparison import HeadAt, JudgeTuning, PositionErrors, sum_rounding
from unsoftmax.validate.judge import Judgement, Residuals, fresh_answers, judge
from unsoftmax.validate.sequences import at_distances

FLOAT64 = " Positions need float64 answers: ask for these where they are to be had."


@dataclass(frozen=True, slots=True)
class RecoveredRotaryHeads:
    """Heads with positions as they were recovered, with what bounds their errors."""

    model: RotaryHeads
    turned: tuple[PositionErrors, ...]
    """Bounds on the errors of W_h(Δ), one for each head."""
    v_error: float
    """Bound on the error of every v_h."""
    reduced: ReducedAnswers
    farthest: int
    """The certificate's bound is for distances up to this."""
    notes: tuple[str, ...] = ()

    @property
    def biases(self) -> bool:
        """Whether biases of keys and queries were looked for."""
        return any(errors.biases for errors in self.turned)


def conclude_heads(
    found: RecoveredRotaryHeads,
    checks: int,
    rng: np.random.Generator,
    tuning: MultiHeadTuning,
) -> Asking[Found[RotaryHeads]]:
    """Ask fresh sequences and return what was found, or refuse it."""
    near, far = at_distances(found.model.heads, found.model.dim, checks, rng, tuning.holdout)
    answered = yield from fresh_answers(near, further=far)
    parts = [
        (X.shape[1], _compared(found, X, y, JudgeTuning(), tuning.conclusion)) for X, y in answered
    ]
    judgement = judge(Residuals.of_lengths(parts), checks)
    if judgement.refuses:
        _refuse(found, judgement)
    longest = max((X.shape[1] for X, y in answered if len(y)), default=0)
    left = undetermined(found.model.heads, found.turned, found.farthest)
    certificate = _certificate(found, judgement.evidence, longest, tuning.conclusion.safety)
    return Found(found.model, certificate, judgement.evidence, (*found.notes, *left))


def _compared(
    found: RecoveredRotaryHeads,
    X: Array,
    y: Array,
    judging: JudgeTuning,
    tuning: HeadsConclusionTuning,
) -> Residuals:
    """Compare answers with the heads, to first order in the errors of their scores."""
    fresh, precision, most_moved = tuning.fresh, found.reduced.precision, judging.most_moved
    met = np.full(len(X), min(1.0, judging.alignment / X.shape[2]))
    predicted, own, allowed = np.full(len(X), found.model.c), np.zeros(len(X)), np.zeros(len(X))
    telling = np.ones(len(X), dtype=bool)
    for head, errors in zip(found.model.heads, found.turned, strict=True):
        at, tokens = HeadAt.of(head, X), X @ head.v
        rounded = KAPPA * precision.unit * at.rounded
        moved = at.score_moves_at(0.0, errors, met)
        deviations = np.abs(tokens - at.predicted[:, None])
        own += mean_shift(at.weights, deviations, np.minimum(rounded, most_moved))
        own += sum_rounding(at.weights, tokens, precision.unit)
        own += np.linalg.norm(pooled_tokens(X, at.weights), axis=1) * found.v_error
        allowed += mean_shift(at.weights, deviations, np.minimum(moved, most_moved))
        telling &= (moved + rounded).max(axis=1) <= most_moved
        predicted += at.predicted
    values = float(np.sum(np.linalg.norm(found.model.v, axis=1)))
    size = np.linalg.norm(X, axis=2).max(axis=1) * max(values, found.reduced.scale) + abs(
        found.model.c
    )
    times = fresh.times if found.model.H else fresh.nothing
    most = max(fresh.most, fresh.most_coarse * found.reduced.eta)
    return Residuals.of(
        y - predicted,
        own=own + times * precision.error(size),
        allowed=np.minimum(allowed, most * size),
        size=size,
        telling=telling,
        most=fresh.blunt,
    )


def _refuse(found: RecoveredRotaryHeads, judgement: Judgement) -> None:
    """Say why the heads are not believed."""
    why = "".join(f" {sentence}" for sentence in found.reduced.precision.why)
    if found.biases:
        why = f" Biases that nearly saturate a head leave few digits of it.{why}"
    if judgement.blunt or not all(np.isfinite(one.near) for one in found.turned):
        raise NotIdentifiable(
            "The answers do not determine how several heads' scores turn with distance: what they "
            "leave open moves every fresh answer more than can be told apart." + why + FLOAT64,
            determined={"v": found.model.v},
        )
    missed, allowed = judgement.worst
    raise ModelMismatch(
        f"The recovered heads miss a fresh answer by {missed:.1e} of its size where {allowed:.1e} "
        "is expected. The target is no sum of attention heads with rotary positions; or these "
        "change beyond some distance, as with windows or scaled frequencies, or are counted from "
        "the other end; or something else is added to scores, as ALiBi does"
        + ("." if found.biases else "; or keys or queries have biases: then biases=True.")
        + why
    )


def _certificate(
    found: RecoveredRotaryHeads, evidence: Evidence, longest: int, safety: float
) -> Certificate:
    """Bound W_h(Δ), v_h and c; say what that assumes."""
    farthest = found.farthest
    ends = np.array([0.0, farthest])
    W = max((float(one.at(ends).max()) for one in found.turned), default=0.0)
    turning = max((one.turning for one in found.turned), default=0.0)
    bounds = {
        "W": W,
        "v": found.v_error,
        "c": safety * float(found.reduced.precision.error(abs(found.model.c))),
    }
    if found.biases:
        bounds["w"] = W
    without = "" if found.biases else ", without biases of keys and queries"
    unseen = unseen_heads(evidence) if evidence.queries else ""
    return Certificate(
        bounds,
        (
            f"The target is a sum of attention heads with rotary positions{without}, and all heads "
            f"were found: what the hold-out tests, it cannot prove.{unseen}",
            f"Answers are precise to {found.reduced.eta:.1e} of the size of their terms.",
            f"The bound on W is one on W(Δ) = Kᵀ R(Δ) Q of every head for distances Δ from 0 to "
            f"{farthest}; beyond it grows by {turning:.1e} a token."
            + (
                " The bound on w is one on Kᵀ R(Δ) b_q and on (Q, b_q)ᵀ (R(−Δ) − I) b_k."
                if found.biases
                else ""
            ),
            "It is several times what W(Δ) moves by when readings move by as much as they may be "
            "off, in a few random directions, errors of answers being independent.",
            *found.reduced.precision.why,
            f"Fresh sequences were of up to {longest} tokens: positions farther apart may be "
            "something else."
            if longest
            else "Nothing was checked.",
        ),
    )
