"""Which attacks are tried against a defence, and on which classes of targets: one table.

An attack is a learner whose settings suit the defence. The attacker knows the defence and the
target's class and size, as whoever reads the documentation and asks a few questions does, and no
parameter. What is specific to a class of targets is in `ATTACKED`, and nowhere else.

Layers of vectors are attacked by the learners of vectors. Labels say nothing of a vector, and
longer or shorter tokens are what the learners choose already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment

from unsoftmax import learners, models
from unsoftmax.learners.antisymmetric_part import SeveralPerQuery
from unsoftmax.learners.compose import mapped
from unsoftmax.learners.single_head.exact import AGAIN_PER_TOKEN
from unsoftmax.learners.single_head.first_round import FirstRoundSettings, ask_first_round
from unsoftmax.measure import logit_grid
from unsoftmax.models.equality import canonical
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers, Learner, M, Plan, Steps
from unsoftmax.questions.defence.coarse_heads import EdgeHead, FittedHead, StretchedHead, unproved
from unsoftmax.questions.defence.legitimate_use import Measures
from unsoftmax.theory import counts
from unsoftmax.theory.information import layer_parameters

EXACT = 32
"""Fresh questions of learners of exact values, which tell noise and rounding by them."""


class Attack(NamedTuple):
    """One attempt at a defended service."""

    name: str
    learner: Learner[Any]
    holdout: int = 0
    """Fresh questions beside; an attacker that is content with any estimate asks none."""


class Structure(NamedTuple):
    """What is known of a target without asking: its class, and how many numbers it is made of."""

    dim: int
    rank: int
    biases: bool
    parameters: int
    parts: Callable[[Any], list[Array]]
    """What is to be kept: arrays of parts, heads or neurons, whose order answers do not tell."""
    caveats: tuple[str, ...] = ()
    """What figures of its class leave open."""
    learner: Any = None
    """What attacks it; None: `single_head_attacks` do."""
    typical: int | None = None
    """What that asks, typically; None: twice the parameters."""
    per_answer: int = 1
    """Numbers that an answer has."""
    neurons: bool = False
    """Whether parts are known up to sign, and legitimate sequences are single tokens, unless a
    sampler says otherwise."""

    def error(self, truth: Any, found: Any) -> float:
        """Return the relative error of what is to be kept; of several arrays the largest.

        A single head's W is compared with the nearest W_h of several: none is worse than W = 0.
        """
        pairs = zip(self.parts(truth), self.parts(found), strict=True)
        return max(matched_error(*pair, signed=not self.neurons) for pair in pairs)


@dataclass(frozen=True, slots=True)
class Attacker:
    """Who attacks: what it knows and may spend."""

    structure: Structure
    measures: Measures
    """The defence."""
    spread: float
    longest: float
    """Spread of the answers to legitimate sequences, and their longest token."""
    queries: int
    """Most queries of an attack."""
    seed: int

    def tolerance(self, times: int = 1) -> float:
        """Return what means of so many answers may be off by."""
        # noise is within six deviations but for one of 10⁹ answers; float64 rounds by the rest
        noise = 6 * self.measures.noise / math.sqrt(times)
        return self.measures.step / 2 + noise + 1e-15 * self.spread

    @property
    def radii(self) -> list[float]:
        """Lengths of tokens to try, where not all lengths may be asked; else none.

        Longer tokens make errors smaller, until they saturate the softmax: a generous cap is
        tried at legitimate lengths as well.
        """
        clip, radius = self.measures.clip, self.measures.radius
        cap = math.inf if radius is None else radius
        if clip is None:
            return [] if radius is None else sorted({cap, min(cap, self.longest)})
        low, high = clip
        # short tokens are answered by about c, which without biases is 0
        room = (high - low) / 2 if self.structure.biases else min(high, -low)
        # where a legitimate answer of the usual size would be clipped, and well below
        unclipped = self.longest * room / self.spread
        return [min(cap, share * unclipped) for share in (1.0, 0.25, 0.0625) if room > 0]


def single_head_attacks(by: Attacker) -> Iterator[Attack]:
    """Yield the attacks on one head."""
    measures, seed, d, biases = by.measures, by.seed, by.structure.dim, by.structure.biases
    if measures.labels:  # as many bits as the queries allow
        with_bits = (learners.LabelHead(d, n, seed=seed) for n in (50, 24, 12) if not biases)
        afforded = (labels for labels in with_bits if labels.plan().at_most <= by.queries)
        if labels := next(afforded, None):
            yield Attack(f"LabelHead, {labels.bits} bits", labels)
        return
    yield Attack("ExactHead", learners.ExactHead(d, biases, seed=seed), EXACT)
    radii, coarse = by.radii, bool(measures.step or measures.noise)
    if not radii:
        error = by.tolerance() if coarse else None
        low = learners.LowRankHead(d, biases=biases, tolerance=error, seed=seed)
        yield Attack(f"LowRankHead{', tokens stretched' * coarse}", low, EXACT)
    if not biases:
        lengths: list[float | None] = [*radii] or [None] * coarse
        for length in lengths:
            yield from _approximate(by, length)
    elif radii:
        yield from by_learner(by, learners.MultiHeadLearner(d, 1, True))
    if coarse and (radii or biases):
        yield from _fitted(by)
    if measures.queries and (columns := FirstColumns.within(d, measures.queries, biases, seed)):
        yield Attack(f"the first columns of W, {columns.columns} of {d}", columns)


def _approximate(by: Attacker, radius: float | None) -> Iterator[Attack]:
    """Yield what is tried without biases at a length of tokens; None stretches them."""
    of, step = by.structure, by.measures.step
    where = "tokens stretched" if radius is None else f"tokens up to {radius:.3g}"
    once = learners.ApproximateHead(of.dim, by.tolerance(), radius=radius, seed=by.seed)
    yield Attack(f"ApproximateHead, {where}", once)
    passes = min(64, by.queries // counts.single_head(of.dim))
    if radius is None or passes < 2:
        return
    if by.measures.noise:
        mean = replace(once, tolerance=by.tolerance(passes))
        yield Attack(f"means of {passes} answers, {where}", AveragedAnswers(mean, passes))
    elif step:
        more = replace(once, repeats=passes)
        yield Attack(f"ApproximateHead, {passes} passes, {where}", more)
        edges = EdgeHead(of.dim, step, radius, seed=by.seed, rank=of.rank)
        # as many bits as queries allow
        missing = max(0, edges.plan().at_most - by.queries)
        bits = edges.bits - math.ceil(missing / (edges.entries + of.dim))
        if bits >= 8:  # fewer tell less than rounded answers do
            yield Attack(f"bisected steps of the rounding, {where}", replace(edges, bits=bits))


def _fitted(by: Attacker) -> Iterator[Attack]:
    """Yield fits to as many answers as can be worked with.

    A step multiplies answers times parameters squared, at most 2·10¹⁰ numbers: about two seconds.
    Beyond about 50 dimensions that leaves too few answers per parameter.
    """
    d, biases = by.structure.dim, by.structure.biases
    unknown = counts.single_head(d, biases=biases)
    queries = min(by.queries, int(2e10 / unknown**2))
    if queries < 1.25 * unknown:
        return
    # legitimate lengths, and the longest that serve
    radii, longest = by.radii, by.longest
    lengths = {min(radius, longest) for radius in radii or [longest]}
    for length in sorted(lengths | {max(radii, default=4 * longest)}):
        fit = FittedHead(d, length, queries, biases, by.seed)
        yield Attack(f"FittedHead, tokens up to {length:.3g}", fit)
    if biases and not radii:
        yield Attack("StretchedHead", StretchedHead(d, longest, queries, seed=by.seed))


def attacks_on(by: Attacker) -> Iterator[Attack]:
    """Yield the attacks on a target of any class."""
    learner = by.structure.learner
    return single_head_attacks(by) if learner is None else by_learner(by, learner)


def by_learner(by: Attacker, learner: Any) -> Iterator[Attack]:
    """Yield a learner of exact values, and beside noise one of means, at all lengths of tokens."""
    if by.measures.labels:  # which it does not take
        return
    once = by.structure.typical or 2 * by.structure.parameters
    times, name = by.queries // (once + EXACT), type(learner).__name__
    learner, radii = replace(learner, seed=by.seed), by.radii if hasattr(learner, "radius") else []
    for at in [replace(learner, radius=radius) for radius in radii] or [learner]:
        where = f", tokens up to {at.radius:.3g}" if radii else ""
        yield Attack(f"{name}{where}", at, EXACT)
        if by.measures.noise and times > 1:
            means = AveragedAnswers(at, times)
            yield Attack(f"{name}, means of {times} answers{where}", means, EXACT * times)


@dataclass(frozen=True)
class AveragedAnswers(SeveralPerQuery[M]):
    """An attack's way with noise: let another learner learn from means of so many answers each.

    Noise of deviation σ, fresh for every answer, becomes one of σ/√times; rounding stays.
    """

    times: int  # type: ignore[misc]

    revision: ClassVar[int] = 1

    def steps(self, checks: int) -> Steps[M]:
        """Ask, and return what the learner found."""

        def again(asked: Round) -> Round:
            return [probes for probes in asked for _ in range(self.times)]

        def means(answers: Answers) -> Answers:
            starts = range(0, len(answers), self.times)
            return [np.asarray(np.mean(answers[k : k + self.times], axis=0)) for k in starts]

        return mapped(self.of.steps(checks // self.times), ask=again, answer=means)


@dataclass(frozen=True, slots=True)
class FirstColumns(learners.ExactHead):
    """An attack of budgets below the number of parameters: v and the first columns of W.

    v first, d queries, then W column by column, d queries each (Theorem 4.1); with biases c and w
    before the columns, d + 1 more. Other columns count as 0.
    """

    columns: int = field(default=1, kw_only=True)
    """How many of W's d columns."""

    @classmethod
    def within(cls, dim: int, queries: int, biases: bool, seed: int) -> FirstColumns | None:
        """Read as many columns as a budget is enough for, all but one at most; None for none."""
        each = dim + AGAIN_PER_TOKEN
        columns = min(dim - 1, (queries - (2 * each if biases else dim)) // each)
        return cls(dim, biases, seed=seed, columns=columns) if columns > 0 else None

    def plan(self) -> Plan:
        """Say beforehand what it costs."""
        tokens = self.columns + self.biases
        queries, rounds = self.dim * (1 + tokens) + self.biases, 3 + 2 * logit_grid.ROUNDS
        most = queries + AGAIN_PER_TOKEN * tokens
        return Plan(queries, most, 2 * queries, rounds, "d + d·columns")

    def steps(self, checks: int) -> Steps[models.SingleHead]:
        """Ask, and return what was found; the hold-out is left to whoever has the whole head."""
        rng = np.random.default_rng(self.seed)
        known = FirstRoundSettings(self.biases, listens=True, ahead=self.plan().at_most)
        first = yield from ask_first_round(self.dim, 0, rng, known)
        Z = self._offsets(first.values, rng)
        read = yield from self._read(first.values, Z, self.columns)
        return unproved(read.model)


WEAKER = (
    "This class is attacked by its learner, with and without averaging repeated answers. Single "
    "heads face more attacks, so a failed attack says less here.",
)

VECTORS = (
    "Answers are vectors: losses and errors are root mean squares over all their numbers. Labels "
    "are not tried.",
    *WEAKER,
)

ATTENTION_WITH_NORM = (
    "No attacks are known on layers after a LayerNorm or RMSNorm, or behind an RMSNorm: defend "
    "takes plain layers and layers behind a LayerNorm."
)
FEED_FORWARD_WITH_NORM = (
    "No attacks are known on feed-forward layers with a LayerNorm or RMSNorm: defend takes plain "
    "ones."
)
POSITIONS = "No attacks are known on heads with rotary positions: defend takes heads without."


# -- what is known without asking


def _heads(model: models.SingleHead | models.MultiHead) -> Structure:
    d, [scores], w = model.dim, _head_parts(model), np.reshape(model.w, (-1, model.dim, 1))
    H, rank, biases = len(w), _rank(np.concatenate([scores, w], 2)), bool(np.any(w) or model.c)
    known = Structure(d, rank, biases, counts.multi_head(d, H, rank, biases=biases), _head_parts)
    if model.w.ndim == 1:
        return known
    return known._replace(caveats=WEAKER, learner=learners.MultiHeadLearner(d, max(1, H), biases))


def _network(model: models.ReluNetwork) -> Structure:
    d, m = model.dim, len(model.b)
    learner = learners.ReluNetworkLearner(d, max_neurons=2 * m + 2)
    return Structure(d, d, True, m * (d + 2) + 1, _neuron_parts, WEAKER, learner, neurons=True)


def _layer(layer: models.AttentionLayer) -> Structure:
    if layer.norm is not None and (layer.norm.before or not layer.norm.centred):
        raise ValueError(ATTENTION_WITH_NORM)
    d, m, (scores, _) = layer.dim, layer.outputs, _layer_parts(layer)
    H, rank, parameters = len(scores), _rank(scores), layer_parameters(layer)
    learner = learners.AttentionLayerLearner(d, max_heads=H or 64)
    typical = counts.attention_layer_queries(d, max(1, H), max(1, rank)) + d
    return Structure(d, rank, True, parameters, _layer_parts, VECTORS, learner, typical, m)


def _feed_forward(layer: models.FeedForward) -> Structure:
    if layer.norm is not None:
        raise ValueError(FEED_FORWARD_WITH_NORM)
    d, width, sizes = layer.dim, layer.outputs, (layer.dim, len(layer.b), layer.outputs)
    parameters, typical = counts.feed_forward(*sizes), counts.feed_forward_queries(*sizes) + d
    learner = learners.FeedForwardLearner(d)
    return Structure(d, d, True, parameters, _neuron_parts, VECTORS, learner, typical, width, True)


def _rank(matrices: Array) -> int:
    """Return the largest rank of several matrices; 0 of none."""
    return int(np.max(np.linalg.matrix_rank(matrices), initial=0))


# -- what counts as an error


def _head_parts(model: Any) -> list[Array]:
    """Return all W_h of one head or several."""
    return [np.reshape(model.W, (-1, model.dim, model.dim))]


def _layer_parts(layer: models.AttentionLayer) -> list[Array]:
    """Return all W_h, and all M_h."""
    heads = canonical(layer).heads
    return [np.array([head.W for head in heads]), np.array([head.M for head in heads])]


def _neuron_parts(model: Any) -> list[Array]:
    """Return what derivatives of the answers by tokens jump by, B_j (A_j, b_j)."""
    [neurons] = model.maps.leaves.values()
    return [neurons.B.T[:, :, None] * np.column_stack([neurons.A, neurons.a])[:, None]]


def matched_error(truth: ArrayLike, found: ArrayLike, *, signed: bool = True) -> float:
    """Return the relative error of the best matching of parts; what is missing counts whole.

    Parts are known up to sign where they are not ``signed``.
    """
    arrays = (np.asarray(parts, dtype=np.float64) for parts in (truth, found))
    mine, its = (parts.reshape(len(parts), int(np.prod(parts.shape[1:]))) for parts in arrays)
    signs = (1,) if signed else (1, -1)
    apart = [[np.sum((part - sign * its) ** 2, axis=1) for sign in signs] for part in mine]
    cost = np.min(np.reshape(apart, (len(mine), len(signs), len(its))), axis=1)
    rows, columns = linear_sum_assignment(cost)
    missing = np.setdiff1d(np.arange(len(mine)), rows)
    squares = float(np.sum(cost[rows, columns]) + np.sum(mine[missing] ** 2))
    return math.sqrt(squares) / (float(np.linalg.norm(mine)) or 1.0)


ATTACKED: Mapping[type[Any], tuple[Callable[[Any], Structure], tuple[str, ...]]] = {
    models.SingleHead: (_heads, ("LowRankHead", "ExactHead", "ApproximateHead", "SensingHead")),
    models.MultiHead: (_heads, ("MultiHeadLearner", "OrthogonalHeads")),
    models.ReluNetwork: (_network, ("ReluNetworkLearner",)),
    models.AttentionLayer: (_layer, ("AttentionLayerLearner",)),
    models.FeedForward: (_feed_forward, ("FeedForwardLearner",)),
}
"""What is known of every class, and what recovers a target of it undefended, by its name."""


def structure_of(model: Any) -> Structure:
    """Return what an attacker knows of a model.

    Raises
    ------
    ValueError
        No attacks are known for it.
    """
    if type(model) not in ATTACKED:
        names = ", ".join(kind.__name__ for kind in ATTACKED)
        raise ValueError(f"No attacks are known on a {type(model).__name__}: defend takes {names}.")
    known, _ = ATTACKED[type(model)]
    return known(model)


def check_learner(learner: Any, dim: int) -> None:
    """Refuse a learner whose models cannot be attacked, before anything is paid.

    Raises
    ------
    ValueError
        It recovers another class, or what no attack is known on, or takes another dimension.
    """
    name, norm = type(learner).__name__, getattr(learner, "norm", None)
    known = [own for _, names in ATTACKED.values() for own in names]
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
