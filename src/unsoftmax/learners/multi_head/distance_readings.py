"""W_h(2) of all heads beside W_h(1): r² queries a head, r(r + 1) with biases.

Three tokens [a; z; b], a two before the query token b and the *filler* z one before it. Of all
heads u_g = KᵀR(1) q(b) and what logits are beside x·u_g are known. So z is chosen with

    a logit ≫ 0 for g ≠ h:          the head weighs z alone and answers z·v_g,
    −s for h, and z·v_h = 0:        head h weighs a, z and b by e^t, e⁻ˢ and 1,

and what remains of the answer is (e^t a·v_h + e⁻ˢ z·v_h + b·v_h)/(e^t + e⁻ˢ + 1), but for e⁻⁴⁰,

    t = a·KᵀR(2) q(b) + b_k·R(2) q(b) − (K b + b_k)·q(b).

r offsets in the span of Kᵀ, beside v_h, tell the first part of t at each of r query tokens, and one
more the rest, which b_k makes. Without biases there is no rest: b is as short as a and z are long.
Such z exist where the u_g are linearly independent: at most d heads; z·v_h = 0 takes one dimension
more. A head whose scores are all 0 weighs all three alike. *Source*: beyond Proposition 7.1;
positions are in no paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from unsoftmax.learners.compose import Asking, together
from unsoftmax.learners.multi_head.columns import read_columns, telling_rows
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head.token_search import SoughtHeads, TokenSearch
from unsoftmax.learners.multi_head.window_sweeps import UNSETTLED, TokenHeads, WindowAnswers, swept
from unsoftmax.learners.single_head.distances import DRAWN, TurnedKeys
from unsoftmax.learners.single_head.lifted import KeySide
from unsoftmax.measure import offsets
from unsoftmax.models.arrays import TINY
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.probes import Array, Indices, Sequences
from unsoftmax.refusals import Reason
from unsoftmax.solve.skeleton import rank_by_gap
from unsoftmax.solve.turning_planes import turning_planes


class Shut(NamedTuple):
    """How far a filler shuts heads."""

    others: float
    """Logits of the filler at heads that it shuts: what it leaves, e⁻⁴⁰, is below a roundoff."""
    own: float
    """s. Larger: a longer filler."""


# What is not known of W_h(1) moves the filler's weight at head h, which is e⁻ˢ.
SHUT = Shut(40.0, 12.0)
# With biases what shifts a head's gate is known but for what is quadratic in a query token: six
# more, and closed as much.
SHUT_BIASED = Shut(46.0, 46.0)
# Logits of fillers are larger by so many times ‖a‖‖u_g‖, since a has a logit as well, a·W_g(2) b,
# which is not known: among 16 dimensions it was up to 0.4 of that. More costs digits.
REACH = 1.5
# Where the filler's logits miss those wanted by more than this share, there is none.
MISSED = 1e-6
# Root mean square of the logits of a head's first token, if a step of distance leaves scores of
# their size; where keys are nearly dependent it makes them up to 30 times as large.
PILOT = 0.3
# The same of the others, as the first one tells ...
LOGIT = 1.0
# ... but for at most so many times the first one's length.
CHANGED = 10.0
# Tokens with larger logits are asked again with shorter offsets, with biases closer to b: weights
# near 0 and 1 have few digits.
LARGEST = 8.0
# So many times shorter, and closer.
SHORTER = 4.0
# Times that a token is asked at most.
TRIES = 8
# Draws of query tokens, of which the best is asked,
DRAWS = 64
# at these distances, in lengths of b.
SIZES = (1.0, 0.5, 0.25)
# Singular values of W_h(1) above so many times its error count to its rank.
COUNTED = 3.0


class OutOfReach(CoincidentJumps):
    """Logits of a token two before the query token that no offset brings within reach."""


@dataclass(frozen=True, slots=True)
class NearHeads:
    """(u_h, s_h) of all heads at query tokens near b: logits of [(a+b); b] are a·u_h + s_h.

    Without biases it is at all query tokens: b and all s_h are 0, and the columns those of W_h(1).
    """

    reduced: ReducedAnswers
    v: Array
    """(H, d)."""
    base: Array
    """(u_h, s_h) at b, (H, d + 1)."""
    columns: Array
    """What they move by along some directions, (H, d + 1, n)."""
    directions: Array
    """These, (n, d)."""
    b: Array
    t: float
    """How far from b the heads were read along the directions."""
    length: float
    """Of query tokens, and of steps from b to them."""
    v_error: float
    """Of every v_h, norm."""
    constant: Array
    """Values of heads whose scores are 0, (d,)."""

    @property
    def biases(self) -> bool:
        """Whether heads may have any."""
        return bool(np.any(self.b))

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
        """Return u_h at b over ‖b‖, and W_h(1) along the directions: columns (d, n + 1)."""
        return np.column_stack([self.base[h, :-1] / self.length, self.columns[h, :-1]])


def rank_of(columns: Array, error: float) -> int:
    """Return the rank of a head's keys by columns of its W_h(1), off by ``error``."""
    singular = np.asarray(np.linalg.svd(columns, compute_uv=False))
    return rank_by_gap(singular, COUNTED * error)


