"""How a Transformer's learner ends: fresh answers, each within what the certificate allows.

T̂(X) = ĝ(p̂) at the pooled token p̂ = Σ_i α̂_i x_i. An answer may differ from it by

    own       |ĝ − g|(p̂) and the precision of the answer,
    allowed   ‖∇ĝ‖·Σ_i α̂_i ‖x_i − p̂‖ m_i,      m_i: what errors of W and w move score i by.

The gradient is the largest at the tokens and the pooled one, doubled.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.transformer.attention_recovery import AssumedAttention, RecoveredAttention
from unsoftmax.learners.transformer.closing_sequences import (
    ClosingSequenceTuning,
    long_sequences,
    telling_sequences,
)
from unsoftmax.learners.transformer.network_recovery import TransformerHoldOut
from unsoftmax.measure.precision import KAPPA, UNIT, Precision, why
from unsoftmax.measure.through_network.learned_network import LearnedNetwork, network_gradients
from unsoftmax.models import ReluNetwork, Transformer
from unsoftmax.models.attention import mean_shift, pooled_tokens, score_rounding, score_shift
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers, Certificate, Found
from unsoftmax.validate.head_comparison import UNBOUNDED, sum_rounding
from unsoftmax.validate.judge import Answered, Judgement, Residuals, fresh_answers, judge
from unsoftmax.validate.long_sequences import looked_at


@dataclass(frozen=True, slots=True)
class TransformerEvidenceTuning:
    """Which fresh answers are asked, and how far they may be off."""

    closing: ClosingSequenceTuning = field(default=ClosingSequenceTuning())
    """Which sequences are asked last."""
    most_moved: float = 0.01
    """A sequence one of whose scores the certificate lets move by more says nothing of the model
    and is left out. Where there is no certificate, the network must be right to this share."""
    steeper: float = 2.0
    """Factor on ‖∇ĝ‖: ĝ may be steeper on the way from p̂ to the true pooled token than at any of
    the points where its gradient is taken."""
    most_of_spread: float = 1e-6
    """Certificates are loose. Where answers are exact, no residual may be larger than this share of
    what attention may move, max‖x_i − x_N‖·‖∇g‖, … (recoveries leave 1e-8 of it, or less; as many
    times more where scores are left open by more than ``most_moved``: with W = 0 tokens may be so
    long that W is not known to 1e-6 of a logit)"""
    most_of_open: float = 2e-3
    """… or, where that is more, than this share of what scores are left open by, up to
    ``most_moved`` unless W is 0 within its bound. That is a share of the certificate, which is
    loose. (Of 470 recoveries of wide families two leave 1.3e-3 of it, with W = 0 and 1e-6
    beside a query bias: 1e-3 would refuse them.) …"""
    most_of_size: float = 1e-8
    """… plus this share of the answer's natural size, max‖x_i‖·‖∇g‖ + ``|g(0)|`` (recoveries leave
    3e-9 of it, or less)."""


@dataclass(frozen=True, slots=True)
class TransformerParts:
    """Everything that was learned of a Transformer.

    Attributes
    ----------
    attention : RecoveredAttention
        The model, and bounds on W and w.
    learned : LearnedNetwork
        Its network, with what bounds its error and the answers'.
    network : Found of ReluNetwork
        What the network's learner returned.
    assumed : AssumedAttention
        What W and w were taken to be.
    """

    attention: RecoveredAttention
    learned: LearnedNetwork
    network: Found[ReluNetwork]
    assumed: AssumedAttention

    @property
    def errors(self) -> dict[str, float]:
        """Bounds for the certificate."""
        return {
            "constant": self.learned.constant,
            "slope": self.learned.slope,
            "W": self.attention.W_error,
            "w": self.attention.w_error,
        }

    def assumes(self, checks: int, looked: str) -> tuple[str, ...]:
        """Say what the bounds rest on; ``looked`` is how far the hold-out looked."""
        learned, rank = self.learned, self.assumed.rank
        given = [
            "The target is one softmax head followed by the network: what the hold-out tests, it "
            "cannot prove."
        ]
        if rank is not None:
            given.append(f"{'[W w]' if self.assumed.biases else 'W'} has rank {rank} or less.")
        if not np.isfinite(learned.constant + learned.slope):
            given.append(
                "No bound on W: the network's certificate does not bound its function by constant "
                "+ slope·‖x‖."
            )
        given += learned.precision.why
        nothing = "Nothing was checked: exact float64 answers are taken for granted."
        given.append(looked if checks else nothing)
        return (*self.network.certificate.assumes, *given)


def conclude_transformer(
    parts: TransformerParts,
    held: TransformerHoldOut,
    rng: np.random.Generator,
    tuning: TransformerEvidenceTuning,
) -> Generator[Round, Answers, Found[Transformer]]:
    """Ask the closing hold-out and return what was found.

    Raises
    ------
    ModelMismatch
        A fresh answer is farther off than the certificate allows.
    NotIdentifiable
        The answers are too coarse to say anything of W.
    """
    model, learned = parts.attention.model, parts.learned
    long = long_sequences(model, learned, held.left, rng, tuning.closing)
    short = held.left - sum(map(len, long))
    closing = telling_sequences(model, learned, short, rng, tuning.closing)
    rounds = tuning.closing.long.rounds(long)
    answered = yield from fresh_answers(closing, [(held.opening.X, held.answers)], rounds)
    residuals = transformer_residuals(model, learned, parts.errors, answered, tuning)
    judgement = judge(residuals, held.queries)
    if judgement.refuses:
        raise _refusal(parts, judgement)
    notes = parts.network.notes
    if not np.isfinite(parts.attention.W_error):
        notes = (*notes, "There is no finite bound on W: see the certificate's assumptions.")
    looked = looked_at(model, answered, long)
    certificate = Certificate(parts.errors, parts.assumes(held.queries, looked))
    return Found(model, certificate, judgement.evidence, notes)


def transformer_residuals(
    model: Transformer,
    learned: LearnedNetwork,
    errors: Mapping[str, float],
    answered: list[Answered],
    tuning: TransformerEvidenceTuning,
) -> Residuals:
    """Compare answers with the model's, and with what bounds on its parts allow.

    Parameters
    ----------
    model, learned : Transformer, LearnedNetwork
        The model, and its network with its error.
    errors : mapping
        Bounds on "constant", "slope", "W" and "w".
    answered : list of (ndarray (B, N, d), ndarray (B,))
        Sequences and their answers.
    tuning : TransformerEvidenceTuning
        How far answers may be off beyond the bounds.
    """
    points = [TransformerAt.of(model, X, y) for X, y in answered if len(y)]
    # g may be flat at some sequences: its steepest piece sets the size of all
    steepest = max((float(at.slope.max()) for at in points), default=0.0)
    return Residuals.of_lengths(
        (at.X.shape[1], _compared(at, learned, errors, steepest, tuning)) for at in points
    )


@dataclass(frozen=True, slots=True)
class TransformerAt:
    """A model at sequences of one length: what its answers, and their errors, depend on."""

    X: Array
    """(B, N, d)."""
    y: Array
    """The target's answers, (B,)."""
    weights: Array
    """α̂, (B, N)."""
    vectors: Array
    """Ŵ x_N + ŵ, (B, d)."""
    pooled: Array
    """p̂, (B, d)."""
    slope: Array
    """Largest ‖∇ĝ‖ at the tokens and the pooled one, (B,)."""
    W_norm: float
    """‖Ŵ‖."""

    @classmethod
    def of(cls, model: Transformer, X: Array, y: Array) -> TransformerAt:
        """Put sequences (B, N, d) with answers (B,) through a model."""
        weights, vectors = model.attention(X), model.scores_of(X[:, -1])
        pooled = pooled_tokens(X, weights)
        points = np.concatenate([X, pooled[:, None]], axis=1)
        gradients = network_gradients(model.network, points.reshape(-1, model.dim))
        norms = np.linalg.norm(gradients, axis=1).reshape(points.shape[:2])
        return cls(X, y, weights, vectors, pooled, norms.max(axis=1), model.parameter_norm("W"))


