"""Which classes of targets are attacked, and how: one table, and nowhere else.

Layers of vectors are attacked by the learners of vectors. Labels say nothing of a vector, and
longer or shorter tokens are what the learners choose already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment

from unsoftmax import learners, models
from unsoftmax.models.equality import canonical
from unsoftmax.probes import Array
from unsoftmax.questions.defence.attacks import (
    Attack,
    Attacker,
    Attacks,
    Structure,
    several_heads_attacks,
    single_head_attacks,
    with_averages,
)
from unsoftmax.questions.defence.legitimate_use import Measures
from unsoftmax.theory import counts
from unsoftmax.theory.information import layer_parameters


@dataclass(frozen=True, slots=True)
class AttackedClass:
    """How a class of targets is attacked, and what counts as an error."""

    structure: Callable[[Any], Structure]
    attacks: Attacks
    learners: tuple[str, ...]
    """What recovers a target of this class undefended, by its name."""
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

ATTENTION_WITH_NORM = (
    "No attacks are known on layers with a norm before them, or with RMSNorm: defend takes plain "
    "layers and layers behind a LayerNorm."
)
FEED_FORWARD_WITH_NORM = (
    "No attacks are known on feed-forward layers with a norm: defend takes plain ones."
)


# -- what is known without asking


def _head_structure(model: models.SingleHead) -> Structure:
    d, biases = model.dim, bool(np.any(model.w) or model.c)
    scores = np.column_stack([model.W, model.w]) if biases else model.W
    rank = int(np.linalg.matrix_rank(scores))
    return Structure(d, 1, rank, biases, counts.low_rank_head(d, rank, biases=biases))


def _heads_structure(model: models.MultiHead) -> Structure:
    d, H, biases = model.dim, model.H, bool(np.any(model.w) or model.c)
    rank = _rank(model.W)
    return Structure(d, H, rank, biases, counts.multi_head(d, H, rank, biases=biases))


def _network_structure(model: models.ReluNetwork) -> Structure:
    neurons = len(model.w_o)
    return Structure(model.dim, neurons, model.dim, True, neurons * (model.dim + 2) + 1)


def _layer_structure(layer: models.AttentionLayer) -> Structure:
    norm = layer.norm
    if norm is not None and (norm.before or not norm.centred):
        raise ValueError(ATTENTION_WITH_NORM)
    kept = canonical(layer)
    biases = bool(any(np.any(head.w) for head in kept.heads) or np.any(layer.c))
    rank, parameters = _rank(head.W for head in kept.heads), layer_parameters(kept)
    return Structure(layer.dim, kept.H, rank, biases, parameters, per_answer=layer.outputs)


def _feed_forward_structure(layer: models.FeedForward) -> Structure:
    if layer.norm is not None:
        raise ValueError(FEED_FORWARD_WITH_NORM)
    m, width = len(layer.b), len(layer.c)
    parameters = counts.feed_forward(layer.dim, m, width)
    return Structure(layer.dim, m, layer.dim, True, parameters, per_answer=width)


def _rank(matrices: Iterable[Array]) -> int:
    return max((int(np.linalg.matrix_rank(W)) for W in matrices), default=0)


# -- attacks by the learners of a class


def _network_attacks(attacker: Attacker, measures: Measures) -> Iterator[Attack]:
    of = attacker.structure
    if not measures.labels:
        most = 2 * of.units + 2
        network = learners.ReluNetworkLearner(of.dim, max_neurons=most, seed=attacker.seed)
        yield from with_averages(network, attacker, measures)


def _layer_attacks(attacker: Attacker, measures: Measures) -> Iterator[Attack]:
    of = attacker.structure
    layer = learners.AttentionLayerLearner(of.dim, max_heads=of.units or None, seed=attacker.seed)
    typical = counts.attention_layer_queries(of.dim, max(1, of.units), max(1, of.rank)) + of.dim
    return with_averages(layer, attacker, measures, typical)


def _feed_forward_attacks(attacker: Attacker, measures: Measures) -> Iterator[Attack]:
    of = attacker.structure
    layer = learners.FeedForwardLearner(of.dim, seed=attacker.seed)
    typical = counts.feed_forward_queries(of.dim, of.units, of.per_answer) + of.dim
    return with_averages(layer, attacker, measures, typical)


# -- what counts as an error


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


def _head_error(truth: models.SingleHead, found: models.SingleHead | models.MultiHead) -> float:
    """Return the relative error of W; none of several heads is worse than W = 0."""
    return matched_error(truth.W[None], np.reshape(found.W, (-1, *truth.W.shape)))


def heads_error(truth: models.MultiHead, found: models.MultiHead) -> float:
    """Return the relative error of all W_h, heads matched."""
    return matched_error(truth.W, found.W)


def neurons_error(truth: models.ReluNetwork, found: models.ReluNetwork) -> float:
    """Return the relative error of the gradient's jumps w_j (A_j, b_j), known up to sign."""

    def jumps(network: models.ReluNetwork) -> Array:
        return np.vstack([network.A, network.b]).T * network.w_o[:, None]

    return matched_error(jumps(truth), jumps(found), signed=False)


