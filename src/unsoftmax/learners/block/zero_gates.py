"""Every head's map where scores turn with distance: far query tokens behind tokens 0.

After an RMSNorm, and without biases, a token 0 scores 0 at every distance and adds nothing. So with
m of them the answer beside a far token b tells, without any other key,

    −z = Σ_h σ(log m − o_h(b)) M_h b,    o_h(b) = b·W_h(0) b its own score.

1. Beside one b, m alone changes: gates of one unknown each, whose vectors are M_h b. Several b of s
   coordinates give M_h b and o_h(b), one by one. Heads are put in one order by three b's in each
   plane, whose vectors have to add up. Then one fit of them all: o_h is a quadratic form.
2. With a key κ next to b, [0 × m; κ; b], E_h = m + exp(o_h(b)) and l_h(b) = κ·W_h(1) b linear in b,

       z = Σ_h σ(l_h(b) − log E_h) (M_h κ − M_h b) − (1 − σ(…)) (m/E_h) M_h b:

   one fit gives M_h κ. All κ are 45° or less from one whose M_h κ is known; its gates are a start.
3. The rows of M_h in the s coordinates that were hidden so far follow by least squares from the
   same answers, those next to b's of the other coordinates.
4. Beside b = √d e_j of the other coordinates o_h(b) follows from [0; b].

The scale γ of the norm is in M_h and W_h: o_h(e_j) grows with γ_j². What [0; √d e_j] adds grows
with γ_j, so these are asked first, of all j: S are coordinates of a middle size, and of another
one where the own scores that are found there are too small or too large to tell heads apart. Where
γ_j is large b is turned from e_j towards one of S, until no head's weight is next to 0 or 1.

Queries: d, (s + 1)s/2·(H + 2) + 2, (d − s)(H + 2) + s (a few more where H·s is d − s or more), and
all far tokens alone; as many as the second again for another S, and two for each b that is turned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
import scipy

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap
from unsoftmax.learners.block.far_tokens import FarTokens, asked_copies
from unsoftmax.learners.block.gated_fit import NOISE, Gated, GatedFit, fitted, ranks_of_maps
from unsoftmax.learners.compose import Asking
from unsoftmax.models import AttentionLayer, LayerHead
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Indices
from unsoftmax.refusals import Reason
from unsoftmax.theory.costs import Cost
from unsoftmax.theory.counts import hidden_coordinates, rotary_block_tokens

# Tokens 0 in turn: any first few are far apart.
_ZEROS = np.array([1, 32, 4, 12, 2, 20, 8, 48, 3, 6, 16, 24, 10, 5, 40, 7, 28, 14, 64, 9, 36, 18])
# Those beside the first b at first, and beyond heads there and beside the others.
_FIRST, _SPARE = 8, 2
# Tokens 0 before a key, in turn.
_BEFORE = np.array([0, 1, 4, 16, 2, 8, 0, 32, 3])
# Angles of far tokens to one of S, in turn until every head's weight of the token 0 is so far from
# 0 and 1. Less: weights lose digits; more: tokens are asked once more, and are less apart.
_TILTS, _MODERATE = np.pi / np.array([4, 8, 16, 32]), 1e-3
# Angles of keys to the known one, in turn until their gates are found, and two coordinates of that:
# it is none of the b's.
_TURNS, _KNOWN = np.pi / np.array([4, 8, 16, 32, 64]), np.array([-0.6, 0.8])
# What a fit beside a key leaves adds up of errors of what is known there, so many times the noise.
_KNOWN_NOISE = 300.0
# Starts of a fit, and how far they are drawn.
_STARTS, _AWAY, _FARTHER, _OWN = 100, 0.1, 0.03, 2.0
# Sets S that are tried, and the logarithm of the root mean square of own scores within which one is
# taken: where these are a fourth of 1 or less heads are hardly apart, above 4 weights are near 0.
_CHOICES, _UNLIKE = 4, np.log(4)
# Quantiles of sizes of coordinates among which S is, another one in another search.
_SIZES = 0.4, 0.7
# Weights are taken to be no nearer to 0 and 1.
_EXTREME = 1e-12


def cost(dim: int, heads: int) -> Cost:
    """Bound the reading of maps of so many heads."""
    s = hidden_coordinates(dim)
    forms = s * (s + 1) // 2
    own = _CHOICES * (len(_ZEROS) + forms * (heads + _SPARE + 3))
    keys = len(_TURNS) * dim * rotary_block_tokens(dim, heads) + s
    corners = (len(_TILTS) + 1) * 2 * dim
    asked = own + keys + corners
    return Cost.of(
        asked, tokens=int(_ZEROS.max()) + 2, rounds=2 + 4 * _CHOICES + len(_TURNS) + len(_TILTS)
    )


@dataclass(frozen=True, slots=True)
class OwnAnswers:
    """Answers to tokens 0 beside far tokens of few coordinates.

    Attributes
    ----------
    beta : ndarray (T, s)
        The far tokens.
    zeros : ndarray (T,)
    y : ndarray (T, m)
    theta : ndarray (H, s(s + 1)/2)
        The forms −o_h.
    """

    beta: Array
    zeros: Array
    y: Array
    theta: Array

    def gated(self) -> Gated:
        """Return what is fitted."""
        H = len(self.theta)
        shift = np.log(self.zeros)[:, None] * np.ones(H)
        known = np.zeros((len(self.y), H, self.y.shape[1]))
        return Gated(_squares(self.beta), shift, self.beta, known, -self.y)


class OwnScores(NamedTuple):
    """Own scores of far tokens of few coordinates, and what heads make of these."""

    theta: Array
    """(H, s(s + 1)/2)."""
    along: Array
    """(H, s, m): M_h of the coordinates."""

    def own(self, beta: Array) -> Array:
        """Return o_h of tokens (T, s), (T, H)."""
        return np.asarray(-_squares(beta) @ self.theta.T)

    def beside(self, beta: Array, zeros: Array, y: Array) -> Gated:
        """Return what is fitted to answers with one key next to the token."""
        own = np.einsum("ts,hsm->thm", beta, self.along)
        weights = zeros[:, None] + np.exp(self.own(beta))
        share = (zeros[:, None] / weights)[:, :, None]
        known, one = -(1 - share) * own, np.ones((len(y), 1))
        return Gated(beta, -np.log(weights), one, known, y + np.sum(share * own, axis=1))


@dataclass(frozen=True, slots=True)
class KeyGates:
    """Answers to one key next to far tokens of few coordinates.

    Attributes
    ----------
    key : ndarray (d,)
    beta : ndarray (T, s)
    zeros : ndarray (T,)
    y : ndarray (T, d)
    theta : ndarray (H, s)
        W_h(1)ᵀκ in the few coordinates.
    """

    key: Array
    beta: Array
    zeros: Array
    y: Array
    theta: Array


@dataclass(frozen=True, slots=True)
class CornerAnswers:
    """Answers to one token 0 beside one far token for each coordinate.

    Attributes
    ----------
    b, y : ndarray (d, d)
    """

    b: Array
    y: Array

    def weights(self, maps: Array, shown: Indices) -> Array:
        """Return every head's weight of the token 0, (d, H), by maps in the coordinates shown."""
        found = []
        for b, y in zip(self.b, self.y, strict=True):
            seen = b[shown] == 0
            columns = -np.einsum("hmd,d->mh", maps[:, seen], b)
            found.append(np.linalg.lstsq(columns, y[shown[seen]], rcond=None)[0])
        return np.array(found)


