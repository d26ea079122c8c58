"""All maps M_h = U_h V_h once more: fitted to every answer, or from ranges that are asked again.

Where weights are known, y − c − M b = Σ_h M_h A p_h is linear in the maps: saturated gates say p_h
by themselves, single tokens say Σ_h M_h. Answers to n keys do so although their weights are not
known: of m numbers they leave H·n free, those of the weights, and what is outside the span of all
U_h V_h a_i is 0 for the right maps. So with fewer keys than dimensions, n < r_h, each of them has
m − H·n equations about the maps beside what it says of weights. Together that is `refine`'s least
squares problem, in which the weights are eliminated:

    (I − P_k)(z − Σ_h (δU_h V_h + U_h δV_h) A_k p_h),    P_k onto the span of all U_h V_h A_k.

Behind float32 errors of maps fall to a third, and those of scores, which are decoded with the new
maps, to a half; no other maps would be read as well from Σ r_h more queries.

**The fit.** Steps of a learner read each number from few answers. All answers together say more:
with f the answers as a function of what was found, J its derivative and r what answers miss f by,
over their noise, one step is the x that makes ‖r − J x‖ least. It is computed by LSQR, in
coordinates that the problem chooses so that JᵀJ is near the identity; few iterations then take most
of what the noise leaves, and directions that no answer sees (factors of a product, for example) do
not move. A step that does not lower ‖r‖ is shortened, or not taken: the result is never worse, by
the answers, than the start.

*Source*: A. Björck, Numerical methods for least squares problems, 7.4 (LSQR) and 9.2.

**Ranges are read once more** where values have many dimensions, or behind a norm: one query per
direction of a value. With all [W_h w_h] known, a query token that opens head h's gate alone can be
made for any offset. Offsets along the right singular vectors of V_h are mapped to vectors that span
U_h as well as possible, while those that were asked first differ by a small part of their length
only. The new U_h gives a new V_h, and the answers about scores are decoded again. Σ r_h queries;
errors of maps of float32 layers fall from 3e-4 to 2e-5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, Self, TypeVar

import numpy as np
import scipy

from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer.head_search import asked_in_pairs
from unsoftmax.learners.attention_layer.key_answers import HeadScores, KeyAnswers
from unsoftmax.learners.attention_layer.score_reading import ScoreAnswers, ScoreReading
from unsoftmax.learners.attention_layer.value_answers import (
    AffineAnswers,
    HeadMaps,
    LayerMap,
    SaturatedAnswers,
    ValueAnswers,
)
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array
from unsoftmax.solve.least_distance import shortest_within

ITERATIONS = 60
"""Of conjugate gradients in one step. Fewer leave weakly determined directions as they were found;
from here on errors of layers of 4 heads of 16 fall by a third with each doubling."""
STEPS = 3
"""Of Gauss–Newton at most: starts are near, and two take what is to be had."""
FALLEN = 0.5
"""A further step is tried only after one that lowered the misfit at least to this share."""
SHORTENED = (1.0, 0.5, 0.25)
"""Shares of a step that are tried in turn."""
CONVERGED = 1e-10
"""A gradient that is so much smaller than the first is rounding."""


class Misfit(Protocol):
    """What answers miss a model by, and its derivative there."""

    @property
    def residual(self) -> Array:
        """(rows,): what answers miss, over their noise."""

    def forward(self, x: Array, /) -> Array:
        """Return J x, (rows,), for a change x in the problem's coordinates."""

    def back(self, rows: Array, /) -> Array:
        """Return Jᵀ rows, in the same coordinates."""

    def moved(self, x: Array, /) -> Self:
        """Return the problem of the changed model."""


P = TypeVar("P", bound=Misfit)


def refine(start: P, steps: int = STEPS, iterations: int = ITERATIONS) -> P:
    """Return the problem of a model that answers miss by less, or ``start``.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Line:  # y = t² x, seen at x = 1 and 2
    ...     t: Array
    ...     @property
    ...     def residual(self):
    ...         return np.array([4.0, 8.0]) - self.t**2 * np.array([1.0, 2.0])
    ...     def forward(self, x):
    ...         return 2 * self.t * x * np.array([1.0, 2.0])
    ...     def back(self, rows):
    ...         return 2 * self.t * np.array([rows @ [1.0, 2.0]])
    ...     def moved(self, x):
    ...         return Line(self.t + x)
    >>> refine(Line(np.array([2.1]))).t.round(6).tolist()
    [2.0]
    """
    now, missed = start, _square(start.residual)
    for _ in range(steps):
        x = step(now, iterations)
        tried = (now.moved(share * x) for share in SHORTENED)
        better = next((one for one in tried if _square(one.residual) < missed), None)
        if better is None:
            break
        now, before, missed = better, missed, _square(better.residual)
        if missed > FALLEN * before:
            break
    return now


def step(at: Misfit, iterations: int = ITERATIONS) -> Array:
    """Return an x that makes ‖r − J x‖ small, by so many iterations at most."""
    shape = len(at.residual), len(at.back(at.residual))
    J = scipy.sparse.linalg.LinearOperator(shape, matvec=at.forward, rmatvec=at.back)
    found = scipy.sparse.linalg.lsqr(
        J, at.residual, atol=CONVERGED, btol=0, conlim=0, iter_lim=iterations
    )
    return np.asarray(found[0])


