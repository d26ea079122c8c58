"""The classes of targets that an audit can name, and what learns them: three tables.

`sketches`: which learner is tried on a few random dimensions, under which traits of the answers.
A target that is of a class is of the same class as a function on a subspace, so a learner of k
dimensions decides with few queries, by its own hold-out, what a learner of d would cost.

`RECOVERABLE`: what can be recovered of a class. `LEARNERS`: by which learner of the whole.

A learner of something new joins by a row in each.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax import learners, models
from unsoftmax.probes import Array
from unsoftmax.protocol import Found, Learner, vocabulary_of
from unsoftmax.questions.answer_traits import Traits
from unsoftmax.theory import counts
from unsoftmax.validate.long_sequences import shapes_of
from unsoftmax.validate.sequences import Shares

ClassName: TypeAlias = Literal[
    "constant",
    "linear",
    "single head",
    "several heads",
    "ReLU network",
    "network behind one head",
    "network behind several heads",
    "probabilities",
    "classes",
    "normalised vectors",
    "normalised tokens",
    "smooth feed-forward layer",
    "whole block",
    "position-dependent",
    "head behind a table",
    "head behind a vocabulary",
    "layer behind a table",
    "several heads behind a vocabulary",
    "tokens of its own",
    "none of these",
    "undecided",
]
UNNAMED: tuple[ClassName, ...] = ("none of these", "undecided")
"""What says that a target is of no class that is known."""
Facts: TypeAlias = Mapping[str, int]
"""What is known: heads or heads_at_least, rank or rank_at_least, neurons, biases, rotary, gated."""


Builder: TypeAlias = Callable[[int, int, Traits, Facts], Learner[Any] | None]
"""Makes a learner for a dimension and a seed, of what is known; nothing is before it is tried."""

REFUSES = "the target refuses"
"""How the reason begins why a learner is not tried that is no evidence against its class."""

MOST_HEADS = 16
"""Heads that are looked for where nothing is known of their number."""


class Sketch(NamedTuple):
    """A learner that is tried on a few dimensions."""

    name: str
    """What it looks for, in the words of a reason."""
    dim: int
    queries: int
    """On how many dimensions, with how many queries at most."""
    unfit: str
    """Why it is not tried, after what answers show; "" where it is."""
    learner: Builder
    whole: ClassName | None = None
    """The class of a target of which it knows a part, where that is no class of its own."""


def sketches(traits: Traits) -> tuple[Sketch, ...]:
    """Return what is tried, in this order: the first that succeeds names the class."""
    kind, singles = traits.kind, traits.singles
    reasons = {
        "far": traits.radius is not None and f"{REFUSES} tokens much longer than {traits.radius:g}",
        "affine": singles in ("bent", "smooth")
        and f"answers to single tokens are not affine but {singles}",
        "bent": singles == "affine" and "answers to single tokens are affine: there is no network",
        "numbers": kind == "labels" and "answers are labels",
        "labels": kind != "labels" and "answers are no labels",
        "coarse": not traits.coarse and "answers are not coarse",
        "exact": kind != "float64" and "its learner needs float64 answers",
        "hinges": singles == "smooth" and "answers to single tokens are smooth but not affine",
        "alone": traits.tokens == "all" and "other tokens count",
        "several": traits.tokens == "one alone" and f"{REFUSES} sequences of two tokens",
        "others": traits.tokens == "the last" and "only the last token counts",
    }

    def unless(*needed: str) -> str:
        return next((why for name in needed if (why := reasons[name])), "")

    attention = "several", "others"
    heads, network = ("affine", "numbers", *attention), ("numbers", "hinges")
    behind = ("bent", *network, *attention)
    # Two dimensions are the fewest in which hyperplanes have directions, and in two heads of rank
    # one are hardly told apart; ranks below six are found at once. Networks of up to about 350
    # neurons take 5,000 queries; heads that switch at the same places 2,700, others a few hundred,
    # and a learner that searches longer searches in vain, sooner where coarse answers hide poles.
    # Coarse heads under a cap hardly switch: 4,400.
    far = traits.radius is not None
    most, few = 5000, (5000 if far else 1500) if traits.coarse else 3500

    one_or_more = [
        Sketch("a single head", 6, few, unless("far", *heads), _head),
        Sketch("several heads", 3, few, unless(*heads), _heads),
    ]
    if traits.coarse:  # one head would stand for two; and for one that of several is as precise
        one_or_more.reverse()
    whole: ClassName = "network behind several heads"
    return (
        *one_or_more,
        Sketch("a single head, coarsely", 2, few, unless(*heads, "coarse"), _coarsely),
        Sketch("a single head's labels", 2, few, unless("labels", *attention), _by_labels),
        Sketch("a ReLU network", 2, most, unless(*network, "alone"), _network),
        Sketch("a network behind one head", 2, most, unless(*behind), _behind),
        Sketch(f"a {whole}", 3, most, unless(*behind, "exact"), _behind_several),
        Sketch("a network of single tokens", 2, most, unless(*behind), _network, whole),
    )


# -- learners on a few dimensions, and of the whole


def _head(d: int, seed: int, *known: object) -> Learner[Any]:
    return learners.LowRankHead(d, biases=True, seed=seed)


def _heads(d: int, seed: int, traits: Traits, facts: Facts) -> Learner[Any]:
    biases = bool(facts.get("biases", True))
    learner = learners.MultiHeadLearner(d, _most_heads(facts), biases=biases, seed=seed)
    return _short(learner, traits)


def _most_heads(facts: Facts) -> int:
    # a head that the sketch has missed is found
    return 2 * facts["heads"] + 2 if "heads" in facts else MOST_HEADS


def _coarsely(d: int, seed: int, traits: Traits, facts: Facts) -> Learner[Any]:
    error = traits.precision.absolute
    return _short(learners.ApproximateHead(d, error, repeats=4, seed=seed), traits)


def _short(learner: Any, traits: Traits) -> Learner[Any]:
    """Keep a learner's tokens, on a subspace too, within what is answered."""
    short = learner if traits.radius is None else replace(learner, radius=traits.radius / 2)
    return cast(Learner[Any], short)


