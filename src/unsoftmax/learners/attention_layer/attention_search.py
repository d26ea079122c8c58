"""From single tokens to a layer that predicts a few fresh answers: one path for all layers.

Heads, query tokens that open one gate, maps, scores, ranges once more. What differs are two
properties: what an answer tells (`value_answers`: all, or a direction behind a norm), and what a
score depends on (one distance, or several). After a norm, and where long tokens do not tell heads
apart, heads and maps come from copies of shorter tokens (`soft_gate_reading`).

**Behind a LayerNorm**, y = β + γ ⊙ n(x_N + o(X)), no answer says how long u = x_N + o(X) is: it
tells d − 1 numbers, the direction of Pu, so every linear system has one more unknown per answer.
β, γ up to its sign, (I + M), c and eps come from single tokens, the number of heads, the size
of K and the sign of γ from query tokens of a plane (`norm_behind`). About d + 23 +
6H + H(⌈d/H⌉ + 3) + (d_h + 2)⌈d/n⌉ + (d − d_h − 1)(1 + 2/12) queries for H heads of d_h = d/H,
n = ⌊(d − H − 1)/H⌋; MiniLM (12 heads of 32): 1,744, where answers of d − 2 numbers allow no fewer
than 1,483. Two heads whose gates are alike beside all tokens of the plane pass for one: what is
found has to predict the first part of the hold-out, or heads are looked for again.

**After a LayerNorm or RMSNorm**, y = o(n(X)) (+ x_N), a layer is a plain one of normalised tokens,
on a ball (`normed_tokens`): no token is long, so no gate is 0 or 1. About d + 76 + (⌈rank M/H⌉ +
3)(H + 10) + (r + 4)⌈d/r⌉ + (d − r − 3) queries for H ≥ 6 heads of rank r; MiniLM: 2,007 to 2,073.

**With rotary positions** [2⁴⁰a; 2⁻⁴⁰b] is answered as [b + a; b] of a layer without positions is,
of heads with W_h(1) (`head_search`). Heads whose values have one row space are a group, whose
keys, queries and frequencies come from scores at several distances (`group_scores`). Values have
H m s + G s (d − s) unknown numbers, keys and queries r(Gd + Hd − G), biases r(G + H), and an answer
tells m. With a query bias the gates are the same beside every b: then, and where a layer without
biases is refused, tokens of moderate lengths are asked instead (`group_reading`).

Everything that is computed from answers is computed again from the same answers with errors drawn
as large as theirs may be: how far maps, scores and predictions move is what is certified, a safety
factor apart.

*Source*: beyond arXiv 2601.16873. It may not know anything of the target but its answers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer import group_reading, head_search, norm_behind
from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer.group_scores import GroupAnswers, GroupHeads
from unsoftmax.learners.attention_layer.id_answers import CountAnswers, TableScores
from unsoftmax.learners.attention_layer.key_answers import HeadScores
from unsoftmax.learners.attention_layer.map_reading import DirectionMaps, MapReading
from unsoftmax.learners.attention_layer.range_fit import fitted_maps, polished
from unsoftmax.learners.attention_layer.score_reading import (
    DirectionScores,
    ScoreAnswers,
    ScoreReading,
)
from unsoftmax.learners.attention_layer.search_limits import (
    PLAIN,
    Effort,
    Pilots,
    effort_behind,
    effort_of,
)
from unsoftmax.learners.attention_layer.soft_gate_reading import SoftGateReading, SoftGates
from unsoftmax.learners.attention_layer.value_answers import (
    AffineAnswers,
    DirectionMap,
    GateAnswers,
    Groups,
    HeadMaps,
    LayerMap,
    MapAnswers,
    NormedNoise,
    ValueAnswers,
    groups_of,
    refuse_cancelling,
    shared_rows,
)
from unsoftmax.learners.compose import Asking, Recorded, T, recorded
from unsoftmax.measure.precision import UNIT
from unsoftmax.measure.token_map import AnswerNoise, TokenMapAnswers, with_errors
from unsoftmax.models import AttentionLayer, LayerHead, LayerNorm
from unsoftmax.models.rotary_layer import FARTHEST_BOUNDED, RotaryLayer
from unsoftmax.protocol import Found
from unsoftmax.refusals import Reason, reworded
from unsoftmax.validate.conclude import Conclusion, LayerSequences, Said
from unsoftmax.validate.drawn_models import DRAWN, DrawnModels, Layer
from unsoftmax.validate.judge import fresh_answers
from unsoftmax.validate.long_sequences import Ball
from unsoftmax.validate.sequences import opening


@dataclass(frozen=True, slots=True)
class RecoveredLayer:
    """c, every M_h and what every head scores."""

    layer: LayerMap
    values: HeadMaps
    scores: HeadScores | GroupHeads
    groups: Groups
    eps: tuple[float, float]
    """Of a norm behind, and about what it is off by."""

    def model(self, moved: float = 0.0) -> Layer:
        """Return it as a model, eps ``moved`` so many times by what it is off by."""
        layer, (eps, off) = self.layer, self.eps
        if isinstance(self.scores, GroupHeads):
            return self._rotary(self.scores)
        c, norm = layer.outputs(layer.c[:, None])[:, 0], None
        if isinstance(layer, DirectionMap):
            scale, eps = 1 / layer.norm.gain, max(0.0, eps + moved * off)
            norm = LayerNorm(scale, layer.norm.shift, eps, centred=layer.norm.takes_mean)
        return AttentionLayer(self._heads(self.scores), c, layer.residual, norm)

    def _heads(self, scores: HeadScores) -> list[LayerHead]:
        """Return its heads, in factors."""
        each = zip(self.values.U, self.values.V, scores.C, scores.R, strict=True)
        return [
            LayerHead.from_factors(O=self.layer.outputs(U), V=V, K=C.T, Q=R[:, :-1], w=C @ R[:, -1])
            for U, V, C, R in each
        ]

    def _rotary(self, heads: GroupHeads) -> RotaryLayer:
        """Return a layer with positions, one V of each group."""
        s, (H, _, d) = max(self.values.ranks), heads.Q.shape
        O, V = np.zeros((H, len(self.layer.c), s)), np.zeros((len(self.groups), s, d))  # noqa: E741
        places = np.zeros(H)
        for g, group in enumerate(self.groups):
            shared = shared_rows(self.values, group)
            V[g, : len(shared)] = shared
            for h in group:
                O[h] = self.values.U[h] @ (self.values.V[h] @ V[g].T)
                places[h] = g
        return RotaryLayer(
            O,
            V,
            heads.K,
            heads.Q,
            self.layer.c,
            heads.rotary,
            k_bias=heads.k_bias,
            q_bias=heads.q_bias,
            groups=places,
            residual=self.layer.residual,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAnswers:
    """All answers that a layer is computed from."""

    eps: norm_behind.EpsAnswers | None = None
    """Of a norm behind."""
    values: ValueAnswers | SoftGates | CountAnswers
    scores: ScoreAnswers | GroupAnswers | TableScores
    fitted: AnswerNoise | None = None
    """Of maps that all answers are fitted by, what those are off by."""

    def maps(self) -> tuple[LayerMap, HeadMaps]:
        """Compute c and M, and every M_h."""
        layer, scores = self.values.layer(), self.scores
        values = scores.first.closed(layer, self.values.solved())
        if self.fitted is None:
            return layer, values
        assert isinstance(self.values, ValueAnswers)
        assert isinstance(scores, ScoreAnswers)
        keyed = scores.first, scores.further
        return fitted_maps(layer, values, self.values, keyed, self.fitted)

    def solved(self) -> RecoveredLayer:
        """Compute the layer."""
        layer, values = self.maps()
        groups = self.scores.groups if isinstance(self.scores, GroupAnswers) else ()
        eps = (0.0, 0.0)
        if self.eps is not None:
            assert isinstance(layer, DirectionMap)
            eps = self.eps.solved(layer)
        return RecoveredLayer(layer, values, self.scores.solved(layer, values), groups, eps)

    def drawn(
        self, noise: AnswerNoise, rng: np.random.Generator, **least: float
    ) -> DrawnModels[Layer]:
        """Compute it, and again from answers with such errors.

        Raises
        ------
        ModelMismatch
            Errors as large as those of the answers leave no layer.
        """
        found = self.solved()
        others = [with_errors(self, noise, rng).solved() for _ in range(DRAWN)]
        if not all(np.isfinite(x).all() for one in others for x in one.scores.arrays):
            raise Reason.ERRORS_LEAVE_NO_WEIGHTS.error(
                noise=noise.relative, heads=len(found.values.U)
            )
        # eps up and down by twice what it is off by as a rule: a draw may be small, none is below
        # 0, and behind six decimals 3 of 66 eps were off by more than is certified of that
        off = found.eps[1]
        others = [replace(one, eps=(one.eps[0], off)) for one in others]
        models = [one.model(moved=2.0 * (-1) ** (k + 1)) for k, one in enumerate(others)]
        return DrawnModels(found.model(), models, noise, **least)


def said_of(model: Layer) -> Said:
    """Say what is taken for granted of a layer."""
    kind, otherwise = "layer of softmax attention", "a nonlinearity in the values, a second layer"
    if not isinstance(model, RotaryLayer):
        if model.norm is None:
            return Said(f"{kind} with scores x·(W x_N + w)", f"a window, positions, {otherwise}")
        kind += " with a residual connection and a LayerNorm or RMSNorm behind"
        mean = "M and c are given without their mean over outputs, which a LayerNorm subtracts."
        signs = (
            "The scale of the RMSNorm behind has the signs that answers to two tokens agree with."
        )
        assumed = mean if model.norm.centred else signs
        return Said(kind, f"a window, positions, {otherwise}", (assumed,))
    biased = model.biased
    bound = (
        "The bound on W holds for W(Δ) = Kᵀ R(Δ) Q of every head, for distances Δ from 0 to "
        f"{FARTHEST_BOUNDED}; beyond, it grows in proportion to the distance."
        + " The bound on w holds for what biases add to scores there."
        * biased
    )
    without = "Keys and queries are assumed to have no biases: their effect is not bounded."
    shared = f"{model.H} heads share the keys and values of {model.G} groups."
    still = "Scores do not turn with distance: all frequencies are 0."
    return Said(
        f"{kind} with rotary positions",
        "other positions beside them, positions that change beyond some distance, a window, "
        + otherwise
        + ", key and query biases that are too large" * biased,
        (bound,) if biased else (bound, without),
        (shared,) * (model.G < model.H) + (still,) * (not np.any(model.rotary.frequencies)),
    )


Concluded = Conclusion[Layer]
REFUSALS = (ModelMismatch, NotIdentifiable, np.linalg.LinAlgError)

# Dimensions of all heads' values up to which maps are fitted. In 384 the fit converges slowly,
# from a start as far as that; reading ranges again, a query per dimension, does better.
_FITTED_ALONE = 64
# Heads whose values have the same row space but for this angle share them, or for so many times
# the noise: behind float32 row spaces are off by 0.02 to 0.05, and random ones are at right angles.
SHARED, _SHARED_NOISE = 1e-4, 1e6
# Roundoffs that answers behind a norm are perturbed by, relative to y and to the scale; those
# further than so many from the affine map are perturbed by what they are off.
_ROUNDOFFS, _NOISY = 4.0, 256.0
# Errors of maps that are drawn to tell ranks of scores are so many times as large where maps come
# from soft gates: one draw may be a tenth of the errors there are, where one direction decides.
_SOFT_DRAWN = 4.0


class Wanted(NamedTuple):
    """What a user says of a layer, and how much is asked."""

    most: int
    """Heads at most."""
    head_dim: int | None
    profile: str
    given: group_reading.GivenPositions | None
    """What is known of positions; None where scores have one distance."""


def tried(
    times: int,
    search: Callable[[bool], Asking[T]],
    again: tuple[type[Exception], ...] = (ModelMismatch, np.linalg.LinAlgError),
) -> Asking[T]:
    """Search, once more with other tokens where that fails; the last search is told that it is."""
    for left in reversed(range(times)):
        try:
            return (yield from search(not left))
        except head_search.HeadsStill:
            raise
        except again:
            if not left:
                raise
    raise AssertionError("no searches")


def conclusion_of(
    answers: LayerAnswers,
    noise: AnswerNoise,
    rng: np.random.Generator,
    fresh: float = np.inf,
    ball: Ball | None = None,
    **least: float,
) -> Concluded:
    """Put a layer beside others of the same answers; fresh tokens are no longer than ``fresh``.

    But for those near the rim of a ``ball``.
    """
    drawn = answers.drawn(noise, rng, **least)
    by_distance = isinstance(drawn.model, RotaryLayer)
    sequences = LayerSequences(drawn.model, rng, fresh, by_distance, ball)
    return Conclusion(drawn, sequences, said_of(drawn.model))


def search(
    single: MapAnswers,
    gates: GateAnswers,
    noise: AnswerNoise,
    effort: Effort,
    wanted: Wanted,
    rng: np.random.Generator,
    pilots: Pilots = PLAIN,
) -> Asking[LayerAnswers]:
    """Ask for all that a layer is computed from, from the heads on."""
    layer, given = single.layer(), wanted.given
    behind = isinstance(layer, DirectionMap)
    opening = yield from head_search.OpeningSearch(layer, noise, gates, rng, pilots).run()
    maps = yield from (DirectionMaps if behind else MapReading)(
        single,
        layer,
        noise,
        gates,
        opening,
        wanted.head_dim,
        effort.whole,
        rng,
        pilots,
        shared=given is not None,
        spare=effort.spare_offsets,
    ).run()
    if given is not None:
        groups = groups_of(maps.solved(), min(max(SHARED, _SHARED_NOISE * noise.relative), 0.5))
        if noise.relative > limits.EXACT:
            maps = replace(maps, groups=groups)
        of = (group_reading.LiftedReading if pilots.mirrored else group_reading.GroupReading).of
        asking = of(maps, noise, effort, opening.typical, rng, groups=groups, given=given)
        return LayerAnswers(values=maps, scores=(yield from asking.run()))
    more = effort.polish and not maps.whole
    fit = more and not behind and sum(maps.ranks) <= _FITTED_ALONE
    if fit:
        effort = limits.FITTED
    elif effort.whole and not behind:
        effort = limits.WHOLE
    kind = DirectionScores if behind else ScoreReading
    reading = kind.of(maps, noise, effort, opening.typical, rng)
    scores = yield from reading.run()
    if fit:
        # what has small weights beside other maps is asked again
        answers = LayerAnswers(values=maps, scores=scores, fitted=noise)
        layer, values = answers.maps()
        scores = yield from replace(reading, layer=layer, values=values).mended(scores)
        return replace(answers, scores=scores)
    if more:
        length = float(np.linalg.norm(opening.a))
        maps, scores = yield from polished(maps, scores, reading, length)
    return LayerAnswers(values=maps, scores=scores)


def read_layer(
    tokens: TokenMapAnswers,
    wanted: Wanted,
    effort: Effort,
    rng: np.random.Generator,
    pilots: Pilots = PLAIN,
) -> Asking[LayerAnswers]:
    """Search for all, from single tokens on, beside offsets so long that gates are 0 or 1."""
    noise = tokens.noise()
    found = yield from head_search.HeadSearch(
        LayerMap.of(tokens), noise, wanted.most, rng, pilots
    ).run()
    single = AffineAnswers(tokens, found.residual)
    try:
        return (yield from search(single, found.gates, noise, effort, wanted, rng, pilots))
    except (ModelMismatch, np.linalg.LinAlgError) as refusal:
        refuse_cancelling(found.gates.sum_share(single.layer()), refusal)
        raise


def soft_search(
    reading: SoftGateReading,
    profile: str,
    widest: float,
    fresh: float = np.inf,
    ball: Ball | None = None,
    **least: float,
) -> Asking[Concluded]:
    """Search for heads by copies of tokens, whose gates are neither 0 nor 1.

    Keys may be as long as ``widest``, fresh tokens as ``fresh``; ``least_most`` is the share of an
    answer up to which a residual is not refused.
    """
    noise, rng = reading.noise, reading.rng
    effort = effort_of(profile, noise.relative)
    first = yield from reading.run(effort.whole)
    found = iter([first])

    def searched(last: bool) -> Asking[Concluded]:
        # gates may have been others than they seemed beside the first offset
        again = reading.again(first[0], effort.whole)
        base, maps = next(found, None) or (yield from again)
        scores = ScoreReading.of(
            maps, noise, effort, base.typical(), rng, radius=widest, drawn=_SOFT_DRAWN
        )
        answers = LayerAnswers(values=maps, scores=(yield from scores.run()))
        conclusion = conclusion_of(answers, noise, rng, fresh, ball, **least)
        yield from conclusion.confirmed()
        return conclusion

    return (yield from tried(limits.BALL_TRIES, searched))


def steps_behind(
    dim: int, wanted: Wanted, rng: np.random.Generator, checks: int
) -> Asking[Found[Layer]]:
    """Recover a layer behind a LayerNorm.

    Raises
    ------
    ModelMismatch
        The target is none.
    NotIdentifiable
        The answers cannot determine it: an entry of γ is 0, d is too small, no residual.
    """
    earlier = yield from fresh_answers([opening(dim, checks // 4, rng)] if checks // 4 else [])
    singles = yield from norm_behind.ask_singles(dim, rng)
    effort = effort_behind(wanted.profile, singles.solved().noise * np.sqrt(dim))
    if effort.polish:
        singles = yield from norm_behind.ask_more_singles(singles, rng)
    exact = effort is limits.EXACT_BEHIND
    patterns = yield from norm_behind.find_heads(singles, rng, exact)
    heads = patterns.gates.gates.shape[1]
    if wanted.most < heads:
        raise Reason.MORE_HEADS.error(heads=heads, most=wanted.most)
    found = iter([patterns])

    def searched(last: bool) -> Asking[Concluded]:
        # two heads may have passed for one: others are looked for with more tokens
        single = next(found, None) or (yield from norm_behind.find_heads(singles, rng))
        layer, H = single.layer(), single.gates.gates.shape[1]
        noise = NormedNoise(layer.noise * np.sqrt(dim), scale=1 / layer.norm.gain)
        unit = noise.relative if noise.relative > _NOISY * UNIT else _ROUNDOFFS * UNIT
        pilots = PLAIN
        if exact:
            first, more = limits.OPENING_FIRST * H, limits.OPENING_MORE * H
            pilots = PLAIN._replace(deviations=limits.OPENING_DEVIATIONS, first=first, more=more)
        answers = yield from search(single, single.gates, noise, effort, wanted, rng, pilots)
        answers = replace(answers, eps=(yield from norm_behind.find_eps(layer, rng)))
        conclusion = conclusion_of(answers, replace(noise, relative=float(unit)), rng)
        yield from conclusion.confirmed(earlier)
        return conclusion

    try:
        kept: Recorded = []
        conclusion = yield from recorded(tried(limits.TRIES_BEHIND, searched), kept)
        return (yield from conclusion.run(checks, earlier, kept))
    except (ModelMismatch, np.linalg.LinAlgError) as error:
        if dim > limits.PLANE_FEW:
            raise
        # heads may open together along a line, which is all there is room for
        raise norm_behind.too_few(patterns.layer()) from error


def search_with_positions(
    tokens: TokenMapAnswers, wanted: Wanted, rng: np.random.Generator
) -> Asking[Concluded]:
    """Recover a layer with positions: without biases of keys and queries, then with them."""
    noise, whole = tokens.noise().relative, LayerMap.of(tokens)
    coarse, effort = noise > limits.EXACT, effort_of(wanted.profile, noise)
    pilots = limits.POSITIONED._replace(
        deviations=(PLAIN if coarse else limits.POSITIONED).deviations
    )

    def searched(pilots: Pilots, last: bool) -> Asking[Concluded]:
        # ranges of trained heads may be too nearly dependent for fewer directions
        dense = effort.whole or (last and coarse)
        read = read_layer(tokens, wanted, effort._replace(whole=dense), rng, pilots)
        if not pilots.mirrored:
            read = head_search.with_long_offsets(read, whole)
        conclusion = conclusion_of((yield from read), tokens.noise(), rng)
        yield from conclusion.confirmed()
        return conclusion

    try:
        return (yield from tried(limits.ATTEMPTS, partial(searched, pilots), REFUSALS))
    except REFUSALS as refused:
        still = isinstance(refused, head_search.HeadsStill)
        if coarse:
            if not still:
                raise
            raise _naming_biases(refused, _TOO_COARSE) from refused
        try:
            return (yield from tried(limits.ATTEMPTS, partial(searched, limits.BIASED), REFUSALS))
        except REFUSALS as again:
            if "frequencies" in getattr(again, "determined", {}):
                raise  # they are not the given ones: biases have been read
            if not still:
                raise refused from again
            raise _naming_biases(again, _TOO_LARGE) from again


_TOO_COARSE = (
    "Keys or queries with biases answer so as well, and behind answers as coarse as these, layers "
    "with positions and such biases are not recovered here."
)
_TOO_LARGE = (
    "Queries of this layer have biases, and those of keys and queries may be too large beside what "
    "tokens add to them."
)


def _naming_biases(refused: Exception, reason: str) -> Exception:
    """Return a refusal of a layer whose gates do not change beside long offsets."""
    if isinstance(refused, NotIdentifiable | ModelMismatch):
        return reworded(refused, f"{refused} {reason}")
    return Reason.SINGULAR_EQUATIONS.error(contrary="no layer of softmax attention", also=reason)
