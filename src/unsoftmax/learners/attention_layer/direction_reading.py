"""The steps of a plain layer on answers that are known up to a factor: what differs.

Answers are read by `readout.DirectionMap`; what is asked differs in four places.

- Maps: an offset's answers are read by their sum over heads, so all heads are asked. That sum does
  not notice a gate that one head loses and another gains; but such an answer alone has a direction
  outside of both ranges. Ranks are told by what drawn errors do.
- Where the values fill all dimensions their ranges lose one together behind a LayerNorm, and
  V_h = V0_h + ν_h T for one unknown T. Then τ_h = T A p_h are unknowns beside the weights.
- Scores: query tokens are corners of a simplex, none of them 0, where a direction tells nothing.
- A factor, and what is open, take keys from a sequence; tokens are asked with fewer keys than
  column spaces have dimensions, and few further ones (`spread_rows`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer.key_answers import KeyAnswers
from unsoftmax.learners.attention_layer.key_asking import Lengths
from unsoftmax.learners.attention_layer.map_reading import MapReading
from unsoftmax.learners.attention_layer.plane_heads import too_few
from unsoftmax.learners.attention_layer.readout import DirectionMap
from unsoftmax.learners.attention_layer.score_reading import ScoreReading, spaces
from unsoftmax.learners.attention_layer.spread_rows import SpreadRows
from unsoftmax.learners.attention_layer.value_answers import (
    HeadMaps,
    LayerMap,
    OffsetAnswers,
    ValueAnswers,
    leading,
)
from unsoftmax.learners.compose import Asking
from unsoftmax.probes import Array, Flags
from unsoftmax.solve.key_blocks import KeyAims, chosen_keys

# Singular values of a range above so many times what drawn errors make are none of errors: these
# are about a tenth of those drawn.
_RANK = 3.0
# Answers to offsets that miss the sum of all maps by more, in the median, are of more heads than
# were found.
_MISSED = 1e-2
# Answers to an offset that miss the sum of all maps by so many times what those to others do, in
# the median, are of other gates.
_APART = 1e3
# Ranges depend on each other where a singular value of all together is below so many times their
# error ...
_OVERLAP = 1e4
# ... and below this.
_MOST_OVERLAP = 1e-3
# Where fewer than 1/4 of the keys can be told apart that complete values would allow, every M_h
# is read as a whole instead.
_DENSE = 4
# Key blocks of the rows, at most: tokens of one block lack the same directions, and a further
# token tells one number of each block.
_BLOCKS = 12
# Further tokens, times what the equations need: with twice errors of W are half as large again.
_EXTRAS = 3.0
# And so many at least, where any are needed.
_FEWEST_EXTRAS = 4
# All blocks are asked with every token where that takes no more than so many times what further
# tokens do: errors of W are a fifth.
_DEARER = 2.0
# Further tokens are drawn until the system of missing numbers is better conditioned.
_CONDITION = 100.0
# So often at most; then the best.
_TRIES = 8


def keys_beside_factor(values: HeadMaps, share: int = 1) -> int:
    """Return how many keys a sequence may have; a share of it, 2 at least where they may be."""
    H, k = len(values.U), values.open_in
    numbers = min(len(values.U[0]) - 1, sum(values.ranks) - k)
    most = min((numbers - (H - 1) * k) // H, min(values.ranks) - k)
    return max(most // share, min(2, most))


@dataclass(frozen=True, slots=True)
class DirectionMaps(MapReading):
    """Maps read from directions."""

    def _ranked(self, offsets: OffsetAnswers, step: float) -> ValueAnswers:
        """Count the singular values of each head's range that are above the errors."""
        answers = ValueAnswers(self.single, self.gates, offsets, (), self.whole)
        ranks = [
            np.count_nonzero(np.linalg.svd(span, compute_uv=False) > _RANK * np.linalg.norm(off, 2))
            for span, off in zip(answers.spans(), self._moved(answers), strict=True)
        ]
        return replace(answers, ranks=tuple(max(1, int(rank)) for rank in ranks))

    def _moved(self, answers: ValueAnswers) -> Array:
        """Return what drawn errors make of all ranges."""
        return answers.with_errors(self.noise, self.rng).spans() - answers.spans()

    def _flipped(self, answers: ValueAnswers) -> Flags:
        """Tell where answers have another head's M_g a in them, or do not add up to M a, (H, J)."""
        offsets, vectors = answers.offsets, answers.vectors()
        added = (offsets.beside(self.layer, vectors) + vectors[:, None]).sum(axis=0)
        a = offsets.base + offsets.share[:1].T * offsets.steps
        whole = a @ self.layer.heads.T
        missed = np.linalg.norm(added - whole, axis=1) / np.linalg.norm(whole, axis=1)
        if np.median(missed) > _MISSED:
            raise ModelMismatch(
                "Where gates are 0 or 1 the answers of single heads do not add up to those of all: "
                "there are more heads than long tokens showed, or something else is added to them."
            )
        apart = missed > _APART * (np.median(missed) + self.noise.relative)
        return np.asarray(super(DirectionMaps, self)._flipped(answers) | apart)

    def _divided(self, answers: ValueAnswers, step: float) -> ValueAnswers | None:
        """Return the answers with what their ranges leave open; None where that is too much."""
        spans = answers.spans()
        U = [leading(s, r) for s, r in zip(spans, answers.ranks, strict=True)]
        error = max(
            np.linalg.norm(off, 2) / np.linalg.svd(s, compute_uv=False)[r - 1]
            for off, s, r in zip(self._moved(answers), spans, answers.ranks, strict=True)
        )
        s = np.linalg.svd(np.concatenate(U, axis=1), compute_uv=False)
        rank = int(np.sum(s > min(_OVERLAP * error, _MOST_OVERLAP)))
        divided = replace(answers, open_in=sum(answers.ranks) - rank)
        full = min(len(self.layer.c) - 1, rank) // len(U)
        enough = _DENSE * keys_beside_factor(divided.solved()) >= full
        return divided if enough else None

    def _explained(self, answers: ValueAnswers) -> Asking[bool]:
        """Return True: answers have been held against the sum of all maps, offset by offset."""
        return True
        yield []