def _by_labels(d: int, seed: int, *known: object) -> Learner[Any]:
    return learners.LabelHead(d, 24, seed=seed)


def _network(d: int, seed: int, *known: object) -> Learner[Any]:
    return learners.ReluNetworkLearner(d, seed=seed)


def _behind(d: int, seed: int, *known: object) -> Learner[Any]:
    head = learners.ExactHead(d, biases=True, seed=seed)
    return learners.TransformerLearner(d, head=head, seed=seed)


def _behind_several(d: int, seed: int, traits: Traits, facts: Facts) -> Learner[Any] | None:
    if facts and "heads" not in facts:  # what would have found them has refused
        return None
    return learners.MultiHeadTransformerLearner(d, _most_heads(facts), seed=seed)


def _linear(d: int, seed: int, traits: Traits, facts: Facts) -> Learner[Any]:
    if traits.tokens != "all":
        return _network(d, seed)
    return learners.LowRankHead(d, rank=0, biases=True, seed=seed)


def _single(d: int, seed: int, traits: Traits, facts: Facts) -> Learner[Any]:
    biases, capped = bool(facts["biases"]), traits.radius is not None
    if traits.kind == "labels":
        return _by_labels(d, seed)
    if biases if traits.coarse else capped:
        return _heads(d, seed, traits, {**facts, "heads": 1})
    if traits.coarse:
        return _coarsely(d, seed, traits, facts)
    kind = learners.LowRankHead if "rank" in facts else learners.ExactHead
    return kind(d, biases=biases, seed=seed)


def _smooth(d: int, seed: int, *known: object) -> Learner[Any]:
    return learners.FeedForwardLearner(d, seed=seed)


def _turning(d: int, seed: int, traits: Traits, facts: Facts) -> Learner[Any]:
    """Return the learner of one head where nothing speaks against it: it takes fewer queries."""
    if facts.get("rotary") and not facts.get("biases"):
        return learners.LowRankHead(d, rotary=True, seed=seed)
    return several_turning(d, seed)


def several_turning(d: int, seed: int) -> learners.MultiHeadLearner:
    """Return what learns any heads with rotary positions: several or one, biases or none."""
    # more heads than dimensions it refuses anyway
    return learners.MultiHeadLearner(d, min(d, MOST_HEADS), True, rotary=True, seed=seed)