@dataclass(frozen=True, slots=True)
class SphereMap(LayerMap):
    """A layer's map, its query tokens, and their own scores."""

    b: Array
    """(d, d)."""
    own: Array
    """(d, H)."""


@dataclass(frozen=True, slots=True)
class TurnedMaps:
    """All answers that maps M_h are computed from.

    Attributes
    ----------
    hidden, shown : ndarray
        The few coordinates, and the others.
    """

    hidden: Indices
    shown: Indices
    few: OwnAnswers
    keys: tuple[KeyGates, ...]
    corners: CornerAnswers
    ranks: tuple[int, ...] = ()

    def own(self) -> OwnScores:
        """Compute the own scores of tokens of few coordinates."""
        return own_scores(self.few)

    def _read(self, own: OwnScores) -> list[GatedFit]:
        """Fit the gates of every key, and what heads make of it in the coordinates shown."""
        shown = self.shown
        return [
            fitted(own.beside(one.beta, one.zeros, one.y[:, shown]), one.theta) for one in self.keys
        ]

    def maps(self) -> Array:
        """Compute all M_h in the coordinates that are shown, (H, m, d)."""
        own = self.own()
        return self._maps(own, self._read(own))

    def _maps(self, own: OwnScores, read: list[GatedFit]) -> Array:
        d = len(self.hidden) + len(self.shown)
        vectors = np.concatenate([own.along, *(fit.vectors for fit in read)], axis=1)
        keys = np.vstack([np.eye(d)[self.hidden], *(one.key for one in self.keys)])
        flat = np.linalg.solve(keys, vectors.swapaxes(0, 1).reshape(d, -1))
        return np.asarray(flat.reshape(d, len(vectors), -1).transpose(1, 2, 0))

    def _whole(self) -> tuple[HeadMaps, Array]:
        """Compute all M_h in all coordinates, and own scores (d, H)."""
        own = self.own()
        read = self._read(own)
        maps = self._maps(own, read)
        weights = np.clip(self.corners.weights(maps, self.shown), _EXTREME, 1 - _EXTREME)
        O, V = [], []  # noqa: E741 - the projections' own names
        for M, rank in zip(maps, self.ranks, strict=True):
            left, singular, right = np.linalg.svd(M, full_matrices=False)
            O.append(np.zeros((M.shape[1], rank)))
            O[-1][self.shown] = left[:, :rank]
            V.append(singular[:rank, None] * right[:rank])
        for place, row in zip(self.hidden, self._hidden_rows(V, own, read), strict=True):
            for own_part, part in zip(O, np.split(row, np.cumsum(self.ranks)[:-1]), strict=True):
                own_part[place] = part
        spans = np.stack([(U @ rows).T for U, rows in zip(O, V, strict=True)])
        values = HeadMaps.of_directions(np.eye(len(spans[0])), spans, self.ranks)
        return values, scipy.special.logit(1 - weights)

    def _hidden_rows(self, V: list[Array], own: OwnScores, read: list[GatedFit]) -> Array:
        """Return rows of all U_h in the few coordinates (s, ranks), side by side.

        Gates beside keys are known by now: the rows follow by least squares from the answers next
        to far tokens that do not hide their coordinate.
        """
        designs = []
        for one, fit in zip(self.keys, read, strict=True):
            zeros = one.zeros[:, None]
            beside = zeros + np.exp(own.own(one.beta))
            key = scipy.special.expit(one.beta @ fit.theta.T - np.log(beside))
            off = key + (1 - key) * zeros / beside
            along = [
                key[:, [h]] * (rows @ one.key) - off[:, [h]] * (one.beta @ rows[:, self.hidden].T)
                for h, rows in enumerate(V)
            ]
            designs.append(np.hstack(along))
        design, beta = np.vstack(designs), np.vstack([one.beta for one in self.keys])
        y, rows = np.vstack([one.y for one in self.keys]), []
        for i, place in enumerate(self.hidden):
            seen = beta[:, i] == 0
            rows.append(np.linalg.lstsq(design[seen], y[seen, place], rcond=None)[0])
        return np.array(rows)

    def solved(self) -> HeadMaps:
        """Compute all M_h, their ranks cut."""
        return self._whole()[0]

    def layer(self) -> SphereMap:
        """Compute the sum of all M_h, and own scores."""
        values, own = self._whole()
        M = sum(U @ V for U, V in zip(values.U, values.V, strict=True))
        return SphereMap(np.zeros(len(own)), np.asarray(M), False, self.corners.b, own)

    def beside_one(self) -> tuple[AttentionLayer, Array, Array]:
        """Return a layer that adds what keys do, of any length, next to one token (1, d); these.

        Without positions: a key has the score that it has next to the token, which has its own.
        """
        d, s = self.keys[0].key.size, len(self.hidden)
        b, beta = np.eye(d)[self.hidden[:1]], np.sqrt(d) * np.eye(s)[:1]
        keys = np.array([one.key for one in self.keys])
        scores = np.vstack([*(beta @ one.theta.T for one in self.keys), self.own().own(beta)])
        vectors = np.linalg.lstsq(np.vstack([keys, np.sqrt(d) * b]), scores, rcond=None)[0]
        values = self.solved()
        heads = [
            LayerHead(U @ V, vector[:, None] * b / np.sqrt(d))
            for U, V, vector in zip(values.U, values.V, vectors.T, strict=True)
        ]
        return AttentionLayer(heads, np.zeros(d)), b, keys

    def typical(self, layer: SphereMap) -> float:
        """Root mean square score of keys next to tokens, in the head where it is largest.

        Of tokens to which the layer adds 1: a norm's scale makes both as large.
        """
        scores = np.array([one.beta @ one.theta.T for one in self.keys])
        added = np.linalg.norm(layer.M[:, self.hidden], axis=0) * np.sqrt(len(layer.M))
        largest = np.sqrt(np.max(np.mean(scores**2, axis=(0, 1))))
        return float(largest / np.sqrt(np.mean(added**2)))


