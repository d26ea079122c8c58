"""All input weights from steps beside one line: J_kδ at places between groups of kinks.

At places t_k on the line x₀ + t x₁, between groups of fewer than d_out kinks, one query per place
and direction δ of an orthonormal basis gives J_kδ, and

    J_{k+1}δ − J_kδ = Σ_{j between} b_j (a_j·δ),

b_j being the directions of the jumps that the line showed and a_j·x₁ > 0: about m + 2d queries for
all a_j. Steps are so long that some cross a hyperplane: which ones is found by what they leave of
the equations (`WindowChain`). Where that fails the direction is asked again with shorter
steps. What was asked is solved once more when the b_j are known better (`hyperplane_spots`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from unsoftmax.arrangement.kinks import LineKinks
from unsoftmax.learners.feed_forward.found_neurons import FoundNeurons
from unsoftmax.measure.precision import UNIT
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Flags, Indices, Round
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason

# Residuals of a window up to so many times their expected size are errors of the answers.
RESIDUALS = 6.0
# Limit on the columns that are found for one set of readings.
MOST_CROSSED = 12
# Where as many do not explain so many sets one after the other, it is columns that are wrong: no
# others are explained. They would take a minute of a processor at 1,536 neurons.
LOST = 16
# With fewer equations than this to spare in a window any column explains a residual, and none is
# looked for.
LEAST = 4


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
    least: int = LEAST

    def solve(self, readings: Array, noise: Array) -> Unmixed:
        """Solve D sets of readings (K + 1, D, m), with errors per number (windows, D)."""
        y = readings.copy()
        left, limit = self._left(y), self._limit(noise)
        crossed: list[tuple[tuple[int, int, float], ...]] = [()] * y.shape[1]
        bad = np.any([np.linalg.norm(r, axis=1) > b for r, b in zip(left, limit, strict=True)], 0)
        if np.any(bad) and min(len(w.rest) for w in self.windows) >= self.least:
            atoms, lost = self._atoms(), 0
            for i in np.flatnonzero(bad):
                if lost == LOST:
                    break
                target = np.concatenate([r[i] for r in left])
                stop = float(np.linalg.norm(limit[:, i]))
                crossed[i] = tuple(atoms.pursued(target, stop, MOST_CROSSED))
                lost = lost + 1 if len(crossed[i]) == MOST_CROSSED else 0
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
        return np.asarray(RESIDUALS * noise * np.sqrt(degrees)[:, None])

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


AskTokens = Callable[[Array], Generator[Round, Answers, Array]]
"""Asks tokens (n, d), one round: answers (n, m)."""


# Kinks between two places, in dimensions that all jumps span. More: fewer queries; less is left to
# see crossed hyperplanes by. The second where steps may cross unseen ones: what is read there is
# solved once more from tokens far apart.
SHARE = (0.85, 0.95)
ANY = 2**30
# Jumps span no dimension in which none is more than this.
RANK = 1e-6
# Condition of a group's columns beyond which it is divided: parallel columns.
GAIN = 300.0
# Once columns are known better, places whose readings are off by so many times what is usual are
# left out, unless columns are parallel indeed: they were between two close kinks.
NARROW = 100.0
# Expected number of hyperplanes that a step crosses, if neurons have all directions alike, by the
# dimensions to spare between two places. Longer steps are more precise; more of them have to be
# asked again. With none to spare no crossing shows, with few not which it was.
CROSSINGS = (1e-3, 0.02, 0.02, 0.02, 0.25)
# Steps of the first and last place are this share of the others: what is crossed there by neurons
# of the group beside shows nowhere. The second where steps may cross unseen hyperplanes.
ENDS = (0.1, 0.5)
# Steps of a direction that is asked again.
SHORTER = 1 / 16
# Limit on how often a direction is asked.
AGAIN = 5
# What a step went beyond a hyperplane must be what the neuron's row says, to this share of the
# way to it.
APART = 0.02
# Number of hyperplanes of a place that a step is tried to have crossed.
NEAR = 512
# Where the first and the last place are, in distances of the farthest kink, unless the line ends
# before.
BEYOND = 4.0
# Where answers are known but for a factor each: limit on how often factors are improved, from
# which on crossed hyperplanes are looked for, the most that a factor changes at once, and the
# relative change of readings that ends it. Three to five are usual.
RESCALINGS = 12
UNCROSSED = 2
REFACTORED = 0.3
RESCALED = 1e-13
# Values at a place are means with such pairs of values on both sides, this share of the way to
# the next kink away at most: of 768 dimensions they cost 0.03 queries per neuron, and halve what
# the function is off by.
DIMS_PER_PAIR, PAIRS, AROUND = 96, 8, 0.5


def rounded_tokens(rows: Array, lengths: Array) -> Array:
    """Return what rounding tokens (lengths given) does to answers, columns of B of norm 1."""
    return np.asarray(UNIT * lengths * np.linalg.norm(rows) / np.sqrt(rows.shape[1]))


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
    values: Array
    """Answers there, (places, d_out)."""
    y: Array
    """(places, d, d_out)."""
    errors: Array
    """(places, d): errors per number."""
    step: Array
    """(places, d)."""
    scaled: bool = True
    """Whether answers have their sizes; else each is known but for a factor."""
    first_error: Array | None = None
    """Of readings at the first place (d,), 2-norms, where their factors add to them."""

    @property
    def first_errors(self) -> Array:
        """Return errors of readings at the first place (d,), 2-norms."""
        if self.first_error is not None:
            return self.first_error
        return np.asarray(self.errors[0] * np.sqrt(self.y.shape[2]))

    def shorter(self, directions: Indices) -> CellReadings:
        """Return the readings with shorter steps along some directions, to be asked."""
        factor = np.ones(self.step.shape[1])
        factor[directions] = SHORTER
        return replace(self, step=self.step * factor, errors=self.errors / factor)

    def with_rounded_tokens(self, rows: Array, lengths: Array) -> CellReadings:
        """Count that tokens of these lengths were rounded, which the rows pass on.

        On a line that neurons are nearly parallel to answers alone do not show it.
        """
        own = np.sqrt(2 / self.y.shape[2]) * rounded_tokens(rows, lengths)
        return replace(self, errors=np.hypot(self.errors, own[:, None] / self.step))

    def solved(self, columns: Array, column_error: Array) -> SolvedRows:
        """Solve for all rows.

        Parameters
        ----------
        columns : ndarray, shape (m, d_out)
            Directions of the jumps, of norm 1.
        column_error : ndarray, shape (m,)
            What they are off by (2-norm).
        """
        if not len(columns):
            none = np.zeros((0, self.y.shape[1]))
            return SolvedRows(np.full(self.y.shape[1], True), none, none, self.y[0])
        chain = self._chain(columns.T)
        noise = self._noise(chain, column_error)
        found = chain.solve(self.y, noise)
        good = found.solved & self._consistent(found, chain)
        gains = np.concatenate([w.gain for w in chain.windows])
        window = np.repeat(np.arange(len(chain.windows)), np.diff(self.cuts))
        errors = gains[:, None] * np.maximum(noise, found.residual)[window]
        return SolvedRows(good, found.alpha, errors, found.readings[0])

    def neurons(
        self, columns: Array, column_error: Array, basis: Array, met: Array
    ) -> FoundNeurons:
        """Solve for all neurons, their hyperplanes being met at tokens (m, d)."""
        solved = self.solved(columns, column_error)
        rows = solved.along @ basis
        return FoundNeurons(
            rows=rows,
            row_error=np.linalg.norm(solved.errors, axis=1),
            bias=-np.sum(rows * met, axis=1),
            bias_error=np.linalg.norm(solved.errors * (met @ basis.T), axis=1),
            columns=columns,
            column_error=column_error,
            first=solved.first.T @ basis,
            first_error=float(np.linalg.norm(self.first_errors)),
        )

    def rescaled(self, columns: Array, column_error: Array) -> CellReadings:
        """Find the factors of all answers, which the equations have room for.

        An answer's own direction is one more column beside its window's; and what no column
        explains must have one size on either side of a window, in all directions together.
        """
        if self.scaled or not len(columns):
            return self
        readings = self._of_one_unit(columns)
        for step in range(RESCALINGS):
            readings, moved = readings._refactored(columns, column_error, step)
            readings = readings._of_one_unit(columns)
            if moved < RESCALED:
                break
        return readings

    def _of_one_unit(self, columns: Array) -> CellReadings:
        """Bring readings at all places to one unit, by what no column of a window explains."""
        y, values, ratio = self.y.copy(), self.values.copy(), 1.0
        for k, w in enumerate(self._chain(columns.T).windows):
            if len(w.rest):
                left, right = (self.y[i] @ w.rest.T for i in (k, k + 1))
                # a hyperplane that was crossed puts single directions off
                square = np.sum(right * right, axis=1)
                seen = square > 0
                each = np.sum(left * right, axis=1)[seen] / square[seen]
                ratio *= float(np.median(each)) if len(each) else 1.0
            y[k + 1] *= ratio
            values[k + 1] *= ratio
        return replace(self, y=y, values=values)

    def _refactored(
        self, columns: Array, column_error: Array, step: int
    ) -> tuple[CellReadings, float]:
        """Improve the factor of every answer; return the largest change of a reading, too."""
        chain = self._chain(columns.T)
        seen = self.y
        if step >= UNCROSSED:
            seen = chain.solve(self.y, self._noise(chain, column_error)).readings
        total, weight = np.zeros(self.step.shape), np.zeros(self.step.shape)
        # y − f(p + step·y) is what a factor of 1 − f·step makes of a reading y = (λw − p)/step
        answers = self.values[:, None] + self.step[:, :, None] * self.y
        for k, (a, b) in enumerate(pairwise(self.cuts)):
            rest = WindowColumns.of(columns.T, int(a), int(b)).rest
            difference = (seen[k + 1] - seen[k]) @ rest.T
            before, after = (answers[i] @ rest.T for i in (k, k + 1))
            for i, found in zip((k, k + 1), _two_shares(difference, -before, after), strict=True):
                total[i] += found[0] * found[1]
                weight[i] += found[1]
        most = REFACTORED
        factor = total / np.where(weight > 0, weight, 1.0)
        factor = np.clip(factor * self.step, -most, most) / self.step
        change = factor[:, :, None] * answers
        moved = float(np.max(np.abs(change)) / np.max(np.abs(self.y)))
        numbers = np.sqrt(answers.shape[2])
        along = np.linalg.norm(answers[0], axis=1) / np.sqrt(np.maximum(weight[0], TINY))
        return replace(
            self, y=self.y - change, first_error=self.errors[0] * np.hypot(numbers, along)
        ), moved

    def _noise(self, chain: WindowChain, column_error: Array) -> Array:
        noise = np.hypot(self.errors[1:], self.errors[:-1])
        return np.asarray(np.hypot(noise, self._from_columns(chain, column_error)[:, None]))

    def _chain(self, columns: Array) -> WindowChain:
        """Prepare the windows; where sizes are not known, with answers' directions beside them."""
        ends = self.values.T / np.maximum(np.linalg.norm(self.values, axis=1), UNIT)
        windows = tuple(
            WindowColumns.of(columns, int(a), int(b), None if self.scaled else ends[:, k : k + 2])
            for k, (a, b) in enumerate(pairwise(self.cuts))
        )
        near = tuple(np.argsort(np.abs(self.t - place))[:NEAR] for place in self.places)
        return WindowChain(columns, windows, near)

    def _from_columns(self, chain: WindowChain, column_error: Array) -> Array:
        """Return what errors of the columns typically do to the differences, per number."""
        typical = []
        for k, w in enumerate(chain.windows):
            alpha = np.median(np.abs(w.inverse @ (self.y[k + 1] - self.y[k]).T), axis=1)
            typical.append(np.linalg.norm(alpha * column_error[w.first : w.last]))
        return np.asarray(1.5 * np.array(typical) / np.sqrt(self.y.shape[2]))

    def _consistent(self, found: Unmixed, chain: WindowChain) -> Flags:
        """Tell which directions cross just the hyperplanes that were found to be crossed."""
        alpha, good = found.alpha, np.full(found.alpha.shape[1], True)
        for k, place in enumerate(self.places):
            to = ((place - self.t) * self.steepness)[:, None] / self.step[k]
            moved = to + alpha
            excess = np.where(np.sign(moved) != np.sign(to), np.abs(moved), 0.0)
            for i, crossed in enumerate(found.crossed):
                for at, column, f in crossed:
                    if at == k:
                        excess[column, i] -= f
            good &= np.all(np.abs(excess) <= APART * np.abs(to), axis=0)
            if k in (0, len(self.places) - 1):
                # crossed by a neuron of the group beside, a row comes out as the way to it
                w = chain.windows[0 if k == 0 else -1]
                own = slice(w.first, w.last)
                edge = np.abs(moved[own]) < APART * np.abs(to[own])
                good &= ~np.any(edge, axis=0)
        return good


