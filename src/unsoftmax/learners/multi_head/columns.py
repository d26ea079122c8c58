"""The bulk: all columns of all W_h from the heads' windows, one query per entry.

All heads' windows are asked at query tokens b + t q for directions q, in blocks of columns, and
solved together (`ColumnTable`). Once a column is predicted by those before
it, which takes a few rows more than there are columns, a head's other columns are asked with as
many rows as its rank. A few of them are asked with more: where answers show a tail of W beside that
rank, as they do where a W of low rank is stored as float32, all columns are read in full; a tail
that they do not show counts to the error.

    W_h q = A_h⁻¹ (s_h(b + t q) − s_h(b)) / t,   s_h(b + t q) = A_h u_h(b + t q)

A_h holds the offsets of window h, s_h their logits. A head whose column space C_h is known is
solved for from as many rows as its rank, W_h q = C_h (A_h C_h)⁻¹ (…) (`solve.skeleton`).

A head's logits at rows A of its window, M = A W, tell W q for every q from rows R alone if W q lies
in the span Q of earlier columns. The other rows X, which check, then show what is left of it,

    ρ = M_Xq − C M_Rq,    C = A_X Q (A_R Q)⁻¹,    ρ = (A_X − C A_R) W q.

Noise of the entries of M moves ρ by n² = n_Xq² + C² n_Rq² + Σ_j k_j² (n_Xj² + C² n_Rj²) at most
(k: q's coefficients in the earlier columns j). What is more is not in the span. What is less may be
a tail of W, t beside Q: rows as different as these see τ = |ρ|/‖A_X − C A_R‖ of it, and W q is off
by (1 − Q (A_R Q)⁻¹ A_R) t.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import numpy as np
import scipy

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head.window_sweeps import (
    UNSETTLED,
    WindowAnswers,
    WindowCells,
    moved,
    settled_base,
    swept,
)
from unsoftmax.measure.windows import Window, WindowedHeads, predicted
from unsoftmax.probes import Array, Flags, Indices
from unsoftmax.solve.skeleton import Skeleton, basis_of, pivots

# Where a logit is too large to be read, the query token is asked again so many times closer to b.
# A larger factor loses more digits of W b at once, a smaller one takes more rounds.
QUERY_NEARER_BY = 5.0
# Times that this is done: a logit that is still too large then is read wrongly.
QUERY_NEARER_TIMES = 6
# Ranks up to this one are tried one by one, each in a round of its own.
TRIED = 8
# Larger ranks are tried in steps of the columns known over this, up to half of d: fewer rounds,
# and at most an eighth more queries.
STEPS = 8
# Where only columns that span a head are read, their least singular value, over the largest:
# further columns cost a few queries, dependent ones digits of all that is read after.
SPANNED = 2e-3
# A column is predicted by those before if what is left of its rows is up to so many times what
# noise may leave there (exact ranks left 7 at most, 800 heads). Fewer: noise counts as rank;
# more: what answers show of W is left to the bound.
NOISES = 9.0
# While the other heads' columns are not known, which move saturated gates a little, this share of
# the column's rows may be left beside that; and it is the most that noise may excuse.
LOOSELY = 1e-3
# Singular values of normalised columns below so many times their errors do not count to a column
# space.
COUNTED = 3.0
# Choices of rows among which those with the least error are taken.
CHOICES = 8
# Columns of a head whose rank was given are read in full where this share of them at most is
# left; a head that leaves more has a larger rank.
TAIL = 0.1
# Answers are perturbed at random until so many errors of a head's entries were seen: the largest
# of few would be too small by chance.
SEEN = 64
# Times that they are perturbed at least; the largest change is taken as the error of W_h.
DISTURBED = 2


@dataclass(frozen=True, slots=True)
class HeadColumns:
    """W_h q for all heads and directions (H, d, k), how precise, and the ranks found."""

    W: Array
    error: Array
    """Estimated Frobenius norm of each head's error (H,)."""
    ranks: Indices
    off: Array
    """How far each entry was seen to move when answers did (H, d, k);"""
    base_off: Array
    """and those of u_h at b (H, d)."""


