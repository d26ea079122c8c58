"""All answers that a layer of ids is computed from: pure arithmetic, nothing is asked.

Counts of tokens beside one query token give every head's V_hi = M_h (y_i − y_j), hence its range
U_h and M_h (`count_curves`); blocks of ids beside ids give scores (y_t − y_j)·(W_h y_j + w_h).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.learners.attention_layer import count_curves
from unsoftmax.learners.attention_layer.key_answers import HeadScores, KeyAnswers
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap
from unsoftmax.learners.tokens.asked_ids import LoneTokens
from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Ids, Indices, Probes, Purpose
from unsoftmax.solve.full_rank import solved

# Fits that miss answers by more, in multiples of their errors, are of other heads. Right ones miss
# them by less than half as much as errors are taken for.
EXPLAINED = 4.0


def noise_beside(told: LoneTokens) -> AnswerNoise:
    """Return what vectors are off by, as lone ids, copies and the format of answers show it."""
    size = float(np.median(np.linalg.norm(told.y, axis=1)))
    relative = float(told.precision.error(np.array(size), np.array(size))) / size
    return AnswerNoise(max(2 * KAPPA * UNIT, relative))


@dataclass(frozen=True, slots=True)
class LoneVectors:
    """Answers to lone tokens.

    A target rounds a token's value once, and all answers have the same error of it: beside each
    other they are more precise than any map of tokens.

    Attributes
    ----------
    lifted : array (D + 1, D + 1)
        Coordinates [y 1].
    y : array (D + 1, m)
        The answers.
    beside : AnswerNoise
        What answers miss such a map by.
    moved : array (D + 1, m), optional
        What was drawn of that.
    """

    lifted: Array
    y: Array
    beside: AnswerNoise
    moved: Array | None = None

    def layer(self) -> LayerMap:
        """Return c and M."""
        y = self.y if self.moved is None else self.y + self.moved
        whole = np.linalg.solve(self.lifted, y)
        return LayerMap(whole[-1], np.asarray(whole[:-1].T), residual=False)

    def with_errors(self, noise: AnswerNoise, rng: np.random.Generator) -> LoneVectors:
        """Return the same answers, with errors drawn as large as theirs may be."""
        y, moved = (self.y + noise.drawn(self.y, rng), self.beside.drawn(self.y, rng))
        return replace(self, y=y, moved=moved)


@dataclass(frozen=True, slots=True)
class CountAnswers:
    """Answers to counts of some tokens beside one query token, the first lone one.

    Attributes
    ----------
    single : LoneVectors
    places : array (T,)
        Which lone tokens they are.
    counts : array (Q, T)
        Copies of every token, and ...
    own : array (Q,)
        ... of the query token.
    y : array (Q, m)
    noise : AnswerNoise
        What answers are off by, beside each other.
    logits : array (H, T)
        About what they are, the heads of all tokens in one order.
    base : int
        So many tokens are solved for together, and each other one beside them.
    ranks : tuple of int
    lone : bool
        Whether what lone tokens say counts as well, ν = 0.
    """

    single: LoneVectors
    places: Indices
    counts: Array
    own: Array
    y: Array
    noise: AnswerNoise
    logits: Array = field(default_factory=lambda: np.zeros((0, 0)))
    base: int = 0
    ranks: tuple[int, ...] = ()
    lone: bool = True

    @property
    def off(self) -> float:
        """What a number of an answer is off by."""
        return float(np.median(self.noise.of(self.single.y)) / np.sqrt(self.single.y.shape[1]))

    def layer(self) -> LayerMap:
        """Return c and M."""
        return self.single.layer()

    def joined(self, counts: Array, own: Array, y: Array) -> CountAnswers:
        """Put further answers behind these."""
        counts = np.vstack([self.counts, counts])
        return replace(self, counts=counts, own=np.append(self.own, own), y=np.vstack([self.y, y]))

    def with_tokens(self, places: Indices) -> CountAnswers:
        """Take further tokens, that nothing was asked of."""
        counts = np.hstack([self.counts, np.zeros((len(self.own), len(places)))])
        logits = np.hstack([self.logits, np.zeros((len(self.logits), len(places)))])
        places = np.append(self.places, places)
        return replace(self, places=places, counts=counts, logits=logits)

    def of_tokens(self, tokens: Indices) -> CountAnswers:
        """Take some tokens, and what was asked of these alone, in that order."""
        others = np.setdiff1d(np.arange(len(self.places)), tokens)
        rows = ~self.counts[:, others].any(axis=1)
        return replace(
            self,
            places=self.places[tokens],
            counts=self.counts[np.ix_(rows, tokens)],
            own=self.own[rows],
            y=self.y[rows],
            logits=self.logits[:, tokens],
        )

    # -- fits

    def shown(self, tokens: Indices, rows: Indices) -> Array:
        """Return what tokens add to answers, and behind it what lone ones say: ν = 0."""
        alone = self.single.y[self.places[tokens if self.lone else tokens[:0]]]
        return np.asarray(np.vstack([self.y[rows], alone]) - self.single.y[0])

    def mixtures(
        self, tokens: Indices, rows: Indices, heads: int, known: count_curves.MixtureFit | None
    ) -> count_curves.Mixtures:
        """Return answers to counts of tokens, ``known`` ones, the base, beside them."""
        z = self.shown(tokens, rows)
        alone = np.eye(len(tokens))[: len(z) - len(rows)]
        counts = np.vstack([self.counts[np.ix_(rows, tokens)], alone])
        own = np.append(self.own[rows], np.zeros(len(alone)))
        beside, parts = np.repeat(own[:, None], heads, axis=1), np.zeros((len(own), 1, 1))
        if known is not None:
            others = np.zeros((len(own), self.base))
            others[: len(rows)] = self.counts[rows, : self.base]
            odds = np.exp(known.logits)
            beside = beside + others @ odds.T
            parts = np.einsum("qs,hs,hsm->qhm", others, odds, known.V)
        return count_curves.Mixtures(counts, beside, z, parts)

    def alone(self, token: int, heads: int) -> count_curves.MixtureFit:
        """Fit one token, nothing being known."""
        tokens, others = np.array([token]), np.delete(self.counts, token, axis=1)
        rows = np.flatnonzero((self.counts[:, token] > 0) & ~others.any(axis=1))
        of = self.mixtures(tokens, rows, heads, None)
        nu = of.beside[:, 0] / of.counts[:, 0]
        start = count_curves.pole_start(nu, of.z, heads)[:, None]
        return count_curves.searched(of, start, EXPLAINED * self.off * float(np.sqrt(of.z.size)))

    def together(self) -> count_curves.MixtureFit:
        """Fit the base."""
        rows = np.flatnonzero(~self.counts[:, self.base :].any(axis=1))
        of = self.mixtures(np.arange(self.base), rows, len(self.logits), None)
        return count_curves.fitted(of, self.logits[:, : self.base])

    def fits(self) -> Iterator[count_curves.MixtureFit]:
        """Fit the base, and every other token beside it."""
        base = self.together()
        yield base
        for t in range(self.base, len(self.places)):
            rows = np.flatnonzero(self.counts[:, t])
            of = self.mixtures(np.array([t]), rows, len(self.logits), base)
            yield count_curves.fitted(of, self.logits[:, [t]])

    def ranges(self) -> Iterator[tuple[Array, Array]]:
        """Yield every head's singular values in units of their errors, and its directions."""
        fits = list(self.fits())
        V = np.concatenate([fit.V for fit in fits], axis=1)
        off = np.concatenate([fit.errors(self.off)[1] for fit in fits], axis=1)
        for own, error in zip(V, off, strict=True):
            s, right = np.linalg.svd(own / error[:, None], full_matrices=False)[1:]
            yield s, right.T

    def solved(self) -> HeadMaps:
        """Compute all M_h."""
        every = zip(self.ranges(), self.ranks, strict=True)
        return HeadMaps.of_spans([U[:, :r] for (_, U), r in every], self.layer())


