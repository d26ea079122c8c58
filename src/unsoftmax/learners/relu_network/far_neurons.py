"""Neurons far outside of the circles: what a scan of all lengths shows, and the search did not see.

A circle at the length scale λ sees hyperplanes at distances of up to about 10⁴λ. The scan
(`length_scan`) crosses those farther out, too. Where its answers contradict the network found so
far, at the distance t, what is left, F − F̂, is swept along a circle at the length scale t: there
far hyperplanes lie as others do, and all near ones go through 0. What is found is

    ĝ(x) + Σ_k ε_k relu(u_k·x − |c_k|),

each far neuron turned so that it is inactive around 0, where F̂ is known: there it adds no error.
Each stage takes about 100 queries and d + 12 for every far neuron; where the scan is explained
nothing is asked.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from unsoftmax.learners.relu_network.circle_sweep import FEW
from unsoftmax.learners.relu_network.lift import Circle, Lift, PiecewiseLinear
from unsoftmax.learners.relu_network.lifted_target import LiftedTarget, NoiseLevel
from unsoftmax.learners.relu_network.network_search import PARALLEL, NetworkSearch, nearest
from unsoftmax.learners.relu_network.wide_cells import WalkedForm
from unsoftmax.probes import Array, Flags, Round
from unsoftmax.protocol import Answers


@dataclass(frozen=True, slots=True)
class SplitForm:
    """A form in two parts."""

    lift: Lift
    near: PiecewiseLinear
    far: PiecewiseLinear
    """Neurons inactive at the token 0. An error is that of the slope: the form is off by at most
    that times ‖x‖/λ."""

    @classmethod
    def of(cls, lift: Lift, form: PiecewiseLinear) -> Self:
        """Take all neurons to be near."""
        return cls(lift, form, PiecewiseLinear.zero(len(form.g0)))

    @property
    def whole(self) -> PiecewiseLinear:
        """Return both parts as one form, with the errors of its near part."""
        return self.near.with_neurons(replace(self.far, error=np.zeros(len(self.far))))

    @property
    def slope_error(self) -> float:
        """Return what far neurons are off by, relative to a token's length."""
        return float(np.sum(self.far.error)) / self.lift.length

    def without(self, least: float) -> Self:
        """Leave out the neurons that are inactive at 0 and farther from it than ``least``."""
        parts = (part.take(~self._beyond(part, least)) for part in (self.near, self.far))
        return type(self)(self.lift, *parts)

    def without_met(self, seen: PiecewiseLinear, lift: Lift) -> Self:
        """Leave out those inactive at 0 that a form at another length scale has, too."""

        def kept(form: PiecewiseLinear) -> PiecewiseLinear:
            here = at_length(form, self.lift, lift)
            far = -here.a[:, -1] > SHOWN * _slopes(here)
            return form.take(~(far & (1 - np.abs(nearest(seen, here)[1]) < PARALLEL)))

        return type(self)(self.lift, kept(self.near), kept(self.far))

    def _beyond(self, form: PiecewiseLinear, least: float) -> Flags:
        return np.asarray((form.a[:, -1] < 0) & (_distances(form) * self.lift.length > least))

    def with_far(self, far: PiecewiseLinear, lift: Lift) -> Self:
        """Add far neurons that were found at another length scale."""
        slope = replace(far, error=far.error * np.hypot(1, 1 / _distances(far)))
        here = at_length(slope, lift, self.lift)
        slope = replace(here, error=slope.error * (self.lift.length / lift.length))
        return replace(self, far=self.far.with_neurons(slope))


def at_length(form: PiecewiseLinear, before: Lift, lift: Lift) -> PiecewiseLinear:
    """Write a form for another length scale: h·f(λ'x/h) = F((λ'/λ)x, h)."""
    ratio = lift.length / before.length
    scale = np.append(np.full(lift.dim, ratio), 1.0)
    most = max(ratio, 1.0)
    return replace(
        form,
        g0=form.g0 * scale,
        a=form.a * scale,
        error=form.error * most,
        g_error=form.g_error * most,
    )


