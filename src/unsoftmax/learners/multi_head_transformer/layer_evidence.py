"""How several heads before a network are concluded: fresh answers, and what is certified.

The closing is that of one head (`transformer.hold_out`), each head in turn. A layer is believed
after a first look: a few such sequences, and some beside its hyperplanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.arrangement.base_points import NetworkHinges
from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head_transformer.layer_search import RecoveredTransformer
from unsoftmax.learners.multi_head_transformer.straddling_sequences import (
    StraddlingSequences,
    StraddlingTuning,
)
from unsoftmax.learners.transformer.hold_out import (
    HeadsBeforeNetwork,
    TransformerEvidenceTuning,
    TransformerHoldOut,
)
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.through_network.learned_network import LearnedNetwork
from unsoftmax.models import MultiHeadTransformer, canonical
from unsoftmax.probes import Array
from unsoftmax.protocol import Certificate, Found, Steps
from unsoftmax.validate.judge import Answered, Judgement, fresh_answers, judge
from unsoftmax.validate.sequences import by_length


@dataclass(frozen=True, slots=True)
class LayerEvidenceTuning:
    """Which fresh answers are asked, how far they may be off, and what is certified."""

    closing: TransformerEvidenceTuning = field(
        default=TransformerEvidenceTuning(most_of_open=0.0, most_of_size=3e-8)
    )
    """Which sequences are asked last, and how far their answers may be off."""
    confirm: int = 3
    """Fresh sequences that a layer must predict before it is believed, the hold-out apart, and
    those beside its hyperplanes."""
    straddling: StraddlingTuning = field(default=StraddlingTuning())
    """The sequences beside hyperplanes."""
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
    close, layer = beside.drawn(), _certified(found, learned, tuning)
    drawn = [X for part in layer.short(tuning.confirm, rng) for X in part.X]
    answered = yield from fresh_answers(by_length([*close, *drawn], "check", "pilot"))
    known = [*answered, *earlier]
    judgement = judge(layer.residuals(known), len(drawn))
    return LayerLook(judgement, beside, tuple(_missed(found.model, close, answered)), known)


def _missed(
    model: MultiHeadTransformer, sequences: list[Array], answered: list[Answered]
) -> Iterator[tuple[Array, float]]:
    """Give what the answers to some sequences of one length, asked first, are missed by."""
    if sequences:
        [(X, y)] = [(X, y) for X, y in answered if X.shape[1] == len(sequences[0])]
        missed = np.abs(y - model(X))[: len(sequences)]
        yield from zip(sequences, missed.tolist(), strict=True)


def _certified(
    found: RecoveredTransformer, learned: LearnedNetwork, tuning: LayerEvidenceTuning
) -> HeadsBeforeNetwork:
    """Put what is certified to a layer: the little noise of its answers is in the constant."""
    errors = {
        "constant": found.errors["constant"] + learned.precision.absolute,
        "slope": found.errors["slope"],
        "W": tuning.safety * found.errors["W"],
        "w": tuning.safety_of_w * found.errors["w"],
    }
    exact = replace(learned, precision=Precision())
    return HeadsBeforeNetwork.of(found.model, exact, errors, tuning.closing)


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
    layer = _certified(found, learned, tuning)
    judgement, looked = yield from layer.judged(held, rng)
    if judgement.refuses:
        raise _contradicted(judgement)
    certificate = Certificate(layer.errors, _assumes(learned, looked))
    return Found(canonical(found.model), certificate, judgement.evidence, found.notes)


def _contradicted(judgement: Judgement) -> ModelMismatch:
    """Say that fresh answers do not support the layer."""
    residual, tolerance = judgement.worst
    return ModelMismatch(
        f"The recovered layer misses fresh sequences by {residual:.1e} of their answers' size "
        f"where {tolerance:.1e} is expected: the target is not several softmax heads followed by a "
        "ReLU network of one hidden layer, or has neurons that no single token shows, "
        "or that share a hyperplane there."
    )


def _assumes(learned: LearnedNetwork, looked: str) -> tuple[str, ...]:
    return (
        "The target is several softmax heads followed by a ReLU network of one hidden layer, and "
        "single tokens show all of its neurons: what the hold-out tests, it cannot prove.",
        "The network's error is bounded by constant + slope·‖p‖, p being what all heads pool. Two "
        "neurons that switch together at single tokens, and whose first layers differ by less than "
        "5e-3 of what they are, may be one here: no bound counts what they differ by.",
        *learned.precision.why,
        looked,
    )
