"""From answers to many keys at once to each head's scores [W_h w_h]: pure arithmetic.

[b + s a_1; …; b + s a_n; b] is answered by c + M b + s Σ_h M_h A p_h, A = [a_1 … a_n], p_h the
weights that head h gives the keys. One joint least squares problem gives all of them, and

    log(p_h,i/p_h,0)/s = a_i·(W_h b + w_h),    p_h,0 = 1 − Σ_i p_h,i:

n scores of each head from one answer. Query tokens that are asked with all keys show the columns
W_h b + w_h themselves, and so their space, with the orthonormal basis C_h; of the others C_hᵀ(W_h
b + w_h) is enough, r_h numbers from a block of keys that was chosen for them.

Where keys and queries have biases [s a_1; …; s a_n; 0 × m; b] is asked, a base token added to all
of them, which is as if c and the biases were others. With biases zero tokens have scores, and the
query token's own is no longer nothing. Every head adds M_h(Σ_i p_i s a_i − u b), where u = 1 − p_b
is what other tokens weigh than the query token. With B = [M_h s a_i] and C = [M_h b] of all heads

    z = B p − C u:   what B leaves of z gives u, and p = B⁺(z + C u).

Without zero tokens u = Σ p_i is one more equation for each head, and then a head may have as many
keys as its values have dimensions; with them u is free, and the keys are one fewer. B is factored
once for all query tokens beside one block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Design, Indices, Probes, Purpose
from unsoftmax.solve.full_rank import solved


@dataclass(frozen=True, slots=True)
class Weights:
    """Decoded attention weights of some answers."""

    keys: Array
    """(Q, H, n)."""
    query: Array
    """(Q, H)."""
    taus: Array = field(default_factory=lambda: np.zeros((0, 0, 0)))
    """τ_h − τ_H, (Q, H − 1, k), where values are open."""

    @property
    def least(self) -> Array:
        """The smallest weight of an answer, (Q,)."""
        return np.asarray(np.minimum(self.keys.min(axis=(1, 2)), self.query.min(axis=1)))

    def logits(self) -> Array:
        """log(p_i/p_0), (Q, H, n); NaN where a weight is not positive."""
        with np.errstate(divide="ignore", invalid="ignore"):
            logits = np.log(self.keys / self.query[..., None])
        return np.where(np.isfinite(logits), logits, np.nan)


@dataclass(frozen=True, slots=True)
class KeyedTokens(Probes):
    """Sequences [b + s a_1; …; b + s a_n; b …; b], made slice by slice: together gigabytes.

    Around a base token they are [s a_1; …; s a_n; 0 …; b] + base.

    Attributes
    ----------
    keys : ndarray (blocks, n, d)
    queries : ndarray (T, d)
    block, token : ndarray (Q,)
        Which block is asked beside which query token.
    scale : ndarray (Q,)
        s.
    between : int
        Tokens b beside the last one, or zero tokens between keys and query token.
    base : ndarray (d,), optional
        What is added to all tokens.
    """

    keys: Array
    queries: Array
    block: Indices
    token: Indices
    scale: Array
    between: int
    base: Array | None = field(default=None, kw_only=True)

    @property
    def tokens(self) -> int:  # noqa: D102
        return int(self.keys.shape[1]) + 1 + self.between

    @property
    def dim(self) -> int:  # noqa: D102
        return int(self.keys.shape[2])

    def __len__(self) -> int:
        return len(self.block)

    def __getitem__(self, span: slice) -> Array:
        b, n = self.queries[self.token[span]], self.keys.shape[1]
        X = np.empty((len(b), self.tokens, self.dim))
        X[:, n:] = b[:, None]
        np.multiply(self.scale[span, None, None], self.keys[self.block[span]], out=X[:, :n])
        if self.base is None:
            X[:, :n] += b[:, None]
            return X
        X[:, n:-1] = 0.0
        return X + self.base

    def design(self) -> Design:  # noqa: D102
        places = np.array([self.block, self.token], dtype=np.float64)
        between = np.array([float(self.between)])
        asked = {"keys": self.keys, "queries": self.queries, "places": places}
        around = {} if self.base is None else {"base": self.base}
        return {**asked, "scale": self.scale, "between": between, **around}


@dataclass(frozen=True, slots=True)
class KeyAnswers:
    """Answers to blocks of keys beside query tokens.

    Attributes
    ----------
    keys : ndarray (blocks, n, d)
    tokens : ndarray (T, d)
    block, token : ndarray (Q,)
        Which block was asked beside which query token.
    scale : ndarray (Q,)
        s, a power of two.
    y : ndarray (Q, m)
    between : int
        Tokens b between the keys and the query token, or zero tokens.
    base : ndarray (d,), optional
        What is added to all tokens where keys and queries have biases. Keys are tokens themselves
        then, not offsets from the query token.
    """

    keys: Array
    tokens: Array
    block: Indices
    token: Indices
    scale: Array
    y: Array
    between: int = 0
    base: Array | None = None

    def asked(self, which: Indices, phase: str, purpose: Purpose) -> Probes:
        """Return what some of them are answers to."""
        places = self.block[which], self.token[which], self.scale[which]
        asked = self.keys, self.tokens, *places, self.between
        return KeyedTokens(*asked, base=self.base, phase=phase, purpose=purpose)

    def weights(self, layer: LayerMap, values: HeadMaps) -> list[tuple[Indices, Weights]]:
        """Decode every answer, block by block."""
        if not len(self.block):
            return []
        b = self.tokens[self.token]
        shown = b if self.base is None else self.base + b
        z = layer.beyond(self._read(layer, values), shown) / self.scale[:, None]
        # as many keys as every head has dimensions leave nothing over in a head's range: there z is
        # divided among the heads once for all blocks
        square = self.base is None and all(r == self.keys.shape[1] for r in values.ranks)
        parts, found = values.divided(z) if square else [], []
        for k, keys in enumerate(self.keys):
            asked = np.flatnonzero(self.block == k)
            if not len(asked):
                continue
            if self.base is None:
                weights = _weights(values, keys, z[asked], [part[:, asked] for part in parts])
            else:
                beside = b[asked] / self.scale[asked, None]
                weights = _decoded(values, keys, beside, z[asked], not self.between)
            found.append((asked, weights))
        return found

    def _read(self, layer: LayerMap, values: HeadMaps) -> Array:
        """Return the answers in full."""
        if not layer.up_to_factor:
            return self.y
        y = np.empty((len(self.y), len(layer.c)))
        for k, keys in enumerate(self.keys):
            asked = np.flatnonzero(self.block == k)
            b = self.tokens[self.token[asked]]
            y[asked] = layer.read(self.y[asked], b, values.columns(keys))
        return y

    def closed(self, layer: LayerMap, values: HeadMaps) -> HeadMaps:
        """Return the values with what was open of them: τ_h − τ_H = T A (p_h − p_H).

        All blocks are beside a few query tokens.
        """
        if not values.open_in:
            return values
        parts = []
        for _, read in self.weights(layer, values):
            differences = (read.keys[:, :-1] - read.keys[:, -1:]).reshape(-1, read.keys.shape[2])
            taus = read.taus.reshape(-1, values.open_in)
            parts.append(np.linalg.lstsq(differences, taus, rcond=None)[0])
        keys = self.keys.reshape(-1, self.keys.shape[2])
        return values.with_open(
            np.asarray(np.linalg.lstsq(keys, np.vstack(parts), rcond=None)[0].T)
        )

    def scores(self, layer: LayerMap, values: HeadMaps) -> Array:
        """Return a_i·(W_h b + w_h) of all that was asked: (T, H, blocks·n), NaN elsewhere.

        Beside a base token each key's score less the query token's own.
        """
        blocks, n, _ = self.keys.shape
        scores = np.full((len(self.tokens), len(values.U), blocks, n), np.nan)
        for asked, weights in self.weights(layer, values):
            logits = weights.logits()
            if self.base is None:
                # what the keys leave is shared by the query token and those between
                logits = (logits + np.log1p(self.between)) / self.scale[asked, None, None]
            scores[self.token[asked], :, self.block[asked]] = logits
        return scores.reshape(len(self.tokens), len(values.U), blocks * n)

    def joined(self, more: Self) -> Self:
        """Put answers of the same keys beside other query tokens behind these."""
        return replace(
            self,
            tokens=np.vstack([self.tokens, more.tokens]),
            block=np.append(self.block, more.block),
            token=np.append(self.token, more.token + len(self.tokens)),
            scale=np.append(self.scale, more.scale),
            y=np.vstack([self.y, more.y]),
        )

    def replaced(self, again: Indices, scale: Array, y: Array) -> KeyAnswers:
        """Return the answers with some of them asked again, at other scales."""
        scales, answers = self.scale.copy(), self.y.copy()
        scales[again], answers[again] = scale, y
        return replace(self, scale=scales, y=answers)


def columns_of(answers: KeyAnswers, scores: Array) -> Array:
    """Return W_h b + w_h of query tokens that were asked with all keys: (H, d, T)."""
    keys = answers.keys.reshape(-1, answers.keys.shape[2])
    flat = scores.transpose(2, 1, 0).reshape(len(keys), -1)
    # columns are NaN where errors make a weight negative
    columns = solved(keys, flat)
    return np.asarray(columns.reshape(-1, *scores.shape[1::-1]).transpose(1, 0, 2))


@dataclass(frozen=True, slots=True)
class HeadScores:
    """Each head's [W_h w_h] = C_h R_h, C_h with orthonormal columns."""

    C: list[Array]
    """(d, r_h) each."""
    R: list[Array]
    """(r_h, d + 1) each, the last column for w_h."""

    @property
    def arrays(self) -> Sequence[Array]:
        """All of them that are computed from logits."""
        return self.R

    def vectors(self, h: int, b: Array) -> Array:
        """Return W_h b + w_h, (n, d), of tokens (n, d)."""
        return np.asarray((b @ self.R[h][:, :-1].T + self.R[h][:, -1]) @ self.C[h].T)


