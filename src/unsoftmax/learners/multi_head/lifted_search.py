"""Several heads with positions and biases at one token's distance, from scalar answers.

With keys K x + b_k and queries q(b) = Q b + b_q, two tokens are answered by

    f([(a+b); b]) = c + b·Σv + Σ_h (a·v_h) σ(a·u_h + s_h),
    u_h = KᵀR(1) q(b),    s_h = (K b + b_k)·(R(1) − I) q(b),

as heads without positions answer, but for the *shift* s_h: scores do not vanish with a. So

    half a circle of huge a          sees no shift: its jumps are where a·u_h = 0
    every crossing at a and −a       half the difference of two logits is a·u_h, half the sum s_h
    windows of d + 1 rows            (u_h, s_h) at b, and at b + t q
    Σ ±v_h = Σv                      tells (u, s, v) from (−u, −s, −v); as [b; a+b; b] does, where
                                     a second b weighs on one side

All heads share the tokens b + t q: what moves a head's nearly shut gate is then known exactly. Only
as many directions q are read so as span W_h(1): `shifted_rest` reads the others with fewer rows.

*Queries*: (d + 1)r for each head, and what heads without positions take to be found. Source:
beyond Proposition 7.1 of arXiv 2601.16873; positions are in no paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.columns import HeadColumns, read_columns
from unsoftmax.learners.multi_head.out_of_plane import SearchPlane
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head.token_search import SoughtHeads, TokenSearch
from unsoftmax.learners.multi_head.value_system import HeadValues
from unsoftmax.learners.multi_head.window_sweeps import TokenHeads, WindowAnswers, read_base
from unsoftmax.measure.windows import OffsetRoom, WindowedHeads, choose_windows, with_shift
from unsoftmax.probes import Array, Sequences

# Values with their signs add up to Σv to this share of their size.
SUMMED = 1e-6


class UnseenValues(CoincidentJumps):
    """Values that switch, with their signs, do not add up to Σv."""


@dataclass(frozen=True, slots=True)
class ShiftedHeads:
    """(u_h, s_h) of all heads at query tokens b and b + t q, with the signs that they have."""

    answers: WindowAnswers
    """To the heads' windows at all directions q (d, d); only the first are asked in full."""
    v: Array
    """(H, d)."""
    base: Array
    """(u_h, s_h) at b, (H, d + 1)."""
    columns: Array
    """What they move by from b to b + t q, over t, for the first directions (H, d + 1, n)."""
    base_off: Array
    """How far each entry may be off."""
    columns_off: Array
    v_error: float
    """Of every v_h, norm."""

    @property
    def reduced(self) -> ReducedAnswers:
        """What reduces answers."""
        return self.answers.token.reduced

    @property
    def b(self) -> Array:
        """The query token that all others are near."""
        return self.answers.token.b

    @property
    def t(self) -> float:
        """How far they are from it."""
        return float(self.answers.t.flat[0])

    @property
    def directions(self) -> Array:
        """The first q, (n, d)."""
        return self.answers.directions[: self.columns.shape[2]]

    @property
    def tokens(self) -> Array:
        """The query tokens at which all heads were read, b first, (n + 1, d)."""
        return np.vstack([self.b, self.b + self.t * self.directions])

    def at(self, b: Array) -> Array:
        """Return (u_h, s_h) of all heads at query tokens (m, d) in their span, (m, H, d + 1).

        s is linear only near by: farther away it is off by what is quadratic in it.
        """
        steps = (b - self.b) @ self.directions.T
        return np.asarray(self.base + np.einsum("hej,mj->mhe", self.columns, steps))

    def spanning(self, h: int) -> Array:
        """Return u_h at b over ‖b‖, and W_h(1) along the first directions: columns (d, n + 1)."""
        base = self.base[h, :-1] / np.linalg.norm(self.b)
        return np.column_stack([base, self.columns[h, :-1]])

    def moved(self, rng: np.random.Generator) -> ShiftedHeads:
        """Move all entries by as much as they may be off, of either sign."""

        def by(off: Array) -> Array:
            return np.asarray(off * rng.choice([-1.0, 1.0], off.shape))

        return replace(
            self, base=self.base + by(self.base_off), columns=self.columns + by(self.columns_off)
        )


def search_shifted(
    sought: SoughtHeads,
    reduced: ReducedAnswers,
    start: tuple[int, float],
    rng: np.random.Generator,
) -> Asking[ShiftedHeads | None]:
    """Go through all steps with one query token; see `multi_head.token_search.search`.

    None if nothing switches.

    Raises
    ------
    Exception
        One of `search_outcomes.ENDINGS`: nothing was found, another query token may do better.
    """
    plane = SearchPlane.random(reduced.dim, reduced.lengths.length, rng)
    one = TokenSearch(sought, reduced, plane, 0.0, rng)
    crossings = yield from one.crossings(*start)
    if not len(crossings.u):
        return None
    values, u = yield from one.values(crossings)
    token, logits = yield from _base(one, values, np.column_stack([u, crossings.shift]))
    answers = WindowAnswers.none(token, one.directions(token))
    columns = yield from read_columns(
        answers, logits, sought.rank, rng, sought.tuning.columns, spanning=True
    )
    if np.ptp(answers.t) > 0:  # some were asked again closer to b, and others' shifts not
        raise CoincidentJumps
    one.refuse_vague(token, columns)
    signs = yield from _signs(token, logits)
    return _oriented(answers, values, columns, signs)


def _base(one: TokenSearch, values: HeadValues, rough: Array) -> Asking[tuple[TokenHeads, Array]]:
    """Choose windows of d + 1 rows, and read (u, s) in them: ``rough`` (H, d + 1) beforehand."""
    reduced, b = one.reduced, one.plane.b
    u, v = rough[:, :-1], values.v
    error = reduced.errors_at(one.plane.length, values.error, u)
    step = reduced.lengths.step(error.length)
    room = OffsetRoom(step, reduced.lengths.longest(error.length, step))
    windows = choose_windows((u, v), error, room, one.rng)
    # one t for all heads: what shifts the others at a token is known at that token alone
    t = min(window.t for window in windows)
    windows = [
        with_shift(replace(window, t=t), h, rough[h], v, error) for h, window in enumerate(windows)
    ]
    beside = np.column_stack([v, np.zeros(len(v))])
    heads = WindowedHeads(rough, beside, windows, error, shifted=True)
    return (yield from read_base(TokenHeads(reduced, b, heads)))


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


def _oriented(
    answers: WindowAnswers, values: HeadValues, columns: HeadColumns, signs: Array
) -> ShiftedHeads:
    token, sign = answers.token, signs[:, None]
    seen = replace(token.seen, u=sign * token.seen.u, v=sign * token.seen.v)
    return ShiftedHeads(
        replace(answers, token=replace(token, seen=seen)),
        sign * values.v,
        seen.u,
        sign[:, None] * columns.W,
        columns.base_off,
        columns.off,
        values.error,
    )
