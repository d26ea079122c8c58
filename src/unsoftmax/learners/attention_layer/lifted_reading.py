"""All keys and queries of a layer with positions and biases: which keys and tokens are asked.

As without biases (`turned_score_reading`), but that tokens cannot be short and long: keys a_i and
query tokens b have lengths at which all weights are moderate. A query token's own score and what
zero tokens weigh are unknown, so a query of the first part has fewer keys than values have
dimensions; afterwards the own score follows from the queries that are asked for. Query tokens are
d + 1, the corners of a simplex, which show Q_h and b_q alike.

Where biases alone decide the weights, tokens are asked around a base token x₀ with K x₀ ≈ −b_k for
all groups at once, found from the first part: as if key biases were next to 0. Own scores and
weights of zero tokens are then moderate, and keys may be as short as b_q wants them.

*Queries*: T⌈(d + 2)/n⌉ twice and T⌈(r + 1)/n⌉ with T = ⌈rG/H⌉ + 1 query tokens and n = ⌊3r/4⌋ keys,
d + 1 − T for the other query tokens, 3 for each length tried; around a base token those of the
first part once more. What is solved from the answers is `biased_scores`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer.group_reading import GroupReading
from unsoftmax.learners.attention_layer.group_scores import GroupAnswers, GroupKeys, GroupScores
from unsoftmax.learners.attention_layer.key_answers import KeyAnswers, decoding_growth
from unsoftmax.learners.attention_layer.key_asking import KeyAsking, Lengths
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap
from unsoftmax.learners.compose import Asking
from unsoftmax.models.arrays import TINY
from unsoftmax.models.rotary import Rotary
from unsoftmax.probes import Array

# Keys of a query of the first part, as a share of those that it could have at most. More: fewer
# queries, by a tenth, and weights that are read ten times worse.
_KEY_SHARE = 0.75
# Query tokens that lengths are found with.
_PILOTS = 3
# Standard deviation of the scores of one query's keys, of the head where it is largest. With half
# of it the signal fades and a few layers are read ten times worse; with twice as much some
# weights are so small that their errors show.
_SPREAD = 1.2
# So many times that may be the biases' own: keys so many times shorter tell, as they do where
# scores are hardly apart.
_MUCH, _CHANGED = 1.5, 4.0
# Biases that alone make scores differ by more decide the weights.
_ALONE = 1.3
# Tokens around which others are asked, each found from answers around the one before.
_BASES = 3
# Planes that turn less in one token are left out of that one, and directions of which keys show
# less than this share.
_ROUGH, _SHOWN = 1e-6, 0.03
# Sets of key blocks for further query tokens, which each of them takes the best of at one of these
# lengths: one system in a hundred is nearly singular by chance.
_SETS, _SCALES = 2, (1.0, -1.0, 0.5, -0.5)


@dataclass(frozen=True, slots=True)
class LiftedReading(GroupReading):
    """What keys and queries with biases are read with."""

    lift: ClassVar[int] = 1

    @staticmethod
    def _most_keys(layer: LayerMap, values: HeadMaps, noise: float, share: int) -> int:
        most = KeyAsking._most_keys(layer, values, noise, share)
        if most < 2:
            raise NotIdentifiable(
                "Values have so few dimensions that one answer shows a head's weight of only one "
                "key; if keys and queries have biases it must show that of another token too.",
                determined={"c": layer.c, "M": layer.M},
            )
        return max(1, int(_KEY_SHARE * most))

    def _directions(self, d: int) -> Array:
        """Choose the d + 1 corners of a regular simplex around 0, of length 1, randomly turned."""
        turned = np.linalg.qr(self.rng.standard_normal((d + 1, d + 1)))[0]
        # a basis of what is orthogonal to (1, …, 1)
        around = np.linalg.qr(np.column_stack([np.ones(d + 1), turned[:, :d]]))[0][:, 1:]
        return np.asarray(around / np.linalg.norm(around, axis=1, keepdims=True))

    def _begun(self, units: Array, directions: Array) -> Asking[tuple[Self, Lengths, GroupAnswers]]:
        """Ask the first query tokens, around a base token where biases alone decide weights."""
        around = replace(self, base=np.zeros(units.shape[2]))
        for left in reversed(range(1 + _BASES)):
            lengths, decided = yield from around._found_lengths(units, directions)
            answers = yield from around._first(units, directions, lengths)
            if not (decided and left):
                break
            around = replace(around, base=(yield from around._base(answers)))
        return around, lengths, answers

    # -- biases that alone decide the weights

    def _base(self, answers: GroupAnswers) -> Asking[Array]:
        """Return a token whose keys are about 0, by some keys asked farther away as well."""
        far = self.grid(answers.near.keys, answers.first.tokens, self._shift(answers))
        rough = replace(answers, far=(yield from self.asked(far, "base token")), still=_ROUGH)
        return rough.base_token(self.layer, self.values, _SHOWN)

    # -- further query tokens

    @property
    def _whole(self) -> int:
        """Keys of a query whose own score follows from its queries."""
        share = self.effort.share
        return KeyAsking._most_keys(self.layer, self.values, self.noise.relative, share)

    def _aimed(self, answers: GroupAnswers, seen: list[GroupScores]) -> Array:
        """Return blocks of keys that show queries of all groups, several sets of them."""
        whole = replace(self, keys=self._whole)
        sets = [super(LiftedReading, whole)._aimed(answers, seen) for _ in range(_SETS)]
        return np.concatenate(sets)

    def _paired(
        self, answers: GroupAnswers, seen: list[GroupScores], keys: Array, tokens: Array
    ) -> KeyAnswers:
        """Pair every query token with the blocks and the sign and length that show most of it.

        A square system whose rows have a row taken off may be singular, by chance.
        """
        blocks = -(-answers.rank // self._whole)
        sets = np.arange(len(keys)).reshape(-1, blocks)
        found, rotary = answers.keys(seen)
        options = [(k, s) for k in range(len(sets)) for s in _SCALES]
        growth = np.zeros((len(options), len(tokens)))
        for place, (k, s) in enumerate(options):
            asked = s * keys[sets[k]]
            for block in asked:
                decoding = decoding_growth(self.values, block, tokens)
                growth[place] = np.maximum(growth[place], decoding)
            growth[place] *= _rows_growth(found, rotary, asked, tokens, answers.rank)
        best = np.argmin(growth, axis=0)
        chosen = np.array([options[k][0] for k in best], dtype=np.intp)
        block = sets[chosen].ravel()
        scale = np.repeat([options[k][1] for k in best], blocks)
        token = np.repeat(np.arange(len(tokens)), blocks)
        nothing = np.zeros((len(block), len(self.layer.c)))
        return KeyAnswers(keys, tokens, block, token, scale, nothing, base=self.base)

    # -- lengths

    def _found_lengths(self, units: Array, corners: Array) -> Asking[tuple[Lengths, bool]]:
        """Find lengths at which weights are moderate; tell whether biases alone decide them."""
        wanted = _SPREAD
        for _ in range(limits.SCORE_PILOTS):
            spread = yield from self._spread(units, corners, self._lengths(wanted))
            if not np.isfinite(spread):
                wanted /= _CHANGED
            elif spread > _MUCH * _SPREAD:
                fewer = wanted / _CHANGED
                less = yield from self._spread(units, corners, self._lengths(fewer))
                # squares of what shrinks with keys, and of what does not
                shrinking = max(0.0, (spread**2 - less**2) / (1 - _CHANGED**-2))
                if spread**2 - shrinking > _ALONE**2:
                    return self._lengths(wanted), True
                return self._lengths(wanted * _SPREAD / np.sqrt(shrinking)), False
            else:
                longer = min(_SPREAD / spread, _CHANGED) if spread else _CHANGED
                wanted *= longer
                if longer < _CHANGED:
                    return self._lengths(wanted), False
        raise ModelMismatch(
            "Tokens of no norm get weights that all show in answers: keys and queries have biases "
            "so large that they decide the weights. " + self._otherwise
        )

    def _spread(self, units: Array, corners: Array, lengths: Lengths) -> Asking[float]:
        """Return how much one query's scores differ, in the head where they do most."""
        few = self.tokens(units[:1], corners[:_PILOTS], lengths)
        asked = yield from self._answered(self.grid(*few), "pilot")
        if len(self._small(asked, limits.WEIGHT_NOISE * self.noise.relative)):
            return np.inf
        scores = asked.scores(self.layer, self.values)
        # a query token's own score is common to all keys, where there are several
        spread = np.std(scores, axis=2) if scores.shape[2] > 1 else np.abs(scores[..., 0])
        return float(spread.mean(axis=0).max())

    def _lengths(self, wanted: float) -> Lengths:
        """Return the length of keys L whose logits √(w²L² + (slope·L²)²) are so large.

        Query tokens are as long: shorter ones let the query bias hide Q b.
        """
        slope, bias = self.typical
        both = np.hypot(bias**2, 2 * slope * wanted)
        length = wanted * float(np.sqrt(2 / (bias**2 + both)))
        return Lengths(length, length)

    # -- asking

    def mended_part(self, answers: KeyAnswers, phase: str) -> Asking[KeyAnswers]:
        """Refuse weights that are not positive: with shorter keys all scores would be others."""
        yield from ()
        if len(self._small(answers, 0.0)):
            raise ModelMismatch(
                "Some answers give a token a negative weight: with these biases of keys and "
                "queries its weight is below the errors of answers. " + self._otherwise
            )
        return answers


def _rows_growth(
    found: list[GroupKeys], rotary: Rotary, keys: Array, tokens: Array, rank: int
) -> Array:
    """Return how much errors of scores grow in queries, the most of all groups, (T,)."""
    growth, n = np.zeros(len(tokens)), keys.shape[1]
    distances = np.tile(np.arange(n, 0, -1.0), len(keys))
    for one in found:
        for k, b in enumerate(tokens):
            rows = one.rows(keys.reshape(-1, keys.shape[2]), distances, rotary, b)[:, :rank]
            least = float(np.linalg.svd(rows, compute_uv=False)[-1])
            growth[k] = max(growth[k], 1 / max(least, TINY))
    return growth
