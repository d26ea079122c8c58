"""Which activation neurons have, and their scales and biases, from their weights at base points.

Of neuron j the weights w_j(x) of its rows e_k in the Jacobian are known at base points, but for a
constant each. With ξ = E_j x, of q numbers, they are the gradient of a function of ξ:

    plain, q = 1:  s φ'(k ξ + a)
    gated, q = 2:  φ'(γ·ξ + g)(μ·ξ + u) γ + φ(γ·ξ + g) μ

k and a, or γ and g, are found by Gauss and Newton's steps from the best cell of a grid, damped;
s, or μ and u, are linear and solved for at every step (variable projection). All neurons at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.models.arrays import TINY
from unsoftmax.models.neurons import ACTIVATIONS
from unsoftmax.probes import Array, Indices

# Grids: scales, relative to the spread of ξ; biases; angles of γ. Points that a cell is tried at.
SCALES, GATE_SCALES = 2.0 ** np.arange(-3.5, 3.6, 0.5), 2.0 ** np.arange(-2.0, 2.6, 0.75)
BIASES, GATE_BIASES = np.arange(-4.5, 4.6, 0.75), np.array((-1.6, -0.8, 0.0, 0.8, 1.6))
ANGLES, POINTS = 12, 64
# Neurons that choose the activation.
CHOOSE = 16
# Damped steps from a cell.
STEPS = 40
# A neuron that misses its weights by so many times what is usual is tried from other cells. A
# quarter of the neurons miss less than what is usual: more than half may be beside their curves.
POOR, USUAL = 10.0, 0.25
# And one that misses by this once rows are nearly right.
FAR = 1e-5
# Starts for such a neuron, at most.
RETRIES = 40
# Step of the differences that slopes are read from.
DIFFERENCE = 1e-6


@dataclass(frozen=True, slots=True)
class Curves:
    """Fitted curves of m neurons.

    θ (m, q + 1) are (log k, a), or (γ, g); linear (m, 1) is s, or (m, 3) is (μ, u).
    """

    activation: str
    theta: Array
    linear: Array
    missed: Array
    """Root mean squares (m,), relative to the weights'."""

    @property
    def usual(self) -> float:
        """What neurons miss that are on their curves."""
        return float(np.quantile(self.missed, USUAL))


