"""Before the search: a typical length, whether answers change at all, and how precise they are.

The length scale takes 70 queries, with biases only; a constant shows in 6 answers and is
confirmed by 32; the noise takes 48, and without biases 48 more where it is more than rounding.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.arrangement.circle import Circle
from unsoftmax.arrangement.circle_sweep import EDGE
from unsoftmax.arrangement.homogeneous import Lift
from unsoftmax.arrangement.noise_level import NoiseLevel, NoiseLevelTuning, estimate_noise
from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.relu_network.fresh_points import fresh_tokens
from unsoftmax.learners.relu_network.length_scan import LengthScan, scan_lengths
from unsoftmax.probes import Array, Round, Singles
from unsoftmax.protocol import Answers
from unsoftmax.validate.judge import Answered

# Answers are one constant if they spread by at most this share of their size.
CONSTANT = 1e-14
# Number of fresh tokens that confirm a constant: a network may be dead nearly everywhere.
CONFIRMED = 32
# Length scales at which a constant is looked for, along three directions and backwards.
FAR_SCALES = (1e2, 1e3, 1e4)
NEAR_SCALES = (-1.0, -3.0, -30.0)
# Factor between the token lengths that test whether a target without biases is homogeneous.
STRETCHED = 100.0
# Largest relative deviation of the answers from that factor; beyond, the target has biases.
HOMOGENEOUS = 1e-4
# Relative noise above this is more than the rounding of float64: without biases longer tokens are
# tried.
ROUNDING = 1e-14
# Factor on the token length then: noise of a fixed size becomes negligible.
LONG_TOKENS = 1e12
# The longer tokens are kept if they reduce the relative noise below this share.
HELPS = 0.1
# Relative noise above which the target is refused: it hides all kinks.
COARSEST = 1e-4
NOISE = NoiseLevelTuning()


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

    def run(self, rng: np.random.Generator) -> Generator[Round, Answers, LiftedTarget]:
        """Ask for the length scale, for what is constant, and for the noise."""
        scan = LengthScan.none()
        if self.biases:
            scan = yield from scan_lengths(self.dim, rng)
        lift = Lift(self.dim, self.biases, scan.length)
        constant, size, opening = yield from self._constant(lift, scan, rng)
        if lift.D == 1 or constant is not None:
            noise = NoiseLevel.of_rounding(size, NOISE)
            if constant is not None:
                noise = NoiseLevel.of_constant(constant, NOISE)
            return LiftedTarget(lift, Circle.none(lift), noise, constant, scan, opening)
        circle = Circle.random(lift, rng, EDGE)
        target = yield from self._with_noise(circle, rng)
        # a circle may have little to say: answers elsewhere are larger, and so are their errors
        noise = target.noise.at_least(size, NOISE)
        target = replace(target, noise=noise, scan=scan, opening=opening)
        if target.noise.deviation > COARSEST * target.noise.size:
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
        noise = yield from estimate_noise(circle, rng, NOISE)
        target = LiftedTarget(circle.lift, circle, noise)
        if self.biases or noise.deviation <= ROUNDING * noise.size:
            return target
        lift = replace(circle.lift, token_scale=LONG_TOKENS)
        again = replace(circle, lift=lift)
        quiet = yield from estimate_noise(again, rng, NOISE)
        if quiet.deviation * noise.size < HELPS * noise.deviation * quiet.size:
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
            x = fresh_tokens(lift, CONFIRMED, rng, scan.farthest)
            [more] = yield [Singles(x, phase="constant?", purpose="data")]
            if self._one_answer(y, more, scan.answers):
                return float(np.median(y)), float(np.abs(y).max()), (tokens, y)
            return None, float(np.max(np.abs(more))), (tokens, y)
        if not lift.biases and np.any(
            np.abs(y[:3] - STRETCHED * y[3:]) > HOMOGENEOUS * np.abs(y[:3]).max()
        ):
            raise ModelMismatch(
                f"A token {STRETCHED:g} times as long is not answered {STRETCHED:g} times as "
                "large: the target is no ReLU network without biases; learn it with biases=True."
            )
        return None, float(np.max(np.abs(y) / lift.heights(tokens))), (tokens, y)

    def _six(self, lift: Lift, rng: np.random.Generator) -> Array:
        """Return six tokens: three directions, far away and nearer."""
        x = rng.standard_normal((3, lift.dim)) / np.sqrt(lift.dim)
        x[1] = -x[0]  # where neurons are much alike, half of all tokens make none active
        if lift.biases:
            scales = lift.length * np.array([FAR_SCALES, NEAR_SCALES])
        else:
            scales = STRETCHED * np.array([[STRETCHED] * 3, [1.0] * 3])
        return np.asarray((scales[:, :, None] * x).reshape(6, lift.dim))

    def _one_answer(self, *answers: Array) -> bool:
        """Tell whether all answers are one but for its rounding."""
        every = np.concatenate(answers)
        return bool(np.ptp(every) <= CONSTANT * np.abs(answers[0]).max())
