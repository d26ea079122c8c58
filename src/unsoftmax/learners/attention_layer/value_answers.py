"""From answers of saturated heads to each head's M_h = U_h V_h: pure arithmetic, nothing is asked.

Where all gates but head h's are closed, [b_h + a; b_h] is answered by c + M b_h + M_h a, M the
map of single tokens. Some M_h a_j span U_h, and with G = [U_1 … U_H]⁺ the rest follows from the
sum M = Σ M_h that single tokens gave: V_h = G_h M. So r_h vectors per head are enough, and M need
not be invertible; but the U_h must be independent. Where they are not, M_h is read in every
direction (`whole`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.measure.token_map import AnswerNoise, TokenMapAnswers
from unsoftmax.probes import Array, Indices
from unsoftmax.solve.full_rank import solved


@dataclass(frozen=True, slots=True)
class LayerMap:
    """c, the map M of single tokens, and the heads' share of it."""

    c: Array
    M: Array
    """(m, d), the residual connection included."""
    residual: bool

    @classmethod
    def of(cls, answers: TokenMapAnswers, residual: bool = False) -> LayerMap:
        """Read it off single tokens."""
        return cls(answers.constant, answers.map, residual)

    @property
    def heads(self) -> Array:
        """Σ M_h, (m, d)."""
        return np.asarray(self.M - np.eye(*self.M.shape)) if self.residual else self.M

    def beyond(self, y: Array, b: Array) -> Array:
        """Return y − c − M b: what offsets add to answers beside a query token."""
        return np.asarray(y - self.c - b @ self.M.T)


@dataclass(frozen=True, slots=True)
class GateAnswers:
    """Answers to [b_k + a; b_k] for one long offset a, and every head's gate there.

    Attributes
    ----------
    a : ndarray (d,)
    b, y : ndarray (K, d), (K, m)
    gates : ndarray (K, H)
        Zeros and ones.
    """

    a: Array
    b: Array
    y: Array
    gates: Array

    def vectors(self, layer: LayerMap) -> Array:
        """Return all M_h a, (H, m)."""
        gates = np.vstack([np.ones(self.gates.shape[1]), self.gates])
        rows = np.vstack([layer.heads @ self.a, layer.beyond(self.y, self.b)])
        return np.asarray(np.linalg.lstsq(gates, rows, rcond=None)[0])


@dataclass(frozen=True, slots=True)
class OffsetAnswers:
    """Answers to [b_h + a + s v_j; b_h] where head h's gate alone is open, for all heads but one.

    Attributes
    ----------
    base : ndarray (d,)
        The offset a, a power of two times the one of `GateAnswers`.
    steps : ndarray (J, d)
        v_j.
    share : ndarray (H − 1, J)
        s, 1 or a power of two below: shorter where a gate would flip.
    b : ndarray (H, d)
        One query token for each head.
    left_out : int
        The head that is not asked: its share is what the others leave of M a_j.
    y : ndarray (H − 1, J, m)
        Answers, in the order of the heads.
    """

    base: Array
    steps: Array
    share: Array
    b: Array
    left_out: int
    y: Array

    @property
    def asked(self) -> list[int]:
        """The heads that are asked."""
        return [h for h in range(len(self.b)) if h != self.left_out]

    def beside(self, layer: LayerMap, vectors: Array) -> Array:
        """Return M_h s v_j of the heads that are asked, (H − 1, J, m)."""
        b = self.b[self.asked, None]
        return np.asarray(layer.beyond(self.y, b) - vectors[self.asked, None])

    def spans(self, layer: LayerMap, vectors: Array) -> Array:
        """Return vectors of each head's range: M_h of unit vectors, (H, J + 1, m)."""
        along = vectors / np.linalg.norm(self.base)
        beside = np.zeros((len(self.b), *self.y.shape[1:]))
        beside[self.asked] = self.beside(layer, vectors) / self.share[..., None]
        beside[self.left_out] = self.steps @ layer.heads.T - beside.sum(axis=0)
        length = np.linalg.norm(self.steps, axis=1)
        return np.concatenate([along[:, None], beside / length[:, None]], axis=1)

    def directions(self) -> Array:
        """Return the unit vectors that `spans` maps, (J + 1, d)."""
        rows = np.vstack([self.base, self.steps])
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


