"""The classes of targets that an audit can name, and what learns them: two tables.

`SKETCHES`: which learner is tried on a few random dimensions, under which traits of the answers.
A target that is of a class is of the same class as a function on a subspace, so a learner of k
dimensions decides with few queries, by its own hold-out, what a learner of d would cost.

`CLASSES`: what a class is, what can be recovered of it, by which learner, for how many queries.

A learner of something new joins by a row in each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from unsoftmax.learners import (
    ApproximateHead,
    ExactHead,
    LabelHead,
    LowRankHead,
    MultiHeadLearner,
    MultiHeadTransformerLearner,
    ReluNetworkLearner,
    TransformerLearner,
)
from unsoftmax.models import (
    MultiHead,
    MultiHeadTransformer,
    ReluNetwork,
    RotaryHead,
    RotaryHeads,
    SingleHead,
    Transformer,
)
from unsoftmax.probes import Array
from unsoftmax.protocol import Certificate, Found, Learner
from unsoftmax.questions.answer_traits import Traits
from unsoftmax.theory import counts
from unsoftmax.validate.long_sequences import LongSequenceTuning
from unsoftmax.validate.sequences import Shares

ClassName: TypeAlias = Literal[
    "constant",
    "linear",
    "single head",
    "several heads",
    "ReLU network",
    "network behind one head",
    "network behind several heads",
    "normalised vectors",
    "normalised tokens",
    "position-dependent",
    "none of these",
    "undecided",
]
Facts: TypeAlias = Mapping[str, int]
"""What is known of a target: heads, rank or rank_at_least, neurons, biases, rotary."""


@dataclass(frozen=True, slots=True)
class SketchTuning:
    """Knobs of what is tried on a few dimensions, and of when its result is believed."""

    head_dim: int = 6
    """Dimensions for a single head: ranks below that are found at once."""
    dim: int = 2
    """Dimensions for all else: two is the fewest in which hyperplanes have directions."""
    heads_dim: int = 3
    """Dimensions for several heads: in two those of rank one are hardly told apart."""
    larger: int = 4
    """While a single head has full rank, so many times as many dimensions are tried,"""
    share: int = 8
    """up to d over this."""
    most_heads: int = 16
    label_bits: int = 24
    queries: int = 5000
    """Queries of one sketch: networks of up to about 350 neurons."""
    head_queries: int = 3500
    """The same for heads: those that switch at the same places take 2,700, others a few hundred;
    a learner that searches longer searches in vain."""
    coarse_queries: int = 1500
    """The same where answers are coarse, and poles are not told apart."""
    per_entry: int = 4
    """So many queries per entry of a W are not too many, as where a rank is looked for."""
    repeats: int = 4
    """Passes of the learner for answers that are coarse."""
    sharp: float = 0.02
    """A result counts where its bounds are below this share of what they bound: one that leaves
    more open fits targets of other classes."""
    nothing: float = 1e-6
    """A W that is 0 within its bound counts as 0 where the bound is below this."""
    lengths: tuple[float, ...] = (1.0, 4.0, 16.0)
    """Norms of the tokens at which a bound on a network is compared with its values; near 0, or far
    from it, it may be constant."""
    points: int = 64
    float32_heads: float = 2.2
    """Several heads behind float32 take so many times the queries: 1.6 to 3.2 times, of 18."""
    fresh_tokens: int = 4
    """Tokens of a hold-out's other sequences, the long ones apart: 1 to 20, on average 3 to 5."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """A learner that is tried on a few dimensions.

    Attributes
    ----------
    name : str
        What it looks for, in the words of a reason.
    dim, queries : int
        On how many dimensions, with how many queries at most.
    unfit : callable
        From traits to the sentence that excludes it, or None.
    learner : callable
        From a dimension, traits and a seed to the learner.
    whole : str or None
        The class of a target of which the learner knows a part, where it is no class of its own.
    """

    name: str
    dim: int
    queries: int
    unfit: Callable[[Traits], str | None]
    learner: Callable[[int, Traits, int], Learner[Any]]
    whole: ClassName | None = None


# -- why something is not tried


def _not_attention(traits: Traits) -> str | None:
    if traits.tokens == "one alone":
        return "the target refuses sequences of several tokens"
    if traits.tokens == "the last":
        return "no token but the last one counts"
    if traits.ordered:
        return "the order of tokens matters"
    if traits.counted:
        return "a sequence that is given twice over is answered differently"
    return None


def _no_heads(traits: Traits) -> str | None:
    if traits.singles in ("bent", "smooth"):
        return f"answers to single tokens are no affine function of them, they are {traits.singles}"
    if traits.kind == "labels":
        return "answers are labels"
    return _not_attention(traits)


def _no_long_tokens(traits: Traits) -> str | None:
    if traits.radius is not None:
        return f"tokens much longer than {traits.radius:g} are refused"
    return _no_heads(traits)


def _not_coarse(traits: Traits) -> str | None:
    return _no_heads(traits) or (None if traits.coarse else "answers are not coarse")


def _no_network(traits: Traits) -> str | None:
    if traits.kind == "labels":
        return "answers are labels"
    if traits.singles == "smooth":
        return "answers to single tokens are smooth, and not affine"
    return None


def _not_alone(traits: Traits) -> str | None:
    return _no_network(traits) or ("other tokens count" if traits.tokens == "all" else None)


def _not_behind(traits: Traits) -> str | None:
    if traits.singles == "affine":
        return "answers to single tokens are affine: there is no network"
    return _no_network(traits) or _not_attention(traits)


def _not_exactly_behind(traits: Traits) -> str | None:
    exact = "its learner needs float64 answers"
    return _not_behind(traits) or (None if traits.kind == "float64" else exact)


def _no_labels(traits: Traits) -> str | None:
    return "answers are no labels" if traits.kind != "labels" else _not_attention(traits)


def sketches(traits: Traits, tuning: SketchTuning) -> tuple[Sketch, ...]:
    """Return what is tried, in this order: the first that succeeds names the class."""
    heads, bits = tuning.head_queries, tuning.label_bits
    if traits.coarse:
        heads = tuning.coarse_queries

    def several(d: int, traits: Traits, seed: int) -> Learner[Any]:
        return _short(MultiHeadLearner(d, tuning.most_heads, biases=True, seed=seed), traits)

    def coarse(d: int, traits: Traits, seed: int) -> Learner[Any]:
        return _short(
            ApproximateHead(d, traits.tolerance, repeats=tuning.repeats, seed=seed), traits
        )

    one_or_more = [
        Sketch("a single head", tuning.head_dim, heads, _no_long_tokens, _head),
        Sketch("several heads", tuning.heads_dim, heads, _no_heads, several),
    ]
    if traits.coarse:  # one head would stand for two; and for one that of several is as precise
        one_or_more.reverse()
    return (
        *one_or_more,
        Sketch("a single head, coarsely", tuning.dim, heads, _not_coarse, coarse),
        Sketch(
            "a single head's labels",
            tuning.dim,
            heads,
            _no_labels,
            lambda d, traits, seed: LabelHead(d, bits, seed=seed),
        ),
        Sketch("a ReLU network", tuning.dim, tuning.queries, _not_alone, _network),
        Sketch("a network behind one head", tuning.dim, tuning.queries, _not_behind, _behind),
        Sketch(
            "a network behind several heads",
            tuning.heads_dim,
            tuning.queries,
            _not_exactly_behind,
            lambda d, traits, seed: MultiHeadTransformerLearner(d, tuning.most_heads, seed=seed),
        ),
        Sketch(
            "a network of single tokens",
            tuning.dim,
            tuning.queries,
            _not_behind,
            _network,
            whole="network behind several heads",
        ),
    )


def _short(
    learner: MultiHeadLearner | ApproximateHead, traits: Traits
) -> MultiHeadLearner | ApproximateHead:
    """Keep a learner's tokens, on a subspace too, within what is answered."""
    return learner if traits.radius is None else replace(learner, radius=traits.radius / 2)


