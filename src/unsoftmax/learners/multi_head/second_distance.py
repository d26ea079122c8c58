"""W_h(2) of all heads with biases, once (u_h, s_h) are known: r(r + 1) queries a head.

As `second_distance` does it without biases: [a; z; b] with a filler z that shuts all heads but h,
which does not see z. What remains of the answer is

    y = (e^t a·v_h + b·v_h)/(e^t + 1),    t = a·KᵀR(2) q(b) + b_k·R(2) q(b) − (K b + b_k)·q(b),

b being an ordinary token. r + 1 offsets in the span of Kᵀ, beside v_h, tell both parts of t at
each of r query tokens. *Source*: beyond Proposition 7.1; positions are in no paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import NotIdentifiable
from unsoftmax.learners.compose import Asking, together
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head.second_distance_plain import DEPENDENT
from unsoftmax.learners.multi_head.lifted_search import ShiftedHeads
from unsoftmax.measure import offsets
from unsoftmax.measure.opened_heads import FillerTuning, fillers
from unsoftmax.models.arrays import TINY
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.probes import Array, Indices, Sequences
from unsoftmax.solve.skeleton import rank_by_gap

# What shifts a head's gate is known but for what is quadratic in a query token: six more than
# without biases, and closed as much.
FILLERS = FillerTuning(shut=46.0, closed=46.0)
# Root mean square of the logits of a head's first token, if a step of distance leaves scores of
# their size.
PILOT = 0.3
# The same of the others, as the first one tells ...
LOGIT = 1.0
# ... but for at most so many times the first one's length.
CHANGED = 10.0
# Tokens with larger logits are asked again with shorter offsets, closer to b.
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
class ShiftedStep:
    """What was read of one head two tokens before some query tokens."""

    basis: Array
    """B, an orthonormal basis of the span of Kᵀ, (d, r)."""
    tokens: Array
    """b, (r, d)."""
    offsets: Array
    """a of every query token, (r, r + 1, d)."""
    logits: Array
    """t, (r, r + 1)."""
    off: Array
    """How far each may be off."""
    fillers: Array
    """z, (r, d)."""
    slopes: Array
    """How much answers move with t, (r, r + 1)."""

    def leaking(self, heads: Sequence[RotaryHead], h: int) -> ShiftedStep:
        """Count what the fillers leave open of other heads, and of head h, as ``heads`` have it.

        Shifts are known but roughly where a token is chosen: with large scores that is not enough.
        """
        r, n, d = self.offsets.shape
        X = np.empty((r, n, 3, d))
        X[:, :, 0] = self.offsets
        X[:, :, 1], X[:, :, 2] = self.fillers[:, None], self.tokens[:, None]
        asked, left = X.reshape(-1, 3, d), np.zeros(r * n)
        for g, head in enumerate(heads):
            alpha, values = head.attention(asked), asked @ head.v
            if g == h:
                left += alpha[:, 1] * np.abs(values - values[:, 1:2]).max(axis=1)
            else:
                left += np.sum(alpha * np.abs(values - values[:, 1:2]), axis=1)
        return replace(self, off=self.off + left.reshape(r, n) / np.abs(self.slopes))

    @property
    def there(self) -> Array:
        """Bᵀ KᵀR(2) q(b), and what t is beside, at the query tokens; (r, r + 1)."""
        ones = np.ones((*self.logits.shape, 1))
        rows = np.concatenate([self.offsets @ self.basis, ones], axis=2)
        return np.asarray(np.linalg.solve(rows, self.logits[:, :, None])[:, :, 0])

    def moved(self, rng: np.random.Generator) -> ShiftedStep:
        """Move all logits by as much as they may be off, of either sign."""
        signs = rng.choice([-1.0, 1.0], self.off.shape)
        return replace(self, logits=self.logits + signs * self.off)


def read_shifted_steps(
    found: ShiftedHeads,
    ranks: Indices,
    rng: np.random.Generator,
) -> Asking[list[ShiftedStep]]:
    """Read W_h(2) of all heads, of these ranks.

    Raises
    ------
    NotIdentifiable
        Nothing opens the heads one by one.
    OutOfReach
        Another query token may do better.
    """
    opened = [_Opened.of(found, h, int(r), rng) for h, r in enumerate(ranks)]
    asking = [one.read(rng) for one in opened]
    return list((yield from together(asking)))


def shifted_ranks(found: ShiftedHeads) -> Indices:
    """Return the ranks of the heads' keys, (H,)."""
    d, ranks = found.reduced.dim, []
    for h, off in enumerate(found.columns_off):
        singular = np.asarray(np.linalg.svd(found.spanning(h), compute_uv=False))
        ranks.append(rank_by_gap(singular, COUNTED * float(np.linalg.norm(off[:d]))))
    if not all(ranks):  # a head of which errors leave nothing
        raise CoincidentJumps
    return np.array(ranks, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class _Opened:
    """One head among all."""

    found: ShiftedHeads
    h: int
    basis: Array
    rows: Array
    """Offsets (r + 1, d), of length about 1."""

    @classmethod
    def of(
        cls,
        found: ShiftedHeads,
        h: int,
        rank: int,
        rng: np.random.Generator,
    ) -> _Opened:
        """Choose offsets, which all see v_h by one sign."""
        v = found.v[h]
        basis = np.linalg.svd(found.spanning(h), full_matrices=False)[0][:, :rank]
        direction = v / np.linalg.norm(v)
        within = basis.T @ direction
        rows = offsets.balanced(within, rng).made() @ basis.T + (direction - basis @ within)
        return cls(found, h, basis, np.concatenate([rows, rows[:1] / 2]))

    def read(self, rng: np.random.Generator) -> Asking[ShiftedStep]:
        """Ask; where logits are large shorter offsets, and query tokens closer together."""
        centre, x = self._tokens(rng)
        r = len(x)
        alpha = PILOT * np.sqrt(r) / np.linalg.norm(self._seen(centre + x)[0][:, 0], axis=1)
        logits, off, slopes = np.full((r, r + 1), np.nan), *np.zeros((2, r, r + 1))
        z = np.zeros(x.shape)
        # the first token tells how long offsets of the others had better be
        missing = np.arange(1)
        for _ in range(TRIES):
            b = centre + x
            z[missing] = self._filled(b[missing], alpha[missing])
            answered = yield from self._asked(b[missing], alpha[missing], z[missing])
            logits[missing], off[missing], slopes[missing] = answered
            well = np.all(np.abs(logits) < LARGEST, axis=1)
            if np.all(well):
                a = self._offsets(b, alpha)
                return ShiftedStep(self.basis, b, a, logits, off, z, slopes)
            lost = np.isin(np.arange(r), missing) & ~well
            alpha[lost] /= SHORTER
            x[lost] /= SHORTER
            if well[0] and len(missing) == 1 and missing[0] == 0:
                moved = logits[0, :-1] - (2 * logits[0, -1] - logits[0, 0])
                alpha[1:] *= np.clip(LOGIT / np.sqrt(np.mean(moved**2)), 1 / CHANGED, CHANGED)
            missing = np.flatnonzero(~well) if well[0] else np.arange(1)
        raise OutOfReach

    def _tokens(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Choose a centre (d,) and steps (r, d) from there to the query tokens.

        Of some draws the one that answers tell most of: their columns u span best, fillers are
        short, and shifts small.
        """
        found, r = self.found, self.basis.shape[1]
        columns = self.basis.T @ found.spanning(self.h)[:, 1:]
        within = np.linalg.svd(columns)[2][:r] @ found.directions
        length, best, chosen = float(np.linalg.norm(found.b)), np.inf, None
        for centre in (found.b, self._unshifted()):
            for draw in range(DRAWS):
                # as many as there are directions are orthogonal to each other
                x = np.linalg.qr(rng.standard_normal((r, len(within))))[0] @ within
                x *= length * SIZES[draw % len(SIZES)]
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
            raise NotIdentifiable(DEPENDENT, determined={"v": found.v})
        return chosen

    def _unshifted(self) -> Array:
        """Return where the head's own shift is about 0, no farther from b than b is long."""
        found = self.found
        shifts = self._seen(found.tokens)[1][:, 0]
        slope = (shifts[1:] - shifts[0]) / found.t @ found.directions
        step = -shifts[0] / max(float(slope @ slope), TINY) * slope
        longest = float(np.linalg.norm(found.b))
        return np.asarray(
            found.b + step * min(1.0, longest / max(float(np.linalg.norm(step)), TINY))
        )

    def _seen(self, b: Array) -> tuple[Array, Array]:
        """Return u_g and s_g − b·u_g of all heads, this one first, (m, H, d) and (m, H)."""
        found, d = self.found, b.shape[1]
        order = np.append(self.h, np.delete(np.arange(len(found.v)), self.h))
        shifted = found.at(b)[:, order]
        u = shifted[:, :, :d]
        return u, shifted[:, :, d] - np.einsum("md,mgd->mg", b, u)

    def _offsets(self, b: Array, alpha: Array) -> Array:
        """Return what is asked two before each token, (m, r + 1, d).

        It sees v_h by the other sign than b does: answers then lie between values of two signs.
        """
        signs = np.where(b @ self.found.v[self.h] > 0, -1.0, 1.0)
        return np.asarray((signs * alpha)[:, None, None] * self.rows)

    def _fillers(self, b: Array, alpha: Array) -> Array | None:
        """Return the tokens that shut all other heads, (m, d)."""
        u, beside = self._seen(b)
        longest = alpha * float(np.linalg.norm(self.rows, axis=1).max())
        v = self.found.v[self.h]
        return fillers(u, v, longest, FILLERS, beside=beside)

    def _filled(self, b: Array, alpha: Array) -> Array:
        z = self._fillers(b, alpha)
        if z is None:
            raise NotIdentifiable(DEPENDENT, determined={"v": self.found.v})
        return z

    def _asked(self, b: Array, alpha: Array, z: Array) -> Asking[tuple[Array, Array, Array]]:
        """Ask [a; z; b] for some query tokens.

        Returns t, how far it may be off, and how much answers move with it, (m, r + 1) each.
        """
        found, (m, d), n = self.found, b.shape, len(self.rows)
        X = np.empty((m, n, 3, d))
        X[:, :, 0] = self._offsets(b, alpha)
        X[:, :, 1], X[:, :, 2] = z[:, None], b[:, None]
        [y] = yield [Sequences(X.reshape(-1, 3, d), phase="W(2)", purpose="data")]
        v = found.v[self.h]
        others = found.v.sum(axis=0) - v
        Y = y.reshape(m, n) - found.reduced.c - (z @ others)[:, None]
        A, B = X[:, :, 0] @ v, (b @ v)[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            t = np.log((B - Y) / (Y - A))
            slope = (A - B) / (4 * np.cosh(t / 2) ** 2)
        longest = np.linalg.norm(z, axis=1)[:, None] + np.linalg.norm(X[:, :, 0], axis=2)
        precision, terms = found.reduced.precision, found.reduced.scale * longest
        wrong = precision.error(terms + abs(found.reduced.c))
        wrong = wrong + found.v_error * np.sqrt(len(found.v) / d) * longest
        return t, np.asarray(wrong / np.abs(slope)), slope
