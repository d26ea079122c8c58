"""Measure the gradient of what is left, F − F̂, where cells are fat.

A cell that is thin on the circle, where F̂ came from, is usually fat elsewhere: at its
analytic centre, the maximum of Σ_j log(s_j n_j·y) − K/2·‖y‖² over its side s_j n_j·y > 0 of
every hyperplane, answers tell ∇(F − F̂) with steps of order 1: D queries per cell, y itself
and D − 1 directions beside it. With R_i the gradient left over in cell i, the jumps between
cells i and i + 1 gain R_(i+1) − R_i.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unsoftmax.arrangement.cells import Circle, Noise, Swept
from unsoftmax.arrangement.lift import Around, Form, ask
from unsoftmax.measure.reflections import mirrors
from unsoftmax.probes import Array, Indices, Round
from unsoftmax.protocol import Answers

# The centre need not be exact: with line searches a few steps come close to it.
_NEWTON, _DECREMENT, _BISECTIONS, _FARTHEST = 25, 1e-2, 12, 1e3
_RIDGE = 1e-15
_INSIDE = 1e-13  # closer to a hyperplane than this nobody is on one side of it
_CHUNK = 2**22  # numbers at once: 32 MB
_HALF, _LONGEST = 0.5, 0.7  # of the way to the next hyperplane; of ‖y‖ = 1


@dataclass(frozen=True, slots=True)
class Walk:
    """A form's neurons in the order in which a circle crosses their hyperplanes."""

    circle: Circle
    order: Indices
    """Neuron crossed k-th."""
    rising: Array
    """±1: whether that neuron becomes active or inactive, (K,), in crossing order."""
    middle: Array
    """Midpoints of the cells, (K + 1,)."""

    @classmethod
    def of(cls, form: Form, circle: Circle) -> Walk:
        """Follow a circle through the form's cells."""
        p, q = form.a @ circle.P, form.a @ circle.Q
        theta = np.mod(np.arctan2(-p, q), np.pi)
        order = np.argsort(theta, kind="stable")
        theta, p, q = theta[order], p[order], q[order]
        rising = np.where(q * np.cos(theta) - p * np.sin(theta) >= 0, 1.0, -1.0)
        ends = np.concatenate([[circle.low], theta, [circle.high]])
        return cls(circle, order, rising, (ends[:-1] + ends[1:]) / 2)

    @classmethod
    def swept(cls, swept: Swept) -> Walk:
        """Keep the order of a sweep."""
        return cls(swept.circle, np.arange(len(swept.rising)), swept.rising, swept.middle)

    def sides(self, cells: Indices) -> Array:
        """Return ±1 for active and inactive neurons of some cells, (cells, K)."""
        k = np.arange(len(self.order))
        passed = np.where(k < cells[:, None], self.rising, -self.rising)
        sides = np.empty_like(passed)
        sides[:, self.order] = passed
        return sides


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of the gradient in each cell of a walk."""

    R: Array
    """(K + 1, D); 0 where nothing is known."""
    error: Array
    """Standard deviation of each entry, (K + 1,); infinite where nothing is known."""

    @classmethod
    def unknown(cls, walk: Walk) -> Left:
        """Know nothing."""
        cells, D = len(walk.middle), len(walk.circle.P)
        return cls(np.zeros((cells, D)), np.full(cells, np.inf))


def left_over(
    form: Form, walk: Walk, cells: Indices, known: Left, noise: Noise, clear: float
) -> Generator[Round, Answers, Left]:
    """Ask ∇(F − F̂) in some cells of a walk, and keep what is ``known`` where that is no better.

    Cells are left out whose centre is not ``clear`` deviations on its side of every hyperplane.
    """
    D = len(form.g0)
    if not len(cells):
        return known
    S = walk.sides(cells)
    start = walk.circle.at(walk.middle[cells])
    norms = np.linalg.norm(form.a, axis=1)
    n = form.a / norms[:, None]
    inside = np.all(S * (start @ n.T) > _INSIDE, axis=1)
    cells, S, start = cells[inside], S[inside], start[inside]
    y = _centres(n, S, start, walk.circle.lift.biases)
    sure = np.all(S * (y @ n.T) > clear * form.error / norms, axis=1)
    if walk.circle.lift.biases:
        sure &= y[:, -1] > 0
    cells, S, y = cells[sure], S[sure], y[sure]
    if not len(cells):
        return known
    step = _steps(n, S, y, walk.circle.lift.biases)
    i, j = (part.ravel() for part in np.indices(step.shape))
    at = Around(walk.circle.lift, y, None, *_with_centres(i, j, step, len(y)))
    F = yield from ask(at, "polish", form)
    radial, aside = F[: len(y)], F[len(y) :].reshape(step.shape)
    # I − u uᵀ maps e_0 to ∓y and e_(l+1) to the directions beside it
    beside = (aside - radial[:, None]) / step
    u = mirrors(y)
    lead = np.where(y[:, 0] >= 0, -radial, radial)
    coefficients = np.column_stack([lead, beside])
    told = noise.bars * np.sqrt((1 + 2 * np.sum(step**-2.0, axis=1)) / D)
    better = told < known.error[cells]
    R, error = known.R.copy(), known.error.copy()
    R[cells[better]] = (coefficients - u * np.sum(u * coefficients, axis=1, keepdims=True))[better]
    error[cells[better]] = told[better]
    return Left(R, error)


def corrected(
    form: Form, walk: Walk, left: Left, touched: NDArray[np.bool_] | None = None
) -> tuple[Form, Left]:
    """Add what is left to the jumps whose both sides are known, and to the affine part.

    Returns what is left then, too: a jump told later must not be told from a cell as it was.
    """
    D = len(form.g0)
    both = np.isfinite(left.error[:-1]) & np.isfinite(left.error[1:])
    if touched is not None:
        both &= touched[walk.order]
    k = walk.order[both]
    # a jump is told in the direction of growing activity
    gain = np.zeros_like(form.a)
    gain[k] = walk.rising[both, None] * np.diff(left.R, axis=0)[both]
    error = form.error.copy()
    error[k] = np.sqrt(D * (left.error[:-1] ** 2 + left.error[1:] ** 2))[both]
    # a cell tells g0 but for the errors of its active neurons
    known = np.flatnonzero(np.isfinite(left.error))
    g0, g_error, R = form.g0, form.g_error, left.R.copy()
    if len(known):
        active = walk.sides(known) > 0
        R[known] -= active @ gain
        told = D * left.error[known] ** 2 + active @ error**2
        best = int(np.argmin(told))
        if told[best] < g_error**2:
            more = R[known[best]]
            g0, g_error = g0 + more, float(np.sqrt(told[best]))
            R[known] -= more
    a = form.a + form.eps[:, None] * gain
    return replace(form, g0=g0, a=a, error=error, g_error=g_error), replace(left, R=R)


def _with_centres(
    i: Indices, j: Indices, step: Array, count: int
) -> tuple[Indices, Indices, Array]:
    """Put the centres themselves first, as steps of 0."""
    own = np.arange(count)
    return (
        np.concatenate([own, i]),
        np.concatenate([np.zeros(count, dtype=np.intp), j]),
        np.concatenate([np.zeros(count), step.ravel()]),
    )


def _centres(n: Array, S: Array, start: Array, upright: bool) -> Array:
    """Return the cells' analytic centres, of norm 1, by Newton steps from inside."""
    K, D = n.shape
    y = start.copy()
    chunk = max(1, _CHUNK // max(1, K * D))
    for first in range(0, len(y), chunk):
        part = slice(first, first + chunk)
        y[part] = _newton(n, S[part], y[part], upright)
    return y


def _newton(n: Array, S: Array, y: Array, upright: bool) -> Array:
    K, D = n.shape
    weight = max(K, 1)
    for _ in range(_NEWTON):
        inverse = 1 / (y @ n.T)  # of s·(s n·y): the sign cancels in what follows
        gradient = weight * y - inverse @ n
        hessian = np.matmul(n.T * inverse[:, None, :] ** 2, n)
        hessian[:, np.arange(D), np.arange(D)] += weight
        if upright:
            gradient[:, -1] -= 1 / y[:, -1]
            hessian[:, -1, -1] += y[:, -1] ** -2.0
        # walls 10⁻⁸ away outweigh all others to the last bit
        trace = np.trace(hessian, axis1=1, axis2=2)
        hessian[:, np.arange(D), np.arange(D)] += _RIDGE * trace[:, None]
        direction = -np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        y = y + _line_search(n, y, direction, weight, upright)[:, None] * direction
        if np.all(-np.sum(gradient * direction, axis=1) < _DECREMENT):
            break
    return np.asarray(y / np.linalg.norm(y, axis=1, keepdims=True))


def _line_search(n: Array, y: Array, direction: Array, weight: float, upright: bool) -> Array:
    """Return how far to go along each direction: damped steps are too short in thin cells."""
    room, speed = y @ n.T, direction @ n.T
    if upright:
        room = np.column_stack([room, y[:, -1]])
        speed = np.column_stack([speed, direction[:, -1]])
    rate = speed / room  # a wall is met at t = −1/rate
    with np.errstate(divide="ignore"):
        far = 1 / np.maximum(np.max(-rate, axis=1, initial=0.0), 1 / _FARTHEST)
    along, square = np.sum(y * direction, axis=1), np.sum(direction**2, axis=1)
    low, high = np.zeros(len(y)), (1 - 1e-6) * far
    for _ in range(_BISECTIONS):
        t = (low + high) / 2
        rising = weight * (along + t * square) > np.sum(rate / (1 + t[:, None] * rate), axis=1)
        low, high = np.where(rising, low, t), np.where(rising, t, high)
    return np.asarray((low + high) / 2)


def _steps(n: Array, S: Array, y: Array, upright: bool) -> Array:
    """Return signed steps in the D − 1 directions beside y: half the way to the cell's wall."""
    N = np.vstack([n, np.eye(n.shape[1])[-1]]) if upright else n
    sides = np.column_stack([S, np.ones(len(S))]) if upright else S
    u = mirrors(y)
    steps = np.empty((len(y), n.shape[1] - 1))
    for i in range(len(y)):  # cells are few, and each needs (K, D) numbers
        room = sides[i] * (N @ y[i])
        speed = sides[i][:, None] * (N[:, 1:] - np.outer(N @ u[i], u[i, 1:]))
        with np.errstate(divide="ignore"):
            rate = speed / room[:, None]
            ahead = 1 / np.maximum(0, np.max(-rate, axis=0, initial=0.0))
            behind = 1 / np.maximum(0, np.max(rate, axis=0, initial=0.0))
        steps[i] = np.where(
            ahead >= behind,
            np.minimum(_HALF * ahead, _LONGEST),
            -np.minimum(_HALF * behind, _LONGEST),
        )
    return steps