def read_columns(
    answers: WindowAnswers,
    s: Array,
    rank: int | None,
    rng: np.random.Generator,
    tuning: ColumnTableTuning,
    *,
    spanning: bool = False,
) -> Asking[HeadColumns]:
    """Read W_h q for all heads and directions; ``s`` (H, d) are the logits at b.

    ``spanning``: read only the first columns, as many as span all of every head.
    """
    table = ColumnTable.empty(answers, s, tuning)
    H, d, k = table.W.shape
    for first, last in blocks(d, k, rank, tuning.ample):
        now = np.arange(first, last)
        if rank is not None and first >= rank - 1:
            for h in range(H):
                table.close(h, first, rank)
        elif rank is None and first + 2 < d and 2 * first <= d:
            yield from _try_rank(table, first)
        if spanning and len(table.spaces) == H:
            table = yield from _spanning(table, first)
            break
        yield from answers.ask(_wanted(table, now), "columns")
        yield from _settle(table, now)
    last_move = table.settle_all()
    while tailed := table.tailed(given=rank is not None):
        yield from _read_whole(table, tailed, np.arange(k))
        last_move = table.settle_all()
    if np.any(table.lost) or last_move > UNSETTLED:
        raise CoincidentJumps
    unsettled = last_move * np.linalg.norm(table.W, axis=(1, 2))
    errors, off, base_off = table.errors(rng)
    return HeadColumns(table.W, errors + unsettled, table.ranks, off, base_off)


def no_columns(dim: int) -> HeadColumns:
    """Return the columns of no heads."""
    W, u = np.zeros((0, dim, dim)), np.zeros((0, dim))
    return HeadColumns(W, np.zeros(0), np.zeros(0, dtype=np.intp), W, u)


def blocks(d: int, k: int, rank: int | None, ample: float = 1.0) -> list[tuple[int, int]]:
    """Divide k columns: with a rank in two, else so that ranks can be tried between."""
    if rank is not None:
        cut = min(max(int(np.ceil(ample * rank)) - 1, 0), k)
        return [block for block in ((0, cut), (cut, k)) if block[0] < block[1]]
    edges = [0]
    while edges[-1] < k:
        at = edges[-1]
        step = 1 if at < TRIED else at // STEPS
        edges.append(min(k, at + step) if 2 * (at + step) <= d else k)
    return list(itertools.pairwise(edges))


def _wanted(table: ColumnTable, block: Indices) -> list[WindowCells]:
    """List what to ask of a block of columns; its first one may have been asked in part.

    The first columns of a head whose rank is known are asked with more rows than that.
    """
    wanted: list[WindowCells] = []
    for h, asked in enumerate(table.answers.asked):
        rows = table.rows_of(h)
        wanted += [(h, rows[~asked[rows, block[0]]], block[:1]), (h, rows, block[1:])]
        if h in table.spaces:
            space = table.spaces[h]
            new = block[(block < space.known + table.tuning.checked) & (block >= space.known)]
            asked_beside = asked[np.ix_(space.beside, new)].all(axis=0)
            wanted.append((h, space.beside, new[~asked_beside]))
    return wanted


def _try_rank(table: ColumnTable, column: int) -> Asking[None]:
    """Ask one column with as few rows as show whether those before predict it."""
    wanted: list[WindowCells] = []
    spaces = {h: space.unchecked() for h, space in table.spaces.items()}
    for h in range(len(table.W)):
        if h not in spaces:
            spaces[h] = table.space(h, column)
        wanted.append((h, spaces[h].both, np.array([column])))
    yield from table.answers.ask(wanted, "columns")
    # other heads' columns are not known yet: at first a prediction is held loosely
    predicted: list[int] = []
    for loosely in (True, True, True, False):
        predicted = []
        for h in table.heads.order:
            if table.predicts(h, column, spaces[h], loosely=loosely):
                predicted.append(h)
    for h in predicted:
        rank = spaces[h].basis.shape[1] - table.heads.shifted
        if column + 1 >= table.tuning.ample * rank:
            table.close(h, column)


def _spanning(table: ColumnTable, known: int) -> Asking[ColumnTable]:
    """Read the first columns in full, and more where they span a head badly; return these alone."""
    ranks, heads = table.ranks - table.heads.shifted, list(range(len(table.W)))
    yield from _read_whole(table, heads, np.arange(known))
    while known < table.W.shape[2] and not table.spanned_well(ranks, known):
        yield from _read_whole(table, heads, np.array([known]))
        known += 1
    return table.first(known)