def _head(d: int, traits: Traits, seed: int) -> Learner[Any]:
    return LowRankHead(d, biases=True, seed=seed)


def _network(d: int, traits: Traits, seed: int) -> Learner[Any]:
    return ReluNetworkLearner(d, seed=seed)


def _behind(d: int, traits: Traits, seed: int) -> Learner[Any]:
    return TransformerLearner(d, head=ExactHead(d, biases=True, seed=seed), seed=seed)


# -- what a model says


def read(found: Found[Any], traits: Traits, dim: int) -> tuple[ClassName, Facts]:
    """Return the class of a model that was recovered, and what is known of a target in ``dim``."""
    model, errors = found.model, found.certificate.errors
    if isinstance(model, ReluNetwork):
        affine = traits.singles == "affine"
        return ("linear", {}) if affine else ("ReLU network", {"neurons": model.A.shape[1]})
    if isinstance(model, Transformer):
        facts = {"neurons": model.network.A.shape[1], **_rank(model.W, errors["W"], dim)}
        return "network behind one head", {**facts, "biases": int(bool(np.any(model.w)))}
    if isinstance(model, MultiHeadTransformer):
        facts = {"neurons": len(model.b), "heads": model.H, **_ranks(model.W, errors["W"], dim)}
        if model.residual is not None:
            facts["residual"] = 1
        one: ClassName = "network behind one head"
        alone = model.H == 1 and model.residual is None
        name: ClassName = one if alone else "network behind several heads"
        biased = np.any(np.linalg.norm(model.w, axis=1) > errors["w"])
        return name, {**facts, "biases": int(biased)}
    if isinstance(model, MultiHead):
        if model.H > 1:
            facts = {"heads": model.H, **_ranks(model.W, errors["W"], dim)}
            return "several heads", {**facts, "biases": _biases(model, errors)}
        if not model.H:
            return "constant", {}
        [model] = model.heads
    if isinstance(model, RotaryHead):
        return "position-dependent", {"rotary": 1, "rank": len(model.K)}
    if isinstance(model, RotaryHeads):
        facts = {"rotary": 1, "heads": model.H, "rank": model.K.shape[1]}
        return "position-dependent", {**facts, "biases": _biases_of_turning(model, errors)}
    assert isinstance(model, SingleHead)
    if np.linalg.norm(model.W) <= errors["W"] and np.linalg.norm(model.w) <= errors["w"]:
        return "linear", {"biases": _biases(model, errors)}
    return "single head", {**_rank(model.W, errors["W"], dim), "biases": _biases(model, errors)}


