"""The bulk: all columns of all W_h from the heads' windows, one query per entry.

    W_h q = A_h⁻¹ (s_h(b + t q) − s_h(b)) / t,   s_h(b + t q) = A_h u_h(b + t q)

A_h holds the offsets of window h, s_h their logits: from a reduced answer the other heads are
subtracted and the gate of h is inverted. What others add depends on their own columns, hence
sweeps over heads, weak ones first; two to four of them settle all.

*Low rank.* Once a column is predicted by those before it, which takes one row more than there
are columns, the others are solved from as many rows as the rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import qr

from unsoftmax.learners.multi_head.two_tokens import Coincident, Ground, Mask, answers_of
from unsoftmax.learners.multi_head.values import Values
from unsoftmax.learners.multi_head.windows import Noise, Window
from unsoftmax.probes import Array, Grid, Indices, Round
from unsoftmax.protocol import Answers

# Sweeps end when nothing moves but rounding; heads that still move by more are read wrongly. Two to
# four do, a hundred where heads of rank one overlap; what does not settle after thirty never will.
_SWEEPS, _SETTLED, _UNSETTLED, _FEW = 300, 4e-15, 1e-10, 30
# Logits beyond are read with too few digits: query tokens then stay closer to b.
_MOST, _CLOSER, _CLOSER_TIMES = 9.0, 5.0, 6
# Answers are disturbed until so many errors of a head's entries were seen, but at least so often.
_SEEN, _DISTURBED = 64, 2
# Ranks are tried one by one, then in steps of an eighth, up to half of d.
_TRIED, _STEPS = 8, 8
# A column is predicted if what is left of one row is this small, or this many times its noise.
_PREDICTED, _LOOSELY, _NOISES = 1e-6, 1e-3, 30.0


@dataclass(frozen=True, slots=True)
class Base:
    """Heads at the query token b: u, v (H, d) and the windows made from them."""

    ground: Ground
    b: Array
    u: Array
    v: Array
    v_error: float
    windows: list[Window]

    @property
    def noise(self) -> Noise:
        """What answers and values may be off by."""
        return Noise(self.ground, float(np.linalg.norm(self.b)), self.v_error)

    @property
    def order(self) -> Indices:
        """Weak heads first: windows leave them open."""
        return np.argsort(np.linalg.norm(self.u, axis=1))

    def logits(self, h: int, a: Array, y: Array, shifts: Array) -> tuple[Array, Mask]:
        """Return the logits of head h (m, k), and which are lost, from reduced answers y (m, k).

        They were asked at offsets a (m, d); ``shifts`` (H, d, k) is what every u_g moves by at
        the k query tokens.
        """
        values = self.v @ a.T
        gates = a @ shifts
        gates += (self.u @ a.T)[:, :, None]
        gates /= 2
        np.tanh(gates, out=gates)
        own = gates[h].copy()
        gates[h] = 0.0
        rest = np.einsum("gmk,gm->mk", gates, values)
        with np.errstate(invalid="ignore", divide="ignore"):
            s = 2 * np.arctanh((y - rest) / values[h][:, None])
        # while sweeps settle, a gate may seem to be past its end: keep what was thought before
        lost = ~(np.abs(s) < _MOST)
        s[lost] = 2 * np.arctanh(np.clip(own[lost], -0.999, 0.999))
        return s, lost


def read_base(base: Base, values: Values) -> Generator[Round, Answers, tuple[Base, Array]]:
    """Read all u_h at b to full precision; return them with the logits measured (H, d).

    Where a cap left gates open, the v_h are no better than the u_h were: they are solved for anew.
    """
    H, d = base.u.shape
    table = _Table.empty(base, np.zeros((H, d)), np.zeros((1, d)))
    yield from table.ask([(h, np.arange(d), np.arange(1)) for h in range(H)], "base")
    base, s, lost = _solved(base, table.y, values)
    if np.any(lost):
        raise Coincident
    return base, s


def _solved(base: Base, y: Array, values: Values | None = None) -> tuple[Base, Array, Mask]:
    """Sweep until the u_h agree with reduced answers y (H, d, 1); return their logits as well."""
    u, s = base.u.copy(), np.zeros(base.u.shape)
    lost, still = np.zeros(y.shape, dtype=bool), np.zeros(y.shape)
    moved = np.inf
    for n in range(_SWEEPS):
        last, before = moved, u.copy()
        for h in base.order:
            a = base.windows[h].a
            now, lost[h] = replace(base, u=u).logits(h, a, y[h], still)
            s[h] = now[:, 0]
            u[h] = np.linalg.solve(a, s[h])
        if values is not None and base.ground.reach.soft:
            base = replace(base, v=values.again(u))
        moved = _moved(u, before)
        if _over(n, last, moved):
            break
    return replace(base, u=u), s, lost


@dataclass(frozen=True, slots=True)
class Columns:
    """W_h q for all heads and directions (H, d, k), how precise, and the ranks found."""

    W: Array
    error: Array
    """Estimated Frobenius norm of each head's error (H,)."""
    ranks: Indices


