"""Which attacks are tried against a defence.

An attack is a learner whose settings suit the defence. The attacker knows the defence and the
target's class and size, as whoever reads the documentation and asks a few questions does, and no
parameter. What is specific to a class of targets is in `attacked_classes.ATTACKED`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeAlias

import numpy as np

from unsoftmax import learners
from unsoftmax.learners.compose import mapped
from unsoftmax.learners.settings import Configured
from unsoftmax.learners.single_head.exact import ExactTuning
from unsoftmax.learners.single_head.first_round import FirstRoundSettings, ask_first_round
from unsoftmax.measure import offsets
from unsoftmax.measure.logit_grid import LogitGrid, measure
from unsoftmax.measure.scales import Split, beside_bias, free, offset_only
from unsoftmax.models import SingleHead
from unsoftmax.probes import Round
from unsoftmax.protocol import Answers, Found, Learner, M, Outputs, Plan, Steps, outputs_of
from unsoftmax.questions.defence.edge_head import EdgeHead
from unsoftmax.questions.defence.fitted_head import FittedHead, StretchedHead, unproved
from unsoftmax.questions.defence.legitimate_use import Measures
from unsoftmax.solve.dense import solve
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

    exact: ClassVar[int] = 32
    """Those of learners of exact values, which tell noise and rounding by them."""


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

    def tolerance(self, measures: Measures, times: int = 1) -> float:
        """Return what means of so many answers may be off by."""
        # noise is within six deviations but for one of 10⁹ answers; float64 rounds by the rest
        noise = 6 * measures.noise / math.sqrt(times)
        return measures.step / 2 + noise + 1e-15 * self.spread

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
        # where a legitimate answer of the usual size would be clipped, and well below
        unclipped = self.longest * room / self.spread
        return [min(cap, share * unclipped) for share in (1.0, 0.25, 0.0625)]

    def fit_lengths(self, measures: Measures) -> list[float]:
        """Return lengths of tokens to fit at: legitimate ones, and the longest that serve."""
        if radii := self.radii(measures):
            return sorted({min(radius, self.longest) for radius in radii} | {max(radii)})
        return [self.longest, 4 * self.longest]

    def may_ask(self, measures: Measures) -> int:
        """Return how many queries an attack has."""
        return min(self.queries, self.queries if measures.queries is None else measures.queries)


Attacks: TypeAlias = Callable[[Attacker, Measures], Iterator[Attack]]
"""The attacks on a class of targets."""


def single_head_attacks(attacker: Attacker, measures: Measures) -> Iterator[Attack]:
    """Yield the attacks on one head."""
    of, most, seed = attacker.structure, attacker.may_ask(measures), attacker.seed
    d, biases, coarse = of.dim, of.biases, bool(measures.step or measures.noise)
    if measures.labels:  # as many bits as the queries allow
        by_labels = (
            [] if biases else [learners.LabelHead(d, bits, seed=seed) for bits in (50, 24, 12)]
        )
        afforded = [labels for labels in by_labels if labels.plan().at_most <= most]
        for labels in afforded[:1]:
            yield Attack(f"LabelHead, {labels.bits} bits", labels, up_to_scale=True)
        return
    yield Attack("ExactHead", learners.ExactHead(d, biases, seed=seed), holdout=Attack.exact)
    radii = attacker.radii(measures)
    if not radii:
        error = attacker.tolerance(measures) if coarse else None
        low = learners.LowRankHead(d, biases=biases, tolerance=error, seed=seed)
        yield Attack(f"LowRankHead{', tokens stretched' * coarse}", low, holdout=Attack.exact)
    if biases:
        for radius in radii:
            heads = learners.MultiHeadLearner(d, 1, True, radius=radius, seed=seed)
            yield from with_averages(heads, attacker, measures)
    else:
        lengths: list[float | None] = [*radii] or [None] * coarse
        for length in lengths:
            yield from _approximate(attacker, measures, length)
    if coarse and (radii or biases):
        yield from _fitted(attacker, measures)
    if measures.queries is not None:
        columns = FirstColumns.within(d, measures.queries, biases, seed)
        if columns is not None:
            yield Attack(f"the first columns of W, {columns.columns} of {d}", columns)


def _approximate(attacker: Attacker, measures: Measures, radius: float | None) -> Iterator[Attack]:
    """Yield what is tried without biases at a length of tokens; None stretches them."""
    d, seed, most = attacker.structure.dim, attacker.seed, attacker.may_ask(measures)
    passes = min(64, most // counts.single_head(d))
    where = "tokens stretched" if radius is None else f"tokens up to {radius:.3g}"
    once = learners.ApproximateHead(d, attacker.tolerance(measures), radius=radius, seed=seed)
    yield Attack(f"ApproximateHead, {where}", once)
    if radius is None or passes < 2:
        return
    if measures.noise:
        mean = replace(once, tolerance=attacker.tolerance(measures, passes))
        yield Attack(f"means of {passes} answers, {where}", AveragedAnswers(mean, passes))
    elif measures.step:
        more = replace(once, repeats=passes)
        yield Attack(f"ApproximateHead, {passes} passes, {where}", more)
        yield from _edges(attacker, measures, radius)


def _edges(attacker: Attacker, measures: Measures, radius: float) -> Iterator[Attack]:
    """Yield what bisects to where the rounding steps, to as many bits as queries allow."""
    of, most = attacker.structure, attacker.may_ask(measures)
    rank = of.rank if of.rank < of.dim else None
    whole = EdgeHead(of.dim, measures.step, radius, seed=attacker.seed, rank=rank)
    spare = whole.plan().at_most - most
    bits = whole.bits - max(0, math.ceil(spare / (whole.entries + of.dim)))
    if bits >= 8:  # fewer tell less than rounded answers do
        edges = replace(whole, bits=bits)
        yield Attack(f"bisected steps of the rounding, tokens up to {radius:.3g}", edges)


def _fitted(attacker: Attacker, measures: Measures) -> Iterator[Attack]:
    """Yield fits to as many answers as can be worked with.

    A step multiplies answers times parameters squared, at most 2·10¹⁰ numbers: about two seconds.
    Beyond about 50 dimensions that leaves too few answers per parameter.
    """
    of = attacker.structure
    unknown = counts.single_head(of.dim, biases=of.biases)
    queries = min(attacker.may_ask(measures), int(2e10 / unknown**2))
    if queries >= 1.25 * unknown:
        for length in attacker.fit_lengths(measures):
            fit = FittedHead(of.dim, length, queries, of.biases, attacker.seed)
            yield Attack(f"FittedHead, tokens up to {length:.3g}", fit)
        if of.biases and not attacker.radii(measures):
            stretched = StretchedHead(of.dim, attacker.longest, queries, seed=attacker.seed)
            yield Attack("StretchedHead", stretched)


def several_heads_attacks(attacker: Attacker, measures: Measures) -> Iterator[Attack]:
    """Yield the attacks on several heads."""
    of = attacker.structure
    heads = learners.MultiHeadLearner(of.dim, of.units, of.biases, seed=attacker.seed)
    lengths: list[float | None] = [*attacker.radii(measures)] or [None]
    if not measures.labels:
        for radius in lengths:
            yield from with_averages(replace(heads, radius=radius), attacker, measures)


def with_averages(
    learner: Learner[Any], attacker: Attacker, measures: Measures, typical: int | None = None
) -> Iterator[Attack]:
    """Yield a learner of exact values, and beside noise one of means.

    Learners ask about twice the parameters, unless ``typical`` says otherwise, and a hold-out.
    """
    name, radius = type(learner).__name__, getattr(learner, "radius", None)
    where = "" if radius is None else f", tokens up to {radius:.3g}"
    yield Attack(f"{name}{where}", learner, holdout=Attack.exact)
    once = 2 * attacker.structure.parameters if typical is None else typical
    times = attacker.may_ask(measures) // (once + Attack.exact)
    if measures.noise and times > 1:
        means, holdout = AveragedAnswers(learner, times), Attack.exact * times
        yield Attack(f"{name}, means of {times} answers{where}", means, holdout=holdout)


@dataclass(frozen=True)  # dim is a property here, which a slotted class does not protect
class AveragedAnswers(Configured, Generic[M]):
    """An attack's way with noise: let another learner learn from means of so many answers each.

    Noise of deviation σ, fresh for every answer, becomes one of σ/√times; rounding stays.
    """

    of: Learner[M]
    times: int

    revision: ClassVar[int] = 1

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.of.dim)

    @property
    def outputs(self) -> Outputs:  # type: ignore[override]
        """What a sequence is answered with, as the learner takes it."""
        return outputs_of(self.of)

    def plan(self) -> Plan:
        """Say beforehand what it costs."""
        one, times = self.of.plan(), int(self.times)
        return replace(
            one,
            queries=None if one.queries is None else times * one.queries,
            at_most=times * one.at_most,
            tokens=times * one.tokens,
            formula=f"{times}·({one.formula})",
        )

    def steps(self, checks: int) -> Generator[Round, Answers, Found[M]]:
        """Ask, and return what the learner found."""

        def again(asked: Round) -> Round:
            return [probes for probes in asked for _ in range(self.times)]

        def means(answers: Answers) -> Answers:
            starts: Any = range(0, len(answers), self.times)
            return [np.mean(answers[k : k + self.times], axis=0) for k in starts]

        return mapped(self.of.steps(checks // self.times), ask=again, answer=means)


@dataclass(frozen=True, slots=True)
class FirstColumns(Configured):
    """An attack of budgets below the number of parameters: v and the first columns of W.

    v first, d queries, then W column by column, d queries each, as `ExactHead` does (Theorem 4.1);
    with biases c and w before the columns, d + 1 more. Other columns count as 0.
    """

    dim: int
    columns: int
    """How many of W's d columns."""
    biases: bool = False
    seed: int = 0

    revision: ClassVar[int] = 1

    @classmethod
    def within(cls, dim: int, queries: int, biases: bool, seed: int) -> FirstColumns | None:
        """Read as many columns as a budget is enough for, all but one at most; None for none."""
        each = dim + ExactTuning().again_per_token
        columns = min(dim - 1, (queries - (2 * each if biases else dim)) // each)
        return cls(dim, columns, biases, seed) if columns > 0 else None

    def plan(self) -> Plan:
        """Say beforehand what it costs."""
        d, of_bias, tuning = int(self.dim), int(self.biases), ExactTuning()
        queries = d + of_bias + d * (self.columns + of_bias)
        again = tuning.again_per_token * (self.columns + of_bias)
        return Plan(
            queries=queries,
            at_most=queries + again,
            tokens=2 * queries,
            rounds=3 + tuning.grid.rounds * (1 + of_bias),
            formula="d + d·columns",
        )

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; the hold-out is left to whoever has the whole head."""
        rng, tuning, d = np.random.default_rng(self.seed), ExactTuning(), int(self.dim)
        settings = FirstRoundSettings(
            bool(self.biases), listens=True, ahead=self.plan().at_most, tuning=tuning.first_round
        )
        first = yield from ask_first_round(d, 0, rng, settings)
        values = first.values
        Z = offsets.balanced(values.v, rng)
        spare = tuning.again_per_token
        w, shift = np.zeros(d), None
        split: Split = free
        if self.biases:
            none = np.zeros((1, d))
            bias = LogitGrid(Z.made(), none, values, offset_only, "w", tuning=tuning.grid)
            yield from measure(bias, spare)
            [shift] = bias.measured()
            w, values = solve(Z, bias.measured()).matrix[:, 0], bias.values
            split = beside_bias(shift)
        queries = np.eye(d)[: self.columns]
        grid = LogitGrid(Z.made(), queries, values, split, "W", shift, tuning=tuning.grid)
        yield from measure(grid, spare * self.columns)
        W = np.zeros((d, d))
        W[:, : self.columns] = solve(Z, grid.measured()).matrix
        return unproved(SingleHead(W, values.v, w, values.c))
