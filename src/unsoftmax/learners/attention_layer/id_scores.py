"""What tells the scores of a layer of ids: blocks of keys beside query tokens.

r + 4 query tokens beside D + 8 keys show the column spaces of all heads, two blocks of keys what
is left of D + 24 others. Keys of one block are read well together where their weights are alike.
In some trained heads the same tokens take all the weight whatever the query token: a few query
tokens show them, and then blocks are of keys that such a head weighs about alike.
"""

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.attention_layer.id_answers import CountAnswers, IdKeys, TableScores
from unsoftmax.learners.attention_layer.score_reading import ranks_of, spaces
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.tokens.table_head import Affine, spanning
from unsoftmax.measure.token_map import with_errors
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Indices
from unsoftmax.refusals import Reason

# Keys per query, as a share of the heads' rank: as many as that are badly conditioned.
_KEYS = 0.75
# Keys beyond D, and query tokens beyond the rank and beyond D + 1.
SPARE_KEYS, _SPARE_QUERIES, MORE_QUERIES = 8, 4, 24
# Aimed keys, as a multiple of the rank that they show.
_AIMED = 1.5
# So many query tokens tell what heads weigh whatever the query token: where scores of keys differ
# by more, as a rule, keys of one block are chosen alike.
_FEW_QUERIES, _WIDE = 4, 3.0
# Blocks of keys are the best of so many drawn; alike are so many times as many as there are in one.
_DRAWS, _ALIKE = 64, 4