def read_columns(
    base: Base, s: Array, directions: Array, rank: int | None, rng: np.random.Generator
) -> Generator[Round, Answers, Columns]:
    """Read W_h q for all heads and the directions q (k, d) of query tokens."""
    table = _Table.empty(base, s, directions)
    H, d, k = table.W.shape
    for first, last in _blocks(d, k, rank):
        now = np.arange(first, last)
        if rank is not None and first:
            for h in range(H):
                table.close(h, first)
        elif rank is None and first + 2 < d and 2 * first <= d:
            yield from _tested(table, first)
        wanted = []
        for h in range(H):
            rows = table.rows_of(h)
            if h in table.basis or rank is not None or not table.asked[h, :, first].any():
                missing = ~table.asked[h, rows, first]
                wanted.append((h, rows[missing], now[:1]))
            else:
                wanted.append((h, np.flatnonzero(~table.asked[h, :, first]), now[:1]))
            wanted.append((h, rows, now[1:]))
        yield from table.ask(wanted, "columns")
        yield from table.settled(now)
    moved = table.settle_all()
    if np.any(table.lost) or moved > _UNSETTLED:
        raise Coincident
    ranks = np.array([table.basis[h][0].shape[1] if h in table.basis else d for h in range(H)])
    unsettled = moved * np.linalg.norm(table.W, axis=(1, 2))
    return Columns(table.W, table.errors(rng) + unsettled, ranks)


def _blocks(d: int, k: int, rank: int | None) -> list[tuple[int, int]]:
    """Divide k columns: with a rank in two, else so that ranks can be tried between."""
    if rank is not None:
        cut = min(max(rank - 1, 0), k)
        return [block for block in ((0, cut), (cut, k)) if block[0] < block[1]]
    edges = [0]
    while edges[-1] < k:
        at = edges[-1]
        step = 1 if at < _TRIED else at // _STEPS
        edges.append(min(k, at + step) if 2 * (at + step) <= d else k)
    return list(itertools.pairwise(edges))


def _tested(table: _Table, column: int) -> Generator[Round, Answers, None]:
    """Ask one column with as few rows as show whether those before predict it."""
    H = len(table.W)
    wanted, bases = [], {}
    for h in range(H):
        if h in table.basis:
            wanted.append((h, table.basis[h][1], np.array([column])))
        else:
            C, rows = table.span(h, column, extra=1)
            bases[h] = C
            wanted.append((h, rows, np.array([column])))
    yield from table.ask(wanted, "columns")
    # other heads' columns are not known yet: at first a prediction is held loosely
    for tolerance in (_LOOSELY, _PREDICTED):
        predicted = []
        for h in table.base.order:
            rows = np.flatnonzero(table.asked[h, :, column])
            s = table.read(h, rows, np.array([column]))
            moved = (s[:, 0] - table.s[h, rows]) / table.t[h, column]
            C = bases[h] if h in bases else table.basis[h][0]
            M = table.base.windows[h].a[rows] @ C
            x, *_ = np.linalg.lstsq(M, moved, rcond=None)
            noise = table.noise(h, rows, s[:, 0]) / table.t[h, column]
            allowed = tolerance * np.linalg.norm(moved) + np.minimum(
                _NOISES * noise, _LOOSELY * np.linalg.norm(moved)
            )
            fits = bool(np.all(np.abs(moved - M @ x) < allowed))
            fits &= not np.any(table.lost[h, rows, column])
            table.W[h, :, column] = C @ x if fits else 0.0
            if fits and h in bases:
                predicted.append(h)
    for h in predicted:
        table.close(h, column)