def own_scores(few: OwnAnswers) -> OwnScores:
    """Fit own scores, and maps of few coordinates."""
    found = fitted(few.gated(), few.theta)
    return OwnScores(found.theta, found.vectors)


@dataclass(frozen=True, slots=True)
class ZeroGates:
    """What maps are read with."""

    tokens: FarTokens
    most: int
    """Heads at most."""
    rng: np.random.Generator

    def run(self) -> Asking[TurnedMaps]:
        """Find the heads, then read their maps."""
        d = self.tokens.dim
        corners = yield from self._behind_one(np.eye(d))
        hidden, few = yield from self._chosen(np.linalg.norm(corners.y, axis=1))
        shown = np.setdiff1d(np.arange(d), hidden)
        keys = yield from self._keys(hidden, shown, few)
        maps = TurnedMaps(hidden, shown, few, keys, corners)
        corners = yield from self._tilted(maps)
        return replace(
            maps, corners=corners, ranks=ranks_of_maps(maps, self.tokens.noise, self.rng)
        )

    def _chosen(self, sizes: Array) -> Asking[tuple[Indices, OwnAnswers]]:
        """Choose S by what coordinates add: own scores grow with the square of these sizes."""
        s, logs = hidden_coordinates(len(sizes)), np.log(np.maximum(sizes, TINY))
        wanted = float(np.quantile(logs, self.rng.uniform(*_SIZES)))
        tried, found, refusal = list[Indices](), None, None
        for _ in range(_CHOICES):
            hidden = np.sort(np.argsort(np.abs(logs - wanted))[:s])
            if any(np.array_equal(hidden, one) for one in tried):
                break
            tried.append(hidden)
            try:
                few = yield from self._few(hidden, np.setdiff1d(np.arange(len(sizes)), hidden))
            except ModelMismatch as error:
                refusal, wanted = error, wanted - np.log(2)
                continue
            own = own_scores(few).own(self.tokens.radius * np.eye(s))
            size = np.log(np.sqrt(np.mean(own**2)) + TINY)
            if found is None or abs(size) < found[0]:
                found = abs(size), hidden, few
            if abs(size) < _UNLIKE:
                break
            wanted -= size / 2
        if found is None:
            assert refusal is not None
            raise refusal
        return found[1:]

    def _tilted(self, maps: TurnedMaps) -> Asking[CornerAnswers]:
        """Ask other far tokens instead of those whose own scores are too large."""
        read, corners, bases = maps.maps(), maps.corners, maps.hidden
        unit = np.eye(self.tokens.dim)
        for angle in _TILTS:
            weights = corners.weights(read, maps.shown)
            hard = np.min(np.minimum(weights, 1 - weights), axis=1) < _MODERATE
            hard[bases] = False
            lost = np.flatnonzero(hard)
            if not len(lost):
                break
            base = bases[np.arange(len(lost)) % len(bases)]
            x = np.sin(angle) * unit[lost] + np.cos(angle) * unit[base]
            turned = yield from self._behind_one(x)
            b, y = corners.b.copy(), corners.y.copy()
            b[lost], y[lost] = turned.b, turned.y
            corners = CornerAnswers(b, y)
        return corners

    def _behind_one(self, x: Array) -> Asking[CornerAnswers]:
        """Ask far tokens (Q, d) behind one token 0."""
        y = yield from self._answered(None, x, np.ones(len(x), dtype=np.intp), "own scores")
        return CornerAnswers(self.tokens.of(x), y)

    def _answered(self, key: Array | None, x: Array, zeros: Indices, phase: str) -> Asking[Array]:
        """Ask [0 × zeros; key; norm(x)] of tokens x, one key or one for each, (T, d)."""
        b = self.tokens.of(x)
        keys = () if key is None else (np.broadcast_to(key, b.shape),)
        tokens = np.stack([np.zeros_like(b), *keys, b], axis=1)
        copies = np.ones(tokens.shape[:2], dtype=np.intp)
        copies[:, 0] = zeros
        return (yield from asked_copies(tokens, copies, phase))

    def _noise(self, y: Array) -> float:
        """Return what answers together may be off by."""
        return NOISE * float(np.linalg.norm(self.tokens.noise.of(y)))

    # -- tokens of few coordinates

    def _few(self, hidden: Indices, shown: Indices) -> Asking[OwnAnswers]:
        """Ask tokens 0 beside one token until there are more than heads, then beside others."""
        s, d = len(hidden), self.tokens.dim
        beta, x = np.sqrt(d) * _forms(s), _forms(s) @ np.eye(d)[hidden]
        y, count, heads = np.zeros((0, len(shown))), _FIRST, 0
        while True:
            zeros = _ZEROS[len(y) : count]
            asked = yield from self._answered(None, x[:1].repeat(len(zeros), 0), zeros, "heads")
            y = np.vstack([y, asked[:, shown]])
            heads = int(np.count_nonzero(np.linalg.svd(y, compute_uv=False) > self._noise(y)))
            if not heads:
                raise Reason.NO_MODERATE_WEIGHTS.error()
            if heads > self.most:
                raise Reason.MORE_HEADS.error(heads=f"{heads} or more", most=self.most)
            if heads + _SPARE <= count:
                break
            if count >= len(_ZEROS) or heads >= len(shown):
                raise Reason.BLOCK_HEADS_FILL.error(heads=heads, shown=len(shown))
            count = min(2 * count, len(_ZEROS))
        zeros, place = _ZEROS[: heads + _SPARE], np.repeat(np.arange(1, len(beta)), heads + _SPARE)
        asked = yield from self._answered(
            None, x[place], np.tile(zeros, len(beta) - 1), "own scores of few coordinates"
        )
        where = np.concatenate([np.zeros(count, dtype=np.intp), place])
        every = np.concatenate([_ZEROS[:count], np.tile(zeros, len(beta) - 1)])
        y = np.vstack([y, asked[:, shown]])
        own, vectors = self._one_by_one(where, every, y, heads)
        own = _in_one_order(beta, own, vectors)
        theta = np.asarray(-np.linalg.lstsq(_squares(beta), own, rcond=None)[0].T, dtype=np.float64)
        answers = OwnAnswers(beta[where], every.astype(float), y, theta)
        found = fitted(answers.gated(), theta)
        if not found.missed <= self._noise(y):
            raise Reason.SOFT_GATES_UNFOUND.error(rank=heads)
        return replace(answers, theta=found.theta)

    def _one_by_one(
        self, where: Indices, zeros: Indices, y: Array, heads: int
    ) -> tuple[Array, Array]:
        """Return own scores (b, H) and M_h b (b, H, m), heads in any order."""
        own, vectors = [], []
        for b in np.unique(where):
            rows = np.flatnonzero(where == b)
            one, known = np.ones((len(rows), 1)), np.zeros((len(rows), heads, y.shape[1]))
            shift = np.log(zeros[rows])[:, None] * np.ones(heads)
            answers = Gated(one, shift, one, known, -y[rows])
            start = _OWN * self.rng.standard_normal((heads, 1))
            found = self._found(answers, start, _OWN, self._noise(y))
            if found is None:
                raise Reason.SOFT_GATES_UNFOUND.error(rank=heads)
            own.append(-found.theta[:, 0])
            vectors.append(found.vectors[:, 0])
        return np.array(own), np.array(vectors)

    def _found(self, answers: Gated, start: Array, away: float, noise: float) -> GatedFit | None:
        """Fit from ever farther away of a start."""
        for n in range(_STARTS):
            drawn = (n > 0) * (away + _FARTHER * n)
            found = fitted(answers, start + drawn * self.rng.standard_normal(start.shape))
            if found.missed <= noise:
                return found
        return None

    # -- keys

    def _keys(
        self, hidden: Indices, shown: Indices, few: OwnAnswers
    ) -> Asking[tuple[KeyGates, ...]]:
        """Ask keys next to tokens of few coordinates."""
        d, s, own = self.tokens.dim, len(hidden), own_scores(few)
        H = len(own.theta)
        frame, units = np.eye(d)[hidden], np.vstack([_forms(s), -_forms(s)])
        # a key of few coordinates: its gates follow by least squares
        known = _KNOWN @ np.eye(s)[:2]
        start = yield from self._gates_of(known, units[: 2 * s : 2], own, frame, shown)
        others = np.zeros((d - s, d))
        others[:, shown] = np.linalg.qr(self.rng.standard_normal((d - s, d - s)))[0]
        read: list[KeyGates | None] = [None] * len(others)
        for n, turn in enumerate(_TURNS):
            lost = [place for place, one in enumerate(read) if one is None]
            if not lost:
                break
            beside = np.arange(n, n + rotary_block_tokens(d, H))
            token, zeros = beside % len(units), _BEFORE[beside % len(_BEFORE)]
            keys = self.tokens.radius * (np.cos(turn) * known @ frame + np.sin(turn) * others[lost])
            asked = np.tile(units[token], (len(keys), 1)) @ frame
            every = keys.repeat(len(token), axis=0)
            y = yield from self._answered(every, asked, np.tile(zeros, len(keys)), "maps")
            y = y.reshape(len(keys), len(token), d)
            beta = self.tokens.radius * units[token]
            for place, key, rows in zip(lost, keys, y, strict=True):
                answers = own.beside(beta, zeros.astype(float), rows[:, shown])
                noise = _KNOWN_NOISE / NOISE * self._noise(rows[:, shown])
                found = self._found(answers, np.cos(turn) * start, _AWAY, noise)
                if found is not None:
                    theta = found.theta
                    read[place] = KeyGates(key, beta, zeros.astype(float), rows, theta)
        sure = tuple(one for one in read if one is not None)
        if len(sure) < len(read):
            raise Reason.SOFT_GATES_UNFOUND_ELSEWHERE.error(
                lost=len(read) - len(sure), offsets=len(read), heads=H
            )
        return sure

    def _gates_of(
        self, key: Array, units: Array, own: OwnScores, frame: Array, shown: Indices
    ) -> Asking[Array]:
        """Return θ of a key √d (s,) of few coordinates, (H, s)."""
        radius, zeros = self.tokens.radius, _BEFORE[np.arange(len(units)) % len(_BEFORE)]
        y = yield from self._answered(
            radius * key @ frame, units @ frame, zeros, "a key of few coordinates"
        )
        answers = own.beside(radius * units, zeros.astype(float), y[:, shown])
        vectors = radius * np.einsum("s,hsm->hm", key, own.along) + answers.known
        each = zip(vectors, answers.y, strict=True)
        weights = [np.linalg.lstsq(columns.T, row, rcond=None)[0] for columns, row in each]
        weights = np.clip(weights, _EXTREME, 1 - _EXTREME)
        logits = scipy.special.logit(weights) - answers.shift
        return np.asarray(np.linalg.lstsq(answers.design, logits, rcond=None)[0].T)


