"""The hold-out of heads in orthogonal subspaces: fresh sequences over all of R^d.

The learner asks within one subspace at a time; that the heads add up, and that there is nothing
between the subspaces, only sequences that leave them can show. The opening is a single head's
(`learners.single_head.first_round`); the closing has three to six tokens, at sizes that make the
logits of one head after the other moderate. Every sequence counts. A residual may be what the
heads' bounds let it be, but exact answers must be missed by no more than a right model misses them;
where tolerances at a head's own logits are larger than what that head says, nothing is confirmed.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.single_head.first_round import Opening
from unsoftmax.measure.precision import KAPPA, Precision, why
from unsoftmax.measure.two_tokens import Values
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array, Round, Sequences
from unsoftmax.protocol import Answers, Certificate, Evidence


@dataclass(frozen=True, slots=True)
class ClosingTuning:
    """Knobs of the closing hold-out."""

    lengths: tuple[int, ...] = (3, 4, 5, 6)
    """Tokens of a sequence, in turn: three at least, for two do not tell a head from its
    opposite."""
    logits: tuple[float, ...] = (2.0, 0.5, 6.0)
    """Root mean square of the logits of the head that a sequence is for, in turn: small ones
    show v_h, moderate ones W_h, larger ones what bounds on W_h leave open."""
    stretch: float = 32.0
    """Every other time offsets are this much longer and query tokens shorter, which leaves the
    logits of a head without a query bias what they are, and shows one that has a bias."""
    alignment: float = 2.0
    """Random directions meet ‖ΔW‖_F in about 1/d of its size; this many times that is allowed."""
    agrees: float = 2e-8
    """Share of their size by which exact answers may be missed at most, whatever the bounds say:
    right models miss them by 1e-12, and five of 4,500, ill-conditioned, by more (measured)."""
    clearly: float = 10.0
    """Answers too coarse to find heads rightly are missed by more than expected, but not by this
    much: up to it the refusal says coarse, beyond it wrong class."""
    nothing: float = 1e-12
    """A head within its error of W = 0 counts as W = 0 where that error is this small beside the
    largest ‖W_h‖."""
    most_moved: float = 100.0
    """Logits that move by more than half of this have moved without bound; e¹⁰⁰ is finite."""
    telling: float = 0.3
    """A tolerance of more than this share of what a head says beside its mean tells nothing of
    that head."""


@dataclass(frozen=True, slots=True)
class BoundedHeads:
    """The heads that were found, with a bound for each."""

    model: MultiHead
    W_error: Array
    v_error: Array


def certificate_of(
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
            "The target is a sum of heads in mutually orthogonal subspaces: what the hold-out "
            "tests, it cannot prove.",
            f"An answer is off by at most {KAPPA:.0f} × {precision.unit:.1e} × "
            "max‖x_i‖·Σ‖v_h‖ from rounding, beside what is named here.",
            *precision.why,
            *(() if checks else ("Nothing was checked: exact answers are taken for granted.",)),
            *further,
        ),
    )


def judged(
    found: BoundedHeads,
    opened: Opening,
    checks: int,
    rng: np.random.Generator,
    tuning: ClosingTuning,
) -> Generator[Round, Answers, Evidence]:
    """Ask the closing hold-out and return how the model stands, or refuse it."""
    model, precision = found.model, opened.values.precision
    families = _closing(found, opened.closing, rng, tuning)
    closed = yield [family for family, _ in families]
    missed = [_compare(found, precision, opened.probes.X, opened.answers, tuning)]
    untold = dict[int, bool]()
    for (family, aimed), y in zip(families, closed, strict=True):
        missed.append(_compare(found, precision, family.X, y, tuning))
        for h, tells in zip(aimed, missed[-1].telling[np.arange(len(aimed)), aimed], strict=True):
            untold[h] = untold.get(h, True) and not tells
    residual = np.concatenate([part.residual for part in missed])
    tolerance = np.concatenate([part.tolerance for part in missed])
    evidence = Evidence.of(checks, residual, tolerance)
    worst = int(np.argmax(np.abs(residual) / tolerance)) if len(residual) else 0
    worse = float(np.abs(residual[worst]) / tolerance[worst]) if len(residual) else 0.0
    coarse = precision != Precision()
    if coarse and any(untold.values()) and worse <= tuning.clearly:
        raise NotIdentifiable(
            f"The answers are too coarse for {sum(untold.values())} of {model.H} heads: with "
            "bounds like theirs fresh sequences tell nothing of them, where their logits are "
            "moderate. LowRankHead and ApproximateHead learn a single head from coarse answers."
            + why(precision),
            determined={"v": opened.values.v},
        )
    if checks and not evidence.passed:
        raise ModelMismatch(
            f"The {model.H} heads that were found miss fresh answers by "
            f"{np.abs(residual[worst]):.1e} of their size, {worse:.3g} times what is expected at "
            "most. The target is not a sum of heads in mutually orthogonal subspaces"
            f"{' like these' if model.H > 1 else ''}: ExactHead learns a single head, "
            f"MultiHeadLearner heads in any position.{why(precision)}"
        )
    return evidence


def _closing(
    found: BoundedHeads, count: int, rng: np.random.Generator, tuning: ClosingTuning
) -> list[tuple[Sequences, list[int]]]:
    """Make sequences at moderate logits of one head after the other, and say of which."""
    model, d = found.model, found.model.dim
    # heads with W = 0, or with as good as that, have no logits: their values are seen anywhere
    sizes = np.linalg.norm(model.W, axis=(1, 2))
    nothing = np.minimum(found.W_error, tuning.nothing * np.max(sizes, initial=0.0))
    scored = [h for h in range(model.H) if sizes[h] > nothing[h]]
    sequences: dict[int, list[tuple[Array, int]]] = {}
    for n in range(count):
        length = tuning.lengths[n % len(tuning.lengths)]
        x = rng.standard_normal((length, d)) / np.sqrt(d)
        aimed = scored[n % len(scored)] if scored else 0
        logit = 0.0
        if scored:
            logit = float(np.sqrt(np.mean((x[:-1] @ (model.W[aimed] @ x[-1])) ** 2)))
        size = float(np.sqrt(tuning.logits[n % len(tuning.logits)] / logit)) if logit else 1.0
        if scored and n // len(scored) % 2:
            x[:-1], x[-1] = tuning.stretch * x[:-1], x[-1] / tuning.stretch
        sequences.setdefault(length, []).append((size * x, aimed))
    return [
        (
            Sequences(np.array([X for X, _ in some]), phase="hold-out, closing", purpose="check"),
            [aimed for _, aimed in some if scored],
        )
        for some in sequences.values()
    ]


@dataclass(frozen=True, slots=True)
class _Missed:
    """Residuals of some sequences, and what they may be; relative to the answers' size."""

    residual: Array
    tolerance: Array
    telling: Array
    """Whether a sequence tells something of a head, (sequences, H)."""


