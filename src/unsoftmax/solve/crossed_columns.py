"""Least squares in a chain of windows, where few readings are off along known vectors.

Readings y_0 … y_K in R^m differ from one to the next by what the columns between them add,

    y_{k+1} − y_k = Σ_{j in window k} α_j b_j + errors,

with fewer columns per window than m. So a part of every difference, that orthogonal to the
window's columns, must vanish. Where it does not, some y_k is off by f·b_l, f > 0, for a few l
(a step from the place k that crossed hyperplane l): they are found one by one, in the directions
of the residuals of both windows beside k (orthogonal matching pursuit), and taken off.

A column of window k that y_k alone is off by shows in window k − 1, and that of the first or last
reading's own window nowhere: what is found must be checked against α.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from unsoftmax.probes import Array, Flags, Indices


@dataclass(frozen=True, slots=True)
class CrossedColumnTuning:
    """How readings that are off are recognised."""

    errors: float = 6.0
    """Residuals up to so many times their expected size are errors of the answers."""
    most: int = 12
    """Limit on the columns that are found for one set of readings."""
    least: int = 4
    """With fewer equations than this to spare in a window any column explains a residual, and none
    is looked for."""


@dataclass(frozen=True, slots=True)
class WindowColumns:
    """The columns of one window, with what solves for them."""

    first: int
    last: int
    inverse: Array
    """(columns, m): the pseudoinverse."""
    rest: Array
    """(s, m): orthonormal rows that vanish on the columns."""
    gain: Array
    """Errors of α_j per unit of an error in each number of a difference."""
    along: Array
    """(k, m): what solves for the coefficients of the columns beside them."""

    @classmethod
    def of(
        cls, columns: Array, first: int, last: int, beside: Array | None = None
    ) -> WindowColumns:
        """Prepare columns ``first`` to ``last`` − 1 of (m, n), and others beside them (m, k)."""
        n, own = last - first, columns[:, first:last]
        every = own if beside is None else np.column_stack([own, beside])
        U, s, Vt = np.linalg.svd(every)
        inverse = (Vt.T / s) @ U[:, : len(s)].T
        gain = np.linalg.norm(inverse[:n], axis=1)
        return cls(first, last, inverse[:n], U[:, len(s) :].T, gain, inverse[n:])


@dataclass(frozen=True, slots=True)
class Unmixed:
    """Coefficients of all columns, and which readings were off."""

    alpha: Array
    """(n, D)."""
    readings: Array
    """(K + 1, D, m), without what they were found to be off by."""
    residual: Array
    """(windows, D): norm of what is left of the differences, per number."""
    crossed: tuple[tuple[tuple[int, int, float], ...], ...]
    """For each set of readings the (k, column, f) that were found."""
    solved: Flags
    """(D,): whether residuals are errors alone."""


@dataclass(frozen=True, slots=True)
class WindowChain:
    """Columns in windows, and readings between them."""

    columns: Array
    """(m, n), in the order of the windows."""
    windows: tuple[WindowColumns, ...]
    near: tuple[Indices, ...]
    """For each reading the columns that it may be off by."""
    tuning: CrossedColumnTuning = field(default=CrossedColumnTuning())

    def solve(self, readings: Array, noise: Array) -> Unmixed:
        """Solve D sets of readings (K + 1, D, m), with errors per number (windows, D)."""
        y = readings.copy()
        left, limit = self._left(y), self._limit(noise)
        crossed: list[tuple[tuple[int, int, float], ...]] = [()] * y.shape[1]
        bad = np.any([np.linalg.norm(r, axis=1) > b for r, b in zip(left, limit, strict=True)], 0)
        if np.any(bad) and min(len(w.rest) for w in self.windows) >= self.tuning.least:
            atoms = self._atoms()
            for i in np.flatnonzero(bad):
                target = np.concatenate([r[i] for r in left])
                stop = float(np.linalg.norm(limit[:, i]))
                crossed[i] = tuple(atoms.pursued(target, stop, self.tuning.most))
                for k, column, f in crossed[i]:
                    y[k, i] -= f * self.columns[:, column]
        left = self._left(y)
        norms = np.array([np.linalg.norm(r, axis=1) for r in left])
        solved = np.asarray(np.all(norms <= limit, axis=0))
        degrees = np.array([max(1, len(w.rest)) for w in self.windows])
        residual = norms / np.sqrt(degrees)[:, None]
        alpha = np.vstack([w.inverse @ (y[k + 1] - y[k]).T for k, w in enumerate(self.windows)])
        return Unmixed(alpha, y, residual, tuple(crossed), solved)

    def _limit(self, noise: Array) -> Array:
        degrees = np.array([max(1, len(w.rest)) for w in self.windows])
        return np.asarray(self.tuning.errors * noise * np.sqrt(degrees)[:, None])

    def _left(self, y: Array) -> list[Array]:
        """Return the part of every difference that no column of its window explains."""
        return [(y[k + 1] - y[k]) @ w.rest.T for k, w in enumerate(self.windows)]

    def _atoms(self) -> ResidualAtoms:
        """Return what each column does to the residuals beside each reading that it is off by."""
        starts = np.cumsum([0, *(len(w.rest) for w in self.windows)])
        blocks, spans = [], []
        for k, near in enumerate(self.near):
            beside = [(-1.0, w) for w in self.windows[k : k + 1]]
            beside = [(1.0, w) for w in self.windows[k - 1 : k] if k] + beside
            blocks.append(
                np.vstack([sign * (w.rest @ self.columns[:, near]) for sign, w in beside])
            )
            first = int(starts[max(k - 1, 0)])
            spans.append(slice(first, first + len(blocks[-1])))
        return ResidualAtoms(tuple(blocks), tuple(spans), self.near)


@dataclass(frozen=True, slots=True)
class ResidualAtoms:
    """What a reading that is off along a column leaves of the two differences beside it."""

    blocks: tuple[Array, ...]
    """For each reading (s, columns), in the rows ``spans`` of all residuals."""
    spans: tuple[slice, ...]
    near: tuple[Indices, ...]
    hidden: float = 1e-6
    """An atom of which the residuals show no more than this explains nothing."""

    def pursued(self, target: Array, stop: float, most: int) -> Iterator[tuple[int, int, float]]:
        """Explain residuals by few (reading, column, share), one after the other."""
        sizes = [np.linalg.norm(block, axis=0) for block in self.blocks]
        chosen: list[tuple[int, int]] = []
        columns, left, share = np.zeros((len(target), 0)), target, target[:0]
        while np.linalg.norm(left) > stop and len(chosen) < min(most, len(target) // 2):
            best, match = (0, 0), -np.inf
            for k, (block, span, size) in enumerate(
                zip(self.blocks, self.spans, sizes, strict=True)
            ):
                along = (left[span] @ block) / np.where(size > self.hidden, size, np.inf)
                along[[at for one, at in chosen if one == k]] = -np.inf
                at = int(np.argmax(along))
                if along[at] > match:
                    best, match = (k, at), float(along[at])
            if sizes[best[0]][best[1]] <= self.hidden:
                break  # nothing that shows explains what is left
            chosen.append(best)
            column = np.zeros((len(target), 1))
            column[self.spans[best[0]], 0] = self.blocks[best[0]][:, best[1]]
            columns = np.hstack([columns, column])
            share = np.asarray(np.linalg.lstsq(columns, target, rcond=None)[0], dtype=np.float64)
            left = target - columns @ share
        for (k, at), f in zip(chosen, share.tolist(), strict=True):
            yield k, int(self.near[k][at]), f
