"""How noisy answers are, from second differences along a circle: 48 queries.

Where F is a sinusoid, F(θ−h) + F(θ+h) − 2cos(h)F(θ) is 0 but for the errors of three answers. Few
of these places have a kink between them.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from unsoftmax.arrangement.circle import Circle
from unsoftmax.arrangement.lifted_points import WrittenPoints
from unsoftmax.measure.precision import significant_bits
from unsoftmax.probes import Round, Singles
from unsoftmax.protocol import Answers


@dataclass(frozen=True, slots=True)
class NoiseLevelTuning:
    """How the noise is estimated."""

    places: int = 16
    """Number of places on the circle, three values each. Fewer: the estimate may be too low."""
    apart: float = 1e-5
    """Angle between the three values. Larger: kinks fall between them."""
    double: float = 2e-16
    """Smallest relative error of float64 answers, that of their last place."""
    single: float = 1.2e-7
    """The same if all answers are float32 numbers."""
    round_bits: int = 11
    single_bits: int = 24
    """A constant of so few significant bits is round by nature; one of more, up to those of
    float32, is a float32 number."""
    larger: float = 1.5
    """Factor on the deviation that the median of 16 places gives: it may be too low by chance."""
    most: float = 6.0
    """The search uses the 90 % quantile, because noise may vary along the circle, but at most this
    many times the median: otherwise a single place with a kink makes the search merge neurons."""


@dataclass(frozen=True, slots=True)
class NoiseLevel:
    """Standard deviation of an answer's error, on the unit sphere of the lift."""

    deviation: float
    """For the errors of what is computed from answers."""
    search: float
    """For the search of kinks. Too low: false kinks; too high: missed kinks."""
    size: float
    """Largest |F| seen."""

    def at_least(self, size: float, tuning: NoiseLevelTuning) -> NoiseLevel:
        """Allow for the rounding of answers as large as ``size``, elsewhere than on the circle."""
        return NoiseLevel(
            max(self.deviation, tuning.double * size),
            max(self.search, 2 * tuning.double * size),
            max(self.size, size),
        )

    def raised(self, deviation: float, tuning: NoiseLevelTuning) -> NoiseLevel:
        """Allow for a deviation that was estimated from a few answers."""
        least = tuning.larger * deviation
        return NoiseLevel(max(self.deviation, least), max(self.search, least), self.size)

    @classmethod
    def of_rounding(cls, size: float, tuning: NoiseLevelTuning) -> NoiseLevel:
        """Take answers as large as ``size`` to be rounded, and no more."""
        return cls(tuning.double * size, 2 * tuning.double * size, size)

    @classmethod
    def of_constant(cls, answer: float, tuning: NoiseLevelTuning) -> NoiseLevel:
        """Take the only answer there is to be rounded, to float32 where it looks like that."""
        rounded = tuning.round_bits < significant_bits(np.array([answer])) <= tuning.single_bits
        unit = tuning.single if rounded else tuning.double
        return cls(unit * abs(answer), 2 * unit * abs(answer), abs(answer))


def estimate_noise(
    circle: Circle, rng: np.random.Generator, tuning: NoiseLevelTuning
) -> Generator[Round, Answers, NoiseLevel]:
    """Estimate the answers' errors along a circle."""
    h = tuning.apart
    theta = rng.uniform(circle.low + 2 * h, circle.high - 2 * h, tuning.places)
    Y = circle.at(np.concatenate([theta, theta - h, theta + h]))
    [y] = yield [Singles(WrittenPoints(circle.lift, Y), phase="noise", purpose="data")]
    F = circle.lift.answers(Y, y)
    unit = tuning.single if np.array_equal(y, y.astype(np.float32)) else tuning.double
    at, before, after = np.split(F, 3)
    r = np.abs(before + after - 2 * np.cos(h) * at)
    # r has √6 times the deviation of an answer; the 50 % and 90 % quantiles of |normal| are .6745
    # and 1.645
    median = float(np.median(r)) / (0.6745 * np.sqrt(6))
    ninety = float(np.quantile(r, 0.9)) / (1.645 * np.sqrt(6))
    size = float(np.abs(F).max())
    deviation = max(tuning.larger * median, unit * size, float(np.finfo(float).tiny))
    search = max(deviation, min(ninety, tuning.most * median), 2 * unit * size)
    return NoiseLevel(float(deviation), float(search), size)
