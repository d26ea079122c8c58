"""Before the search: a typical length, whether answers change at all, and how precise they are.

The length scale takes 70 queries, with biases only; a constant shows in 6 answers and is
confirmed by 32; the noise takes 48, and without biases 48 more where it is more than rounding.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.arrangement.circle import Circle
from unsoftmax.arrangement.homogeneous import Lift
from unsoftmax.arrangement.noise_level import NoiseLevel, NoiseLevelTuning, estimate_noise
from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.relu_network.fresh_points import FreshPointTuning
from unsoftmax.learners.relu_network.length_scan import (
    LengthScan,
    LengthScanTuning,
    scan_lengths,
)
from unsoftmax.probes import Array, Round, Singles
from unsoftmax.protocol import Answers
from unsoftmax.validate.judge import Answered


@dataclass(frozen=True, slots=True)
class LiftTuning:
    """How a target is examined before the search."""

    noise: NoiseLevelTuning = field(default=NoiseLevelTuning())
    scan: LengthScanTuning = field(default=LengthScanTuning())
    constant: float = 1e-14
    """Answers are one constant if they spread by at most this share of their size."""
    confirmed: int = 32
    """Number of fresh tokens that confirm a constant: a network may be dead nearly everywhere."""
    far_scales: tuple[float, ...] = (1e2, 1e3, 1e4)
    near_scales: tuple[float, ...] = (-1.0, -3.0, -30.0)
    """Length scales at which a constant is looked for, along three directions and backwards."""
    stretched: float = 100.0
    """Factor between the token lengths that test whether a target without biases is homogeneous."""
    homogeneous: float = 1e-4
    """Largest relative deviation of the answers from that factor; beyond, the target has biases."""
    rounding: float = 1e-14
    """Relative noise above this is more than the rounding of float64: without biases longer tokens
    are tried."""
    long_tokens: float = 1e12
    """Factor on the token length then: noise of a fixed size becomes negligible."""
    helps: float = 0.1
    """The longer tokens are kept if they reduce the relative noise below this share."""
    coarsest: float = 1e-4
    """Relative noise above which the target is refused: it hides all kinks."""


@dataclass(frozen=True, slots=True)
class LiftedTarget:
    """What is known of a target before the search."""

    lift: Lift
    circle: Circle
    """The first circle to be swept, on which the noise was estimated."""
    noise: NoiseLevel
    constant: float | None = None
    """The only answer there is, if there is only one."""
    scan: LengthScan = field(default=LengthScan.none())
    """The first answers, along a line through 0."""
    opening: Answered | None = None
    """The six tokens that told whether answers change, and theirs."""

    @property
    def first_answers(self) -> list[Answered]:
        """Tokens (n, d) that were asked before the search, and their answers."""
        scanned = [(self.scan.tokens, self.scan.answers)] if len(self.scan.lengths) else []
        return scanned + ([] if self.opening is None else [self.opening])

    @property
    def coarseness(self) -> float:
        """Deviation of an answer relative to the largest; 0 where all answers are."""
        return self.noise.deviation / self.noise.size if self.noise.size else 0.0

    def coarser_than(self, share: float) -> bool:
        """Tell whether answers are off by more than this share of the largest."""
        return self.noise.deviation > share * self.noise.size > 0


@dataclass(frozen=True, slots=True)
class TargetLift:
    """How a target is lifted."""

    dim: int
    biases: bool
    edge: float
    """Where circles end; see `CellTuning`."""
    tuning: LiftTuning
    fresh: FreshPointTuning

    def run(self, rng: np.random.Generator) -> Generator[Round, Answers, LiftedTarget]:
        """Ask for the length scale, for what is constant, and for the noise."""
        scan = LengthScan.none()
        if self.biases:
            scan = yield from scan_lengths(self.dim, rng, self.tuning.scan)
        lift = Lift(self.dim, self.biases, scan.length)
        constant, size, opening = yield from self._constant(lift, scan, rng)
        if lift.D == 1 or constant is not None:
            noise = NoiseLevel.of_rounding(size, self.tuning.noise)
            if constant is not None:
                noise = NoiseLevel.of_constant(constant, self.tuning.noise)
            return LiftedTarget(lift, Circle.none(lift), noise, constant, scan, opening)
        circle = Circle.random(lift, rng, self.edge)
        target = yield from self._with_noise(circle, rng)
        # a circle may have little to say: answers elsewhere are larger, and so are their errors
        noise = target.noise.at_least(size, self.tuning.noise)
        target = replace(target, noise=noise, scan=scan, opening=opening)
        if target.noise.deviation > self.tuning.coarsest * target.noise.size:
            raise NotIdentifiable(
                f"Answers to tokens close together differ by {target.coarseness:.0e} of their "
                "size: that is noise, or the target jumps (labels), and no kinks are told from it.",
                determined={},
            )
        return target

    def _with_noise(
        self, circle: Circle, rng: np.random.Generator
    ) -> Generator[Round, Answers, LiftedTarget]:
        """Estimate the noise; choose longer tokens where they have less of it."""
        tuning = self.tuning
        noise = yield from estimate_noise(circle, rng, tuning.noise)
        target = LiftedTarget(circle.lift, circle, noise)
        if self.biases or noise.deviation <= tuning.rounding * noise.size:
            return target
        lift = replace(circle.lift, token_scale=tuning.long_tokens)
        again = replace(circle, lift=lift)
        quiet = yield from estimate_noise(again, rng, tuning.noise)
        if quiet.deviation * noise.size < tuning.helps * noise.deviation * quiet.size:
            return LiftedTarget(lift, again, quiet)
        return target

    def _constant(
        self, lift: Lift, scan: LengthScan, rng: np.random.Generator
    ) -> Generator[Round, Answers, tuple[float | None, float, Answered]]:
        """Tell a constant from 6 points; without biases it is 0, and answers grow with the token.

        Returns the constant, if there is one, the largest |F| at points of norm 1, and the six.
        """
        tokens = self._six(lift, rng)
        [y] = yield [Singles(tokens, phase="constant?", purpose="data")]
        if self._one_answer(y) and (lift.biases or not np.any(y)):
            x = self.fresh.tokens(lift, self.tuning.confirmed, rng, scan.farthest)
            [more] = yield [Singles(x, phase="constant?", purpose="data")]
            if self._one_answer(y, more, scan.answers):
                return float(np.median(y)), float(np.abs(y).max()), (tokens, y)
            return None, float(np.max(np.abs(more))), (tokens, y)
        stretched, odd = self.tuning.stretched, self.tuning.homogeneous
        if not lift.biases and np.any(
            np.abs(y[:3] - stretched * y[3:]) > odd * np.abs(y[:3]).max()
        ):
            raise ModelMismatch(
                f"A token {stretched:g} times as long is not answered {stretched:g} times as "
                "large: the target is no ReLU network without biases; learn it with biases=True."
            )
        return None, float(np.max(np.abs(y) / lift.heights(tokens))), (tokens, y)

    def _six(self, lift: Lift, rng: np.random.Generator) -> Array:
        """Return six tokens: three directions, far away and nearer."""
        x = rng.standard_normal((3, lift.dim)) / np.sqrt(lift.dim)
        x[1] = -x[0]  # where neurons are much alike, half of all tokens make none active
        stretched = self.tuning.stretched
        if lift.biases:
            scales = lift.length * np.array([self.tuning.far_scales, self.tuning.near_scales])
        else:
            scales = stretched * np.array([[stretched] * 3, [1.0] * 3])
        return np.asarray((scales[:, :, None] * x).reshape(6, lift.dim))

    def _one_answer(self, *answers: Array) -> bool:
        """Tell whether all answers are one but for its rounding."""
        every = np.concatenate(answers)
        return bool(np.ptp(every) <= self.tuning.constant * np.abs(answers[0]).max())
