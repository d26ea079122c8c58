"""A head with positions and biases: what the lift of tokens to (x, 1) adds to the readings.

With offsets a, query tokens b, u = Q b + b_q and everything as long as it is asked,

    [a + b; b]      t = a·KᵀR(1)u + (K b + b_k)·(R(1) − I)u          columns: offsets (a, 1)
    [a + b; 0; b]   t = a·KᵀR(2)u + (K b + b_k)·(R(2) − I)u          r offsets in the span of Kᵀ, 1
    [a + b; b]      t = ((K(a + b) + b_k)·R(1) − (K b + b_k))·u      r offsets, all other tokens

The last parts of the first two depend on b alone: one offset more tells them, and they tell b_k. A
zero token between weighs e^ζ beside b, ζ = (K b + b_k)·(R(1) − I)u − b·KᵀR(1)u. When keys, b_k and
the planes are known, r logits tell u of every other token, 0 among them, which tells b_q.

*Queries*: r(d + 1) + r(r + 1) + r(d − r + 1) = 2dr + 3r. Source: beyond Theorem 5.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import NotIdentifiable
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.single_head.column_space import LowRankProbes
from unsoftmax.learners.single_head.distances import (
    PositionedReading,
    StepScores,
    Table,
    TurnedKeys,
    ask_spaced,
)
from unsoftmax.measure import offsets
from unsoftmax.measure.logit_grid import Exponents, LogitGrid, at_query_scale, even
from unsoftmax.measure.offsets import DENSE_GRID
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.probes import Array
from unsoftmax.refusals import Reason, reworded
from unsoftmax.solve.skeleton import rank_by_gap
from unsoftmax.solve.turning_planes import turning_planes

PILOTS = 4
"""Queries for each length tried."""
LENGTHS = 8
"""Lengths tried at most."""
_LOWERED = 3
"""Octaves by which tokens are shortened where a pilot is saturated."""
_LARGEST = 8.0
"""Larger logits count as saturated: among thousands some are five times as large as three."""
_WANTED = 0.4
"""Root mean square of the pilots' logits. W is read within a factor of ten of its best from a
quarter of this to four times as much; larger logits of a thousand lose digits."""
_ABOVE = 4.0
"""Where it is this many times more, tokens are made shorter."""
_BELOW = 8.0
"""Where it is this many times less, tokens are made longer: a few pilots may be small by chance,
and logits that are too large cost more than those that are too small."""
_DEPENDENT = 1e-12
"""Columns of which a combination is smaller than this share of the largest depend on each other,
and the rank is below the one given,"""
_GAP = 2.0**10
"""if the next larger singular value is so many times as large: beside biases in which W drowns
several are small, whatever the rank is."""
UNREAD = "logits are out of the answers' reach"
_LARGE = (
    "Large biases are a possible reason: they hide short tokens, long tokens saturate the "
    "softmax, and no length in between keeps all logits moderate."
)


@dataclass(frozen=True, slots=True)
class KeySide:
    """Keys with biases, and queries of some tokens: all that the other tokens' are read with."""

    K: Array
    k_bias: Array
    rotary: Rotary
    queries: Array
    """u_b, (m, rows of K)."""

    def rows(self, a: Array, b: Array) -> Array:
        """Return M of t = M u_b for tokens a (n, d) before b."""
        keys = self.rotary.turned(a @ self.K.T + self.k_bias, np.array(-1.0))
        return np.asarray(keys - (self.K @ b + self.k_bias))


