"""Chords of a ball, all through one point: kinks of answers less what is known, and their neurons.

A chord is searched as a line is (`arrangement.kinks`), between its ends. What is known is
off by more than answers are: pairs of values that straddle a kink pass as pieces then, and show as
two kinks with one column (`joined`). Once some columns are known, only what is orthogonal to all of
these is looked at: kinks of their neurons do not show, and cost nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unsoftmax.arrangement.kinks import KinkSearch, LineKinks
from unsoftmax.learners.feed_forward.found_neurons import BallPart, FoundNeurons
from unsoftmax.learners.feed_forward.hyperplane_spots import HyperplaneSpots, Spots, put
from unsoftmax.learners.feed_forward.line_cells import AskTokens, CellReadings, LineCells
from unsoftmax.learners.feed_forward.opening_look import OpeningLook
from unsoftmax.learners.feed_forward.search_steps import MOVED, asks
from unsoftmax.probes import Array, Flags, Indices, Round
from unsoftmax.protocol import Answers

# Shares of the way to the next known hyperplane over which each is crossed, until two readings
# agree: in between there may be others that are not known yet.
ROOMS = (0.12, 0.05, 0.02, 0.01)
# Columns agree within their errors if these are no more than this.
AGREED = 0.1


@dataclass(frozen=True, slots=True)
class CrossedNeurons:
    """What is known of the columns of all neurons, and of the places of their hyperplanes."""

    columns: Array
    """The best so far (m, d_out)."""
    error: Array
    sure: Flags
    """Which were crossed, and came out as they had been."""
    bend: Array
    """(m,): R − z(p), what the second difference is of a column of norm 1."""
    ways: Array
    points: Array
    """R n and p (m, k), as of `Spots`."""
    tokens: Array
    answers: Array
    """All that was asked across hyperplanes."""

    @classmethod
    def none(cls, d_out: int, dim: int) -> CrossedNeurons:
        """Begin without any."""
        number, token, column = np.zeros(0), np.zeros((0, dim)), np.zeros((0, d_out))
        return cls(column, number, number > 0, number, token, token, token, column)

    def with_neurons(self, columns: Array, error: Array) -> CrossedNeurons:
        """Add neurons that were not crossed."""
        n = len(columns)
        none = np.zeros((n, self.ways.shape[1]))
        return replace(
            self,
            columns=np.vstack([self.columns, columns]),
            error=np.append(self.error, error),
            sure=np.append(self.sure, np.full(n, False)),
            bend=np.append(self.bend, np.zeros(n)),
            ways=np.vstack([self.ways, none]),
            points=np.vstack([self.points, none]),
        )

    def placed(self, found: FoundNeurons) -> FoundNeurons:
        """Put the hyperplanes of the first neurons, whose rows are known, where they were crossed.

        Rows must be turned as they were when these were.
        """
        n, k = found.rows.shape
        ways, points, sure = self.ways[:n], self.points[:n], self.sure[:n]
        bias = np.sum(found.rows * (ways - points), axis=1) - self.bend[:n]
        along = np.linalg.norm(ways - points, axis=1) / np.sqrt(k)
        error = np.hypot(self.error[:n] * self.bend[:n], found.row_error * along)
        return replace(
            found,
            bias=np.where(sure, bias, found.bias),
            bias_error=np.where(sure, error, found.bias_error),
        )

    def taken(self, which: Indices, spots: Spots, sure: Flags) -> CrossedNeurons:
        """Take over what crossings of some neurons say, of those that are sure."""
        (columns, error), which = spots.columns, which[sure]
        tokens, answers = spots.asked

        return CrossedNeurons(
            put(self.columns, which, columns[sure]),
            put(self.error, which, error[sure]),
            self.sure | np.isin(np.arange(len(self.sure)), which),
            put(self.bend, which, np.linalg.norm(spots.bends[sure], axis=1)),
            put(self.ways, which, spots.ways[sure]),
            put(self.points, which, spots.points[sure]),
            np.vstack([self.tokens, tokens]),
            np.vstack([self.answers, answers]),
        )


def crossed_again(
    crossed: CrossedNeurons,
    part: BallPart,
    look: OpeningLook,
    radius: float,
    rng: np.random.Generator,
) -> Generator[Round, Answers, CrossedNeurons]:
    """Cross all hyperplanes that are not sure, until two readings of each agree."""
    before, before_error = crossed.columns.copy(), np.full(len(crossed.error), np.inf)
    for room in ROOMS:
        left = np.flatnonzero(~crossed.sure)
        if not len(left):
            break
        crossing = HyperplaneSpots(
            asks("crossings"),
            part.found.rows,
            part.found.bias,
            look.length,
            look.error_at,
            rng,
            radius=radius,
            only=left,
            room=room,
        )
        spots = yield from crossing.run()
        columns, error = spots.columns
        sure = np.full(len(left), False)
        for old, off in ((crossed.columns, crossed.error), (before, before_error)):
            apart = np.linalg.norm(columns - old[left], axis=1)
            limit = MOVED * np.hypot(off[left], error)
            sure |= (apart <= limit) & (limit < AGREED)
        before[left], before_error[left] = columns, error
        crossed = crossed.taken(left, spots, sure)
    return crossed


# Where the outermost places of a chord are, in halves of it, and the longest tokens of the
# search, in radii: pairs and steps take what is left.
END = 0.96
# Of answers less what is known: places that are asked first; pieces may meet where they are known
# to this share of a value; pairs straddle a kink that meet their neighbours this close to their
# ends. Errors of what is known are larger than those of answers, and kinks fewer.
REST: Mapping[str, Any] = {"start": 4, "exact": 1e-8, "tight": 0.1}
# What is known is off by this share of what its errors say; a tenth to a fortieth was seen. More:
# kinks are taken for errors; less: errors for kinks.
STATED = 0.15
# Columns of hidden neurons are read by steps of this share of the way to the next kink, or this
# of half the chord; with shorter steps, so often, where a hidden neuron bends there.
BESIDE, CLOSE = 0.2, 1e-3
CLOSER, NEARER = 2, 1 / 8
# Answers beside a kink are on a line within so many errors, and this share of the bend.
STRAIGHT, PARALLEL = 10.0, 1e-6
# Neighbouring kinks are one, straddled by a pair, if their columns differ by no more than this,
# or by their errors, up to the other: a short piece beside a kink gives its column to 0.2.
ONE, MOST_ONE = 1e-4, 0.4
# Steps are taken in the widest of so many outermost pieces; kinks beyond it are left.
OUTER = 5


def without(part: BallPart | None, ask: AskTokens) -> AskTokens:
    """Return what asks tokens, and takes what is known off the answers."""

    def asked(x: Array) -> Generator[Round, Answers, Array]:
        y = yield from ask(x)
        return y if part is None else np.asarray(y - part(x))

    return asked


@dataclass(frozen=True, slots=True)
class Chord:
    """A chord through a point, and the kinks on it."""

    basis: Array
    """Orthonormal directions (k, k), its own first."""
    origin: Array
    """Its middle."""
    half: float
    search: KinkSearch
    kinks: LineKinks

    def trimmed(self, most: int) -> tuple[Chord, tuple[float, float]]:
        """Leave out what is beyond the widest of the outermost pieces; return these pieces' ends.

        The first and the last place of a reading are in the middle of these.
        """
        kinks = self.kinks
        t, n = kinks.t, len(kinks.t)
        ends = np.concatenate([[kinks.pieces[0].low], t, [kinks.pieces[-1].high]])
        gaps, outer = np.diff(ends), min(most, 1 + n // 4)
        first = int(np.argmax(gaps[:outer]))
        last = n - int(np.argmax(gaps[::-1][:outer]))
        pieces = kinks.pieces[first : last + 1]
        inside = LineKinks(t[first:last], kinks.jumps[first:last], pieces)
        return replace(self, kinks=inside), (float(ends[first]), float(ends[last + 1]))


@dataclass(frozen=True, slots=True)
class BallChords:
    """Asks along chords."""

    look: OpeningLook
    radius: float
    """No token is as long."""
    most: int
    """More kinks are refused."""
    thorough: bool

    @property
    def size(self) -> float:
        """How large answers are in all of the ball."""
        return self.look.size + self.look.steepness * self.radius

    def noise_of(self, known: BallPart | None) -> float:
        """Return what answers less what is known are off by (2-norm)."""
        own = float(self.look.noise * self.size)
        if known is None:
            return own
        return float(np.hypot(own, STATED * known.error_at(self.radius)))

    def along(
        self,
        u: Array,
        point: Array,
        known: BallPart | None,
        hidden: Array,
        rng: np.random.Generator,
        *,
        size: float,
    ) -> Generator[Round, Answers, Chord]:
        """Search for kinks along u through a point, but those of columns ``hidden`` (h, d_out).

        ``size`` is how large answers less what is known are at the chord's ends.
        """
        origin = point - (point @ u) * u
        half = float(np.sqrt(self.radius**2 - origin @ origin))
        more = rng.standard_normal((len(u), len(u) - 1))
        basis = np.linalg.qr(np.column_stack([u, more]))[0].T
        basis[0] = u
        seen = np.linalg.svd(hidden)[2][len(hidden) :] if len(hidden) else None
        ask = without(known, asks("line"))

        def ask_line(t: Array) -> Generator[Round, Answers, Array]:
            y = yield from ask(origin + t[:, None] * u)
            return y if seen is None else y @ seen.T

        search = KinkSearch(
            ask_line,
            half,
            self.noise_of(known) / size,
            self.most,
            self.thorough,
            self.look.steepness if known is None else 0.0,
            far=END,
            **({} if known is None else REST),
        )
        kinks = yield from search.run()
        return Chord(basis, origin, half, search, self._joined(kinks))

    def columns(
        self, chord: Chord, known: BallPart
    ) -> Generator[Round, Answers, tuple[Array, Array]]:
        """Read the columns of a chord's kinks: second differences where nothing else bends."""
        t, noise = chord.kinks.t, 4 * self.noise_of(known)
        ends = np.concatenate([[chord.kinks.pieces[0].low], t, [chord.kinks.pieces[-1].high]])
        gap = np.minimum(np.diff(ends)[:-1], np.diff(ends)[1:])
        step = np.minimum(BESIDE * gap, CLOSE * chord.half)
        ask, left = without(known, asks("line")), np.arange(len(t))
        columns, error = np.zeros((len(t), len(known.value))), np.full(len(t), np.inf)
        for _ in range(CLOSER):
            if not len(left):
                break
            places = t[left, None] + step[left, None] * np.arange(-2.0, 3.0)
            r = yield from ask(chord.origin + places.ravel()[:, None] * chord.basis[0])
            r = r.reshape(len(left), 5, -1)
            bends = r[:, 2:] - 2 * r[:, 1:-1] + r[:, :-2]
            size = np.linalg.norm(bends, axis=2)
            limit = STRAIGHT * (noise + PARALLEL * size[:, 1])
            straight = np.all(size[:, ::2] < limit[:, None], axis=1) & (size[:, 1] > noise)
            good = left[straight]
            columns[good] = bends[straight, 1] / size[straight, 1, None]
            error[good] = noise / size[straight, 1]
            left = left[~straight]
            step[left] *= NEARER
        return columns, error

    def _joined(self, kinks: LineKinks) -> LineKinks:
        """Take neighbouring kinks whose jumps are parallel for one: a pair straddled it."""
        t, jumps, pieces = list(kinks.t), list(kinks.jumps), list(kinks.pieces)
        i = 0
        while i + 1 < len(t):
            sizes = [float(np.linalg.norm(jumps[k])) for k in (i, i + 1)]
            errors = [pieces[k].slope_error + pieces[k + 1].slope_error for k in (i, i + 1)]
            off = [error / size for error, size in zip(errors, sizes, strict=True)]
            apart = np.linalg.norm(jumps[i] / sizes[0] - jumps[i + 1] / sizes[1])
            if apart > min(max(ONE, *off), MOST_ONE):
                i += 1
                continue
            p, q = pieces[i], pieces[i + 2]
            turn, middle = q.slope - p.slope, (t[i] + t[i + 1]) / 2
            share = float((q.at(middle) - p.at(middle)) @ turn / (turn @ turn))
            t[i : i + 2], jumps[i : i + 2] = [middle - share], [turn]
            del pieces[i + 1]
        bends = np.array(jumps).reshape(len(t), len(pieces[0].value))
        return LineKinks(np.array(t), bends, tuple(pieces))


