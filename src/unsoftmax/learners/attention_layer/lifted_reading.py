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

from dataclasses import dataclass, field, fields, replace

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer.group_reading import GroupReading
from unsoftmax.learners.attention_layer.group_scores import (
    GroupAnswers,
    GroupKeys,
    GroupScores,
    columns_of_groups,
)
from unsoftmax.learners.attention_layer.key_answers import KeyAnswers
from unsoftmax.learners.attention_layer.key_asking import Lengths
from unsoftmax.learners.attention_layer.lifted_scores import (
    BiasedKeys,
    LiftedAnswers,
    centred,
)
from unsoftmax.learners.attention_layer.spaced_keys import BiasedKeyAnswers, decoding_growth
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap
from unsoftmax.learners.compose import Asking
from unsoftmax.models.arrays import TINY
from unsoftmax.models.rotary import Rotary
from unsoftmax.probes import Array
from unsoftmax.solve.key_blocks import KeyAims, chosen_keys

# Keys of a query of the first part, as a share of those that it could have at most. More: fewer
# queries, by a tenth, and weights that are read ten times worse.
_KEY_SHARE = 0.75
# Query tokens are so much shorter than keys. With less the query bias hides Q b.
_TOKEN_SHARE = 1.0
# Query tokens that lengths are found with.
_PILOTS = 3
# Standard deviation of the scores of one query's keys, of the head where it is largest. With half
# of it the signal fades and a few layers are read ten times worse; with twice as much some
# weights are so small that their errors show.
_SPREAD = 1.2
# So many times that may be the biases' own: keys so many times shorter tell, ...
_MUCH = 1.5
# ... as they do where scores are hardly apart.
_CHANGED = 4.0
# Biases that alone make scores differ by more decide the weights.
_ALONE = 1.3
# Tokens around which others are asked, each found from answers around the one before.
_BASES = 3
# Planes that turn less in one token are left out of that one, ...
_ROUGH = 1e-6
# ... and directions of which keys show less than this share.
_SHOWN = 0.03
# Sets of key blocks for further query tokens, which each of them takes the best of ...
_SETS = 2
# ... at one of these lengths: one system in a hundred is nearly singular by chance.
_SCALES = (1.0, -1.0, 0.5, -0.5)


