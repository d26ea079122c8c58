"""All jumps of the gradient of F from one circle: a query per cell and direction.

The kinks cut the circle into cells 0 … K. In cell i two answers give the line, so F and its
slope at the midpoint m_i; along directions E_l orthogonal to the circle's plane

    G_il = (F(X(m_i) + δE_l) − F(X(m_i)))/δ,    J_k = ∇F(cell k+1) − ∇F(cell k),

(K + 1)(D − 2) queries in one round. Whether such a probe left its cell is seen without a
query: with α_k the jump of the slope at θ_k, J_k·X(m_i) = α_k sin(m_i − θ_k), and
J_k·E_l = G_(k+1)l − G_kl; those that did are asked again nearer.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.arrangement.kinks import NARROWEST_NUMBERS, KinkSearch
from unsoftmax.learners.relu_network.lift import (
    Circle,
    PiecewiseLinear,
    PointsAround,
    WrittenPoints,
    ask_points,
)
from unsoftmax.learners.relu_network.lifted_target import NoiseLevel
from unsoftmax.learners.relu_network.wide_cells import WalkedForm
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Flags, Round
from unsoftmax.protocol import Answers


@dataclass(frozen=True, slots=True)
class CellLines:
    """The kinks that cut a circle, and F's line in each cell between them."""

    theta: Array
    """Kinks, (K,)."""
    middle: Array
    """Midpoints of the cells' two answers, (K + 1,)."""
    width: Array
    """Twice the distance from each midpoint to the nearer end of its cell."""
    value: Array
    """F at the midpoints."""
    tangent: Array
    """Its slope along the circle there."""
    length: Array
    """Distance of the two answers."""
    off: Array
    """How far the answer at the midpoint was off the line, 0 where none was asked."""

    @classmethod
    def of(cls, circle: Circle, theta: Array, at: Array, F: Array) -> CellLines:
        """Read lines from answers F (2, K + 1) at angles ``at`` (2, K + 1)."""
        ends = np.concatenate([[circle.low], theta, [circle.high]])
        middle, h = (at[0] + at[1]) / 2, at[1] - at[0]
        # at the midpoint, from both ends at once
        value = (F[0] + F[1]) / (2 * np.cos(h / 2))
        tangent = (F[1] - F[0]) / (2 * np.sin(h / 2))
        width = 2 * np.minimum(middle - ends[:-1], ends[1:] - middle)
        return cls(theta, middle, width, value, tangent, h, np.zeros_like(h))

    @property
    def bends(self) -> Array:
        """Jumps α_k of the slope at the kinks, (K,)."""
        theta, m, value, tangent = self.theta, self.middle, self.value, self.tangent
        after = -value[1:] * np.sin(theta - m[1:]) + tangent[1:] * np.cos(theta - m[1:])
        before = -value[:-1] * np.sin(theta - m[:-1]) + tangent[:-1] * np.cos(theta - m[:-1])
        return np.asarray(after - before)

    def significance(self, deviation: float) -> Array:
        """Return how many deviations each kink's jump of the slope is, (K,)."""
        own = (deviation + np.spacing(self.middle) * np.abs(self.tangent)) / self.length
        return np.asarray(np.abs(self.bends) / (own[:-1] + own[1:]))


@dataclass(frozen=True, slots=True)
class CellGradients:
    """The gradient of F in each cell of a circle."""

    middle: Array
    gradient: Array
    """(K + 1, D)."""
    error: Array
    """Standard deviation of each entry of a cell's gradient, (K + 1,)."""
    rising: Array
    """±1: the sign of the slope's jump between two cells, (K,)."""

    @property
    def jumps(self) -> Array:
        """Jumps J_k of the gradient, (K, D)."""
        return np.diff(self.gradient, axis=0)

    @property
    def jump_error(self) -> Array:
        """Standard deviation of a jump, in the 2-norm."""
        D = self.gradient.shape[1]
        return np.asarray(np.sqrt(D * (self.error[:-1] ** 2 + self.error[1:] ** 2)))

    def without(self, kinks: Flags) -> CellGradients:
        """Leave out kinks: of cells that are one then, the most accurate speaks for all."""
        cell = np.concatenate([[0], np.cumsum(~kinks)])
        best = np.lexsort((self.error, cell))
        first = best[np.unique(cell[best], return_index=True)[1]]
        return CellGradients(
            self.middle[first], self.gradient[first], self.error[first], self.rising[~kinks]
        )