def _read_whole(table: ColumnTable, heads: list[int], columns: Indices) -> Asking[None]:
    """Ask for what is left of some columns of some heads: more than their rank shows."""
    for h in heads:
        table.spaces.pop(h, None)  # if it leaves something beside it is of full rank
    missing: list[WindowCells] = [
        (h, np.flatnonzero(~table.answers.asked[h, :, j]), np.array([j]))
        for h, j in itertools.product(heads, columns)
    ]
    yield from table.answers.ask(missing, "columns")
    yield from _settle(table, columns)


def _settle(table: ColumnTable, columns: Indices) -> Asking[None]:
    """Settle columns; ask those whose logits moved too far again, closer to b."""
    answers = table.answers
    table.settle(columns)
    for _ in range(QUERY_NEARER_TIMES):
        lost = (table.lost | table.wide)[:, :, columns].any(axis=1)
        if not np.any(lost):
            return
        wanted: list[WindowCells] = []
        for h, n in zip(*np.nonzero(lost), strict=True):
            column = columns[n : n + 1]
            answers.t[h, column] /= QUERY_NEARER_BY
            table.W[h][:, column] = 0.0
            wanted.append((int(h), np.flatnonzero(answers.asked[h, :, column[0]]), column))
        yield from answers.ask(wanted, "columns again")
        table.settle(columns)
    raise CoincidentJumps


# -- what answers say


@dataclass(frozen=True, slots=True)
class ColumnTableTuning:
    """How columns are asked: where answers are coarse, or heads have positions, otherwise."""

    widest: float = np.inf
    """Logits beyond are asked again closer to b, though they can be read: where answers are coarse
    a gate near ±1 tells too little of them."""
    ample: float = 1.0
    """Columns that a column space is made of, per rank. As many as the rank tell it where answers
    are exact; coarse ones leave its weakest direction a hundred times coarser."""
    extra: int = 4
    """Rows more than its rank that a column is asked with to see whether those before predict it:
    one alone may be predicted by chance."""
    checked: int = 4
    """Columns that are asked with so many rows after the rank is known: what is left of them is
    read in full where answers show it, and counts to the bound where they do not."""


@dataclass(frozen=True, slots=True)
class ColumnSpace:
    """An orthonormal basis (d, r) of a head's columns, and rows of its window that tell them."""

    basis: Array
    rows: Indices
    beside: Indices
    """Rows that show what the others leave."""
    known: int
    """Columns that it was made of, the first ones."""

    def seen(self, window: Window) -> Skeleton:
        """Return what solves for vectors of the space from those rows."""
        return Skeleton(self.basis, window.a[self.rows])

    def unchecked(self) -> ColumnSpace:
        """Return the same without rows that show what is left."""
        return replace(self, beside=self.beside[:0])

    @property
    def both(self) -> Indices:
        """All rows that a column is checked with."""
        return np.concatenate([self.rows, self.beside])


@dataclass(frozen=True, slots=True)
class ColumnRests:
    """What is left of some columns at the rows beside those that solve for them, (m, k) each."""

    rest: Array
    noise: Array
    """What noise may leave there."""
    share: Array
    """What is left, as a share of the column's rows (k,)."""
    error: float
    """What one column is off by, for a tail without preferred directions."""

    @property
    def shown(self) -> bool:
        """Tell whether answers show more than noise leaves."""
        return bool(np.any(np.abs(self.rest) > NOISES * self.noise))


