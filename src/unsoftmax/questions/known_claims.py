"""Which classes of models a target may be said to serve."""

from __future__ import annotations

from collections.abc import Mapping

from unsoftmax.models import (
    AttentionLayer,
    FeedForward,
    MultiHead,
    MultiHeadTransformer,
    ReluNetwork,
    RotaryHead,
    RotaryHeads,
    RotaryLayer,
    SingleHead,
    Transformer,
)
from unsoftmax.questions.claimed_layers import ServedFeedForward, ServedLayer
from unsoftmax.questions.claimed_models import (
    Claim,
    ServedHeads,
    ServedHeadsAndNetwork,
    ServedNetwork,
    ServedTransformer,
)
from unsoftmax.questions.claimed_rotary import ServedRotaryHead
from unsoftmax.questions.claimed_turning import ServedRotaryHeads, ServedRotaryLayer
from unsoftmax.questions.left_open import LeftOpen

CLAIMS: Mapping[type, type] = {
    SingleHead: ServedHeads,
    MultiHead: ServedHeads,
    RotaryHead: ServedRotaryHead,
    RotaryHeads: ServedRotaryHeads,
    RotaryLayer: ServedRotaryLayer,
    ReluNetwork: ServedNetwork,
    Transformer: ServedTransformer,
    MultiHeadTransformer: ServedHeadsAndNetwork,
    AttentionLayer: ServedLayer,
    FeedForward: ServedFeedForward,
}
"""The claim of every model class: to add a class, write its claim and list it here."""


def claim_of(model: object, errors: Mapping[str, float] | None = None) -> Claim:
    """Return the claim that a target serves ``model``, within a certificate's bounds on it.

    Raises
    ------
    TypeError
        Nothing is known of its class.
    ValueError
        A bound is no number of 0 or more.
    """
    for kind, claim in CLAIMS.items():
        if isinstance(model, kind):
            made: Claim = claim(model)
            made.left_open = LeftOpen(errors or {})
            return made
    known = ", ".join(kind.__name__ for kind in CLAIMS)
    raise TypeError(f"model must be one of {known}; it is {type(model).__name__}.")


def can_be_claimed(model: object) -> bool:
    """Tell whether `claim_of` knows the class of a model."""
    return isinstance(model, tuple(CLAIMS))
