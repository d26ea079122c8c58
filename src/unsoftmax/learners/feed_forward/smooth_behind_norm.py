"""A smooth layer behind a norm, y = β + Γn(x + F(x)): 17 queries for each neuron, 32 gated.

F(x) = B φ(A x + b) + c, or gated. Answers tell directions of u = x + F(x) to rounding, and lengths
as far as eps does: with s = |n|²/d, |Pu|²/d is eps·s/(1 − s), off by rounding·|Pu|²/(d·eps).

1. The norm (`norm_opening`). d + d/8 + 77 queries.
2. Sums of these lengths, in units of √eps: their Jacobians tell the neurons as without a norm, to
   1e-4 or so (`smooth_layer`). x adds a share of its own, which tells the unit and γ's sign.
   10.7m + 3.3d queries.
3. All parameters are fitted to directions alone, of base points and fresh tokens, whatever lengths
   are (`neuron_fit`). 4m queries, 6m gated.
4. Errors drawn into the same equations give the certificate; eps is asked for as behind ReLUs. 16
   queries.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.compose import read_as
from unsoftmax.learners.feed_forward.behind_norm import with_eps
from unsoftmax.learners.feed_forward.jacobian_readings import TWINS, shares_of
from unsoftmax.learners.feed_forward.neuron_fit import (
    NeuronFit,
    NeuronParameters,
    drawn_layers,
    layer_errors,
)
from unsoftmax.learners.feed_forward.norm_opening import NormLook
from unsoftmax.learners.feed_forward.search_steps import asks
from unsoftmax.learners.feed_forward.smooth_layer import (
    COARSE_STEPS,
    GATED_REACH,
    PLAIN_REACH,
    UNSEEN,
    SmoothClaim,
    SmoothSearch,
    notes_of_layer,
)
from unsoftmax.measure.normalised import NormedAnswers
from unsoftmax.models.arrays import UNIT
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers, Steps
from unsoftmax.refusals import Reason

# Lengths with larger relative errors take long steps, and with larger ones no layer is found.
COARSE, COARSEST = 2e-9, 3e-7
# They are looked at where tokens are of this share of the natural length or more: shorter ones may
# have sums that are as short.
NEAR = 1 / 8
# Steps as without a norm, but none that is shorter; and long ones.
STEPS = (1e-4, False), (1e-3, True), COARSE_STEPS[-1]
# Tokens are so many times as long next, where neurons were found and do not fit: directions may
# turn before neurons bend, which are alike there whatever their activation.
LONGER = 2.0
# Misses of so many errors of directions are those of a wrong layer.
POOR = 30.0
# Numbers of directions, for each unknown one.
PER_UNKNOWN = 2.5
# Drawn errors are so many times as large as misses: rounding is no chance.
DRAWN = 3.0


@dataclass(frozen=True, slots=True)
class DirectionsSeen:
    """Directions of sums R(x + F(x)), and R, in the norm's coordinates and any unit.

    Attributes
    ----------
    x, along : ndarray (n, d), (n, k)
        Tokens, and directions of norm 1.
    norm : NormedAnswers
        With its signs.
    unit : float
    """

    x: Array
    along: Array
    norm: NormedAnswers
    unit: float

    @property
    def residual(self) -> Array:
        """What x adds to sums, (n, k)."""
        return np.asarray(self.unit * self.x @ self.norm.projection.T)

    def fit(self, layer: FeedForward, name: str) -> NeuronFit:
        """Return the fit of all parameters, for a layer that is nearly right."""
        weight = 1 / np.linalg.norm(self.residual + layer(self.x), axis=1)
        return NeuronFit(self.x, -self.residual, weight, name, along=self.along)

    def before(self, parameters: NeuronParameters, name: str) -> FeedForward:
        """Return the layer before the norm, x not added."""
        B, c = (self.norm.centred(one) / self.unit for one in (parameters.B, parameters.c[:, None]))
        return replace(parameters, B=B, c=c[:, 0]).layer(name)

    def other(self, error: float, rng: np.random.Generator) -> tuple[Self, Array]:
        """Return what these are with another norm, and what directions of norm 1 are off by.

        Scale and shift are off by a drawn share of the scale each.
        """
        norm, (by_scale, by_shift) = self.norm, error * rng.standard_normal((2, self.x.shape[1]))
        moved = replace(norm, gain=norm.gain / (1 + by_scale))
        turned = norm.basis @ (by_shift / norm.gain)
        return replace(self, norm=moved), turned / np.linalg.norm(1 / norm.gain)


@dataclass(frozen=True, slots=True)
class SmoothBehindNorm:
    """Searches for a smooth layer behind a norm that is known but for signs and eps."""

    dim: int
    normed: NormLook
    most: int
    """More neurons are refused."""
    activation: str | None
    gated: bool | None
    rng: np.random.Generator

    def steps(self, checks: int) -> Steps[FeedForward]:
        """Find the layer, draw its errors, test it."""
        seen, layer, size = yield from self._found()
        unseen = seen.fit(layer, layer.activation).unseen(NeuronParameters.of(layer))
        if np.any(unseen):
            raise Reason.BENDS_UNSEEN.error(unseen=np.sum(unseen), count=len(unseen))
        found, others = self._disturbed(seen, layer, size)
        claim = yield from claimed(found, others, seen.norm.gain, self.normed, self.rng)
        return (yield from claim.tested(checks, self.rng))

    def _left_by_eps(self, y: Array) -> Array:
        """Return 1 − |n|²/d, (n, 1)."""
        n = self.normed.norm.gain * (y - self.normed.norm.shift)
        return np.asarray(np.maximum(1 - np.mean(n * n, axis=1, keepdims=True), UNIT))

    def _as_sums(self, asked: Round, answers: Answers) -> Answers:
        """Return sums in the norm's coordinates, in units of √eps."""
        norm = self.normed.norm
        return [(y - norm.shift) @ norm.basis.T / np.sqrt(self._left_by_eps(y)) for y in answers]

    @property
    def lengths_error(self) -> float:
        """What lengths of sums are off by, relative, as far as eps tells them."""
        look = self.normed.look
        share = np.linalg.norm(look.tokens, axis=1) / look.length
        near = (share > NEAR) & (share <= 1)
        return self.normed.noise / float(np.median(self._left_by_eps(look.answers[near])))

    def _steps(self) -> tuple[tuple[float, bool], ...]:
        """Return steps that lengths are precise enough for.

        Raises
        ------
        ModelMismatch
            Lengths do not show.
        """
        own = self.lengths_error
        if own > COARSEST:
            raise Reason.TOO_COARSE_FOR_NEURONS.error(
                what="The sums' lengths, which behind a norm eps alone tells, are",
                noise=own,
                purpose="to see smooth neurons",
                most=COARSEST,
            )
        return COARSE_STEPS if own > COARSE else STEPS

    def _found(self) -> Generator[Round, Answers, tuple[DirectionsSeen, FeedForward, float]]:
        """Find the layer by the first steps whose layer directions fit, or by the last."""
        *steps, last = self._steps()
        length = self.normed.look.length
        for step in steps:
            try:
                layer, seen = yield from read_as(self._read(step, length), self._as_sums)
            except ModelMismatch as error:
                if error.reason not in UNSEEN:
                    raise
            else:
                layer, size = self._fitted(layer, seen)
                if size <= POOR * self.normed.noise:
                    return seen, layer, size
                length *= LONGER
        layer, seen = yield from read_as(self._read(last, length), self._as_sums)
        return seen, *self._fitted(layer, seen)

    def _read(
        self, step: tuple[float, bool], length: float
    ) -> Generator[Round, Answers, tuple[FeedForward, DirectionsSeen]]:
        """Find the layer of sums, and ask more of these."""
        norm = self.normed.norm
        search = SmoothSearch(
            self.dim,
            length / np.sqrt(self.dim),
            self.most,
            self.activation,
            self.gated,
            self.rng,
            differences=(step,),
            added=norm.residual,
        )
        layer, readings = yield from search.read()
        gain, unit = norm.signed(shares_of(readings, layer, norm.residual))
        unknown = sum(one.size for one in (layer.A, layer.b, layer.B, *(layer.gate or ())))
        wanted = int(PER_UNKNOWN * (unknown / (readings.y.shape[1] - 1) + 1))
        fresh = search.points(max(wanted - len(readings.x), 0), readings.ways)
        y = yield from asks("fit")(fresh)
        x, u = np.vstack([readings.x, fresh]), np.vstack([readings.y, y])
        along = u / np.linalg.norm(u, axis=1, keepdims=True)
        behind = NormedAnswers(norm.shift, gain, norm.basis)
        return layer, DirectionsSeen(x, along, behind, unit)

    def _fitted(self, layer: FeedForward, seen: DirectionsSeen) -> tuple[FeedForward, float]:
        """Fit the layer of sums to directions; return what these are missed by, too."""
        names: tuple[str, ...] = (layer.activation,)
        if self.activation is None and layer.activation in TWINS:
            names = TWINS
        fits = {name: seen.fit(layer, name).run(NeuronParameters.of(layer)) for name in names}
        name = min(names, key=lambda name: fits[name][1])
        parameters, size = fits[name]
        return parameters.layer(name), size

    def _disturbed(
        self, seen: DirectionsSeen, layer: FeedForward, size: float
    ) -> tuple[FeedForward, list[FeedForward]]:
        """Return the layer before the norm, and those that other errors would have made."""
        name, best = layer.activation, NeuronParameters.of(layer)
        fit, (count, width) = seen.fit(layer, name), seen.along.shape
        size = DRAWN * max(size, self.normed.noise / np.sqrt(width))

        def draw(many: int) -> list[FeedForward]:
            norms, by = [], []
            for _ in range(many):
                other, turned = seen.other(self.normed.relative_error, self.rng)
                off = size * self.rng.standard_normal((count, width)) + turned
                norms.append(other)
                by.append((0 * seen.x, seen.residual - other.residual + off / fit.weight[:, None]))
            moved = zip(norms, fit.disturbed(best, by), strict=True)
            return [other.before(one, name) for other, one in moved]

        found = seen.before(best, name)
        return found, drawn_layers(found, draw)


def claimed(
    found: FeedForward,
    others: Sequence[FeedForward],
    gain: Array,
    normed: NormLook,
    rng: np.random.Generator,
) -> Generator[Round, Answers, SmoothClaim]:
    """Ask for eps; claim a layer as others, which other errors would have made, differ from it."""
    reach = (GATED_REACH if found.gate else PLAIN_REACH) * normed.look.length
    errors = layer_errors(found, others, reach)
    whole, errors = yield from with_eps(found, gain, normed, errors, rng)
    notes = notes_of_layer(whole)
    return SmoothClaim(whole, normed.look, errors, notes, True, normed.length_error, reach=reach)