@dataclass(slots=True)
class ColumnTable:
    """All answers to the windows' offsets at b + t q, and what they say so far."""

    answers: WindowAnswers
    heads: WindowedHeads
    s: Array
    """Logits at b itself (H, d)."""
    W: Array
    """The columns (H, d, k)."""
    lost: Flags
    """Logits too large to be read, in the last sweep (H, d, k)."""
    wide: Flags
    """Logits larger than they should be (H, d, k)."""
    tuning: ColumnTableTuning
    spaces: dict[int, ColumnSpace]
    """Of the heads whose rank is known."""
    rested: dict[int, ColumnRests] = field(default_factory=dict)
    """What their columns leave beside these."""

    @classmethod
    def empty(cls, answers: WindowAnswers, s: Array, tuning: ColumnTableTuning) -> ColumnTable:
        """Return the table before any column is known."""
        lost, W = np.zeros(answers.y.shape, dtype=bool), np.zeros(answers.y.shape)
        return cls(answers, answers.token.seen, s, W, lost, lost.copy(), tuning, {})

    def first(self, count: int) -> ColumnTable:
        """Return the table of the first columns alone, which were read in full."""
        other = ColumnTable.empty(self.answers.first(count), self.s, self.tuning)
        other.W[:] = self.W[:, :, :count]
        return other

    @property
    def ranks(self) -> Indices:
        """Ranks of all W_h (H,), d where they were not found to be lower."""
        H, d, _ = self.W.shape
        spaces = self.spaces
        return np.array([spaces[h].basis.shape[1] if h in spaces else d for h in range(H)])

    def rows_of(self, h: int) -> Indices:
        """Return the rows that head h is asked with."""
        return self.spaces[h].rows if h in self.spaces else np.arange(self.W.shape[1])

    def read(self, h: int, rows: Indices, columns: Indices) -> Array:
        """Return head h's logits (rows, columns), given what is thought of the others."""
        t = self.answers.t[h, columns]
        y = self.answers.y[h][np.ix_(rows, columns)]
        a = self.heads.windows[h].a[rows]
        s, lost = self.heads.logits(h, a, y, t * self.W[:, :, columns])
        here = np.ix_(np.array([h]), rows, columns)
        # one step nearer is enough: a column that is asked much nearer is known too coarsely
        first = t >= self.heads.windows[h].t
        self.lost[here], self.wide[here] = lost, (np.abs(s) > self.tuning.widest) & first
        return s

    def space(self, h: int, known: int, rank: int | None = None) -> ColumnSpace:
        """Return the span of u_h and the first columns, up to a rank if that is given."""
        d, window = self.W.shape[1], self.heads.windows[h]
        vectors = np.column_stack([self.heads.u[h], self.W[h, :, :known]])
        length = np.linalg.norm(vectors, axis=0)
        with np.errstate(divide="ignore"):
            off = window.error * np.append(window.t, np.ones(known)) / length
        share = min(LOOSELY, COUNTED * float(np.max(off)))
        if self.heads.shifted:  # of a shift nothing is known beforehand
            spanned = basis_of(vectors[:-1], share=share)[:, :rank]
            basis = scipy.linalg.block_diag(spanned, np.eye(1))
        else:
            basis = basis_of(vectors, share=share)[:, :rank]
        noise = self.heads.error.of_logits(window.a, self.heads.v, h, self.s[h])
        rows = telling_rows(window.a, noise, basis)
        others = np.setdiff1d(np.arange(d), rows)
        quiet = others[np.argsort((noise / np.linalg.norm(window.a, axis=1))[others])]
        return ColumnSpace(basis, rows, np.sort(quiet[: self.tuning.extra]), known)

    def close(self, h: int, known: int, rank: int | None = None) -> None:
        """Take the span of u_h and the first columns as the column space of head h."""
        if h not in self.spaces:
            self.spaces[h] = self.space(h, known, rank)

    def spanned_well(self, ranks: Indices, known: int) -> bool:
        """Tell whether u_h and the first columns span all heads, of these ranks, far from badly."""
        for h, rank in enumerate(ranks):
            vectors = np.column_stack([self.heads.u[h], self.W[h, :, :known]])
            vectors = vectors[:-1] if self.heads.shifted else vectors
            if basis_of(vectors, share=SPANNED).shape[1] < min(rank, *vectors.shape):
                return False
        return True

    def predicts(self, h: int, column: int, space: ColumnSpace, *, loosely: bool) -> bool:
        """Tell whether the column of head h that was asked lies in a space; enter it."""
        columns = np.array([column])
        rests = self.rests(h, space, columns)
        size = np.linalg.norm(self._changes(h, space.both, columns)[:, 0])
        allowed = np.minimum(NOISES * rests.noise[:, 0], LOOSELY * size)
        if loosely:
            allowed = allowed + LOOSELY * size
        fits = bool(np.all(np.abs(rests.rest[:, 0]) < allowed))
        fits &= not np.any(self.lost[h, space.both, column])
        here = self._changes(h, space.rows, columns)
        skeleton = space.seen(self.heads.windows[h])
        self.W[h, :, column] = skeleton.solve(here)[:, 0] if fits else 0.0
        return fits

    def rests(self, h: int, space: ColumnSpace, columns: Indices) -> ColumnRests:
        """Return what columns, asked at all rows of a space, leave beside it."""
        known, count = np.arange(space.known), len(space.rows)
        vectors = np.column_stack([self.heads.u[h], self.W[h][:, known]])
        A, M = self.heads.windows[h].a[space.both], self._changes(h, space.both, columns)
        noise = self._noise(h, space.both, columns)
        base = self.heads.error.of_logits(A, self.heads.v, h, self.s[h, space.both])
        before = np.column_stack([base, self._noise(h, space.both, known)])
        A_R, A_X = A[:count], A[count:]
        skeleton = Skeleton(space.basis, A_R)
        C = np.asarray(np.linalg.lstsq(skeleton.core.T, (A_X @ space.basis).T, rcond=None)[0].T)

        def carried(noise: Array) -> Array:
            return np.asarray(noise[count:] ** 2 + C**2 @ noise[:count] ** 2)

        rest = M[count:] - C @ M[:count]
        # how much of every earlier column is in each of these
        k = np.linalg.lstsq(vectors, skeleton.solve(M[:count]), rcond=None)[0]
        square = carried(noise) + carried(before) @ k**2
        sees = np.linalg.norm(A_X - C @ A_R, axis=1)
        tau = np.abs(rest) / np.where(sees > 0, sees, np.inf)[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.linalg.norm(rest, axis=0) / np.linalg.norm(M, axis=0)
        # a tail has d directions, of which a checking row sees one
        d = len(space.basis)
        tail = float(np.sqrt(d * np.mean(tau**2))) if tau.size else 0.0
        tilt = float(np.linalg.norm(np.eye(d) - skeleton.solve(A_R))) / np.sqrt(d)
        return ColumnRests(rest, np.sqrt(square), np.nan_to_num(share), tilt * tail)

    def _changes(self, h: int, rows: Indices, columns: Indices) -> Array:
        """Return a·W_h q as it was read (rows, columns)."""
        s = self.read(h, rows, columns)
        return np.asarray((s - self.s[h, rows, None]) / self.answers.t[h, columns])

    def _noise(self, h: int, rows: Indices, columns: Indices) -> Array:
        """Return how far those may be off (rows, columns)."""
        a, error, v = self.heads.windows[h].a[rows], self.heads.error, self.heads.v
        t = self.answers.t[h, columns]
        s = self.s[h, rows, None] + t * (a @ self.W[h][:, columns])
        s = np.column_stack([self.s[h, rows], s])
        noise = np.array([error.of_logits(a, v, h, column) for column in s.T]).T
        unread = self._of_unread(h, rows, columns)
        return np.asarray((noise[:, :1] + noise[:, 1:] + unread) / t)

    def _of_unread(self, h: int, rows: Indices, columns: Indices) -> Array:
        """Return how far logits of head h may be off for other heads' columns that are not known.

        Their gates are nearly saturated, and move a little with the query token.
        """
        heads, a = self.heads, self.heads.windows[h].a[rows]
        off = np.zeros((len(rows), len(columns)))
        for g in range(len(self.W)):
            unknown = ~np.any(self.W[g][:, columns], axis=0)
            if g == h or not np.any(unknown):
                continue
            known = max(1, int(np.count_nonzero(np.any(self.W[g], axis=0))))
            column = np.linalg.norm(self.W[g]) / np.sqrt(known)
            open_by = 1 - np.square(np.tanh(a @ heads.u[g] / 2))
            moved = open_by * np.abs(a @ heads.v[g]) * np.linalg.norm(a, axis=1) * column
            off += moved[:, None] * unknown * self.answers.t[h, columns]
        own = np.cosh(self.s[h, rows] / 2) ** 2 / np.abs(a @ heads.v[h])
        return np.asarray(own[:, None] * off)

    def settle(self, columns: Indices) -> float:
        """Sweep over heads until all columns agree with the answers; return how much moved last."""
        self.wide[:, :, columns] = False  # rows that only checked are not read again

        def sweep() -> float:
            before = self.W[:, :, columns].copy()
            for h in self.heads.order:
                self._solve(h, columns)
            return moved(self.W[:, :, columns], before)

        return swept(sweep)

    def settle_all(self) -> float:
        """Settle all columns, take column spaces anew from the first ones, settle again."""
        every = np.arange(self.W.shape[2])
        last = self.settle(every)
        if not self.spaces:
            return last
        for h, space in self.spaces.items():
            vectors = np.column_stack([self.heads.u[h], self.W[h][:, : space.known]])
            self.spaces[h] = replace(space, basis=basis_of(vectors, space.basis.shape[1]))
        last = self.settle(every)
        for h, space in self.spaces.items():
            checked = np.flatnonzero(self.answers.asked[h][space.both].all(axis=0))
            self.rested[h] = self.rests(h, space, checked[checked >= space.known])
        return last

    def tailed(self, given: bool) -> list[int]:
        """List closed heads whose columns leave more than noise; a given rank excuses no more."""
        rested = self.rested
        return [
            h
            for h in self.spaces
            if rested[h].shown and not (given and np.max(rested[h].share, initial=0.0) > TAIL)
        ]

    def _solve(self, h: int, columns: Indices) -> None:
        """Solve for some columns of head h, given the other heads."""
        window, every = self.heads.windows[h], np.arange(self.W.shape[1])
        t, full = self.answers.t[h], self.answers.asked[h][:, columns].all(axis=0)
        if np.any(full):
            now = columns[full]
            change = self.read(h, every, now) - self.s[h][:, None]
            self.W[h][:, now] = np.linalg.solve(window.a, change) / t[now]
        if not np.all(full):
            now = columns[~full]
            space = self.spaces[h]
            change = self.read(h, space.rows, now) - self.s[h, space.rows][:, None]
            self.W[h][:, now] = space.seen(window).solve(change) / t[now]

    def errors(self, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        """Estimate ‖ΔW_h‖_F: what moves when answers and values are off by as much as they may be.

        One head's errors pass on to others, and those of the first columns to a column space.
        Returns what each entry of W and u moves by as well.
        """
        errors = np.zeros(len(self.W))
        W_off, u_off = np.zeros(self.W.shape), np.zeros(self.heads.u.shape)
        entries = max(1, self.W[0].size)  # of a head of rank 1 u alone may have been read
        for _ in range(max(DISTURBED, SEEN // entries)):
            other = self._perturbed(rng)
            W, u = other.W - self.W, other.heads.u - self.heads.u
            along = np.linalg.norm(u, axis=1) / self.heads.error.length
            errors = np.maximum(errors, np.hypot(np.linalg.norm(W, axis=(1, 2)), along))
            W_off, u_off = np.maximum(W_off, np.abs(W)), np.maximum(u_off, np.abs(u))
        tails = self._of_tails()
        spread = (tails / np.sqrt(entries))[:, None, None]
        return np.hypot(errors, tails), np.hypot(W_off, spread), u_off

    def _of_tails(self) -> Array:
        """Return what heads are off by for what their columns may leave beside their space."""
        off = np.zeros(len(self.W))
        for h in self.spaces:
            few = np.count_nonzero(~self.answers.asked[h].all(axis=0))
            off[h] = self.rested[h].error * np.sqrt(few)
        return off

    def _perturbed(self, rng: np.random.Generator) -> ColumnTable:
        """Return what other answers and values, off by as much as they may be, would have given."""
        heads = self.heads
        off = [
            heads.error.of_readings(window.a, heads.v, h)[:, None]
            for h, window in enumerate(heads.windows)
        ]
        noise = np.array(off).reshape(*heads.u.shape, 1)
        turned = rng.standard_normal(heads.v.shape)
        turned *= heads.error.v_error / np.linalg.norm(turned, axis=1, keepdims=True)
        y = np.array([predicted(heads.v, heads.u, window.a) for window in heads.windows])
        y = y.reshape(noise.shape) + noise * rng.standard_normal(noise.shape)
        there, s, _ = settled_base(replace(heads, v=heads.v + turned), y)
        columns = self.answers.y + noise * rng.standard_normal(self.answers.y.shape)
        other = ColumnTable.empty(replace(self.answers, y=columns), s, self.tuning)
        other.heads, other.spaces = there, dict(self.spaces)
        other.W[:] = self.W
        other.settle_all()
        return other


def telling_rows(A: Array, noise: Array, basis: Array) -> Indices:
    """Choose as many rows of A (d, d) as solve for vectors of a span, with little error.

    Noise of the rows and a tail that it hides count alike. Pivoted QR takes what is long: rows
    weighted at random offer other choices.
    """
    length, rank = np.linalg.norm(A, axis=1), basis.shape[1]
    rng, hidden = np.random.default_rng(rank), np.median(noise / length)
    best, least = np.arange(rank), np.inf
    for n in range(CHOICES):
        weight = length * np.exp(rng.standard_normal(len(A)) * (n > 0))
        rows = pivots((A @ basis / weight[:, None]).T, rank)
        try:
            inverse = np.linalg.inv(A[rows] @ basis)
        except np.linalg.LinAlgError:
            continue
        error = np.hypot(
            np.linalg.norm(inverse * noise[rows]), hidden * np.linalg.norm(inverse @ A[rows])
        )
        if error < least:
            best, least = rows, error
    return best
