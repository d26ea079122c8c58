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

from unsoftmax.errors import NotIdentifiable
from unsoftmax.learners.compose import Asking, together
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.measure import offsets
from unsoftmax.models.arrays import TINY
from unsoftmax.models.heads import RotaryHead
from unsoftmax.probes import Array, Indices, Sequences
from unsoftmax.solve.skeleton import rank_by_gap


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
DEPENDENT = (
    "No token shuts all heads but one: for every query token what some heads score by, W(1) b, "
    "depends on what others do. How they turn with distance is not read."
)


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
            raise NotIdentifiable(DEPENDENT, determined={"v": near.v})
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
            raise NotIdentifiable(DEPENDENT, determined={"v": self.near.v})
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
