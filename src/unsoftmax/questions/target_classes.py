"""The classes of targets that an audit can name, and what learns them: two tables.

`sketches`: which learner is tried on a few random dimensions, under which traits of the answers.
A target that is of a class is of the same class as a function on a subspace, so a learner of k
dimensions decides with few queries, by its own hold-out, what a learner of d would cost.

`CLASSES`: what a class is, what can be recovered of it, by which learner, for how many queries.

A learner of something new joins by a row in each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax import learners, models
from unsoftmax.probes import Array
from unsoftmax.protocol import Found, Learner
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
class Sketch:
    """A learner that is tried on a few dimensions.

    Attributes
    ----------
    name : str
        What it looks for, in the words of a reason.
    dim, queries : int
        On how many dimensions, with how many queries at most.
    unfit : str
        Why it is not tried, after what answers show; "" where it is.
    learner : callable
        From a dimension and a seed to the learner.
    whole : str or None
        The class of a target of which the learner knows a part, where it is no class of its own.
    """

    name: str
    dim: int
    queries: int
    unfit: str
    learner: Callable[[int, int], Learner[Any]]
    whole: ClassName | None = None

    most_heads: ClassVar[int] = 16
    """Heads that are looked for where nothing is known of their number."""


def sketches(traits: Traits) -> tuple[Sketch, ...]:
    """Return what is tried, in this order: the first that succeeds names the class."""
    kind, singles = traits.kind, traits.singles
    reasons = {
        "far": traits.radius is not None
        and f"tokens much longer than {traits.radius:g} are refused",
        "affine": singles in ("bent", "smooth")
        and f"answers to single tokens are no affine function of them, they are {singles}",
        "bent": singles == "affine" and "answers to single tokens are affine: there is no network",
        "numbers": kind == "labels" and "answers are labels",
        "labels": kind != "labels" and "answers are no labels",
        "coarse": not traits.coarse and "answers are not coarse",
        "exact": kind != "float64" and "its learner needs float64 answers",
        "hinges": singles == "smooth" and "answers to single tokens are smooth, and not affine",
        "alone": traits.tokens == "all" and "other tokens count",
        "several": traits.tokens == "one alone"
        and "the target refuses sequences of several tokens",
        "others": traits.tokens == "the last" and "no token but the last one counts",
        "sets": traits.ordered and "the order of tokens matters",
        "means": traits.counted and "a sequence that is given twice over is answered differently",
    }

    def unless(*needed: str) -> str:
        return next((why for name in needed if (why := reasons[name])), "")

    attention = "several", "others", "sets", "means"
    heads, network = ("affine", "numbers", *attention), ("numbers", "hinges")
    behind = ("bent", *network, *attention)
    # Two dimensions are the fewest in which hyperplanes have directions, and in two heads of rank
    # one are hardly told apart; ranks below six are found at once. Networks of up to about 350
    # neurons take 5,000 queries; heads that switch at the same places 2,700, others a few hundred,
    # and a learner that searches longer searches in vain, sooner where coarse answers hide poles.
    most, few = 5000, 1500 if traits.coarse else 3500

    def several(d: int, seed: int) -> Learner[Any]:
        return _heads(d, Sketch.most_heads, traits, seed, biases=True)

    def coarsely(d: int, seed: int) -> Learner[Any]:
        return _coarsely(d, traits, seed)

    def behind_several(d: int, seed: int) -> Learner[Any]:
        return learners.MultiHeadTransformerLearner(d, Sketch.most_heads, seed=seed)

    one_or_more = [
        Sketch("a single head", 6, few, unless("far", *heads), _head),
        Sketch("several heads", 3, few, unless(*heads), several),
    ]
    if traits.coarse:  # one head would stand for two; and for one that of several is as precise
        one_or_more.reverse()
    whole: ClassName = "network behind several heads"
    return (
        *one_or_more,
        Sketch("a single head, coarsely", 2, few, unless(*heads, "coarse"), coarsely),
        Sketch("a single head's labels", 2, few, unless("labels", *attention), _by_labels),
        Sketch("a ReLU network", 2, most, unless(*network, "alone"), _network),
        Sketch("a network behind one head", 2, most, unless(*behind), _behind),
        Sketch(f"a {whole}", 3, most, unless(*behind, "exact"), behind_several),
        Sketch("a network of single tokens", 2, most, unless(*behind), _network, whole),
    )


# -- learners on a few dimensions, and of the whole


def _head(d: int, seed: int) -> Learner[Any]:
    return learners.LowRankHead(d, biases=True, seed=seed)


def _heads(d: int, most: int, traits: Traits, seed: int, *, biases: bool) -> Learner[Any]:
    return _short(learners.MultiHeadLearner(d, most, biases=biases, seed=seed), traits)


def _coarsely(d: int, traits: Traits, seed: int) -> Learner[Any]:
    error = traits.precision.absolute
    return _short(learners.ApproximateHead(d, error, repeats=4, seed=seed), traits)


def _short(learner: Any, traits: Traits) -> Learner[Any]:
    """Keep a learner's tokens, on a subspace too, within what is answered."""
    short = learner if traits.radius is None else replace(learner, radius=traits.radius / 2)
    return cast(Learner[Any], short)


