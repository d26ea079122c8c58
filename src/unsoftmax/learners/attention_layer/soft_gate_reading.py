"""Every head's map M_h where tokens cannot be long: which copies to ask, and which are one head's.

m copies of b + a and k of b are answered by c + M b + Σ_h σ(l_h + log m/k) M_h a, with l_h =
a·(W_h b + w_h): where tokens cannot be long, copies move gates instead. With b = P s, s of a few
coordinates, l_h is affine in s, and every head's gates are found in the span of the answers by
themselves (`solve.soft_gates`); the M_h a follow by least squares, and those of several a show
U_h. As for saturated gates (`value_answers`), V_h = (U⁺)_h M, or all directions are asked.

1. One offset a_1 beside K query tokens of a few coordinates, each with copies of its own: the rank
   of the answers is H, and H gates lie in their span. Where logits are large gates are hard, and
   nearly all starts are lost: then one query token at each of 20 lengths shows at which weights
   are moderate, and all is asked again there.
2. Offsets a_j = a_1 + η‖a_1‖δ_j, each beside H + q + 3 query tokens. Each is solved by itself; its
   heads are those of a_1 whose M_h a and logits have nearly its directions: what a_1 has is a part.
3. Where ranges are dependent, offsets in all directions are asked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.attention_layer.value_answers import (
    AffineAnswers,
    HeadMaps,
    LayerMap,
    leading,
)
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.precision import UNIT
from unsoftmax.measure.token_map import AnswerNoise, TokenMapAnswers, with_errors
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Copies, Flags, Purpose, Round, Sequences
from unsoftmax.refusals import Reason
from unsoftmax.solve.soft_gates import Ends, columns_at, distinct, nearest_gates, settled

# Starts of a search for gates, and so many more for each head: nearly every one ends at a head
# where logits are moderate. More: heads of small basins, in proportion to time.
_STARTS, _STARTS_PER_HEAD = 128, 16
# Standard deviation of the numbers of a start: gates are soft up to logits of 4 or so.
_STARTS_SPREAD = 2.0


@dataclass(frozen=True, slots=True)
class CopiedAnswers:
    """Answers to copies of b + a and of b, for one offset a.

    Attributes
    ----------
    a : ndarray (d,)
    b : ndarray (K, d)
    s : ndarray (K, q)
        (1, coordinates of b).
    copies : ndarray (K, 2)
        Of b + a, and of b.
    y : ndarray (K, m)
    """

    a: Array
    b: Array
    s: Array
    copies: Array
    y: Array

    @property
    def shift(self) -> Array:
        """Log m/k, (K,)."""
        return np.asarray(np.log(self.copies[:, 0] / self.copies[:, 1]))

    def rows(self, layer: LayerMap) -> Array:
        """Return M a, as if all gates were 1, and what a adds to the answers, (K + 1, m)."""
        return np.vstack([layer.heads @ self.a, layer.beyond(self.y, self.b)])

    def span(self, layer: LayerMap, heads: int) -> tuple[Array, Array]:
        """Return a basis of the gates' columns and the singular values of the rows."""
        left, singular, _ = np.linalg.svd(self.rows(layer), full_matrices=False)
        return left[:, :heads], singular

    def refined(self, layer: LayerMap, theta: Array) -> Array:
        """Return the gates' θ (H, q) near those given, by these answers."""
        span, _ = self.span(layer, len(theta))
        return settled(span, self.s, self.shift, theta)

    def vectors(self, layer: LayerMap, theta: Array) -> tuple[Array, float]:
        """Return all M_h a (H, m), and the norm of what they leave of the answers."""
        gates, rows = columns_at(theta, self.s, self.shift).T, self.rows(layer)
        vectors = np.linalg.lstsq(gates, rows, rcond=None)[0]
        return np.asarray(vectors), float(np.linalg.norm(rows - gates @ vectors))

    def off_a_mean(self, layer: LayerMap) -> float:
        """Return what answers differ by from those of heads that weigh all tokens alike."""
        whole, *rows = self.rows(layer)
        differ = np.array(rows) - scipy.special.expit(self.shift)[:, None] * whole
        return float(np.linalg.norm(differ, axis=1).max() / np.linalg.norm(whole))

    def joined(self, more: CopiedAnswers) -> CopiedAnswers:
        """Put further answers of the same offset behind these."""
        b, s, copies, y = (
            np.concatenate(parts) for parts in zip(self._rows(), more._rows(), strict=True)
        )
        return CopiedAnswers(self.a, b, s, copies, y)

    def _rows(self) -> tuple[Array, ...]:
        return self.b, self.s, self.copies, self.y