@dataclass(frozen=True, slots=True)
class CurveData:
    """Coordinates ξ (m, X, q) and weights (m, X, q), centred over points."""

    xi: Array
    weights: Array

    def taken(self, which: Indices | slice, points: slice = slice(None)) -> CurveData:
        """Return some neurons, at some points."""
        w = self.weights[which, points]
        return CurveData(self.xi[which, points], w - w.mean(axis=1, keepdims=True))

    def columns(self, activation: str, theta: Array) -> Array:
        """Return what is linear, for parameters (m, q + 1): (m, X·q, 1 or 3)."""
        phi, (m, X, q) = ACTIVATIONS[activation], self.xi.shape
        if q == 1:
            z = np.exp(theta[:, :1]) * self.xi[:, :, 0] + theta[:, 1:]
            columns = phi.slope(z)[:, :, None, None]
        else:
            gamma, g = theta[:, :q], theta[:, q:]
            t = np.einsum("jxq,jq->jx", self.xi, gamma) + g
            value, slope = phi.of(t), phi.slope(t)
            inside = np.concatenate([self.xi, np.ones((m, X, 1))], axis=2)
            columns = slope[:, :, None, None] * gamma[:, None, :, None] * inside[:, :, None]
            columns[:, :, range(q), range(q)] += value[:, :, None]
        columns = columns - columns.mean(axis=1, keepdims=True)
        return np.asarray(columns.reshape(m, X * q, -1))

    def solved(self, activation: str, theta: Array) -> tuple[Array, Array]:
        """Return linear parameters and misses (m, X·q)."""
        columns = self.columns(activation, theta)
        y = self.weights.reshape(len(columns), -1)
        if columns.shape[2] == 1:
            one = columns[:, :, 0]
            s = np.sum(one * y, axis=1) / np.maximum(np.sum(one * one, axis=1), TINY)
            return s[:, None], y - s[:, None] * one
        Q, R = np.linalg.qr(columns)
        along = np.einsum("jnl,jn->jl", Q, y)
        # of saturated gates all columns may be 0
        size = np.maximum(np.abs(np.einsum("jll->jl", R)).max(axis=1), np.sqrt(TINY))
        R = R + 1e-14 * size[:, None, None] * np.eye(R.shape[1])
        linear = np.linalg.solve(R, along[:, :, None])[:, :, 0]
        return linear, y - np.einsum("jnl,jl->jn", Q, along)

    def fitted(self, activation: str, start: Array) -> Curves:
        """Fit from a start (m, q + 1) by damped steps."""
        size = np.maximum(np.linalg.norm(self.weights, axis=(1, 2)), TINY)
        theta, damping = start.copy(), np.full(len(start), 1e-3)
        linear, left = self.solved(activation, theta)
        for _ in range(STEPS):
            J = np.stack(
                [
                    (self.solved(activation, theta + step)[1] - left) / DIFFERENCE
                    for step in DIFFERENCE * np.eye(theta.shape[1])
                ],
                axis=2,
            )
            H, gradient = np.einsum("jnk,jnl->jkl", J, J), np.einsum("jnk,jn->jk", J, left)
            H = H + damping[:, None, None] * H * np.eye(H.shape[1]) + TINY * np.eye(H.shape[1])
            step = np.linalg.solve(H, -gradient[:, :, None])[:, :, 0]
            step *= np.minimum(1.0, 1.5 / np.maximum(np.abs(step).max(axis=1), TINY))[:, None]
            tried, new = self.solved(activation, theta + step)
            better = np.linalg.norm(new, axis=1) < np.linalg.norm(left, axis=1)
            theta = np.where(better[:, None], theta + step, theta)
            left = np.where(better[:, None], new, left)
            linear = np.where(better[:, None], tried, linear)
            damping = np.clip(np.where(better, damping / 10, damping * 10), 1e-15, 1e6)
            if np.max(np.abs(step)[better], initial=0.0) < DIFFERENCE**2:
                break
        return Curves(activation, theta, linear, np.linalg.norm(left, axis=1) / size)

    def cells(self) -> Array:
        """Return starts: (groups, scales, m, q + 1); a group is of one bias, or angle and bias."""
        spread = np.sqrt(np.mean(self.xi**2, axis=(1, 2)))
        if self.xi.shape[2] == 1:
            scale, bias = SCALES[:, None] / spread, BIASES[:, None, None]
            return np.stack(np.broadcast_arrays(np.log(scale), bias), axis=3)
        angle, bias = np.meshgrid(2 * np.pi * np.arange(ANGLES) / ANGLES, GATE_BIASES)
        scale = GATE_SCALES[:, None] / spread
        gamma = (scale * way.reshape(-1, 1, 1) for way in (np.cos(angle), np.sin(angle)))
        return np.stack(np.broadcast_arrays(*gamma, bias.reshape(-1, 1, 1)), axis=3)

    def best_cells(self, activation: str) -> Array:
        """Return the best start of each group, the best first, (groups, m, q + 1)."""
        few = self.taken(slice(None), slice(None, POINTS))
        starts = few.cells()
        missed = np.array(
            [
                [np.linalg.norm(few.solved(activation, x)[1], axis=1) for x in group]
                for group in starts
            ]
        )
        best = np.argmin(missed, axis=1)
        starts = np.take_along_axis(starts, best[:, None, :, None], axis=1)[:, 0]
        order = np.argsort(np.min(missed, axis=1), axis=0)
        return np.take_along_axis(starts, order[:, :, None], axis=0)

    def found(self, activation: str) -> Curves:
        """Fit with no start."""
        first, *others = self.best_cells(activation)
        return self._mended(self.fitted(activation, first), others)

    def refound(self, activation: str, start: Array) -> Curves:
        """Fit from a start (m, q + 1); neurons that are far from any curve there have none."""
        fit = self.fitted(activation, start)
        far = np.flatnonzero(fit.missed > max(POOR * fit.usual, FAR))
        if not len(far):
            return fit
        others = np.repeat(start[None], RETRIES, axis=0)
        cells = self.taken(far).best_cells(activation)[:RETRIES]
        others[: len(cells), far] = cells
        return self._mended(fit, [*others[: len(cells)]])

    def _mended(self, fit: Curves, others: list[Array]) -> Curves:
        """Fit poor neurons again, from other starts."""
        for start in others[:RETRIES]:
            poor = np.flatnonzero(fit.missed > POOR * fit.usual)
            if not len(poor):
                break
            again = self.taken(poor).fitted(fit.activation, start[poor])
            theta, linear, missed = (x.copy() for x in (fit.theta, fit.linear, fit.missed))
            better = again.missed < missed[poor]
            for old, new in ((theta, again.theta), (linear, again.linear), (missed, again.missed)):
                old[poor[better]] = new[better]
            fit = Curves(fit.activation, theta, linear, missed)
        return fit

    def chosen(self, names: tuple[str, ...]) -> Curves:
        """Fit with the activation that suits most of a few neurons."""
        few = self.taken(slice(None, CHOOSE))
        missed = {name: few.found(name).usual for name in names[1:] and names}
        return self.found(min(names, key=lambda name: missed.get(name, 0.0)))