def _biases(model: Any, errors: Mapping[str, float]) -> int:
    """Whether answers show a query bias, or a constant."""
    seen = np.linalg.norm(model.w) > errors.get("w", 0.0) or abs(model.c) > errors.get("c", 0.0)
    return int(seen)


def _biases_of_turning(model: RotaryHeads, errors: Mapping[str, float]) -> int:
    """Whether answers show biases of keys or queries, or a constant."""
    heads, bound = model.heads, errors.get("w", 0.0)
    seen = bool(heads) and max(head.parameter_norm("w") for head in heads) > bound
    return int(seen or abs(model.c) > errors.get("c", 0.0))


def _ranks(W: Array, error: float, dim: int) -> dict[str, int]:
    """Return the largest rank of several heads' matrices."""
    ranks = [_rank(one, error, dim) for one in W]
    return max(ranks, key=lambda rank: max(rank.values()), default={})


def _rank(W: Array, error: float, dim: int) -> dict[str, int]:
    """Return the rank as far as it is known: at full rank more dimensions may show more."""
    values = np.linalg.svd(W, compute_uv=False)
    rank = int(np.sum(values > max(error, 1e-9 * values[0]))) if len(values) else 0
    return {"rank" if rank < len(W) or rank == dim else "rank_at_least": rank}


def is_sharp(found: Found[Any], tuning: SketchTuning) -> bool:
    """Whether fresh answers were predicted, and bounds leave nothing else open."""
    if not found.evidence.passed:
        return False
    certificate, model = found.certificate, found.model
    network = getattr(model, "network", model)
    if isinstance(network, ReluNetwork) and not _function_is_known(network, certificate, tuning):
        return False
    if "W" not in certificate.errors:
        return True
    error, size = certificate.errors["W"], model.parameter_norm("W")
    return bool(error <= tuning.sharp * size or (size <= error and error <= tuning.nothing))


def _function_is_known(network: ReluNetwork, bound: Certificate, tuning: SketchTuning) -> bool:
    points = np.random.default_rng(0).standard_normal((tuning.points, network.dim))
    points /= np.sqrt(network.dim)
    constant, slope = bound.errors["constant"], bound.errors["slope"]
    return any(
        constant + slope * length <= tuning.sharp * float(np.std(network(length * points)))
        for length in tuning.lengths
    )


# -- what is known of a class