# -- answers to [a; z; b]


def fillers(
    u: Array, v: Array, lengths: Array | float, shut: Shut = SHUT, *, beside: Array | float = 0.0
) -> Array | None:
    """Return the shortest tokens z, (m, d), that shut all heads but the first; None if some cannot.

    Parameters
    ----------
    u : ndarray (m, G, d)
        u_g of all heads at m query tokens, none 0.
    v : ndarray (d,)
        Value vector of the first head.
    lengths : float or ndarray (m,)
        Norms of the offsets asked beside them.
    shut : Shut
        How far.
    beside : float or ndarray (m, G)
        What a filler's logits are beside z·u_g, as with biases.

    Examples
    --------
    >>> fillers(np.eye(3)[None, :2], np.ones(3), 0.0).round(9).tolist()
    [[-12.0, 40.0, -28.0]]
    """
    wanted = shut.others + REACH * np.linalg.norm(u, axis=2) * np.reshape(lengths, (-1, 1))
    wanted[:, 0] = -shut.own
    wanted = wanted - beside
    rows = u
    if u.shape[1] < u.shape[2]:
        size = np.linalg.norm(u[:, 0], axis=1) / np.linalg.norm(v)
        rows = np.concatenate([u, size[:, None, None] * v], axis=1)
        wanted = np.pad(wanted, ((0, 0), (0, 1)))
    # of length 1: heads of all sizes count alike
    norms = np.linalg.norm(rows, axis=2)
    z = np.einsum("mdg,mg->md", np.linalg.pinv(rows / norms[:, :, None]), wanted / norms)
    missed = np.abs(np.einsum("mgd,md->mg", u, z) - wanted[:, : u.shape[1]])
    return None if np.any(missed > MISSED * shut.others) else z


@dataclass(frozen=True, slots=True)
class OpenedAnswers:
    """What was read of one head two tokens before some query tokens."""

    X: Array
    """[a; z; b], (m, n, 3, d)."""
    logits: Array
    """t, (m, n)."""
    off: Array
    """How far each may be off."""
    slopes: Array
    """How much answers move with t, (m, n)."""

    @classmethod
    def of(cls, X: Array, y: Array, near: NearHeads, h: int) -> OpenedAnswers:
        """Take answers y (m, n) less c; t is NaN where an answer is no head's.

        Errors of v have no direction.
        """
        H, d = near.v.shape
        # a head without scores weighs all three alike
        rest = X[:, :, 1] @ (near.v.sum(axis=0) - near.v[h]) + X.sum(axis=2) @ near.constant / 3
        own, (a, z, b) = y - rest, np.moveaxis(X @ near.v[h], 2, 0)
        left = float(np.exp(-(SHUT_BIASED if near.biases else SHUT).own))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            t = np.log((b + left * z - (1 + left) * own) / (own - a))
            slopes = (a - own) / (1 + (1 + left) * np.exp(-t))
        longest = np.linalg.norm(X[:, :, :2], axis=3).sum(axis=2)
        wrong = near.reduced.precision.error(near.reduced.scale * longest + abs(near.reduced.c))
        wrong = wrong + near.v_error * np.sqrt(H / d) * longest
        with np.errstate(divide="ignore", invalid="ignore"):
            return cls(X, t, np.asarray(wrong / np.abs(slopes)), np.asarray(slopes))

    @property
    def tokens(self) -> Array:
        """b, (m, d)."""
        return np.asarray(self.X[:, 0, 2])

    def solved(self, basis: Array) -> tuple[Array, Array]:
        """Return Bᵀ KᵀR(2) q(b), and what t is beside where it was asked, at the query tokens.

        (m, r or r + 1); and how far each row may be off, (m,).
        """
        rows = self.X[:, :, 0] @ basis
        if rows.shape[1] > rows.shape[2]:
            rows = np.concatenate([rows, np.ones((*self.logits.shape, 1))], axis=2)
        there = np.linalg.solve(rows, self.logits[:, :, None])[:, :, 0]
        off = np.linalg.norm(np.linalg.inv(rows), 2, axis=(1, 2)) * np.linalg.norm(self.off, axis=1)
        return np.asarray(there), np.asarray(off)

    def leaking(self, heads: Sequence[RotaryHead], h: int) -> OpenedAnswers:
        """Count what the fillers leave open of other heads, and of head h, as ``heads`` have it.

        Shifts are known but roughly where a token is chosen: with large scores that is not enough.
        """
        asked = self.X.reshape(-1, *self.X.shape[2:])
        left = np.zeros(len(asked))
        for g, head in enumerate(heads):
            alpha, values = head.attention(asked), asked @ head.v
            away = np.abs(values - values[:, 1:2])
            left += alpha[:, 1] * away.max(axis=1) if g == h else np.sum(alpha * away, axis=1)
        return replace(self, off=self.off + left.reshape(self.off.shape) / np.abs(self.slopes))

    def moved(self, rng: np.random.Generator) -> OpenedAnswers:
        """Move all logits by as much as they may be off, of either sign."""
        signs = rng.choice([-1.0, 1.0], self.off.shape)
        return replace(self, logits=self.logits + signs * self.off)


