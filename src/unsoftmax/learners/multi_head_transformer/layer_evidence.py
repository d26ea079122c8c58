"""How several heads before a network are concluded: fresh answers, and what is certified.

f̂(X) = ĝ(p̂) at p̂, what all heads pool, Hd numbers. An answer may differ from it by

    own       constant + slope·‖p̂‖, what ĝ may be off by, and the rounding of the answer,
    allowed   Σ_h s_h·Σ_i α̂_hi ‖x_i − p̂_h‖ m_hi,    m: what errors of W_h and w_h move scores by,

s_h = Σ_j |w_o[j]|·‖B_h[j]‖ being the most that ĝ can move with p_h. Fresh sequences are those of
one head before the same network, each head in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from unsoftmax.arrangement.base_points import NetworkHinges
from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head_transformer.layer_search import RecoveredTransformer
from unsoftmax.learners.multi_head_transformer.straddling_sequences import (
    StraddlingSequences,
    StraddlingTuning,
)
from unsoftmax.learners.transformer.closing_sequences import (
    ClosingSequenceTuning,
    long_sequences,
    telling_sequences,
)
from unsoftmax.learners.transformer.network_recovery import TransformerHoldOut
from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.measure.through_network.learned_network import LearnedNetwork, network_gradients
from unsoftmax.models import MultiHeadTransformer, Transformer, canonical
from unsoftmax.models.attention import mean_shift, score_rounding, score_shift
from unsoftmax.probes import Array, Sequences
from unsoftmax.protocol import Certificate, Found, Steps
from unsoftmax.validate.head_comparison import sum_rounding
from unsoftmax.validate.judge import Answered, Judgement, Residuals, fresh_answers, judge
from unsoftmax.validate.long_sequences import looked_at
from unsoftmax.validate.sequences import by_length


@dataclass(frozen=True, slots=True)
class LayerEvidenceTuning:
    """Which fresh answers are asked, how far they may be off, and what is certified."""

    closing: ClosingSequenceTuning = field(default=ClosingSequenceTuning())
    """Which sequences are asked last."""
    confirm: int = 3
    """Fresh sequences that a layer must predict before it is believed, the hold-out apart, and
    those beside its hyperplanes."""
    straddling: StraddlingTuning = field(default=StraddlingTuning())
    """The sequences beside hyperplanes."""
    most_moved: float = 0.01
    """No score is counted as moving further than this."""
    most_of_spread: float = 1e-6
    """Certificates are loose: no residual may be larger than this share of what attention may move,
    max‖x_i − x_N‖·‖∇g‖, …"""
    most_of_size: float = 3e-8
    """… plus this share of the answer's natural size, max‖x_i‖·‖∇g‖ + ``|g(0)|``."""
    safety: float = 10.0
    """Estimated errors of W are the largest of a few simulated ones, and 60 times too large in the
    median: so many times are promised. Of 1,000 targets of 1 to 4 heads one had 5 times that, four
    weak heads in two dimensions."""
    safety_of_w: float = 140.0
    """Estimated errors of w are a standard deviation, roughly: that target had 68 times it, others
    up to 31."""


@dataclass(frozen=True, slots=True)
class LayerLook:
    """What a few fresh answers say of a layer."""

    judgement: Judgement
    beside: StraddlingSequences
    """How sequences beside its hyperplanes are made, …"""
    missed: tuple[tuple[Array, float], ...]
    """… and those that were asked, with what their answers are missed by."""
    answered: list[Answered]
    """All that was asked, now and of earlier layers."""

    @property
    def outlying(self) -> bool:
        """Whether one sequence is missed by far more than others are that were made alike."""
        missed = [each for _, each in self.missed]
        return bool(missed and max(missed) > self.beside.tuning.outlying * np.median(missed))

    def switches_apart(self, hinges: NetworkHinges) -> Asking[bool]:
        """Tell whether what is missed beside hyperplanes is predicted far away from all of them."""
        if not self.missed:
            return False
        X, missed = max(self.missed, key=lambda each: each[1])
        far = self.beside.moved_away(X, hinges)
        answered = yield from fresh_answers(by_length(far, "check", "pilot"))
        model, most = self.beside.found.model, self.beside.tuning.alike * missed
        return all(bool(np.all(np.abs(y - model(X)) <= most)) for X, y in answered)


