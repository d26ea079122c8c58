"""A form whose far neurons are kept apart from the near ones, since their errors count elsewhere.

A neuron that is inactive at the token 0, its hyperplane at the distance r, changes nothing where
‖x‖ < r. With errors Δu, Δc of its two parts the network is off by at most

    ‖x‖·(‖Δu‖ + |Δc|/r)        everywhere:

an error of the slope alone, however large the bias. Counted at points of norm 1 in the lift, as
the errors of near neurons are, |Δc| would be a constant: 10⁻³ where r is 10⁹.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from unsoftmax.arrangement.homogeneous import Lift, PiecewiseLinear
from unsoftmax.probes import Array, Flags


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
