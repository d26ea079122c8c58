"""A layer of attention behind a LayerNorm: y = β + γ ⊙ n(x_N + o(X)), all of it, from vectors.

No answer says how long u = x_N + o(X) is: it tells d − 1 numbers, the direction of Pu, so every
linear system has one more unknown per answer (`readout`). The steps are those of a plain layer:

1. single tokens: β, γ up to its sign, (I + M), c (`normalised_singles`);
2. long tokens: the number of heads, the size of K and the sign of γ (`normalised_heads`);
3. query tokens that open one gate, and maps (`opening_tokens`, `map_reading`);
4. keys by the dozen, column spaces, all other query tokens (`score_reading`, `spread_rows`), with
   what differs for directions in `direction_reading`;
5. of coarse answers ranges once more (`range_polish`);
6. eps (`normalised_eps`), fresh sequences, and a certificate (`normalised_conclusion`).

*Queries*: about d + 13 + 24 + 38 + H(⌈d/H⌉ + 4) + (d_h + 4)⌈d/n⌉ + (d − d_h − 3)(1 + 2/12) + 10
for H heads of d_h = d/H, n = ⌊(d − H − 1)/H⌋; MiniLM (12 heads of 32): 1,763, where answers of
d − 2 numbers allow no fewer than 1,483. *Determined up to* the order of heads,
factors of M_h and W_h, and the part of M_h and c that is the same in all outputs. It may not know
anything of the target but its answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.attention_layer.attention_layer_tuning import AttentionLayerTuning, Effort
from unsoftmax.learners.attention_layer.direction_reading import (
    DirectionMaps,
    DirectionScores,
    keys_beside_factor,
)
from unsoftmax.learners.attention_layer.layer_cost import LayerCost
from unsoftmax.learners.attention_layer.normalised_conclusion import concluded
from unsoftmax.learners.attention_layer.normalised_eps import find_eps
from unsoftmax.learners.attention_layer.normalised_heads import (
    PatternAnswers,
    find_heads,
    read_heads,
    too_few,
)
from unsoftmax.learners.attention_layer.normalised_singles import (
    ask_more_singles,
    ask_singles,
    read_singles,
)
from unsoftmax.learners.attention_layer.normalised_solution import (
    NormalisedRounds,
    SolvedLayer,
    solved_alike,
)
from unsoftmax.learners.attention_layer.opening_tokens import OpeningSearch
from unsoftmax.learners.attention_layer.range_polish import polished
from unsoftmax.learners.attention_layer.readout import DirectionMap, NormedNoise
from unsoftmax.learners.attention_layer.recovered_layer import LayerAnswers
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap
from unsoftmax.learners.compose import Asking
from unsoftmax.models import AttentionLayer
from unsoftmax.protocol import Found
from unsoftmax.validate.judge import fresh_answers
from unsoftmax.validate.layer_sequences import LONG
from unsoftmax.validate.sequences import opening


def normalised_cost(dim: int, max_heads: int, tuning: AttentionLayerTuning) -> LayerCost:
    """Bound queries, tokens and rounds, the hold-out's apart.

    Every search may ask offsets in all directions, keys one by one for all query tokens, and as
    many additional tokens as there are corners.
    """
    d, own = dim, tuning.normalised
    heads = own.heads
    patterns = len(heads.longer) * (heads.queries + heads.rounds * heads.more)
    gates = tuning.pilot_rounds * (tuning.pilot_tokens + 2)
    offsets = (1 + tuning.flip_rounds) * tuning.tries * min(max_heads, d) * d
    keys = (2 + tuning.again) * (d + 1) * d + 2 * tuning.score_pilots + 2 * d
    polish = d + min(max_heads, d)
    search = gates + offsets + keys + polish + len(own.eps.variances)
    queries = d + 16 + 2 * own.singles.pairs + patterns + own.tries * search
    rounds = 8 + len(heads.longer) * (heads.rounds + 1)
    maps = tuning.tries * tuning.offset_rounds * (1 + tuning.flip_rounds)
    asked = 2 * tuning.pilot_rounds + maps + tuning.score_pilots + 14 * (1 + tuning.again) + 2
    rounds += own.tries * asked + LONG.most_rounds + 1
    return LayerCost(queries, 2 * queries + own.tries * (4 + tuning.again) * (d + 1) ** 2, rounds)


def normalised_steps(
    dim: int,
    seed: int,
    checks: int,
    *,
    tuning: AttentionLayerTuning,
    max_heads: int | None = None,
    head_dim: int | None = None,
    profile: str = "auto",
) -> Asking[Found[AttentionLayer]]:
    """Recover a layer behind a LayerNorm, of no more than ``max_heads`` heads where that is given.

    Raises
    ------
    ModelMismatch
        The target is none.
    NotIdentifiable
        The answers cannot determine it: an entry of γ is 0, d is too small, no residual.
    """
    rng, own = np.random.default_rng(seed), tuning.normalised
    first = [opening(dim, checks // 4, rng)] if checks // 4 else []
    earlier = yield from fresh_answers(first)
    singles = yield from ask_singles(dim, rng, own.singles)
    frame = read_singles(singles, own.singles)
    effort = _effort(frame, profile, tuning)
    if effort.polish:
        singles = yield from ask_more_singles(singles, rng, own.singles)
        frame = read_singles(singles, own.singles)
    patterns = yield from find_heads(frame, rng, own.heads)
    layer, gates = read_heads(frame, patterns, own.heads)
    H = gates.shape[1]
    if max_heads is not None and max_heads < H:
        raise ModelMismatch(f"There are {H} heads: raise max_heads from {max_heads}.")
    search = DirectionSearch(
        PatternAnswers(singles, patterns, gates, own), layer, head_dim, effort, rng, tuning
    )
    try:
        found = yield from search.run()
        return (yield from concluded(*found, frame.noise, checks, earlier, rng=rng, tuning=own))
    except ModelMismatch as error:
        if dim > own.heads.few:
            raise
        # heads may open together along a line, which is all there is room for
        raise too_few(layer) from error


def _effort(frame: DirectionMap, profile: str, tuning: AttentionLayerTuning) -> Effort:
    """Return what is spent: exact answers have square systems enough."""
    own = tuning.normalised
    exact = frame.noise * np.sqrt(frame.dim) <= own.coarse
    effort = tuning.lean if exact or profile == "lean" else tuning.fine
    if profile == "finest" and not exact:
        effort = effort._replace(share=own.finest * effort.share)
    return effort._replace(logits=own.told.logits, strongest=own.told.strongest)


@dataclass(frozen=True, slots=True)
class DirectionSearch:
    """The search for values and scores, from the heads on."""

    single: PatternAnswers
    layer: DirectionMap
    head_dim: int | None
    effort: Effort
    rng: np.random.Generator
    tuning: AttentionLayerTuning

    def run(self) -> Asking[tuple[SolvedLayer, NormalisedRounds]]:
        """Search, again with other tokens where these were unlucky."""
        own = self.tuning.normalised
        failure: ModelMismatch | None = None
        for _ in range(own.tries):
            try:
                answers = yield from self._searched()
                eps = yield from find_eps(self.layer, self.rng, own.eps)
                asked = NormalisedRounds(answers, eps)
                return solved_alike(asked, None, own), asked
            except (ModelMismatch, np.linalg.LinAlgError) as error:
                failure = ModelMismatch(str(error))
        assert failure is not None
        raise failure

    def _searched(self) -> Asking[LayerAnswers]:
        layer, effort, rng, tuning = self.layer, self.effort, self.rng, self.tuning
        told, gates = tuning.normalised.told, self.single.gate_answers()
        noise = NormedNoise(layer.noise * np.sqrt(layer.dim), scale=1 / layer.norm.gain)
        opening = yield from OpeningSearch(layer, noise, gates, rng, tuning).run()
        maps = yield from DirectionMaps(
            self.single,
            layer,
            noise,
            gates,
            opening,
            self.head_dim,
            effort.whole,
            rng,
            tuning,
            told=told,
        ).run()
        values = maps.solved()
        n = keys_beside_factor(values, effort.share)
        if n < 1:
            raise too_few(layer)
        typical = float(opening.typical.max()), float(opening.bias.max())

        def redrawn(rng: np.random.Generator) -> tuple[LayerMap, HeadMaps]:
            other = maps.with_errors(noise, rng)
            return other.layer(), other.solved()

        reading = DirectionScores(
            layer, values, noise, n, effort, typical, rng, tuning, redrawn=redrawn, told=told
        )
        answers = LayerAnswers(maps, (yield from reading.run()))
        if effort.polish and not maps.whole:
            length = float(np.linalg.norm(opening.a))
            answers = yield from polished(answers, reading, length)
        return answers