@dataclass(frozen=True, slots=True)
class ChordReadings:
    """What was read along one chord, and what had been taken off.

    Beside a chord of answers less what is known, rows are read as beside a line (`line_cells`).
    What was known then is kept with the readings: when it is known better, they are corrected.
    """

    cells: LineCells
    readings: CellReadings
    known: BallPart | None
    start: int
    """Number of the neurons that were known before."""
    real: Flags
    """Which kinks are neurons."""

    @property
    def count(self) -> int:
        """Number of its neurons."""
        return int(np.sum(self.real))

    def columns(self, crossed: CrossedNeurons) -> tuple[Array, Array]:
        """Return the best columns and their errors, those of kinks that are no neurons too."""
        columns, error, _ = self.cells.kinks.columns()
        own = slice(self.start, self.start + self.count)
        columns[self.real], error[self.real] = crossed.columns[own], crossed.error[own]
        return columns, error

    def settled(self, crossed: CrossedNeurons) -> Generator[Round, Answers, ChordReadings]:
        """Ask again where readings contradict the columns."""
        readings = yield from self.cells.settled(self.readings, *self.columns(crossed))
        return replace(self, readings=readings)

    def neurons(
        self, crossed: CrossedNeurons, known: BallPart | None, noise: float
    ) -> FoundNeurons:
        """Solve for all kinks' rows, answers being off by ``noise`` (2-norm)."""
        readings = self._corrected(known, noise)
        columns, error = self.columns(crossed)
        return self._solved(readings, columns, error)

    def first_found(self) -> FoundNeurons:
        """Solve with the columns that the chord shows."""
        columns, error, _ = self.cells.kinks.columns()
        return self._solved(self.readings, columns, error)

    def _corrected(self, known: BallPart | None, noise: float) -> CellReadings:
        """Take off what is known better now."""
        if self.known is None or known is None:
            return self.readings
        cells, step = self.cells, self.readings.step
        k, d_out = len(known.point), len(known.value)
        error = np.hypot(
            noise * np.sqrt(2 / d_out) / step, known.found.jacobian_error / np.sqrt(k * d_out)
        )
        x = cells.origin + self.readings.places[:, None] * cells.basis[0]
        beside = x[:, None] + step[:, :, None] * cells.basis
        flat = beside.reshape(-1, k)
        change = (self.known(flat) - known(flat)).reshape(*beside.shape[:2], -1)
        change -= (self.known(x) - known(x))[:, None]
        return replace(self.readings, y=self.readings.y + change / step[:, :, None], errors=error)

    def _solved(self, readings: CellReadings, columns: Array, error: Array) -> FoundNeurons:
        cells = self.cells
        met = cells.origin + cells.kinks.t[:, None] * cells.basis[0]
        return readings.neurons(columns, error, cells.basis, met)


def read_chord(
    chord: Chord, known: BallPart | None, start: int
) -> Generator[Round, Answers, ChordReadings]:
    """Read all neurons of a chord, ``start`` others being known."""
    chord, walls = chord.trimmed(OUTER)
    cells = LineCells(
        without(known, asks("cells")),
        chord.kinks,
        chord.basis,
        chord.origin,
        chord.half,
        chord.search.own_error,
        strange=known is not None,
        walls=walls,
    )
    readings = yield from cells.run()
    return ChordReadings(cells, readings, known, start, np.full(len(chord.kinks.t), True))
