"""What is claimed of a recovered network, and whether fresh answers bear it out.

The error of a form at a point of norm 1 is at most that of its affine part and of all its neurons;
at a token x it grows with the height ‖(x/λ, 1)‖ of the lift (‖x‖ without biases). So the
certificate is |ĝ(x) − g(x)| ≤ constant + slope·‖x‖, and misses are judged relative to the height.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from unsoftmax.arrangement.homogeneous import PiecewiseLinear
from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.relu_network.fresh_points import FreshPointTuning
from unsoftmax.learners.relu_network.lifted_target import LiftedTarget
from unsoftmax.learners.relu_network.merge import network_of
from unsoftmax.learners.relu_network.network_search import NetworkSearchTuning
from unsoftmax.measure.precision import KAPPA, UNIT, Precision
from unsoftmax.models import ReluNetwork
from unsoftmax.probes import Array, Singles
from unsoftmax.protocol import Certificate, Found, Steps
from unsoftmax.validate.judge import Judgement, Residuals, fresh_answers, judge


@dataclass(frozen=True, slots=True)
class NetworkClaimTuning:
    """How errors become a certificate, and how the hold-out is judged."""

    deviations: float = 6.0
    """Number of standard deviations that are certified. With 4, one certificate in 60 failed."""
    roundoffs: float = 16.0
    """Number of roundoffs of the sum of all terms that is added: nearly linear networks need more
    than 4."""
    times: float = 5.0
    """The hold-out may be missed by this many times the limit that accepted the network: other
    fresh points may be predicted worse."""
    widened: float = 2.0
    """If misses exceed the certificate but not that limit, the certificate is widened to this many
    times the largest of them."""
    varied_from: int = 8
    """With this many fresh tokens or more, at least one shows any neuron, each of the far ones in
    half of all cases: if all answers are the same, the target is refused."""
    coarse: float = 1e-14
    """Relative error of answers above which a note says how precise they are."""


@dataclass(frozen=True, slots=True)
class NetworkClaim:
    """A recovered network, and the error that is claimed for it."""

    target: LiftedTarget
    form: PiecewiseLinear
    model: ReluNetwork
    bound: float
    """On |F̂ − F| at points of norm 1."""
    precision: Precision
    """What answers there may be off by."""
    fresh: FreshPointTuning
    tuning: NetworkClaimTuning

    @classmethod
    def of(
        cls,
        target: LiftedTarget,
        form: PiecewiseLinear,
        sweeps: NetworkSearchTuning,
        tuning: NetworkClaimTuning,
    ) -> Self:
        """Write the form as a network, and say what its errors add up to."""
        errors = float(form.g_error + np.sum(form.error))
        bound = tuning.deviations * errors + tuning.roundoffs * UNIT * _size(form)
        absolute = tuning.deviations * (KAPPA * target.noise.deviation)
        model = network_of(form, target.lift, sweeps.merge)
        precision = Precision(unit=UNIT, absolute=absolute)
        return cls(target, form, model, bound, precision, sweeps.fresh, tuning)

    def tested(self, checks: int, rng: np.random.Generator) -> Steps[ReluNetwork]:
        """Ask the hold-out; return the network and how sure it is, or refuse it."""
        lift = self.target.lift
        x = self.fresh.tokens(lift, checks, rng)
        fresh = [Singles(x, phase="hold-out", purpose="check")] if checks else []
        answered = yield from fresh_answers(fresh)
        y = np.concatenate([np.zeros(0), *(y for _, y in answered)])
        if len(self.form) and checks >= self.tuning.varied_from and not np.ptp(y):
            raise ModelMismatch(
                f"A neuron was found, but {checks} fresh tokens of all lengths are all answered by "
                f"{y[0]:g}: the target jumps (labels), or is no ReLU network."
            )
        widened, judgement = self._judged(x, y)
        if judgement.refuses:
            raise ModelMismatch(
                f"The recovered network misses fresh answers by "
                f"{judgement.evidence.max_residual:.1e} of their size where "
                f"{judgement.evidence.tolerance:.1e} is expected. The target is no ReLU network of "
                "one hidden layer, or has neurons too close to each other for these answers."
            )
        error = float(widened * self.bound)
        errors = {"constant": error, "slope": error / lift.length}
        if not lift.biases:
            errors = {"constant": 0.0, "slope": error}
        certificate = Certificate(errors, self._assumed(checks, widened))
        return Found(self.model, certificate, judgement.evidence, self._notes())

    def _judged(self, x: Array, y: Array) -> tuple[float, Judgement]:
        """Compare fresh answers; return how many times as wide the certificate must be, too."""
        if not len(y):
            return 1.0, judge(Residuals.of(y), 0)
        lift, noise = self.target.lift, self.target.noise
        height = lift.heights(x)
        missed, size = (y - self.model(x)) / height, float(np.sqrt(np.mean((y / height) ** 2)))
        size = size or 1.0
        own = self.precision.error(np.full(len(y), _size(self.form)), y / height)
        weights = self.fresh.weights(lift, x, len(self.form))
        most = self.tuning.times * self.fresh.limit(noise, size) / weights
        excess = judge(Residuals.of(missed, own=own, allowed=self.bound, size=size), len(y)).excess
        widened = 1.0
        if excess > 1 and np.all(np.abs(missed) <= most * size):
            widened = self.tuning.widened * excess
        return widened, judge(
            Residuals.of(
                missed, own=widened * own, allowed=widened * self.bound, size=size, most=most
            ),
            len(y),
        )

    def _assumed(self, checks: int, widened: float) -> tuple[str, ...]:
        noise = self.target.noise
        return (
            "``|ĝ(x) − g(x)|`` ≤ constant + slope·‖x‖, for every x.",
            "The target is a ReLU network of one hidden layer, and all its neurons were found: "
            "what the hold-out tests, it cannot prove.",
            f"Answers are off by a standard deviation of {noise.deviation:.1e} where they are as "
            f"large as {noise.size:.1e}, estimated from their second differences; "
            f"{self.tuning.deviations:g} deviations are taken.",
            *(
                (
                    "The hold-out was missed by more than that: "
                    f"{widened:.3g} times as much is assumed.",
                )
                if widened > 1
                else ()
            ),
            *(() if checks else ("Nothing was checked.",)),
        )

    def _notes(self) -> tuple[str, ...]:
        K, m = len(self.form), self.model.A.shape[1]
        determined = (
            f"{K} hyperplanes, the gradient's jumps across them, and one affine part are "
            "determined; neurons only up to flips, and parallel ones are one."
        )
        extra = f" {m - K} neurons more carry the linear part." if m > K else ""
        coarse: tuple[str, ...] = ()
        if self.target.coarser_than(self.tuning.coarse):
            coarse = (
                f"Answers are precise to about {self.target.coarseness:.0e} of their size, and so "
                "is the network at best.",
            )
        return (determined + extra, *coarse)


def _size(form: PiecewiseLinear) -> float:
    """Return the size of the sum of all terms, at points of norm 1."""
    return float(np.linalg.norm(form.g0) + form.sizes.sum())