LEARNERS: Mapping[ClassName, Builder] = {
    "linear": _linear,
    "single head": _single,
    "several heads": _heads,
    "ReLU network": _network,
    "network behind one head": _behind,
    "network behind several heads": _behind_several,
    "position-dependent": _turning,
    "smooth feed-forward layer": _smooth,
}
RECOVERABLE: Mapping[ClassName, str] = {
    "constant": "The constant, which every answer is.",
    "linear": "Everything: the value vector v and the constant c, from single tokens.",
    "single head": "Everything: W (keys and queries), v (values and output), and biases.",
    "several heads": "Everything that answers depend on: W_h and v_h of every head, up to their "
    "order. Heads with equal scores count as one.",
    "ReLU network": "The function: every hyperplane, and the slopes between them.",
    "network behind one head": "W, query biases, and the network's function.",
    "network behind several heads": "From float64 answers, everything they depend on: W_h, query "
    "biases, and the network's first layer for each head. From coarser answers, the network of "
    "single tokens, whose first layer is the sum of these.",
    "normalised vectors": "Whether a whole block, as BERT's, serves weights that you have: verify "
    "names what differs. From vectors: an attention layer with its residual connection and "
    "LayerNorm, by AttentionLayerLearner; a feed-forward layer with its residual connection and "
    "LayerNorm or RMSNorm, by FeedForwardLearner. From ids of a known table: the norm, and M and c "
    "up to one factor, in the refusal of AttentionLayerLearner(dim, table=E).",
    "normalised tokens": "From vectors: an attention layer after a LayerNorm or RMSNorm, with or "
    'without a residual connection, by AttentionLayerLearner (norm="pre").',
    "smooth feed-forward layer": "Everything that answers depend on, if it has one hidden layer: "
    "weights and biases of every neuron and its gate, up to their order, and which activation it "
    "is, from all numbers of the answers.",
    "whole block": "Whether it serves weights that you have: verify names what differs. Of one "
    "block without positions, or with rotary ones after an RMSNorm, from float64 answers: its "
    "attention, by BlockLearner; if its "
    'feed-forward part has ReLUs, GELU or SwiGLU, the whole block (part="block"). For other parts '
    "there is no learner; that does not show that they are safe.",
    "position-dependent": "Not established. If positions are rotary, a learner with rotary=True "
    "recovers it: LowRankHead or ExactHead for a single head, MultiHeadLearner for several "
    "(biases=True if keys or queries have biases), AttentionLayerLearner for a layer from vectors "
    "without a LayerNorm or RMSNorm. Of ids: where positions are added to tokens and known, one "
    "head, by LowRankHead(dim, table=vectors by position and id).",
    "head behind a table": "Everything that ids can show: W (keys and queries), biases, and v "
    "(values and output) on the span of the table. Prompts and training data never.",
    "head behind a vocabulary": "The function on all sequences of ids, with a bound for each: the "
    "value of every id, and the score of every id for every query token. Not W, and not the table: "
    "with the table W as well.",
    "layer behind a table": "Everything that ids can show: values, W and biases of every head, on "
    "the span of the table, and whether there is a residual connection.",
    "several heads behind a vocabulary": "With the table of vectors, the whole layer, by "
    "AttentionLayerLearner(dim, table=E). Without it there is no learner; that does not show that "
    "it is safe.",
    "tokens of its own": "What is behind its tokenizer, if ids are asked there: a head, or a layer "
    "whose table is known. Beside tokens of its own there is no learner; that does not show that "
    "it is safe.",
    "probabilities": "What learners of numbers recover: log-ratios of probabilities are "
    "differences of logits. Audit us.oracles.log_ratios(oracle), which says what they are of.",
    "classes": "By labels, where two classes alone are answered: W, and v up to its norm, by "
    "LabelHead of us.oracles.one_against(oracle, k). There is no learner for tokens of which a "
    "third class is the answer, too. That does not show that they are safe.",
    "none of these": "There is no learner for this. That does not show that it is safe: it is not "
    "of a class that these learners know.",
    "undecided": "Not known.",
}

# -- what a model says


