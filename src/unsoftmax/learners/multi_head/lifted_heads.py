"""Several heads with positions and biases, as the lift of tokens to (x, 1) reads them.

With keys K x + b_k and queries q(b) = Q b + b_q, two tokens are answered by

    f([(a+b); b]) = c + b·Σv + Σ_h (a·v_h) σ(a·u_h + s_h),
    u_h = KᵀR(1) q(b),    s_h = (K b + b_k)·(R(1) − I) q(b),

as heads without positions answer, but for the *shift* s_h: scores do not vanish with a. So

    half a circle of huge a          sees no shift: its jumps are where a·u_h = 0
    every crossing at a and −a       half the difference of two logits is a·u_h, half the sum s_h
    windows of d + 1 rows            (u_h, s_h) at b, and at b + t q
    Σ ±v_h = Σv                      tells (u, s, v) from (−u, −s, −v); as [b; a+b; b] does, where
                                     a second b weighs on one side
    [a; z; b]                        the same two tokens apart (`second_distance`)
    windows at the other b + t q     r rows each: K, b_k and the planes being known, a logit is
                                     a·u + s = ((K(a + b) + b_k)·R(1) − (K b + b_k)) q(b)

All heads share the tokens b + t q: what moves a head's nearly shut gate is then known exactly. Only
as many directions q are read in full as span W_h(1).

With B the span of Kᵀ and U₁, U₂ the columns Bᵀ KᵀR(1) q, Bᵀ KᵀR(2) q at r query tokens,

    T = U₂ U₁⁻¹ = P R(1) P⁻¹,    Kᵀ = B P,    q(b) = R(−1) P⁻¹ Bᵀ u(b),
    b_k·(R(1) − I) q = s − b·Kᵀ(R(1) − I) q,    b_k·(R(2) − I) q = s₂ + b·Kᵀq.

The last are twice as many equations as unknowns: what they miss shows a search that went wrong. Q
comes from how q(b) moves with b, b_q = q(b) − Q b.

*Queries*: 2dr for each head, r(r + 1) more for W(2), and what heads without positions take to be
found. Source: beyond Proposition 7.1 of arXiv 2601.16873; positions are in no paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.columns import read_columns, telling_rows
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head.second_distance import NearHeads, OpenedAnswers, rank_of
from unsoftmax.learners.multi_head.token_search import SoughtHeads, TokenSearch
from unsoftmax.learners.multi_head.window_sweeps import UNSETTLED, TokenHeads, WindowAnswers, swept
from unsoftmax.learners.single_head.distances import DRAWN, TurnedKeys
from unsoftmax.learners.single_head.lifted import KeySide
from unsoftmax.models.arrays import TINY
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.probes import Array, Sequences
from unsoftmax.solve.turning_planes import turning_planes

# Values with their signs add up to Σv to this share of their size.
SUMMED = 1e-6


class UnseenValues(CoincidentJumps):
    """Values that switch, with their signs, do not add up to Σv."""


@dataclass(frozen=True, slots=True)
class LiftedHeads:
    """All heads near b, with the signs that they have."""

    near: NearHeads
    answers: WindowAnswers
    """To the heads' windows at all directions q (d, d); only the first are asked in full."""
    base_off: Array
    """How far each entry of ``near.base`` may be off."""
    columns_off: Array

    def rank(self, h: int) -> int:
        """Return the rank of a head's keys."""
        off = float(np.linalg.norm(self.columns_off[h, :-1]))
        return rank_of(self.near.spanning(h), off)

    def moved(self, rng: np.random.Generator) -> LiftedHeads:
        """Move all entries by as much as they may be off, of either sign."""
        base, columns = (
            one + off * rng.choice([-1.0, 1.0], off.shape)
            for one, off in ((self.near.base, self.base_off), (self.near.columns, self.columns_off))
        )
        return replace(self, near=replace(self.near, base=base, columns=columns))


# -- near b


def search_lifted(
    sought: SoughtHeads, reduced: ReducedAnswers, start: tuple[int, float], rng: np.random.Generator
) -> Asking[LiftedHeads | None]:
    """Go through all steps with one query token; see `multi_head.token_search.search`.

    None if nothing switches.

    Raises
    ------
    Exception
        One of `search_outcomes.ENDINGS`: nothing was found, another query token may do better.
    """
    one = TokenSearch.random(sought, reduced, 0.0, rng)
    windowed = yield from one.windowed(start)
    if windowed is None:
        return None
    token, logits, values = windowed
    answers = WindowAnswers.none(token, one.directions(token))
    columns = yield from read_columns(
        answers, logits, sought.rank, rng, sought.tuning.columns, spanning=True
    )
    if np.ptp(answers.t) > 0:  # some were asked again closer to b, and others' shifts not
        raise CoincidentJumps
    one.refuse_vague(token, columns)
    sign = (yield from _signs(token, logits))[:, None]
    seen = replace(token.seen, u=sign * token.seen.u, v=sign * token.seen.v)
    answers, W = replace(answers, token=replace(token, seen=seen)), sign[:, None] * columns.W
    directions, t = answers.directions[: W.shape[2]], float(answers.t.flat[0])
    v, none = sign * values.v, np.zeros(reduced.dim)
    near = NearHeads(
        reduced, v, seen.u, W, directions, token.b, t, token.length, values.error, none
    )
    return LiftedHeads(near, answers, columns.base_off, columns.off)