def _distances(form: PiecewiseLinear) -> Array:
    """Return the distances of hyperplanes from the token 0, in length scales."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.abs(form.a[:, -1]) / np.linalg.norm(form.a[:, :-1], axis=1))


# Limit on the circles: hyperplanes at distances that differ by 10⁴ need one each.
STAGES = 8
# The scan contradicts a network that misses it by more than this many times what errors of its
# neurons and of the answers typically make: of 190 networks none reached 1.5 times.
MISSED = 5.0
# The length scale of a circle, in the length at which the scan contradicts: the hyperplane is
# nearer to 0 than where the line crosses it.
NEARER = 0.5
# Limit on the length scales of a stage: where a hyperplane seems to be nearer than its error
# tells, the next circle is that near.
NEARER_AGAIN = 2
# The same where one was found nearer than this share of the circle's length scale: its bias is off
# by what a longer circle's answers are, and it may be two.
CLOSE = 1e-2
# Hyperplanes are far from 0 if their distance is more than this many times its error. Others are
# what errors of near neurons look like.
SURE = 10.0
# And more than this share of the circle's length scale: it may be crossed far out, but what is
# nearer was in the search's reach.
SHOWN = 1e-5
# Neurons whose distance is more than this share of the circle's length scale are measured anew: a
# circle at a smaller scale gave them poorly.
RENEWED = 1e-3
# But not those nearer than so many length scales of the search.
BEYOND = 1e3


@dataclass(frozen=True, slots=True)
class FarSearch:
    """The search for neurons beyond the reach of a search's circles."""

    search: NetworkSearch

    def run(self, form: PiecewiseLinear) -> Generator[Round, Answers, SplitForm]:
        """Add far neurons to a form until the scan is explained, as far as circles show any."""
        split, polished = SplitForm.of(self.search.target.lift, form), False
        for _ in range(STAGES):
            length = self.contradicted(split)
            if length is None:
                break
            found = yield from self._stage(split, length * NEARER)
            if found is not None:
                split = found
            elif polished:
                break
            else:
                split, polished = (yield from self._polished(split)), True
        return split

    def contradicted(self, split: SplitForm) -> float | None:
        """Return the smallest length at which the scan contradicts a form, if there is one."""
        target = self.search.target
        lift, scan, noise, form = target.lift, target.scan, target.noise, split.whole
        if not len(scan.lengths):
            return None
        x = scan.tokens
        F = scan.answers / lift.heights(x)
        missed = np.abs(F - form(lift.points(x)))
        typical = split.near.spread + split.near.g_error / np.sqrt(lift.D) + split.far.spread
        own = noise.deviation * np.maximum(1.0, np.abs(F) / (noise.size or 1.0))
        lengths = np.linalg.norm(x, axis=1)[missed > MISSED * (typical + own)]
        return float(lengths.min()) if len(lengths) else None

    def _polished(self, split: SplitForm) -> Generator[Round, Answers, SplitForm]:
        """Measure all near neurons anew: their errors may hide a far one."""
        search, form = self.search, split.whole
        circle = Circle.random(split.lift, search.rng)
        state = WalkedForm.along(form, circle)
        cells = np.arange(len(state.middle))
        state = yield from state.measured(cells, search.target.noise.deviation)
        near = np.arange(len(form)) < len(split.near)
        better = state.corrected(near).form.take(near)
        return replace(split, near=better) if better.spread < split.near.spread else split

    def _stage(
        self, split: SplitForm, length: float
    ) -> Generator[Round, Answers, SplitForm | None]:
        """Look at another length scale, and where hyperplanes are nearer at that; None in vain."""
        least = max(RENEWED * length, BEYOND * split.lift.length)
        kept = split.without(least)
        dropped, found = len(split.whole) - len(kept.whole), None
        for _ in range(NEARER_AGAIN):
            lift = replace(split.lift, length=length)
            seen = yield from self._swept(kept, lift)
            # two neurons that cancel but in a strip: between the hyperplane of one that is known
            # imprecisely and the true one
            apart = kept.without_met(seen, lift)
            if len(apart.whole) < len(kept.whole):
                kept, dropped = apart, len(split.whole) - len(apart.whole)
                seen = yield from self._swept(kept, lift)
            far = self._outside(seen)
            if len(far) >= max(dropped, 1):
                found, dropped = kept.with_far(far, lift), len(far)
                nearest = length * float(np.min(np.abs(far.a[:, -1]) / _slopes(far)))
                if nearest > CLOSE * length:
                    break
                length = nearest
                continue
            slope = _slopes(seen)
            sure = seen.take(slope > SURE * seen.error)
            if not len(sure):
                break
            length *= float(np.max((np.abs(sure.a[:, -1]) + sure.error) / sure.sizes))
        return found

    def _swept(self, split: SplitForm, lift: Lift) -> Generator[Round, Answers, PiecewiseLinear]:
        """Sweep what is left along a circle of another lift; return what is found."""
        search, rng = self.search, self.search.rng
        known = at_length(split.whole, split.lift, lift)
        circle = Circle.random(lift, rng)
        target = LiftedTarget(lift, circle, self._noise(known, circle))
        sweep = replace(search, target=target).sweep(circle, known, FEW)
        swept = yield from sweep.run(search.most)
        whole = known.with_neurons(swept.form)
        new = np.arange(len(whole)) >= len(known)
        whole = replace(whole, g0=whole.g0 + swept.form.g0)
        state = WalkedForm.along(whole, circle)
        state = yield from state.measured(state.beside(new), target.noise.deviation)
        return state.corrected(new).form.take(new)

    def _outside(self, form: PiecewiseLinear) -> PiecewiseLinear:
        """Keep the neurons that are far from 0, inactive there, without an affine part."""
        c, slope = np.abs(form.a[:, -1]), _slopes(form)
        far = (c > SURE * form.error) & (c > SHOWN * slope)
        a = np.where(form.a[:, -1:] > 0, -form.a, form.a)
        return replace(form, a=a, g0=np.zeros_like(form.g0), g_error=0.0).take(far)

    def _noise(self, known: PiecewiseLinear, circle: Circle) -> NoiseLevel:
        """Take answers along another circle to be as precise, relative to their size."""
        noise, scan = self.search.target.noise, self.search.target.scan
        theta = self.search.rng.uniform(circle.low, circle.high, self.search.later)
        answered = np.abs(scan.answers) / circle.lift.heights(scan.tokens)
        size = max(float(np.abs(known(circle.at(theta))).max()), float(answered.max()))
        ratio = size / noise.size if noise.size else 1.0
        return NoiseLevel(ratio * noise.deviation, ratio * noise.search, ratio * noise.size)


def _slopes(form: PiecewiseLinear) -> Array:
    return np.asarray(np.linalg.norm(form.a[:, :-1], axis=1))
