"""A feed-forward layer behind a norm, y = β + Γn(x + B relu(A x + b) + c): about nine queries each.

Answers tell directions of u = x + F(x) alone (`norm_opening`): w = λ R Γ P u with unknown λ > 0.
What a plain layer's answers tell by size, these tell by being in one plane:

1. Along a line pieces span planes, and where two of them meet is a kink, which brings both to one
   scale (`arrangement.direction_kinks`). 2.9m queries.
2. Steps beside the line: one unknown more for each, λ (`line_cells`, ``scaled=False``). 1.5m.
3. Every hyperplane is crossed once more (`hyperplane_spots`), 4m; some twice.
4. The Jacobian holds x: its share says what the unit is, and the sign of γ (`affine_part`).
5. eps, from tokens at which u is small (`SmallSums`). 16 queries.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.arrangement.direction_kinks import ERRORS, DirectionKinkSearch
from unsoftmax.arrangement.kinks import LineKinks
from unsoftmax.learners.feed_forward.found_neurons import FoundNeurons, Sides
from unsoftmax.learners.feed_forward.hyperplane_spots import DirectionSpots, Spots
from unsoftmax.learners.feed_forward.jacobian_readings import row_slopes, rows_of
from unsoftmax.learners.feed_forward.layer_claim import LayerClaim
from unsoftmax.learners.feed_forward.line_cells import ANY, AskTokens, CellReadings, LineCells
from unsoftmax.learners.feed_forward.norm_opening import NormLook, SeenNorm
from unsoftmax.learners.feed_forward.search_steps import (
    asks,
    checked_spots,
    drawn_line,
    neurons_of,
    notes_of,
    unlike,
)
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.probes import Array, Indices, Round
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason

# Newton's method: starts, steps from each, of which ten are usual, and how often a step is halved.
STARTS, STEPS, HALVINGS = 4, 40, 8
# Number of tokens, and range of log10 of their variances.
TOKENS, DECADES = 16, (-14.0, 1.0)
# An eps below so many of its errors is 0.
TOLD = 3.0


@dataclass(frozen=True, slots=True)
class SmallSums:
    """Asks such tokens."""

    layer: FeedForward
    """The recovered one, without its norm."""
    norm: LayerNorm
    """With an eps of 0."""
    error_at: Callable[[Array], Array]
    """What u is off by at tokens (n, d), 2-norms."""
    noise: float
    """What n is off by, relative."""
    rng: np.random.Generator

    def run(self, ask: AskTokens, length: float) -> Generator[Round, Answers, tuple[float, float]]:
        """Return eps and what it may be off by."""
        d = self.layer.dim
        x = self._smallest(length)
        way = self.rng.standard_normal(d)
        moved = np.sqrt(np.mean((self._jacobian(x) @ way) ** 2)) or 1.0
        variances = 10.0 ** np.linspace(*DECADES, TOKENS)
        tokens = x + (np.sqrt(variances) / moved)[:, None] * way
        y = yield from ask(tokens)
        n = (y - self.norm.shift) / self.norm.scale
        share = np.mean(n * n, axis=1)
        v = np.mean(self._sums(tokens) ** 2, axis=1)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            eps = v * (1 / share - 1)
            off = self.error_at(tokens) / np.sqrt(d * v)
            error = 2 * off * (np.abs(eps) + off * v) + 2 * self.noise * (v + np.abs(eps))
        error = np.where(np.isfinite(eps) & np.isfinite(error), error, np.inf)
        best = int(np.argmin(error))
        told = eps[best] > TOLD * error[best]
        return float(eps[best]) if told else 0.0, float(error[best])

    def _sums(self, x: Array) -> Array:
        u = self.layer(x)
        return u - u.mean(axis=1, keepdims=True) if self.norm.centred else u

    def _jacobian(self, x: Array) -> Array:
        f = self.layer
        J = np.eye(f.dim) * f.residual
        for slope, rows in zip(row_slopes(f, x[None]), rows_of(f), strict=True):
            active = slope[0] != 0
            J = J + (f.B[:, active] * slope[0, active]) @ rows[active]
        return np.asarray(J - J.mean(axis=0) if self.norm.centred else J)

    def _smallest(self, length: float) -> Array:
        """Return a token at which u is as small as is found."""
        best, least = np.zeros(self.layer.dim), np.inf
        for _ in range(STARTS):
            x = self.rng.standard_normal(self.layer.dim)
            x *= length / np.linalg.norm(x)
            x, size = self._descended(x)
            if size < least:
                best, least = x, size
            if least < np.sqrt(self.layer.dim) * 10.0 ** DECADES[0]:
                break
        return best

    def _descended(self, x: Array) -> tuple[Array, float]:
        u = self._sums(x[None])[0]
        size = float(np.linalg.norm(u))
        for _ in range(STEPS):
            step = -np.linalg.lstsq(self._jacobian(x), u, rcond=1e-10)[0]
            for halved in range(HALVINGS):
                new = x + step / 2**halved
                there = self._sums(new[None])[0]
                if np.linalg.norm(there) < size:
                    break
            else:
                break
            x, u, size = new, there, float(np.linalg.norm(there))
        return x, size


# A residual of any share that is below this one of all jumps is none.
UNSEEN = 1e-6
# Columns that the line shows to no more than this are not compared with those of the crossings:
# kinks so close to each other have right places and wrong columns. What the crossings show must
# then explain answers beside hyperplanes, and fresh ones.
UNSURE = 1e-4
# Crossings of more than one hyperplane are repeated, and those that contradict the line: where they
# are no larger a share of all, and how often.
RECROSSED, RECROSSINGS = 0.2, 3
# Directions beside hyperplanes that are missed by more than this are those of another layer.
ASTRAY = 1e-6


@dataclass(frozen=True, slots=True)
class LayerSums:
    """What is before the norm: neurons, sides, and the norm with its signs."""

    found: FoundNeurons
    sides: Sides
    gain: Array
    values: Array
    """u at places of the line (n, d)."""


def before_the_norm(found: FoundNeurons, values: Array, norm: SeenNorm) -> LayerSums:
    """Find unit and signs by the residual, and write neurons as they are before the norm.

    Raises
    ------
    ModelMismatch
        x is not among what is normalised.
    """
    sides = found.sides(norm.residual)
    gain, unit = norm.signed(sides.added)
    jumps = float(np.linalg.norm(found.rows))
    if not sides.known or not unit * np.linalg.norm(norm.residual.matrix) > UNSEEN * jumps:
        raise Reason.RESIDUAL_UNDETERMINED.error()
    columns = norm.sums(found.columns, gain)
    size = np.linalg.norm(columns, axis=1)
    grown = float(np.linalg.norm(gain)) / np.sqrt(len(gain))
    # the unit of all rows and biases is off together
    doubt = norm.unit_error(found.first_error, found.slope_error) / unit
    row_error = np.hypot(found.row_error, doubt * np.linalg.norm(found.rows, axis=1))
    bias_error = np.hypot(found.bias_error, doubt * np.abs(found.bias))
    seen = replace(
        found,
        rows=found.rows * (size / unit)[:, None],
        row_error=row_error * size / unit,
        bias=found.bias * size / unit,
        bias_error=bias_error * size / unit,
        columns=columns / size[:, None],
        column_error=found.column_error * grown / size,
        first=norm.sums(found.first.T, gain).T / unit,
        first_error=found.first_error * grown / unit,
    )
    if sides.linear is not None:
        left, right = sides.linear
        sides = replace(sides, linear=(norm.sums(left, gain) / unit, right))
    dropped = sides.dropped * float(np.max(np.abs(gain))) / unit
    sides = replace(sides, residual=True, dropped=dropped)
    return LayerSums(seen, sides, gain, norm.sums(values, gain) / unit)


def agreed_spots(
    readings: CellReadings,
    basis: Array,
    columns: Array,
    error: Array,
    cross: Callable[[Array, Indices | None], Generator[Round, Answers, Spots]],
) -> Generator[Round, Answers, tuple[Spots, Array]]:
    """Cross all hyperplanes, and again where others were crossed, too, or another column shows.

    A window of the line's cells with one column known to 1e-4 gives all its rows no better: points
    that lie on such hyperplanes by their rows are beside them, and what is met on the way may be
    another. Answers that are on no two pieces show it. With the columns of the other crossings,
    known to 1e-9, these rows come out right.

    Parameters
    ----------
    readings : CellReadings
        Steps beside the line.
    basis : ndarray, shape (d, d)
        Orthonormal directions, the line's own first.
    columns, error : ndarray, shapes (m, d_out) and (m,)
        As the line showed them.
    cross : callable
        Crosses the hyperplanes of rows (m, d), where the line did: those chosen, or all.

    Returns
    -------
    tuple
        The crossings, and by how much the line's columns may be off.
    """

    def rows_of(readings: CellReadings, columns: Array, error: Array) -> Array:
        return np.asarray(readings.solved(columns, error).along @ basis)

    spots = yield from cross(rows_of(readings, columns, error), None)
    doubt = np.maximum(ERRORS * error, ASTRAY)
    # of close kinks the line shows the places, and hardly the columns
    compared = np.minimum(doubt, UNSURE)
    doubt = np.where(error > UNSURE, np.inf, doubt)
    agreed = np.full(len(doubt), False)
    for _ in range(RECROSSINGS):
        seen, own = spots.columns
        astray = np.asarray(spots.astray)
        off = astray | (~agreed & unlike(spots, columns, compared))
        if not np.any(off) or np.sum(off) > RECROSSED * len(off):
            break
        which = np.flatnonzero(off)
        better = np.where(astray[:, None], columns, seen), np.where(astray, error, own)
        rows = rows_of(readings.rescaled(*better), *better)
        again = yield from cross(rows, which)
        agreed[which] = ~(astray[which] | unlike(again, seen[which], own[which]))
        compared[agreed] = doubt[agreed] = np.inf
        spots = spots.crossed_again(which, again)
    return spots, doubt


@dataclass(frozen=True, slots=True)
class SearchBehindNorm:
    """One search for all neurons, the norm being known but for signs and eps."""

    dim: int
    normed: NormLook
    most: int
    """More neurons are refused."""
    thorough: bool
    rng: np.random.Generator
    together: int = ANY
    """As `LineCells` has it."""

    def run(self) -> Generator[Round, Answers, LayerClaim]:
        """Find all neurons, and eps.

        Raises
        ------
        ModelMismatch, TooManyBreakpoints
            The target is another, or another line may do.
        """
        sums, model, errors = yield from self.found()
        return (yield from self._with_eps(sums, model, errors))

    def found(self) -> Generator[Round, Answers, tuple[LayerSums, FeedForward, dict[str, float]]]:
        """Find all neurons along a line, read them again, and put them before the norm.

        What is before the norm, as a layer, too, and that one's errors.
        """
        look, norm = self.normed.look, self.normed.norm
        basis, x0 = drawn_line(self.dim, look.length, self.rng)
        kinks = yield from self._kinks(basis, x0)
        cells = LineCells(
            self._ask("cells"),
            kinks,
            basis,
            x0,
            look.length,
            lambda t: self._own_error(kinks, t),
            scaled=False,
            together=self.together,
        )
        readings = yield from cells.run()
        columns, column_error, _ = kinks.columns()
        met = x0 + kinks.t[:, None] * basis[0]

        def cross(rows: Array, only: Indices | None) -> Generator[Round, Answers, Spots]:
            return (yield from self._spots(rows, -np.sum(rows * met, axis=1), only))

        crossing = agreed_spots(readings, basis, columns, column_error, cross)
        spots, doubt = yield from crossing
        spots = checked_spots(spots, columns, doubt, look)
        readings = cells.joined(readings, spots.columns[0])
        readings = yield from cells.settled(readings, *spots.columns)
        found = neurons_of(readings, spots, basis)
        sums = before_the_norm(found, readings.values, norm)
        model, errors = with_constant(sums, x0 + readings.places[:, None] * basis[0], norm)
        self._refuse_crossings(model, sums.gain, spots)
        return sums, model, errors

    def _ask(self, phase: str) -> AskTokens:
        """Return what asks tokens in a phase, and answers with directions."""

        def asked(x: Array) -> Generator[Round, Answers, Array]:
            return self.normed.norm.directions((yield from asks(phase)(x)))

        return asked

    def _kinks(self, basis: Array, x0: Array) -> Generator[Round, Answers, LineKinks]:
        ask = self._ask("line")

        def ask_line(t: Array) -> Generator[Round, Answers, Array]:
            return (yield from ask(x0 + t[:, None] * basis[0]))

        search = DirectionKinkSearch(
            ask_line, self.normed.look.length, self.normed.noise, self.most, self.thorough
        )
        kinks = yield from search.run()
        if not len(kinks.t):
            raise Reason.NOTHING_BENDS.error()
        return kinks

    def _own_error(self, kinks: LineKinks, t: float) -> float:
        piece = kinks.pieces[int(np.searchsorted(kinks.t, t))]
        return self.normed.noise * float(np.linalg.norm(piece.at(t)))

    def _spots(
        self, rows: Array, bias: Array, only: Indices | None
    ) -> Generator[Round, Answers, Spots]:
        own = self.normed.noise
        crossing = DirectionSpots(
            self._ask("crossings"),
            rows,
            bias,
            self.normed.look.length,
            lambda x: np.full(len(x), own),
            self.rng,
            only=only,
            systematic=self.normed.systematic,
        )
        return (yield from crossing.run())

    def _with_eps(
        self, sums: LayerSums, plain: FeedForward, errors: dict[str, float]
    ) -> Generator[Round, Answers, LayerClaim]:
        """Ask for eps, and claim the layer with its norm."""
        whole, errors = yield from with_eps(plain, sums.gain, self.normed, errors, self.rng)
        return LayerClaim(
            whole,
            self.normed.look,
            errors,
            notes_of(sums.sides),
            sums.sides.sure and sums.sides.linear is None,
            self.normed.length_error,
        )

    def _refuse_crossings(self, model: FeedForward, gain: Array, spots: Spots) -> None:
        """Raise where the layer misses what was asked beside hyperplanes: another line may do."""
        (tokens, w), norm = spots.asked, self.normed.norm
        sharp = LayerNorm(1 / gain, norm.shift, 0.0, centred=norm.centred)
        seen = norm.directions(sharp(model(tokens)))
        missed = float(np.max(np.linalg.norm(seen - w, axis=1)))
        if missed > ASTRAY:
            raise Reason.HYPERPLANES_MISSED.error(neurons=len(model.b), missed=missed)


def with_eps(
    plain: FeedForward,
    gain: Array,
    normed: NormLook,
    errors: dict[str, float],
    rng: np.random.Generator,
) -> Generator[Round, Answers, tuple[FeedForward, dict[str, float]]]:
    """Ask for eps; return the layer with its norm, x being added, and errors of all."""
    norm, scale = normed.norm, 1 / gain

    def behind(norm: LayerNorm | None) -> FeedForward:
        own = plain.A, plain.b, plain.B, plain.c
        return FeedForward(*own, True, norm, plain.activation, plain.gate)

    def off(x: Array) -> Array:
        return plain.moved_at_most(x, errors)

    sharp = LayerNorm(scale, norm.shift, 0.0, centred=norm.centred)
    small = SmallSums(behind(None), sharp, off, normed.length_error, rng)
    eps, eps_error = yield from small.run(asks("eps"), normed.look.length)
    norms = {"scale": normed.scale_error, "shift": normed.shift_error, "eps": eps_error}
    found = LayerNorm(scale, norm.shift, eps, centred=norm.centred)
    return behind(found), errors | norms


def with_constant(
    sums: LayerSums, x: Array, norm: SeenNorm
) -> tuple[FeedForward, dict[str, float]]:
    """Return the layer before the norm with its constant, and standard deviations.

    ``x`` are the tokens (n, d) at which the sums' values are.
    """
    found, sides, u = sums.found, sums.sides, sums.values
    without = found.layer(sides, np.zeros(u.shape[1]))(x)
    if norm.centred:
        without -= without.mean(axis=1, keepdims=True)
    weight = 1 / np.sum(u**2, axis=1)
    c = weight @ (u - without) / np.sum(weight)
    errors = found.errors(0.0, sides.dropped)
    along = np.sqrt(weight @ np.sum(x * x, axis=1) / np.sum(weight))
    c_error = errors["constant"] + errors["slope"] * float(along)
    return found.layer(sides, c), found.errors(c_error, sides.dropped)
