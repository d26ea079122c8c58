"""Which classes of targets are attacked, and how: one table, and nowhere else.

Layers of vectors are attacked by the learners of vectors. Labels say nothing of a vector, and
longer or shorter tokens are what the learners choose already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment

from unsoftmax import learners, models
from unsoftmax.models.equality import canonical
from unsoftmax.probes import Array
from unsoftmax.protocol import Learner
from unsoftmax.questions.defence.attacks import (
    Attack,
    Attacker,
    Structure,
    by_learner,
    single_head_attacks,
)
from unsoftmax.theory import counts
from unsoftmax.theory.information import layer_parameters


class AttackedClass(NamedTuple):
    """How a class of targets is attacked, and what counts as an error."""

    structure: Callable[[Any], Structure]
    parts: Callable[[Any], list[Array]]
    """What is to be kept: arrays of parts, heads or neurons, whose order answers do not tell."""
    learners: tuple[str, ...]
    """What recovers a target of this class undefended, by its name."""
    learner: Callable[[Structure], Learner[Any]] | None
    """What attacks; None: `single_head_attacks` do."""
    caveats: tuple[str, ...] = ()
    """What its figures leave open."""
    neurons: bool = False
    """Whether parts are known up to sign, and legitimate sequences are single tokens, unless a
    sampler says otherwise."""

    def attacks(self, by: Attacker) -> Iterator[Attack]:
        """Yield the attacks on a target of this class."""
        if self.learner is None:
            return single_head_attacks(by)
        return by_learner(by, self.learner(by.structure))


WEAKER = (
    "Attacks on this class are its learner of exact values, and means of repeated answers beside "
    "noise: that they fail says less than it does of a single head, against which there are more.",
)

VECTORS = (
    "Answers are vectors: the loss and the errors are root mean squares over all their numbers, "
    "and labels, which say one bit, are not tried.",
    *WEAKER,
)

ATTENTION_WITH_NORM = (
    "No attacks are known on layers with a norm before them, or with RMSNorm: defend takes plain "
    "layers and layers behind a LayerNorm."
)
FEED_FORWARD_WITH_NORM = (
    "No attacks are known on feed-forward layers with a norm: defend takes plain ones."
)
POSITIONS = "No attacks are known on heads with rotary positions: defend takes heads without."


# -- what is known without asking


def _heads(model: models.SingleHead | models.MultiHead) -> Structure:
    d, [scores], w = model.dim, _scores(model), np.reshape(model.w, (-1, model.dim, 1))
    H, rank, biases = len(w), _rank(np.concatenate([scores, w], 2)), bool(np.any(w) or model.c)
    return Structure(d, H, rank, biases, counts.multi_head(d, H, rank, biases=biases))


def _network(model: models.ReluNetwork) -> Structure:
    d, m = model.dim, len(model.b)
    return Structure(d, m, d, True, m * (d + 2) + 1)


def _layer(layer: models.AttentionLayer) -> Structure:
    if layer.norm is not None and (layer.norm.before or not layer.norm.centred):
        raise ValueError(ATTENTION_WITH_NORM)
    d, (scores, _) = layer.dim, _scores_and_values(layer)
    H, rank, parameters = len(scores), _rank(scores), layer_parameters(layer)
    typical = counts.attention_layer_queries(d, max(1, H), max(1, rank)) + d
    return Structure(d, H, rank, True, parameters, layer.outputs, typical)


def _feed_forward(layer: models.FeedForward) -> Structure:
    if layer.norm is not None:
        raise ValueError(FEED_FORWARD_WITH_NORM)
    d, m, width = layer.dim, len(layer.b), layer.outputs
    parameters, typical = (
        f(d, m, width) for f in (counts.feed_forward, counts.feed_forward_queries)
    )
    return Structure(d, m, d, True, parameters, width, typical + d)


def _rank(matrices: Array) -> int:
    """Return the largest rank of several matrices; 0 of none."""
    return int(np.max(np.linalg.matrix_rank(matrices), initial=0))


# -- what counts as an error


def _scores(model: Any) -> list[Array]:
    """Return all W_h of one head or several."""
    return [np.reshape(model.W, (-1, model.dim, model.dim))]


def _scores_and_values(layer: models.AttentionLayer) -> list[Array]:
    """Return all W_h, and all M_h."""
    heads = canonical(layer).heads
    return [np.array([head.W for head in heads]), np.array([head.M for head in heads])]


def _jumps(model: Any) -> list[Array]:
    """Return what derivatives of the answers by tokens jump by, B_j (A_j, b_j)."""
    [neurons] = model.maps.leaves.values()
    return [neurons.B.T[:, :, None] * np.column_stack([neurons.A, neurons.a])[:, None]]


def parameters_error(truth: Any, found: Any) -> float:
    """Return the relative error of what is to be kept of a model; of several arrays the largest.

    A single head's W is compared with the nearest W_h of several: none is worse than W = 0.
    """
    known = attacked_class(truth)
    pairs = zip(known.parts(truth), known.parts(found), strict=True)
    return max(matched_error(*pair, signed=not known.neurons) for pair in pairs)


def matched_error(truth: ArrayLike, found: ArrayLike, *, signed: bool = True) -> float:
    """Return the relative error of the best matching of parts; what is missing counts whole.

    Parts are known up to sign where they are not ``signed``.
    """
    arrays = (np.asarray(parts, dtype=np.float64) for parts in (truth, found))
    mine, its = (parts.reshape(len(parts), int(np.prod(parts.shape[1:]))) for parts in arrays)
    cost = np.zeros((len(mine), len(its)))
    for row, part in zip(cost, mine, strict=True):
        row[:] = np.sum((part - its) ** 2, axis=1)
        if not signed:
            row[:] = np.minimum(row, np.sum((part + its) ** 2, axis=1))
    rows, columns = linear_sum_assignment(cost)
    missing = np.setdiff1d(np.arange(len(mine)), rows)
    squares = float(np.sum(cost[rows, columns]) + np.sum(mine[missing] ** 2))
    return math.sqrt(squares) / (float(np.linalg.norm(mine)) or 1.0)


ATTACKED: Mapping[type[Any], AttackedClass] = {
    models.SingleHead: AttackedClass(
        _heads, _scores, ("LowRankHead", "ExactHead", "ApproximateHead", "SensingHead"), None
    ),
    models.MultiHead: AttackedClass(
        _heads,
        _scores,
        ("MultiHeadLearner", "OrthogonalHeads"),
        lambda of: learners.MultiHeadLearner(of.dim, of.units, of.biases),
        WEAKER,
    ),
    models.ReluNetwork: AttackedClass(
        _network,
        _jumps,
        ("ReluNetworkLearner",),
        lambda of: learners.ReluNetworkLearner(of.dim, max_neurons=2 * of.units + 2),
        WEAKER,
        neurons=True,
    ),
    models.AttentionLayer: AttackedClass(
        _layer,
        _scores_and_values,
        ("AttentionLayerLearner",),
        lambda of: learners.AttentionLayerLearner(of.dim, max_heads=of.units or None),
        VECTORS,
    ),
    models.FeedForward: AttackedClass(
        _feed_forward,
        _jumps,
        ("FeedForwardLearner",),
        lambda of: learners.FeedForwardLearner(of.dim),
        VECTORS,
        neurons=True,
    ),
}
"""How each class of targets is attacked."""


def attacked_class(model: Any) -> AttackedClass:
    """Return how a model's class is attacked.

    Raises
    ------
    ValueError
        No attacks are known for it.
    """
    if type(model) not in ATTACKED:
        names = ", ".join(kind.__name__ for kind in ATTACKED)
        raise ValueError(f"No attacks are known on a {type(model).__name__}: defend takes {names}.")
    return ATTACKED[type(model)]


def check_learner(learner: Any, dim: int) -> None:
    """Refuse a learner whose models cannot be attacked, before anything is paid.

    Raises
    ------
    ValueError
        It recovers another class, or what no attack is known on, or takes another dimension.
    """
    name, norm = type(learner).__name__, getattr(learner, "norm", None)
    known = [own for each in ATTACKED.values() for own in each.learners]
    if name not in known:
        raise ValueError(
            f"What {name} recovers is not attacked here: defend recovers the target with one of "
            f"{', '.join(known)}."
        )
    if learner.dim != dim:
        raise ValueError(f"The learner takes tokens of dimension {learner.dim}, not {dim}.")
    if name == "FeedForwardLearner" and norm is not None:
        raise ValueError(FEED_FORWARD_WITH_NORM)
    if norm == "pre":
        raise ValueError(ATTENTION_WITH_NORM)
    if getattr(learner, "rotary", False) or getattr(learner, "rotary_base", None) is not None:
        raise ValueError(POSITIONS)
