"""How the recovery of several heads ends: a hold-out, and a certificate or a refusal.

The certificate bounds the parameters, or, where no heads explain all answers and only the
function is wanted, the function: question (ii) of section 7.1 of arXiv 2601.16873, answered as
`unsoftmax.validate.function_bound` has it, on the distribution of the pilots.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.multi_head.fresh_sequences import FreshTuning, fresh_residuals
from unsoftmax.learners.multi_head.recovered_heads import RecoveredHeads
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.models import MultiHead, canonical
from unsoftmax.protocol import Certificate, Evidence, Found, Steps
from unsoftmax.validate.close_heads import CloseHeads, nearest
from unsoftmax.validate.judge import Residuals, judge


@dataclass(frozen=True, slots=True)
class HeadsConclusionTuning:
    """How much is promised."""

    fresh: FreshTuning = field(default=FreshTuning())
    confirm: int = 6
    """Fresh sequences that a model must predict before it is believed, the hold-out apart."""
    safety: float = 12.0
    """Estimated errors are a standard deviation, roughly: in 2,000 targets the error was at most
    5.2 times that. Twice as much and more is promised."""
    close: CloseHeads = field(default=CloseHeads())
    """What is said of heads that answers leave nearly alike."""
    pilots: int = 96
    """Sequences from which a bound on the function is taken: the largest residual of n is beyond
    those of all but a share ln(1/δ)/n of such sequences. A multiple of all that is varied in turn;
    drawn in turn instead of at random, the share is smaller, if anything."""
    delta: float = 0.01
    """δ: the bound is right with confidence 1 − δ."""
    farthest: float = 1e-3
    """A largest residual above this share of the answers is refused: such a target is no
    attention."""

    @property
    def eps(self) -> float:
        """ε, the share of sequences for which the bound on the function need not hold."""
        return float(np.log(1 / self.delta) / self.pilots)


def concluded(
    found: RecoveredHeads,
    reduced: ReducedAnswers,
    checks: int,
    biases: bool,
    rng: np.random.Generator,
    *,
    tuning: HeadsConclusionTuning,
) -> Steps[MultiHead]:
    """Ask the hold-out, and say how sure the heads are."""
    fresh = yield from fresh_residuals(found, reduced, checks, rng, "check", tuning=tuning.fresh)
    judgement = judge(fresh.residuals, checks)
    if judgement.refuses:
        missed, allowed = judgement.worst
        raise ModelMismatch(
            f"The recovered heads miss a fresh answer by {missed:.1e} of its size where "
            f"{allowed:.1e} is expected: the target is no sum of attention heads, or has heads too "
            "close for these answers."
        )
    evidence = judgement.evidence
    largest = {**found.largest, "c": float(reduced.precision.error(abs(reduced.c))) * biases}
    errors = {name: tuning.safety * found.times_off * error for name, error in largest.items()}
    model, assumes = canonical(found.model), _assumed(reduced, evidence, fresh.looked, tuning)
    errors, close = tuning.close.bounds(errors, heads_apart(model))
    return Found(model, Certificate(errors, (*assumes, *close)), evidence, found.notes)


def heads_apart(model: MultiHead) -> float:
    """Return the smallest distance between two heads' [W w]; inf of fewer than two."""
    scores = np.concatenate([model.W, model.w[:, :, None]], axis=2)
    return nearest(scores.reshape(model.H, model.dim * (model.dim + 1)))


def predicting(
    found: RecoveredHeads,
    share: float,
    reduced: ReducedAnswers,
    checks: int,
    rng: np.random.Generator,
    *,
    tuning: HeadsConclusionTuning,
) -> Steps[MultiHead]:
    """Ask pilots, which bound the function, and the hold-out, which looks farther.

    ``share`` is the most that fresh answers were missed by so far, in shares of their size.
    """
    pilots = yield from fresh_residuals(
        found, reduced, tuning.pilots, rng, "pilot", tuning=tuning.fresh
    )
    share = max(share, float(pilots.missed.max()))
    if share > tuning.farthest:
        raise ModelMismatch(
            f"The heads that predict best miss a fresh answer by {share:.1e} of its size: the "
            "target is no sum of attention heads, or has heads whose hyperplanes are the same for "
            "every query token."
        )
    fresh = yield from fresh_residuals(found, reduced, checks, rng, "check", tuning=tuning.fresh)
    missed, natural = fresh.residuals.missed, fresh.residuals.size
    allowed = tuning.farthest * natural
    judgement = judge(Residuals.of(missed, allowed=allowed, size=natural), checks)
    if judgement.refuses:
        raise ModelMismatch(
            f"The heads that predicted {tuning.pilots} answers to {share:.1e} of their size miss "
            f"fresh ones by {judgement.evidence.max_residual:.1e}."
        )
    model = canonical(found.model)
    size = max(float(np.linalg.norm(model.v)), reduced.scale) / np.sqrt(model.dim)
    errors = {"constant": float(share * abs(model.c)), "slope": float(share * size)}
    looked = f"{fresh.looked} What is predicted there was held against {tuning.farthest:g} alone."
    assumes = _assumed_of_function(found, reduced, looked if checks else "", tuning)
    certificate = Certificate(errors, assumes)
    note = (
        "Not the target's own heads: some of those are too close to be told apart, or have values "
        f"too small to be seen, or it has others. These {model.H} predict its answers."
    )
    return Found(model, certificate, judgement.evidence, (note,))


def _assumed(
    reduced: ReducedAnswers, evidence: Evidence, looked: str, tuning: HeadsConclusionTuning
) -> tuple[str, ...]:
    """Say what the bounds on the parameters rest on."""
    precision = reduced.precision
    absolute = f", and {precision.absolute:.1e} beside it" if precision.absolute else ""
    unseen = unseen_heads(evidence) if evidence.queries else ""
    return (
        "The target is a sum of attention heads, and all of them were found: what the hold-out "
        "tests, it cannot prove." + unseen,
        f"Answers are precise to {reduced.eta:.1e} of the size of their terms{absolute}.",
        f"Bounds are {tuning.safety:.0f} times what that precision does to first order, errors of "
        "answers being independent; each is the largest over heads.",
        "Answers do not drift from query to query but for what Σ v_h shows, which is read twice: "
        "no answer was asked for twice.",
        *precision.why,
        looked if evidence.queries else "Nothing was checked.",
    )


def unseen_heads(evidence: Evidence) -> str:
    """Say how small or close heads may be that are missing."""
    return (
        f" Heads that add less than {evidence.tolerance:.1e} of their size to answers like the "
        "hold-out's, or change them by as little when they are one with others, may be missing."
    )


def _assumed_of_function(
    found: RecoveredHeads, reduced: ReducedAnswers, looked: str, tuning: HeadsConclusionTuning
) -> tuple[str, ...]:
    """Say what the bounds on the function rest on."""
    shorter = ", shortened together where they are longer than the radius"
    return (
        "``|f̂(X) − f(X)|`` ≤ constant + slope·max‖x_i‖ for all but a share of "
        f"{tuning.eps:.2g} of sequences drawn like the pilots, with confidence "
        f"{1 - tuning.delta:g}: three to six tokens, the last normal of norm about "
        f"{found.length:.1e}, the others at random distances that give the weakest, the median or "
        f"the strongest head logits of about 2{shorter if reduced.lengths.capped else ''}.",
        f"The bounds are the most that {tuning.pilots} such sequences were missed by. The "
        "parameters have none.",
        looked or "Nothing else was checked.",
    )