def _by_labels(d: int, seed: int) -> Learner[Any]:
    return learners.LabelHead(d, 24, seed=seed)


def _network(d: int, seed: int) -> Learner[Any]:
    return learners.ReluNetworkLearner(d, seed=seed)


def _behind(d: int, seed: int) -> Learner[Any]:
    head = learners.ExactHead(d, biases=True, seed=seed)
    return learners.TransformerLearner(d, head=head, seed=seed)


def several_turning(d: int, seed: int) -> learners.MultiHeadLearner:
    """Return what learns any heads with rotary positions: several or one, biases or none."""
    # more heads than dimensions it refuses anyway
    return learners.MultiHeadLearner(d, min(d, Sketch.most_heads), True, rotary=True, seed=seed)


# -- what a model says

_NAMES: Mapping[type[Any], ClassName] = {
    models.SingleHead: "single head",
    models.MultiHead: "several heads",
    models.RotaryHead: "position-dependent",
    models.RotaryHeads: "position-dependent",
    models.ReluNetwork: "ReLU network",
    models.Transformer: "network behind one head",
    models.MultiHeadTransformer: "network behind several heads",
}


def read(found: Found[Any], traits: Traits, dim: int) -> tuple[ClassName, Facts]:
    """Return the class of a model that was recovered, and what is known of a target in ``dim``."""
    model, errors = found.model, found.certificate.errors
    name, heads = _NAMES[type(model)], {"heads": model.H} if hasattr(model, "H") else {}
    if name == "ReLU network":
        return ("linear", {}) if traits.singles == "affine" else (name, {"neurons": len(model.b)})
    if name == "position-dependent":
        facts = {"rotary": 1, **heads, "rank": model.K.shape[-2]}
        if heads:
            norms = [head.parameter_norm("w") for head in model.heads]
            facts["biases"] = _biased(norms, errors, model.c)
        return name, facts
    if "network" in name:
        residual = {} if getattr(model, "residual", None) is None else {"residual": 1}
        facts = {"neurons": len(model.network.b), **heads, **_rank(model.W, errors["W"], dim)}
        # of one head every bias that is not 0 was seen
        bounds = errors if heads else {}
        biases = _biased(np.linalg.norm(model.w, axis=-1), bounds)
        alone = heads == {"heads": 1} and not residual
        name = "network behind one head" if alone else name
        return name, {**facts, **residual, "biases": biases}
    if heads == {"heads": 0}:
        return "constant", {}
    biases = _biased(np.linalg.norm(model.w), errors, model.c)
    if heads.get("heads", 1) > 1:
        return name, {**heads, **_rank(model.W, errors["W"], dim), "biases": biases}
    if all(model.parameter_norm(part) <= errors[part] for part in ("W", "w")):
        return "linear", {"biases": biases}
    return "single head", {**_rank(model.W, errors["W"], dim), "biases": biases}