def _signs(token: TokenHeads, logits: Array) -> Asking[Array]:
    """Return the signs (H,) by which (u, s, v) are as they are: Σ ±v_h = Σv, as a rule.

    Values that depend on each other are asked for theirs.
    """
    v, reduced = token.seen.v[:, :-1], token.reduced
    least = np.linalg.lstsq(v.T, reduced.s, rcond=None)[0]
    if np.max(np.abs(np.abs(least) - 1)) > SUMMED:
        least = yield from _asked_signs(token, logits)
    signs = np.sign(least)
    # not so either where a sign was not read
    if not np.linalg.norm(signs @ v - reduced.s) <= SUMMED * reduced.scale:
        raise UnseenValues
    return np.asarray(signs)


def _asked_signs(token: TokenHeads, logits: Array) -> Asking[Array]:
    """Ask [b; a+b; b] in every window; return numbers of the heads' signs (H,).

    Beside a second b, which weighs e^m, the gate of a head is σ(l − log(1 + e^m)).
    """
    seen, b, reduced = token.seen, token.b, token.reduced
    d, H = reduced.dim, len(seen.u)
    A = np.array([window.a for window in seen.windows])
    # the row that shows the gate best
    slopes = np.abs(np.einsum("hie,he->hi", A, seen.v)) / np.cosh(logits / 2) ** 2
    rows = A[np.arange(H), np.argmax(slopes, axis=1)]
    a = rows[:, :d]
    X = np.stack([np.tile(b, (H, 1)), a + b, np.tile(b, (H, 1))], axis=1)
    [y] = yield [Sequences(X, phase="signs", purpose="data")]
    terms = (rows @ seen.v.T) * np.tanh(rows @ seen.u.T / 2)
    rest = terms.sum(axis=1) - np.diag(terms)
    own = np.einsum("he,he->h", rows, seen.v)
    with np.errstate(invalid="ignore", divide="ignore"):
        beside = 2 * np.arctanh((reduced.of(y, a, b) - rest) / own)
    return np.asarray(np.einsum("he,he->h", rows, seen.u) - beside)


# -- the tokens that are left, keys being known


@dataclass(frozen=True, slots=True)
class RestReadings:
    """Logits of one head at some tokens."""

    rows: list[Array]
    """a of every token, (≥ r, d)."""
    tokens: Array
    """b, (m, d)."""
    logits: list[Array]
    off: list[Array]
    """How far each may be off."""

    def queries(self, side: KeySide) -> Array:
        """Return q(b) of all tokens, (m, rows of K)."""
        solved = [
            np.linalg.lstsq(side.rows(a + b, b), logits, rcond=None)[0]
            for a, b, logits in zip(self.rows, self.tokens, self.logits, strict=True)
        ]
        return np.reshape(solved, (len(self.tokens), len(side.K)))

    def moved(self, rng: np.random.Generator) -> RestReadings:
        """Move all logits by as much as they may be off, of either sign."""
        logits = [
            one + off * rng.choice([-1.0, 1.0], off.shape)
            for one, off in zip(self.logits, self.off, strict=True)
        ]
        return replace(self, logits=logits)


def read_rest(found: LiftedHeads, sides: list[KeySide]) -> Asking[list[RestReadings]]:
    """Ask the tokens that are left; ``sides`` have what is known of each head.

    What other heads' nearly shut gates add depends on their own q(b), hence sweeps over heads.
    """
    near, answers = found.near, found.answers
    seen = answers.token.seen
    rest = np.arange(len(near.directions), len(answers.directions))
    b = near.b + near.t * answers.directions[rest]
    wanted = []
    for h, side in enumerate(sides):
        a = seen.windows[h].a
        noise = seen.error.of_logits(a, seen.v, h, a @ seen.u[h])
        # what makes (u, s) at b of a query; planes of zeros left out
        unit = np.eye(len(side.K))[: found.rank(h)]
        rows = telling_rows(a, noise, _seen(side, np.tile(near.b, (len(unit), 1)), unit).T)
        # some were asked already, to see whether earlier columns predict them
        wanted.append((h, rows, rest[~answers.asked[h][:, rest].any(axis=0)]))
    yield from answers.ask(wanted, "columns")
    shifted = np.repeat(near.base[:, :, None], len(rest), axis=2)
    readings: list[RestReadings] = []

    def read(h: int) -> RestReadings:
        rows, logits, off = [], [], []
        moves = shifted - seen.u[:, :, None]
        for place, j in enumerate(rest):
            which = np.flatnonzero(answers.asked[h][:, j])
            a = seen.windows[h].a[which]
            one, lost = seen.logits(h, a, answers.y[h][which, j, None], moves[:, :, [place]])
            if np.any(lost):
                raise CoincidentJumps
            rows.append(a[:, :-1])
            logits.append(one[:, 0])
            off.append(seen.error.of_logits(a, seen.v, h, one[:, 0]))
        return RestReadings(rows, b, logits, off)

    def sweep() -> float:
        nonlocal readings
        before = shifted.copy()
        readings = [read(h) for h in range(len(sides))]
        for h, side in enumerate(sides):
            shifted[h] = _seen(side, b, readings[h].queries(side)).T
        size = np.linalg.norm(before, axis=1)
        return float(np.max(np.linalg.norm(shifted - before, axis=1) / (size + TINY), initial=0.0))

    if swept(sweep) > UNSETTLED:
        raise CoincidentJumps
    return readings


