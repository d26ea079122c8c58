"""Every head's [W_h w_h], from queries of many keys: which keys and tokens, at which lengths.

1. Blocks of n keys that together span everything (`solve.key_blocks`), beside r + 4 query tokens,
   b = 0 among them: W_h b + w_h of these, hence the column spaces C_h.
2. Of the other query tokens only C_hᵀ(W_h b + w_h) is left to ask: ⌈r/n⌉ blocks.

   Where answers are known up to a factor, and keys are fewer than column spaces have dimensions,
   each is asked with one block, and few further ones (`SpreadRows`).

n = d_h makes the joint least squares problem square, d numbers per query, the bound. The query
tokens are 0 and orthonormal directions, so that W and w follow well; pilots find lengths at which
logits are moderate, and answers with small weights are asked again with shorter keys. Where 0 tells
nothing, as a direction, they are corners of a simplex.

A sequence has n keys and a head's column space C r > n directions, so a query token b̃ beside a
block of keys A leaves x = Cᵀ[W_h w_h]b̃ open in r − n: x = x0 + N t, N the null space of AᵀC. Few
further tokens, affine combinations Σ_j c_j b̃_j of all query tokens beside other blocks, make one
linear system of the t's: 1 + (r − n)/n queries for each token in place of ⌈r/n⌉. Its condition is
known before anything is asked.

`KeyAsking` is what readings of all kinds have in common: lengths, and asking again. What is solved
from the answers is `key_answers`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import scipy

from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer.key_answers import HeadScores, KeyAnswers, columns_of
from unsoftmax.learners.attention_layer.norm_behind import too_few
from unsoftmax.learners.attention_layer.search_limits import Effort
from unsoftmax.learners.attention_layer.value_answers import (
    DirectionMap,
    HeadMaps,
    LayerMap,
    ReadMaps,
)
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.precision import UNIT
from unsoftmax.measure.token_map import AnswerNoise, with_errors
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Indices
from unsoftmax.refusals import Reason
from unsoftmax.solve.key_blocks import KeyAims, chosen_keys

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

    maps: ReadMaps
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
        maps: ReadMaps,
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
            raise Reason.VALUES_SPAN_TOO_LITTLE.error(heads=H, span=len(singular))
        while most > 1 and _dependent(values.U, most, least):
            most -= 1
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
        raise Reason.NO_MODERATE_WEIGHTS.error()

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
            raise Reason.WEIGHTS_BELOW_0.error()
        return answers

    def _small(self, answers: KeyAnswers, least: float) -> Indices:
        small = [
            asked[weights.least <= least]
            for asked, weights in answers.weights(self.layer, self.values)
        ]
        return np.sort(np.concatenate([*small, np.zeros(0, dtype=np.intp)])).astype(np.intp)


def _dependent(U: Sequence[Array], n: int, least: float) -> bool:
    """Tell whether heads make dependent vectors of n keys in general, as where two share a range.

    The keys are drawn: n vectors in each range.
    """
    rng = np.random.default_rng(0)
    vectors = [u @ np.linalg.qr(rng.standard_normal((u.shape[1], n)))[0] for u in U]
    return bool(np.linalg.svd(np.hstack(vectors), compute_uv=False)[-1] <= least)


@dataclass(frozen=True)
class SpreadRows:
    """Query tokens, each beside one of several blocks of keys.

    Attributes
    ----------
    first : ndarray (T, d)
        Query tokens of which all is known.
    rest : ndarray (d + 1 − T, d)
        The other ones.
    further : ndarray (E, d)
        Combinations of both.
    keys : ndarray (blocks, n, d)
    block : ndarray (d + 1 − T + E,)
        Which block is asked beside ``rest`` and ``further``.
    """

    first: Array
    rest: Array
    further: Array
    keys: Array
    block: Indices

    @cached_property
    def coefficients(self) -> Array:
        """Of every further token, (E, d + 1)."""
        corners = np.vstack([self.first, self.rest])
        size = float(np.linalg.norm(corners[0]))
        known, wanted = (
            np.column_stack([rows, np.full(len(rows), size)]) for rows in (corners, self.further)
        )
        return np.asarray(np.linalg.solve(known.T, wanted.T).T)

    def condition(self, C: Array) -> float:
        """Return the condition of the system of what is open in a column space (d, r)."""
        system, _ = self._system(C)
        if not system.shape[1]:
            return 1.0
        s = np.linalg.svd(system, compute_uv=False)
        full = len(s) == system.shape[1] and s[-1] > 0
        return float(s[0] / s[-1]) if full else np.inf

    def solved(self, C: Array, known: Array, scores: Array) -> Array:
        """Return Cᵀ(W_h b + w_h) of the other query tokens, (r, d + 1 − T).

        Parameters
        ----------
        C : ndarray (d, r)
            A basis of the column space.
        known : ndarray (r, T)
            The same of the first ones.
        scores : ndarray (d + 1 − T + E, n)
            Scores of the keys that each was asked with.
        """
        R, seen = len(self.rest), self.keys @ C
        system, null = self._system(C)
        inverses = np.linalg.pinv(seen)
        parts = np.einsum("jrn,jn->rj", inverses[self.block[:R]], scores[:R])
        if not system.shape[1]:
            return np.asarray(parts)
        through = np.hstack([known, parts]) @ self.coefficients.T  # (r, E)
        missed = scores[R:] - np.einsum("enr,re->en", seen[self.block[R:]], through)
        t = np.linalg.lstsq(system, missed.ravel(), rcond=None)[0].reshape(R, -1)
        return np.asarray(parts + np.einsum("jrk,jk->rj", null[self.block[:R]], t))

    def _system(self, C: Array) -> tuple[Array, Array]:
        """Return what all t's are multiplied by in further tokens' scores, and every N."""
        seen, (R, T) = self.keys @ C, (len(self.rest), len(self.first))
        null = np.swapaxes(np.linalg.svd(seen)[2][:, seen.shape[1] :], 1, 2)  # (blocks, r, r − n)
        through = np.einsum("anr,brk->abnk", seen, null)
        asked = through[self.block[R:, None], self.block[None, :R]]  # (E, R, n, r − n)
        asked = asked * self.coefficients[:, T:, None, None]
        return asked.swapaxes(1, 2).reshape(len(self.further) * seen.shape[1], -1), null


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
# Tokens are turned until what tells a factor is no smaller a share, so often at most. Of 320 layers
# with two heads of 8 in 16 dimensions the worst error of W is 1e-11 so, and 1e-8 without.
_OUTSIDE, _TURNS = 0.1, 32


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
        units = chosen_keys(whole, blocks, n, self.rng)
        directions = self._directions(d)
        lengths = yield from self.piloted(units, directions[-d:])
        directions = self._turned(directions, units, lengths)
        keys, tokens = self.tokens(units, directions, lengths)
        spare = self.effort.spare_tokens
        count = min(max(self.values.ranks) + spare, d + 1)
        first = yield from self.asked(self.grid(keys, tokens[:count]), "column spaces")
        while True:
            asked = len(first.tokens)
            columns, ranks = self._ranked(first, asked - spare)
            if asked == d + 1 or max(ranks) < asked:
                break
            more = self.grid(keys, tokens[asked : 2 * asked])
            first = first.joined((yield from self.asked(more, "column spaces")))
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
            keys = chosen_keys(aims, blocks, n, self.rng)
            rest = self._turned(rest, keys, lengths)
            lengths = self._shortened(keys, columns, lengths)
        grid = self.grid(*self.tokens(keys, rest, lengths))
        return (yield from self.asked(grid, "rows"))

    def _turned(self, rest: Array, keys: Array, lengths: Lengths) -> Array:
        """Return query tokens that are told well beside all of these blocks."""
        return rest

    def _shortened(self, units: Array, columns: Array, lengths: Lengths) -> Lengths:
        """Shorten keys aimed at spaces of columns (H, d, T), where these show too large logits.

        Such keys have larger ones than those in all directions, and the head where logits are
        largest has weights that errors hide.
        """
        beside = np.tensordot(units, columns, (2, 1))  # (blocks, n, H, T)
        strongest = lengths.keys * np.sqrt(np.mean(beside**2, axis=(0, 1, 3))).max()
        share = min(1.0, self.effort.strongest / max(float(strongest), TINY))
        return lengths._replace(keys=share * lengths.keys)

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
        off = with_errors(first, self.noise, self.rng)
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


@dataclass(frozen=True, slots=True)
class DirectionScores(ScoreReading):
    """Scores read from directions."""

    @staticmethod
    def _most_keys(layer: LayerMap, values: HeadMaps, noise: float, share: int) -> int:
        n = values.keys_beside_factor(share)
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
        return replace(self, values=values, keys=values.keys_beside_factor(self.effort.share))

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
        units = chosen_keys(aims, blocks, n, self.rng)
        lengths = self._shortened(units, columns, lengths)
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

    def _turned(self, rest: Array, keys: Array, lengths: Lengths) -> Array:
        """Turn corners of a simplex around their middle until their factors are told well."""
        beyond, middle = self._beyond(keys), rest.mean(axis=0)
        span = np.linalg.svd(rest - middle, full_matrices=False)[2][: len(rest) - 1]
        places = (rest - middle) @ span.T
        best, most = rest, self._outside(lengths.tokens * rest, beyond).min()
        for _ in range(_TURNS):
            if most >= _OUTSIDE:
                break
            turn = np.linalg.qr(self.rng.standard_normal((len(span), len(span))))[0]
            turned = middle + places @ turn @ span
            least = self._outside(lengths.tokens * turned, beyond).min()
            if least > most:
                best, most = turned, least
        return np.asarray(best)

    def _beyond(self, keys: Array) -> list[Array]:
        """Return bases of what is orthogonal to all that blocks of keys may add."""
        added = (self.values.columns(block) for block in keys)
        return [np.linalg.qr(one, mode="complete")[0][:, one.shape[1] :] for one in added]

    def _outside(self, tokens: Array, beyond: list[Array]) -> Array:
        """Return the share of every K(b) beyond what each block of keys adds, (T, blocks).

        It tells μ of an answer μw = K(b) + …: errors of weights are as its inverse. Where keys
        leave one dimension it is 10⁻⁴ by chance in one of a thousand pairs.
        """
        assert isinstance(self.layer, DirectionMap)
        known = self.layer.known(tokens)
        known /= np.maximum(np.linalg.norm(known, axis=1, keepdims=True), TINY)
        return np.transpose([np.linalg.norm(known @ basis, axis=1) for basis in beyond])

    def _drawn(
        self, units: Array, directions: Array, known: int, extras: int, lengths: Lengths
    ) -> SpreadRows:
        """Draw further tokens, and deal all of them to blocks beside which they are told well."""
        d, rest = directions.shape[1], len(directions) - known
        further = self.rng.standard_normal((extras, d)) / np.sqrt(d)
        keys, tokens = self.tokens(units, np.vstack([directions, further]), lengths)
        block = np.arange(len(keys))
        places = [np.sort(np.resize(block, rest)), np.resize(block[::-1], extras)]
        parts, beyond, dealt = np.split(tokens, [known, known + rest]), self._beyond(keys), []
        for part, open_to in zip(parts[1:], places, strict=True):
            growth = 1 / np.maximum(self._outside(part, beyond), UNIT) ** 2
            dealt.append(open_to[scipy.optimize.linear_sum_assignment(growth[:, open_to])[1]])
        return SpreadRows(parts[0], parts[1], parts[2], keys, np.concatenate(dealt))
