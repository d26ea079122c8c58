"""Section 4.1, the paper's way: the antisymmetric part of a Transformer is a single head.

    T(X) − T(−X) = (A w_o)·Σ_i α_i x_i,      T without biases

is a head with v = A w_o, two queries each: any learner of a single head finds W. It needs a
network without biases, and A w_o ≠ 0; both are looked up in the network that was learned. The
head's bound is for answers whose errors are relative to the differences' size: it is wider by how
much larger the answers are, or the terms that they are sums of.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.antisymmetric_part import Cancellation
from unsoftmax.learners.compose import antisymmetric, mapped
from unsoftmax.learners.transformer.attention_recovery import RecoveredAttention
from unsoftmax.measure.precision import KAPPA, Precision
from unsoftmax.measure.through_network.learned_network import LearnedNetwork
from unsoftmax.models import ReluNetwork, SingleHead, Transformer
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers, Found, Steps


def recover_antisymmetric(
    learned: LearnedNetwork, head: Steps[SingleHead], cancelled: float
) -> Generator[Round, Answers, RecoveredAttention]:
    """Learn the single head that T(X) − T(−X) is.

    Parameters
    ----------
    learned : LearnedNetwork
        The network, not constant.
    head : generator
        The steps of a learner of that head.
    cancelled : float
        Share of what its terms add up to below which A w_o, or a bias, is 0.
    """
    _refuse_biased(learned, cancelled)
    _refuse_cancelled(learned, cancelled)
    loss = Cancellation()
    found: Found[SingleHead] = yield from mapped(antisymmetric(head), answer=loss.noted)
    errors, network = found.certificate.errors, learned.network
    scores = {name: x for name, x in found.model.arrays().items() if name in "WKQ"}
    arrays = {f"network.{name}": x for name, x in network.arrays().items()}
    model = Transformer.from_arrays({**scores, **arrays})
    lost = max(loss.ratio, _terms(learned) / float(np.linalg.norm(_value(network))))
    # noise is estimated from few answers, and not from these
    coarse = 1.0 if learned.precision == Precision() else KAPPA
    return RecoveredAttention(model, coarse * lost * errors["W"], 0.0)


def _value(network: ReluNetwork) -> Array:
    """Return A w_o."""
    return np.asarray(network.A @ network.w_o)


def _terms(learned: LearnedNetwork) -> float:
    """Return Σ_k ‖A_k‖·|w_k|, what the terms of A w_o add up to."""
    network = learned.network
    return float(np.linalg.norm(network.A, axis=0) @ np.abs(network.w_o))


def _refuse_biased(learned: LearnedNetwork, cancelled: float) -> None:
    network = learned.network
    biases = float(np.abs(network.w_o) @ np.abs(network.b))
    if biases > learned.constant + cancelled * _terms(learned):
        raise ModelMismatch(
            "The network has biases: T(X) − T(−X) is not a single head. Use "
            'attention="local", which allows them.'
        )


def _refuse_cancelled(learned: LearnedNetwork, cancelled: float) -> None:
    network = learned.network
    if np.linalg.norm(_value(network)) <= cancelled * _terms(learned):
        raise NotIdentifiable(
            "A w_o = 0: T(X) − T(−X) is 0 whatever W is, and the antisymmetric part "
            'determines nothing. attention="local" learns W all the same.',
            determined={"network": network},
        )