def _two_shares(x: Array, first: Array, second: Array) -> list[tuple[Array, Array]]:
    """Write rows x (n, s) as sums of two rows' multiples; return each share, with its weight."""
    sizes = [np.linalg.norm(row, axis=1) for row in (first, second)]
    one, two = (
        row / np.where(size > 0, size, 1.0)[:, None]
        for row, size in zip((first, second), sizes, strict=True)
    )
    along, across, both = (np.sum(a * b, axis=1) for a, b in ((x, one), (x, two), (one, two)))
    free = np.maximum(1 - both**2, UNIT)
    shares = (along - both * across) / free, (across - both * along) / free
    return [
        (share / np.where(size > 0, size, np.inf), free * size**2)
        for share, size in zip(shares, sizes, strict=True)
    ]


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
    scaled: bool = True
    """Whether answers have their sizes; else the line says what they are at places on it."""
    strange: bool = False
    """Whether steps may cross hyperplanes that the line does not, of any columns."""
    walls: tuple[float, float] = (-np.inf, np.inf)
    """Between which places of the line nothing but these kinks was seen."""
    together: int = ANY
    """Kinks between two places, at most: of fewer, one whose column is hardly known spoils fewer
    rows."""

    def run(self) -> Generator[Round, Answers, CellReadings]:
        """Ask from all places along all directions, until all are sure.

        Raises
        ------
        ModelMismatch
            Some contradict the neurons that the line showed.
        """
        columns, column_error, steepness = self.kinks.columns()
        cuts = self._cuts()
        places, d_out = self._places(cuts), columns.shape[1]
        own = np.array([self.own_error(t) for t in places]) * np.sqrt(2 / d_out)
        values = yield from self._values(places)
        shape = (len(places), len(self.basis))
        step = np.repeat(self._steps(places)[:, None], shape[1], axis=1)
        readings = CellReadings(
            t=self.kinks.t,
            steepness=steepness,
            cuts=cuts,
            places=places,
            values=values,
            y=np.zeros((*shape, d_out)),
            errors=own[:, None] / step,
            step=step,
            scaled=self.scaled,
        )
        asked = yield from self._asked(readings, np.arange(shape[1]))
        return (yield from self.settled(asked, columns, column_error))

    def _values(self, places: Array) -> Generator[Round, Answers, Array]:
        """Ask at all places; where answers have sizes, around them too, and return the means.

        What a value is off by is the same in all directions' readings, and counts √d times.
        """
        pairs = min(len(self.basis) // DIMS_PER_PAIR, PAIRS) if self.scaled else 0
        t = np.append(self.kinks.t, self.walls)
        room = np.min(np.abs(places[:, None] - t), axis=1)
        room = np.where(np.isfinite(room), room, self.length)
        shares = np.linspace(-AROUND, AROUND, 2 * pairs + 1) if pairs else np.zeros(1)
        t = places + shares[:, None] * room
        values = yield from self.ask(self.origin + t.ravel()[:, None] * self.basis[0])
        values = np.mean(values.reshape(*t.shape, -1), axis=0)
        return np.asarray(values if self.scaled else values * self._sizes(places)[:, None])

    def settled(
        self, readings: CellReadings, columns: Array, column_error: Array
    ) -> Generator[Round, Answers, CellReadings]:
        """Ask again, with shorter steps, where readings contradict the columns.

        Raises
        ------
        ModelMismatch
            Some do, however short the steps are.
        """
        for again in range(AGAIN + 1):
            readings = readings.rescaled(columns, column_error)
            left = np.flatnonzero(~readings.solved(columns, column_error).good)
            if not len(left):
                break
            if again == AGAIN:
                raise Reason.LINE_CONTRADICTED.error(
                    directions=len(left), dim=len(self.basis), neurons=len(self.kinks.t)
                )
            readings = yield from self._asked(readings.shorter(left), left)
        return readings

    def joined(self, readings: CellReadings, columns: Array) -> CellReadings:
        """Leave out places of short steps where columns known better need none between kinks."""
        cuts, errors = readings.cuts, np.median(readings.errors, axis=1)
        kept, most = [0], NARROW * float(np.median(errors))
        for k in range(1, len(cuts) - 1):
            group = columns[cuts[kept[-1]] : cuts[k + 1]]
            close = errors[k] > most and len(group) <= self._group
            if not close or np.linalg.cond(group) > GAIN:
                kept.append(k)
        if len(cuts) > 1:
            kept.append(len(cuts) - 1)
        names = ("cuts", "places", "values", "y", "errors", "step")
        return replace(readings, **{name: getattr(readings, name)[kept] for name in names})

    def _asked(
        self, readings: CellReadings, directions: Indices
    ) -> Generator[Round, Answers, CellReadings]:
        """Take steps along some directions."""
        x = self.origin + readings.places[:, None] * self.basis[0]
        step = readings.step[:, directions, None]
        answers = yield from self.ask(
            (x[:, None] + step * self.basis[directions]).reshape(-1, len(self.basis))
        )
        y, values = readings.y.copy(), readings.values[:, None]
        told = answers.reshape(len(x), len(directions), -1)
        if not self.scaled:
            told = told * np.linalg.norm(values, axis=2, keepdims=True)
        y[:, directions] = told - values
        y[:, directions] /= step
        return replace(readings, y=y)

    @property
    def _rank(self) -> int:
        """Dimension of what all jumps span, and the columns beside them."""
        columns = self.kinks.columns()[0]
        values = np.linalg.svd(columns, compute_uv=False)
        rank = int(np.sum(values > RANK * np.max(values, initial=0.0)))
        if self.strange:
            rank = int(columns.shape[1])
        return min(rank + self._beside, int(columns.shape[1]))

    def _sizes(self, places: Array) -> Array:
        """Return the sizes of values on the line, in the unit of its pieces."""
        of = np.searchsorted(self.kinks.t, places)
        sizes = [
            np.linalg.norm(self.kinks.pieces[i].at(t)) for i, t in zip(of, places, strict=True)
        ]
        return np.array(sizes)

    @property
    def _group(self) -> int:
        """Largest number of kinks between two places."""
        rank = self._rank
        most = min(int(SHARE[self.strange] * rank), rank - 1) - self._beside
        return max(1, min(most, self.together))

    @property
    def _beside(self) -> int:
        """Number of columns that a window has beside its jumps: the values at either end."""
        return 0 if self.scaled else 2

    def _cuts(self) -> Indices:
        """Divide the kinks into groups, at wide pieces."""
        n, most = len(self.kinks.t), self._group
        groups = -(-n // most)
        if not groups:
            return np.zeros(1, dtype=np.intp)
        if groups == 1 and not self.scaled:
            # at both ends values are along the line; in the middle they are not
            return np.array([0, int(np.searchsorted(self.kinks.t, 0.0)), n])
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
        columns = self.kinks.columns()[0][a:b]
        if b - a == 1 or np.linalg.cond(columns) < GAIN:
            return [b]
        low, high = a + 1 + (b - a - 2) // 4, b - 1 - (b - a - 2) // 4
        cut = low + int(np.argmax(room[low - 1 : high]))
        return [*self._divided(a, cut, room), *self._divided(cut, b, room)]

    def _places(self, cuts: Indices) -> Array:
        """Return a place between each two groups, and one beyond either end."""
        t = self.kinks.t
        bounded = bool(np.all(np.isfinite(self.walls)))
        if not len(t):
            return np.array([np.mean(self.walls) if bounded else 0.0])
        end = BEYOND * max(float(np.abs(t).max()), self.length)
        around = np.concatenate(
            [[min(0.0, t[0]) - self.length], t, [max(0.0, t[-1]) + self.length]]
        )
        inner = cuts[1:-1]
        middles = (around[inner] + around[inner + 1]) / 2
        if bounded:
            low, high = (t[0] + self.walls[0]) / 2, (t[-1] + self.walls[1]) / 2
            return np.concatenate([[low], middles, [high]])
        return np.concatenate([[-end], middles, [end]])

    def _steps(self, places: Array) -> Array:
        """Return steps that cross as many hyperplanes as is wanted, in the mean."""
        t = self.kinks.t
        ends = ENDS[self.strange]
        if not len(t):
            return np.full(len(places), min(self.length, ends * float(np.ptp(self.walls))))
        end = (places < t[0]) | (places > t[-1])
        t = np.append(t, self.walls)
        least = 16 * UNIT * (self.length + np.abs(places))  # two kinks may be at one place
        apart = (np.maximum(np.abs(x - t), one) for x, one in zip(places, least, strict=True))
        crossed = np.array([np.sum(1 / each) for each in apart])
        spare = max(0, self._rank - self._group - self._beside)
        spare = min(spare, len(CROSSINGS) - 1)
        step = CROSSINGS[spare] * np.pi / 2 / crossed
        return np.asarray(np.where(end, ends * step, step))
