"""What is claimed of a recovered network, and whether fresh answers bear it out.

The error of a form at a point of norm 1 is at most that of its affine part and of all its neurons;
at a token x it grows with the height ‖(x/λ, 1)‖ of the lift (‖x‖ without biases). So the
certificate is |ĝ(x) − g(x)| ≤ constant + slope·‖x‖, and misses are judged relative to the height.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from unsoftmax.arrangement.kinks import aslant
from unsoftmax.arrangement.strips import Hyperplanes, Strips
from unsoftmax.learners.relu_network import lifted_target
from unsoftmax.learners.relu_network.far_neurons import SplitForm
from unsoftmax.learners.relu_network.lift import Lift, PiecewiseLinear
from unsoftmax.learners.relu_network.network_search import network_of
from unsoftmax.measure.precision import KAPPA, UNIT, Precision
from unsoftmax.models import ReluNetwork
from unsoftmax.probes import Array, Flags, Indices, Round, Singles
from unsoftmax.protocol import Answers, Certificate, Found, Steps
from unsoftmax.refusals import Reason, RefusalError
from unsoftmax.validate.judge import (
    Answered,
    Judgement,
    Residuals,
    fresh_answers,
    judge,
    more_than_usual,
)

# Number of standard deviations that are certified. With 4, one certificate in 60 failed.
DEVIATIONS = 6.0
# Number of roundoffs of the sum of all terms that is added: nearly linear networks need more than
# 4.
ROUNDOFFS = 16.0
# The hold-out may be missed by this many times the limit that accepted the network: other fresh
# points may be predicted worse.
TIMES = 5.0
# The certificate is at least WIDENED times the largest miss, and √(d/SMALL_DIM) times as much
# in more dimensions: the largest of a few projections of a vector of R^d on random directions is
# about 2/√d of it, and less than 1/8 of that where few tokens are long enough to show it (with 2
# times, one in six of the networks that lack a neuron broke it). Misses of right networks are 1 %
# of it; larger ones are those of a neuron that is missing, and are allowed up to that limit.
WIDENED, SMALL_DIM = 8.0, 5.0
# Beside hyperplanes a strip shows by this share of what widens the certificate, or more. Larger:
# strips hide more, and count for more; smaller: errors of right networks pass for strips, and are
# asked about in vain.
NOTICED = 0.5
# Without biases tokens so many times as short are asked where answers are exact: their answers are
# as small, if every hyperplane contains 0.
SHORTER = (1e-3, 1e-6, 1e-9)
# How far beside each hyperplane tokens are tried: an angle. Smaller: the two neurons are where
# the one was found; larger: more of them are on one side of the token.
BESIDE = 1e-3
# Relative error of answers above which a note says how precise they are.
COARSE = 1e-14


@dataclass(frozen=True, slots=True)
class NetworkClaim:
    """A recovered network, and the error that is claimed for it."""

    target: lifted_target.LiftedTarget
    form: PiecewiseLinear
    model: ReluNetwork
    bound: float
    """On |F̂ − F| at points of norm 1, but for the error of far neurons."""
    far: float
    """What far neurons add to ``|ĝ(x) − g(x)|``, relative to ‖x‖."""
    precision: Precision
    """What answers there may be off by."""
    widened: float = 1.0
    """How many times as much is claimed, since answers were missed by more than usual."""
    strips: Strips | None = None
    """Where tokens were asked beside hyperplanes."""

    @classmethod
    def of(cls, target: lifted_target.LiftedTarget, split: SplitForm) -> Self:
        """Write the form as a network, and say what its errors add up to."""
        form = split.whole
        errors = float(form.g_error + np.sum(form.error))
        bound = DEVIATIONS * errors + ROUNDOFFS * UNIT * _size(form, target.lift)
        absolute = DEVIATIONS * (KAPPA * target.noise.deviation)
        model = network_of(form, target.lift)
        precision = Precision(unit=UNIT, absolute=absolute)
        far = DEVIATIONS * split.slope_error
        return cls(target, form, model, bound, far, precision)

    def scanned(self) -> Self:
        """Compare the answers at all lengths; widen the claim by what they miss.

        Raises
        ------
        ModelMismatch
            The target bends somewhere where no neuron was found.
        """
        scan = self.target.scan
        if not len(scan.lengths):
            return self
        x = scan.tokens
        claim, judgement = self._judged(x, scan.answers)
        if judgement.refuses:
            lengths = np.linalg.norm(x, axis=1)
            off = np.abs(scan.answers - self.model(x)) / self.target.lift.heights(x)
            raise Reason.NEURON_FAR_OUT_MISSED.error(
                neurons=len(self.form), distance=lengths[np.argmax(off)], missed=judgement.worst[0]
            )
        return claim

    def rehearsed(
        self, rng: np.random.Generator, count: int, earlier: Sequence[Answered] = ()
    ) -> Generator[Round, Answers, Self]:
        """Try ``count`` fresh tokens, and some beside each hyperplane, before the hold-out.

        Another search may still follow. Two neurons that passed for one, nearly parallel, are
        missed between their hyperplanes alone, and the one that was found is there or beside it.

        Raises
        ------
        ModelMismatch
            They are missed by more than the hold-out's may be.
        """
        strips = self._strips(rng)
        fresh = self._tokens(count, rng), self._short(rng), self._beside_hyperplanes(rng)
        x = np.vstack([strips.tokens, *fresh])
        [y] = yield [Singles(x, phase="rehearsal", purpose="data")]
        suspect = self._strained(x, y)[: 2 * len(strips)]
        if len(farther := strips.farther(suspect)):
            [beside] = yield [Singles(farther, phase="rehearsal, farther", purpose="data")]
            x, y = np.vstack([x, farther]), np.concatenate([y, beside])
        # what began earlier searches is answered by the same network, unless answers drift
        x = np.vstack([x, *(tokens for tokens, _ in earlier)])
        y = np.concatenate([y, *(answers for _, answers in earlier)])
        claim, judgement = self._judged(x, y)
        if judgement.refuses:
            raise self._refusal(judgement, y)
        return replace(claim, strips=strips)

    def tested(self, checks: int, rng: np.random.Generator) -> Steps[ReluNetwork]:
        """Ask the hold-out; return the network and how sure it is, or refuse it."""
        lift, x = self.target.lift, self._tokens(checks, rng)
        fresh = [Singles(x, phase="hold-out", purpose="check")] if checks else []
        answered = yield from fresh_answers(fresh)
        y = np.concatenate([np.zeros(0), *(y for _, y in answered)])
        claim, judgement = self._judged(x, y)
        if judgement.refuses:
            raise self._refusal(judgement, y)
        hidden, far = (0.0, 0.0) if claim.strips is None else claim.strips.hide(self._slopes)
        error = float(claim.widened * self.bound + hidden / lift.token_scale)
        slope = error / lift.length + claim.widened * self.far + far
        errors = {"constant": error if lift.biases else 0.0, "slope": slope}
        certificate = Certificate(errors, claim._assumed(checks))
        return Found(self.model, certificate, judgement.evidence, self._notes())

    def _tokens(self, count: int, rng: np.random.Generator) -> Array:
        return lifted_target.fresh_tokens(self.target.lift, count, rng, self.target.scan.farthest)

    @property
    def _exact(self) -> bool:
        """Whether answers are no coarser than rounding, and long tokens do not make them so."""
        target = self.target
        return target.lift.token_scale == 1 and not target.coarser_than(COARSE)

    def _short(self, rng: np.random.Generator) -> Array:
        """Return short tokens of a target without biases, and their opposites."""
        lift = self.target.lift
        lengths = () if lift.biases or not self._exact else SHORTER
        x = rng.standard_normal((len(lengths), lift.dim))
        x *= np.reshape(lengths, (-1, 1)) / np.linalg.norm(x, axis=1)[:, None]
        return np.vstack([x, -x])

    def _beside_hyperplanes(self, rng: np.random.Generator) -> Array:
        """Return a random token on either side of each hyperplane, as far as it was looked."""
        lift, a = self.target.lift, self.form.a
        if lift.D == 1:
            return np.zeros((0, 1))
        size = np.linalg.norm(a, axis=1)
        # at the distance r from 0, a share of r aside
        slope = np.linalg.norm(a[:, : lift.dim], axis=1)
        n, aside = a / size[:, None], BESIDE * slope / size
        Y = rng.standard_normal((2, *a.shape))
        Y -= np.sum(Y * n, axis=2, keepdims=True) * n
        Y /= np.linalg.norm(Y, axis=2, keepdims=True)
        # a token is a point and its opposite: one of them has h > 0, and sides are as it has them
        Y *= np.where(Y[..., -1:] < 0, -1.0, 1.0) if lift.biases else 1.0
        Y += np.array([1.0, -1.0])[:, None, None] * (aside[:, None] * n)
        with np.errstate(divide="ignore", invalid="ignore"):
            x = lift.tokens(Y.reshape(-1, a.shape[1]))
            return np.asarray(x[np.linalg.norm(x, axis=1) <= self.target.scan.farthest])

    def _strips(self, rng: np.random.Generator) -> Strips:
        """Choose tokens beside each hyperplane, where half of what widens the claim shows."""
        lift, form = self.target.lift, self.form
        slopes = self._slopes

        def noticed(x: Array, which: Indices) -> Array:
            own, allowed = self._errors(x)
            strained = own + NOTICED * self.widened * allowed / (WIDENED * self._hidden)
            return np.asarray(2 * strained * lift.heights(x) / slopes[which])

        bends = self._bends
        biases = form.a[bends, -1] if lift.biases else np.zeros(len(slopes))
        planes = Hyperplanes.of(form.a[bends, : lift.dim] / lift.length, biases)
        length = lift.length if lift.biases else lift.token_scale
        farthest = self.target.scan.farthest
        return Strips.beside(planes, form.eps[bends], noticed, length, farthest, rng)

    @property
    def _bends(self) -> Flags:
        """Which neurons have hyperplanes: not the token 0, and some that are there."""
        lift = self.target.lift
        return np.asarray(np.any(self.form.a[:, : lift.dim] != 0, axis=1) & (lift.D > 1))

    @property
    def _slopes(self) -> Array:
        """What these change answers by for each unit of a token's length."""
        lift = self.target.lift
        slopes = np.linalg.norm(self.form.a[:, : lift.dim], axis=1)
        return np.asarray(slopes[self._bends] / lift.length)

    def _refusal(self, judgement: Judgement, y: Array) -> RefusalError:
        if len(self.form) and not np.ptp(y):
            return Reason.FRESH_ANSWERS_ALL_ALIKE.error(asked=len(y), y=y[0])
        missed, allowed = judgement.worst
        return Reason.FRESH_ANSWERS_MISSED.error(
            model="network",
            missed=missed,
            allowed=allowed,
            contrary="no ReLU network of one hidden layer, has neurons too close to each other for "
            "these answers, or one that the search missed: another seed may find it",
        )

    def _judged(self, x: Array, y: Array) -> tuple[Self, Judgement]:
        """Compare answers; return the claim as wide as they need it, too."""
        widened = self.widened
        if not len(y):
            return self, judge(Residuals.of(y), 0)
        lift, noise = self.target.lift, self.target.noise
        height = lift.heights(x)
        missed, size = (y - self.model(x)) / height, float(np.sqrt(np.mean((y / height) ** 2)))
        size = size or 1.0
        own, allowed = self._errors(x)
        weights = lifted_target.weights_of(lift, x, len(self.form))
        most = TIMES * lifted_target.accepted_error(noise, size) / weights

        def judged(allowed: Array, most: Array | float) -> Judgement:
            compared = Residuals.of(
                missed, own=own, allowed=widened * allowed, size=size, most=most
            )
            return judge(compared, len(y))

        # what an answer is off by itself excuses a miss, and hides none of what it is beyond that
        strain = judged(allowed / (WIDENED * self._hidden), np.inf).strain
        if strain > 1 and np.all(np.abs(missed) <= most * size):
            widened *= strain
        return replace(self, widened=widened), judged(allowed, most)

    @property
    def _hidden(self) -> float:
        """A token x shows ``|J·x|/‖x‖`` of a jump J that is missing, about 1/√d of it."""
        return max(1.0, float(np.sqrt(self.target.lift.dim / SMALL_DIM)))

    def _errors(self, x: Array) -> tuple[Array, Array]:
        """Return what answers to tokens (n, d) are off by, and F̂, relative to the height."""
        lift = self.target.lift
        size = np.full(len(x), _size(self.form, lift))
        own = self.precision.error(size, np.zeros(len(x)))
        return own, self.bound + self.far * np.linalg.norm(x, axis=1) / lift.heights(x)

    def _strained(self, x: Array, y: Array) -> Flags:
        """Tell at which tokens answers are missed by half of what widens the claim, or more."""
        own, allowed = self._errors(x)
        beyond = np.abs(y - self.model(x)) / self.target.lift.heights(x) - own
        return np.asarray(beyond > NOTICED * self.widened * allowed / (WIDENED * self._hidden))

    def _assumed(self, checks: int) -> tuple[str, ...]:
        noise = self.target.noise
        return (
            "``|ĝ(x) − g(x)|`` ≤ constant + slope·‖x‖, for every x.",
            "The target is a ReLU network of one hidden layer, and all its neurons were found: the "
            "hold-out tests this but cannot prove it.",
            f"No neuron below {lifted_target.ACCEPTED:.0e} of the answers has a hyperplane nearly "
            "parallel to that of another: it would show only between the two.",
            self._looked_at(),
            *(() if self.strips is None else self.strips.said()),
            f"Errors of answers have a standard deviation of {noise.deviation:.1e} (for answers of "
            f"{noise.size:.1e}), estimated from second differences; {DEVIATIONS:g} deviations are "
            "allowed.",
            *more_than_usual(self.widened),
            *(
                ("All answers are the same number: only float32 rounding would show.",)
                if self.target.constant
                else ()
            ),
            *(() if checks else ("Nothing was checked.",)),
        )

    def _looked_at(self) -> str:
        """Say at which lengths tokens were asked."""
        lift, scan = self.target.lift, self.target.scan
        if len(scan.lengths):
            return (
                f"Tokens up to a norm of {scan.farthest:.0e} were asked: a hyperplane farther from "
                f"0 than {scan.farthest / aslant(lift.dim):.0e} may be missing."
            )
        first, last = (lift.token_scale * 10.0**decade for decade in lifted_target.SIZES)
        first = SHORTER[-1] if self._exact else first
        return (
            f"It has no biases: tokens of lengths from {first:.0e} to {last:.0e} were asked, and "
            "none whose answers show hyperplanes beside 0."
        )

    def _notes(self) -> tuple[str, ...]:
        K, m = len(self.form), self.model.A.shape[1]
        determined = (
            f"{K} hyperplanes, the gradient's jumps across them, and one affine part are "
            "determined. Neurons are determined up to flips, and parallel ones count as one."
        )
        extra = f" {m - K} further neurons carry the linear part." if m > K else ""
        coarse: tuple[str, ...] = ()
        if self.target.coarser_than(COARSE):
            coarse = (
                f"Answers are precise to about {self.target.coarseness:.0e} of their size, and so "
                "is the network at best.",
            )
        return (determined + extra, *coarse)


def _size(form: PiecewiseLinear, lift: Lift) -> float:
    """Return the size of the sum of all terms, at points of norm 1."""
    return float(np.linalg.norm(form.g0) + form.sizes_beyond(lift).sum())