def layer_error(truth: models.AttentionLayer, found: models.AttentionLayer) -> float:
    """Return the relative error of all W_h or of all M_h, heads matched: the larger one."""
    mine, its = canonical(truth).heads, canonical(found).heads
    return max(
        matched_error([getattr(h, name) for h in mine], [getattr(h, name) for h in its])
        for name in ("W", "M")
    )


def feed_forward_error(truth: models.FeedForward, found: models.FeedForward) -> float:
    """Return the relative error of the Jacobian's jumps B_j (A_j, b_j), known up to sign."""

    def jumps(layer: models.FeedForward) -> Array:
        return layer.B.T[:, :, None] * np.column_stack([layer.A, layer.b])[:, None]

    return matched_error(jumps(truth), jumps(found), signed=False)


# -- what else an attacker knows


def _of_known_rank(found: Any, structure: Structure) -> Any:
    """Return a head whose W has the rank that it is known to have: errors of full rank leave."""
    if type(found) is not models.SingleHead or structure.rank >= structure.dim:
        return found
    U, sizes, V = np.linalg.svd(found.W)
    r = structure.rank
    return models.SingleHead((U[:, :r] * sizes[:r]) @ V[:r], found.v, found.w, found.c)


def _without_scores(dim: int, determined: Mapping[str, Any]) -> models.SingleHead | None:
    """Return the head that an attacker who knows v alone goes on with."""
    if "v" not in determined:
        return None
    W = determined.get("W", np.zeros((dim, dim)))
    return models.SingleHead(W, determined["v"], None, float(determined.get("c", 0.0)))


ATTACKED: Mapping[type[Any], AttackedClass] = {
    models.SingleHead: AttackedClass(
        _head_structure,
        single_head_attacks,
        ("LowRankHead", "ExactHead", "ApproximateHead", "SensingHead"),
        _head_error,
        _without_scores,
        _of_known_rank,
    ),
    models.MultiHead: AttackedClass(
        _heads_structure,
        several_heads_attacks,
        ("MultiHeadLearner", "OrthogonalHeads"),
        heads_error,
        caveats=WEAKER,
    ),
    models.ReluNetwork: AttackedClass(
        _network_structure,
        _network_attacks,
        ("ReluNetworkLearner",),
        neurons_error,
        caveats=WEAKER,
        singles=True,
    ),
    models.AttentionLayer: AttackedClass(
        _layer_structure,
        _layer_attacks,
        ("AttentionLayerLearner",),
        layer_error,
        caveats=VECTORS,
    ),
    models.FeedForward: AttackedClass(
        _feed_forward_structure,
        _feed_forward_attacks,
        ("FeedForwardLearner",),
        feed_forward_error,
        caveats=VECTORS,
        singles=True,
    ),
}
"""How each class of targets is attacked."""


def unattacked(learner: Any) -> str:
    """Say why what a learner recovers, as it is set, is not attacked; "" where it is."""
    norm = getattr(learner, "norm", None)
    if type(learner) is learners.FeedForwardLearner and norm is not None:
        return FEED_FORWARD_WITH_NORM
    if norm == "pre":
        return ATTENTION_WITH_NORM
    rotary = getattr(learner, "rotary", False) or getattr(learner, "rotary_base", None) is not None
    known = "No attacks are known on heads with rotary positions: defend takes heads without."
    return known if rotary else ""