@dataclass(frozen=True, slots=True)
class LiftedAnswers:
    """All that the head is solved from; ``spaced`` and ``other`` are None until they are asked."""

    values: Values
    near: Table
    """d + 1 offsets; r query tokens."""
    spaced: Table | None = None
    """r + 1 offsets, the same tokens, a zero between."""
    other: Table | None = None
    """r offsets; the other query tokens and 0, which is the last."""

    def assuming(self, values: Values) -> LiftedAnswers:
        """Assume other values and another precision."""
        return replace(self, values=values)

    def columns(self) -> tuple[Array, Array]:
        """Return KᵀR(1)u of the first query tokens, (d, r), and what b adds to their logits."""
        return self.near.solved(self.near.logits(self.values))

    def steps(self) -> tuple[Array, list[Array], Array]:
        """Return a basis B of the span of Kᵀ, Bᵀ KᵀR(Δ)u, and what b adds, at Δ = 1 and 2."""
        assert self.spaced is not None
        u, here = self.columns()
        basis = np.linalg.qr(u)[0]
        zeta = here - np.einsum("md,dm->m", self.near.b, u)
        farther, there = self.spaced.solved(self.spaced.logits(self.values, zeta), basis)
        return basis, [basis.T @ u, farther], np.append(here, there)

    @property
    def turn(self) -> Array:
        """T, (r, r)."""
        _, (one, two), _ = self.steps()
        return np.asarray(np.linalg.solve(one.T, two.T).T)

    def keys(self, still: float, given: Array | None = None) -> KeySide:
        """Return K, the frequencies, b_k, and the queries of the first tokens."""
        basis, (one, _), _ = self.steps()
        planes = turning_planes(self.turn, still)
        keys = TurnedKeys.of(basis, planes, planes.angles if given is None else given)
        queries = keys.queries(one)
        turned = [keys.rotary.turned(queries, np.array(n)) for n in (1.0, 2.0)]
        return KeySide(keys.K, self._key_bias(keys.K, queries, turned), keys.rotary, queries)

    def _key_bias(self, K: Array, queries: Array, turned: list[Array]) -> Array:
        """Return b_k of the first tokens' queries, and of these one and two tokens on."""
        _, _, added = self.steps()
        moves = [farther - queries for farther in turned]
        own = np.einsum("nmr,mr->nm", moves, self.near.b @ K.T).ravel()
        return np.asarray(np.linalg.lstsq(np.vstack(moves), added - own, rcond=None)[0])

    def head(self, still: float, given: Array | None = None) -> RotaryHead:
        """Return the head."""
        side = self.keys(still, given)
        Q, q_bias = self._queries(side.queries, side.rows)
        biases = {"k_bias": side.k_bias, "q_bias": q_bias}
        return RotaryHead(side.K, Q, self.values.v, side.rotary, **biases, c=self.values.c)

    def _queries(
        self, queries: Array, rows: Callable[[Array, Array], Array]
    ) -> tuple[Array, Array]:
        """Return Q and b_q of the first tokens' queries, and of what is M in t = M u_b beside b."""
        assert self.other is not None
        other, logits = self.other, self.other.logits(self.values)
        if not np.all(np.isfinite(logits)):
            raise np.linalg.LinAlgError(UNREAD)
        each = zip(other.alpha, other.b, logits, strict=True)
        solved = [
            np.linalg.lstsq(rows(alpha * other.a + b, b), t, rcond=None)[0] for alpha, b, t in each
        ]
        *every, q_bias = [*queries, *solved]
        tokens = np.vstack([self.near.b, other.b[:-1]])
        return np.linalg.solve(tokens, np.array(every) - q_bias).T, q_bias

    def at(self, distances: Sequence[float]) -> list[Array]:
        """Return W(Δ) with biases as it was read, T^Δ in the place of R(Δ)."""
        basis, (one, two), _ = self.steps()
        T = self.turn
        if not np.all(np.isfinite(T)):
            raise np.linalg.LinAlgError(UNREAD)
        queries = np.asarray(np.linalg.solve(T, one).T, np.float64)
        k_bias = self._key_bias(basis.T, queries, [one.T, two.T])

        def rows(a: Array, b: Array) -> Array:
            return np.asarray((a @ basis + k_bias) @ T - (b @ basis + k_bias))

        Q, q_bias = self._queries(queries, rows)
        scores = StepScores(basis, T, np.column_stack([Q, q_bias]), k_bias)
        return [scores.at(n) for n in distances]

    def moved(self, rng: np.random.Generator) -> LiftedAnswers:
        """Move all answers, v and c by as much as they may be off, of either sign."""
        assert self.spaced is not None
        assert self.other is not None
        head = self.head(0.0)
        asked = (self.near, self.spaced, self.other)
        tables = (one.moved(rng, self.values, head) for one in asked)
        return LiftedAnswers(self.values.moved(rng), *tables)


