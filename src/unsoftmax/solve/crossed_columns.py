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

    @classmethod
    def of(cls, columns: Array, first: int, last: int) -> WindowColumns:
        """Prepare columns ``first`` to ``last`` − 1 of (m, n)."""
        U, s, Vt = np.linalg.svd(columns[:, first:last])
        n = last - first
        inverse = (Vt.T / s) @ U[:, :n].T
        return cls(first, last, inverse, U[:, n:].T, np.linalg.norm(inverse, axis=1))


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
    """For each set of readings the (k, l, f) that were found."""
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
        left = self._left(y)
        limit = self._limit(noise)
        crossed: list[tuple[tuple[int, int, float], ...]] = [()] * y.shape[1]
        bad = np.any([np.linalg.norm(r, axis=1) > b for r, b in zip(left, limit, strict=True)], 0)
        if np.any(bad):
            atoms, names = self._atoms()
            for i in np.flatnonzero(bad):
                target = np.concatenate([r[i] for r in left])
                stop = float(np.linalg.norm(limit[:, i]))
                found = _pursued(atoms, target, stop, self.tuning.most)
                crossed[i] = tuple((*names[a], f) for a, f in found)
                for k, l, f in crossed[i]:
                    y[k, i] -= f * self.columns[:, l]
        left = self._left(y)
        norms = np.array([np.linalg.norm(r, axis=1) for r in left])
        solved = np.asarray(np.all(norms <= limit, axis=0))
        degrees = np.array([max(1, len(w.rest)) for w in self.windows])
        residual = norms / np.sqrt(degrees)[:, None]
        alpha = np.vstack(
            [w.inverse @ (y[k + 1] - y[k]).T for k, w in enumerate(self.windows)]
        )
        return Unmixed(alpha, y, residual, tuple(crossed), solved)

    def _limit(self, noise: Array) -> Array:
        degrees = np.array([max(1, len(w.rest)) for w in self.windows])
        return np.asarray(self.tuning.errors * noise * np.sqrt(degrees)[:, None])

    def _left(self, y: Array) -> list[Array]:
        """Return the part of every difference that no column of its window explains."""
        return [(y[k + 1] - y[k]) @ w.rest.T for k, w in enumerate(self.windows)]

    def _atoms(self) -> tuple[Array, list[tuple[int, int]]]:
        """Return what each (reading, column) does to the residuals of all windows, as columns."""
        names = [(k, int(l)) for k, near in enumerate(self.near) for l in near]
        sizes = [len(w.rest) for w in self.windows]
        starts = np.cumsum([0, *sizes])
        atoms = np.zeros((starts[-1], len(names)))
        at = 0
        for k, near in enumerate(self.near):
            here = slice(at, at + len(near))
            if k < len(self.windows):
                atoms[starts[k] : starts[k + 1], here] = -(
                    self.windows[k].rest @ self.columns[:, near]
                )
            if k:
                atoms[starts[k - 1] : starts[k], here] = (
                    self.windows[k - 1].rest @ self.columns[:, near]
                )
            at += len(near)
        return atoms, names


def _pursued(
    atoms: Array, target: Array, stop: float, most: int
) -> list[tuple[int, float]]:
    """Explain a vector by few atoms with positive shares, one after the other."""
    size = np.linalg.norm(atoms, axis=0)
    # an atom that the residuals hardly show explains nothing
    usable = size > 1e-6 * np.max(size, initial=0.0)
    unit = np.where(usable, size, np.inf)
    chosen: list[int] = []
    share, left = np.zeros(0), target
    while np.linalg.norm(left) > stop and len(chosen) < min(most, len(target) // 2):
        match = (left @ atoms) / unit
        match[chosen] = -np.inf
        chosen.append(int(np.argmax(match)))
        share, *_ = np.linalg.lstsq(atoms[:, chosen], target, rcond=None)
        left = target - atoms[:, chosen] @ share
    return list(zip(chosen, share.tolist(), strict=True))