def read(found: Found[Any], traits: Traits, dim: int) -> tuple[ClassName, Facts]:
    """Return the class of a model that was recovered, and what is known of a target in ``dim``."""
    model, errors = found.model, found.certificate.errors
    if isinstance(model, models.FeedForward):
        gated = {} if model.gate is None else {"gated": 1}
        return "smooth feed-forward layer", {"neurons": len(model.b), **gated}
    if isinstance(model, models.ReluNetwork):
        linear = traits.singles == "affine"
        return ("linear", {}) if linear else ("ReLU network", {"neurons": len(model.b)})
    heads = {"heads": model.H} if hasattr(model, "H") else {}
    if "frequencies" in model.arrays():
        facts = {"rotary": 1, **heads, "rank": model.K.shape[-2]}
        if heads:
            norms = [head.parameter_norm("w") for head in model.heads]
            facts["biases"] = _biased(norms, errors, model.c)
        return "position-dependent", facts
    several, rank = heads.get("heads", 1) != 1, _rank(model.W, errors["W"], dim)
    if hasattr(model, "network"):
        residual = {} if getattr(model, "residual", None) is None else {"residual": 1}
        # of one head every bias that is not 0 was seen
        biases = _biased(np.linalg.norm(model.w, axis=-1), errors if heads else {})
        facts = {"neurons": len(model.network.b), **heads, **rank, **residual, "biases": biases}
        joint = several or residual
        return "network behind several heads" if joint else "network behind one head", facts
    facts = {**rank, "biases": _biased(np.linalg.norm(model.w), errors, model.c)}
    if several:
        return ("several heads", {**heads, **facts}) if model.H else ("constant", {})
    if all(model.parameter_norm(part) <= errors[part] for part in ("W", "w")):
        return "linear", {"biases": facts["biases"]}
    return "single head", facts


def read_of_ids(found: Found[Any]) -> tuple[ClassName, Facts]:
    """Return the class of a model that was recovered from ids, and what is known of it."""
    model = found.model
    if isinstance(model, models.TokenHead):
        return "head behind a vocabulary", {"rank": model.rank}
    if isinstance(model, models.AttentionLayer):
        return "layer behind a table", {"heads": model.H, "residual": int(model.residual)}
    return "head behind a table", {"rank": model.arrays()["K"].shape[0]}


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
    # ids that could not be read are predicted by nothing
    if not found.evidence.passed or found.certificate.errors.get("G") == np.inf:
        return False
    sharp, model, errors = 0.02, found.model, found.certificate.errors
    network = getattr(model, "network", model)
    if isinstance(network, models.ReluNetwork):
        points = np.random.default_rng(0).standard_normal((64, network.dim))
        points /= np.sqrt(network.dim)
        open_by = {n: errors["constant"] + errors["slope"] * n for n in (1.0, 4.0, 16.0)}
        # near 0, or far from it, a network may be constant
        if not any(off <= sharp * np.std(network(n * points)) for n, off in open_by.items()):
            return False
    if "W" not in errors:
        return True
    error, size = errors["W"], model.parameter_norm("W")
    # a W that is 0 within its bound counts as 0 where that is small
    return bool(error <= sharp * size or size <= error <= 1e-6)


# -- what it costs


def typical_cost(
    learner: Learner[Any], facts: Facts, traits: Traits, holdout: int
) -> tuple[int, int]:
    """Return queries and tokens that a learner typically takes, and its hold-out.

    Of positions what one head takes, or as many as are known, of rank d unless that is known.
    """
    if vocabulary_of(learner) is not None:
        return _cost_of_ids(learner, facts, holdout)
    plan, fresh = learner.plan(), _holdout_tokens(learner, holdout)
    if plan.queries is not None:
        return plan.queries + holdout, plan.tokens + fresh
    d, heads, neurons = int(learner.dim), facts.get("heads", 1), facts.get("neurons", 0)
    if isinstance(learner, learners.FeedForwardLearner):
        gated = bool(facts.get("gated"))
        queries = counts.smooth_feed_forward_queries(neurons or _usual_neurons(d, gated), gated)
        return queries + holdout, queries + fresh
    rotary, biases = getattr(learner, "rotary", False), bool(facts.get("biases"))
    rank, residual = facts.get("rank", d if rotary else None), "residual" in facts
    of_one = counts.rotary_head_queries if rotary else counts.low_rank_head
    if rotary:
        of_several = counts.rotary_heads_queries(d, heads, rank or 0, biases=True)
    else:
        of_several = counts.multi_head(d, heads, rank, biases=biases) + heads * (d + 16) + d + 40
        # 1.6 to 3.2 times as many, of 18
        of_several = round(2.2 * of_several) if traits.kind == "float32" else of_several
    singles = counts.relu_network_queries(d, neurons)
    joint = counts.multi_head_transformer_queries(d, heads, neurons, residual=residual)
    queries, alone = {
        learners.LowRankHead: (of_one(d, rank or 0, biases=biases) + 2 * d, 0),
        learners.MultiHeadLearner: (of_several, 0),
        learners.ReluNetworkLearner: (singles, singles),
        learners.TransformerLearner: (singles + d * d + 2 * d, singles),
        learners.MultiHeadTransformerLearner: (joint, singles),
    }[type(learner)]
    return queries + holdout, 2 * queries - alone + fresh


