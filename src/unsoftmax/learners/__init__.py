"""What to ask, and what the answers mean: one module per theorem, all pure.

`BY_NAME` is how the command line calls the learners.
"""

from typing import Any

from unsoftmax.learners.multi_head.multi_head_learner import MultiHeadLearner
from unsoftmax.learners.orthogonal_heads.orthogonal_learner import OrthogonalHeads
from unsoftmax.learners.relu_network.relu_learner import ReluNetworkLearner
from unsoftmax.learners.single_head.approximate.approximate_head import ApproximateHead
from unsoftmax.learners.single_head.exact import ExactHead
from unsoftmax.learners.single_head.labels.label_head import LabelHead
from unsoftmax.learners.single_head.low_rank import LowRankHead
from unsoftmax.learners.single_head.sensing.sensing_head import SensingHead
from unsoftmax.learners.transformer.transformer_learner import TransformerLearner

__all__ = [
    "BY_NAME",
    "ApproximateHead",
    "ExactHead",
    "LabelHead",
    "LowRankHead",
    "MultiHeadLearner",
    "OrthogonalHeads",
    "ReluNetworkLearner",
    "SensingHead",
    "TransformerLearner",
]

BY_NAME: dict[str, type[Any]] = {
    "exact": ExactHead,
    "low-rank": LowRankHead,
    "sensing": SensingHead,
    "approximate": ApproximateHead,
    "labels": LabelHead,
    "multi-head": MultiHeadLearner,
    "relu-network": ReluNetworkLearner,
    "transformer": TransformerLearner,
    "orthogonal-heads": OrthogonalHeads,
}
