"""All input weights from steps beside one line: J_kδ at places between groups of kinks.

At places t_k on the line x₀ + t x₁, between groups of fewer than d_out kinks, one query per place
and direction δ of an orthonormal basis gives J_kδ, and

    J_{k+1}δ − J_kδ = Σ_{j between} b_j (a_j·δ),

b_j being the directions of the jumps that the line showed and a_j·x₁ > 0: about m + 2d queries for
all a_j. Steps are so long that some cross a hyperplane: which ones is found by what they leave of
the equations (`solve.crossed_columns`). Where that fails the direction is asked again with shorter
steps. What was asked is solved once more when the b_j are known better (`hyperplane_spots`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.arrangement.vector_kinks import LineKinks
from unsoftmax.errors import ModelMismatch
from unsoftmax.probes import Array, Flags, Indices, Round
from unsoftmax.protocol import Answers
from unsoftmax.solve.crossed_columns import (
    CrossedColumnTuning,
    Unmixed,
    WindowChain,
    WindowColumns,
)

AskTokens = Callable[[Array], Generator[Round, Answers, Array]]
"""Asks tokens (n, d), one round: answers (n, m)."""


@dataclass(frozen=True, slots=True)
class LineCellTuning:
    """Where steps are taken, and how long they are."""

    share: float = 0.85
    """Kinks between two places, in numbers of an answer. More: fewer queries; less is left to see
    crossed hyperplanes by."""
    gain: float = 300.0
    """Condition of a group's columns beyond which it is divided: parallel columns."""
    crossings: float = 0.4
    """Expected number of hyperplanes that a step crosses, if neurons have all directions alike.
    Longer steps are more precise; more of them have to be asked again."""
    ends: float = 0.1
    """Steps of the first and last place are this share of it: what is crossed there by neurons of
    the group beside shows nowhere."""
    shorter: float = 1 / 16
    """Steps of a direction that is asked again."""
    again: int = 6
    """Limit on how often a direction is asked."""
    apart: float = 0.02
    """What a step went beyond a hyperplane must be what the neuron's row says, to this share of the
    way to it."""
    near: int = 512
    """Number of hyperplanes of a place that a step is tried to have crossed."""
    beyond: float = 4.0
    """Where the first and the last place are, in distances of the farthest kink."""
    columns: CrossedColumnTuning = field(default=CrossedColumnTuning())


@dataclass(frozen=True, slots=True)
class SolvedRows:
    """What readings along directions say of all neurons."""

    good: Flags
    """(d,): which directions are sure."""
    along: Array
    """a_j·δ (m, d)."""
    errors: Array
    """(m, d)."""
    first: Array
    """(d, d_out): J δ before the first kink."""


@dataclass(frozen=True, slots=True)
class CellReadings:
    """Differences from places on a line along all directions, per unit of length."""

    t: Array
    """Kinks of the line."""
    steepness: Array
    """a_j·x₁ (m,), as the line showed it."""
    cuts: Indices
    """Between which of them the places are: 0 … m."""
    places: Array
    y: Array
    """(places, d, d_out)."""
    errors: Array
    """(places, d): errors per number."""
    step: Array
    """(places, d)."""
    tuning: LineCellTuning

    def of(self, directions: Indices) -> CellReadings:
        """Return what was read along some of the directions."""
        y, errors, step = (a[:, directions] for a in (self.y, self.errors, self.step))
        return replace(self, y=y, errors=errors, step=step)

    def solved(self, columns: Array, column_error: Array) -> SolvedRows:
        """Solve for all rows.

        Parameters
        ----------
        columns : ndarray, shape (m, d_out)
            Directions of the jumps, of norm 1.
        column_error : ndarray, shape (m,)
            What they are off by (2-norm).
        """
        chain = self._chain(columns.T)
        if not chain.windows:
            none = np.zeros((0, self.y.shape[1]))
            return SolvedRows(np.full(self.y.shape[1], True), none, none, self.y[0])
        noise = np.hypot(self.errors[1:], self.errors[:-1])
        noise = np.hypot(noise, self._from_columns(chain, column_error)[:, None])
        found = chain.solve(self.y, noise)
        good = found.solved & self._consistent(found, chain)
        gains = np.concatenate([w.gain for w in chain.windows])
        window = np.repeat(np.arange(len(chain.windows)), np.diff(self.cuts))
        errors = gains[:, None] * np.maximum(noise, found.residual)[window]
        return SolvedRows(good, found.alpha, errors, found.readings[0])

    def _chain(self, columns: Array) -> WindowChain:
        windows = tuple(
            WindowColumns.of(columns, int(a), int(b))
            for a, b in zip(self.cuts, self.cuts[1:], strict=False)
        )
        near = tuple(
            np.argsort(np.abs(self.t - place))[: self.tuning.near] for place in self.places
        )
        return WindowChain(columns, windows, near, self.tuning.columns)

    def _from_columns(self, chain: WindowChain, column_error: Array) -> Array:
        """Return what errors of the columns typically do to the differences, per number."""
        typical = []
        for k, w in enumerate(chain.windows):
            alpha = np.median(np.abs(w.inverse @ (self.y[k + 1] - self.y[k]).T), axis=1)
            typical.append(np.linalg.norm(alpha * column_error[w.first : w.last]))
        return 1.5 * np.array(typical) / np.sqrt(self.y.shape[2])

    def _consistent(self, found: Unmixed, chain: WindowChain) -> Flags:
        """Tell which directions cross just the hyperplanes that were found to be crossed."""
        alpha, good = found.alpha, np.full(found.alpha.shape[1], True)
        for k, place in enumerate(self.places):
            to = ((place - self.t) * self.steepness)[:, None] / self.step[k]
            moved = to + alpha
            excess = np.where(np.sign(moved) != np.sign(to), np.abs(moved), 0.0)
            for i, crossed in enumerate(found.crossed):
                for at, l, f in crossed:
                    if at == k:
                        excess[l, i] -= f
            good &= np.all(np.abs(excess) <= self.tuning.apart * np.abs(to), axis=0)
            if k in (0, len(self.places) - 1):
                # crossed by a neuron of the group beside, a row comes out as the way to it
                w = chain.windows[0 if k == 0 else -1]
                own = slice(w.first, w.last)
                edge = np.abs(moved[own]) < self.tuning.apart * np.abs(to[own])
                good &= ~np.any(edge, axis=0)
        return good


