"""Columns W_h q of all heads, solved from what their windows answered at b + t q.

    W_h q = A_h⁻¹ (s_h(b + t q) − s_h(b)) / t,   s_h(b + t q) = A_h u_h(b + t q)

A_h holds the offsets of window h, s_h their logits. A head whose column space C_h is known is
solved for from as many rows as its rank, W_h q = C_h (A_h C_h)⁻¹ (…) (`solve.skeleton`). Nothing is
asked here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.learners.multi_head.window_sweeps import (
    SweepTuning,
    WindowAnswers,
    moved,
    settled_base,
    swept,
)
from unsoftmax.measure.windows import Window, WindowedHeads, predicted
from unsoftmax.probes import Array, Flags, Indices
from unsoftmax.solve.skeleton import Skeleton, pivots, span


@dataclass(frozen=True, slots=True)
class ColumnTableTuning:
    """How columns are asked again, ranks found and errors estimated."""

    sweep: SweepTuning = field(default=SweepTuning())
    query_nearer_by: float = 5.0
    """Where a logit is too large to be read, the query token is asked again so many times closer to
    b. A larger factor loses more digits of W b at once, a smaller one takes more rounds."""
    query_nearer_times: int = 6
    """Times that this is done: a logit that is still too large then is read wrongly."""
    tried: int = 8
    """Ranks up to this one are tried one by one, each in a round of its own."""
    steps: int = 8
    """Larger ranks are tried in steps of the columns known over this, up to half of d: fewer
    rounds, and at most an eighth more queries."""
    predicted: float = 1e-6
    """A column is predicted by those before if what is left of a row is this small, relative to
    the column's rows; singular values below this share of the largest do not count to a column
    space. Larger: small singular values of W are lost; smaller: noise counts as rank."""
    loosely: float = 1e-3
    """The same while the other heads' columns are not known, which move saturated gates a little;
    and the most that noise may excuse."""
    noises: float = 30.0
    """Rows that are left may be so many times their noise instead."""
    seen: int = 64
    """Answers are perturbed at random until so many errors of a head's entries were seen: the
    largest of few would be too small by chance."""
    disturbed: int = 2
    """Times that they are perturbed at least; the largest change is taken as the error of W_h."""


@dataclass(frozen=True, slots=True)
class ColumnSpace:
    """An orthonormal basis (d, r) of a head's columns, and rows of its window that tell them."""

    basis: Array
    rows: Indices

    def seen(self, window: Window) -> Skeleton:
        """Return what solves for vectors of the space from those rows."""
        return Skeleton(self.basis, window.a[self.rows])


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
    tuning: ColumnTableTuning
    spaces: dict[int, ColumnSpace]
    """Of the heads whose rank is known."""

    @classmethod
    def empty(cls, answers: WindowAnswers, s: Array, tuning: ColumnTableTuning) -> ColumnTable:
        """Return the table before any column is known."""
        lost, W = np.zeros(answers.y.shape, dtype=bool), np.zeros(answers.y.shape)
        return cls(answers, answers.token.seen, s, W, lost, tuning, {})

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
        self.lost[np.ix_(np.array([h]), rows, columns)] = lost
        return s

    def space(self, h: int, known: int, extra: int = 0) -> ColumnSpace:
        """Return the span of u_h and the first columns, with ``extra`` rows more than its rank."""
        vectors = np.column_stack([self.heads.u[h], self.W[h, :, :known]])
        basis = span(vectors, share=self.tuning.predicted)
        seen = self.heads.windows[h].a @ basis
        return ColumnSpace(basis, pivots(seen.T, basis.shape[1] + extra))

    def close(self, h: int, known: int) -> None:
        """Take the span of u_h and the first columns as the column space of head h."""
        if h not in self.spaces:
            self.spaces[h] = self.space(h, known)

    def predicts(self, h: int, column: int, space: ColumnSpace, tolerance: float) -> bool:
        """Tell whether the column of head h that was asked lies in a space; enter it."""
        rows = np.flatnonzero(self.answers.asked[h, :, column])
        s = self.read(h, rows, np.array([column]))
        t, a = self.answers.t[h, column], self.heads.windows[h].a[rows]
        change = (s[:, 0] - self.s[h, rows]) / t
        skeleton = Skeleton(space.basis, a)
        noise = self.heads.error.of_logits(a, self.heads.v, h, s[:, 0]) / t
        size, loosely = np.linalg.norm(change), self.tuning.loosely
        allowed = tolerance * size + np.minimum(self.tuning.noises * noise, loosely * size)
        fits = bool(np.all(np.abs(skeleton.residual(change)) < allowed))
        fits &= not np.any(self.lost[h, rows, column])
        self.W[h, :, column] = skeleton.solve(change) if fits else 0.0
        return fits

    def settle(self, columns: Indices) -> float:
        """Sweep over heads until all columns agree with the answers; return how much moved last."""

        def sweep() -> float:
            before = self.W[:, :, columns].copy()
            for h in self.heads.order:
                self._solve(h, columns)
            return moved(self.W[:, :, columns], before)

        return swept(sweep, self.tuning.sweep)

    def settle_all(self) -> float:
        """Settle all columns, take column spaces anew from those that were asked whole, again."""
        every = np.arange(self.W.shape[2])
        last = self.settle(every)
        if not self.spaces:
            return last
        for h, space in self.spaces.items():
            full = np.flatnonzero(self.answers.asked[h].all(axis=0))
            vectors = np.column_stack([self.heads.u[h], self.W[h][:, full]])
            self.spaces[h] = replace(space, basis=span(vectors, space.basis.shape[1]))
        return self.settle(every)

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

    def errors(self, rng: np.random.Generator) -> Array:
        """Estimate ‖ΔW_h‖_F: what moves when answers and values are off by as much as they may be.

        One head's errors pass on to others, and those of the first columns to a column space.
        """
        tuning, errors = self.tuning, np.zeros(len(self.W))
        for _ in range(max(tuning.disturbed, tuning.seen // self.W[0].size)):
            other = self._perturbed(rng)
            columns = np.linalg.norm(other.W - self.W, axis=(1, 2))
            along = np.linalg.norm(other.heads.u - self.heads.u, axis=1) / self.heads.error.length
            errors = np.maximum(errors, np.hypot(columns, along))
        return errors

    def _perturbed(self, rng: np.random.Generator) -> ColumnTable:
        """Return what other answers and values, off by as much as they may be, would have given."""
        heads = self.heads
        off = [heads.error.of_answers(window.a, heads.v)[:, None] for window in heads.windows]
        noise = np.array(off).reshape(*heads.u.shape, 1)
        turned = rng.standard_normal(heads.v.shape)
        turned *= heads.error.v_error / np.linalg.norm(turned, axis=1, keepdims=True)
        y = np.array([predicted(heads.v, heads.u, window.a) for window in heads.windows])
        y = y.reshape(noise.shape) + noise * rng.standard_normal(noise.shape)
        there, s, _ = settled_base(replace(heads, v=heads.v + turned), y, self.tuning.sweep)
        columns = self.answers.y
        other = replace(
            self,
            answers=replace(self.answers, y=columns + noise * rng.standard_normal(columns.shape)),
            heads=there,
            s=s,
            W=self.W.copy(),
            lost=self.lost.copy(),
            spaces=dict(self.spaces),
        )
        other.settle_all()
        return other
