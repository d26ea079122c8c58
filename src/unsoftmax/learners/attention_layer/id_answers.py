"""All answers that a layer of ids is computed from: pure arithmetic, nothing is asked.

Counts of tokens beside one query token give every head's V_hi = M_h (y_i − y_j), hence its range
U_h and M_h (`count_curves`); blocks of ids beside ids give scores (y_t − y_j)·(W_h y_j + w_h).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.learners.attention_layer.count_curves import Fit, Mixtures, fitted, pole_start
from unsoftmax.learners.attention_layer.key_answers import HeadScores, KeyAnswers
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Ids, Indices, Probes, Purpose
from unsoftmax.solve.full_rank import solved


@dataclass(frozen=True, slots=True)
class LoneVectors:
    """Answers y (D + 1, m) to lone tokens, whose coordinates [y 1] are ``lifted``."""

    lifted: Array
    y: Array

    def layer(self) -> LayerMap:
        """Return c and M."""
        whole = np.linalg.solve(self.lifted, self.y)
        return LayerMap(whole[-1], whole[:-1].T, residual=False)


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
    noise : float
        What a number of an answer is off by.
    logits : array (H, T)
        About what they are, the heads of all tokens in one order.
    base : int
        So many tokens are solved for together, and each other one beside them.
    ranks : tuple of int
    """

    single: LoneVectors
    places: Indices
    counts: Array
    own: Array
    y: Array
    noise: float
    logits: Array = field(default_factory=lambda: np.zeros((0, 0)))
    base: int = 0
    ranks: tuple[int, ...] = ()

    def layer(self) -> LayerMap:
        """Return c and M."""
        return self.single.layer()

    def joined(self, counts: Array, own: Array, y: Array) -> CountAnswers:
        """Put further answers behind these."""
        counts = np.vstack([self.counts, counts])
        return replace(
            self, counts=counts, own=np.append(self.own, own), y=np.vstack([self.y, y])
        )

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
        y = np.vstack([self.y[rows], self.single.y[self.places[tokens]]])
        return np.asarray(y - self.single.y[0])

    def mixtures(self, tokens: Indices, rows: Indices, heads: int, known: Fit | None) -> Mixtures:
        """Return answers to counts of tokens, ``known`` ones, the base, beside them."""
        z = self.shown(tokens, rows)
        counts = np.vstack([self.counts[np.ix_(rows, tokens)], np.eye(len(tokens))])
        own = np.append(self.own[rows], np.zeros(len(tokens)))
        beside, parts = np.repeat(own[:, None], heads, axis=1), np.zeros((len(own), 1, 1))
        if known is not None:
            others = np.zeros((len(own), self.base))
            others[: len(rows)] = self.counts[rows, : self.base]
            odds = np.exp(known.logits)
            beside = beside + others @ odds.T
            parts = np.einsum("qs,hs,hsm->qhm", others, odds, known.V)
        return Mixtures(counts, beside, z, parts)

    def alone(self, token: int, heads: int) -> Fit:
        """Fit one token, nothing being known."""
        tokens, others = np.array([token]), np.delete(self.counts, token, axis=1)
        rows = np.flatnonzero((self.counts[:, token] > 0) & ~others.any(axis=1))
        of = self.mixtures(tokens, rows, heads, None)
        nu = of.beside[:, 0] / of.counts[:, 0]
        return fitted(of, pole_start(nu, of.z, heads)[:, None])

    def together(self) -> Fit:
        """Fit the base."""
        rows = np.flatnonzero(~self.counts[:, self.base :].any(axis=1))
        of = self.mixtures(np.arange(self.base), rows, len(self.logits), None)
        return fitted(of, self.logits[:, : self.base])

    def fits(self) -> Iterator[Fit]:
        """Fit the base, and every other token beside it."""
        base = self.together()
        yield base
        for t in range(self.base, len(self.places)):
            rows = np.flatnonzero(self.counts[:, t])
            of = self.mixtures(np.array([t]), rows, len(self.logits), base)
            yield fitted(of, self.logits[:, [t]])

    def ranges(self) -> Iterator[tuple[Array, Array]]:
        """Yield every head's singular values in units of their errors, and its directions."""
        fits = list(self.fits())
        V = np.concatenate([fit.V for fit in fits], axis=1)
        off = np.concatenate([fit.errors(self.noise)[1] for fit in fits], axis=1)
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

    def read(self, layer: LayerMap, values: HeadMaps) -> tuple[Array, Array]:
        """Return scores (y_t − y_j)·(W_h y_j + w_h), (T, H, blocks·n), and what they are off by."""
        blocks, n, _ = self.keys.shape
        H = len(values.U)
        shape = (len(self.tokens), H, blocks, n)
        scores, off = np.full(shape, np.nan), np.full(shape, np.inf)
        growth = [_growth(values, keys) for keys in self.keys]
        for asked, weights in self.weights(layer, values):
            logits, own = weights.logits(), weights.query[..., None]
            grown = growth[self.block[asked[0]]]
            whole = np.linalg.norm(grown, axis=1, keepdims=True)
            with np.errstate(divide="ignore", invalid="ignore"):
                error = np.abs(grown / weights.keys) + np.abs(whole / own)
            at = self.token[asked], slice(None), self.block[asked]
            scores[at] = np.where(np.isfinite(logits), logits, 0.0)
            off[at] = np.where(np.isfinite(logits), error, np.inf)
        return scores.reshape(*shape[:2], -1), off.reshape(*shape[:2], -1)


