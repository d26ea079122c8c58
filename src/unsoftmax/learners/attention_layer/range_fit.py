"""All maps M_h = U_h V_h once more, by every answer that is linear in them: nothing is asked.

Where weights are known, y − c − M b = Σ_h M_h A p_h is linear in the maps: saturated gates say p_h
by themselves, single tokens say Σ_h M_h. Answers to n keys do so although their weights are not
known: of m numbers they leave H·n free, those of the weights, and what is outside the span of all
U_h V_h a_i is 0 for the right maps. So with fewer keys than dimensions, n < r_h, each of them has
m − H·n equations about the maps beside what it says of weights. Together that is `refine`'s least
squares problem, in which the weights are eliminated:

    (I − P_k)(z − Σ_h (δU_h V_h + U_h δV_h) A_k p_h),    P_k onto the span of all U_h V_h A_k.

Behind float32 errors of maps fall to a third, and those of scores, which are decoded with the new
maps, to a half; no other maps would be read as well from Σ r_h more queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy

from unsoftmax.learners.attention_layer.key_answers import KeyAnswers
from unsoftmax.learners.attention_layer.value_answers import (
    AffineAnswers,
    HeadMaps,
    LayerMap,
    ValueAnswers,
)
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.probes import Array
from unsoftmax.validate.refine import refine, whitening


@dataclass(frozen=True, slots=True)
class LinearAnswers:
    """Answers z = Σ_h M_h Aᵀ p_h, over their noise, of the heads that have a part in them.

    Attributes
    ----------
    keys : ndarray (n, d)
        A.
    heads : sequence of int
        All others' p_h are 0.
    weights : ndarray (Q, heads, n)
        p_h.
    z : ndarray (Q, m)
    scale : ndarray (Q,)
        What one unit of noise is divided by.
    span : ndarray (m, H·n), optional
        Orthonormal columns: what the answers have there is the weights'.
    """

    keys: Array
    heads: Sequence[int]
    weights: Array
    z: Array
    scale: Array
    span: Array | None = None

    def pooled(self, V: Sequence[Array]) -> Array:
        """Return all V_h Aᵀ p_h side by side, (Q, Σ r_h)."""
        parts = [np.zeros((len(self.z), len(V_h))) for V_h in V]
        for k, h in enumerate(self.heads):
            parts[h] = self.weights[:, k] @ (self.keys @ V[h].T)
        return np.concatenate(parts, axis=1)

    def back(self, rows: Sequence[Array]) -> list[Array]:
        """Return what covectors (Q, r_h) of every V_h Aᵀ p_h are of V_h."""
        parts = [np.zeros((x.shape[1], self.keys.shape[1])) for x in rows]
        for k, h in enumerate(self.heads):
            parts[h] = (rows[h].T @ self.weights[:, k]) @ self.keys
        return parts

    def scaled(self, y: Array) -> Array:
        """Return answers in units of their noise, without what the weights may have added."""
        if self.span is not None:
            y = y - (y @ self.span) @ self.span.T
        return np.asarray(self.scale[:, None] * y)


class RangeFit:
    """The maps, what answers miss them by, and the derivative: a `unsoftmax.validate.Misfit`.

    Changes of U and of V are given in coordinates: columns of U whitened by what is mapped along
    them, those of V by the tokens that are pooled, its rows by the angles between ranges.
    """

    def __init__(
        self,
        layer: LayerMap,
        values: HeadMaps,
        seen: ValueAnswers,
        keyed: Sequence[KeyAnswers],
        noise: AnswerNoise,
    ) -> None:
        self.values = values
        self._given = layer, seen, keyed, noise
        self._cuts = np.cumsum(values.ranks)[:-1]
        self._U = np.concatenate(list(values.U), axis=1)
        self._parts = [*self._gates(), *self._keys()]
        self._pooled = [part.pooled(values.V) for part in self._parts]
        m = len(layer.c)
        assert isinstance(seen.single, AffineAnswers)
        tokens = seen.single.tokens
        self._singles = np.sqrt(m) * tokens.scale / noise.of(tokens.units)

    # -- the answers

    def _gates(self) -> Iterator[LinearAnswers]:
        """Return those of saturated gates."""
        layer, seen, _, noise = self._given
        gates, offsets = seen.gates, seen.offsets
        every = range(gates.gates.shape[1])
        z = layer.beyond(gates.y, gates.b)
        scale = _scale(gates.y, noise)
        yield LinearAnswers(gates.a[None], every, gates.gates[:, :, None], z, scale)
        for k, h in enumerate(offsets.asked):
            a = offsets.base + offsets.share[k][:, None] * offsets.steps
            z = layer.beyond(offsets.y[k], offsets.b[h])
            alone = np.eye(len(a))[:, None]
            yield LinearAnswers(a, [h], alone, z, _scale(offsets.y[k], noise))

    def _keys(self) -> Iterator[LinearAnswers]:
        """Return those to blocks of keys, whose weights are what fits them best."""
        layer, _, keyed, noise = self._given
        every = range(len(self.values.U))
        for answers in keyed:
            z = layer.beyond(answers.y, answers.tokens[answers.token])
            scale = _scale(answers.y, noise)
            for k, keys in enumerate(answers.keys):
                asked = np.flatnonzero(answers.block == k)
                through = self.values.through(keys).reshape(z.shape[1], -1)
                span, R = np.linalg.qr(through)
                weights = np.linalg.lstsq(R, span.T @ z[asked].T, rcond=None)[0].T
                weights = weights.reshape(len(asked), len(every), len(keys))
                yield LinearAnswers(keys, every, weights, z[asked], scale[asked], span)

    # -- the problem

    @cached_property
    def residual(self) -> Array:  # noqa: D102
        layer = self._given[0]
        V = np.vstack(list(self.values.V))
        singles = self._singles[:, None] * (layer.heads.T - V.T @ self._U.T)
        parts = zip(self._parts, self._pooled, strict=True)
        rows = [part.scaled(part.z - pooled @ self._U.T) for part, pooled in parts]
        return np.concatenate([x.ravel() for x in (singles, *rows)])

    def forward(self, x: Array) -> Array:  # noqa: D102
        dU, dV = self._changes(x)
        V, split = np.vstack(list(self.values.V)), np.split(dV, self._cuts)
        rows = [self._singles[:, None] * (V.T @ dU.T + dV.T @ self._U.T)]
        for part, pooled in zip(self._parts, self._pooled, strict=True):
            rows.append(part.scaled(pooled @ dU.T + part.pooled(split) @ self._U.T))
        return np.concatenate([x.ravel() for x in rows])

    def back(self, rows: Array) -> Array:  # noqa: D102
        m = len(self._U)
        each = np.split(rows.reshape(-1, m), np.cumsum([len(self._singles), *self._sizes])[:-1])
        first = self._singles[:, None] * each[0]
        of_U = first.T @ np.vstack(list(self.values.V)).T
        of_V = self._U.T @ first.T
        for part, pooled, y in zip(self._parts, self._pooled, each[1:], strict=True):
            scaled = part.scaled(y)
            of_U += scaled.T @ pooled
            of_V += np.vstack(part.back(np.split(scaled @ self._U, self._cuts, axis=1)))
        of_U -= self._inverse.T @ (of_V @ np.vstack(list(self.values.V)).T)
        return np.concatenate(
            [(of_U @ self._along).ravel(), (self._apart.T @ of_V @ self._among).ravel()]
        )

    def moved(self, x: Array) -> RangeFit:  # noqa: D102
        dU, dV = self._changes(x)
        U, V = [], []
        for U_h, V_h in zip(
            np.split(self._U + dU, self._cuts, axis=1),
            np.split(np.vstack(list(self.values.V)) + dV, self._cuts),
            strict=True,
        ):
            Q, R = np.linalg.qr(U_h)
            U.append(Q)
            V.append(R @ V_h)
        layer, seen, keyed, noise = self._given
        return RangeFit(layer, HeadMaps(U, V), seen, keyed, noise)

    # -- coordinates

    @property
    def _sizes(self) -> list[int]:
        return [len(part.z) for part in self._parts]

    def _changes(self, x: Array) -> tuple[Array, Array]:
        """Return δU and δV of a change in coordinates."""
        U, rank = self._U, self._U.shape[1]
        of_U, of_V = x[: U.size].reshape(U.shape), x[U.size :].reshape(rank, -1)
        dU = of_U @ self._along.T
        kept = self._apart @ of_V @ self._among.T
        return dU, kept - (self._inverse @ dU) @ np.vstack(list(self.values.V))

    @cached_property
    def _along(self) -> Array:
        grams = [np.zeros((r, r)) for r in self.values.ranks]
        for part in self._parts:
            mean = part.weights.sum(axis=1) / len(grams)
            for h, V_h in enumerate(self.values.V):
                own = part.weights[:, part.heads.index(h)] - mean if h in part.heads else -mean
                seen = part.scale[:, None] * (own @ (part.keys @ V_h.T))
                grams[h] += seen.T @ seen
        return np.asarray(scipy.linalg.block_diag(*map(whitening, grams)))

    @cached_property
    def _inverse(self) -> Array:
        return np.asarray(np.linalg.pinv(self._U))

    @cached_property
    def _among(self) -> Array:
        gram = np.diag(self._singles**2)
        for part in self._parts:
            scaled = part.scale[:, None, None] * part.weights
            flat = scaled.reshape(-1, len(part.keys))
            gram += part.keys.T @ (flat.T @ flat / len(self.values.U)) @ part.keys
        return whitening(gram)

    @cached_property
    def _apart(self) -> Array:
        return whitening(self._U.T @ self._U)


def _scale(y: Array, noise: AnswerNoise) -> Array:
    return np.asarray(np.sqrt(y.shape[1]) / noise.of(y))


def fitted_maps(
    layer: LayerMap,
    values: HeadMaps,
    seen: ValueAnswers,
    keyed: Sequence[KeyAnswers],
    noise: AnswerNoise,
) -> tuple[LayerMap, HeadMaps]:
    """Return the maps that all answers fit best, near those given.

    Maps that were read in all directions stay: their ranges may be dependent.
    """
    if seen.whole:
        return layer, values
    values = refine(RangeFit(layer, values, seen, keyed, noise)).values
    M = np.concatenate(list(values.U), axis=1) @ np.vstack(list(values.V))
    return replace(layer, M=M + np.eye(*M.shape) if layer.residual else M), values