@dataclass(slots=True)
class _Table:
    """All answers to the windows' offsets at b + t q, and what they say so far."""

    base: Base
    s: Array
    """Logits at b itself (H, d)."""
    directions: Array
    y: Array
    """Reduced answers (H, d, k)."""
    asked: Mask
    t: Array
    """Steps of the query tokens (H, k)."""
    W: Array
    logits: Array
    lost: Mask
    """Logits too large to be read, in the last sweep."""
    basis: dict[int, tuple[Array, Indices]]
    """Column space and rows of the heads whose rank is known."""

    @classmethod
    def empty(cls, base: Base, s: Array, directions: Array) -> _Table:
        H, d = base.u.shape
        shape = (H, d, len(directions))
        y, W, logits = (np.zeros(shape) for _ in range(3))
        asked, lost = (np.zeros(shape, dtype=bool) for _ in range(2))
        t = np.array([window.t for window in base.windows])
        t = np.repeat(t[:, None], len(directions), axis=1)
        return cls(base, s, directions, y, asked, t, W, logits, lost, {})

    def rows_of(self, h: int) -> Indices:
        return self.basis[h][1] if h in self.basis else np.arange(self.W.shape[1])

    def ask(
        self, wanted: list[tuple[int, Indices, Indices]], phase: str
    ) -> Generator[Round, Answers, None]:
        """Ask for each (head, rows, columns) in one round."""
        wanted = [(h, rows, columns) for h, rows, columns in wanted if len(rows) and len(columns)]
        if not wanted:
            return
        ground, grids, tokens = self.base.ground, [], []
        for h, rows, columns in wanted:
            window = self.base.windows[h]
            b = self.base.b + self.t[h, columns, None] * self.directions[columns]
            ones = np.ones(len(b))
            grids.append(Grid(window.a[rows], b, ones, ones, phase=phase, purpose="data"))
            tokens.append(b)
        answers = yield list(grids)
        for (h, rows, columns), grid, b, y in zip(wanted, grids, tokens, answers, strict=True):
            a = self.base.windows[h].a[rows]
            singles = ground.c + b @ ground.s
            here = np.ix_(np.array([h]), rows, columns)
            self.y[here] = 2 * (grid.table(y).T - singles) - (a @ ground.s)[:, None]
            self.asked[here] = True

    def read(self, h: int, rows: Indices, columns: Indices) -> Array:
        """Return head h's logits (rows, columns), given what is thought of the others."""
        window = self.base.windows[h]
        y = self.y[h][np.ix_(rows, columns)]
        s, lost = self.base.logits(h, window.a[rows], y, self.t[h, columns] * self.W[:, :, columns])
        here = np.ix_(np.array([h]), rows, columns)
        self.logits[here], self.lost[here] = s, lost
        return s

    def span(self, h: int, known: int, extra: int = 0) -> tuple[Array, Indices]:
        """Return a basis of u_h and the first columns, and rows that determine what lies in it."""
        C = _range(np.column_stack([self.base.u[h], self.W[h, :, :known]]))
        _, pivots = qr((self.base.windows[h].a @ C).T, mode="r", pivoting=True)
        return C, np.sort(pivots[: C.shape[1] + extra])

    def close(self, h: int, known: int) -> None:
        """Take the column space of head h as known."""
        if h not in self.basis:
            self.basis[h] = self.span(h, known)

    def settle(self, columns: Indices) -> float:
        """Sweep over heads until all columns agree with the answers; return how much moved last."""
        moved = np.inf
        for n in range(_SWEEPS):
            last, before = moved, self.W[:, :, columns].copy()
            for h in self.base.order:
                self._solve(h, columns)
            moved = _moved(self.W[:, :, columns], before)
            if _over(n, last, moved):
                break
        return moved

    def settle_all(self) -> float:
        """Settle all columns, take column spaces anew from those that were asked whole, again."""
        every = np.arange(self.W.shape[2])
        moved = self.settle(every)
        if not self.basis:
            return moved
        for h, (C, rows) in self.basis.items():
            full = np.flatnonzero(self.asked[h].all(axis=0))
            vectors = np.column_stack([self.base.u[h], self.W[h][:, full]])
            self.basis[h] = (_range(vectors, C.shape[1]), rows)
        return self.settle(every)

    def settled(self, columns: Indices) -> Generator[Round, Answers, None]:
        """Settle columns; ask those whose logits moved too far again, closer to b."""
        self.settle(columns)
        for _ in range(_CLOSER_TIMES):
            lost = self.lost[:, :, columns].any(axis=1)
            if not np.any(lost):
                return
            wanted = []
            for h, n in zip(*np.nonzero(lost), strict=True):
                column = columns[n : n + 1]
                self.t[h, column] /= _CLOSER
                self.W[h][:, column] = 0.0
                wanted.append((int(h), np.flatnonzero(self.asked[h, :, column[0]]), column))
            yield from self.ask(wanted, "columns again")
            self.settle(columns)
        raise Coincident

    def _solve(self, h: int, columns: Indices) -> None:
        window, every = self.base.windows[h], np.arange(self.W.shape[1])
        full = self.asked[h][:, columns].all(axis=0)
        if np.any(full):
            now = columns[full]
            moved = self.read(h, every, now) - self.s[h][:, None]
            self.W[h][:, now] = np.linalg.solve(window.a, moved) / self.t[h, now]
        if not np.all(full):
            now = columns[~full]
            C, rows = self.basis[h]
            moved = self.read(h, rows, now) - self.s[h, rows][:, None]
            self.W[h][:, now] = C @ np.linalg.solve(window.a[rows] @ C, moved) / self.t[h, now]

    def noise(self, h: int, rows: Indices, s: Array) -> Array:
        base = self.base
        return base.noise.of_logits(base.windows[h].a[rows], base.v, h, s)

    def errors(self, rng: np.random.Generator) -> Array:
        """Estimate ‖ΔW_h‖_F: what moves when answers and values are off by as much as they may be.

        One head's errors pass on to others, and those of the first columns to a column space.
        """
        base, errors = self.base, np.zeros(len(self.W))
        for _ in range(max(_DISTURBED, _SEEN // self.W[0].size)):
            other = self._disturbed(rng)
            columns = np.linalg.norm(other.W - self.W, axis=(1, 2))
            along = np.linalg.norm(other.base.u - base.u, axis=1) / base.noise.length
            errors = np.maximum(errors, np.hypot(columns, along))
        return errors

    def _disturbed(self, rng: np.random.Generator) -> _Table:
        base = self.base
        off = [base.noise.of_answers(window.a, base.v)[:, None] for window in base.windows]
        noise = np.array(off).reshape(*base.u.shape, 1)
        turned = rng.standard_normal(base.v.shape)
        turned *= base.v_error / np.linalg.norm(turned, axis=1, keepdims=True)
        y = np.array([answers_of(base.v, base.u, window.a) for window in base.windows])
        y = y.reshape(noise.shape) + noise * rng.standard_normal(noise.shape)
        there, s, _ = _solved(replace(base, v=base.v + turned), y)
        other = replace(
            self,
            base=there,
            s=s,
            y=self.y + noise * rng.standard_normal(self.y.shape),
            W=self.W.copy(),
            logits=self.logits.copy(),
            lost=self.lost.copy(),
            basis=dict(self.basis),
        )
        other.settle_all()
        return other


def _range(vectors: Array, rank: int | None = None) -> Array:
    """Return a basis of what the columns span, each taken for as long as the others."""
    size = np.linalg.norm(vectors, axis=0)
    C, sigma, _ = np.linalg.svd(vectors / np.where(size > 0, size, 1.0), full_matrices=False)
    if rank is None:
        return np.asarray(C[:, sigma > _PREDICTED * sigma[0]])
    return np.asarray(C[:, :rank])


def _over(sweep: int, last: float, moved: float) -> bool:
    """Tell whether sweeps have settled, or will not."""
    return moved <= _SETTLED or (last <= moved and (moved < _UNSETTLED or sweep > _FEW))


def _moved(new: Array, old: Array) -> float:
    """Return the largest relative change of a head."""
    flat = [np.linalg.norm(x.reshape(len(x), -1), axis=1) for x in (new - old, new)]
    return float(np.max(flat[0] / np.maximum(flat[1], 1e-300), initial=0.0))
