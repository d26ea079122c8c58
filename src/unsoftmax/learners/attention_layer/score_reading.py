"""Every head's [W_h w_h], from queries of many keys: which keys and tokens, at which lengths.

1. Blocks of n keys that together span everything (`solve.key_blocks`), beside r + 4 query tokens,
   b = 0 among them: W_h b + w_h of these, hence the column spaces C_h.
2. Of the other query tokens only C_hᵀ(W_h b + w_h) is left to ask: ⌈r/n⌉ blocks.

n = d_h makes the joint least squares problem square, d numbers per query, the bound. The query
tokens are 0 and orthonormal directions, so that W and w follow well; pilots find lengths at which
logits are moderate, and answers with small weights are asked again with shorter keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer.attention_layer_tuning import (
    AttentionLayerTuning,
    Effort,
)
from unsoftmax.learners.attention_layer.key_answers import (
    HeadScores,
    KeyAnswers,
    assembled,
    columns_of,
)
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Indices, Purpose
from unsoftmax.solve.key_blocks import KeyAims, chosen_keys


@dataclass(frozen=True, slots=True)
class ScoreAnswers:
    """All answers that scores are computed from."""

    first: KeyAnswers
    further: KeyAnswers
    ranks: tuple[int, ...]

    def solved(self, layer: LayerMap, values: HeadMaps) -> HeadScores:
        """Compute all [W_h w_h]."""
        columns = columns_of(self.first, self.first.scores(layer, values))
        C = spaces(columns, self.ranks)
        scores = self.further.scores(layer, values)
        return assembled(columns, C, self.first, self.further, scores)

    def with_errors(self, noise: AnswerNoise, rng: np.random.Generator) -> ScoreAnswers:
        """Return the same answers, with errors drawn as large as theirs may be."""
        first, further = (part.with_errors(noise, rng) for part in (self.first, self.further))
        return ScoreAnswers(first, further, self.ranks)


def keys_of(values: HeadMaps, noise: float, share: int, tuning: AttentionLayerTuning) -> int:
    """Choose how many keys a query has."""
    H = len(values.ranks)
    singular = np.linalg.svd(np.concatenate(list(values.U), axis=1), compute_uv=False)
    least = max(tuning.dependent, tuning.dependent_noise * noise)
    most = min(min(values.ranks), int(np.count_nonzero(singular > least)) // H)
    if not most:
        raise NotIdentifiable(
            f"The values of {H} heads span {len(singular)} dimensions or fewer, which do not "
            "show their weights at once: MultiHeadLearner learns them from one output.",
            determined={},
        )
    return max(1, most // share)


def spaces(columns: Array, ranks: tuple[int, ...]) -> list[Array]:
    """Return bases (d, r_h) of what each head's columns (H, d, T) span."""
    return [
        np.linalg.svd(part, full_matrices=False)[0][:, :rank]
        for part, rank in zip(columns, ranks, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long keys and query tokens are."""

    keys: float
    tokens: float


@dataclass(frozen=True, slots=True)
class ScoreReading:
    """What scores are read with."""

    layer: LayerMap
    values: HeadMaps
    noise: AnswerNoise
    keys: int
    """n, keys per query."""
    effort: Effort
    """Which logits are wanted."""
    typical: tuple[float, float]
    """Largest logits of unit keys: beside unit query tokens, and of the bias alone."""
    redrawn: Callable[[np.random.Generator], tuple[LayerMap, HeadMaps]]
    """The maps as other errors of their answers would have them."""
    rng: np.random.Generator
    tuning: AttentionLayerTuning
    radius: float = np.inf
    """Tokens are no longer than this."""

    def run(self) -> Asking[ScoreAnswers]:
        """Ask both parts."""
        d, n = self.layer.M.shape[1], self.keys
        blocks = -(-d // n)
        whole = KeyAims(self.values.V, [np.eye(d)])
        units = chosen_keys(whole, blocks, n, self.rng, self.tuning.keys)
        directions = np.linalg.qr(self.rng.standard_normal((d, d)))[0]
        lengths = yield from self._piloted(units, directions)
        keys, tokens = self._tokens(units, np.vstack([np.zeros(d), directions]), lengths)
        count = min(max(self.values.ranks) + self.tuning.spare_tokens, d + 1)
        first = yield from self._asked(self._grid(keys, tokens[:count]), "column spaces")
        while True:
            asked = len(first.tokens)
            columns, ranks = self._ranked(first, asked - self.tuning.spare_tokens)
            if asked == d + 1 or max(ranks) < asked:
                break
            more = self._grid(keys, tokens[asked : 2 * asked])
            first = _joined(first, (yield from self._asked(more, "column spaces")))
        C = spaces(columns, ranks)
        further = yield from self._further(C, directions[len(first.tokens) - 1 :], lengths)
        return ScoreAnswers(first, further, ranks)

    def _further(self, C: list[Array], rest: Array, lengths: Lengths) -> Asking[KeyAnswers]:
        n, d = self.keys, len(C[0])
        most = max(1, *(C_h.shape[1] for C_h in C))
        blocks = -(-most // n)
        aims = KeyAims(self.values.V, [C_h for C_h in C if C_h.shape[1]])
        keys = np.zeros((0, n, d))
        if len(rest):
            keys = chosen_keys(aims, blocks, n, self.rng, self.tuning.keys)
        grid = self._grid(*self._tokens(keys, rest, lengths))
        return (yield from self._asked(grid, "rows"))

    # -- lengths

    def _piloted(self, units: Array, directions: Array) -> Asking[Lengths]:
        """Find lengths at which logits are moderate."""
        tuning = self.tuning
        slope, bias = self.typical
        d = units.shape[2]
        lengths = self._wanted(np.array([slope]), bias)
        for _ in range(tuning.score_pilots):
            few = self._tokens(units[:1], np.vstack([np.zeros(d), directions[:2]]), lengths)
            asked = yield from self._answered(self._grid(*few), "pilot")
            scores = asked.scores(self.layer, self.values)
            if np.isnan(scores).any():
                lengths = Lengths(lengths.keys / 4, lengths.tokens)
                continue
            rms = np.sqrt(np.mean(scores**2, axis=2))
            beside = np.sqrt(np.mean((scores[1:] - scores[0]) ** 2, axis=2))
            bias = float(np.max(rms[0])) / lengths.keys
            wanted = self._wanted(beside.max(axis=0) / (lengths.keys * lengths.tokens), bias)
            if 1 / 2 <= wanted.keys / lengths.keys * (wanted.tokens / lengths.tokens) <= 2:
                return wanted
            lengths = wanted
        raise ModelMismatch(
            "No length of keys gives all heads moderate weights: scores are no x·(W x_N + w), or "
            "answers are too coarse to read weights from."
        )

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

    def _tokens(self, units: Array, directions: Array, lengths: Lengths) -> tuple[Array, Array]:
        """Return keys and query tokens of these lengths, which float32 adds exactly."""
        keys, tokens = lengths.keys * units, lengths.tokens * directions
        longest = sum(np.linalg.norm(x, axis=-1).max(initial=0.0) for x in (keys, tokens))
        inside = self.radius / longest if longest > self.radius else 1.0
        keys, tokens = on_one_grid(inside * keys, inside * tokens)
        return keys, tokens

    def _grid(self, keys: Array, tokens: Array) -> KeyAnswers:
        """Pair every block with every query token, not yet answered."""
        blocks, count = len(keys), len(tokens)
        token, block = np.divmod(np.arange(blocks * count), max(1, blocks))
        nothing = np.zeros((blocks * count, len(self.layer.c)))
        return KeyAnswers(keys, tokens, block, token, np.ones(blocks * count), nothing)

    def _answered(self, answers: KeyAnswers, phase: str) -> Asking[KeyAnswers]:
        every = np.arange(len(answers.block))
        if not len(every):
            return answers
        y = yield from self._sent(answers, every, phase, "data")
        return answers.replaced(every, answers.scale, y)

    def mended(self, answers: ScoreAnswers) -> Asking[ScoreAnswers]:
        """Ask again what has small weights with other maps."""
        first = yield from self._mended(answers.first, "column spaces")
        further = yield from self._mended(answers.further, "rows")
        return ScoreAnswers(first, further, answers.ranks)

    def _asked(self, answers: KeyAnswers, phase: str) -> Asking[KeyAnswers]:
        """Ask all of them; those with small weights again, with shorter keys."""
        return (yield from self._mended((yield from self._answered(answers, phase)), phase))

    def _mended(self, answers: KeyAnswers, phase: str) -> Asking[KeyAnswers]:
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

    # -- ranks

    def _ranked(self, first: KeyAnswers, most: int) -> tuple[Array, tuple[int, ...]]:
        """Return the columns, and how many singular values of each head's are no errors.

        Those beyond ``most`` show how large errors are, unless they are larger than errors can be.
        """
        columns = columns_of(first, first.scores(self.layer, self.values))
        layer, values = self.redrawn(self.rng)
        off = first.with_errors(self.noise, self.rng)
        moved = columns_of(off, off.scores(layer, values)) - columns
        ranks = []
        for part, error in zip(columns, moved, strict=True):
            singular = np.linalg.svd(part, compute_uv=False)
            spare = singular[most:]
            # errors so large that drawn ones make a weight negative: the spare ones alone tell
            drawn = bool(np.isfinite(error).all())
            unknown = np.inf if len(spare) else 0.0
            noise = float(np.linalg.norm(error, 2)) if drawn else unknown
            if len(spare) and spare[0] <= self.tuning.score_noise * noise:
                noise = self.tuning.over_spare * float(spare[0])
            ranks.append(int(np.count_nonzero(singular > noise)))
        return columns, tuple(ranks)


def _joined(first: KeyAnswers, more: KeyAnswers) -> KeyAnswers:
    """Put answers of the same keys beside other query tokens behind the first."""
    return KeyAnswers(
        first.keys,
        np.vstack([first.tokens, more.tokens]),
        np.concatenate([first.block, more.block]),
        np.concatenate([first.token, more.token + len(first.tokens)]),
        np.concatenate([first.scale, more.scale]),
        np.vstack([first.y, more.y]),
    )
