"""Which attacks are tried against a defence of a head, of several, and of a ReLU network.

An attack is a learner whose settings suit the defence. The attacker knows the defence and the
target's class and size, as whoever reads the documentation and asks a few questions does, and no
parameter. Layers of vectors are attacked in `layer_attacks`; a class of targets joins with an
entry in `attacked_classes.ATTACKED`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy

from unsoftmax.learners import (
    ApproximateHead,
    ExactHead,
    LabelHead,
    LowRankHead,
    MultiHeadLearner,
    ReluNetworkLearner,
)
from unsoftmax.models import MultiHead, ReluNetwork, SingleHead
from unsoftmax.probes import Array
from unsoftmax.protocol import Learner
from unsoftmax.questions.defence.averaged_answers import AveragedAnswers
from unsoftmax.questions.defence.defence_ladder import Measures
from unsoftmax.questions.defence.edge_head import EdgeHead
from unsoftmax.questions.defence.first_columns import FirstColumns
from unsoftmax.questions.defence.fitted_head import FittedHead
from unsoftmax.questions.defence.stretched_head import StretchedHead
from unsoftmax.theory import counts


@dataclass(frozen=True, slots=True)
class Attack:
    """One attempt at a defended service."""

    name: str
    learner: Learner[Any]
    up_to_scale: bool = False
    """What is found is right up to a factor, which the answers do not tell."""
    holdout: int = 0
    """Fresh questions beside; an attacker that is content with any estimate asks none."""


@dataclass(frozen=True, slots=True)
class AttackTuning:
    """Knobs of the attacks."""

    deviations: float = 6.0
    """Noise is taken to be within so many deviations: one of 10⁹ answers is not."""
    most_passes: int = 64
    """Passes of `ApproximateHead`, each over new directions."""
    float64: float = 1e-15
    """What answers are off by, as a share of the spread, where nothing coarsens them."""
    clip_lengths: tuple[float, ...] = (1.0, 0.25, 0.0625)
    """Tokens of which answers are not clipped: shares of the length at which a legitimate answer
    of the usual size would be."""
    label_bits: tuple[int, ...] = (50, 24, 12)
    """Bits of `LabelHead`; as many as the queries allow."""
    least_bits: int = 8
    """`EdgeHead` is not tried with fewer."""
    fit_work: float = 2e10
    """`FittedHead` multiplies so many numbers per step at most, answers times parameters squared:
    about two seconds."""
    fit_answers: float = 1.25
    """It is not tried with fewer answers per parameter: beyond about 50 dimensions."""
    fit_longer: float = 4.0
    """Where no cap forbids it, tokens are also so many times as long as legitimate ones."""
    exact_holdout: int = 32
    """Learners of exact values tell noise and rounding by their hold-out."""


@dataclass(frozen=True, slots=True)
class Structure:
    """What is known of a target without asking: its class, and how many numbers it is made of."""

    dim: int
    units: int
    """Heads, or neurons."""
    rank: int
    biases: bool
    parameters: int
    per_answer: int = 1
    """Numbers that an answer has."""

    @property
    def queries(self) -> int:
        """Return how many queries have as many answers as there are parameters."""
        return -(-self.parameters // self.per_answer)


@dataclass(frozen=True, slots=True)
class Attacker:
    """Who attacks: what it knows and may spend."""

    structure: Structure
    spread: float
    longest: float
    """Spread of the answers to legitimate sequences, and their longest token."""
    queries: int
    """Most queries of an attack."""
    seed: int
    tuning: AttackTuning = field(default=AttackTuning())

    def tolerance(self, measures: Measures, times: int = 1) -> float:
        """Return what means of so many answers may be off by."""
        noise = self.tuning.deviations * measures.noise / math.sqrt(times)
        return measures.step / 2 + noise + self.tuning.float64 * self.spread

    def radii(self, measures: Measures) -> list[float]:
        """Return lengths of tokens to try, where not all lengths may be asked; else none.

        Longer tokens make errors smaller, until they saturate the softmax: a generous cap is
        tried at legitimate lengths as well.
        """
        cap = math.inf if measures.radius is None else measures.radius
        if measures.clip is None:
            return [] if measures.radius is None else sorted({cap, min(cap, self.longest)})
        low, high = measures.clip
        # short tokens are answered by about c, which without biases is 0
        room = (high - low) / 2 if self.structure.biases else min(high, -low)
        if room <= 0:
            return []
        unclipped = self.longest * room / self.spread
        return [min(cap, share * unclipped) for share in self.tuning.clip_lengths]

    def fit_lengths(self, measures: Measures) -> list[float]:
        """Return lengths of tokens to fit at: legitimate ones, and the longest that serve."""
        if radii := self.radii(measures):
            return sorted({min(radius, self.longest) for radius in radii} | {max(radii)})
        return [self.longest, self.tuning.fit_longer * self.longest]

    def may_ask(self, measures: Measures) -> int:
        """Return how many queries an attack has."""
        return min(self.queries, self.queries if measures.queries is None else measures.queries)


def single_head_attacks(attacker: Attacker, measures: Measures) -> Iterator[Attack]:
    """Yield the attacks on one head."""
    of, tuning = attacker.structure, attacker.tuning
    d, most, seed = of.dim, attacker.may_ask(measures), attacker.seed
    if measures.labels:
        if not of.biases:
            yield from _by_labels(attacker, most)
        return
    exact = ExactHead(d, of.biases, seed=seed)
    yield Attack("ExactHead", exact, holdout=tuning.exact_holdout)
    radii = attacker.radii(measures)
    coarse = bool(measures.step or measures.noise)
    if not radii:
        low = LowRankHead(
            d,
            biases=of.biases,
            tolerance=attacker.tolerance(measures) if coarse else None,
            seed=seed,
        )
        stretched = "LowRankHead, tokens stretched" if coarse else "LowRankHead"
        yield Attack(stretched, low, holdout=tuning.exact_holdout)
    if of.biases:
        for radius in radii:
            heads = MultiHeadLearner(d, 1, True, radius=radius, seed=seed)
            yield from with_averages("MultiHeadLearner", heads, attacker, measures)
    else:
        lengths: list[float | None] = [*radii] or [None] * coarse
        for length in lengths:
            yield from _approximate(attacker, measures, length)
    if coarse and (radii or of.biases):
        yield from _fitted(attacker, measures)
    if measures.queries is not None:
        columns = FirstColumns.within(d, measures.queries, of.biases, seed)
        if columns is not None:
            yield Attack(f"the first columns of W, {columns.columns} of {d}", columns)


def _by_labels(attacker: Attacker, most: int) -> Iterator[Attack]:
    for bits in attacker.tuning.label_bits:
        labels = LabelHead(attacker.structure.dim, bits, seed=attacker.seed)
        if labels.plan().at_most <= most:
            yield Attack(f"LabelHead, {bits} bits", labels, up_to_scale=True)
            return


def _approximate(attacker: Attacker, measures: Measures, radius: float | None) -> Iterator[Attack]:
    """Yield what is tried without biases at a length of tokens; None stretches them."""
    d, seed, most = attacker.structure.dim, attacker.seed, attacker.may_ask(measures)
    passes = min(attacker.tuning.most_passes, most // counts.single_head(d))
    where = "tokens stretched" if radius is None else f"tokens up to {radius:.3g}"
    tau = attacker.tolerance(measures)
    once = ApproximateHead(d, tau, radius=radius, seed=seed)
    yield Attack(f"ApproximateHead, {where}", once)
    if radius is None or passes < 2:
        return
    if measures.noise:
        mean = ApproximateHead(d, attacker.tolerance(measures, passes), radius=radius, seed=seed)
        yield Attack(f"means of {passes} answers, {where}", AveragedAnswers(mean, passes))
    elif measures.step:
        more = ApproximateHead(d, tau, radius=radius, repeats=passes, seed=seed)
        yield Attack(f"ApproximateHead, {passes} passes, {where}", more)
        yield from _edges(attacker, measures, radius)


def _edges(attacker: Attacker, measures: Measures, radius: float) -> Iterator[Attack]:
    """Yield what bisects to where the rounding steps, to as many bits as queries allow."""
    of, most = attacker.structure, attacker.may_ask(measures)
    rank = of.rank if of.rank < of.dim else None
    whole = EdgeHead(of.dim, measures.step, radius, seed=attacker.seed, rank=rank)
    spare = whole.plan().at_most - most
    bits = whole.bits - max(0, math.ceil(spare / (whole.entries + of.dim)))
    if bits >= attacker.tuning.least_bits:
        edges = replace(whole, bits=bits)
        yield Attack(f"bisected steps of the rounding, tokens up to {radius:.3g}", edges)


def _fitted(attacker: Attacker, measures: Measures) -> Iterator[Attack]:
    """Yield fits to as many answers as can be worked with."""
    of, tuning = attacker.structure, attacker.tuning
    unknown = counts.single_head(of.dim, biases=of.biases)
    queries = min(attacker.may_ask(measures), int(tuning.fit_work / unknown**2))
    if queries >= tuning.fit_answers * unknown:
        for length in attacker.fit_lengths(measures):
            fit = FittedHead(of.dim, length, queries, of.biases, attacker.seed)
            yield Attack(f"FittedHead, tokens up to {length:.3g}", fit)
        if of.biases and not attacker.radii(measures):
            stretched = StretchedHead(of.dim, attacker.longest, queries, seed=attacker.seed)
            yield Attack("StretchedHead", stretched)


def several_heads_attacks(attacker: Attacker, measures: Measures) -> Iterator[Attack]:
    """Yield the attacks on several heads."""
    of = attacker.structure
    if measures.labels:
        return
    lengths: list[float | None] = [*attacker.radii(measures)] or [None]
    for radius in lengths:
        heads = MultiHeadLearner(of.dim, of.units, of.biases, radius=radius, seed=attacker.seed)
        yield from with_averages("MultiHeadLearner", heads, attacker, measures)


def network_attacks(attacker: Attacker, measures: Measures) -> Iterator[Attack]:
    """Yield the attacks on a ReLU network."""
    of = attacker.structure
    if not measures.labels:
        network = ReluNetworkLearner(of.dim, max_neurons=2 * of.units + 2, seed=attacker.seed)
        yield from with_averages("ReluNetworkLearner", network, attacker, measures)


def with_averages(
    name: str,
    learner: Learner[Any],
    attacker: Attacker,
    measures: Measures,
    typical: int | None = None,
) -> Iterator[Attack]:
    """Yield a learner of exact values, and beside noise one of means.

    Learners ask about twice the parameters, unless ``typical`` says otherwise, and a hold-out.
    """
    radius = getattr(learner, "radius", None)
    where = "" if radius is None else f", tokens up to {radius:.3g}"
    holdout = attacker.tuning.exact_holdout
    yield Attack(f"{name}{where}", learner, holdout=holdout)
    once = 2 * attacker.structure.parameters if typical is None else typical
    times = attacker.may_ask(measures) // (once + holdout)
    if measures.noise and times > 1:
        means = AveragedAnswers(learner, times)
        yield Attack(f"{name}, means of {times} answers{where}", means, holdout=holdout * times)


def head_error(truth: SingleHead, found: SingleHead | MultiHead) -> float:
    """Return the relative error of W; none of several heads is worse than W = 0."""
    W = np.reshape(found.W, (-1, *truth.W.shape))
    size = float(np.linalg.norm(truth.W)) or 1.0
    return float(np.linalg.norm(W[0] - truth.W)) / size if len(W) else 1.0


def matched_error(cost: Array, truth: Array) -> float:
    """Return the relative error of the best matching; what is missing counts whole."""
    rows, columns = scipy.optimize.linear_sum_assignment(cost)
    missing = np.setdiff1d(np.arange(len(truth)), rows)
    squares = float(np.sum(cost[rows, columns]) + np.sum(truth[missing] ** 2))
    return math.sqrt(squares) / (float(np.linalg.norm(truth)) or 1.0)


def of_known_rank(found: Any, structure: Structure) -> Any:
    """Return a head whose W has the rank that it is known to have: errors of full rank leave."""
    if not isinstance(found, SingleHead) or structure.rank >= structure.dim:
        return found
    U, sizes, V = np.linalg.svd(found.W)
    r = structure.rank
    return SingleHead((U[:, :r] * sizes[:r]) @ V[:r], found.v, found.w, found.c)


def heads_error(truth: MultiHead, found: MultiHead) -> float:
    """Return the relative error of all W_h, heads matched."""
    cost = np.array([[np.sum((W - U) ** 2) for U in found.W] for W in truth.W])
    return matched_error(cost.reshape(len(truth.W), len(found.W)), truth.W)


def neurons_error(truth: ReluNetwork, found: ReluNetwork) -> float:
    """Return the relative error of the gradient's jumps w_j (A_j, b_j), known up to sign."""
    mine, others = _jumps(truth), _jumps(found)
    cost = np.array(
        [[min(np.sum((x - y) ** 2), np.sum((x + y) ** 2)) for y in others] for x in mine]
    )
    return matched_error(cost.reshape(len(mine), len(others)), mine)