def first_look(
    found: RecoveredTransformer,
    learned: LearnedNetwork,
    earlier: list[Answered],
    rng: np.random.Generator,
    tuning: LayerEvidenceTuning,
) -> Asking[LayerLook]:
    """Ask a few fresh sequences of a layer, some beside its hyperplanes; judge it by them.

    What was asked of ``earlier`` layers it has to predict as well.
    """
    beside = StraddlingSequences(found, learned.length, rng, tuning.straddling)
    close, bounds = beside.drawn(), bounds_of(found, learned, tuning)
    parts = [*_short(found.model, learned, tuning.confirm, rng, tuning)]
    drawn = [X for part in parts for X in part.X]
    answered = yield from fresh_answers(by_length([*close, *drawn], "check", "pilot"))
    known = [*answered, *earlier]
    judgement = judge(layer_residuals(found.model, bounds, known, tuning), len(drawn))
    return LayerLook(judgement, beside, tuple(_missed(found.model, close, answered)), known)


def _missed(
    model: MultiHeadTransformer, sequences: list[Array], answered: list[Answered]
) -> Iterator[tuple[Array, float]]:
    """Give what the answers to some sequences of one length, asked first, are missed by."""
    if sequences:
        [(X, y)] = [(X, y) for X, y in answered if X.shape[1] == len(sequences[0])]
        missed = np.abs(y - model(X))[: len(sequences)]
        yield from zip(sequences, missed.tolist(), strict=True)


def bounds_of(
    found: RecoveredTransformer, learned: LearnedNetwork, tuning: LayerEvidenceTuning
) -> dict[str, float]:
    """Return what is certified: "constant" and "slope" of the network, "W" and "w" of heads."""
    heads = {
        "W": tuning.safety * found.errors["W"],
        "w": tuning.safety_of_w * found.errors["w"],
    }
    constant = found.errors["constant"] + learned.precision.absolute
    return {"constant": constant, "slope": found.errors["slope"], **heads}


def conclude_layer(
    found: RecoveredTransformer,
    learned: LearnedNetwork,
    held: TransformerHoldOut,
    rng: np.random.Generator,
    tuning: LayerEvidenceTuning,
) -> Steps[MultiHeadTransformer]:
    """Ask the hold-out, and say how sure the layer is.

    Raises
    ------
    ModelMismatch
        A fresh answer is farther off than the certificate allows.
    """
    model, bounds = found.model, bounds_of(found, learned, tuning)
    long = _long(model, learned, held.left, rng, tuning)
    short = _short(model, learned, held.left - sum(map(len, long)), rng, tuning)
    rounds = tuning.closing.long.rounds(long)
    answered = yield from fresh_answers(short, [(held.opening.X, held.answers)], rounds)
    judgement = judge(layer_residuals(model, bounds, answered, tuning), held.queries)
    if judgement.refuses:
        raise contradicted(judgement)
    looked = looked_at(model, answered, long) if model.H else "Nothing depends on attention."
    certificate = Certificate(bounds, _assumes(learned, looked, held.queries))
    return Found(canonical(model), certificate, judgement.evidence, found.notes)


def contradicted(judgement: Judgement) -> ModelMismatch:
    """Say that fresh answers do not support the layer."""
    residual, tolerance = judgement.worst
    return ModelMismatch(
        f"The recovered layer misses fresh sequences by {residual:.1e} of their answers' size "
        f"where {tolerance:.1e} is expected: the target is not several softmax heads followed by a "
        "ReLU network of one hidden layer, or has neurons that no single token shows, "
        "or that share a hyperplane there."
    )


def layer_residuals(
    model: MultiHeadTransformer,
    errors: Mapping[str, float],
    answered: list[Answered],
    tuning: LayerEvidenceTuning,
) -> Residuals:
    """Compare answers with the layer's, and with what bounds on its parts allow."""
    points = [LayerAt.of(model, X, y) for X, y in answered if len(y)]
    steepest = max((float(at.slope.max()) for at in points), default=0.0)
    return Residuals.joined(_compared(at, model, errors, steepest, tuning) for at in points)


@dataclass(frozen=True, slots=True)
class LayerAt:
    """A layer at sequences of one length."""

    X: Array
    """(B, N, d)."""
    y: Array
    """The target's answers, (B,)."""
    weights: Array
    """α̂, (B, H, N)."""
    pooled: Array
    """p̂, (B, H, d)."""
    given: Array
    """What the network is given, (B, n): all p̂, and x_N with a residual."""
    slope: Array
    """‖∇ĝ‖ at p̂, (B,)."""

    @classmethod
    def of(cls, model: MultiHeadTransformer, X: Array, y: Array) -> LayerAt:
        """Put sequences (B, N, d) with answers (B,) through a layer."""
        given = model.given(X)
        pooled, given = given[:, : model.H], given.reshape(len(X), -1)
        slope = np.zeros(len(X))
        if given.size:
            slope = np.linalg.norm(network_gradients(model.network, given), axis=1)
        return cls(X, y, model.attention(X), pooled, given, slope)