def _seen(side: KeySide, b: Array, queries: Array) -> Array:
    """Return (u, s) at tokens b of these queries, (m, d + 1)."""
    once = side.rotary.turned(queries, np.array(1.0))
    s = np.einsum("mr,mr->m", b @ side.K.T + side.k_bias, once - queries)
    return np.column_stack([once @ side.K, s])


# -- solving


@dataclass(frozen=True, slots=True)
class LiftedReadings:
    """All that was read of one head; ``rest`` is None until it is asked."""

    found: LiftedHeads
    h: int
    basis: Array
    """B, (d, r)."""
    second: OpenedAnswers
    rest: RestReadings | None = None

    def _coordinates(self, b: Array) -> Array:
        """Return Bᵀ KᵀR(1) q at tokens (m, d) in the span of those that were read, (r, m)."""
        return np.asarray(self.basis.T @ self.found.near.at(b)[:, self.h, :-1].T)

    @property
    def turn(self) -> Array:
        """T, (r, r)."""
        here, there = self._coordinates(self.second.tokens), self.second.solved(self.basis)[0]
        return np.asarray(np.linalg.solve(here.T, there[:, :-1]).T)

    def moved(self, rng: np.random.Generator) -> LiftedReadings:
        """Move all that was read by as much as it may be off."""
        rest = None if self.rest is None else self.rest.moved(rng)
        return replace(self, found=self.found.moved(rng), second=self.second.moved(rng), rest=rest)

    def keys(self, still: float, told: Array | None = None) -> tuple[KeySide, float]:
        """Return K, b_k and the planes, with q(b) of the tokens; and what b_k misses, a share.

        Planes that turn by less than ``still`` do not turn; others by ``told`` angles if given.
        """
        near, planes = self.found.near, turning_planes(self.turn, still)
        angles = planes.angles if told is None else told
        keys = TurnedKeys.of(self.basis, planes, angles)
        K, rotary = keys.K, keys.rotary
        tokens, far = near.tokens, self.second.tokens
        at_near, at_far = (keys.queries(self._coordinates(b)) for b in (tokens, far))
        once = rotary.turned(at_near, np.array(1.0)) - at_near
        twice = rotary.turned(at_far, np.array(2.0)) - at_far
        s = near.base[self.h, -1] + near.t * np.append(0.0, near.columns[self.h, -1])
        # differences over t: these tokens are close to each other
        rows, values = (
            np.concatenate([x[:1], (x[1:] - x[:1]) / near.t])
            for x in (once, s - np.einsum("nd,nd->n", tokens, once @ K))
        )
        M, s_two = np.vstack([rows, twice]), self.second.solved(self.basis)[0][:, -1]
        y = np.append(values, s_two + np.einsum("nd,nd->n", far, at_far @ K))
        bias = np.linalg.lstsq(M, y, rcond=None)[0]
        size = max(float(np.linalg.norm(np.append(s, s_two))), TINY)
        return KeySide(K, bias, rotary, at_near), float(np.linalg.norm(M @ bias - y)) / size

    def head(self, still: float, told: Array | None = None) -> RotaryHead:
        """Return the head."""
        assert self.rest is not None
        near, (side, _) = self.found.near, self.keys(still, told)
        q = side.queries[0]
        moves = np.vstack([side.queries[1:], self.rest.queries(side)]) - q
        Q = (moves / near.t).T @ self.found.answers.directions
        biases = {"k_bias": side.k_bias, "q_bias": q - Q @ near.b}
        return RotaryHead(side.K, Q, near.v[self.h], side.rotary, **biases, c=near.reduced.c)

    def at(self, distances: Sequence[float]) -> list[Array]:
        """Return W_h(Δ) with biases of planes that all turn."""
        scores = self.head(0.0).scores
        return [scores.whole(n) for n in distances]

    def unexplained(self) -> float:
        """Return how many times more b_k misses its equations by than what was read may be off."""
        rng = np.random.default_rng(0)
        moved = [self.moved(rng).keys(0.0)[1] for _ in range(DRAWN)]
        return self.keys(0.0)[1] / max(*moved, TINY)