def _biased(norms: ArrayLike, errors: Mapping[str, float], c: float = 0.0) -> int:
    """Whether answers show biases of queries or keys, or a constant."""
    seen = np.any(np.asarray(norms) > errors.get("w", 0.0)) or abs(c) > errors.get("c", 0.0)
    return int(seen)


def _rank(W: Array, error: float, dim: int) -> dict[str, int]:
    """Return the largest rank as far as it is known: at full rank more dimensions may show more."""
    values = np.linalg.svd(np.reshape(W, (-1, *W.shape[-2:])), compute_uv=False)
    if not len(values):
        return {}
    rank = int(np.max(np.sum(values > np.maximum(error, 1e-9 * values[:, :1]), axis=1)))
    return {"rank" if rank < W.shape[-1] or rank == dim else "rank_at_least": rank}


def is_sharp(found: Found[Any]) -> bool:
    """Whether fresh answers were predicted, and bounds leave nothing else open.

    A result that leaves more open than a fiftieth fits targets of other classes.
    """
    if not found.evidence.passed:
        return False
    sharp, model, errors = 0.02, found.model, found.certificate.errors
    network = getattr(model, "network", model)
    if isinstance(network, models.ReluNetwork):
        points = np.random.default_rng(0).standard_normal((64, network.dim))
        points /= np.sqrt(network.dim)
        # near 0, or far from it, a network may be constant
        if not any(
            errors["constant"] + errors["slope"] * length
            <= sharp * float(np.std(network(length * points)))
            for length in (1.0, 4.0, 16.0)
        ):
            return False
    if "W" not in errors:
        return True
    error, size = errors["W"], model.parameter_norm("W")
    # a W that is 0 within its bound counts as 0 where that is small
    return bool(error <= sharp * size or size <= error <= 1e-6)


# -- what is known of a class


class TargetClass(NamedTuple):
    """What can be had of a class of targets, in a sentence, and by which learner of the whole.

    That is made from dimension, facts, traits and seed; None: there is none, or what would have
    found the facts that it needs has refused.
    """

    recoverable: str
    learner: Callable[[int, Facts, Traits, int], Learner[Any] | None] = lambda *_: None


def _linear(d: int, facts: Facts, traits: Traits, seed: int) -> Learner[Any]:
    if traits.tokens != "all":
        return _network(d, seed)
    return learners.LowRankHead(d, rank=0, biases=True, seed=seed)


def _single(d: int, facts: Facts, traits: Traits, seed: int) -> Learner[Any]:
    biases = bool(facts.get("biases", 0))
    if traits.kind == "labels":
        return _by_labels(d, seed)
    if (traits.coarse and biases) or (traits.radius is not None and not traits.coarse):
        return _heads(d, 4, traits, seed, biases=biases)
    if traits.coarse:
        return _coarsely(d, traits, seed)
    kind = learners.LowRankHead if "rank" in facts else learners.ExactHead
    return kind(d, biases=biases, seed=seed)


def _several(d: int, facts: Facts, traits: Traits, seed: int) -> Learner[Any]:
    # a head that the sketch has missed is found
    return _heads(d, 2 * facts["heads"] + 2, traits, seed, biases=bool(facts["biases"]))


def _behind_several(d: int, facts: Facts, traits: Traits, seed: int) -> Learner[Any] | None:
    if "heads" not in facts:
        return None
    most = 2 * facts["heads"] + 2  # as for several heads alone
    return learners.MultiHeadTransformerLearner(d, most, seed=seed)


def _turning(d: int, facts: Facts, traits: Traits, seed: int) -> Learner[Any]:
    """Return the learner of one head where nothing speaks against it: it takes fewer queries."""
    if facts.get("rotary") and not facts.get("biases"):
        return learners.LowRankHead(d, rotary=True, seed=seed)
    return several_turning(d, seed)


