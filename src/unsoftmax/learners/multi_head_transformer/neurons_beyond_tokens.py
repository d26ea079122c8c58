"""Are there neurons that no single token shows? Kinks along rays, jumps of values within cells.

*Unseen*, about 120 queries. Where the first layers of a neuron cancel, Σ_h B_h[j] = 0, it sees
differences of tokens alone: Σ_h B_h[j]·p_h + b[j] = σ Σ_h γ_h B_h[j]·e + b[j] at [b + σe; b]. Far
out gates γ are steps, and the answers along a ray in the cell of b are linear in σ but for such a
neuron's kink. It is sharp, which no gate is, and stays where it is when b is longer, which no kink
of the others does. What the neuron is given at b and at −b is of opposite order: where one shows no
kink the other may.

*Cancelling*, some 900 queries. Two neurons with one sum of first layers, and opposite weights on
it, are nothing at single tokens, or linear there: w relu(z_1) − w relu(z_2) where z_1 = z_2. In
sequences they change the values v_h of all heads where the query token b crosses their hyperplane,
which no cell of the network shows:

    y(b, e) = (f([b + σe; b]) − f([b; b])) / σ = Σ_h γ_h v_h·e,   γ_h = 0 or 1 far out.

Along half a circle of long b, between two of the network's hyperplanes, y jumps where a gate turns,
at a place of its own for each offset e; and where hidden neurons switch for many e at once, all
at which not all gates are alike.
(Gates of a W of rank one do so, too. They are soft at short offsets, which neurons are not.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.arrangement.base_points import NetworkHinges
from unsoftmax.learners.compose import Asking
from unsoftmax.probes import Array, Flags, Indices, Pairs

# A neuron has its kink on a third of the rays.
RAYS = 12
# ‖b‖: all gates are steps.
QUERY_LENGTH = 1e5
# Offsets along a ray, from this length on to this share of the cone's margin, in equal ratios.
NEAREST, POINTS, MARGIN_SHARE = 1e-2, 8, 0.04
# The slope changes by at least this share of the neurons' size: rounding of the nearest offsets'
# answers makes 1e-8 of it.
BENDS = 1e-5
# A kink is met to this share of its place, on both sides, where answers miss the lines by at most
# this share of what the other line would.
SHARP, MET = 1e-3, 0.1
# It is met again at query tokens so many times as long.
LONGER = 4.0


def unseen_neuron(hinges: NetworkHinges, x: Array, rng: np.random.Generator) -> Asking[bool]:
    """Tell whether a neuron shows within the cone of a direction x that no single token shows."""
    e = rng.standard_normal((RAYS, len(x)))
    e /= np.linalg.norm(e, axis=1, keepdims=True)
    share = MARGIN_SHARE * min(1.0, float(hinges.margin(x[None])[0]))
    sigma = np.geomspace(NEAREST, share * QUERY_LENGTH, POINTS)
    ray: Indices = np.repeat(np.arange(len(e), dtype=np.intp), len(sigma))
    y = yield from _along(x, e, ray, np.tile(sigma, len(e)), QUERY_LENGTH)
    bends = BENDS * hinges.steepness
    for k, answers in enumerate(y.reshape(len(e), -1)):
        kink = _Kink.of(sigma, answers)
        if not kink.within(sigma, bends):
            continue
        at = kink.place * np.array([1 - SHARP, 1 + SHARP])
        expected, otherwise = kink.lines(at)
        allowed = MET * np.abs(expected - otherwise)
        both, met = np.full(2, k, dtype=np.intp), True
        for length in (QUERY_LENGTH, LONGER * QUERY_LENGTH):
            seen = yield from _along(x, e, both, at, length)
            met = met and bool(np.all(np.abs(seen - expected) <= allowed))
        if met:
            return True
    return False


@dataclass(frozen=True, slots=True)
class _Kink:
    """The first and the last line of a ray, y = slope·σ + start each."""

    slopes: Array
    starts: Array

    @classmethod
    def of(cls, sigma: Array, y: Array) -> _Kink:
        """Draw lines through the first two and the last two answers."""
        ends = np.array([0, -2])
        slopes = (y[ends + 1] - y[ends]) / (sigma[ends + 1] - sigma[ends])
        return cls(slopes, y[ends] - slopes * sigma[ends])

    @property
    def place(self) -> float:
        """Where the two lines meet."""
        return float((self.starts[1] - self.starts[0]) / (self.slopes[0] - self.slopes[1]))

    def within(self, sigma: Array, bends: float) -> bool:
        """Tell whether the slope changes by more than ``bends``, between the two lines' answers."""
        changes = abs(self.slopes[1] - self.slopes[0]) > bends
        return bool(changes and sigma[1] < self.place < sigma[-2])

    def lines(self, at: Array) -> tuple[Array, Array]:
        """Return what a kink makes of offsets before and behind it, and the other line of each."""
        y = self.slopes * at[:, None] + self.starts
        return np.diag(y), np.diag(y[:, ::-1])