@dataclass(frozen=True, slots=True, kw_only=True)
class IdKeys(KeyAnswers):
    """Answers to blocks of ids beside ids."""

    key_ids: Indices
    token_ids: Indices

    def asked(self, which: Indices, phase: str, purpose: Purpose) -> Probes:
        """Return what some of them are answers to."""
        own = self.token_ids[self.token[which], None]
        ids = np.hstack([self.key_ids[self.block[which]], own])
        return Ids(ids, phase=phase, purpose=purpose)

    @classmethod
    def of(cls, y: Array, keys: Indices, tokens: Indices, numbers: int) -> IdKeys:
        """Pair every block of ids (blocks, n) with every query token, not yet answered."""
        token, block = np.divmod(np.arange(len(keys) * len(tokens)), len(keys))
        return cls(
            keys=y[keys],
            tokens=y[tokens],
            block=block,
            token=token,
            scale=np.ones(len(block)),
            y=np.zeros((len(block), numbers)),
            base=np.zeros(y.shape[1]),
            key_ids=keys,
            token_ids=tokens,
        )

    def answered(self, y: Array) -> IdKeys:
        """Take the answers."""
        return replace(self, y=y)

    def joined(self, more: IdKeys) -> IdKeys:
        """Put answers of the same keys beside other query tokens behind these."""
        ids = np.append(self.token_ids, more.token_ids)
        return replace(super(IdKeys, self).joined(more), token_ids=ids)

    def read(self, layer: LayerMap, values: HeadMaps) -> ReadScores:
        """Return scores (y_t − y_j)·(W_h y_j + w_h), up to errors that all of a query share."""
        blocks, n, _ = self.keys.shape
        shape = (len(self.tokens), len(values.U), blocks, n)
        scores, off = np.zeros(shape), np.full(shape, np.inf)
        shared = np.full(shape[:3], np.inf)
        grown = [_growth(values, keys) for keys in self.keys]
        for asked, weights in self.weights(layer, values):
            each, whole = grown[self.block[asked[0]]]
            own, p = np.maximum(weights.query, TINY), np.maximum(weights.keys, TINY)
            at = self.token[asked], slice(None), self.block[asked]
            scores[at] = np.log(p) - np.log(own)[..., None]
            with np.errstate(over="ignore"):
                off[at] = np.where(weights.keys > 0, each / p, np.inf)
                shared[at] = np.where(weights.query > 0, whole / own, np.inf)
        return ReadScores(self.keys, self.tokens, scores, off, shared)