@dataclass(frozen=True, slots=True)
class SoftGates:
    """All answers of soft gates that the maps M_h are computed from.

    Attributes
    ----------
    single : AffineAnswers
        Of single tokens.
    offsets : tuple of CopiedAnswers
        The base a_1, and a_j that differ from it in orthonormal directions of their own.
    theta : tuple of ndarray (H, q)
        The gates of each, heads in one order.
    ranks : tuple of int
        r_h.
    whole : bool
        Whether every M_h is read in all directions.
    """

    single: AffineAnswers
    offsets: tuple[CopiedAnswers, ...]
    theta: tuple[Array, ...]
    ranks: tuple[int, ...]
    whole: bool

    def layer(self) -> LayerMap:
        """Return c and M."""
        return self.single.layer()

    def vectors(self) -> Array:
        """Return all M_h a_j, (J, H, m)."""
        layer = self.layer()
        return np.array(
            [
                one.vectors(layer, one.refined(layer, theta))[0]
                for one, theta in zip(self.offsets, self.theta, strict=True)
            ]
        )

    def spans(self) -> Array:
        """Return M_h of orthonormal directions, (H, J, m)."""
        base, *others = self.vectors()
        lengths = np.linalg.norm(self._steps(), axis=1)
        beside = (v - base for v in others)
        return np.stack([v / n for v, n in zip([base, *beside], lengths, strict=True)], axis=1)

    def _steps(self) -> Array:
        base = self.offsets[0].a
        return np.array([base, *(one.a - base for one in self.offsets[1:])])

    def solved(self) -> HeadMaps:
        """Compute all M_h."""
        spans = self.spans()
        if not self.whole:
            ranges = [leading(span, r) for span, r in zip(spans, self.ranks, strict=True)]
            return HeadMaps.of_spans(ranges, self.layer())
        steps = self._steps()
        directions = steps / np.linalg.norm(steps, axis=1, keepdims=True)
        return HeadMaps.of_directions(directions, spans, self.ranks)


# Length of offsets, relative to the longest tokens; query tokens take the rest. A step ``spread``
# as long is added to offsets.
_OFFSET = 0.4
# Beside one query token answers differ from those of a mean by no more than this share where
# weights are moderate: by half where they are 0 or 1.
_MODERATE = 0.25
# Shortest query tokens, relative to the longest.
_NEAREST = 0.5
# Singular values below so many times an answer's noise are noise.
_RANK_NOISE = 30.0
# Gates may be so many times as far from the span as the noise is of the answers, in turn until
# there are as many as heads: a weak head is off by more, and none by more than that.
_OFF_SPAN, _MOST_OFF = (10.0, 1e2, 1e3, 1e4, 1e5), 1e-2
# What the gates found leave of the answers, at most, in multiples of the noise: one gate that is
# wrong leaves a share of the answers.
_EXPLAINED = 30.0
# Where answers differ from those of a mean by less, logits are below 1/20: gates are straight lines
# but for shares of 1e-4, and sums of some pass for others.
_AS_A_MEAN = 1e-2
# Heads are sought near their gates at the base first, with so many starts for each, and then
# anywhere.
_NEAR_STARTS = 8
# Step between offsets, relative to the base. Larger: smaller errors of what M_h makes of steps;
# smaller: M_h a_j and logits there are nearer in direction to those of the base.
_SPREAD = 0.75
# Offsets beyond the mean rank of the heads: their singular values show the rank.
_SPARE_OFFSETS = 4
# Singular values of a range so many times what drawn errors make are none of errors.
_RANGE_NOISE = 30.0
# A vector whose leverage on its head's range is this near to 1 is of another head: one that looks
# more like this one at that offset. How often such vectors are exchanged.
_ALONE, _EXCHANGES = 1e-6, 3
# Smallest singular value of all ranges together with which their sum is parted.
_INDEPENDENT = 1e-6