def _compared(
    at: LayerAt,
    model: MultiHeadTransformer,
    errors: Mapping[str, float],
    steepest: float,
    tuning: LayerEvidenceTuning,
) -> Residuals:
    """Compare answers to sequences of one length; ``steepest`` is the largest ‖∇ĝ‖ of all."""
    X, H = at.X, model.H
    per_head = np.linalg.norm(model.B, axis=2) @ np.abs(model.w_o)
    bound = {name: np.full((1, H), errors[name]) for name in ("W", "w")}
    moved = score_shift(X, bound["W"], bound["w"])
    vectors = model.scores_of(X[:, -1])
    moved = moved + score_rounding(X - X[:, -1:], vectors, KAPPA * UNIT)
    away = np.linalg.norm(X[:, None] - at.pooled[:, :, None], axis=3)
    shift = mean_shift(at.weights, away, np.minimum(moved, tuning.most_moved)) @ per_head
    lengths = np.linalg.norm(X, axis=2)
    constants = float(np.abs(model.w_o) @ np.abs(model.b) + abs(model.c))
    terms = np.linalg.norm(at.pooled, axis=2) @ per_head + constants
    if model.residual is not None:
        last = np.linalg.norm(model.residual, axis=1) @ np.abs(model.w_o)
        terms = terms + last * np.linalg.norm(X[:, -1], axis=1)
    own = KAPPA * UNIT * terms + errors["constant"]
    own = own + errors["slope"] * np.linalg.norm(at.given, axis=1)
    own = own + sum_rounding(at.weights, lengths[:, None], UNIT) @ per_head
    zero = float(np.maximum(model.b, 0.0) @ model.w_o + model.c)
    size = lengths.max(axis=1) * steepest + abs(zero)
    size = np.where(size > 0, size, 1.0)
    spread = np.linalg.norm(X - X[:, -1:], axis=2).max(axis=1)
    most = tuning.most_of_spread * spread * steepest / size + tuning.most_of_size
    return Residuals.of(at.y - model(X), own=own, allowed=shift, size=size, most=most)


def _views(model: MultiHeadTransformer) -> list[Transformer]:
    """Return each head before the network that single tokens show."""
    network = model.on_single_tokens
    return [Transformer(W, network, w) for W, w in zip(model.W, model.w, strict=True)]


def _short(
    model: MultiHeadTransformer,
    learned: LearnedNetwork,
    count: int,
    rng: np.random.Generator,
    tuning: LayerEvidenceTuning,
) -> list[Sequences]:
    """Draw short sequences, each head in turn."""
    views, drawn = _views(model), []
    for h, view in enumerate(views):
        # the n-th of a head is of another kind than the one before
        own = len(range(h, count, len(views)))
        families = telling_sequences(view, learned, own, rng, tuning.closing)
        drawn += [X for family in families for X in family.X]
    return by_length(drawn, "hold-out, closing")


def _long(
    model: MultiHeadTransformer,
    learned: LearnedNetwork,
    count: int,
    rng: np.random.Generator,
    tuning: LayerEvidenceTuning,
) -> list[Sequences]:
    """Draw long sequences at logits of the strongest head."""
    if not model.H:
        return []
    strongest = int(np.argmax(np.linalg.norm(model.W, axis=(1, 2))))
    return long_sequences(_views(model)[strongest], learned, count, rng, tuning.closing)


def _assumes(learned: LearnedNetwork, looked: str, checks: int) -> tuple[str, ...]:
    return (
        "The target is several softmax heads followed by a ReLU network of one hidden layer, and "
        "single tokens show all of its neurons: what the hold-out tests, it cannot prove.",
        "The network's error is bounded by constant + slope·‖p‖, p being what all heads pool. Two "
        "neurons that switch together at single tokens, and whose first layers differ by less than "
        "5e-3 of what they are, may be one here: no bound counts what they differ by.",
        *learned.precision.why,
        looked if checks else "Nothing was checked: exact float64 answers are taken for granted.",
    )