@dataclass(frozen=True, slots=True)
class IdScoreReading:
    """What scores are read with."""

    table: Affine
    among: Indices
    """Ids among which keys and query tokens are chosen."""
    lone: Indices
    """Ids that were asked alone."""
    maps: CountAnswers
    layer: LayerMap
    values: HeadMaps
    context: int
    rng: np.random.Generator

    @property
    def _most_keys(self) -> int:
        """How many keys a query has."""
        H, m = len(self.values.U), len(self.layer.c)
        n = max(1, round(_KEYS * min(self.values.ranks)))
        n = min(n, (m - H) // H, self.context - 1)
        if n < 1:
            raise Reason.NUMBERS_TOO_FEW.error(heads=H, span=m)
        return n

    def run(self) -> Asking[TableScores]:
        """Ask query tokens beside all keys, and then the others beside few."""
        y, lifted, n = self.table.y, self.table.lifted, self._most_keys
        D = y.shape[1]
        ids = self.among[spanning(y[self.among], (-(-(D + SPARE_KEYS) // n) + 1) * n)]
        tokens = self.rng.permutation(np.setdiff1d(self.among, ids))[: D + 1]
        level, first = yield from self._levelled(ids, n, tokens[:_FEW_QUERIES])
        count = min(max(self.values.ranks) + _SPARE_QUERIES, D + 1)
        while True:
            rest = tokens[len(first.tokens) : count]
            first = first.joined((yield from self._keyed(first.key_ids, rest, "column spaces")))
            columns, ranks = self._ranked(first, count - _SPARE_QUERIES)
            if max(ranks) < count or count == D + 1:
                break
            count = min(2 * count, D + 1)
        rest = np.setdiff1d(self.among, np.append(ids, tokens[:count]))
        Q = np.linalg.qr(lifted[tokens[:count]].T)[0]
        beside = lifted[rest] - (lifted[rest] @ Q) @ Q.T
        others = rest[spanning(beside, min(D + 1 - count + MORE_QUERIES, len(rest) // 2))]
        shape = -(-int(np.ceil(_AIMED * max(1, *ranks))) // n), n
        aimed = self._aimed(np.setdiff1d(self.among, others), shape, spaces(columns, ranks), level)
        return TableScores(first, (yield from self._keyed(aimed, others, "rows")), ranks)

    def _levelled(self, ids: Indices, n: int, few: Indices) -> Asking[tuple[Array, IdKeys]]:
        """Ask a few query tokens beside blocks of keys; return about what every id scores.

        That is 0 where no head scores tokens very differently, as a rule.
        """
        y, level = self.table.y, np.zeros(len(self.table.y))
        first = yield from self._keyed(self._blocks(ids[:-n], n, level), few, "column spaces")
        columns, off = TableScores(first, first).columns(self.layer, self.values)
        weight = 1 / off
        if not np.all(weight.any(axis=1)):
            raise Reason.BAGS_SATURATED.error()
        usual = np.einsum("hdt,ht->hd", columns, weight) / weight.sum(axis=1, keepdims=True)
        scores = y @ usual.T
        wide = np.std(scores[self.among], axis=0)
        if not wide.max() > _WIDE:
            return level, first
        level = scores[:, int(np.argmax(wide))]
        return level, (yield from self._keyed(self._blocks(ids, n, level), few, "column spaces"))

    def _ranked(self, first: IdKeys, most: int) -> tuple[Array, tuple[int, ...]]:
        """Return columns in units of their errors, and how many directions are none of errors."""
        columns, off = TableScores(first, first).columns(self.layer, self.values)
        noise, weight = self.maps.noise, 1 / off[:, None]
        other, answers = (
            with_errors(self.maps, noise, self.rng),
            with_errors(first, noise, self.rng),
        )
        moved, _ = TableScores(answers, answers).columns(other.layer(), other.solved())
        return columns * weight, ranks_of(columns * weight, (moved - columns) * weight, most)

    def _keyed(self, keys: Indices, tokens: Indices, phase: str) -> Asking[IdKeys]:
        """Ask every block of keys (blocks, n) beside every query token."""
        asked = IdKeys.of(self.table.y, keys, tokens, len(self.layer.c))
        if not len(tokens):
            return asked
        [y] = yield [asked.asked(np.arange(len(asked.y)), phase, "data")]
        # what rounding of coordinates would make of M y_j
        alone = self.table.predicted(self.lone, self.maps.single.y, tokens)
        rounded = alone - self.layer.c - self.table.y[tokens] @ self.layer.M.T
        return asked.answered(y - rounded[asked.token])

    # -- which keys

    def _blocks(self, ids: Indices, n: int, level: Array) -> Indices:
        """Arrange ids in blocks of n (blocks, n), whose weights are told well."""
        drawn = (ids[self._ordered(ids, level)].reshape(-1, n) for _ in range(_DRAWS))
        return max(drawn, key=self._told)

    def _ordered(self, ids: Indices, level: Array) -> Indices:
        """Order ids by their level, at random where that is the same."""
        return np.argsort(level[ids] + self.rng.standard_normal(len(ids)))

    def _aimed(
        self, among: Indices, shape: tuple[int, int], C: list[Array], level: Array
    ) -> Indices:
        """Choose keys (blocks, n) that tell what is in every column space."""
        blocks, n = shape
        width = min(len(among), _ALIKE * n)
        drawn = []
        for _ in range(_DRAWS):
            order = among[self._ordered(among, level)]
            starts = self.rng.integers(0, len(among) - width + 1, blocks)
            alike = (order[start : start + width] for start in starts)
            drawn.append(np.array([self.rng.choice(one, n, replace=False) for one in alike]))

        def told(one: Indices) -> float:
            # keys whose weight is small beside others of their block tell less
            p = np.exp(level[one] - level[one].max(axis=1, keepdims=True))[..., None]
            keys = self.table.y[one] - self.table.y[one].mean(axis=1, keepdims=True)
            seen = [_least((p * (keys @ C_h)).reshape(p.size, -1)) for C_h in C if C_h.shape[1]]
            return min([*seen, self._told(one)])

        return max(drawn, key=told)

    def _told(self, blocks: Indices) -> float:
        """Return how well the weights of blocks of keys are told, at worst."""
        pairs = ((self.table.y[one], V) for one in blocks for V in self.values.V)
        return min(_least(keys @ V.T / max(float(np.linalg.norm(V)), TINY)) for keys, V in pairs)


def _least(A: Array) -> float:
    return float(np.linalg.svd(A, compute_uv=False)[-1])
