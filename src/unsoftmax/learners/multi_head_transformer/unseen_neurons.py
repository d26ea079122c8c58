"""Is there a neuron that no single token shows? Kinks along rays of offsets: about 120 queries.

Where the first layers of a neuron cancel, Σ_h B_h[j] = 0, it sees differences of tokens alone:
Σ_h B_h[j]·p_h + b[j] = σ Σ_h γ_h B_h[j]·e + b[j] at [b + σe; b]. Far out gates γ are steps, and
the answers along a ray in the cell of b are linear in σ but for such a neuron's kink. It is sharp,
which no gate is, and stays where it is when b is longer, which no kink of the others does. What
the neuron is given at b and at −b is of opposite order: where one shows no kink the other may.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.arrangement.base_points import NetworkHinges
from unsoftmax.learners.compose import Asking
from unsoftmax.probes import Array, Indices, Pairs


@dataclass(frozen=True, slots=True)
class UnseenNeuronTuning:
    """Where kinks are looked for, and what counts as one."""

    rays: int = 12
    """A neuron has its kink on a third of the rays."""
    length: float = 1e5
    """‖b‖: all gates are steps."""
    nearest: float = 1e-2
    points: int = 8
    share: float = 0.04
    """Offsets along a ray, from this length on to this share of the cone's margin, in equal
    ratios."""
    bends: float = 1e-5
    """The slope changes by at least this share of the neurons' size: rounding of the nearest
    offsets' answers makes 1e-8 of it."""
    sharp: float = 1e-3
    """A kink is met to this share of its place, on both sides,"""
    met: float = 0.1
    """where answers miss the lines by at most this share of what the other line would."""
    longer: float = 4.0
    """It is met again at query tokens so many times as long."""


def unseen_neuron(
    hinges: NetworkHinges, x: Array, rng: np.random.Generator, tuning: UnseenNeuronTuning
) -> Asking[bool]:
    """Tell whether a neuron shows within the cone of a direction x that no single token shows."""
    e = rng.standard_normal((tuning.rays, len(x)))
    e /= np.linalg.norm(e, axis=1, keepdims=True)
    share = tuning.share * min(1.0, float(hinges.margin(x[None])[0]))
    sigma = np.geomspace(tuning.nearest, share * tuning.length, tuning.points)
    ray: Indices = np.repeat(np.arange(len(e), dtype=np.intp), len(sigma))
    y = yield from _along(x, e, ray, np.tile(sigma, len(e)), tuning.length)
    bends = tuning.bends * hinges.steepness
    for k, answers in enumerate(y.reshape(len(e), -1)):
        kink = _Kink.of(sigma, answers)
        if not kink.within(sigma, bends):
            continue
        at = kink.place * np.array([1 - tuning.sharp, 1 + tuning.sharp])
        expected, otherwise = kink.lines(at)
        allowed = tuning.met * np.abs(expected - otherwise)
        both, met = np.full(2, k, dtype=np.intp), True
        for length in (tuning.length, tuning.longer * tuning.length):
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
