"""From answers to many keys at once to weights, where keys and queries have biases: arithmetic.

[s a_1; …; s a_n; 0 × m; b], a base token added to all of them, which is as if c and the biases
were others. With biases zero tokens have scores, and the query token's own is no longer nothing.
Every head adds M_h(Σ_i p_i s a_i − u b), where u = 1 − p_b is what other tokens
weigh than the query token. With B = [M_h s a_i] and C = [M_h b] of all heads

    z = B p − C u:   what B leaves of z gives u, and p = B⁺(z + C u).

Without zero tokens u = Σ p_i is one more equation for each head, and then a head may have as many
keys as its values have dimensions; with them u is free, and the keys are one fewer. B is factored
once for all query tokens beside one block.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.learners.attention_layer.key_answers import KeyAnswers, KeyedTokens, Weights
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, LayerMap
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Design, Indices, Purpose


@dataclass(frozen=True, slots=True)
class SpacedKeys(KeyedTokens):
    """Sequences [s a_1; …; s a_n; 0 …; b] + base, made slice by slice.

    Attributes
    ----------
    between : int
        Zero tokens between keys and query token.
    base : ndarray (d,)
        What is added to all tokens.
    """

    base: Array = field(kw_only=True)

    def __getitem__(self, span: slice) -> Array:
        b, n = self.queries[self.token[span]], self.keys.shape[1]
        X = np.zeros((len(b), self.tokens, self.dim))
        X[:, -1] = b
        X[:, :n] = self.scale[span, None, None] * self.keys[self.block[span]]
        return X + self.base

    def design(self) -> Design:  # noqa: D102
        return {**KeyedTokens.design(self), "base": self.base}


@dataclass(frozen=True, slots=True)
class BiasedKeyAnswers(KeyAnswers):
    """Answers to blocks of keys beside query tokens, zero tokens between.

    Keys are tokens themselves here, not offsets from the query token.

    Attributes
    ----------
    base : ndarray (d,)
        What is added to all tokens.
    """

    base: Array = field(kw_only=True)

    def asked(self, which: Indices, phase: str, purpose: Purpose) -> SpacedKeys:
        """Return what some of them are answers to."""
        return SpacedKeys(
            self.keys,
            self.tokens,
            self.block[which],
            self.token[which],
            self.scale[which],
            self.between,
            base=self.base,
            phase=phase,
            purpose=purpose,
        )

    def weights(self, layer: LayerMap, values: HeadMaps) -> list[tuple[Indices, Weights]]:
        """Decode every answer, block by block."""
        z = layer.beyond(self.y, self.base + self.tokens[self.token]) / self.scale[:, None]
        found = []
        for k, keys in enumerate(self.keys):
            asked = np.flatnonzero(self.block == k)
            if len(asked):
                b = self.tokens[self.token[asked]] / self.scale[asked, None]
                found.append((asked, _decoded(values, keys, b, z[asked], not self.between)))
        return found

    def scores(self, layer: LayerMap, values: HeadMaps) -> Array:
        """Return each key's score less the query token's own: (T, H, blocks·n), NaN elsewhere."""
        blocks, n, _ = self.keys.shape
        scores = np.full((len(self.tokens), len(values.U), blocks, n), np.nan)
        for asked, weights in self.weights(layer, values):
            scores[self.token[asked], :, self.block[asked]] = weights.logits()
        return scores.reshape(len(self.tokens), len(values.U), blocks * n)


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
