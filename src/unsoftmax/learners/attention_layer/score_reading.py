"""Every head's [W_h w_h], from queries of many keys: which keys and tokens, at which lengths.

1. Blocks of n keys that together span everything (`solve.key_blocks`), beside r + 4 query tokens,
   b = 0 among them: W_h b + w_h of these, hence the column spaces C_h.
2. Of the other query tokens only C_hᵀ(W_h b + w_h) is left to ask: ⌈r/n⌉ blocks.

n = d_h makes the joint least squares problem square, d numbers per query, the bound. The query
tokens are 0 and orthonormal directions, so that W and w follow well; pilots find lengths at which
logits are moderate, and answers with small weights are asked again with shorter keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy

from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer.key_answers import (
    HeadScores,
    KeyAnswers,
    columns_of,
)
from unsoftmax.learners.attention_layer.key_asking import KeyAsking, Lengths
from unsoftmax.learners.attention_layer.spread_rows import SpreadRows
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.probes import Array
from unsoftmax.solve.key_blocks import KeyAims, chosen_keys

# Query tokens beyond the expected rank that read the column spaces.
_SPARE_TOKENS = 4


@dataclass(frozen=True, slots=True)
class ScoreAnswers:
    """All answers that scores are computed from."""

    first: KeyAnswers
    further: KeyAnswers
    ranks: tuple[int, ...]

    def solved(self, layer: LayerMap, values: HeadMaps) -> HeadScores:
        """Compute all [W_h w_h]; nothing is open of the values."""
        columns = columns_of(self.first, self.first.scores(layer, values))
        C = spaces(columns, self.ranks)
        scores = self.further.scores(layer, values)
        d = len(C[0])
        rest = self.further.tokens[: d + 1 - len(self.first.tokens)]
        homogeneous = np.hstack([np.vstack([self.first.tokens, rest]), np.ones((d + 1, 1))])
        known = scipy.linalg.lu_factor(homogeneous, check_finite=False)
        rows = []
        for h, C_h in enumerate(C):
            first = C_h.T @ columns[h]
            seen = np.hstack([first, self._others(C_h, first, scores[:, h])])
            rows.append(scipy.linalg.lu_solve(known, seen.T, check_finite=False).T)
        return HeadScores(C, rows)

    def _others(self, C: Array, first: Array, scores: Array) -> Array:
        """Return C_hᵀ(W_h b + w_h) of the further tokens, from their scores."""
        keys = self.further.keys
        if (spread := self.spread()) is not None:
            own = scores.reshape(len(scores), *keys.shape[:2])
            return spread.solved(C, first, own[self.further.token, self.further.block])
        return np.asarray(np.linalg.lstsq(keys.reshape(-1, len(C)) @ C, scores.T, rcond=None)[0])

    def spread(self) -> SpreadRows | None:
        """Return how the further tokens were asked, where that is each beside one block."""
        first, further = self.first.tokens, self.further
        rest = first.shape[1] + 1 - len(first)
        if len(further.tokens) == rest:
            return None
        tokens = further.tokens
        return SpreadRows(first, tokens[:rest], tokens[rest:], further.keys, further.block)

    def with_errors(self, noise: AnswerNoise, rng: np.random.Generator) -> ScoreAnswers:
        """Return the same answers, with errors drawn as large as theirs may be."""
        first, further = (part.with_errors(noise, rng) for part in (self.first, self.further))
        return ScoreAnswers(first, further, self.ranks)


def spaces(columns: Array, ranks: tuple[int, ...]) -> list[Array]:
    """Return bases (d, r_h) of what each head's columns (H, d, T) span."""
    return [
        np.linalg.svd(part, full_matrices=False)[0][:, :rank]
        for part, rank in zip(columns, ranks, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class ScoreReading(KeyAsking):
    """What scores are read with."""

    def run(self) -> Asking[ScoreAnswers]:
        """Ask both parts."""
        d, n = self.layer.M.shape[1], self.keys
        blocks = -(-d // n)
        whole = KeyAims(self.values.frames(), [np.eye(d)])
        units = chosen_keys(whole, blocks, n, self.rng, limits.KEYS)
        directions = self._directions(d)
        lengths = yield from self.piloted(units, directions[-d:])
        keys, tokens = self.tokens(units, directions, lengths)
        count = min(max(self.values.ranks) + _SPARE_TOKENS, d + 1)
        first = yield from self.asked(self.grid(keys, tokens[:count]), "column spaces")
        while True:
            asked = len(first.tokens)
            columns, ranks = self._ranked(first, asked - _SPARE_TOKENS)
            if asked == d + 1 or max(ranks) < asked:
                break
            more = self.grid(keys, tokens[asked : 2 * asked])
            first = _joined(first, (yield from self.asked(more, "column spaces")))
        reading = self._closed(first)
        further = yield from reading._further(columns, ranks, directions, lengths)
        return ScoreAnswers(first, further, ranks)

    def _directions(self, d: int) -> Array:
        """Choose d + 1 query tokens of norm 1 or 0: 0 and orthonormal ones."""
        return np.vstack([np.zeros(d), np.linalg.qr(self.rng.standard_normal((d, d)))[0]])

    def _closed(self, first: KeyAnswers) -> Self:
        """Read on with what these answers tell of the values."""
        return self

    def _further(
        self, columns: Array, ranks: tuple[int, ...], directions: Array, lengths: Lengths
    ) -> Asking[KeyAnswers]:
        C, rest = spaces(columns, ranks), directions[columns.shape[2] :]
        n, d = self.keys, len(C[0])
        most = max(1, *(C_h.shape[1] for C_h in C))
        blocks = -(-most // n)
        aims = KeyAims(self.values.frames(), [C_h for C_h in C if C_h.shape[1]])
        keys = np.zeros((0, n, d))
        if len(rest):
            keys = chosen_keys(aims, blocks, n, self.rng, limits.KEYS)
        grid = self.grid(*self.tokens(keys, rest, lengths))
        return (yield from self.asked(grid, "rows"))

    def mended(self, answers: ScoreAnswers) -> Asking[ScoreAnswers]:
        """Ask again what has small weights with other maps."""
        first = yield from self.mended_part(answers.first, "column spaces")
        further = yield from self.mended_part(answers.further, "rows")
        return ScoreAnswers(first, further, answers.ranks)

    # -- ranks

    def _ranked(self, first: KeyAnswers, most: int) -> tuple[Array, tuple[int, ...]]:
        """Return the columns, and how many singular values of each head's are no errors."""
        columns = columns_of(first, first.scores(self.layer, self.values))
        layer, values = self.redrawn()
        off = first.with_errors(self.noise, self.rng)
        moved = columns_of(off, off.scores(layer, values)) - columns
        return columns, ranks_of(columns, moved, most)


def ranks_of(parts: Iterable[Array], errors: Iterable[Array], most: int) -> tuple[int, ...]:
    """Count the singular values of matrices that are no errors, of which ``errors`` are drawn.

    Those beyond ``most`` show how large errors are, unless they are larger than errors can be.
    """
    ranks = []
    for part, error in zip(parts, errors, strict=True):
        singular = np.linalg.svd(part, compute_uv=False)
        spare = singular[most:]
        # errors so large that drawn ones make a weight negative: the spare ones alone tell
        drawn = bool(np.isfinite(error).all())
        unknown = np.inf if len(spare) else 0.0
        noise = float(np.linalg.norm(error, 2)) if drawn else unknown
        if len(spare) and spare[0] <= limits.SCORE_NOISE * noise:
            noise = limits.OVER_SPARE * float(spare[0])
        ranks.append(int(np.count_nonzero(singular > noise)))
    return tuple(ranks)


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
