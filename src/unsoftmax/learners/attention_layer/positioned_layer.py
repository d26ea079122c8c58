"""A whole attention layer with rotary positions and grouped heads, from vector answers.

Recovers O_h V_g of every head, the groups, the frequencies and all W_h(Δ) = K_gᵀ R(Δ) Q_h, with key
and query biases. Values have H m s + G s (d − s) unknown numbers, keys and queries r(Gd + Hd − G),
biases r(G + H), and an answer tells m:

1. Single tokens: M = Σ O_h V_g, c, the residual, and the noise (`measure.token_map`).
2. [2⁴⁰a; 2⁻⁴⁰b] is answered as [b + a; b] of a layer without positions is, of heads with W_h(1)
   (`long_offsets`): heads, gates and values are found as there (`learners.attention_layer`). Heads
   whose values have one row space are a group.
3. [2⁴⁰a_1; …; 2⁴⁰a_n; 0 × m; 2⁻⁴⁰b]: keys, queries, frequencies (`turned_scores`).
   With a query bias the gates of 2 are the same beside every b: then, and where a layer without
   biases is refused, tokens of moderate lengths instead (`mirrored_opening`, `biased_scores`).
4. Fresh sequences of up to 512 tokens confirm or refuse (`validate.conclude`).

Source: beyond arXiv 2601.16873; positions are in no paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer.attention_layer_tuning import AttentionLayerTuning
from unsoftmax.learners.attention_layer.given_positions import ToldTurning
from unsoftmax.learners.attention_layer.group_reading import TurnedScoreReading
from unsoftmax.learners.attention_layer.group_scores import TurnedAnswers, TurnedHeads
from unsoftmax.learners.attention_layer.head_groups import Groups, groups_of, shared_rows
from unsoftmax.learners.attention_layer.head_search import HeadSearch, HeadsStill
from unsoftmax.learners.attention_layer.lifted_reading import BiasedScoreReading
from unsoftmax.learners.attention_layer.long_offsets import with_long_offsets
from unsoftmax.learners.attention_layer.map_reading import MapReading
from unsoftmax.learners.attention_layer.mirrored_opening import MirroredOpening
from unsoftmax.learners.attention_layer.opening_tokens import OpeningSearch
from unsoftmax.learners.attention_layer.position_tuning import TurnedLayerTuning
from unsoftmax.learners.attention_layer.recovered_layer import negative_weights
from unsoftmax.learners.attention_layer.score_reading import keys_of
from unsoftmax.learners.attention_layer.shared_values import with_shared_values
from unsoftmax.learners.attention_layer.value_answers import (
    AffineAnswers,
    HeadMaps,
    LayerMap,
    ValueAnswers,
)
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.token_map import AnswerNoise, TokenMapAnswers
from unsoftmax.models.rotary_layer import FARTHEST_BOUNDED, RotaryLayer
from unsoftmax.probes import FARTHEST
from unsoftmax.protocol import Plan, Steps
from unsoftmax.theory import counts
from unsoftmax.validate.conclude import CONFIRMING, Conclusion, Said
from unsoftmax.validate.drawn_models import DRAWN, DrawnModels
from unsoftmax.validate.layer_sequences import LONG, SHORT, LayerSequences

_REFUSALS = (ModelMismatch, NotIdentifiable, np.linalg.LinAlgError)
_COARSE = (
    "Keys or queries with biases answer so as well, and behind answers as coarse as these, layers "
    "with positions and such biases are not recovered here."
)
_LARGE = (
    "Queries of this layer have biases, and those of keys and queries may be too large beside what "
    "tokens add to them."
)


@dataclass(frozen=True, slots=True)
class TurnedLayer:
    """A layer as its answers give it."""

    layer: LayerMap
    values: HeadMaps
    heads: TurnedHeads
    groups: Groups

    def model(self) -> RotaryLayer:
        """Return it as a model, one V of each group."""
        s, (H, _, d) = max(self.values.ranks), self.heads.Q.shape
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
            self.heads.K,
            self.heads.Q,
            self.layer.c,
            self.heads.rotary,
            k_bias=self.heads.k_bias,
            q_bias=self.heads.q_bias,
            groups=places,
            residual=self.layer.residual,
        )


@dataclass(frozen=True, slots=True)
class TurnedLayerAnswers:
    """All answers that a layer is computed from."""

    values: ValueAnswers
    scores: TurnedAnswers
    coarse: bool
    """Whether maps are solved for once more, values being shared in groups."""

    def solved(self) -> TurnedLayer:
        """Compute the layer."""
        layer, values = self.values.layer(), self.values.solved()
        if self.coarse:
            values = with_shared_values(self.values, values, self.scores.groups)
        return TurnedLayer(layer, values, self.scores.solved(layer, values), self.scores.groups)

    def sampled(self, noise: AnswerNoise, rng: np.random.Generator) -> TurnedLayer:
        """Compute it from answers with errors drawn as large as theirs may be."""
        values = self.values.with_errors(noise, rng)
        scores = self.scores.with_errors(noise, rng)
        return TurnedLayerAnswers(values, scores, self.coarse).solved()


@dataclass(frozen=True, slots=True)
class TurnedLayerTask:
    """What is to be learned of a layer with positions."""

    tokens: TokenMapAnswers
    """Answers to single tokens."""
    most_heads: int
    head_dim: int | None
    profile: str
    told: ToldTurning
    """What is known of the frequencies."""
    tuning: AttentionLayerTuning
    rng: np.random.Generator

    @property
    def turned(self) -> TurnedLayerTuning:
        """Knobs of positions."""
        return self.tuning.turned

    def steps(self, checks: int) -> Steps[RotaryLayer]:
        """Ask, and return what was found."""
        try:
            conclusion = yield from self._attempted(biased=False)
        except _REFUSALS as refused:
            still = isinstance(refused, HeadsStill)
            if self._coarse:
                if not still:
                    raise
                raise _naming_biases(refused, _COARSE) from refused
            try:
                conclusion = yield from self._attempted(biased=True)
            except _REFUSALS as again:
                if "frequencies" in getattr(again, "determined", {}):
                    raise  # they are not the given ones: biases have been read
                if not still:
                    raise refused from again
                raise _naming_biases(again, _LARGE) from again
        return (yield from conclusion.run(checks))

    def _attempted(self, biased: bool) -> Asking[Conclusion[RotaryLayer]]:
        """Search for heads with biases or without, once more where that fails."""
        for again in reversed(range(self.tuning.attempts)):
            try:
                # ranges of trained heads may be too nearly dependent for fewer directions
                dense = not again and self.tuning.attempts > 1 and self._coarse
                return (yield from self._searched(biased, dense))
            except HeadsStill:
                raise
            except _REFUSALS:
                # gates of two heads may be opposite at all of a few tokens by chance
                if not again:
                    raise
        raise AssertionError("no attempts")

    @property
    def _coarse(self) -> bool:
        """Whether answers are coarser than those of float64."""
        return self.tokens.noise().relative > self.tuning.exact

    def _searched(self, biased: bool, dense: bool) -> Asking[Conclusion[RotaryLayer]]:
        """Search for all heads; what was found predicts a few fresh answers.

        Where it is ``dense`` maps are read in all directions.
        """
        noise = self.tokens.noise()
        read = self._read(noise, biased, dense)
        if not biased:
            whole, gain = LayerMap.of(self.tokens), self.turned.positions.gain
            read = with_long_offsets(read, whole, gain)
        answers = yield from read
        others = [answers.sampled(noise, self.rng) for _ in range(DRAWN)]
        if not all(np.isfinite(x).all() for one in others for x in (one.heads.K, one.heads.Q)):
            raise negative_weights(noise, len(others[0].heads.Q))
        model = answers.solved().model()
        drawn = DrawnModels(model, [one.model() for one in others], noise)
        fresh = LayerSequences(model, self.rng, by_distance=True)
        conclusion = Conclusion(drawn, fresh, _said(model))
        yield from conclusion.confirmed()
        return conclusion

    def _tuning_for(self, noise: AnswerNoise, biased: bool) -> AttentionLayerTuning:
        """Return the knobs of what does not know positions, as it is used here."""
        turned = self.turned
        plain = replace(self.tuning, head_queries=turned.head_queries)
        if biased:
            # few pilots leave small margins, and shorter steps worse maps: the usual deviations
            few = turned.biased
            return replace(plain, gate_off=few.gate_off, pilot_tokens=few.pilot_tokens)
        exact = noise.relative <= self.tuning.exact
        deviations = turned.deviations if exact else self.tuning.deviations
        return replace(plain, pilot_tokens=turned.pilot_tokens, deviations=deviations)

    def _read(self, noise: AnswerNoise, biased: bool, dense: bool) -> Asking[TurnedLayerAnswers]:
        """Find heads, values, groups, keys and queries."""
        turned, rng, tuning = self.turned, self.rng, self._tuning_for(noise, biased)
        exact = noise.relative <= self.tuning.exact
        effort = tuning.effort(self.profile, noise.relative)
        whole = LayerMap.of(self.tokens)
        found = yield from HeadSearch(whole, noise, self.most_heads, rng, tuning).run()
        layer = LayerMap.of(self.tokens, found.residual)
        search = MirroredOpening if biased else OpeningSearch
        opening = yield from search(layer, noise, found.gates, rng, tuning).run()
        maps = yield from MapReading(
            AffineAnswers(self.tokens, found.residual),
            layer,
            noise,
            found.gates,
            opening,
            self.head_dim,
            effort.whole or dense,
            rng,
            tuning,
            shared=True,
        ).run()
        values = maps.solved()
        allowed = max(turned.shared, turned.shared_noise * noise.relative)
        groups = groups_of(values, min(allowed, 0.5))
        if not exact:
            values = with_shared_values(maps, values, groups)

        def redrawn(rng: np.random.Generator) -> tuple[LayerMap, HeadMaps]:
            other = maps.with_errors(noise, rng)
            found = other.solved()
            return other.layer(), found if exact else with_shared_values(other, found, groups)

        reading = TurnedScoreReading(
            layer,
            values,
            noise,
            keys_of(values, noise.relative, effort.share, tuning),
            effort,
            (float(opening.typical.max()), float(opening.bias.max())),
            rng,
            tuning,
            groups=groups,
            told=self.told,
            redrawn=redrawn,
            turned=turned,
        )
        if biased:
            reading = BiasedScoreReading.of(reading)
        return TurnedLayerAnswers(maps, (yield from reading.run()), not exact)


def _said(model: RotaryLayer) -> Said:
    """Say what is taken for granted of a layer with positions."""
    without = "Keys and queries are taken to have no biases: what those add is not bounded."
    shared = f"{model.H} heads share the keys and values of {model.G} groups."
    still = "Scores do not turn with distance: all frequencies are 0."
    return Said(
        "layer of softmax attention with rotary positions",
        "others beside them, positions that change beyond some distance, a window, a nonlinearity "
        "in the values, a second layer"
        + ", key and query biases that are too large"
        * model.biased,
        (
            "The bound on W is one on W(Δ) = Kᵀ R(Δ) Q of every head, for distances Δ from 0 to "
            f"{FARTHEST_BOUNDED}; beyond it grows as the distance does."
            + " That on w is one on what biases add to scores there."
            * model.biased,
            *(() if model.biased else (without,)),
        ),
        (
            *((shared,) if model.G < model.H else ()),
            *(() if np.any(model.rotary.frequencies) else (still,)),
        ),
    )


def _naming_biases(refused: Exception, reason: str) -> Exception:
    """Return a refusal of a layer whose gates do not change beside long offsets."""
    if isinstance(refused, NotIdentifiable):
        return NotIdentifiable(f"{refused} {reason}", determined=refused.determined)
    if isinstance(refused, ModelMismatch):
        return ModelMismatch(f"{refused} {reason}", determined=refused.determined)
    return ModelMismatch(f"The answers lead to equations that are singular. {reason}")


def turned_plan(dim: int, heads: int, rank: int | None, tuning: AttentionLayerTuning) -> Plan:
    """Say what a layer of so many heads costs at most; their number and groups are found."""
    # as many searches again, for biases
    tuning = replace(tuning, attempts=2 * tuning.attempts)
    turned, r = tuning.turned, max(1, dim // heads) if rank is None else int(rank)
    pilots = tuning.pilot_rounds * (turned.pilot_tokens + 2) + 3 * tuning.score_pilots
    maps = tuning.tries * (heads * dim + tuning.checked)
    keys = (1 + tuning.again) * 4 * dim * (dim + 1)
    searches = len(tuning.offset_lengths) * tuning.most_search(heads)
    at_most = dim + 8 + tuning.attempts * (searches + pilots + maps + keys + CONFIRMING)
    queries = counts.rotary_layer_queries(dim, heads, heads, r)
    biased = counts.rotary_layer_queries(dim, heads, heads, r, biases=True)
    longest = max(turned.longest, turned.longest_coarse) + dim + 1
    return Plan(
        queries=None,
        at_most=at_most,
        tokens=2 * at_most + tuning.attempts * keys * longest,
        rounds=tuning.most_rounds + LONG.most_rounds,
        formula=(
            "about 2d + 61 + (H − 1)r + 2⌈d/r⌉(⌈rG/H⌉ + 1) for H heads of rank r with rotary "
            f"positions that share the keys and values of G groups: {queries:,} for {heads} of "
            f"rank {r} that share nothing, {biased:,} where keys and queries have biases"
        ),
        longest_token=FARTHEST,
        most_tokens=max(longest, LONG.most_tokens(dim, *(shape.tokens for shape in SHORT))),
    )
