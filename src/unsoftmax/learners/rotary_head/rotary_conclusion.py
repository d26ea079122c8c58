"""The last round of a head whose scores turn with distance: fresh sequences of 1 to 512 tokens.

A score (K x_i + b_k)·R(Δ)(Q x_N + b_q) is off by at most ‖x_i‖‖x_N‖·E(Δ), E being the bound on
W(Δ) that grows with distance, and by its rounding. The answer then moves by Σ α_i |y_i − f|·m_i
to first order (`unsoftmax.validate.head_comparison`). Long sequences look at all distances up to
their length: windows and frequencies that change beyond one show there or nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.rotary_head.rotary_reading import PositionedHead, PositionErrors
from unsoftmax.learners.single_head.conclusion import (
    UNTESTED,
    ConclusionTuning,
    assumed_of_values,
    refuse_head,
)
from unsoftmax.learners.single_head.first_round import FirstRound
from unsoftmax.measure.precision import KAPPA, Precision
from unsoftmax.models.arrays import TINY
from unsoftmax.models.attention import mean_shift, pooled_tokens, softmax
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.probes import Array, Sequences
from unsoftmax.protocol import Certificate, Found
from unsoftmax.validate.head_comparison import sum_rounding
from unsoftmax.validate.judge import Answered, Judgement, Residuals, fresh_answers, judge
from unsoftmax.validate.sequences import by_length


@dataclass(frozen=True, slots=True)
class RotaryHoldoutTuning:
    """Which fresh sequences are asked, and how they are judged."""

    short: tuple[tuple[int, float], ...] = ((2, 0.5), (3, 2.0), (7, 6.0), (20, 2.0), (33, 0.5))
    """Tokens and root mean square of the logits of every other sequence, in turn."""
    long: tuple[tuple[int, float], ...] = ((512, 2.0), (64, 6.0), (512, 0.5), (200, 2.0), (1, 2.0))
    """The same of the others, the most telling first: frequencies that change, and windows,
    show beyond their length alone."""
    together: int = 64
    """Families of up to so many tokens are asked in one round, each longer one in its own."""
    most_numbers: int = 2**18
    """Entries of one sequence: from 513 dimensions on long sequences have fewer tokens."""
    loose: float = 0.01
    """From this share of W(Δ) on, a note says how much of it answers leave open."""
    powers: int = 60
    """Lengths of tokens are tried from 2 to minus so many, to 2 to so many."""
    conclusion: ConclusionTuning = field(default=ConclusionTuning(most_unexplained=2.0**6))
    """A bias of 0.1 at one distance of 512 makes answers look 100 to 2,000 times as coarse."""

    def most_tokens(self, dim: int) -> int:
        """Return the length of the longest sequence."""
        most = max(self.together, self.most_numbers // dim)
        return max(3, *(min(n, most) for n, _ in (*self.short, *self.long)))


H = TypeVar("H", bound=PositionedHead)


def conclude_turned(
    head: H,
    first: FirstRound,
    rng: np.random.Generator,
    otherwise: str,
    tuning: RotaryHoldoutTuning,
) -> Asking[Found[RotaryHead]]:
    """Ask fresh sequences and return what was found, or refuse it."""
    dim, earlier = head.model.dim, (first.answered,)
    answered = yield from ask_turned([head.model], dim, first.closing, rng, tuning, earlier)
    head, judgement = _supported(head, answered, first.checks, otherwise, tuning.conclusion)
    errors = head.position_errors()
    left = left_open([head.model], [errors], head.tuning.farthest, tuning)
    notes = (*head.notes(), *left)
    evidence = judgement.evidence
    if first.checks and not _tested(head, errors, answered, tuning.conclusion):
        evidence, notes = replace(evidence, passed=False), (*notes, UNTESTED)
    longest = max((X.shape[1] for X, y in answered if len(y)), default=0)
    certificate = _certificate(head, errors, longest)
    return Found(head.model, certificate, evidence, notes)


def left_open(
    heads: Sequence[RotaryHead],
    errors: Sequence[PositionErrors],
    farthest: int,
    tuning: RotaryHoldoutTuning,
) -> tuple[str, ...]:
    """Say how much of W(Δ) is not known, where that is much: answers to fresh ones do not show it.

    A bound of half of W(Δ) is no error of the bound, and yet nothing to predict with.
    """
    ends = np.array([0.0, farthest])
    shares = [
        float(error.at(ends).max()) / max(float(np.linalg.norm(head.scores.whole(1))), TINY)
        for head, error in zip(heads, errors, strict=True)
    ]
    if max(shares, default=0.0) <= tuning.loose:
        return ()
    return (
        f"Answers leave {max(shares):.1%} of W(Δ) open at distances up to {farthest}, and more "
        "beyond: they are coarse for positions, which need float64. Other sequences, long ones "
        "above all, may be missed by much more than the fresh ones.",
    )


# -- what is asked


def ask_turned(
    heads: Sequence[RotaryHead],
    dim: int,
    count: int,
    rng: np.random.Generator,
    tuning: RotaryHoldoutTuning,
    earlier: Sequence[Answered] = (),
) -> Asking[list[Answered]]:
    """Ask fresh sequences, long ones in rounds of their own; logits are those of each in turn."""
    fresh = _drawn(heads, dim, count, rng, tuning)
    near = [part for part in fresh if part.tokens <= tuning.together]
    far = [[part] for part in fresh if part.tokens > tuning.together]
    return (yield from fresh_answers(near, earlier, far))


def _drawn(
    heads: Sequence[RotaryHead],
    dim: int,
    count: int,
    rng: np.random.Generator,
    tuning: RotaryHoldoutTuning,
) -> list[Sequences]:
    """Draw sequences, one family per length, the shortest first."""
    most, drawn = max(tuning.together, tuning.most_numbers // dim), []
    for n in range(count):
        shapes = tuning.long if n % 2 == 0 else tuning.short
        tokens, logits = shapes[n // 2 % len(shapes)]
        X = rng.standard_normal((min(tokens, most), dim)) / np.sqrt(dim)
        if heads:
            # each head meets each shape
            which = n // 2 + n // (2 * len(shapes))
            X *= _length(heads[which % len(heads)], X, logits, tuning)
        X = X.astype(np.float32).astype(np.float64)
        drawn.append(X)
    families = by_length(drawn, "hold-out, closing", "check")
    return sorted(families, key=lambda part: part.tokens)


def _length(model: RotaryHead, X: Array, wanted: float, tuning: RotaryHoldoutTuning) -> float:
    """Return the power of two by which tokens have logits of the root mean square wanted.

    A score is s²·A + s·B + C for tokens s times as long.
    """
    scores, distances = model.scores, np.arange(len(X))[::-1]
    keys = [X @ model.K.T, np.broadcast_to(model.k_bias, (len(X), len(model.K)))]
    queries = [
        model.rotary.turned(q, distances)
        for q in (np.broadcast_to(X[-1] @ model.Q.T, keys[0].shape), keys[1] * 0 + model.q_bias)
    ]
    A, B0, B1, C = (np.einsum("nr,nr->n", k, q) for k in keys for q in queries)
    if not scores.norm or len(X) == 1:
        return 1.0
    s = np.exp2(np.arange(-tuning.powers, tuning.powers + 1.0))[:, None]
    all_scores = s**2 * A + s * (B0 + B1) + C
    rms = np.sqrt(np.mean((all_scores - all_scores[:, -1:]) ** 2, axis=1))
    with np.errstate(divide="ignore"):
        return float(s[np.argmin(np.abs(np.log2(rms / wanted)))][0])


# -- what is believed


def _supported(
    head: H,
    answered: list[Answered],
    checks: int,
    otherwise: str,
    tuning: ConclusionTuning,
) -> tuple[H, Judgement]:
    """Return the head with bounds that the hold-out supports, or refuse it.

    Answers are taken to be coarser than they look until it passes, as far as may be.
    """
    exact = head.values.precision.exact
    limit = tuning.most_unexplained if exact else tuning.most_unexplained_coarse
    factor, wider = 1.0, head
    while True:
        errors = wider.position_errors()
        parts = [(X.shape[1], _compared(wider, errors, X, y, tuning)) for X, y in answered]
        judgement = judge(Residuals.of_lengths(parts), checks)
        if not judgement.refuses:
            if judgement.strain > 1 / tuning.strain:
                wider = _coarser(wider, 2 * tuning.strain * judgement.strain)
            return wider, judgement
        evidence = judgement.evidence
        factor *= tuning.step * max(1.0, evidence.max_residual / evidence.tolerance)
        if not factor <= limit:  # also when there is nothing to compare
            refuse_head(head.model.dim, head.values, judgement, np.isfinite(errors.near), otherwise)
        wider = _coarser(head, factor)


def _coarser(head: H, factor: float) -> H:
    precision = head.values.precision.coarser(factor, "The hold-out is not predicted exactly")
    return replace(head, values=replace(head.values, precision=precision))  # type: ignore[type-var]


def _compared(
    head: PositionedHead, errors: PositionErrors, X: Array, y: Array, tuning: ConclusionTuning
) -> Residuals:
    """Compare answers with the head, to first order in the errors of its scores."""
    model, values = head.model, head.values
    weights, tokens = softmax(model.scores.of(X)), X @ values.v
    predicted = np.einsum("bn,bn->b", weights, tokens) + values.c
    lengths = np.linalg.norm(X, axis=2)
    distances = np.arange(X.shape[1])[::-1].astype(np.float64)
    met = min(1.0, tuning.judge.alignment / X.shape[2])
    off = met * errors.at(distances) if np.isfinite(errors.near) else np.full(len(distances), 0.0)
    seen = np.hypot(lengths, 1.0) if errors.biases else lengths
    moved = seen * seen[:, -1:] * (off + off[-1])
    moved = moved + score_rounding(model, lengths, distances, values.precision)
    size = lengths.max(axis=1) * values.norm + abs(values.c)
    through_v = np.abs(pooled_tokens(X, weights)) @ values.v_error
    own = values.precision.error(size, y) + values.c_error + through_v
    deviations = np.abs(tokens + values.c - predicted[:, None])
    most = tuning.judge.most_moved
    return Residuals.of(
        y - predicted,
        own=own + sum_rounding(weights, tokens, values.precision.unit),
        allowed=mean_shift(weights, deviations, np.minimum(moved, most)),
        size=size,
        telling=moved.max(axis=1) <= most,
    )


def score_rounding(
    model: RotaryHead, lengths: Array, distances: Array, precision: Precision
) -> Array:
    """Bound the rounding of scores, (B, N), angles included: these round as distance grows."""
    key, query = (
        x * np.linalg.norm(matrix, 2) + np.linalg.norm(bias)
        for x, matrix, bias in (
            (lengths, model.K, model.k_bias),
            (lengths[:, -1:], model.Q, model.q_bias),
        )
    )
    fastest = float(np.max(model.rotary.frequencies, initial=0.0))
    return np.asarray(KAPPA * precision.unit * key * query * (1 + fastest * distances))


def _tested(
    head: PositionedHead, errors: PositionErrors, answered: list[Answered], tuning: ConclusionTuning
) -> bool:
    """Whether some fresh answer tests the scores: they move it by more than it may miss."""
    model, several = head.model, [(X, y) for X, y in answered if X.shape[1] > 1]
    if sum(len(X) for X, _ in several) < tuning.untested or model.scores.norm <= errors.near:
        return True
    for X, y in several:
        of = _compared(head, errors, X, y, tuning)
        evenly = X.mean(axis=1) @ model.v + model.c
        noticed = np.abs(model(X) - evenly) > tuning.noticed * (of.own + of.allowed)
        if np.any(of.telling & noticed):
            return True
    return False


def _certificate(head: PositionedHead, errors: PositionErrors, longest: int) -> Certificate:
    """Bound W(Δ) at distances up to ``RotaryTuning.farthest``, v and c; say what that assumes."""
    values, farthest = head.values, head.tuning.farthest
    W_error = float(errors.at(np.array([0.0, farthest])).max())
    bounds = {"W": W_error, "v": float(np.linalg.norm(values.v_error)), "c": values.c_error}
    if errors.biases:
        bounds["w"] = W_error
    return Certificate(
        bounds,
        (
            *assumed_of_values(values),
            f"The bound on W is one on W(Δ) = Kᵀ R(Δ) Q for distances Δ from 0 to {farthest}; "
            f"beyond it grows by {errors.turning:.1e} a token."
            + (
                " The bound on w is one on Kᵀ R(Δ) b_q and on (Q, b_q)ᵀ (R(−Δ) − I) b_k."
                if errors.biases
                else ""
            ),
            "It is several times what W(Δ) moves by when readings move by as much as they may be "
            "off, in a few random directions.",
            f"Fresh sequences were of up to {longest} tokens: positions farther apart may be "
            "something else.",
        ),
    )
