"""Attacks on layers that answer with vectors, and what counts as an error of one.

The attacks are the learners of vectors, and the same from means of repeated answers beside noise.
Labels say nothing of a vector, and longer or shorter tokens are what the learners choose already.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unsoftmax.learners import AttentionLayerLearner, FeedForwardLearner
from unsoftmax.models import AttentionLayer, FeedForward
from unsoftmax.models.equality import canonical
from unsoftmax.probes import Array
from unsoftmax.questions.defence.attacks import (
    Attack,
    Attacker,
    Structure,
    matched_error,
    with_averages,
)
from unsoftmax.questions.defence.defence_ladder import Measures
from unsoftmax.theory import counts
from unsoftmax.theory.information import layer_parameters

ATTENTION_WITH_NORM = (
    "No attacks are known on layers with a norm before them, or with RMSNorm: defend takes plain "
    "layers and layers behind a LayerNorm."
)
FEED_FORWARD_WITH_NORM = (
    "No attacks are known on feed-forward layers with a norm: defend takes plain ones."
)


def layer_structure(layer: AttentionLayer) -> Structure:
    """Return what is known of an attention layer.

    Raises
    ------
    ValueError
        No attacks on it are known.
    """
    norm = layer.norm
    if norm is not None and (norm.before or not norm.centred):
        raise ValueError(ATTENTION_WITH_NORM)
    kept = canonical(layer)
    rank = max((np.linalg.matrix_rank(head.W) for head in kept.heads), default=0)
    biases = bool(any(np.any(head.w) for head in kept.heads) or np.any(layer.c))
    return Structure(
        layer.dim, kept.H, int(rank), biases, layer_parameters(kept), per_answer=layer.outputs
    )


def layer_attacks(attacker: Attacker, measures: Measures) -> Iterator[Attack]:
    """Yield the attacks on an attention layer."""
    of = attacker.structure
    learner = AttentionLayerLearner(of.dim, max_heads=of.units or None, seed=attacker.seed)
    behind = max(1, of.units), max(1, of.rank)
    typical = counts.attention_layer_queries(of.dim, *behind) + of.dim
    yield from with_averages("AttentionLayerLearner", learner, attacker, measures, typical)


def layer_error(truth: AttentionLayer, found: AttentionLayer) -> float:
    """Return the relative error of all W_h or of all M_h, heads matched: the larger one."""
    truth, found = canonical(truth), canonical(found)
    errors = [0.0]
    for name in ("W", "M"):
        mine, its = (np.array([getattr(h, name) for h in one.heads]) for one in (truth, found))
        mine, its = mine.reshape(truth.H, -1), its.reshape(found.H, mine[:1].size)
        errors.append(matched_error(np.sum((mine[:, None] - its) ** 2, axis=2), mine))
    return max(errors)


def feed_forward_structure(layer: FeedForward) -> Structure:
    """Return what is known of a feed-forward layer.

    Raises
    ------
    ValueError
        No attacks on it are known.
    """
    if layer.norm is not None:
        raise ValueError(FEED_FORWARD_WITH_NORM)
    m, width = len(layer.b), len(layer.c)
    parameters = counts.feed_forward(layer.dim, m, width)
    return Structure(layer.dim, m, layer.dim, True, parameters, per_answer=width)


def feed_forward_attacks(attacker: Attacker, measures: Measures) -> Iterator[Attack]:
    """Yield the attacks on a feed-forward layer."""
    of = attacker.structure
    learner = FeedForwardLearner(of.dim, seed=attacker.seed)
    typical = counts.feed_forward_queries(of.dim, of.units, of.per_answer) + of.dim
    yield from with_averages("FeedForwardLearner", learner, attacker, measures, typical)


def feed_forward_error(truth: FeedForward, found: FeedForward) -> float:
    """Return the relative error of the Jacobian's jumps B_j (A_j, b_j), known up to sign."""
    mine, its = _jumps(truth), _jumps(found)
    near, far = (np.array([[_apart(x, y, s) for y in its] for x in mine]) for s in (1.0, -1.0))
    cost = np.minimum(near, far).reshape(len(mine), len(its))
    sizes = np.array([[np.linalg.norm(u) * np.linalg.norm(v)] for u, v in mine]).reshape(-1, 1)
    return matched_error(cost, sizes)


def _jumps(layer: FeedForward) -> list[tuple[Array, Array]]:
    return list(zip(np.column_stack([layer.A, layer.b]), layer.B.T, strict=True))


def _apart(one: tuple[Array, Array], other: tuple[Array, Array], sign: float) -> float:
    """Return ‖u vᵀ ∓ u' v'ᵀ‖²."""
    return float(np.sum((np.outer(*one) - sign * np.outer(*other)) ** 2))