@dataclass(frozen=True, slots=True)
class SaturatedAnswers:
    """Answers to [b + a; b] where one head's gate is open: M_h a of chosen a.

    Attributes
    ----------
    head : ndarray (Q,)
    a, b, y : ndarray (Q, d), (Q, d), (Q, m)
    """

    head: Indices
    a: Array
    b: Array
    y: Array

    def spans(self, layer: LayerMap) -> list[Array]:
        """Return each head's vectors M_h a/‖M_h a‖, rows."""
        rows = layer.beyond(self.y, self.b)
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return [rows[self.head == h] for h in range(int(self.head.max()) + 1)]


@dataclass(frozen=True, slots=True)
class HeadMaps:
    """Each head's map M_h = U_h V_h, U_h with orthonormal columns."""

    U: Sequence[Array]
    """(m, r_h) each."""
    V: Sequence[Array]
    """(r_h, d) each."""

    @classmethod
    def of_spans(cls, U: Sequence[Array], layer: LayerMap) -> HeadMaps:
        """Take independent ranges; V_h is what they make of the sum of all maps."""
        through = solved(np.concatenate(U, axis=1), layer.heads)
        return cls(list(U), np.split(through, np.cumsum(_sizes(U))[:-1]))

    @classmethod
    def of_maps(cls, M: Sequence[Array], ranks: Sequence[int]) -> HeadMaps:
        """Take maps that were read in every direction."""
        U = [
            np.linalg.svd(M_h, full_matrices=False)[0][:, :r]
            for M_h, r in zip(M, ranks, strict=True)
        ]
        return cls(U, [U_h.T @ M_h for U_h, M_h in zip(U, M, strict=True)])

    @property
    def ranks(self) -> list[int]:
        """r_h."""
        return _sizes(self.U)

    def through(self, tokens: Array) -> Array:
        """Return M_h x for tokens (n, d): (m, H, n)."""
        return np.stack([U @ (V @ tokens.T) for U, V in zip(self.U, self.V, strict=True)], axis=1)

    def divided(self, z: Array) -> list[Array]:
        """Divide vectors z (Q, m) among the heads' ranges, z = Σ_h U_h x_h: x_h, (r_h, Q) each."""
        x = solved(np.concatenate(list(self.U), axis=1), z.T)
        return np.split(x, np.cumsum(self.ranks)[:-1])


def leading(span: Array, rank: int) -> Array:
    """Return orthonormal columns (m, rank) of what rows (J, m) span."""
    return np.asarray(np.linalg.svd(span.T, full_matrices=False)[0][:, :rank])


def _sizes(U: Sequence[Array]) -> list[int]:
    return [U_h.shape[1] for U_h in U]


@dataclass(frozen=True, slots=True)
class ValueAnswers:
    """All answers that the maps M_h are computed from."""

    tokens: TokenMapAnswers
    residual: bool
    gates: GateAnswers
    offsets: OffsetAnswers
    ranks: tuple[int, ...]
    whole: bool
    """Whether every M_h is read in all directions."""
    saturated: SaturatedAnswers | None = None

    def layer(self) -> LayerMap:
        """Return c and M."""
        return LayerMap.of(self.tokens, self.residual)

    def vectors(self) -> Array:
        """Return M_h a of the offset that others lie around, (H, m)."""
        longer = np.linalg.norm(self.offsets.base) / np.linalg.norm(self.gates.a)
        return np.asarray(longer * self.gates.vectors(self.layer()))

    def spans(self) -> Array:
        """Return vectors of each head's range, (H, J + 1, m)."""
        return self.offsets.spans(self.layer(), self.vectors())

    def solved(self) -> HeadMaps:
        """Compute all M_h."""
        if self.whole:
            seen = self.spans()
            flat = seen.transpose(1, 0, 2).reshape(seen.shape[1], -1)
            maps = np.linalg.lstsq(self.offsets.directions(), flat, rcond=None)[0]
            apart = maps.reshape(-1, *seen.shape[::2]).transpose(1, 2, 0)
            return HeadMaps.of_maps(list(apart), self.ranks)
        layer = self.layer()
        spans = list(self.spans()) if self.saturated is None else self.saturated.spans(layer)
        return HeadMaps.of_spans(
            [leading(s, r) for s, r in zip(spans, self.ranks, strict=True)], layer
        )

    def with_errors(self, noise: AnswerNoise, rng: np.random.Generator) -> ValueAnswers:
        """Return the same answers, with errors drawn as large as theirs may be."""

        def off(y: Array) -> Array:
            return y + noise.drawn(y, rng)

        saturated = self.saturated
        return replace(
            self,
            tokens=self.tokens.with_errors(noise, rng),
            gates=replace(self.gates, y=off(self.gates.y)),
            offsets=replace(self.offsets, y=off(self.offsets.y)),
            saturated=saturated and replace(saturated, y=off(saturated.y)),
        )