# -- asking


@dataclass(frozen=True, slots=True)
class OpenedHead:
    """One head among all, read two tokens before r query tokens."""

    near: NearHeads
    h: int
    basis: Array
    """B, an orthonormal basis of the span of Kᵀ, (d, r)."""
    rows: Array
    """Offsets (r, d), with biases one more, of length about 1."""

    @classmethod
    def of(cls, near: NearHeads, h: int, rank: int, rng: np.random.Generator) -> OpenedHead:
        """Choose offsets, which all see v_h by one sign."""
        v = near.v[h]
        basis = np.linalg.svd(near.spanning(h), full_matrices=False)[0][:, :rank]
        direction = v / np.linalg.norm(v)
        within = basis.T @ direction
        rows = offsets.balanced(within, rng).made() @ basis.T + (direction - basis @ within)
        return cls(near, h, basis, np.concatenate([rows, rows[: int(near.biases)] / 2]))

    def read(self, rng: np.random.Generator) -> Asking[OpenedAnswers]:
        """Ask; where logits are large shorter offsets, and query tokens closer together."""
        (centre, x), biases = self._tokens(rng), self.near.biases
        r, n = len(x), len(self.rows)
        alpha = PILOT * np.sqrt(r) / np.linalg.norm(self._seen(centre + x)[0][:, 0], axis=1)
        X, y = np.ones((r, n, 3, x.shape[1])), np.full((r, n), np.nan)
        # the first token tells how long offsets of the others had better be
        missing = np.arange(1)
        for _ in range(TRIES):
            X[missing] = self._asked(centre + x[missing], alpha[missing])
            [given] = yield [
                Sequences(X[missing].reshape(-1, *X.shape[2:]), phase="W(2)", purpose="data")
            ]
            y[missing] = given.reshape(-1, n) - self.near.reduced.c
            found = OpenedAnswers.of(X, y, self.near, self.h)
            well = np.all(np.abs(found.logits) < LARGEST, axis=1)
            if np.all(well):
                return found
            lost = np.isin(np.arange(r), missing) & ~well
            alpha[lost] /= SHORTER
            if biases:
                x[lost] /= SHORTER
            if well[0] and len(missing) == 1 and missing[0] == 0:
                t = found.logits[0]
                # without what is beside a·u, where that was asked for
                moved = t[:-1] - (2 * t[-1] - t[0]) if biases else t
                alpha[1:] *= np.clip(LOGIT / np.sqrt(np.mean(moved**2)), 1 / CHANGED, CHANGED)
            missing = np.flatnonzero(~well) if well[0] else np.arange(1)
        raise OutOfReach

    def _tokens(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Choose a centre (d,) and steps (r, d) from there to the query tokens.

        Of some draws the one that answers tell most of: their columns u span best, fillers are
        short, and shifts small.
        """
        near, r = self.near, self.basis.shape[1]
        columns = self.basis.T @ near.spanning(self.h)[:, 1:]
        within = np.linalg.svd(columns)[2][:r] @ near.directions
        best, chosen = np.inf, None
        for centre in (near.b, self._unshifted()) if near.biases else (near.b,):
            for draw in range(DRAWS):
                # as many as there are directions are orthogonal to each other
                x = np.linalg.qr(rng.standard_normal((r, len(within))))[0] @ within
                if not near.biases:  # other heads may be blind to the span of a head's rows
                    beside = rng.standard_normal(x.shape) / np.sqrt(x.shape[1])
                    x += (beside - beside @ within.T @ within) / 2
                x *= near.length * SIZES[draw % len(SIZES)]
                u, beside = self._seen(centre + x)
                z = self._fillers(centre + x, np.zeros(r))
                if z is None:
                    continue
                open_by = np.cosh(np.clip(beside[:, 0] / 2, -300.0, 300.0)) ** 2
                lost = np.linalg.norm(z, axis=1) * open_by
                cost = float(np.linalg.norm(np.linalg.pinv(u[:, 0] @ self.basis), 2) * lost.max())
                if cost < best:
                    best, chosen = cost, (centre, x)
        if chosen is None:
            raise Reason.NO_TOKEN_SHUTS_OTHERS.error({"v": near.v})
        return chosen

    def _unshifted(self) -> Array:
        """Return where the head's own shift is about 0, no farther from b than b is long."""
        near = self.near
        shifts = self._seen(near.tokens)[1][:, 0]
        slope = (shifts[1:] - shifts[0]) / near.t @ near.directions
        step = -shifts[0] / max(float(slope @ slope), TINY) * slope
        most = near.length / max(float(np.linalg.norm(step)), TINY)
        return np.asarray(near.b + step * min(1.0, most))

    def _seen(self, b: Array) -> tuple[Array, Array]:
        """Return u_g and s_g − b·u_g of all heads, this one first, (m, H, d) and (m, H)."""
        near, d = self.near, b.shape[1]
        order = np.append(self.h, np.delete(np.arange(len(near.v)), self.h))
        shifted = near.at(b)[:, order]
        u = shifted[:, :, :d]
        return u, shifted[:, :, d] - np.einsum("md,mgd->mg", b, u)

    def _fillers(self, b: Array, longest: Array) -> Array | None:
        """Return the tokens that shut all other heads, (m, d)."""
        u, beside = self._seen(b)
        shut = SHUT_BIASED if self.near.biases else SHUT
        return fillers(u, self.near.v[self.h], longest, shut, beside=beside)

    def _asked(self, b: Array, alpha: Array) -> Array:
        """Return [a; z; b] for some query tokens, (m, n, 3, d).

        Offsets see v_h by the other sign than b does: answers then lie between values of two signs.
        """
        signs = np.where(b @ self.near.v[self.h] > 0, -1.0, 1.0)
        a = (signs * alpha)[:, None, None] * self.rows
        z = self._fillers(b, np.linalg.norm(a, axis=2).max(axis=1))
        if z is None:
            raise Reason.NO_TOKEN_SHUTS_OTHERS.error({"v": self.near.v})
        parts = np.broadcast_arrays(a, z[:, None], b[:, None])
        return np.stack(parts, axis=2)


def read_second(
    near: NearHeads, ranks: Indices, rng: np.random.Generator
) -> Asking[list[tuple[Array, OpenedAnswers]]]:
    """Read W_h(2) of all heads, of these ranks; return it with a basis of the span of each Kᵀ.

    Raises
    ------
    NotIdentifiable
        Nothing opens the heads one by one.
    OutOfReach
        Another query token may do better.
    """
    opened = [OpenedHead.of(near, h, int(r), rng) for h, r in enumerate(ranks)]
    read = yield from together([one.read(rng) for one in opened])
    return [(one.basis, found) for one, found in zip(opened, read, strict=True)]


# -- Several heads with positions and biases, as the lift of tokens to (x, 1) reads them.
#
# With keys K x + b_k and queries q(b) = Q b + b_q, two tokens are answered by
#
#     f([(a+b); b]) = c + b·Σv + Σ_h (a·v_h) σ(a·u_h + s_h),
#     u_h = KᵀR(1) q(b),    s_h = (K b + b_k)·(R(1) − I) q(b),
#
# as heads without positions answer, but for the *shift* s_h: scores do not vanish with a. So
#
#     half a circle of huge a          sees no shift: its jumps are where a·u_h = 0
#     every crossing at a and −a       half the difference of two logits is a·u_h, half the sum s_h
#     windows of d + 1 rows            (u_h, s_h) at b, and at b + t q
#     Σ ±v_h = Σv                      tells (u, s, v) from (−u, −s, −v); as [b; a+b; b] does, where
#                                      a second b weighs on one side
#     [a; z; b]                        the same two tokens apart (above)
#     windows at the other b + t q     r rows each: K, b_k and the planes being known, a logit is
#                                      a·u + s = ((K(a + b) + b_k)·R(1) − (K b + b_k)) q(b)
#
# All heads share the tokens b + t q: what moves a head's nearly shut gate is then known exactly.
# Only as many directions q are read in full as span W_h(1).
#
# With B the span of Kᵀ and U₁, U₂ the columns Bᵀ KᵀR(1) q, Bᵀ KᵀR(2) q at r query tokens,
#
#     T = U₂ U₁⁻¹ = P R(1) P⁻¹,    Kᵀ = B P,    q(b) = R(−1) P⁻¹ Bᵀ u(b),
#     b_k·(R(1) − I) q = s − b·Kᵀ(R(1) − I) q,    b_k·(R(2) − I) q = s₂ + b·Kᵀq.
#
# The last are twice as many equations as unknowns: what they miss shows a search that went wrong. Q
# comes from how q(b) moves with b, b_q = q(b) − Q b.
#
# *Queries*: 2dr for each head, r(r + 1) more for W(2), and what heads without positions take to be
# found. Source: beyond Proposition 7.1 of arXiv 2601.16873; positions are in no paper.


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
