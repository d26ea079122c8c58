"""Tokens behind copies of one key: what follows attention, at every input that is wanted.

With attention known up to its constant, y = x + o(X) + c, what follows is asked at u = y − c: the
token x with x + o(X) = u is solved for. Behind 31 copies of a key with large scores o hardly
depends on x. So there is one such x for every u, and what is wrong with the known o is the same at
all of them: a constant, which no one can tell from c.

    G(u) = z − u = F(norm₂(u + c)) + constant
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy

from unsoftmax.learners.block.far_tokens import FarTokens
from unsoftmax.learners.compose import Asking, T, mapped
from unsoftmax.measure.precision import UNIT
from unsoftmax.models import LayerNorm
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Copies, Purpose, Round, Sequences
from unsoftmax.protocol import Answers
from unsoftmax.validate.drawn_models import Layer

# Copies of the key. More: o depends less on x, and questions are longer.
COPIES = 31
# Length of the key, in units of √d: what is wrong with eps counts for nothing.
_LONG = 64.0
# Keys that are tried at first, steps away from the best one in units of √d, and keys of each; a
# step that finds none better is divided by the last number.
_KEYS, _STEPS, _STEP, _AROUND, _SHORTER = 512, 40, 0.5, 64, 1.5
# Steps of Newton's method, and tokens that are solved for at a time.
_NEWTON, _TOGETHER = 30, 256


class Following(NamedTuple):
    """Answers less what is known to be added before."""

    y: Array
    """G(u), (Q, d)."""
    size: Array
    """(Q,): of what it was added up of. It is off by roundoffs of these."""


@dataclass(frozen=True)
class BehindKeys:
    """Asks for what follows attention, at inputs of choice.

    Attributes
    ----------
    tokens : FarTokens
        Of the norm before attention.
    layer : Layer
        Attention of normalised tokens, its constant 0.
    eps : float
        Of that norm.
    key : ndarray (d,)
        As the norm makes it, of length √d.
    """

    tokens: FarTokens
    layer: Layer
    eps: float
    key: Array

    @classmethod
    def drawn(
        cls, tokens: FarTokens, layer: Layer, eps: float, rng: np.random.Generator
    ) -> BehindKeys:
        """Choose a key while c is not known."""
        first = tokens.on_sphere(rng.standard_normal((1, tokens.dim)))[0]
        return cls(tokens, layer, eps, first).with_key(np.zeros(tokens.dim), rng)

    def with_key(self, c: Array, rng: np.random.Generator) -> BehindKeys:
        """Choose the key behind which attention depends least on tokens x with y about 0."""
        on, d = self.tokens.on_sphere, self.tokens.dim
        keys = on(rng.standard_normal((_KEYS, d)))
        vary = self._varies(keys, c)
        best, least, step = keys[np.argmin(vary)], float(np.min(vary)), _STEP
        for _ in range(_STEPS):
            away = rng.standard_normal((_AROUND, d))
            keys = on(best + step * self.tokens.radius * _unit(away))
            vary = self._varies(keys, c)
            if np.min(vary) < least:
                best, least = keys[np.argmin(vary)], float(np.min(vary))
            else:
                step /= _SHORTER
        return replace(self, key=best)

    def _varies(self, keys: Array, c: Array) -> Array:
        """Return what a small step of x changes o by, behind each key (K, d), where y is 0."""
        x = -c - keys @ self._maps.sum(axis=0).T
        n, length = self.tokens.on_sphere(x), np.linalg.norm(self.tokens.within(x), axis=1)
        copies = np.broadcast_to(keys[:, None], (len(keys), COPIES, len(self.key)))
        scores = self.layer.scored(np.concatenate([copies, n[:, None]], axis=1))
        own = scipy.special.expit(
            scores[..., -1] - scipy.special.logsumexp(scores[..., :-1], axis=2)
        )
        sizes = np.linalg.norm(self._maps, 2, axis=(1, 2))
        return np.asarray(self.tokens.radius * np.max(own * sizes, axis=1) / length)

    @cached_property
    def _seen(self) -> Array:
        """The key as the norm makes it of what is asked."""
        return np.asarray(self.key / np.sqrt(1 + self.eps / _LONG**2))

    @cached_property
    def _maps(self) -> Array:
        """All M_h, (H, d, d)."""
        return np.array([self.layer.values_of(h).whole for h in range(self.layer.H)])

    @cached_property
    def _own_scores(self) -> tuple[Array, Array]:
        """All W_h (H, d, d) and w_h (H, d) at distance 0."""
        d, forms = len(self.key), [self.layer.score_forms(h)[0] for h in range(self.layer.H)]
        each = np.array([one.left[:d] @ one.right for one in forms])
        return each[:, :, :d], each[:, :, d]

    @cached_property
    def _toward(self) -> tuple[Array, Array]:
        """What all copies of the key score with tokens (H, COPIES, d), and beside 0 (H, COPIES)."""
        x = np.vstack([np.zeros(len(self.key)), np.eye(len(self.key))])
        keys = np.broadcast_to(self._seen, (len(x), COPIES, len(self.key)))
        scores = self.layer.scored(np.concatenate([keys, x[:, None]], axis=1))[..., :-1]
        return np.moveaxis(scores[1:] - scores[0], 0, 2), scores[0]

    # -- what attention adds

    def adds(self, x: Array, layer: Layer | None = None) -> Array:
        """Return o behind the key, of tokens x (Q, d); of another layer if one is given."""
        keys = np.broadcast_to(self._seen, (len(x), COPIES, len(self.key)))
        n = self._norm.normalised(self.tokens.within(x))
        answers: Array = (layer or self.layer)(np.concatenate([keys, n[:, None]], axis=1))
        return answers

    def apart(self, u: Array, others: Sequence[Layer]) -> Array:
        """Return what other layers add otherwise than this one, at inputs (Q, d): (n, Q, d)."""
        x = self.tokens_of(u)
        mine = self.adds(x)
        return np.array([self.adds(x, one) - mine for one in others])

    @cached_property
    def _norm(self) -> LayerNorm:
        d = self.tokens.dim
        return LayerNorm(np.ones(d), None, self.eps, before=True, centred=self.tokens.centred)

    def tokens_of(self, u: Array) -> Array:
        """Return the tokens x with x + o = u, (Q, d): Newton's method."""
        found = [self._solved(u[i : i + _TOGETHER]) for i in range(0, len(u), _TOGETHER)]
        return np.concatenate([np.zeros((0, u.shape[1])), *found])

    def _solved(self, u: Array) -> Array:
        x: Array = u - self._maps.sum(axis=0) @ self._seen
        for _ in range(_NEWTON):
            o, slope = self._linearised(x)
            missed = u - x - o
            x = x + np.linalg.solve(np.eye(len(self.key)) + slope, missed[..., None])[..., 0]
            if np.max(np.abs(missed)) <= 2 * UNIT * np.max(np.abs(x)):
                break
        return x

    def _linearised(self, x: Array) -> tuple[Array, Array]:
        """Return o (Q, d) and its derivative by x (Q, d, d), beside copies of a key."""
        d, tokens = self.tokens.dim, self.tokens
        v = tokens.within(x)
        size = np.sqrt(np.mean(v * v, axis=1) + self.eps)
        n = v / size[:, None]
        (W, w), (toward, beside_0), away = self._own_scores, self._toward, self._seen - n
        keys = np.einsum("hcd,qd->hqc", toward, n) + beside_0[:, None]
        every = scipy.special.logsumexp(keys, axis=2)
        vectors = np.einsum("hij,qj->hqi", W, n) + w[:, None]
        p = scipy.special.expit(every - np.einsum("qi,hqi->hq", n, vectors))
        turn = np.einsum("hqc,hcd->hqd", np.exp(keys - every[..., None]), toward)
        turn -= vectors + np.einsum("hij,qi->hqj", W, n)
        mapped = np.einsum("hij,qj->hqi", self._maps, away) * (p * (1 - p))[..., None]
        slope = np.einsum("hqi,hqj->qij", mapped, turn)
        slope += np.einsum("hij,hq->qij", self._maps, 1 - p)
        pooled = p[..., None] * away + n
        by_norm = np.eye(d) - tokens.centred / d - n[:, :, None] * n[:, None] / d
        o = np.einsum("hij,hqj->qi", self._maps, pooled)
        return o, slope @ by_norm / size[:, None, None]

    # -- asking

    def asked(self, u: Array, phase: str) -> Asking[Following]:
        """Ask G at inputs u (Q, d)."""
        x = self.tokens_of(u)
        [z] = yield [self._sequences(x, phase, "data")]
        return self._following(x, z)

    def run(self, steps: Asking[T], c: Array, kept: list[tuple[Array, Array]]) -> Asking[T]:
        """Run a generator that asks single tokens v on G(v − c); keep all v and G in ``kept``."""
        waiting: list[tuple[Array, Array]] = []

        def ask(asked: Round) -> Round:
            inputs = [probes[0 : len(probes)][:, -1] for probes in asked]
            waiting[:] = [(v, self.tokens_of(v - c)) for v in inputs]
            each = zip(waiting, asked, strict=True)
            return [self._sequences(x, one.phase, one.purpose) for (_, x), one in each]

        def answer(answers: Answers) -> Answers:
            found = []
            for (v, x), z in zip(waiting, answers, strict=True):
                found.append(self._following(x, z).y if len(z) else z)
                kept.append((v, found[-1]))
            return found

        return mapped(steps, ask, answer)

    def _sequences(self, x: Array, phase: str, purpose: Purpose) -> Copies:
        keys = np.broadcast_to(_LONG * self.key, x.shape)
        pairs = Sequences(np.stack([keys, x], axis=1), phase=phase, purpose=purpose)
        return Copies.of(pairs, np.array([COPIES, 1]))

    def _following(self, x: Array, z: Array) -> Following:
        size = np.linalg.norm(z, axis=1) + np.linalg.norm(x, axis=1)
        return Following(z - (x + self.adds(x)), size)


def _unit(x: Array) -> Array:
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), TINY))
