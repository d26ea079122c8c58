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
from dataclasses import dataclass

import numpy as np

from unsoftmax.arrangement.cells import CellGradients, CellLines
from unsoftmax.arrangement.circle import Circle
from unsoftmax.arrangement.homogeneous import PiecewiseLinear
from unsoftmax.arrangement.kinks import NARROWEST_NUMBERS, KinkSearch
from unsoftmax.arrangement.lifted_points import PointsAround, ask_points
from unsoftmax.arrangement.noise_level import NoiseLevel
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Flags, Round
from unsoftmax.protocol import Answers

# Distance of a circle's ends from θ = 0 and π, where tokens are infinitely long; 1e-5 is 10⁵ length
# scales away. Smaller: hyperplanes out there are found, but imprecisely; another length scale shows
# them better. Without biases no length is special, and the ends are this close.
EDGE, NO_EDGE = 1e-5, 1e-8
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
# Pieces of a circle that are asked for first, and of one on which few kinks are expected.
START, FEW = 48, 16


@dataclass(frozen=True, slots=True)
class Swept:
    """What one circle says: F̂, its neurons ordered along the circle, and the cells."""

    circle: Circle
    form: PiecewiseLinear
    rising: Array
    """±1: whether a neuron becomes active or inactive, (K,)."""
    middle: Array
    """Midpoints of the cells, (K + 1,)."""
    error: Array
    """Standard deviation of each entry of a cell's gradient, (K + 1,)."""

    @property
    def spread(self) -> float:
        """How far F̂ may be off at points of norm 1, typically."""
        squares = self.error[:-1] ** 2 + self.error[1:] ** 2
        return float(np.sqrt(np.sum(squares) / 2)) if len(squares) else 0.0


@dataclass(frozen=True, slots=True)
class CircleSweep:
    """What is asked of one circle: F, or F − F̂ where F̂ is ``known``."""

    circle: Circle
    known: PiecewiseLinear | None
    noise: NoiseLevel
    start: int = START

    def run(self, most: int) -> Generator[Round, Answers, Swept]:
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
        ask = circle.measure(self.known, "kinks" if self.known is None else "kinks left over")

        def asked(t: Array) -> Generator[Round, Answers, Array]:
            # along t = −cot θ F, which scales, is piecewise affine
            F = yield from ask(np.arctan(t) + np.pi / 2)
            return np.asarray((F * np.hypot(1.0, t))[:, None])

        size = max(noise.size, TINY)
        search = KinkSearch(
            asked,
            1.0,
            noise.search / size,
            most,
            thorough=True,
            scale=(size, size),
            start=self.start,
            far=1 / np.tan(max(circle.low, NO_EDGE)),
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
        return self.significant(theta, at, F, search.noise * size)

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
        squares = np.sum(step**-2.0, axis=1) + lines.length**-2.0
        deviation = np.hypot(self.noise.deviation, np.spacing(lines.middle) * np.abs(lines.tangent))
        if self.known is not None:
            deviation = np.hypot(deviation, _unevenness(circle, self.known, lines))
        error = deviation * np.sqrt(2 * (squares / (step.shape[1] + 1)))
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
            keep &= ~far | (slope > least) | (slope > LEAST_SLOPE * own)
        return np.asarray(~keep)


def _as_form(circle: Circle, cells: CellGradients) -> Swept:
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
    return Swept(circle, form, rising, cells.middle, cells.error)


def _unevenness(circle: Circle, known: PiecewiseLinear, lines: CellLines) -> Array:
    """Return how far F − F̂ is from a line in each cell: known neurons there have errors."""
    theta = circle.crossings(known.a)
    inside = np.abs(theta - lines.middle[:, None]) < lines.width[:, None] / 2
    errors = np.sqrt(inside @ known.error**2)
    return np.asarray(errors * lines.width / np.sqrt(circle.lift.D))