def _growth(values: HeadMaps, keys: Array) -> Array:
    """Return how much errors of answers grow in weights of keys (n, d): (H, n)."""
    H, n = len(values.U), len(keys)
    R = np.linalg.qr(values.through(keys).reshape(-1, H * n), mode="r")
    return np.asarray(np.linalg.norm(np.linalg.inv(R), axis=1).reshape(H, n))


@dataclass(frozen=True, slots=True)
class TableScores:
    """All answers that scores are computed from."""

    first: IdKeys
    further: IdKeys
    ranks: tuple[int, ...] = ()

    def columns(self, layer: LayerMap, values: HeadMaps) -> tuple[Array, Array]:
        """Return W_h y_j + w_h of the first query tokens, (H, D, T), and what they are off by."""
        scores, off = self.first.read(layer, values)
        keys = self.first.keys.reshape(-1, self.first.keys.shape[2])
        found = np.zeros((scores.shape[1], keys.shape[1], len(scores)))
        error = np.zeros((scores.shape[1], len(scores)))
        for j, token in enumerate(self.first.tokens):
            for h in range(len(found)):
                found[h, :, j], error[h, j] = _solved(keys - token, scores[j, h], off[j, h])
        return found, error

    def solved(self, layer: LayerMap, values: HeadMaps) -> HeadScores:
        """Compute all [W_h w_h]."""
        columns, column_off = self.columns(layer, values)
        scores, off = self.further.read(layer, values)
        keys = self.further.keys.reshape(-1, self.further.keys.shape[2])
        tokens = np.vstack([self.first.tokens, self.further.tokens])
        lifted = np.column_stack([tokens, np.ones(len(tokens))])
        C, R = [], []
        for h, rank in enumerate(self.ranks):
            space = np.linalg.svd(columns[h] / column_off[h], full_matrices=False)[0][:, :rank]
            rows, errors = [space.T @ columns[h]], [column_off[h]]
            for j, token in enumerate(self.further.tokens):
                x, grown = _solved((keys - token) @ space, scores[j, h], off[j, h])
                rows.append(x[:, None])
                errors.append(np.array([grown]))
            weight = 1 / np.concatenate(errors)
            seen = np.hstack(rows).T * weight[:, None]
            C.append(space)
            R.append(solved(lifted * weight[:, None], seen).T)
        return HeadScores(C, R)


def _solved(A: Array, y: Array, error: Array) -> tuple[Array, float]:
    """Solve A x = y by weighted least squares; return x and the norm of its error.

    Where fewer rows can be read than there are unknowns that is infinite.
    """
    weight = np.where(np.isfinite(error), 1 / np.maximum(error, TINY), 0.0)
    if np.count_nonzero(weight) < A.shape[1]:
        return np.zeros(A.shape[1]), np.inf
    Q, R = np.linalg.qr(A * weight[:, None])
    inverse = np.linalg.inv(R)
    return inverse @ (Q.T @ (y * weight)), float(np.linalg.norm(inverse))