def _compare(
    found: BoundedHeads, precision: Precision, X: Array, y: Array, tuning: ClosingTuning
) -> _Missed:
    """Compare answers with predictions, within what the heads' bounds let those be."""
    model = found.model
    W_error, v_error = (np.minimum(error, 1e100) for error in (found.W_error, found.v_error))
    tokens = X.transpose(0, 2, 1)
    vectors = model.scores_of(X[:, -1])
    scores = vectors @ tokens
    weights = np.exp(scores - scores.max(axis=2, keepdims=True, initial=-np.inf))
    weights /= weights.sum(axis=2, keepdims=True)
    values = model.v @ tokens
    spread = np.sum(weights * np.abs(values - np.sum(weights * values, axis=2, keepdims=True)), 2)

    norms = np.linalg.norm(X, axis=2)
    away = np.linalg.norm(X - X[:, -1:], axis=2).max(axis=1, initial=0.0)
    longest = norms.max(axis=1, initial=0.0)
    share = min(1.0, tuning.alignment / model.dim)
    moved = share * (norms[:, -1] * away)[:, None] * W_error
    moved = moved + KAPPA * precision.unit * longest[:, None] * np.linalg.norm(vectors, axis=2)
    # weights change by a factor of e^{±2·moved} at most
    allowed = np.minimum(
        spread * np.expm1(np.minimum(2 * moved, tuning.most_moved)), np.ptp(values, axis=2)
    )

    size = longest * np.sum(np.linalg.norm(model.v, axis=1))
    size = np.where(size > 0, size, 1.0)
    # a right model of exact answers misses them by far less than its bounds let it
    most = tuning.agrees * size if precision == Precision() else np.full(len(size), np.inf)
    model_error = np.minimum(np.sum(allowed, axis=1) + longest * np.sum(v_error), most)
    tolerance = precision.error(size, y) + model_error
    return _Missed(
        (y - model(X)) / size, tolerance / size, tolerance[:, None] <= tuning.telling * spread
    )
