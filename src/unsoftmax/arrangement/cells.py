"""All jumps of the gradient from one circle: a query per cell and direction.

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

from unsoftmax.arrangement.breakpoints import Measure
from unsoftmax.arrangement.kinks import KinkSearch, find_kinks
from unsoftmax.arrangement.lift import Around, Form, Lift, Written, ask
from unsoftmax.probes import Array, Round, Singles
from unsoftmax.protocol import Answers

_ENDS = 0.07  # of a cell: where its two answers lie, away from the kinks' own errors
_STEP = 0.03  # of a cell's width: 0.3 % of probes leave their cell; at 0.1, 6 %
_NEARER, _RETRIES = 8.0, 8
_CROSSED = 0.93  # of the way to a hyperplane already counts: G has errors
_SIGNIFICANT = 30.0  # deviations of its own error that a jump of the slope must have
_LEAST_JUMP, _LEAST_SHARE = 10.0, 1e-7
# A neuron that wakes up beyond the hold-out's 10³ λ, where a circle meets it √d times as far out,
# must have a slope of 3 deviations: of trained networks' dead neurons, true slopes had 3.9 and
# more, those that turned it where fresh points lie 2.3 and less.
_FAR, _LEAST_SLOPE = 1e-3, 3.0
# Beyond θ = 0 and π lies h ≤ 0, where F is not defined; 1e-10 is 10¹⁰ length scales away: at 10⁸
# one in 100 neurons that are dead up to 10⁵ length scales was not crossed.
_EDGE = 1e-10
# Errors of answers relative to the largest, at least: their last place, in float64 or float32.
DOUBLE, SINGLE = 2e-16, 1.2e-7
# The noise is estimated from second differences over this angle at so many places.
_NOISE_STEP, _NOISE_PLACES = 1e-5, 16
# The spread of F(θ−h) + F(θ+h) − 2cos(h)F(θ) is √6 that of an answer; the 50 % and 90 %
# quantiles of |normal| are .6745 and 1.645.
_MEDIAN, _NINETY = 0.6745 * np.sqrt(6), 1.645 * np.sqrt(6)


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviation of an answer's error on the unit sphere."""

    bars: float
    """For error bars."""
    search: float
    """For the search, which a value too low fills with kinks and a value too high blinds."""
    size: float
    """Largest |F| seen."""


@dataclass(frozen=True, slots=True)
class Circle:
    """X(θ) = cosθ·P + sinθ·Q, θ in [low, high], and a basis E of what is orthogonal to it."""

    lift: Lift
    P: Array
    Q: Array
    E: Array
    low: float
    high: float

    @classmethod
    def random(cls, lift: Lift, rng: np.random.Generator) -> Circle:
        """Choose a circle; with biases a straight line of tokens, not through 0 if d > 1."""
        d, D = lift.dim, lift.D
        basis = np.linalg.qr(rng.standard_normal((d, d)))[0].T
        if not lift.biases:
            return cls(lift, basis[0], basis[1], basis[2:], 0.0, np.pi)
        flat = np.column_stack([basis, np.zeros(d)])
        up = np.zeros(D)
        up[-1] = 1.0
        if d == 1:
            return cls(lift, flat[0], up, flat[1:], _EDGE, np.pi - _EDGE)
        norm = np.sqrt(1.25)
        Q, upright = (0.5 * flat[1] + up) / norm, (0.5 * up - flat[1]) / norm
        E = np.vstack([flat[2:], upright])
        return cls(lift, flat[0], Q, E, _EDGE, np.pi - _EDGE)

    def at(self, theta: Array) -> Array:
        """Return the points X(θ), (n, D)."""
        return np.asarray(np.cos(theta)[:, None] * self.P + np.sin(theta)[:, None] * self.Q)

    def measure(self, form: Form | None, phase: str) -> Measure:
        """Return what asks F, or F − F̂, at angles."""

        def asked(theta: Array) -> Generator[Round, Answers, Array]:
            return (yield from ask(Written(self.lift, self.at(theta)), phase, form))

        return asked


@dataclass(frozen=True, slots=True)
class Swept:
    """What one circle says: a form whose neurons are ordered along it, and its cells."""

    circle: Circle
    form: Form
    rising: Array
    """±1: whether a neuron becomes active or inactive, (K,)."""
    middle: Array
    """Midpoints of the cells, (K + 1,)."""
    error: Array
    """Standard deviation of each entry of a cell's gradient, (K + 1,)."""
    noise: Noise

    @property
    def spread(self) -> float:
        """How far such a form may be off at points of norm 1, typically."""
        return spread(self.error)