def _weights(values: HeadMaps, keys: Array, z: Array, parts: list[Array]) -> Weights:
    """Solve for the weights of keys (n, d) in what they add, z (Q, m), or every head's part."""
    H, n = len(values.U), len(keys)
    if parts:
        each = zip(values.V, parts, strict=True)
        weights = np.stack([solved(V @ keys.T, part).T for V, part in each], axis=1)
        unknown = np.zeros((len(weights), 0))
    else:
        every = solved(values.columns(keys), z.T).T
        weights, unknown = every[:, : H * n].reshape(-1, H, n), every[:, H * n :]
    taus = unknown.reshape(len(weights), H - 1, values.open_in)
    return Weights(weights, 1 - weights.sum(axis=2), taus)


def _decoded(values: HeadMaps, keys: Array, b: Array, z: Array, alone: bool) -> Weights:
    """Solve for the weights of keys (n, d) beside b (Q, d) in what they add, z (Q, m)."""
    H, n = len(values.U), len(keys)
    orthonormal, R = np.linalg.qr(values.through(keys).reshape(-1, H * n))
    inverse = np.linalg.inv(R) @ orthonormal.T
    C = values.through(b).transpose(2, 0, 1)  # (Q, m, H)
    equations = C - orthonormal @ (orthonormal.T @ C)
    right = z - (z @ orthonormal) @ orthonormal.T
    if alone:
        sums = inverse.reshape(H, n, -1).sum(axis=1)
        # as long as the other equations' rows: the errors of all are of one size
        sizes = np.linalg.norm(sums, axis=1)
        within = (sums @ C - np.eye(H)) / sizes[:, None]
        equations = np.concatenate([equations, within], axis=1)
        right = np.hstack([right, z @ sums.T / sizes])
    pairs = zip(equations, right, strict=True)
    others = np.array([-np.linalg.lstsq(A, y, rcond=None)[0] for A, y in pairs])
    weights = (z + np.einsum("qmh,qh->qm", C, others)) @ inverse.T
    return Weights(weights.reshape(-1, H, n), 1 - others)


def decoding_growth(values: HeadMaps, keys: Array, b: Array) -> Array:
    """Return how much the sums of weights of keys (n, d) grow by beside b (T, d): (T,)."""
    H, n = len(values.U), len(keys)
    sums = np.linalg.pinv(values.through(keys).reshape(-1, H * n)).reshape(H, n, -1).sum(axis=1)
    within = np.eye(H) - sums @ values.through(b).transpose(2, 0, 1)
    least = np.linalg.svd(within, compute_uv=False)[:, -1]
    return np.asarray(1 / np.maximum(least, TINY))