def _jumps(network: ReluNetwork) -> Array:
    return np.asarray(np.vstack([network.A, network.b]).T * network.w_o[:, None])


def head_structure(model: SingleHead) -> Structure:
    """Return what is known of a head."""
    d, biases = model.dim, bool(np.any(model.w) or model.c)
    scores = np.column_stack([model.W, model.w]) if biases else model.W
    rank = int(np.linalg.matrix_rank(scores))
    return Structure(d, 1, rank, biases, counts.low_rank_head(d, rank, biases=biases))


def heads_structure(model: MultiHead) -> Structure:
    """Return what is known of several heads."""
    d, biases = model.dim, bool(np.any(model.w) or model.c)
    rank = max((int(np.linalg.matrix_rank(W)) for W in model.W), default=0)
    heads = len(model.v)
    return Structure(d, heads, rank, biases, counts.multi_head(d, heads, rank, biases=biases))


def network_structure(model: ReluNetwork) -> Structure:
    """Return what is known of a ReLU network."""
    neurons = len(model.w_o)
    return Structure(model.dim, neurons, model.dim, True, neurons * (model.dim + 2) + 1)


def without_scores(dim: int, determined: Mapping[str, Any]) -> SingleHead | None:
    """Return the head that an attacker who knows v alone goes on with."""
    if "v" not in determined:
        return None
    W = determined.get("W", np.zeros((dim, dim)))
    return SingleHead(W, determined["v"], None, float(determined.get("c", 0.0)))