def spread(error: Array) -> float:
    """Return √(Σ(ce_k² + ce_(k+1)²)/2)."""
    return float(np.sqrt(np.sum(error[:-1] ** 2 + error[1:] ** 2) / 2)) if len(error) > 1 else 0.0


def estimate_noise(circle: Circle, rng: np.random.Generator) -> Generator[Round, Answers, Noise]:
    """Estimate the answers' errors from second differences along a circle: 48 queries."""
    h = _NOISE_STEP
    theta = rng.uniform(circle.low + 2 * h, circle.high - 2 * h, _NOISE_PLACES)
    Y = circle.at(np.concatenate([theta, theta - h, theta + h]))
    [y] = yield [Singles(Written(circle.lift, Y), phase="noise", purpose="data")]
    F = circle.lift.answers(Y, y)
    unit = SINGLE if np.array_equal(y, y.astype(np.float32)) else DOUBLE
    at, before, after = np.split(F, 3)
    r = np.abs(before + after - 2 * np.cos(h) * at)
    median, ninety = float(np.median(r)) / _MEDIAN, float(np.quantile(r, 0.9)) / _NINETY
    size = float(np.abs(F).max())
    bars = max(1.5 * median, unit * size, float(np.finfo(float).tiny))
    # uncapped, one place across a kink makes the search merge neurons
    return Noise(float(bars), float(max(bars, min(ninety, 6 * median), 2 * unit * size)), size)


def sweep(
    circle: Circle, form: Form | None, noise: Noise, most: int, rng: np.random.Generator
) -> Generator[Round, Answers, Swept]:
    """Find F, or F − F̂, from one circle."""
    line = circle.measure(form, "kinks" if form is None else "kinks left over")
    search = KinkSearch(line, noise.search, most, rng)
    theta, heard = yield from find_kinks(search, circle.low, circle.high)
    noise = replace(noise, search=heard)
    theta, middle, width, value, tangent = yield from _lines(circle, form, theta, noise)
    # the slope jumps by α at a kink
    alpha = _alpha(theta, middle, value, tangent)
    G, step = yield from _across(circle, form, theta, middle, width, value, alpha)
    cos, sin = np.cos(middle)[:, None], np.sin(middle)[:, None]
    along = (value[:, None] * cos - tangent[:, None] * sin) * circle.P
    along += (value[:, None] * sin + tangent[:, None] * cos) * circle.Q
    gradient = along + G @ circle.E
    squares = (np.sum(step**-2.0, axis=1) + (0.86 * width) ** -2.0) / (step.shape[1] + 1)
    bars = np.hypot(noise.bars, np.spacing(middle) * np.abs(tangent))
    if form is not None:
        bars = np.hypot(bars, _unevenness(circle, form, middle, width))
    error = bars * np.sqrt(2 * squares)

    keep = np.full(len(theta), True)
    J = np.diff(gradient, axis=0)
    if len(J):
        own = np.sqrt(circle.lift.D * (error[:-1] ** 2 + error[1:] ** 2))
        size = np.linalg.norm(J, axis=1)
        keep = (size > _LEAST_SHARE * np.median(size)) | (size > _LEAST_JUMP * own)
        if circle.lift.biases:
            # a neuron that wakes up far out is large by its bias, but shows its slope alone
            slope = np.linalg.norm(J[:, :-1], axis=1)
            far = np.sin(theta) * np.sqrt(circle.lift.dim) < _FAR
            keep &= ~far | (slope > _LEAST_SHARE * np.median(size)) | (slope > _LEAST_SLOPE * own)
    if not keep.all():
        # a kink that is none leaves two cells that are one: the more accurate speaks
        cell = np.concatenate([[0], np.cumsum(keep)])
        best = np.lexsort((error, cell))
        first = best[np.unique(cell[best], return_index=True)[1]]
        gradient, error, middle = gradient[first], error[first], middle[first]
        J, alpha = np.diff(gradient, axis=0), alpha[keep]
    eps = np.where(alpha < 0, -1.0, 1.0)
    own = np.sqrt(circle.lift.D * (error[:-1] ** 2 + error[1:] ** 2))
    # neurons are inactive in the cell that tells the affine part: those far out, with biases 10⁵
    # times as large as others, then count for nothing where they are dead
    widest = int(np.argmin(error))
    rising = np.where(np.arange(len(J)) < widest, -1.0, 1.0)
    g_error = float(np.sqrt(circle.lift.D) * error[widest])
    found = Form(gradient[widest], (rising * eps)[:, None] * J, eps, own, g_error)
    return Swept(circle, found, rising, middle, error, noise)


