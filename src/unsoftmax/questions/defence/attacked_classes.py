"""Which classes of targets are attacked, and how: one table, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unsoftmax.learners import (
    ApproximateHead,
    AttentionLayerLearner,
    ExactHead,
    FeedForwardLearner,
    LowRankHead,
    MultiHeadLearner,
    OrthogonalHeads,
    ReluNetworkLearner,
    SensingHead,
)
from unsoftmax.models import AttentionLayer, FeedForward, MultiHead, ReluNetwork, SingleHead
from unsoftmax.protocol import Learner
from unsoftmax.questions.defence.attacks import (
    Attack,
    Attacker,
    Structure,
    head_error,
    head_structure,
    heads_error,
    heads_structure,
    network_attacks,
    network_structure,
    neurons_error,
    of_known_rank,
    several_heads_attacks,
    single_head_attacks,
    without_scores,
)
from unsoftmax.questions.defence.defence_ladder import Measures
from unsoftmax.questions.defence.layer_attacks import (
    ATTENTION_WITH_NORM,
    FEED_FORWARD_WITH_NORM,
    feed_forward_attacks,
    feed_forward_error,
    feed_forward_structure,
    layer_attacks,
    layer_error,
    layer_structure,
)


@dataclass(frozen=True, slots=True)
class AttackedClass:
    """How a class of targets is attacked, and what counts as an error."""

    structure: Callable[[Any], Structure]
    attacks: Callable[[Attacker, Measures], Iterator[Attack]]
    learners: tuple[type[Any], ...]
    """What recovers a target of this class undefended."""
    error: Callable[[Any, Any], float]
    """Relative error of the parameters that are to be kept, from the truth and what was found."""
    remainder: Callable[[int, Mapping[str, Any]], Any] = lambda dim, determined: None
    """What an attacker makes of a refusal's ``determined``; None for nothing."""
    finished: Callable[[Any, Structure], Any] = lambda found, structure: found
    """What an attacker makes of what it found, by what it knows of the model's size."""
    caveats: tuple[str, ...] = ()
    """What its figures leave open."""
    singles: bool = False
    """Whether legitimate sequences are single tokens, unless a sampler says otherwise."""


WEAKER = (
    "Attacks on this class are its learner of exact values, and means of repeated answers beside "
    "noise: that they fail says less than it does of a single head, against which there are more.",
)

VECTORS = (
    "Answers are vectors: the loss and the errors are root mean squares over all their numbers, "
    "and labels, which say one bit, are not tried.",
    *WEAKER,
)

ATTACKED: Mapping[type[Any], AttackedClass] = {
    SingleHead: AttackedClass(
        head_structure,
        single_head_attacks,
        (LowRankHead, ExactHead, ApproximateHead, SensingHead),
        head_error,
        without_scores,
        of_known_rank,
    ),
    MultiHead: AttackedClass(
        heads_structure,
        several_heads_attacks,
        (MultiHeadLearner, OrthogonalHeads),
        heads_error,
        caveats=WEAKER,
    ),
    ReluNetwork: AttackedClass(
        network_structure,
        network_attacks,
        (ReluNetworkLearner,),
        neurons_error,
        caveats=WEAKER,
        singles=True,
    ),
    AttentionLayer: AttackedClass(
        layer_structure,
        layer_attacks,
        (AttentionLayerLearner,),
        layer_error,
        caveats=VECTORS,
    ),
    FeedForward: AttackedClass(
        feed_forward_structure,
        feed_forward_attacks,
        (FeedForwardLearner,),
        feed_forward_error,
        caveats=VECTORS,
        singles=True,
    ),
}
"""How each class of targets is attacked."""


def unattacked(learner: Learner[Any]) -> str:
    """Say why what a learner recovers, as it is set, is not attacked; "" where it is."""
    if isinstance(learner, FeedForwardLearner) and learner.norm is not None:
        return FEED_FORWARD_WITH_NORM
    if isinstance(learner, AttentionLayerLearner) and learner.norm == "pre":
        return ATTENTION_WITH_NORM
    heads = (ExactHead, LowRankHead, MultiHeadLearner, AttentionLayerLearner)
    if isinstance(learner, heads) and (learner.rotary or learner.rotary_base is not None):
        return "No attacks are known on heads with rotary positions: defend takes heads without."
    return ""