# Tokens of a query on average, copies included: of a head, and of a layer.
_HEAD_TOKENS, _LAYER_TOKENS = 4, 40


def _cost_of_ids(learner: Any, facts: Facts, holdout: int) -> tuple[int, int]:
    """Return queries and tokens of a learner of ids; half of its hold-out fills the context."""
    each, rank = _HEAD_TOKENS, facts.get("rank", facts.get("rank_at_least", int(learner.dim)))
    if isinstance(learner, learners.TokenHeadLearner):
        queries = counts.token_head_queries(int(learner.vocabulary), rank)
    else:
        D, heads = learner.table.affine.y.shape[1], facts.get("heads", facts.get("heads_at_least"))
        queries = counts.table_head_queries(D, min(rank, D))
        if heads:
            each = _LAYER_TOKENS
            queries = counts.table_layer_queries(D, heads, max(1, D // heads))
    fresh = holdout // 2 * int(learner.context) + 12 * holdout
    return queries + holdout, each * queries + fresh


def counted_for(learner: Learner[Any], facts: Facts) -> str:
    """Say what that is counted for where neurons, heads that turn or their rank are not known."""
    if vocabulary_of(learner) is not None:
        if "heads" in facts or "heads_at_least" in facts:
            return "if its heads share the dimensions of the table"
        least = facts.get("rank_at_least")
        if least is not None:
            return f"if its rank is {least}; it is that or higher"
        return "" if "rank" in facts else f"if its rank is {learner.dim}, fewer if it is lower"
    if isinstance(learner, learners.FeedForwardLearner) and "neurons" not in facts:
        plain, gated = (counts.SMOOTH_PER_NEURON[gated] for gated in (False, True))
        m = _usual_neurons(int(learner.dim), bool(facts.get("gated")))
        return f"if it has {m:,} neurons; m neurons take about {plain}m, gated ones {gated}m"
    if "rank" in facts or not getattr(learner, "rotary", False):
        return ""
    one = f"if it is one head of rank {learner.dim}"
    formula = "about H(2dr + 3r + 2d + 16) + d + 40"
    if type(learner) is learners.MultiHeadLearner:
        return f"{one}; H heads of rank r take {formula}"
    return (
        f"{one} without biases, fewer if its rank is lower. If the target has several heads or "
        "biases, MultiHeadLearner recovers it from float64 answers; H heads of rank r take "
        f"{formula} more"
    )


def _usual_neurons(d: int, gated: bool) -> int:
    """Return how many neurons such layers have as a rule: 4d, or as many weights with gates."""
    return 8 * d // 3 if gated else 4 * d


def _holdout_tokens(learner: Learner[Any], holdout: int) -> int:
    """Return how many tokens a learner's hold-out has, about: most are in its few long sequences.

    Of those each learner asks as many as its hold-out's end allows: the end of several heads' is
    all of it, that of labels comes in pairs, two ends beside each flip.
    """
    if learner.plan().most_tokens == 1:
        return holdout
    shares, kind = Shares.of(holdout), type(learner)
    ends = 2 * [(holdout - shares.opening) // 2] if kind is learners.LabelHead else [shares.closing]
    ends = [holdout] if kind is learners.MultiHeadLearner else ends
    long = [shape.tokens for end in ends for shape in shapes_of(end, learner.dim)]
    return sum(long) + 4 * (holdout - len(long))  # the others have 1 to 20, on average 3 to 5