@dataclass(frozen=True, slots=True)
class LiftedReading(GroupReading):
    """What keys and queries with biases are read with."""

    most_keys: int = field(kw_only=True)
    """Keys of a query whose own score follows from its queries."""
    base: Array = field(kw_only=True)
    """What is added to all tokens, (d,)."""

    @classmethod
    def beside(cls, reading: GroupReading) -> LiftedReading:
        """Read with biases what another reads without."""
        if reading.keys < 2:
            raise NotIdentifiable(
                "Values have so few dimensions that one answer shows a head's weight of one key "
                "alone; where keys and queries have biases it must show that of another token too.",
                determined={"c": reading.layer.c, "M": reading.layer.M},
            )
        given = {one.name: getattr(reading, one.name) for one in fields(reading)}
        few = max(1, int(_KEY_SHARE * reading.keys))
        base = np.zeros(reading.layer.M.shape[1])
        return cls(**{**given, "keys": few}, most_keys=reading.keys, base=base)

    def run(self) -> Asking[GroupAnswers]:
        """Ask all parts."""
        d, n = self.layer.M.shape[1], self.keys
        units = chosen_keys(
            KeyAims(self._frames(), [np.eye(d)]), -(-(d + 2) // n), n, self.rng, limits.KEYS
        )
        corners = _simplex(d, self.rng)
        lengths, decided = yield from self._found_lengths(units, corners)
        answers = yield from self._first(units, corners, lengths)
        around = self
        for _ in range(_BASES):
            if not decided:
                break
            around = replace(around, base=(yield from around._base(answers)))
            lengths, decided = yield from around._found_lengths(units, corners)
            answers = yield from around._first(units, corners, lengths)
        return (yield from around._farther(answers, corners, lengths))

    def _farther(
        self, answers: GroupAnswers, corners: Array, lengths: Lengths
    ) -> Asking[GroupAnswers]:
        """Ask the same keys farther away, and the other query tokens."""
        between = self._shift(answers)
        far = self.grid(answers.first.keys, answers.first.tokens, between)
        answers = replace(answers, far=(yield from self.asked(far, "turned farther")))
        seen = answers.scores(self.layer, self.values)
        answers = self._turning(answers, seen)
        rest = corners[len(answers.first.tokens) :]
        keys, tokens = self.tokens(self._candidates(answers, seen, len(rest)), rest, lengths)
        paired = self._paired(answers, seen, keys, tokens)
        return replace(answers, further=(yield from self.asked(paired, "queries")))

    # -- biases that alone decide the weights

    def _least_weight(self, answers: KeyAnswers) -> float:
        return min(float(x.least.min()) for _, x in answers.weights(self.layer, self.values))

    def _base(self, answers: GroupAnswers) -> Asking[Array]:
        """Return a token whose keys are about 0, by some keys asked farther away as well."""
        far = self.grid(answers.near.keys, answers.first.tokens, self._shift(answers))
        rough = replace(answers, far=(yield from self.asked(far, "base token")), still=_ROUGH)
        assert isinstance(rough, LiftedAnswers)
        return rough.base_token(self.layer, self.values, _SHOWN)

    # -- further query tokens

    def _candidates(self, answers: GroupAnswers, seen: list[GroupScores], tokens: int) -> Array:
        """Return blocks of keys that show queries of all groups, several sets of them."""
        d, n = self.layer.M.shape[1], self.most_keys
        if not tokens:
            return np.zeros((0, n, d))
        whole = replace(self, keys=n)
        sets = [GroupReading._aimed(whole, answers, seen) for _ in range(_SETS)]
        return np.concatenate(sets)

    def _paired(
        self, answers: GroupAnswers, seen: list[GroupScores], keys: Array, tokens: Array
    ) -> KeyAnswers:
        """Pair every query token with the blocks and the sign and length that show most of it.

        A square system whose rows have a row taken off may be singular, by chance.
        """
        blocks = -(-answers.rank // self.most_keys)
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
        return BiasedKeyAnswers(keys, tokens, block, token, scale, nothing, base=self.base)

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
            "No length of tokens gives all of them weights that answers show: keys and queries "
            "have biases so large that these alone decide the weights. " + self._otherwise
        )

    def _spread(self, units: Array, corners: Array, lengths: Lengths) -> Asking[float]:
        """Return how much one query's scores differ, in the head where they do most."""
        few = self.tokens(units[:1], corners[:_PILOTS], lengths)
        asked = yield from self._answered(self.grid(*few), "pilot")
        if self._least_weight(asked) <= limits.WEIGHT_NOISE * self.noise.relative:
            return np.inf
        scores = asked.scores(self.layer, self.values)
        # a query token's own score is common to all keys, where there are several
        spread = np.std(scores, axis=2) if scores.shape[2] > 1 else np.abs(scores[..., 0])
        return float(spread.mean(axis=0).max())

    def _lengths(self, wanted: float) -> Lengths:
        """Return the length of keys L whose logits √(w²L² + (share·slope·L²)²) are so large."""
        slope, bias = self.typical
        share = _TOKEN_SHARE
        both = np.hypot(bias**2, 2 * share * slope * wanted)
        length = wanted * float(np.sqrt(2 / (bias**2 + both)))
        return Lengths(length, share * length)

    # -- asking

    def grid(self, keys: Array, tokens: Array, between: int = 0) -> KeyAnswers:
        """Pair every block with every query token, not yet answered."""
        plain = GroupReading.grid(self, keys, tokens, between)
        return BiasedKeyAnswers(
            plain.keys,
            plain.tokens,
            plain.block,
            plain.token,
            plain.scale,
            plain.y,
            between,
            base=self.base,
        )

    def mended_part(self, answers: KeyAnswers, phase: str) -> Asking[KeyAnswers]:
        """Refuse weights that are not positive: with shorter keys all scores would be others."""
        yield from ()
        if len(self._small(answers, 0.0)):
            raise ModelMismatch(
                "Some answers give a token a negative weight: biases of keys and queries leave it "
                "less than the answers' errors. " + self._otherwise
            )
        return answers

    # -- what differs where scores have a constant of their own

    @property
    def _otherwise(self) -> str:
        return (
            "Either biases are too large for this, or something beside rotary positions depends on "
            "the distance (ALiBi, a learned bias, keys that decay) or on the number of tokens; or "
            "queries of all heads of a group together have a lower rank than its planes. No "
            "learner here recovers these with positions."
        )

    def _blocks_for(self, rank: int) -> int:
        return -(-(rank + 1) // self.keys)

    def _answers(self, rank: int, first: KeyAnswers, near: KeyAnswers) -> GroupAnswers:
        return LiftedAnswers(self.groups, rank, first, near)

    def _columns(self, answers: KeyAnswers, layer: LayerMap, values: HeadMaps) -> list[Array]:
        return [centred(x) for x in columns_of_groups(answers.scores(layer, values), self.groups)]


def _rows_growth(
    found: list[GroupKeys], rotary: Rotary, keys: Array, tokens: Array, rank: int
) -> Array:
    """Return how much errors of scores grow in queries, the most of all groups, (T,)."""
    growth, n = np.zeros(len(tokens)), keys.shape[1]
    distances = np.tile(np.arange(n, 0, -1.0), len(keys))
    for one in found:
        assert isinstance(one, BiasedKeys)
        for k, b in enumerate(tokens):
            rows = one.rows(keys.reshape(-1, keys.shape[2]), b, distances, rotary)[:, :rank]
            least = float(np.linalg.svd(rows, compute_uv=False)[-1])
            growth[k] = max(growth[k], 1 / max(least, TINY))
    return growth


def _simplex(d: int, rng: np.random.Generator) -> Array:
    """Return the d + 1 corners of a regular simplex around 0, of length 1, randomly turned."""
    turned = np.linalg.qr(rng.standard_normal((d + 1, d + 1)))[0]
    # a basis of what is orthogonal to (1, …, 1)
    around = np.linalg.qr(np.column_stack([np.ones(d + 1), turned[:, :d]]))[0][:, 1:]
    return np.asarray(around / np.linalg.norm(around, axis=1, keepdims=True))
