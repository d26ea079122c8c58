"""Measure the gradient of what is left, F − F̂, where cells are wide.

A cell that is thin on the circle, where F̂ came from, is usually wide elsewhere: at its analytic
centre (`unsoftmax.arrangement.centres`) answers tell ∇(F − F̂) with steps of order 1: D queries per
cell, for the centre itself and D − 1 directions orthogonal to it. With R_i the gradient left over
in cell i, the jumps between cells i and i + 1 gain R_(i+1) − R_i.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.arrangement.centres import CellShapes
from unsoftmax.learners.relu_network.lift import Circle, PiecewiseLinear, PointsAround, ask_points
from unsoftmax.measure.reflections import mirrors
from unsoftmax.probes import Array, Flags, Indices, Round
from unsoftmax.protocol import Answers

# Cells whose point is closer to a hyperplane than this are left out: its side is uncertain.
INSIDE = 1e-13
# Smallest distance of a centre from every hyperplane, in standard deviations of its error.
CLEAR = 10.0
# The same once cells were measured before: the error bars of what was left over are wide.
LESS_CLEAR = 1.0


@dataclass(frozen=True, slots=True)
class WalkedForm:
    """A form, the cells in which a circle crosses its hyperplanes, and what is left in each."""

    form: PiecewiseLinear
    circle: Circle
    order: Indices
    """Neuron crossed k-th."""
    rising: Array
    """±1: whether that neuron becomes active or inactive, (K,), in crossing order."""
    middle: Array
    """Midpoints of the cells, (K + 1,)."""
    R: Array
    """Gradients left over (K + 1, D); 0 where nothing is known."""
    error: Array
    """Standard deviation of each entry, (K + 1,); infinite where nothing is known."""

    @classmethod
    def along(cls, form: PiecewiseLinear, circle: Circle) -> WalkedForm:
        """Follow a circle through the form's cells, on which nothing was asked."""
        p, q = form.a @ circle.P, form.a @ circle.Q
        theta = circle.crossings(form.a)
        order = np.argsort(theta, kind="stable")
        theta, p, q = theta[order], p[order], q[order]
        rising = np.where(q * np.cos(theta) - p * np.sin(theta) >= 0, 1.0, -1.0)
        ends = np.concatenate([[circle.low], theta, [circle.high]])
        R, error = np.zeros((len(ends) - 1, len(circle.P))), np.full(len(ends) - 1, np.inf)
        return cls(form, circle, order, rising, (ends[:-1] + ends[1:]) / 2, R, error)

    def sides(self, cells: Indices) -> Array:
        """Return ±1 for active and inactive neurons of some cells, (cells, K)."""
        k = np.arange(len(self.order))
        passed = np.where(k < cells[:, None], self.rising, -self.rising)
        sides = np.empty_like(passed)
        sides[:, self.order] = passed
        return sides

    def beside(self, which: Flags) -> Indices:
        """Return the cells on either side of some neurons' hyperplanes."""
        near = which[self.order]
        return np.flatnonzero(np.append(near, False) | np.insert(near, 0, False))

    def measured(
        self, cells: Indices, deviation: float, clear: float = CLEAR
    ) -> Generator[Round, Answers, WalkedForm]:
        """Ask ∇(F − F̂) in some cells, and keep what is known better.

        Cells are left out whose centre is not ``clear`` deviations on its side of every hyperplane.
        ``deviation`` is that of an answer.
        """
        if not len(cells):
            return self
        cells, sides, y, shapes = self._centres(cells, clear)
        if not len(cells):
            return self
        D, step = len(self.form.g0), shapes.steps(sides, y)
        i, j = (part.ravel() for part in np.indices(step.shape))
        own, none = np.arange(len(y)), np.zeros(len(y), dtype=np.intp)
        # the centres themselves first, as steps of 0
        points = PointsAround(
            self.circle.lift,
            y,
            None,
            np.concatenate([own, i]),
            np.concatenate([none, j]),
            np.concatenate([np.zeros(len(y)), step.ravel()]),
        )
        F = yield from ask_points(points, "polish", self.form)
        radial, aside = F[: len(y)], F[len(y) :].reshape(step.shape)
        # I − u uᵀ maps e_0 to ∓y and e_(l+1) to the directions orthogonal to it
        across = (aside - radial[:, None]) / step
        u = mirrors(y)
        lead = np.where(y[:, 0] >= 0, -radial, radial)
        coefficients = np.column_stack([lead, across])
        R = coefficients - u * np.sum(u * coefficients, axis=1, keepdims=True)
        error = deviation * np.sqrt((1 + 2 * np.sum(step**-2.0, axis=1)) / D)
        better = error < self.error[cells]
        all_R, all_errors = self.R.copy(), self.error.copy()
        all_R[cells[better]], all_errors[cells[better]] = R[better], error[better]
        return replace(self, R=all_R, error=all_errors)

    def _centres(self, cells: Indices, clear: float) -> tuple[Indices, Array, Array, CellShapes]:
        """Return the cells that have a centre, their sides, the centres, and the hyperplanes."""
        form, upright = self.form, self.circle.lift.biases
        sides = self.sides(cells)
        start = self.circle.at(self.middle[cells])
        norms = form.sizes
        n = form.a / norms[:, None]
        shapes = CellShapes(n, upright)
        inside = np.all(sides * (start @ n.T) > INSIDE, axis=1)
        cells, sides, start = cells[inside], sides[inside], start[inside]
        y = shapes.centres(start)
        sure = np.all(sides * (y @ n.T) > clear * form.error / norms, axis=1)
        if upright:
            sure &= y[:, -1] > 0
        return cells[sure], sides[sure], y[sure], shapes

    def corrected(self, touched: Flags | None = None) -> WalkedForm:
        """Add what is left to the jumps whose both sides are known, and to the affine part.

        What is left then is less, too: a jump that is corrected later needs the cell as it is.
        ``touched`` are the only neurons to be corrected.
        """
        form, left, D = self.form, self.error, len(self.form.g0)
        both = np.isfinite(left[:-1]) & np.isfinite(left[1:])
        if touched is not None:
            both &= touched[self.order]
        k = self.order[both]
        # a jump counts in the direction of growing activity
        rise = np.zeros_like(form.a)
        rise[k] = self.rising[both, None] * np.diff(self.R, axis=0)[both]
        error = form.error.copy()
        error[k] = np.sqrt(D * (left[:-1] ** 2 + left[1:] ** 2))[both]
        # a cell shows g0 but for the errors of its active neurons
        known = np.flatnonzero(np.isfinite(left))
        g0, g_error, R = form.g0, form.g_error, self.R.copy()
        if len(known):
            active = self.sides(known) > 0
            R[known] -= active @ rise
            variance = D * left[known] ** 2 + active @ error**2
            best = int(np.argmin(variance))
            if variance[best] < g_error**2:
                more = R[known[best]]
                g0, g_error = g0 + more, float(np.sqrt(variance[best]))
                R[known] -= more
        a = form.a + form.eps[:, None] * rise
        form = replace(form, g0=g0, a=a, error=error, g_error=g_error)
        return replace(self, form=form, R=R)