@dataclass(frozen=True, slots=True)
class LineCells:
    """Places on a line, and steps from them."""

    ask: AskTokens
    kinks: LineKinks
    basis: Array
    """Orthonormal directions (d, d), the line's own first."""
    origin: Array
    """x₀."""
    length: float
    own_error: Callable[[float], float]
    """Error of an answer (2-norm) at t."""
    tuning: LineCellTuning = field(default=LineCellTuning(), kw_only=True)

    def run(self) -> Generator[Round, Answers, CellReadings]:
        """Ask until all directions are sure.

        Raises
        ------
        ModelMismatch
            Some contradict the neurons that the line showed.
        """
        d, d_out = len(self.basis), len(self.kinks.pieces[0].value)
        cuts = self._cuts(d_out)
        places = self._places(cuts)
        x = self.origin + places[:, None] * self.basis[0]
        values = yield from self.ask(x)
        own = np.array([self.own_error(t) for t in places]) * np.sqrt(2 / d_out)
        shape, step = (len(places), d), self._steps(places)
        columns, column_error, steepness = self.jumps()
        y, steps, left = np.zeros((*shape, d_out)), np.ones(shape), np.arange(d)
        for _ in range(self.tuning.again):
            if not len(left):
                break
            tokens = x[:, None] + step[:, None, None] * self.basis[left]
            answers = yield from self.ask(tokens.reshape(-1, d))
            answers = answers.reshape(len(places), len(left), d_out) - values[:, None]
            y[:, left], steps[:, left] = answers / step[:, None, None], step[:, None]
            readings = CellReadings(
                self.kinks.t, steepness, cuts, places, y, own[:, None] / steps, steps, self.tuning
            )
            good = readings.of(left).solved(columns, column_error).good
            left, step = left[~good], step * self.tuning.shorter
        if len(left):
            raise ModelMismatch(
                f"In {len(left)} of {d} directions the answers beside a line contradict the "
                f"{len(self.kinks.t)} neurons that it showed: the target is no feed-forward layer "
                "of one hidden layer of ReLUs, or has neurons too close to each other for these "
                "answers."
            )
        return readings

    def jumps(self) -> tuple[Array, Array, Array]:
        """Return the directions of the jumps, what they are off by, and the jumps' sizes."""
        size = np.linalg.norm(self.kinks.jumps, axis=1)
        slopes = np.array([piece.slope_error for piece in self.kinks.pieces])
        return self.kinks.jumps / size[:, None], np.hypot(slopes[1:], slopes[:-1]) / size, size

    def _cuts(self, d_out: int) -> Indices:
        """Divide the kinks into groups, at wide pieces."""
        n = len(self.kinks.t)
        most = max(1, min(int(self.tuning.share * d_out), d_out - 1))
        groups = -(-n // most)
        if not groups:
            return np.zeros(1, dtype=np.intp)
        room = self._steps((self.kinks.t[1:] + self.kinks.t[:-1]) / 2)
        slack = (most - n / groups) / 2
        ends = [0]
        for g in range(1, groups):
            low = max(ends[-1] + 1, int(np.ceil(g * n / groups - slack)))
            high = min(n - 1, int(g * n / groups + slack), ends[-1] + most)
            low = min(low, high)
            ends.append(low + int(np.argmax(room[low - 1 : high])))
        whole = [0]
        for a, b in zip(ends, [*ends[1:], n], strict=True):
            whole += self._divided(a, b, room)
        return np.array(whole)

    def _divided(self, a: int, b: int, room: Array) -> list[int]:
        """Divide kinks a … b − 1 while their jumps are nearly dependent; return the ends."""
        columns = self.jumps()[0][a:b]
        if b - a == 1 or np.linalg.cond(columns) < self.tuning.gain:
            return [b]
        low, high = a + 1 + (b - a - 2) // 4, b - 1 - (b - a - 2) // 4
        cut = low + int(np.argmax(room[low - 1 : high]))
        return [*self._divided(a, cut, room), *self._divided(cut, b, room)]

    def _places(self, cuts: Indices) -> Array:
        """Return a place between each two groups, and one beyond either end."""
        t = self.kinks.t
        if not len(t):
            return np.zeros(1)
        inner = cuts[1:-1]
        end = self.tuning.beyond * max(float(np.abs(t).max()), self.length)
        return np.concatenate([[-end], (t[inner - 1] + t[inner]) / 2, [end]])

    def _steps(self, places: Array) -> Array:
        """Return steps that cross as many hyperplanes as is wanted, in the mean."""
        t = self.kinks.t
        if not len(t):
            return np.full(len(places), self.length)
        crossed = np.array([np.sum(1 / np.abs(place - t)) for place in places])
        step = self.tuning.crossings * np.pi / 2 / crossed
        end = (places < t[0]) | (places > t[-1])
        return np.asarray(np.where(end, self.tuning.ends * step, step))
