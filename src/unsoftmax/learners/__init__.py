"""What to ask, and what the answers mean: one module or folder per theorem, all pure.

Learners are imported when they are first named: ``import unsoftmax`` does not pay for all of
them. `BY_NAME` is how the command line calls them.
"""

from typing import TYPE_CHECKING, Any

from unsoftmax.first_use import first_use

if TYPE_CHECKING:
    from unsoftmax.learners.antisymmetric_part import Antisymmetric
    from unsoftmax.learners.attention_layer.attention_layer_learner import AttentionLayerLearner
    from unsoftmax.learners.block.block_learner import BlockLearner
    from unsoftmax.learners.feed_forward.feed_forward_learner import FeedForwardLearner
    from unsoftmax.learners.multi_head.multi_head_learner import MultiHeadLearner
    from unsoftmax.learners.multi_head_transformer.multi_head_transformer_learner import (
        MultiHeadTransformerLearner,
    )
    from unsoftmax.learners.network_algorithm import NetworkAlgorithm
    from unsoftmax.learners.orthogonal_heads.orthogonal_learner import OrthogonalHeads
    from unsoftmax.learners.relu_network.relu_learner import ReluNetworkLearner
    from unsoftmax.learners.single_head.approximate.approximate_head import ApproximateHead
    from unsoftmax.learners.single_head.exact import ExactHead
    from unsoftmax.learners.single_head.labels.label_head import LabelHead
    from unsoftmax.learners.single_head.low_rank import LowRankHead
    from unsoftmax.learners.single_head.sensing.sensing_head import SensingHead
    from unsoftmax.learners.tokens.token_head_learner import TokenHeadLearner
    from unsoftmax.learners.transformer.transformer_learner import TransformerLearner

    BY_NAME: dict[str, type[Any]]

__all__ = [
    "BY_NAME",
    "Antisymmetric",
    "ApproximateHead",
    "AttentionLayerLearner",
    "BlockLearner",
    "ExactHead",
    "FeedForwardLearner",
    "LabelHead",
    "LowRankHead",
    "MultiHeadLearner",
    "MultiHeadTransformerLearner",
    "NetworkAlgorithm",
    "OrthogonalHeads",
    "ReluNetworkLearner",
    "SensingHead",
    "TokenHeadLearner",
    "TransformerLearner",
]

MODELS = {
    "exact": "ExactHead",
    "low-rank": "LowRankHead",
    "sensing": "SensingHead",
    "approximate": "ApproximateHead",
    "labels": "LabelHead",
    "multi-head": "MultiHeadLearner",
    "relu-network": "ReluNetworkLearner",
    "transformer": "TransformerLearner",
    "multi-head-transformer": "MultiHeadTransformerLearner",
    "orthogonal-heads": "OrthogonalHeads",
    "antisymmetric": "Antisymmetric",
    "attention-layer": "AttentionLayerLearner",
    "feed-forward": "FeedForwardLearner",
    "token": "TokenHeadLearner",
    "block": "BlockLearner",
}
"""``--model`` on the command line, and the learner that it names."""

MODULES = {
    "Antisymmetric": "antisymmetric_part",
    "ApproximateHead": "single_head.approximate.approximate_head",
    "AttentionLayerLearner": "attention_layer.attention_layer_learner",
    "BlockLearner": "block.block_learner",
    "ExactHead": "single_head.exact",
    "FeedForwardLearner": "feed_forward.feed_forward_learner",
    "LabelHead": "single_head.labels.label_head",
    "LowRankHead": "single_head.low_rank",
    "MultiHeadLearner": "multi_head.multi_head_learner",
    "MultiHeadTransformerLearner": "multi_head_transformer.multi_head_transformer_learner",
    "NetworkAlgorithm": "network_algorithm",
    "OrthogonalHeads": "orthogonal_heads.orthogonal_learner",
    "ReluNetworkLearner": "relu_network.relu_learner",
    "SensingHead": "single_head.sensing.sensing_head",
    "TokenHeadLearner": "tokens.token_head_learner",
    "TransformerLearner": "transformer.transformer_learner",
}
"""Where a learner is."""


def __getattr__(name: str) -> Any:
    """Import a learner on first use (PEP 562)."""
    if name == "BY_NAME":
        value: Any = {model: __getattr__(learner) for model, learner in MODELS.items()}
        globals()[name] = value
        return value
    if name == "TokenHead":  # as the model that it learns is called
        return __getattr__("TokenHeadLearner")
    return first_use(globals(), name, [MODULES[name]] if name in MODULES else [])


def __dir__() -> list[str]:
    return __all__