def _growth(values: HeadMaps, keys: Array) -> tuple[Array, Array]:
    """Return how much errors of answers grow in weights of keys (n, d), (H, n), and sums, (H,)."""
    H, n = len(values.U), len(keys)
    R = np.linalg.qr(values.through(keys).reshape(-1, H * n), mode="r")
    inverse = np.linalg.inv(R).reshape(H, n, -1)
    return np.linalg.norm(inverse, axis=2), np.linalg.norm(inverse.sum(axis=1), axis=1)


@dataclass(frozen=True, slots=True)
class ReadScores:
    """Scores of keys beside query tokens.

    Attributes
    ----------
    keys : array (blocks, n, D)
    tokens : array (T, D)
    scores, off : array (T, H, blocks, n)
        And what they are off by, infinite if unread, ...
    shared : array (T, H, blocks)
        ... beside what the scores of one answer are off by together: the query token's weight.
    """

    keys: Array
    tokens: Array
    scores: Array
    off: Array
    shared: Array

    def solved(self, token: int, head: int, space: Array | None = None) -> tuple[Array, float]:
        """Return W_h y_j + w_h in a column space (D, r), or in full, and the norm of its error.

        Where too little can be read that is infinite.
        """
        steps = (self.keys - self.tokens[token]).reshape(-1, self.keys.shape[2])
        blocks, n, _ = self.keys.shape
        A = steps if space is None else steps @ space
        weight = 1 / np.maximum(self.off[token, head].ravel(), TINY)
        r = A.shape[1]
        if np.count_nonzero(weight) + np.isfinite(self.shared[token, head]).sum() < r + blocks:
            return np.zeros(r), np.inf
        together = np.repeat(np.eye(blocks), n, axis=0)
        rows = np.hstack([A, together]) * weight[:, None]
        given = np.hstack([np.zeros((blocks, r)), np.diag(1 / self.shared[token, head])])
        Q, R = np.linalg.qr(np.vstack([rows, given]))
        inverse = np.linalg.inv(R)[:r]
        right = np.append(self.scores[token, head].ravel() * weight, np.zeros(blocks))
        return inverse @ (Q.T @ right), float(np.linalg.norm(inverse))


@dataclass(frozen=True, slots=True)
class TableScores:
    """All answers that scores are computed from."""

    first: IdKeys
    further: IdKeys
    ranks: tuple[int, ...] = ()

    def columns(self, layer: LayerMap, values: HeadMaps) -> tuple[Array, Array]:
        """Return W_h y_j + w_h of the first query tokens, (H, D, T), and what they are off by."""
        read, (H, D) = self.first.read(layer, values), (len(values.U), self.first.keys.shape[2])
        columns, off = np.zeros((H, D, len(read.tokens))), np.zeros((H, len(read.tokens)))
        for h, j in np.ndindex(off.shape):
            columns[h, :, j], off[h, j] = read.solved(j, h)
        return columns, off

    def solved(self, layer: LayerMap, values: HeadMaps) -> HeadScores:
        """Compute all [W_h w_h]."""
        columns, off = self.columns(layer, values)
        further = self.further.read(layer, values)
        tokens = np.vstack([self.first.tokens, self.further.tokens])
        lifted = np.column_stack([tokens, np.ones(len(tokens))])
        C, R = [], []
        for h, rank in enumerate(self.ranks):
            space = np.linalg.svd(columns[h] / off[h], full_matrices=False)[0][:, :rank]
            others = [further.solved(j, h, space) for j in range(len(further.tokens))]
            weight = 1 / np.append(off[h], [error for _, error in others])[:, None]
            seen = np.vstack([columns[h].T @ space, *(x for x, _ in others)])
            C.append(space)
            R.append(solved(lifted * weight, seen * weight).T)
        return HeadScores(C, R)
