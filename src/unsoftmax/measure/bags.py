"""Bags of ids: logits of a head that takes tokens of a vocabulary, read from one answer each.

Where tokens have no positions only their counts n_t and the query token j matter. With
w_t = n_t e^{G_tj} and G_ij = M_ij − M_jj, M_ij the score of token i for query token j,

    f = Σ_t w_t u_t / Σ_t w_t,  u_t = f([t]),
    [i, k, j]:  e^{G_ij} = −[w_k (f − u_k) + n_j (f − u_j)] / [n_i (f − u_i)].

A pair [i, j] has no k. Where u_i is near u_j it tells nothing, and a reference k whose G_kj is
known stands beside them. Counts are levers: log(n_i / n_j) adds to a logit, so that one far from 0
can be read, up to the logarithm of the context. With p_i the weight of i, f_rest the answer without
it and η what an answer is off by,

    δG_ij = 2η / (p_i (1 − p_i) |u_i − f_rest|)
            + δG_kj |w_k (f − u_k)| / |w_k (f − u_k) + n_j (f − u_j)|.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias, TypeVar

import numpy as np

from unsoftmax.measure.precision import Precision, why
from unsoftmax.probes import Array, Copies, Flags, Ids, Indices, Probes, Purpose, Round
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason

T = TypeVar("T")
Asking: TypeAlias = Generator[Round, Answers, T]

# Answers are coarse that are off by a larger share of what values are apart: directions of the
# scores that their errors hide are then no smaller than what contradicts one head. float32 ones are
# off by a fifth of it.
COARSE = 2.0**-20
# Heads of coarse answers miss fresh ones by less than this share of their values, whatever bounds
# allow: right ones miss up to 6e-3, two heads for one, the second a hundredth of the first, 1.5e-2.
MISSED = 1e-2
# Logits with larger errors are not read: first-order errors end there.
UNREAD = 0.3
# Values nearer to each other than this share of their spread are told apart by a reference.
CLOSE = 0.1
# Logits are read again, with other counts, where their error is so many times the median ...
AGAIN = 100.0
# ... so many times in all, ...
ASKED_AGAIN = 3
# ... and the other counts are expected to make it smaller by this factor.
BETTER = 3.0


@dataclass(frozen=True, slots=True)
class Logits:
    """Readings G_ij of pairs of ids (m,), each with a bound on its error, infinite if unread."""

    i: Indices
    j: Indices
    G: Array
    error: Array

    def at(self, places: Indices) -> Logits:
        """Return some of them."""
        return Logits(self.i[places], self.j[places], self.G[places], self.error[places])

    def joined(self, others: Logits) -> Logits:
        """Return these and others."""
        mine, more = ((x.i, x.j, x.G, x.error) for x in (self, others))
        return Logits(*(np.concatenate(pair) for pair in zip(mine, more, strict=True)))


@dataclass(frozen=True, slots=True)
class BagReader:
    """Reads logits between ids whose values are known.

    Attributes
    ----------
    keys, queries : array (V,)
        What a token is answered alone: before the last one, and as the last one. Where tokens have
        no positions both are the same array.
    precision : Precision
        What answers are off by.
    context : int
        The most tokens of a sequence; with 2 no counts are used, and no references.
    spread : float
        How far values are from each other, as a rule.
    """

    keys: Array
    queries: Array
    precision: Precision
    context: int
    names: Indices | None = None
    """Ids by which tokens are asked, where these are tokens at their positions."""
    spread: float = field(init=False)

    def __post_init__(self) -> None:
        middle = np.quantile(self.keys, [0.1, 0.9])
        apart = float(middle[1] - middle[0]) or float(np.ptp(self.keys))
        object.__setattr__(self, "spread", apart)

    def eta(self, count: Array, *values: Array) -> Array:
        """Bound what answers are off by that weigh so many tokens of these values."""
        size = np.max([np.abs(own) for own in values], axis=0)
        size = np.maximum(size, np.median(np.abs(self.keys)))
        return np.asarray(self.precision.error(size, size) * added_up(count))

    @property
    def coarse(self) -> bool:
        """Whether answers are so coarse that one head may not be told from several."""
        size = np.median(np.abs(self.keys))
        return bool(self.precision.error(size, size) > COARSE * self.spread)

    @property
    def most_missed(self) -> float:
        """Which share of their values fresh answers may miss a right head by, errors aside."""
        return MISSED if self.coarse else np.inf

    def refuse_unread(self, shown: str) -> NoReturn:
        """Refuse logits that answers are too coarse for, or whose weights are 0 or 1."""
        if self.coarse:
            known, noticed = {"u": self.keys}, why(self.precision)
            raise Reason.LOGITS_DROWN.error(known, also=noticed, shown=shown)
        raise Reason.BAGS_SATURATED.error()

    def clearness(self, i: Indices, j: int, G: Array) -> Array:
        """Return how clearly logits of about this size show: an inverse error in some unit."""
        lever = np.clip(-G, -self._most, self._most)
        return np.asarray(_variance(G + lever) * self.apart(i, j) * (i != j))

    def apart(self, i: Indices, j: Indices | int) -> Array:
        """Return how far values are from each other, as far as it counts: references tell more."""
        gap = np.abs(self.keys[i] - self.queries[j]) / self.spread
        return np.asarray(np.clip(gap, CLOSE / 2, 2.0))

    @property
    def _most(self) -> float:
        """What counts add to a logit at most."""
        return float(np.log(max(1, self.context // 2)))

    def read(
        self,
        i: Indices,
        j: Indices,
        phase: str,
        expected: Array | None = None,
        beside: Logits | None = None,
    ) -> Asking[Logits]:
        """Read G_ij of pairs.

        ``expected`` is about what they are, where they were read before and are read again;
        ``beside`` are logits that are known, of references for these query tokens.
        """
        m = len(i)
        found = Logits(i, j, np.zeros(m), np.full(m, np.inf))
        found.error[i == j if self.keys is self.queries else np.zeros(m, bool)] = 0.0
        first: Purpose = "data" if expected is None else "again"
        apart = np.abs(self.keys[i] - self.queries[j]) > CLOSE * self.spread
        ratio = np.zeros(m) if expected is None else -expected
        todo = np.isinf(found.error)
        direct = todo & (apart | (self.context < 3))
        none = Logits(j, j, np.zeros(m), np.full(m, np.inf))
        yield from self._with_levers(found, direct, none, ratio, phase, first)
        if np.any(todo & ~direct):
            references = self._references(found, beside)
            yield from self._with_levers(found, todo & ~direct, references, ratio, phase, first)
        return found

    def _references(self, found: Logits, beside: Logits | None) -> Logits:
        """Return for every pair the best logit of its query token that is known."""
        pool = found if beside is None else found.joined(beside)
        gap = np.abs(self.keys[pool.i] - self.queries[pool.j])
        with np.errstate(divide="ignore", invalid="ignore"):
            worth = pool.error / (_variance(pool.G) * np.minimum(gap, self.spread))
        worth[(pool.i == pool.j) | ~np.isfinite(worth)] = np.inf
        order = np.lexsort((worth, pool.j))
        tokens, first = np.unique(pool.j[order], return_index=True)
        at = order[first][np.searchsorted(tokens, found.j)]
        return Logits(
            pool.i[at], found.j, pool.G[at], np.where(worth[at] < np.inf, pool.error[at], np.inf)
        )

    def _with_levers(
        self,
        found: Logits,
        wanted: Flags,
        references: Logits,
        ratio: Array,
        phase: str,
        first: Purpose,
    ) -> Asking[None]:
        """Read pairs beside references, where these are known; those read badly once more."""
        rows, purpose = np.flatnonzero(wanted), first
        for _ in range(ASKED_AGAIN):
            if not len(rows):
                return
            own, beside = found.at(rows), references.at(rows)
            counts = self._counts(np.isfinite(beside.error), ratio[rows])
            f = yield from self._asked(own, beside, counts, phase, purpose)
            G, error = self._logits(own, beside, counts, f)
            better = error < found.error[rows]
            found.G[rows[better]], found.error[rows[better]] = G[better], error[better]
            if self.context < 3:
                return
            # the nearest to what counts can do: log(n_i / n_j) = −G
            guess = np.where(np.isfinite(error), G, np.sign(G) * 64.0)
            best = np.clip(-guess, -self._most, self._most)
            gain = _variance(guess + best) / np.maximum(_variance(guess + ratio[rows]), 1e-300)
            ends = found.error[found.error > 0]
            usual = np.median(ends[np.isfinite(ends)]) if np.any(np.isfinite(ends)) else 0.0
            again = (found.error[rows] > AGAIN * usual) & (gain > BETTER)
            ratio = ratio.copy()
            ratio[rows] = best
            rows, purpose = rows[again], "again"

    def _counts(self, with_k: Flags, ratio: Array) -> Indices:
        """Return n_i, n_k, n_j for log-ratios n_i / n_j; powers of 2, so that families are few."""
        counts = np.ones((len(ratio), 3), dtype=np.intp)
        counts[:, 1] = with_k
        most = int(np.log2(max(1, self.context - 1)))
        power = np.clip(np.rint(ratio / np.log(2)), -most, most).astype(np.intp)
        power[with_k] = np.clip(power[with_k], 1 - most, most - 1)
        counts[:, 0] = 2 ** np.maximum(power, 0)
        counts[:, 2] = 2 ** np.maximum(-power, 0)
        if np.any(with_k):  # the reference and j together are what i is read against
            counts[with_k, 1] = np.minimum(counts[with_k, 2], self.context // 4 or 1)
        return counts

    def _asked(
        self, pairs: Logits, beside: Logits, counts: Indices, phase: str, purpose: Purpose
    ) -> Asking[Array]:
        """Ask one bag for each pair, a family for all that have the same counts."""
        ids = np.column_stack([pairs.i, beside.i, pairs.j])
        ids = ids if self.names is None else self.names[ids]
        kinds, which = np.unique(counts, axis=0, return_inverse=True)
        families: list[Probes] = []
        for n, kind in enumerate(kinds):
            used = kind > 0
            own = Ids(ids[which == n][:, used], phase=phase, purpose=purpose)
            families.append(own if kind.sum() == used.sum() else Copies.of(own, kind[used]))
        answers = yield families
        f = np.empty(len(ids))
        for n, y in enumerate(answers):
            f[which == n] = y
        return f

    def _logits(
        self, pairs: Logits, beside: Logits, counts: Indices, f: Array
    ) -> tuple[Array, Array]:
        """Solve for G_ij; where the answer is that of one side alone its sign, error infinite."""
        u_i, u_j = self.keys[pairs.i], self.queries[pairs.j]
        n_i, n_k, n_j = counts.T.astype(np.float64)
        used = n_k > 0
        u_k = np.where(used, self.keys[beside.i], u_j)
        w_k = n_k * np.exp(np.minimum(beside.G, 700.0))
        G_error = np.where(used, beside.error, 0.0)
        eta = self.eta(n_i + n_k + n_j, u_i, u_j, u_k)
        rest = (w_k * u_k + n_j * u_j) / (w_k + n_j)
        with np.errstate(all="ignore"):
            from_k, from_j = w_k * (f - u_k), n_j * (f - u_j)
            odds = -(from_k + from_j) / (n_i * (f - u_i))  # e^G
            share = (f - rest) / (u_i - rest)  # p_i
            G = np.log(odds)
            error = 2 * eta / (share * (1 - share) * np.abs(u_i - rest))
            error = error + G_error * np.abs(from_k / (from_k + from_j))
        read = np.isfinite(G) & np.isfinite(error) & (error > 0) & (error <= UNREAD)
        side = np.where(share < 0.5, -1.0, 1.0)
        return np.where(read, G, side), np.where(read, error, np.inf)


def added_up(count: Array) -> Array:
    """Return how many times a sum of so many terms is off by what one of two is."""
    return np.sqrt(np.maximum(count, 2) / 2)


def _variance(logit: Array) -> Array:
    """Return p(1 − p) of the weight that a logit makes."""
    half = np.exp(-np.abs(logit))
    return np.asarray(half / (1 + half) ** 2)
