"""Fresh points: whether a form predicts answers that it was not made from."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from unsoftmax.arrangement.homogeneous import Lift, PiecewiseLinear
from unsoftmax.arrangement.lifted_points import WrittenPoints, ask_points
from unsoftmax.arrangement.noise_level import NoiseLevel
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers

# Lengths of half of all fresh tokens, in length scales.
NEAR = (0.3, 1.0, 3.0)
# Ranges of log10 of the length of a quarter each, in length scales: neurons that are dead near 0
# show only far out. A circle does not see hyperplanes much farther out; these are searched for
# afterwards (`far_neurons`), and the hold-out has tokens as long as any that was asked.
MIDDLE = (0.5, 3.0)
OUTER = (3.0, 4.0)
# Range of log10 of the length of fresh tokens without biases, where no length is special.
SIZES = (-1.0, 2.0)
# Largest error of an accepted network, relative to the root mean square of the answers. The
# claim, 3e-9 at 2,000 points, leaves room for the largest error among more points.
ACCEPTED = 4e-10
# Where answers are coarse, this many times their relative error is accepted instead; 10 to 80
# were measured.
COARSE = 200.0
# Largest error that is ever accepted.
COARSEST = 1e-3
# Number of length scales beyond which misses are weighted less.
FAR = 1e3
# Weight of misses there. Weight decay leaves neurons with slopes of 1e-8 of the others' and
# hyperplanes 10⁶ length scales away; they drown in the others' errors and do not matter. A neuron
# that matters is a thousand times as large.
FAR_SHARE = 1 / 250


def accepted_error(noise: NoiseLevel, size: float) -> float:
    """Return the largest relative error of a network that is accepted."""
    if not size:
        return ACCEPTED
    return max(ACCEPTED, min(COARSE * noise.deviation / size, COARSEST))


def fresh_tokens(
    lift: Lift, count: int, rng: np.random.Generator, farthest: float = np.inf
) -> Array:
    """Return tokens of many lengths, (count, d), the outer ones up to ``farthest``, if finite.

    Most of these are among the longest: a neuron shows wherever its hyperplane was passed.
    """
    x = rng.standard_normal((count, lift.dim)) / np.sqrt(lift.dim)
    n = np.arange(count)
    if not lift.biases:
        return np.asarray(lift.token_scale * 10.0 ** rng.uniform(*SIZES, (count, 1)) * x)
    near = np.array(NEAR)[n % len(NEAR)]
    middle = 10.0 ** rng.uniform(*MIDDLE, (count, 1))
    first, last = OUTER
    if np.isfinite(farthest):
        last = max(first, np.log10(farthest / lift.length))
    outer = 10.0 ** (last - (last - first) * rng.uniform(size=(count, 1)) ** 2)
    far = np.where(n % 4 == 1, middle[:, 0], outer[:, 0])
    return np.asarray(lift.length * np.where(n % 2, far, near)[:, None] * x)


def weights_of(lift: Lift, x: Array, neurons: int) -> Array:
    """Return how much misses at tokens count: far out a share, if there are neurons."""
    if not lift.biases or not neurons:
        return np.ones(len(x))
    return np.where(np.linalg.norm(x, axis=1) > FAR * lift.length, FAR_SHARE, 1.0)


@dataclass(frozen=True, slots=True)
class FreshLook:
    """How fresh points are predicted."""

    largest: float
    rms: float
    size: float
    """Root mean square of F there."""

    @property
    def share(self) -> float:
        """Largest error relative to the answers."""
        return self.largest / self.size if self.size else self.largest

    @classmethod
    def none(cls) -> FreshLook:
        """Return what any look is better than."""
        return cls(np.inf, np.inf, 1.0)


def look(lift: Lift, form: PiecewiseLinear, x: Array) -> Generator[Round, Answers, FreshLook]:
    """Compare a form with F at points of norm 1 where tokens x point to."""
    Y = lift.points(x)
    F = yield from ask_points(WrittenPoints(lift, Y), "fresh points")
    miss = (F - form(Y)) * weights_of(lift, x, len(form))
    return FreshLook(
        float(np.abs(miss).max()), float(np.sqrt(np.mean(miss**2))), float(np.sqrt(np.mean(F**2)))
    )
