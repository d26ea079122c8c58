"""Are there neurons that cancel at single tokens? Jumps of values within cells: some 900 queries.

Two neurons with one sum of first layers, and opposite weights on it, are nothing at single tokens,
or linear there: w relu(z_1) − w relu(z_2) where z_1 = z_2. In sequences they change the values v_h
of all heads where the query token b crosses their hyperplane, which no cell of the network shows:

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


@dataclass(frozen=True, slots=True)
class CancellingNeuronTuning:
    """Where jumps are looked for, and what counts as one."""

    circles: int = 3
    intervals: int = 12
    """The widest intervals between hyperplanes, of each half circle: a hidden hyperplane crosses
    it once, and is in one of them as often as they are wide."""
    offsets: int = 8
    together: int = 3
    """So many of the offsets jump at one place: of two heads half of them do."""
    length: float = 1e5
    """‖b‖, and …"""
    sigma: float = 1.0
    """… the length of offsets: gates are steps."""
    short: float = 1e-4
    """At offsets so much shorter gates are soft."""
    beside: float = 0.05
    """Intervals end so far from hyperplanes, as a share of their length."""
    widest: float = 1e-3
    """Shorter intervals (in radians) are left out: pooled tokens might leave their cells."""
    bends: float = 1e-5
    """y jumps by at least this share of the neurons' size: rounding makes 1e-8 of it."""
    halvings: int = 14
    still: float = 0.02
    """At short offsets a neuron's jump is more than this share of what it was; a gate turns by a
    thousandth on so short a way."""

    @property
    def at_most(self) -> int:
        """Return the most queries."""
        places = self.circles * self.intervals * (self.halvings + 2) + 2
        return places * (self.offsets + 1)


def cancelling_neurons(
    hinges: NetworkHinges, rng: np.random.Generator, tuning: CancellingNeuronTuning
) -> Asking[bool]:
    """Tell whether values of heads jump within cells of the network."""
    for _ in range(tuning.circles):
        plane = np.linalg.qr(rng.standard_normal((hinges.dim, 2)))[0].T
        e = rng.standard_normal((tuning.offsets, hinges.dim))
        e /= np.linalg.norm(e, axis=1, keepdims=True)
        view = _HalfCircle(plane, e, tuning.bends * hinges.steepness, tuning)
        ends = view.intervals(hinges)
        y = yield from view.values(ends.reshape(-1), tuning.sigma)
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
    tuning: CancellingNeuronTuning

    def intervals(self, hinges: NetworkHinges) -> Array:
        """Return the widest intervals between hyperplanes, (n, 2)."""
        tuning = self.tuning
        across = hinges.A @ self.plane.T
        places = np.sort(np.mod(np.arctan2(-across[:, 0], across[:, 1]), np.pi))
        places = np.append(places, places[:1] + np.pi)
        gaps = np.diff(places)
        widest = np.argsort(-gaps, kind="stable")[: tuning.intervals]
        widest = widest[gaps[widest] > tuning.widest]
        inside = np.array([tuning.beside, 1 - tuning.beside])
        return np.asarray(places[widest, None] + gaps[widest, None] * inside)

    def values(self, t: Array, sigma: float) -> Asking[Array]:
        """Ask y at places t (n,) with offsets of a length; (n, offsets)."""
        b = self.tuning.length * np.column_stack([np.cos(t), np.sin(t)]) @ self.plane
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
        return int(np.sum(self.jumps(y, z))) >= self.tuning.together

    def keeps(self, interval: Array, first: Array, last: Array) -> Asking[bool]:
        """Tell whether several offsets jump at one place within an interval, and sharply."""
        (low, high), tuning = interval, self.tuning
        for _ in range(tuning.halvings):
            middle = (low + high) / 2
            [y] = yield from self.values(np.array([middle]), tuning.sigma)
            if np.sum(self.jumps(first, y)) >= np.sum(self.jumps(y, last)):
                high, last = middle, y
            else:
                low, first = middle, y
            if not self.several_jump(first, last):
                return False
        short = tuning.short * tuning.sigma
        y, z = yield from self.values(np.array([low, high]), short)
        sharp = np.abs(y - z) > np.maximum(self.least, tuning.still * np.abs(first - last))
        return int(np.sum(sharp)) >= tuning.together