def _squares(beta: Array) -> Array:
    """Return all products of two coordinates of tokens (T, s), (T, s(s + 1)/2)."""
    one, other = np.triu_indices(beta.shape[1])
    return np.asarray(beta[:, one] * beta[:, other])


def _forms(s: int) -> Array:
    """Return unit vectors that show a quadratic form: all axes, and sums of two."""
    axes = np.eye(s)
    rows = [axes[0]]
    for e in axes[1:]:
        rows += [e, (axes[0] + e) / np.sqrt(2)]
    return np.array([*rows, *((e + f) / np.sqrt(2) for e, f in combinations(axes[1:], 2))])


def _in_one_order(beta: Array, own: Array, vectors: Array) -> Array:
    """Put heads of all tokens (b, s) in the order of the first one's; return own scores (b, H).

    Vectors M_h b of three tokens in a plane add up as these do.
    """
    s, H = beta.shape[1], own.shape[1]
    own, vectors = own.copy(), vectors.copy()

    def ordered(b: int, order: Indices) -> None:
        own[b], vectors[b] = own[b][order], vectors[b][order]

    for one in range(1, 2 * s - 1, 2):
        first, second = np.linalg.lstsq(beta[[0, one]].T, beta[one + 1], rcond=None)[0]
        sums = first * vectors[0][:, None] + second * vectors[one]
        apart = np.linalg.norm(sums[:, :, None] - vectors[one + 1], axis=3)
        best = [np.unravel_index(np.argmin(each), (H, H)) for each in apart]
        ordered(one, np.array([int(i) for i, _ in best]))
        ordered(one + 1, np.array([int(j) for _, j in best]))
    known = slice(0, 2 * s - 1)
    flat = np.linalg.lstsq(beta[known], vectors[known].reshape(2 * s - 1, -1), rcond=None)[0]
    for b in range(2 * s - 1, len(beta)):
        expected = (beta[b] @ flat).reshape(H, -1)
        apart = np.linalg.norm(expected[:, None] - vectors[b], axis=2)
        ordered(b, np.argmin(apart, axis=1))
    return own