def _along(x: Array, e: Array, ray: Indices, sigma: Array, length: float) -> Asking[Array]:
    """Ask [b + σe; b] at b = ±``length``·x, by turns; return answers less that to b alone."""
    ones = np.ones(len(sigma) + 2)
    n: Indices = np.append(ray, [0, 1])
    scales = np.append(sigma, [0.0, 0.0])  # the last ones are b beside itself
    b = length * np.array([x, -x])
    [y] = yield [Pairs(e, b, n, n % 2, scales, ones, phase="rays", purpose="pilot")]
    return np.asarray(y[:-2] - y[-2:][ray % 2])


# Half circles, and the widest intervals between hyperplanes of each: a hidden hyperplane crosses it
# once, and is in one of them as often as they are wide.
CIRCLES, INTERVALS = 3, 12
# So many of the offsets jump at one place: of two heads half of them do.
OFFSETS, TOGETHER = 8, 3
# The length of offsets: gates are steps.
SIGMA = 1.0
# At offsets so much shorter gates are soft.
SHORT = 1e-4
# Intervals end so far from hyperplanes, as a share of their length.
BESIDE = 0.05
# Shorter intervals (in radians) are left out: pooled tokens might leave their cells.
WIDEST = 1e-3
# Halvings of an interval.
HALVINGS = 14
# At short offsets a neuron's jump is more than this share of what it was; a gate turns by a
# thousandth on so short a way.
STILL = 0.02
# The most queries.
CANCELLING_AT_MOST = (CIRCLES * INTERVALS * (HALVINGS + 2) + 2) * (OFFSETS + 1)


def cancelling_neurons(hinges: NetworkHinges, rng: np.random.Generator) -> Asking[bool]:
    """Tell whether values of heads jump within cells of the network."""
    for _ in range(CIRCLES):
        plane = np.linalg.qr(rng.standard_normal((hinges.dim, 2)))[0].T
        e = rng.standard_normal((OFFSETS, hinges.dim))
        e /= np.linalg.norm(e, axis=1, keepdims=True)
        view = _HalfCircle(plane, e, BENDS * hinges.steepness)
        ends = view.intervals(hinges)
        y = yield from view.values(ends.reshape(-1), SIGMA)
        y = y.reshape(len(ends), 2, -1)
        for interval, (first, last) in zip(ends, y, strict=True):
            if view.several_jump(first, last) and (yield from view.keeps(interval, first, last)):
                return True
    return False


@dataclass(frozen=True, slots=True)
class _HalfCircle:
    """Query tokens b(t) = length·(cos t p + sin t q), and some offsets."""

    plane: Array
    e: Array
    least: float
    """y jumps by at least this."""

    def intervals(self, hinges: NetworkHinges) -> Array:
        """Return the widest intervals between hyperplanes, (n, 2)."""
        across = hinges.A @ self.plane.T
        places = np.sort(np.mod(np.arctan2(-across[:, 0], across[:, 1]), np.pi))
        places = np.append(places, places[:1] + np.pi)
        gaps = np.diff(places)
        widest = np.argsort(-gaps, kind="stable")[:INTERVALS]
        widest = widest[gaps[widest] > WIDEST]
        inside = np.array([BESIDE, 1 - BESIDE])
        return np.asarray(places[widest, None] + gaps[widest, None] * inside)

    def values(self, t: Array, sigma: float) -> Asking[Array]:
        """Ask y at places t (n,) with offsets of a length; (n, offsets)."""
        b = QUERY_LENGTH * np.column_stack([np.cos(t), np.sin(t)]) @ self.plane
        count = len(self.e) + 1
        n: Indices = np.tile(np.arange(count), len(t)) % len(self.e)
        at: Indices = np.repeat(np.arange(len(t)), count)
        # the last one of each place is b beside itself
        scale = np.tile(np.append(np.full(len(self.e), sigma), 0.0), len(t))
        ones = np.ones(len(n))
        [y] = yield [Pairs(self.e, b, n, at, scale, ones, phase="circles", purpose="pilot")]
        y = y.reshape(len(t), count)
        return np.asarray((y[:, :-1] - y[:, -1:]) / sigma)

    def jumps(self, y: Array, z: Array) -> Flags:
        """Tell for which offsets y is another one."""
        return np.asarray(np.abs(y - z) > self.least)

    def several_jump(self, y: Array, z: Array) -> bool:
        """Tell whether y is another one for several offsets."""
        return int(np.sum(self.jumps(y, z))) >= TOGETHER

    def keeps(self, interval: Array, first: Array, last: Array) -> Asking[bool]:
        """Tell whether several offsets jump at one place within an interval, and sharply."""
        low, high = interval
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            [y] = yield from self.values(np.array([middle]), SIGMA)
            if np.sum(self.jumps(first, y)) >= np.sum(self.jumps(y, last)):
                high, last = middle, y
            else:
                low, first = middle, y
            if not self.several_jump(first, last):
                return False
        short = SHORT * SIGMA
        y, z = yield from self.values(np.array([low, high]), short)
        sharp = np.abs(y - z) > np.maximum(self.least, STILL * np.abs(first - last))
        return int(np.sum(sharp)) >= TOGETHER