@dataclass(frozen=True, slots=True)
class TargetClass:
    """A class of targets.

    Attributes
    ----------
    recoverable : str
        What can be had of it, in a sentence.
    learner : callable or None
        From dimension, facts, traits and seed to the learner of the whole; None: there is none.
    queries : callable or None
        What it takes, typically, from that learner and facts, where its own plan does not say;
        None: the plan says.
    singles : callable or None
        How many of those have one token, from the same; the others have two. None: none.
    needed : tuple of str
        Facts without which there is no learner: what would have found them has refused.
    counted : callable or None
        What those queries are counted for, in words, where facts that decide are not known; from
        the same. None, and no words: they are known.
    """

    recoverable: str
    learner: Callable[[int, Facts, Traits, int], Learner[Any]] | None = None
    queries: Callable[[Learner[Any], Facts], int] | None = None
    singles: Callable[[Learner[Any], Facts], int] | None = None
    needed: tuple[str, ...] = ()
    counted: Callable[[Learner[Any], Facts], str] | None = None


def _linear(d: int, facts: Facts, traits: Traits, seed: int) -> Learner[Any]:
    if traits.tokens != "all":
        return ReluNetworkLearner(d, seed=seed)
    return LowRankHead(d, rank=0, biases=True, seed=seed)


def _single(d: int, facts: Facts, traits: Traits, seed: int) -> Learner[Any]:
    biases = bool(facts.get("biases", 0))
    if traits.kind == "labels":
        return LabelHead(d, SketchTuning().label_bits, seed=seed)
    if (traits.coarse and biases) or (traits.radius is not None and not traits.coarse):
        return _short(MultiHeadLearner(d, 4, biases=biases, seed=seed), traits)
    if traits.coarse:
        passes = SketchTuning().repeats
        return _short(ApproximateHead(d, traits.tolerance, repeats=passes, seed=seed), traits)
    if "rank" in facts:
        return LowRankHead(d, biases=biases, seed=seed)
    return ExactHead(d, biases=biases, seed=seed)


def _several(d: int, facts: Facts, traits: Traits, seed: int) -> Learner[Any]:
    # a head that the sketch has missed is found
    most = 2 * facts["heads"] + 2
    return _short(MultiHeadLearner(d, most, biases=bool(facts["biases"]), seed=seed), traits)


def _behind_several(d: int, facts: Facts, traits: Traits, seed: int) -> Learner[Any]:
    most = 2 * facts["heads"] + 2  # as for several heads alone
    return MultiHeadTransformerLearner(d, most, seed=seed)


def several_turning(d: int, seed: int) -> MultiHeadLearner:
    """Return what learns any heads with rotary positions: several or one, biases or none."""
    # more heads than dimensions it refuses anyway
    most = min(d, SketchTuning().most_heads)
    return MultiHeadLearner(d, most, biases=True, rotary=True, seed=seed)


def _turning(d: int, facts: Facts, traits: Traits, seed: int) -> Learner[Any]:
    """Return the learner of one head where nothing speaks against it: it takes fewer queries."""
    if facts.get("rotary") and not facts.get("biases"):
        return LowRankHead(d, rotary=True, seed=seed)
    return several_turning(d, seed)


def _queries_of_heads(learner: Learner[Any], facts: Facts) -> int:
    d, heads = int(learner.dim), facts.get("heads", 1)
    free = counts.multi_head(d, heads, facts.get("rank"), biases=bool(facts["biases"]))
    return free + heads * (d + 16) + d + 40


def _queries_of_head(learner: Learner[Any], facts: Facts) -> int:
    if isinstance(learner, MultiHeadLearner):
        return _queries_of_heads(learner, facts)
    d = int(learner.dim)
    return counts.low_rank_head(d, facts["rank"], biases=bool(facts["biases"])) + 2 * d


def _queries_of_turning(learner: Learner[Any], facts: Facts) -> int:
    """Return what one head takes, or as many as are known, of rank d unless that is known."""
    d = int(learner.dim)
    heads, rank = facts.get("heads", 1), facts.get("rank", d)
    if isinstance(learner, MultiHeadLearner):
        return counts.rotary_heads_queries(d, heads, rank, biases=True)
    return counts.rotary_head_queries(d, rank) + 2 * d


