"""What to ask, and what the answers mean: one module per theorem, all pure.

`BY_NAME` is how the command line calls the learners.
"""

from typing import Any

from unsoftmax.learners.approximate.head import ApproximateHead
from unsoftmax.learners.exact_head import ExactHead
from unsoftmax.learners.labels.head import LabelHead
from unsoftmax.learners.low_rank_head import LowRankHead
from unsoftmax.learners.multi.learner import MultiHeadLearner
from unsoftmax.learners.orthogonal.heads import OrthogonalHeads
from unsoftmax.learners.relu.network import ReluNetworkLearner
from unsoftmax.learners.sensing.head import SensingHead
from unsoftmax.learners.transformer.learner import TransformerLearner

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