# Length of the steps off the circle, in cell widths. 0.3 % of these probes leave their cell; at
# 0.1 it is 6 %, and some of them are not noticed.
STEP = 0.03
# Factor by which the step is shortened after a probe left its cell, and limit on how often.
NEARER, RETRIES = 8.0, 8
# Share of the way to a hyperplane that already counts as crossing it, because the gradients that
# tell the way have errors.
CROSSED = 0.93
# A kink is dropped if its change of slope is below this many standard deviations. Smaller: false
# kinks make thin cells. Larger: small neurons are left to the next sweep.
SIGNIFICANT = 30.0
# A jump of the gradient is dropped if it is below so many standard deviations and below this share
# of the median jump.
LEAST_JUMP, LEAST_SHARE = 10.0, 1e-7
# A neuron is far out if sin(θ)·√d of its kink is below this: it becomes active beyond 10³ length
# scales, where few fresh points test it.
FAR = 1e-3
# Far out, the weights of a neuron (without its bias) must exceed this many standard deviations.
# True dead neurons of trained networks had 3.9 and more; errors that changed the network where
# fresh points lie had 2.3 and less.
LEAST_SLOPE = 3.0
# Two values of a cell's line are no farther apart than this.
WIDEST = 0.86 * np.pi
# A cell's line is bent if an answer in this share of its length is off by so many deviations. A
# neuron that weight decay left nearly dead has a kink that a search does not tell from noise; steps
# across the circle are short, and what it bends there exceeds the gradient's other errors.
# Smaller: cells are asked in vain, once each.
INNER, BENT = 0.98, 4.0
# Outer cells of less than this length are always asked: many such kinks are far out, and so near to
# each other that one deviation matters.
THIN = 3e-3
# Pieces of a circle that are asked for first, and of one on which few kinks are expected.
START, FEW = 48, 16


