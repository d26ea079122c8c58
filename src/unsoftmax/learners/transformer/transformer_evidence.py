"""How a Transformer's learner ends: the closing hold-out, and what its certificate says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.transformer.attention_recovery import AssumedAttention, RecoveredAttention
from unsoftmax.learners.transformer.closing import HeadsBeforeNetwork, TransformerEvidenceTuning
from unsoftmax.learners.transformer.network_recovery import TransformerHoldOut
from unsoftmax.measure.precision import Precision, why
from unsoftmax.measure.through_network.learned_network import LearnedNetwork
from unsoftmax.models import ReluNetwork, Transformer
from unsoftmax.protocol import Certificate, Found, Steps
from unsoftmax.validate.judge import Judgement


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

    def assumes(self, looked: str) -> tuple[str, ...]:
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
        return (*self.network.certificate.assumes, *given, *learned.precision.why, looked)


def conclude_transformer(
    parts: TransformerParts,
    held: TransformerHoldOut,
    rng: np.random.Generator,
    tuning: TransformerEvidenceTuning,
) -> Steps[Transformer]:
    """Ask the closing hold-out and return what was found.

    Raises
    ------
    ModelMismatch
        A fresh answer is farther off than the certificate allows.
    NotIdentifiable
        The answers are too coarse to say anything of W.
    """
    model, errors = parts.attention.model, parts.errors
    found = HeadsBeforeNetwork.of(model, parts.learned, errors, tuning)
    judgement, looked = yield from found.judged(held, rng)
    if judgement.refuses:
        raise _refusal(found, judgement)
    notes = parts.network.notes
    if not np.isfinite(errors["W"]):
        notes = (*notes, "There is no finite bound on W: see the certificate's assumptions.")
    return Found(model, Certificate(errors, parts.assumes(looked)), judgement.evidence, notes)


def _refusal(found: HeadsBeforeNetwork, judgement: Judgement) -> Exception:
    """Say why fresh answers do not support the model."""
    precision = found.learned.precision
    if judgement.blunt or (precision != Precision() and not found.bounded):
        return NotIdentifiable(
            "The answers are too coarse to determine W: what they leave open moves every fresh "
            "answer more than can be told apart. The network is determined." + why(precision),
            determined={"network": found.learned.network},
        )
    residual, tolerance = judgement.worst
    return ModelMismatch(
        f"The recovered model misses fresh sequences by {residual:.1e} of their answers' size "
        f"where {tolerance:.1e} is expected. The target is not one softmax head followed by a "
        "ReLU network, or it has query biases, or [W w] a higher rank than was said."
    )