def _compared(
    at: TransformerAt,
    learned: LearnedNetwork,
    errors: Mapping[str, float],
    steepest: float,
    tuning: TransformerEvidenceTuning,
) -> Residuals:
    """Compare answers to sequences of one length; ``steepest`` is the largest ‖∇ĝ‖ of all."""
    X, y, network = at.X, at.y, learned.network
    exact, bounded = learned.precision == Precision(), np.isfinite(sum(errors.values()))
    moved = score_shift(X, *(min(errors[name], UNBOUNDED) for name in "Ww"))
    # softmax ignores what all scores share, the query token's
    moved += score_rounding(X - X[:, -1:], at.vectors, KAPPA * UNIT)
    telling = not bounded or exact or np.max(moved, axis=1) <= tuning.most_moved
    deviations = np.linalg.norm(X - at.pooled[:, None], axis=2)
    shift = mean_shift(at.weights, deviations, np.minimum(moved, tuning.most_moved))
    own = learned.error(at.pooled) if bounded else tuning.most_moved * np.abs(y)
    own = own + at.slope * sum_rounding(at.weights, np.linalg.norm(X, axis=2), UNIT)
    size = np.linalg.norm(X, axis=2).max(axis=1) * steepest
    size += np.abs(network(np.zeros((1, X.shape[2]))))
    size = np.where(size > 0, size, 1.0)
    spread = np.linalg.norm(X - X[:, -1:], axis=2).max(axis=1)
    left_open = np.max(moved, axis=1) / tuning.most_moved
    known = 1.0 if errors["W"] < at.W_norm else np.inf  # W = 0 may be asked at any length
    share = tuning.most_of_open * tuning.most_moved * np.minimum(left_open, known)
    share = np.maximum(tuning.most_of_spread * np.maximum(left_open, 1.0), share)
    most = share * spread * steepest / size + tuning.most_of_size
    return Residuals.of(
        y - network(at.pooled),
        own=own + learned.answer_error(at.pooled, y),
        allowed=tuning.steeper * shift * at.slope,
        size=size,
        telling=telling,
        most=most if exact else np.inf,
    )


def _refusal(parts: TransformerParts, judgement: Judgement) -> Exception:
    """Say why fresh answers do not support the model."""
    precision = parts.learned.precision
    bounded = np.isfinite(sum(parts.errors.values()))
    if judgement.blunt or (precision != Precision() and not bounded):
        return NotIdentifiable(
            "The answers are too coarse to determine W: what they leave open moves every fresh "
            "answer more than can be told apart. The network is determined." + why(precision),
            determined={"network": parts.learned.network},
        )
    residual, tolerance = judgement.worst
    return ModelMismatch(
        f"The recovered model misses fresh sequences by {residual:.1e} of their answers' size "
        f"where {tolerance:.1e} is expected. The target is not one softmax head followed by a "
        "ReLU network, or it has query biases, or [W w] a higher rank than was said."
    )