def read_lifted(
    probes: LowRankProbes, rank: int, given: Rotary | None, rng: np.random.Generator
) -> Asking[PositionedReading]:
    """Read the head of this rank.

    Raises
    ------
    ModelMismatch
        The rank of keys or queries is lower, or their positions are not rotary.
    NotIdentifiable
        Logits are out of the answers' reach, or leave open how scores turn.
    """
    offset_rows, tokens = _lifted(probes.Z.made()), probes.tokens(np.arange(rank))
    grid = probes.grid(offset_rows, tokens, even, "W, columns")
    k = yield from _pilots(grid)
    j, i = np.nonzero(np.isnan(grid.y))
    yield from grid.ask_some(j, i, np.full(len(j), k), "data")
    yield from grid.retry(np.full(rank, k), 0)
    answers = LiftedAnswers(grid.values, Table.of(grid))
    v, basis = grid.values.v, _basis(answers.columns()[0])
    direction = v / np.linalg.norm(v)
    within = offsets.balanced(basis.T @ direction, rng).made() @ basis.T + direction
    rows = np.round(within / DENSE_GRID) * DENSE_GRID
    alpha, beta = even(np.full(rank, k))
    spaced = yield from ask_spaced(_lifted(rows), tokens, alpha, beta)
    answers = replace(answers, spaced=spaced)
    if not np.all(np.isfinite(answers.turn)):
        raise Reason.LOGITS_TWO_APART_OUT_OF_REACH.error({"v": v, "c": grid.values.c}, also=_LARGE)
    rest = np.vstack([probes.T.made()[rank:], np.zeros((1, probes.dim))])
    split = at_query_scale(beta[0])
    other = replace(probes, values=grid.values).grid(rows, rest, split, "W, rows")
    best = _scales(answers.keys(0.0), rows, beta[0] * rest, k)
    yield from other.ask(slice(None), slice(None), best)
    yield from other.retry(best, 0)
    answers = replace(answers, other=Table.of(other))
    try:
        return PositionedReading.of(other.values, answers.assuming, given, True)
    except NotIdentifiable as refused:
        raise reworded(refused, f"{refused} {_LARGE}") from None


def _pilots(grid: LogitGrid) -> Asking[int]:
    """Find the scale at which logits are moderate, and leave a few answers at it."""
    tokens, count = grid.shape
    i = (np.arange(min(PILOTS, count)) - 1) % count
    j = np.arange(len(i)) % tokens
    # logits of a random W of norm √d are s²/√d
    k, before = 2 * int(np.round(np.log2(_WANTED * np.sqrt(count - 1)) / 2)), np.inf
    for tried in range(LENGTHS):
        yield from grid.ask_some(j, i, np.full(len(i), k), "again" if tried else "pilot")
        t = grid.gates().logit[j, i]
        largest = float(np.max(np.where(np.isfinite(t), np.abs(t), np.inf)))
        if largest > _LARGEST:
            if largest > before / 2:  # biases alone make it so
                k += 2 * _LOWERED
                break
            before, k = largest, k - 2 * _LOWERED
            continue
        ratio = max(float(np.sqrt(np.mean(t**2))), 2.0**-40) / _WANTED
        if 1 / _BELOW <= ratio <= _ABOVE:
            return k
        # logits are quadratic in the length of tokens, or less
        k -= 2 * int(np.ceil(np.log2(ratio) / 2))
    yield from grid.ask_some(j, i, np.full(len(i), k), "again")
    return k


def _lifted(rows: Array) -> Array:
    """Return rows with one more, opposite to their mean: all (row, 1) are independent."""
    last = np.round(-np.mean(rows, axis=0) / DENSE_GRID) * DENSE_GRID
    return np.vstack([rows, last])


def _basis(columns: Array) -> Array:
    """Return a basis of the columns' span; refuse a rank above theirs."""
    basis, R = np.linalg.qr(columns)
    singular = np.asarray(np.linalg.svd(R, compute_uv=False))
    rank = rank_by_gap(singular, share=_DEPENDENT)
    if 0 < rank < len(singular) and singular[rank - 1] > _GAP * singular[rank]:
        raise Reason.RANK_BELOW_PLANES.error(rank=rank, assumed=len(singular))
    return np.asarray(basis)


def _scales(side: KeySide, rows: Array, tokens: Array, k: int) -> Exponents:
    """Choose the scale of offsets beside each further query token, of three.

    At one alone some token's equations are singular by chance.
    """

    def weakest(scale: int, b: Array) -> float:
        alpha = 2.0 ** (scale - k // 2)
        return float(np.linalg.norm(np.linalg.pinv(side.rows(alpha * rows + b, b) / alpha), 2))

    best = [min((k, k - 1, k + 1), key=lambda one: weakest(one, b)) for b in tokens]
    return np.array(best, dtype=np.int64)