def typical_cost(
    learner: Learner[Any], facts: Facts, traits: Traits, holdout: int
) -> tuple[int, int]:
    """Return queries and tokens that a learner typically takes, and its hold-out.

    Of positions what one head takes, or as many as are known, of rank d unless that is known.
    """
    plan, fresh = learner.plan(), _holdout_tokens(learner, holdout)
    if plan.queries is not None:
        return plan.queries + holdout, plan.tokens + fresh
    d, heads, neurons = int(learner.dim), facts.get("heads", 1), facts.get("neurons", 0)
    kind, rotary = type(learner), getattr(learner, "rotary", False)
    singles, biases = 0, bool(facts.get("biases"))
    rank = facts.get("rank", d if rotary else None)
    if kind is learners.LowRankHead:
        of_one = counts.rotary_head_queries if rotary else counts.low_rank_head
        queries = of_one(d, rank or 0, biases=biases and not rotary) + 2 * d
    elif kind is learners.MultiHeadLearner and rotary:
        queries = counts.rotary_heads_queries(d, heads, rank or 0, biases=True)
    elif kind is learners.MultiHeadLearner:
        queries = counts.multi_head(d, heads, rank, biases=biases) + heads * (d + 16) + d + 40
        if traits.kind == "float32":
            queries = round(2.2 * queries)  # 1.6 to 3.2 times as many, of 18
    else:
        singles = queries = counts.relu_network_queries(d, neurons)
        if kind is learners.TransformerLearner:
            queries += d * d + 2 * d
        elif kind is learners.MultiHeadTransformerLearner:
            residual = "residual" in facts
            queries = counts.multi_head_transformer_queries(d, heads, neurons, residual=residual)
    return queries + holdout, 2 * queries - singles + fresh


def counted_for(learner: Learner[Any], facts: Facts) -> str:
    """Say what that is counted for where it is not known how many heads turn, and of which rank."""
    if "rank" in facts or not getattr(learner, "rotary", False):
        return ""
    one = f"if it is one head of rank {learner.dim}"
    formula = "about H(2dr + 3r + 2d + 16) + d + 40"
    if type(learner) is learners.MultiHeadLearner:
        return f"{one}; H heads of rank r take {formula}"
    return (
        f"{one} without biases, fewer if its rank is lower; H heads of rank r, which "
        "MultiHeadLearner recovers from float64 answers where one does not answer so, take "
        f"{formula} more"
    )


def _holdout_tokens(learner: Learner[Any], holdout: int) -> int:
    """Return how many tokens a learner's hold-out has, about: most are in its few long sequences.

    Of those each learner asks as many as its hold-out's end allows: the end of several heads' is
    all of it, that of labels comes in pairs, two ends beside each flip.
    """
    if learner.plan().most_tokens == 1:
        return holdout
    ends = {
        learners.MultiHeadLearner: [holdout],
        learners.LabelHead: 2 * [(holdout - Shares.of(holdout).opening) // 2],
    }.get(type(learner), [Shares.of(holdout).closing])
    long = [shape.tokens for end in ends for shape in LongSequenceTuning().of(end, learner.dim)]
    return sum(long) + 4 * (holdout - len(long))  # the others have 1 to 20, on average 3 to 5


CLASSES: dict[ClassName, TargetClass] = {
    "constant": TargetClass("The constant, which every answer is."),
    "linear": TargetClass(
        "Everything: the value vector v and the constant c, from single tokens.",
        _linear,
    ),
    "single head": TargetClass(
        "Everything: W (all that keys and queries do), v (what values and output do), biases.",
        _single,
    ),
    "several heads": TargetClass(
        "Everything that answers depend on: W_h and v_h of every head, up to their order; heads "
        "that score alike are one.",
        _several,
    ),
    "ReLU network": TargetClass(
        "The function: every hyperplane, and every slope between them.",
        lambda d, facts, traits, seed: _network(d, seed),
    ),
    "network behind one head": TargetClass(
        "W, query biases, and the network's function.",
        lambda d, facts, traits, seed: _behind(d, seed),
    ),
    "network behind several heads": TargetClass(
        "Everything that answers depend on, behind float64: W_h, query biases, and the first layer "
        "of the network behind each head. Behind coarser answers the network of single tokens, "
        "whose first layer is the sum of these.",
        _behind_several,
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
    ),
    "none of these": TargetClass("Nothing, by a learner that there is."),
    "undecided": TargetClass("Not known."),
}