@dataclass(frozen=True, slots=True)
class DirectionScores(ScoreReading):
    """Scores read from directions."""

    @staticmethod
    def _most_keys(layer: LayerMap, values: HeadMaps, noise: float, share: int) -> int:
        n = keys_beside_factor(values, share)
        if n < 1:
            assert isinstance(layer, DirectionMap)
            raise too_few(layer)
        return n

    def _directions(self, d: int) -> Array:
        """Choose corners of a simplex around 0, turned at random."""
        corners = np.linalg.svd(np.eye(d + 1) - 1 / (d + 1))[0][:, :d]
        turned = np.linalg.qr(self.rng.standard_normal((d, d)))[0]
        return np.asarray(corners / np.linalg.norm(corners[0]) @ turned)

    def _pilots(self, directions: Array) -> Array:
        return np.vstack([directions[:1], -directions[:1]])

    def _at_zero(self, scores: Array) -> Array:
        return np.asarray(scores.mean(axis=0))

    def _ranked(self, first: KeyAnswers, most: int) -> tuple[Array, tuple[int, ...]]:
        """Return the columns and ranks, which do not matter where all tokens have been asked."""
        columns, ranks = super(DirectionScores, self)._ranked(first, most)
        d = columns.shape[1]
        return columns, (d,) * len(ranks) if len(first.tokens) > d else ranks

    def _closed(self, first: KeyAnswers) -> Self:
        values = first.closed(self.layer, self.values)
        return replace(self, values=values, keys=keys_beside_factor(values, self.effort.share))

    def _further(
        self, columns: Array, ranks: tuple[int, ...], directions: Array, lengths: Lengths
    ) -> Asking[KeyAnswers]:
        """Ask each other token with one block, and further tokens, where that is cheaper."""
        C, n = spaces(columns, ranks), self.keys
        rest, rank = directions[columns.shape[2] :], max(1, *ranks, 0)
        lacking = max(0, rank - n)
        # a further token tells nothing of tokens that were asked with its own keys
        blocks = min(_BLOCKS, len(rest) + _FEWEST_EXTRAS)
        extras = int(np.ceil(_EXTRAS * lacking * len(rest) / min(n, blocks)))
        extras = max(extras, _FEWEST_EXTRAS)
        grid = (-(-rank // n) - 1) * len(rest)
        if self.effort.share > 1 or not lacking or grid <= _DEARER * extras:
            plain = super(DirectionScores, self)._further(columns, ranks, directions, lengths)
            return (yield from plain)
        aims = KeyAims([*self.values.frames(), *(one.T for one in C if one.shape[1] >= n)], [])
        units = chosen_keys(aims, blocks, n, self.rng, limits.KEYS)
        best, least = self._drawn(units, directions, columns.shape[2], extras, lengths), np.inf
        for _ in range(_TRIES):
            drawn = self._drawn(units, directions, columns.shape[2], extras, lengths)
            condition = max(drawn.condition(C_h) for C_h in C)
            if condition < least:
                best, least = drawn, condition
            if condition <= _CONDITION:
                break
        asked = self.grid(best.keys, np.vstack([best.rest, best.further]))
        each = np.arange(len(best.block))
        y, scale = asked.y[each], asked.scale[each]
        asked = replace(asked, block=best.block, token=each, scale=scale, y=y)
        return (yield from self.asked(asked, "rows"))

    def _drawn(
        self, units: Array, directions: Array, known: int, extras: int, lengths: Lengths
    ) -> SpreadRows:
        """Draw further tokens, and deal all of them to the blocks."""
        d, rest = directions.shape[1], len(directions) - known
        further = self.rng.standard_normal((extras, d)) / np.sqrt(d)
        keys, tokens = self.tokens(units, np.vstack([directions, further]), lengths)
        block = np.arange(len(keys))
        dealt = [np.sort(np.resize(block, rest)), np.resize(block[::-1], extras)]
        parts = np.split(tokens, [known, known + rest])
        return SpreadRows(parts[0], parts[1], parts[2], keys, np.concatenate(dealt))