def whitening(gram: Array) -> Array:
    """Return T with T Tᵀ the inverse of a Gram matrix; 0 along directions that it does not see.

    Examples
    --------
    >>> T = whitening(np.array([[4.0, 0.0], [0.0, 1.0]]))
    >>> (T @ T.T).round(9).tolist()
    [[0.25, 0.0], [0.0, 1.0]]
    """
    values, vectors = np.linalg.eigh(gram)
    seen = values > len(values) * np.finfo(np.float64).eps * values.max(initial=TINY)
    # stretched as much as the others, directions unseen would move by the rounding of these
    shares = np.where(seen, 1 / np.sqrt(np.where(seen, values, 1.0)), 0.0)
    return np.asarray(vectors * shares)


def _square(x: Array) -> float:
    return float(x @ x)


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
    """The maps, what answers miss them by, and the derivative: a `Misfit`.

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
        self._parts = [self._singles(), *self._gates(), *self._keys()]
        self._pooled = [part.pooled(values.V) for part in self._parts]

    # -- the answers

    def _singles(self) -> LinearAnswers:
        """Return those to single tokens e_j, to which all heads give the weight 1."""
        layer, seen, _, noise = self._given
        assert isinstance(seen.single, AffineAnswers)
        tokens, (d, heads) = seen.single.tokens, (layer.M.shape[1], len(self.values.U))
        each = np.broadcast_to(np.eye(d)[:, None], (d, heads, d))
        scale = tokens.scale * _scale(tokens.units, noise)
        return LinearAnswers(np.eye(d), range(heads), each, layer.heads.T, scale)

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
        parts = zip(self._parts, self._pooled, strict=True)
        rows = [part.scaled(part.z - pooled @ self._U.T) for part, pooled in parts]
        return np.concatenate([x.ravel() for x in rows])

    def forward(self, x: Array) -> Array:  # noqa: D102
        dU, dV = self._changes(x)
        split, parts = np.split(dV, self._cuts), zip(self._parts, self._pooled, strict=True)
        rows = [
            part.scaled(pooled @ dU.T + part.pooled(split) @ self._U.T) for part, pooled in parts
        ]
        return np.concatenate([x.ravel() for x in rows])

    def back(self, rows: Array) -> Array:  # noqa: D102
        each = np.split(rows.reshape(-1, len(self._U)), np.cumsum(self._sizes)[:-1])
        of_U, of_V = np.zeros_like(self._U), np.zeros((self._U.shape[1], len(self._among)))
        for part, pooled, y in zip(self._parts, self._pooled, each, strict=True):
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
        d = self.values.V[0].shape[1]
        gram = np.zeros((d, d))
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


# Largest share of an answer that the maps read first may miss: they are off by 1e-3, and a gate
# that is open by mistake adds as much as the answer.
_POLISHED = 0.1


def _asked_again(
    layer: LayerMap, values: HeadMaps, scores: HeadScores, length: float
) -> Asking[SaturatedAnswers | None]:
    """Ask one query for each direction; None where a gate cannot be opened alone."""
    asked = [
        (h, *_opened(scores, length, a, h))
        for h, V in enumerate(values.V)
        for a in np.linalg.svd(V, full_matrices=False)[2]
    ]
    pairs = [(h, a, b) for h, a, b in asked if b is not None]
    if len(pairs) < len(asked):
        return None
    heads, *tokens = zip(*pairs, strict=True)
    a, b = on_one_grid(*map(np.array, tokens))
    y = yield from asked_in_pairs(a, b, "maps, again")
    known = np.array([values.U[h] @ (values.V[h] @ one) for h, one in zip(heads, a, strict=True)])
    answers = SaturatedAnswers(np.array(heads, dtype=np.intp), a, b, y, known)
    # every answer is what the maps make of it so far: no gate was taken wrongly
    z = answers.beyond(layer)
    missed = np.linalg.norm(z - known, axis=1)
    return answers if np.all(missed <= _POLISHED * np.linalg.norm(z, axis=1)) else None


def _opened(
    scores: HeadScores, length: float, direction: Array, h: int
) -> tuple[Array, Array | None]:
    """Return the offset, and the query token beside which it opens head h's gate alone.

    Query tokens are so long that biases matter little and gates are saturated.
    """
    shortest, offset, token = np.inf, direction, None
    for a in (direction, -direction):
        along = np.array([(a @ C) @ R for C, R in zip(scores.C, scores.R, strict=True)])
        rows = np.where(np.arange(len(along)) == h, 1.0, -1.0)[:, None] * along
        size = np.linalg.norm(rows[:, :-1], axis=1)
        if not size.all():
            continue
        basis, core = np.linalg.qr((rows[:, :-1] / size[:, None]).T)
        y = shortest_within(core.T)
        if y is not None and np.linalg.norm(y) < shortest:
            b = basis @ y
            margins, biases = rows[:, :-1] @ b, np.abs(rows[:, -1])
            over_bias = limits.OVER_BIAS * float(np.max(biases / margins))
            saturated = 2 * limits.SATURATED / (length * float(margins.min()))
            shorter = length * limits.SHORTER / float(np.linalg.norm(b))
            shortest, offset = float(np.linalg.norm(y)), a
            token = b * max(over_bias, saturated, shorter)
    return length * offset, token


def polished(
    maps: ValueAnswers, scores: ScoreAnswers, reading: ScoreReading, length: float
) -> Asking[tuple[ValueAnswers, ScoreAnswers]]:
    """Read ranges again, and what keys weigh beside the new ones; offsets are of this length."""
    layer = reading.layer
    values = scores.first.closed(layer, maps.solved())
    again = yield from _asked_again(layer, values, scores.solved(layer, values), length)
    if again is not None:
        maps = replace(maps, saturated=again)
        values = scores.first.closed(layer, maps.solved())
        scores = yield from replace(reading, values=values).mended(scores)
    return maps, scores