def _counted_of_turning(learner: Learner[Any], facts: Facts) -> str:
    """Say that how many heads there are, and of which rank, is not known before."""
    if "rank" in facts:
        return ""
    d = int(learner.dim)
    formula = "about H(2dr + 3r + 2d + 16) + d + 40"
    if isinstance(learner, MultiHeadLearner):
        return f"if it is one head of rank {d}; H heads of rank r take {formula}"
    return (
        f"if it is one head of rank {d} without biases, fewer if its rank is lower; H heads of "
        "rank r, which MultiHeadLearner recovers from float64 answers where one does not answer "
        f"so, take {formula} more"
    )


def _queries_behind_one_head(learner: Learner[Any], facts: Facts) -> int:
    d = int(learner.dim)
    return _queries_of_network(learner, facts) + d * d + 2 * d


def _queries_behind_several_heads(learner: Learner[Any], facts: Facts) -> int:
    heads, neurons = facts["heads"], facts["neurons"]
    return counts.multi_head_transformer_queries(
        int(learner.dim), heads, neurons, residual="residual" in facts
    )


def _queries_of_network(learner: Learner[Any], facts: Facts) -> int:
    return counts.relu_network_queries(int(learner.dim), facts.get("neurons", 0))


def holdout_tokens(learner: Learner[Any], holdout: int, tuning: SketchTuning) -> int:
    """Return how many tokens a learner's hold-out has, about: most are in its few long sequences.

    Of those each learner asks as many as its hold-out's end allows: the end of several heads' is
    all of it, that of labels comes in pairs, two ends beside each flip.
    """
    if learner.plan().most_tokens == 1:
        return holdout
    if isinstance(learner, MultiHeadLearner):
        ends = [holdout]
    elif isinstance(learner, LabelHead):
        ends = 2 * [(holdout - Shares.of(holdout).opening) // 2]
    else:
        ends = [Shares.of(holdout).closing]
    long = [shape.tokens for end in ends for shape in LongSequenceTuning().of(end, learner.dim)]
    return sum(long) + tuning.fresh_tokens * (holdout - len(long))


CLASSES: dict[ClassName, TargetClass] = {
    "constant": TargetClass("The constant, which every answer is."),
    "linear": TargetClass(
        "Everything: the value vector v and the constant c, from single tokens.",
        _linear,
        _queries_of_network,
        singles=_queries_of_network,
    ),
    "single head": TargetClass(
        "Everything: W (all that keys and queries do), v (what values and output do), biases.",
        _single,
        _queries_of_head,
    ),
    "several heads": TargetClass(
        "Everything that answers depend on: W_h and v_h of every head, up to their order; heads "
        "that score alike are one.",
        _several,
        _queries_of_heads,
    ),
    "ReLU network": TargetClass(
        "The function: every hyperplane, and every slope between them.",
        lambda d, facts, traits, seed: _network(d, traits, seed),
        _queries_of_network,
        singles=_queries_of_network,
    ),
    "network behind one head": TargetClass(
        "W, query biases, and the network's function.",
        lambda d, facts, traits, seed: _behind(d, traits, seed),
        _queries_behind_one_head,
        singles=_queries_of_network,
    ),
    "network behind several heads": TargetClass(
        "Everything that answers depend on, behind float64: W_h, query biases, and the first layer "
        "of the network behind each head. Behind coarser answers the network of single tokens, "
        "whose first layer is the sum of these.",
        _behind_several,
        _queries_behind_several_heads,
        singles=_queries_of_network,
        needed=("heads",),
    ),
    "normalised vectors": TargetClass(
        "An attention layer with its residual connection and LayerNorm, if it is one, by "
        "AttentionLayerLearner from vectors; a feed-forward layer with its residual connection and "
        "norm, by FeedForwardLearner."
    ),
    "normalised tokens": TargetClass(
        "An attention layer after a LayerNorm or RMSNorm, if it is one, with its residual "
        'connection or without, by AttentionLayerLearner (norm="pre") from vectors.'
    ),
    "position-dependent": TargetClass(
        "Where positions are rotary: a single head by LowRankHead and ExactHead, one or several by "
        "MultiHeadLearner, of vectors a layer without a norm by AttentionLayerLearner, each with "
        "rotary=True; biases of keys and queries too, of heads with biases=True.",
        _turning,
        _queries_of_turning,
        counted=_counted_of_turning,
    ),
    "none of these": TargetClass("Nothing, by a learner that there is."),
    "undecided": TargetClass("Not known."),
}
