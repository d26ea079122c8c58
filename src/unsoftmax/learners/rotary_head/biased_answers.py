"""A head with rotary positions and biases, solved from answers to ordinary tokens.

With key k = K a + b_k, query u_b = Q b + b_q and tokens a, b of which b·v < 0 < a·v:

    [0; b], [0; 0; b]   e^γ_Δ, γ_Δ = b_k·R(Δ)u_b − (K b + b_k)·u_b, what a zero Δ away weighs
    [a; b]              t − γ_1 = a·KᵀR(1)u_b          d offsets, r query tokens: B = qr
    [a; 0; b]           t − γ_2 = a·KᵀR(2)u_b          r offsets in the span of B: T = P R(1) P⁻¹
    γ_1, γ_2            b_k·(R(Δ) − I)u_b = γ_Δ + K b·u_b
    [a; b], other b     ((K a + b_k)·R(1) − (K b + b_k))·u_b = t, r equations for each u_b

The weights are read from y − c = (e^t a·v + b·v)/(e^t + S + 1), S being what zeros weigh. All
weights are those beside the query token's own. Pure arrays; nothing is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.rotary_head.turned_keys import TurnedKeys
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.probes import Array
from unsoftmax.solve.turning_planes import TurningPlanes, turning_planes


@dataclass(frozen=True, slots=True)
class Weighed:
    """Answers to tokens a before query tokens b, (query tokens, offsets)."""

    a: Array
    """(n, d), unscaled."""
    b: Array
    """(m, d), as asked."""
    alpha: Array
    """(m,): a is asked α times as long."""
    y: Array
    """(m, n)."""

    def logits(self, v: Array, c: float, zeros: Array | float = 0.0) -> Array:
        """Return t of e^t, what a weighs beside b; ``zeros``, (m,), is what zeros weigh."""
        Y, S = self.y - c, np.broadcast_to(zeros, len(self.b))[:, None]
        av, bv = self.alpha[:, None] * (self.a @ v), (self.b @ v)[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.log((bv - Y * (1 + S)) / (Y - av)))

    def moved(self, off: Array) -> Weighed:
        """Change the answers."""
        return replace(self, y=self.y + off)


@dataclass(frozen=True, slots=True)
class BiasedAnswers:
    """All that the head is solved from; ``other`` is None until it is asked."""

    first: Weighed
    """[a; b], all offsets, r query tokens."""
    one_zero: Array
    """[0; b], (r,)."""
    two_zeros: Array
    """[0; 0; b], (r,)."""
    v: Array
    c: float
    spaced: Weighed | None = None
    """[a; 0; b]."""
    other: Weighed | None = None
    """[a; b], the other query tokens and 0, which is the last."""

    @property
    def fillers(self) -> tuple[Array, Array]:
        """What a zero token weighs at Δ = 1 and 2, (r,) each."""
        bv = self.first.b @ self.v
        with np.errstate(invalid="ignore", divide="ignore"):
            one, two = (bv / (y - self.c) - 1 for y in (self.one_zero, self.two_zeros))
        return one, two - one

    @property
    def columns(self) -> Array:
        """KᵀR(1)u_b of the first query tokens, (d, r)."""
        with np.errstate(invalid="ignore", divide="ignore"):
            gamma = np.log(self.fillers[0])
        t = self.first.logits(self.v, self.c) - gamma[:, None]
        return np.asarray(np.linalg.solve(self.first.a, (t / self.first.alpha[:, None]).T))

    @property
    def basis(self) -> Array:
        """An orthonormal basis B of the span of Kᵀ, (d, r)."""
        return np.asarray(np.linalg.qr(self.columns)[0])

    def planes(self, basis: Array, still: float) -> tuple[TurningPlanes, Array]:
        """Return the planes that turn, and Bᵀ KᵀR(1)u_b, (r, r)."""
        assert self.spaced is not None
        one, two = self.fillers
        here = basis.T @ self.columns
        t = self.spaced.logits(self.v, self.c, one) - np.log(two)[:, None]
        seen = (t / self.spaced.alpha[:, None]).T
        there = np.linalg.solve(self.spaced.a @ basis, seen)
        return turning_planes(np.linalg.solve(here.T, there.T).T, still), here

    def keys(self, still: float, told: Array | None = None) -> KeySide:
        """Return K, the frequencies, b_k, and the queries of the first tokens."""
        basis = self.basis
        planes, here = self.planes(basis, still)
        angles = planes.angles if told is None else told
        keys = TurnedKeys.of(basis, planes, angles)
        K, rotary, queries = keys.K, keys.rotary, keys.queries(here)
        own = np.sum((self.first.b @ K.T) * queries, axis=1)
        turns = [rotary.turned(queries, np.array(n)) - queries for n in (1.0, 2.0)]
        gammas = [np.log(weight) + own for weight in self.fillers]
        k_bias = np.linalg.lstsq(np.vstack(turns), np.concatenate(gammas), rcond=None)[0]
        return KeySide(K, k_bias, rotary, queries)

    def head(self, still: float, told: Array | None = None) -> RotaryHead:
        """Return the head."""
        assert self.other is not None
        side, r = self.keys(still, told), len(self.first.b)
        t, other = self.other.logits(self.v, self.c), self.other
        rows = [
            side.rows(alpha * other.a, b) for alpha, b in zip(other.alpha, other.b, strict=True)
        ]
        queries = [np.linalg.lstsq(M, y, rcond=None)[0] for M, y in zip(rows, t, strict=True)]
        q_bias = queries[-1]
        tokens = np.vstack([self.first.b, other.b[:-1]])
        apart = np.vstack([side.queries[:r], *queries[:-1]]) - q_bias
        Q = np.linalg.solve(tokens, apart).T
        return RotaryHead(
            side.K, Q, self.v, side.rotary, k_bias=side.k_bias, q_bias=q_bias, c=self.c
        )

    def moved(
        self, rng: np.random.Generator, off: float, v_off: Array, c_off: float
    ) -> BiasedAnswers:
        """Move all answers by ``off`` of either sign, and v and c by what they may be off by."""
        assert self.spaced is not None
        assert self.other is not None

        def by(shape: tuple[int, ...], size: Array | float) -> Array:
            return np.asarray(size * rng.choice([-1.0, 1.0], shape))

        return BiasedAnswers(
            self.first.moved(by(self.first.y.shape, off)),
            self.one_zero + by(self.one_zero.shape, off),
            self.two_zeros + by(self.two_zeros.shape, off),
            self.v + by(self.v.shape, v_off),
            self.c + float(by((1,), c_off)[0]),
            self.spaced.moved(by(self.spaced.y.shape, off)),
            self.other.moved(by(self.other.y.shape, off)),
        )


@dataclass(frozen=True, slots=True)
class KeySide:
    """What is known before the other query tokens are asked."""

    K: Array
    k_bias: Array
    rotary: Rotary
    queries: Array
    """u_b of the first query tokens, (r, rows of K)."""

    def rows(self, a: Array, b: Array) -> Array:
        """Return M of t = M u_b for tokens a (n, d) before b."""
        keys = self.rotary.turned(a @ self.K.T + self.k_bias, np.array(-1.0))
        return np.asarray(keys - (self.K @ b + self.k_bias))
