"""Asking blocks of keys beside query tokens: at which lengths, and again where weights are small.

[b + a_1; …; b + a_n; b], perhaps with tokens b in between. Pilots find lengths at which logits are
moderate; answers with small weights are asked again with shorter keys. What is solved from the
answers is `key_answers`; which blocks and tokens are asked is for those to say that inherit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer.copied_answers import SoftGates
from unsoftmax.learners.attention_layer.key_answers import KeyAnswers
from unsoftmax.learners.attention_layer.search_limits import Effort
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap, ValueAnswers
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.token_map import AnswerNoise, with_errors
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Indices

# Logits that w alone gives keys are at most this share of those that W b gives them.
_FROM_BIAS = 0.7
# Keys at most so many times as long as query tokens; and these as keys, where the bias keeps keys
# short: what M b adds to answers hides the keys' part, and the grid their last bits.
_LONGER_KEYS, _LONGER_TOKENS = 2.0**8, 2.0**12
# Answers with a smaller weight are asked again with shorter keys.
_LEAST_WEIGHT = 1e-6
# Singular values of [U_1 … U_H] below this, or so many times the noise, do not count: H·n weights
# need H·n dimensions.
_DEPENDENT, _DEPENDENT_NOISE = 1e-8, 1e3


class Lengths(NamedTuple):
    """How long keys and query tokens are."""

    keys: float
    tokens: float


@dataclass(frozen=True, slots=True)
class KeyAsking:
    """What keys are asked with."""

    maps: ValueAnswers | SoftGates
    layer: LayerMap
    values: HeadMaps
    noise: AnswerNoise
    keys: int
    """n, keys per query."""
    effort: Effort
    """Which logits are wanted."""
    typical: tuple[float, float]
    """Largest logits of unit keys: beside unit query tokens, and of the bias alone."""
    rng: np.random.Generator
    radius: float = np.inf
    """Tokens are no longer than this."""
    drawn: float = 1.0
    """Errors that are drawn to tell ranks are so many times as large as those of the answers."""
    base: Array | None = None
    """What is added to all tokens where keys and queries have biases, (d,)."""

    @classmethod
    def of(
        cls,
        maps: ValueAnswers | SoftGates,
        noise: AnswerNoise,
        effort: Effort,
        typical: tuple[float, float],
        rng: np.random.Generator,
        **further: Any,
    ) -> Self:
        """Ask as many keys as these maps and the effort allow."""
        layer, values = maps.layer(), maps.solved()
        n = cls._most_keys(layer, values, noise.relative, effort.share)
        return cls(maps, layer, values, noise, n, effort, typical, rng, **further)

    @staticmethod
    def _most_keys(layer: LayerMap, values: HeadMaps, noise: float, share: int) -> int:
        """Choose how many keys a query has."""
        H = len(values.ranks)
        singular = np.linalg.svd(np.concatenate(list(values.U), axis=1), compute_uv=False)
        least = max(_DEPENDENT, _DEPENDENT_NOISE * noise)
        most = min(min(values.ranks), int(np.count_nonzero(singular > least)) // H)
        if not most:
            raise NotIdentifiable(
                f"The values of {H} heads span {len(singular)} dimensions or fewer, which do not "
                "show their weights at once: MultiHeadLearner learns them from one output.",
                determined={},
            )
        return max(1, most // share)

    def redrawn(self) -> tuple[LayerMap, HeadMaps]:
        """Return the maps as other errors of their answers would have them."""
        relative, absolute = (self.drawn * x for x in (self.noise.relative, self.noise.absolute))
        noise = replace(self.noise, relative=relative, absolute=absolute)
        other = with_errors(self.maps, noise, self.rng)
        return other.layer(), other.solved()

    # -- lengths

    def piloted(self, units: Array, directions: Array) -> Asking[Lengths]:
        """Find lengths at which logits are moderate."""
        slope, bias = self.typical
        lengths = self._wanted(np.array([slope]), bias)
        for _ in range(limits.SCORE_PILOTS):
            few = self.tokens(units[:1], self._pilots(directions), lengths)
            asked = yield from self._answered(self.grid(*few), "pilot")
            scores = asked.scores(self.layer, self.values)
            if np.isnan(scores).any():
                lengths = Lengths(lengths.keys / 4, lengths.tokens)
                continue
            at_zero = self._at_zero(scores)
            beside = np.sqrt(np.mean((scores[1:] - at_zero) ** 2, axis=2))
            bias = float(np.max(np.sqrt(np.mean(at_zero**2, axis=1)))) / lengths.keys
            wanted = self._wanted(beside.max(axis=0) / (lengths.keys * lengths.tokens), bias)
            if 1 / 2 <= wanted.keys / lengths.keys * (wanted.tokens / lengths.tokens) <= 2:
                return wanted
            lengths = wanted
        raise ModelMismatch(
            "No length of keys gives all heads moderate weights: scores are no x·(W x_N + w), or "
            "answers are too coarse to read weights from."
        )

    def _pilots(self, directions: Array) -> Array:
        """Return the query tokens of pilots, of norm 1: 0 and two more."""
        return np.vstack([np.zeros(directions.shape[1]), directions[:2]])

    def _at_zero(self, scores: Array) -> Array:
        """Return what the scores of pilots are beside the query token 0, (H, n)."""
        return np.asarray(scores[0])

    def _wanted(self, slopes: Array, bias: float) -> Lengths:
        """Choose lengths: keys as long as the bias allows, query tokens to match.

        ``slopes`` are the heads' logits of unit keys beside unit query tokens.
        """
        strongest = max(float(slopes.max()), TINY)
        logits = self.effort.logits * strongest / max(float(np.median(slopes)), TINY)
        logits = min(logits, self.effort.strongest)
        keys = float(np.sqrt(logits * _LONGER_KEYS / strongest))
        if bias > 0:
            keys = min(keys, _FROM_BIAS * logits / bias)
        keys = min(keys, self._longest(logits / strongest))
        tokens = min(logits / (strongest * keys), _LONGER_TOKENS * keys)
        return Lengths(keys, min(tokens, self.radius - keys))

    def _longest(self, product: float) -> float:
        """Return how long keys may be that the radius leaves room for query tokens beside.

        Wanted is ``product`` of both lengths; if there is no room for it, as much as there is.
        """
        half = self.radius / 2
        return half if product >= half**2 else half + float(np.sqrt(half**2 - product))

    # -- asking

    def tokens(self, units: Array, directions: Array, lengths: Lengths) -> tuple[Array, Array]:
        """Return keys and query tokens of these lengths, which float32 adds exactly."""
        keys, tokens = lengths.keys * units, lengths.tokens * directions
        longest = sum(np.linalg.norm(x, axis=-1).max(initial=0.0) for x in (keys, tokens))
        inside = self.radius / longest if longest > self.radius else 1.0
        keys, tokens = on_one_grid(inside * keys, inside * tokens)
        return keys, tokens

    def grid(self, keys: Array, tokens: Array, between: int = 0) -> KeyAnswers:
        """Pair every block with every query token, not yet answered."""
        blocks, count = len(keys), len(tokens)
        token, block = np.divmod(np.arange(blocks * count), max(1, blocks))
        nothing = np.zeros((blocks * count, self.layer.numbers))
        scale = np.ones(blocks * count)
        return KeyAnswers(keys, tokens, block, token, scale, nothing, between, self.base)

    def _answered(self, answers: KeyAnswers, phase: str) -> Asking[KeyAnswers]:
        every = np.arange(len(answers.block))
        if not len(every):
            return answers
        [y] = yield [answers.asked(every, phase, "data")]
        return answers.replaced(every, answers.scale, y)

    def asked(self, answers: KeyAnswers, phase: str) -> Asking[KeyAnswers]:
        """Ask all of them; those with small weights again, with shorter keys."""
        return (yield from self.mended_part((yield from self._answered(answers, phase)), phase))

    def mended_part(self, answers: KeyAnswers, phase: str) -> Asking[KeyAnswers]:
        """Ask those with small weights again, with shorter keys."""
        least = max(_LEAST_WEIGHT, limits.WEIGHT_NOISE * self.noise.relative)
        for _ in range(limits.AGAIN):
            again = self._small(answers, least)
            if not len(again):
                return answers
            shorter = answers.replaced(again, answers.scale[again] / 2, answers.y[again])
            [y] = yield [shorter.asked(again, phase, "again")]
            answers = shorter.replaced(again, shorter.scale[again], y)
        if len(self._small(answers, 0.0)):
            raise ModelMismatch(
                "Some answers give a head's keys negative weights, however short the keys are: the "
                "target is no layer of softmax attention, or its answers are too coarse."
            )
        return answers

    def _small(self, answers: KeyAnswers, least: float) -> Indices:
        small = [
            asked[weights.least <= least]
            for asked, weights in answers.weights(self.layer, self.values)
        ]
        return np.sort(np.concatenate([*small, np.zeros(0, dtype=np.intp)])).astype(np.intp)