class BaseOffset(NamedTuple):
    """What the first offset shows."""

    answers: CopiedAnswers
    theta: Array
    """(H, q), every head's gates."""
    vectors: Array
    """(H, m), every M_h a_1."""
    plane: Array
    """(q − 1, d), orthogonal rows, as long as query tokens may be."""

    def typical(self) -> tuple[float, float]:
        """Return typical logits of unit keys, of the strongest head, and by its bias alone."""
        a = float(np.linalg.norm(self.answers.a))
        sizes = np.linalg.norm(self.plane, axis=1)
        slopes = np.sqrt(np.mean((self.theta[:, 1:] / sizes) ** 2, axis=1))
        return float(slopes.max()) / a, float(np.abs(self.theta[:, 0]).max()) / a


@dataclass(frozen=True, slots=True)
class SoftGateReading:
    """What maps are read with."""

    tokens: TokenMapAnswers
    layer: LayerMap
    noise: AnswerNoise
    radius: float
    """Tokens are no longer than this."""
    most: int
    """Heads at most."""
    rng: np.random.Generator

    def run(self, whole: bool = False) -> Asking[tuple[BaseOffset, SoftGates]]:
        """Find all heads beside one offset, and their maps, by tokens of moderate weights."""
        try:
            return (yield from self._read(self.radius, whole))
        except (ModelMismatch, NotIdentifiable) as refusal:
            if refusal.reason == Reason.HEADS_WEIGH_AS_A_MEAN.name:
                raise  # shorter tokens show less
            refused = refusal
        for length in (yield from self._moderate()):
            try:
                return (yield from self._read(length, whole))
            except (ModelMismatch, NotIdentifiable):
                continue
        raise refused

    def again(self, base: BaseOffset, whole: bool) -> Asking[tuple[BaseOffset, SoftGates]]:
        """Find all heads once more, beside another offset as long."""
        return (yield from self._read(float(np.linalg.norm(base.answers.a)) / _OFFSET, whole))

    def _read(self, length: float, whole: bool) -> Asking[tuple[BaseOffset, SoftGates]]:
        base = yield from self._base_at(length)
        return base, (yield from self.maps(base, whole))

    def _moderate(self) -> Asking[list[float]]:
        """Ask one query token at each of many lengths; return some at which no weight is hard."""
        lengths = self.radius * 2.0 ** -np.arange(1, 1 + limits.SOFT_PILOTS)
        drawn = self.rng.standard_normal((2, len(lengths), self.layer.M.shape[1]))
        a, b = drawn * (lengths / np.linalg.norm(drawn, axis=2))[..., None]
        a, b = _OFFSET * a, (1 - _OFFSET) * b
        pairs = np.stack([a + b, b], axis=1)
        [y] = yield [Sequences(pairs, phase="heads, lengths", purpose="pilot")]
        whole = a @ self.layer.heads.T
        size = np.linalg.norm(whole, axis=1)
        off = np.linalg.norm(self.layer.beyond(y, b) - whole / 2, axis=1)
        hard = (off > _MODERATE * size) & (size > _RANK_NOISE * self.noise.of(y))
        first = 1 + int(np.max(np.flatnonzero(hard), initial=-1))
        return list(lengths[first : first + limits.SOFT_LENGTHS])

    # -- the first offset

    def _base_at(self, reach: float) -> Asking[BaseOffset]:
        d = self.layer.M.shape[1]
        count = min(limits.SOFT_COORDINATES, d)
        frame = np.linalg.qr(self.rng.standard_normal((d, 1 + min(count, d - 1))))[0].T
        a = _OFFSET * reach * frame[0]
        # in one dimension all tokens lie along the offset
        plane = (reach - np.linalg.norm(a) * (1 + _SPREAD)) * (frame[1:] if d > 1 else frame)
        answers = yield from self._asked([a], plane, limits.SOFT_FIRST, "heads")
        [found] = answers
        while True:
            K = len(found.y)
            rank = self._rank(found)
            if rank <= K - limits.SOFT_TESTED_BY - len(plane):
                break
            if rank > self.most + limits.SOFT_TESTED_BY:
                raise Reason.MORE_HEADS.error(heads=f"{rank} or more", most=self.most)
            [more] = yield from self._asked([a], plane, K, "heads")
            found = found.joined(more)
        if rank > self.most:
            raise Reason.MORE_HEADS.error(heads=f"{rank} or more", most=self.most)
        theta = self._searched(found, rank, np.zeros((0, 1 + len(plane))))
        if theta is None:
            self._refuse_a_mean(found)
            raise Reason.SOFT_GATES_UNFOUND.error(rank=rank)
        return BaseOffset(found, theta, found.vectors(self.layer, theta)[0], plane)

    def _refuse_a_mean(self, answers: CopiedAnswers) -> None:
        if (off := answers.off_a_mean(self.layer)) < _AS_A_MEAN:
            known = {"c": self.layer.c, "M": self.layer.M}
            raise Reason.HEADS_WEIGH_AS_A_MEAN.error(known, off=off)

    def _rank(self, answers: CopiedAnswers) -> int:
        """Count singular values above the errors."""
        rows = answers.rows(self.layer)
        floor = _RANK_NOISE * float(np.max(self.noise.of(answers.y)))
        if np.linalg.norm(rows[1:]) <= floor:
            raise Reason.FIRST_TOKEN_DOES_NOT_COUNT.error({"c": self.layer.c, "M": self.layer.M})
        return int(np.count_nonzero(np.linalg.svd(rows, compute_uv=False) > floor))

    def _searched(self, answers: CopiedAnswers, heads: int, near: Array) -> Array | None:
        """Find the gates of so many heads, or nothing; ``near`` are likely places."""
        span, singular = answers.span(self.layer, heads)
        if len(singular) < heads or not singular[heads - 1]:
            return None
        error = float(np.max(self.noise.of(answers.y))) * np.sqrt(len(answers.y))
        allowed = [min(times * error / singular[0], _MOST_OFF) for times in _OFF_SPAN]
        q = answers.s.shape[1]
        drawn = self.rng.standard_normal
        # another offset's logits are as far from the base's as the offset is
        far = _SPREAD * float(np.sqrt(np.mean(near**2))) if len(near) else 0.0
        around = [near + far * drawn(near.shape) for _ in range(_NEAR_STARTS)]
        few = np.vstack([near, *around])
        anywhere = _STARTS + _STARTS_PER_HEAD * heads
        many = _STARTS_SPREAD * drawn((anywhere, q))
        ends = np.zeros((0, q)), np.zeros(0)
        for starts in (few, many) if len(near) else (many,):
            found = nearest_gates(span, answers.s, answers.shift, starts)
            joined = [np.concatenate(parts) for parts in zip(ends, found, strict=True)]
            ends = joined[0], joined[1]
            for most in allowed:
                theta = distinct(Ends(*ends), most)
                if len(theta) == heads and self._explained(answers, theta):
                    return theta
        return None

    def _explained(self, answers: CopiedAnswers, theta: Array) -> bool:
        left = answers.vectors(self.layer, theta)[1]
        error = float(np.max(self.noise.of(answers.y))) * np.sqrt(len(answers.y))
        return bool(left <= _EXPLAINED * error)

    # -- the others

    def maps(self, base: BaseOffset, whole: bool) -> Asking[SoftGates]:
        """Ask offsets until every range is known, or in all directions."""
        d, H = self.layer.M.shape[1], len(base.theta)
        least = _RANK_NOISE * self.noise.relative * np.linalg.norm(self.layer.heads)
        total = int(np.linalg.matrix_rank(self.layer.heads, tol=least))
        count = -(-total // H) + _SPARE_OFFSETS - 1
        along = base.answers.a / np.linalg.norm(base.answers.a)
        directions = along[:, None]
        single = AffineAnswers(self.tokens, self.layer.residual)
        found = SoftGates(single, (base.answers,), (base.theta,), (), False)
        while True:
            count = d - 1 if whole else min(count, d - 1)
            fresh = self.rng.standard_normal((d, count + 1 - directions.shape[1]))
            known = directions.shape[1]
            directions = np.linalg.qr(np.hstack([directions, fresh]))[0]
            found = yield from self._more(base, found, directions[:, known:].T)
            found = self._ranked(found)
            if count == d - 1:
                return replace(found, whole=whole or not self._independent(found))
            if max(found.ranks) <= count:
                if self._independent(found):
                    return found
                count = d
            count *= 2

    def _more(self, base: BaseOffset, found: SoftGates, directions: Array) -> Asking[SoftGates]:
        """Ask offsets a step from the base in these directions."""
        if not len(directions):
            return found
        H = len(base.theta)
        length = np.linalg.norm(base.answers.a)
        offsets = list(base.answers.a + _SPREAD * length * directions)
        # with few heads, fewer coordinates leave enough equations and fewer unknowns
        plane = base.plane[: max(1, min(len(base.plane), H))]
        near = base.theta[:, : 1 + len(plane)]
        K = H + len(plane) + limits.SOFT_SPARE_TOKENS
        answers = yield from self._asked(offsets, plane, K, "maps")
        theta = [self._matched(base, one, near) for one in answers]
        for _ in range(limits.SOFT_AGAIN):
            lost = [k for k, one in enumerate(theta) if one is None]
            if not lost:
                break
            more = yield from self._asked(
                [offsets[k] for k in lost], plane, K, "maps, again", "again"
            )
            for k, one in zip(lost, more, strict=True):
                answers[k] = answers[k].joined(one)
                theta[k] = self._matched(base, answers[k], near)
        sure = [k for k, one in enumerate(theta) if one is not None]
        if len(sure) < len(theta):
            self._refuse_a_mean(base.answers)
            raise Reason.SOFT_GATES_UNFOUND_ELSEWHERE.error(
                lost=len(theta) - len(sure), offsets=len(theta), heads=H
            )
        return replace(
            found,
            offsets=(*found.offsets, *answers),
            theta=(*found.theta, *(one for one in theta if one is not None)),
        )

    def _matched(self, base: BaseOffset, answers: CopiedAnswers, near: Array) -> Array | None:
        """Find the gates of an offset, in the order of the base's heads."""
        theta = self._searched(answers, len(near), near)
        if theta is None:
            return None
        vectors, _ = answers.vectors(self.layer, theta)
        sure = alike(base.vectors, vectors) + alike(near, theta)
        return theta[scipy.optimize.linear_sum_assignment(-sure)[1]]

    # -- asking

    def _asked(
        self, offsets: list[Array], plane: Array, count: int, phase: str, purpose: Purpose = "data"
    ) -> Asking[list[CopiedAnswers]]:
        """Ask each offset beside ``count`` query tokens of its own, one family per copies."""
        total = len(offsets) * count
        drawn = self.rng.standard_normal((total, len(plane)))
        sizes = self.rng.uniform(_NEAREST, 1, (total, 1))
        s = sizes * drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
        b, a = s @ plane, np.repeat(np.array(offsets), count, axis=0)
        pairs = np.stack([a + b, b], axis=1)
        kinds = np.array(limits.SOFT_COPIES)
        # every offset gets every kind of copies, in an order of its own
        kind = np.argsort(self.rng.random((len(offsets), count)), axis=1).reshape(-1) % len(kinds)
        used = np.unique(kind)
        asked: Round = [
            Copies.of(Sequences(pairs[kind == k], phase=phase, purpose=purpose), kinds[k])
            for k in used
        ]
        answers = yield asked
        y = np.zeros((total, len(self.layer.c)))
        for k, one in zip(used, answers, strict=True):
            y[kind == k] = one
        design = np.hstack([np.ones((total, 1)), s])
        parts = (np.reshape(x, (len(offsets), count, -1)) for x in (b, design, kinds[kind], y))
        return [CopiedAnswers(a_j, *one) for a_j, *one in zip(offsets, *parts, strict=True)]

    # -- ranks

    def _ranked(self, found: SoftGates) -> SoftGates:
        """Count the singular values of each head's range that are above what errors make.

        Vectors that are alone with their direction are another head's, and exchanged with it.
        """
        for _ in range(1 + _EXCHANGES):
            spans = found.spans()
            moved = with_errors(found, self.noise, self.rng).spans() - spans
            ranks, alone = [], np.zeros(spans.shape[:2], dtype=bool)
            for h, (span, error) in enumerate(zip(spans, moved, strict=True)):
                left, singular, _ = np.linalg.svd(span, full_matrices=False)
                noise = _RANGE_NOISE * float(np.linalg.norm(error, 2))
                ranks.append(max(1, int(np.count_nonzero(singular > noise))))
                leverage = np.linalg.norm(left[:, : ranks[-1]], axis=1)
                alone[h] = (leverage > 1 - _ALONE) & (ranks[-1] < len(span))
            found = replace(found, ranks=tuple(ranks))
            exchanged = self._exchanged(found, alone)
            if exchanged is None:
                break
            found = exchanged
        return found

    def _exchanged(self, found: SoftGates, alone: Flags) -> SoftGates | None:
        """Exchange heads at offsets where several have a vector outside what others span."""
        changed, theta = False, list(found.theta)
        vectors = found.vectors()
        for j in np.flatnonzero(alone.sum(axis=0) > 1):
            heads = np.flatnonzero(alone[:, j])
            cost = np.zeros((len(heads), len(heads)))
            for k, h in enumerate(heads):
                others = np.delete(vectors[:, h], j, axis=0)
                U = leading(others, min(found.ranks[h] - 1, len(others)))
                cost[k] = _outside(vectors[j, heads], U)
            order = scipy.optimize.linear_sum_assignment(cost)[1]
            changed = changed or bool(np.any(order != np.arange(len(heads))))
            theta[j] = theta[j].copy()
            theta[j][heads], vectors[j, heads] = theta[j][heads[order]], vectors[j, heads[order]]
        return replace(found, theta=tuple(theta)) if changed else None

    def _independent(self, found: SoftGates) -> bool:
        """Tell whether the heads' ranges are, well enough for the sum of all to be parted."""
        if sum(found.ranks) > len(self.layer.c):
            return False
        U = np.concatenate(list(found.solved().U), axis=1)
        return float(np.linalg.svd(U, compute_uv=False)[-1]) > _INDEPENDENT


def alike(rows: Array, others: Array) -> Array:
    """Return how surely rows and other rows are along one line: of zeros, 0.

    −log of about the probability that random ones are as near. What a map of rank 1 makes of two
    offsets is along one line and of either sign: that tells more than any cosine short of 1.
    """
    sizes = np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(others, axis=1)
    cosines = rows @ others.T / np.maximum(sizes, TINY)
    sines = np.maximum(1 - cosines**2, UNIT)
    return np.asarray(-(rows.shape[1] - 1) / 2 * np.log(sines))


def _outside(rows: Array, U: Array) -> Array:
    """Return which share of each row is outside the span of orthonormal columns U."""
    away = np.linalg.norm(rows - rows @ U @ U.T, axis=1)
    return np.asarray(away / np.maximum(np.linalg.norm(rows, axis=1), TINY))