def _unevenness(circle: Circle, form: Form, middle: Array, width: Array) -> Array:
    """Return how far F − F̂ is from a line in each cell: known neurons there have errors."""
    theta = np.mod(np.arctan2(-(form.a @ circle.P), form.a @ circle.Q), np.pi)
    inside = np.abs(theta - middle[:, None]) < width[:, None] / 2
    errors = np.sqrt(inside @ form.error**2)
    return np.asarray(errors * width / np.sqrt(circle.lift.D))


def _alpha(theta: Array, m: Array, value: Array, tangent: Array) -> Array:
    after = -value[1:] * np.sin(theta - m[1:]) + tangent[1:] * np.cos(theta - m[1:])
    before = -value[:-1] * np.sin(theta - m[:-1]) + tangent[:-1] * np.cos(theta - m[:-1])
    return np.asarray(after - before)


def _lines(
    circle: Circle, form: Form | None, theta: Array, noise: Noise
) -> Generator[Round, Answers, tuple[Array, Array, Array, Array, Array]]:
    """Ask each cell's line; leave out kinks that are not significant.

    Returns the kinks that stay, and per cell its midpoint, width, and F and slope there.
    """
    ends = np.concatenate([[circle.low], theta, [circle.high]])
    width = np.diff(ends)
    first, second = ends[:-1] + _ENDS * width, ends[1:] - _ENDS * width
    F = yield from circle.measure(form, "cells")(np.concatenate([first, second]))
    F1, F2 = np.split(F, 2)
    while True:
        ends = np.concatenate([[circle.low], theta, [circle.high]])
        middle, h = (first + second) / 2, second - first
        # at the midpoint, from both ends at once
        value = (F1 + F2) / (2 * np.cos(h / 2))
        tangent = (F2 - F1) / (2 * np.sin(h / 2))
        if not len(theta):
            break
        alpha = np.abs(_alpha(theta, middle, value, tangent))
        own = (noise.search + np.spacing(middle) * np.abs(tangent)) / h
        sure = alpha / (_SIGNIFICANT * (own[:-1] + own[1:]))
        k = int(np.argmin(sure))
        if sure[k] >= 1:
            break
        theta = np.delete(theta, k)
        first, F1 = np.delete(first, k + 1), np.delete(F1, k + 1)
        second, F2 = np.delete(second, k), np.delete(F2, k)
    # a cell is as wide as both sides of the midpoint allow
    width = 2 * np.minimum(middle - ends[:-1], ends[1:] - middle)
    return theta, middle, width, value, tangent


def _across(
    circle: Circle,
    form: Form | None,
    theta: Array,
    middle: Array,
    width: Array,
    value: Array,
    alpha: Array,
) -> Generator[Round, Answers, tuple[Array, Array]]:
    """Ask the gradients' parts G orthogonal to the circle, (K + 1, D − 2), and the steps used."""
    cells, others = len(middle), len(circle.E)
    centres = circle.at(middle)
    G = np.zeros((cells, others))
    step = np.repeat(_STEP * width[:, None], others, axis=1)
    bad = np.full(G.shape, True)
    for _ in range(1 + _RETRIES):
        i, j = np.nonzero(bad)
        probes = Around(circle.lift, centres, circle.E, i, j, step[i, j])
        F = yield from ask(probes, "gradients" if bad.all() else "gradients, nearer", form)
        G[i, j] = (F - value[i]) / step[i, j]
        bad = _crossed(theta, middle, alpha, G, step)
        if not bad.any():
            break
        step = np.where(bad, step / _NEARER, step)
    return G, step


def _crossed(theta: Array, middle: Array, alpha: Array, G: Array, step: Array) -> Array:
    """Tell which probes left their cell: (K + 1, D − 2)."""
    beta = np.diff(G, axis=0)
    bad = np.zeros(G.shape, dtype=bool)
    for i, m in enumerate(middle):
        z = alpha * np.sin(m - theta)
        towards = -np.sign(z)[:, None] * beta * step[i]
        bad[i] = np.any(_CROSSED * np.abs(z)[:, None] < towards, axis=0)
    return bad