@dataclass(frozen=True, slots=True)
class CircleSweep:
    """What is asked of one circle: F, or F − F̂ where F̂ is ``known``."""

    circle: Circle
    known: PiecewiseLinear | None
    noise: NoiseLevel
    start: int = START

    def run(self, most: int) -> Generator[Round, Answers, WalkedForm]:
        """Find the neurons of F, or of F − F̂, from the circle; refuse more than ``most``."""
        circle = self.circle
        lines = yield from self.lines(most)
        G, step = yield from self._across(lines)
        cells = self._cells(lines, G, step)
        gone = self.insignificant(lines.theta, cells)
        if np.any(gone):
            cells = cells.without(gone)
        return _as_form(circle, cells)

    def lines(self, most: int) -> Generator[Round, Answers, CellLines]:
        """Find kinks, and each cell's line; leave out kinks that are not significant."""
        circle, noise = self.circle, self.noise
        phase = "kinks" if self.known is None else "kinks left over"
        seen: list[tuple[Array, Array]] = []

        def asked(t: Array) -> Generator[Round, Answers, Array]:
            # F scales, and is piecewise affine along Q − tP, t = −cot θ; θ near π is less precise
            far = np.hypot(1.0, t)
            Y = (circle.Q - t[:, None] * circle.P) / far[:, None]
            F = yield from ask_points(WrittenPoints(circle.lift, Y), phase, self.known)
            seen.append((np.arctan(t) + np.pi / 2, F))
            return np.asarray((F * far)[:, None])

        size = max(noise.size, TINY)
        search = KinkSearch(
            asked,
            1.0,
            noise.search / size,
            most,
            thorough=True,
            scale=(size, size),
            start=self.start,
            far=1 / np.tan(circle.low),
        )
        kinks = yield from search.run()
        t = np.array([[piece.low, piece.high] for piece in kinks.pieces]).T
        values = np.array([[value[0] for value, _ in piece.ends] for piece in kinks.pieces]).T
        theta, at, F = np.arctan(kinks.t) + np.pi / 2, np.arctan(t) + np.pi / 2, values
        F /= np.hypot(1.0, t)
        close = 1 + np.flatnonzero(np.diff(theta) <= NARROWEST_NUMBERS)
        theta, at, F = (np.delete(part, close, axis=-1) for part in (theta, at, F))
        # half a circle apart values tell the same
        wide = np.flatnonzero(at[1] - at[0] > WIDEST)
        if len(wide):
            at[:, wide] = at[:, wide].mean(axis=0) + np.array([[-0.5], [0.5]]) * WIDEST
            again = yield from circle.measure(self.known, "cells")(at[:, wide].ravel())
            F[:, wide] = again.reshape(2, -1)
        lines = self.significant(theta, at, F, search.noise * size)
        return (yield from self._centred(lines, seen, search.noise * size))

    def _centred(
        self, lines: CellLines, seen: list[tuple[Array, Array]], deviation: float
    ) -> Generator[Round, Answers, CellLines]:
        """Ask at the midpoints of cells whose lines are bent, or may be, as nothing shows it."""
        theta, F = (np.concatenate(part) for part in zip(*seen, strict=True))
        i = np.searchsorted(lines.theta, theta)
        turn = theta - lines.middle[i]
        inside = np.abs(turn) < INNER * lines.length[i] / 2
        i, turn, F = i[inside], turn[inside], F[inside]
        off = np.abs(F - lines.value[i] * np.cos(turn) - lines.tangent[i] * np.sin(turn))
        own = deviation + np.spacing(lines.middle[i]) * np.abs(lines.tangent[i])
        doubted = np.full(len(lines.middle), True)
        doubted[i] = False
        doubted[i[off > BENT * own]] = True
        doubted[[0, -1]] |= lines.length[[0, -1]] < THIN
        value = lines.value.copy()
        value[doubted] = yield from self.circle.measure(self.known, "cells")(lines.middle[doubted])
        return replace(lines, value=value, off=np.abs(value - lines.value))

    def significant(self, theta: Array, at: Array, F: Array, deviation: float) -> CellLines:
        """Leave out kinks that are not significant, the least one first.

        Of each cell between kinks ``theta`` (K,) two answers F are known, at angles (2, K + 1).
        """
        lines = CellLines.of(self.circle, theta, at, F)
        while len(lines.theta):
            sure = lines.significance(deviation) / SIGNIFICANT
            k = int(np.argmin(sure))
            if sure[k] >= 1:
                break
            # the two cells are one, from the first answer of one to the second of the other
            at, F = (
                np.stack([np.delete(part[0], k + 1), np.delete(part[1], k)]) for part in (at, F)
            )
            lines = CellLines.of(self.circle, np.delete(lines.theta, k), at, F)
        return lines

    def _across(self, lines: CellLines) -> Generator[Round, Answers, tuple[Array, Array]]:
        """Ask the gradients' parts G orthogonal to the circle, (K + 1, D − 2); with the steps."""
        circle = self.circle
        cells, others = len(lines.middle), len(circle.E)
        centres = circle.at(lines.middle)
        G = np.zeros((cells, others))
        step = np.repeat(STEP * lines.width[:, None], others, axis=1)
        bad = np.full(G.shape, True)
        for _ in range(1 + RETRIES):
            i, j = np.nonzero(bad)
            probes = PointsAround(circle.lift, centres, circle.E, i, j, step[i, j])
            phase = "gradients" if bad.all() else "gradients, nearer"
            F = yield from ask_points(probes, phase, self.known)
            G[i, j] = (F - lines.value[i]) / step[i, j]
            bad = self._crossed(lines, G, step)
            if not bad.any():
                break
            step = np.where(bad, step / NEARER, step)
        return G, step

    def _crossed(self, lines: CellLines, G: Array, step: Array) -> Flags:
        """Tell which probes left their cell: (K + 1, D − 2)."""
        beta, alpha = np.diff(G, axis=0), lines.bends
        bad = np.zeros(G.shape, dtype=bool)
        for i, m in enumerate(lines.middle):
            z = alpha * np.sin(m - lines.theta)
            towards = -np.sign(z)[:, None] * beta * step[i]
            bad[i] = np.any(CROSSED * np.abs(z)[:, None] < towards, axis=0)
        return bad

    def _cells(self, lines: CellLines, G: Array, step: Array) -> CellGradients:
        """Put the gradients together, along and across the circle."""
        circle, value, tangent = self.circle, lines.value[:, None], lines.tangent[:, None]
        cos, sin = np.cos(lines.middle)[:, None], np.sin(lines.middle)[:, None]
        along = (value * cos - tangent * sin) * circle.P
        along += (value * sin + tangent * cos) * circle.Q
        deviation = np.hypot(self.noise.deviation, np.spacing(lines.middle) * np.abs(lines.tangent))
        if self.known is not None:
            deviation = np.hypot(deviation, _unevenness(circle, self.known, lines))
        # a bend that leaves the midpoint off the line leaves the slope off by 2·off/length
        squares = deviation**2 * (np.sum(step**-2.0, axis=1) + lines.length**-2.0)
        squares += 2 * (lines.off / lines.length) ** 2
        error = np.sqrt(2 * (squares / (step.shape[1] + 1)))
        return CellGradients(
            lines.middle, along + G @ circle.E, error, np.where(lines.bends < 0, -1.0, 1.0)
        )

    def insignificant(self, theta: Array, cells: CellGradients) -> Flags:
        """Tell which jumps of the gradient are nothing but error."""
        lift, J, own = self.circle.lift, cells.jumps, cells.jump_error
        if not len(J):
            return np.zeros(0, dtype=bool)
        size = np.linalg.norm(J, axis=1)
        least = LEAST_SHARE * np.median(size)
        keep = (size > least) | (size > LEAST_JUMP * own)
        if lift.biases:
            # a neuron that wakes up far out is large by its bias, but shows its slope alone
            slope = np.linalg.norm(J[:, :-1], axis=1)
            far = np.sin(theta) * np.sqrt(lift.dim) < FAR
            keep &= ~far | (slope > LEAST_SLOPE * own)
        return np.asarray(~keep)


def _as_form(circle: Circle, cells: CellGradients) -> WalkedForm:
    """Write the cells as one form.

    Its neurons are inactive in the most accurate cell, which gives the affine part: those far out,
    with biases 10⁵ times as large as others, then add nothing where they are inactive.
    """
    eps, J = cells.rising, cells.jumps
    best = int(np.argmin(cells.error))
    rising = np.where(np.arange(len(J)) < best, -1.0, 1.0)
    g_error = float(np.sqrt(circle.lift.D) * cells.error[best])
    a = (rising * eps)[:, None] * J
    form = PiecewiseLinear(cells.gradient[best], a, eps, cells.jump_error, g_error)
    none = np.zeros_like(cells.gradient)
    return WalkedForm(form, circle, np.arange(len(J)), rising, cells.middle, none, cells.error)


def _unevenness(circle: Circle, known: PiecewiseLinear, lines: CellLines) -> Array:
    """Return how far F − F̂ is from a line in each cell: known neurons there have errors."""
    theta = circle.crossings(known.a)
    inside = np.abs(theta - lines.middle[:, None]) < lines.width[:, None] / 2
    errors = np.sqrt(inside @ known.error**2)
    return np.asarray(errors * lines.width / np.sqrt(circle.lift.D))
