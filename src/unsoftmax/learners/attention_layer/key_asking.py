"""Asking blocks of keys beside query tokens: at which lengths, and again where weights are small.

[b + a_1; …; b + a_n; b], perhaps with tokens b in between. Pilots find lengths at which logits are
moderate; answers with small weights are asked again with shorter keys. What is solved from the
answers is `key_answers`; which blocks and tokens are asked is for those to say that inherit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.attention_layer.attention_layer_tuning import (
    AttentionLayerTuning,
    Effort,
)
from unsoftmax.learners.attention_layer.key_answers import KeyAnswers
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Indices, Purpose


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long keys and query tokens are."""

    keys: float
    tokens: float


@dataclass(frozen=True, slots=True)
class KeyAsking:
    """What keys are asked with."""

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
    tuning: AttentionLayerTuning
    radius: float = np.inf
    """Tokens are no longer than this."""

    # -- lengths

    def piloted(self, units: Array, directions: Array) -> Asking[Lengths]:
        """Find lengths at which logits are moderate."""
        tuning = self.tuning
        slope, bias = self.typical
        lengths = self._wanted(np.array([slope]), bias)
        for _ in range(tuning.score_pilots):
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
        tuning, strongest = self.tuning, max(float(slopes.max()), TINY)
        logits = self.effort.logits * strongest / max(float(np.median(slopes)), TINY)
        logits = min(logits, self.effort.strongest)
        keys = float(np.sqrt(logits * tuning.longer_keys / strongest))
        if bias > 0:
            keys = min(keys, tuning.from_bias * logits / bias)
        keys = min(keys, self._longest(logits / strongest))
        tokens = min(logits / (strongest * keys), tuning.longer_tokens * keys)
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
        return KeyAnswers(keys, tokens, block, token, np.ones(blocks * count), nothing, between)

    def _answered(self, answers: KeyAnswers, phase: str) -> Asking[KeyAnswers]:
        every = np.arange(len(answers.block))
        if not len(every):
            return answers
        y = yield from self._sent(answers, every, phase, "data")
        return answers.replaced(every, answers.scale, y)

    def asked(self, answers: KeyAnswers, phase: str) -> Asking[KeyAnswers]:
        """Ask all of them; those with small weights again, with shorter keys."""
        return (yield from self.mended_part((yield from self._answered(answers, phase)), phase))

    def mended_part(self, answers: KeyAnswers, phase: str) -> Asking[KeyAnswers]:
        """Ask those with small weights again, with shorter keys."""
        least = max(self.tuning.least_weight, self.tuning.weight_noise * self.noise.relative)
        for _ in range(self.tuning.again):
            again = self._small(answers, least)
            if not len(again):
                return answers
            shorter = answers.replaced(again, answers.scale[again] / 2, answers.y[again])
            y = yield from self._sent(shorter, again, phase, "again")
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

    def _sent(
        self, answers: KeyAnswers, which: Indices, phase: str, purpose: Purpose
    ) -> Asking[Array]:
        [y] = yield [answers.asked(which, phase, purpose)]
        return np.asarray(y)
