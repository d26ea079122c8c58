"""One crossing of the half circle while it is measured: four states, and what a reading changes.

Near the jump of head k a gate σ(T r(θ)) is read, r(θ) = α cos θ + β sin θ growing through 0.

    Bracketed --open--> ReadOnce --open--> Estimated --two at ∓2--> Measured
        ^ |                 |                  |                       |
        | +-saturated:      |                  +-missed: anew          |
        |   narrower        +-saturated or contradictory: anew         |
        +------------------------ hides another jump: cut in two ------+

- `Bracketed`: the jump is in [low, high], its slope is a guess. A saturated gate halves the
  interval; the guess then grows (offsets become shorter relative to the interval).
- `ReadOnce`: one open gate. A second one beside it gives (α, β).
- `Estimated`: (α, β) from two readings, while other heads may not have been saturated.
- `Measured`: (α, β) from two readings at logits ∓2, all other heads saturated.

Everything here is pure: a state and a reading give a state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

import numpy as np

from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class CrossingTuning:
    """What a gate tells, and how guesses of its slope are changed."""

    saturated: float = 1e-3
    """Gates within this of 0 or 1 say on which side the jump is, and no more."""
    outside: float = 0.01
    """Gates this far below 0 or above 1 are none: another head is open, or another jump near."""
    steeper: float = 3.0
    """A saturated gate multiplies the guessed slope by this, so that T comes down; more overshoots
    to where other heads are open."""
    flatter: float = 0.1
    """A reading that is no gate multiplies it by this: others are saturated further out."""
    beside: float = 1e-3
    """The second reading is this share of the interval beside the first, where answers are exact
    to ``noiseless``. Larger for coarser answers, as the root of their error: the difference of two
    logits must not be lost in it."""
    noiseless: float = 4e-16
    """Error of float64 answers, relative to their terms (measured: 1e-16 to 4e-16)."""
    most_beside: float = 0.05
    """Largest share of the interval for that: further away the second gate may be saturated."""
    span: float = 12.0
    """The first reading is tried at T that makes the interval span so many units of the logit."""
    logit: float = 2.0
    """Two readings at logits ∓ this confirm an estimate: a gate is steep there, and not at 0."""
    near: float = 1.0
    """How far from these logits the two readings may be: further, and the estimate was too far off
    for T to be right."""


class Sight(Enum):
    """What one reading of a gate says."""

    BELOW = auto()
    """Saturated at 0: the jump is further on."""
    ABOVE = auto()
    """Saturated at 1: the jump is before."""
    OPEN = auto()
    OUTSIDE = auto()
    """No gate: below 0 or above 1."""

    @classmethod
    def of(cls, gate: float, tuning: CrossingTuning) -> Sight:
        """Classify a gate; NaN passes for open, and is refused where it is used."""
        if gate < -tuning.outside or gate > 1 + tuning.outside:
            return cls.OUTSIDE
        if gate < tuning.saturated:
            return cls.BELOW
        return cls.ABOVE if gate > 1 - tuning.saturated else cls.OPEN


@dataclass(frozen=True, slots=True)
class GateReading:
    """An open gate at angle θ, as r(θ) = logit/T."""

    theta: float
    r: float

    @classmethod
    def of(cls, theta: float, T: float, gate: float) -> GateReading:
        """Invert the gate that was read at offsets of norm T."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return cls(theta, float(np.log(np.divide(gate, 1 - gate)) / T))


@dataclass(frozen=True, slots=True)
class Bracketed:
    """The jump is between ``low`` and ``high``; its slope is guessed."""

    low: float
    high: float
    slope: float
    missed: int = 0
    """How often readings did not confirm an estimate of this jump."""

    def theta(self, _noise: float, _tuning: CrossingTuning) -> float:
        """Return where the next reading is."""
        return (self.low + self.high) / 2

    def after(
        self, theta: float, T: float, gate: float, steeper: float, tuning: CrossingTuning
    ) -> Bracketed | ReadOnce:
        """Return the state after one gate, read at angle θ and offsets of norm T."""
        sight = Sight.of(gate, tuning)
        if sight is Sight.OUTSIDE:
            return replace(self, slope=self.slope * tuning.flatter)
        if sight is Sight.BELOW:
            return replace(self, low=theta, slope=self.slope * steeper)
        if sight is Sight.ABOVE:
            return replace(self, high=theta, slope=self.slope * steeper)
        first = GateReading.of(theta, T, gate)
        ends = (self.low, theta) if first.r > 0 else (theta, self.high)
        return ReadOnce(replace(self, low=ends[0], high=ends[1]), T, first)


@dataclass(frozen=True, slots=True)
class ReadOnce:
    """One open gate inside a bracket; the second is read at the same ``T``."""

    bracket: Bracketed
    T: float
    first: GateReading

    @property
    def slope(self) -> float:
        """The guessed slope."""
        return self.bracket.slope

    @property
    def missed(self) -> int:
        """How often readings did not confirm an estimate of this jump."""
        return self.bracket.missed

    def theta(self, noise: float, tuning: CrossingTuning) -> float:
        """Return where the second reading is, towards the jump, for answers of error ``noise``."""
        coarser = max(1.0, (noise / tuning.noiseless) ** 0.5)
        share = min(tuning.most_beside, tuning.beside * coarser)
        width = self.bracket.high - self.bracket.low
        return float(self.first.theta - share * width * np.sign(self.first.r))

    def after(
        self, theta: float, T: float, gate: float, steeper: float, tuning: CrossingTuning
    ) -> Bracketed | ReadOnce | Estimated:
        """Return the state after the second gate: an estimate where that is open as well."""
        if Sight.of(gate, tuning) is not Sight.OPEN:
            return self.bracket.after(theta, T, gate, steeper, tuning)
        u = through(self.first, GateReading.of(theta, T, gate))
        return Estimated(u, self.slope, self.missed)


@dataclass(frozen=True, slots=True)
class Estimated:
    """u = (α, β) from two readings to which other heads may have added."""

    u: Array
    slope: float
    missed: int = 0

    def after(
        self,
        theta: tuple[float, float],
        T: float,
        gates: tuple[float, float],
        ends: tuple[float, float],
        tuning: CrossingTuning,
        *,
        shift: float = 0.0,
    ) -> Bracketed | Estimated | Measured:
        """Return the state after two gates, at angles meant for the logits ∓2.

        ``ends`` are those of the interval, from which is begun anew where the gates tell nothing;
        ``shift`` was taken off the gates.
        """
        one, two = (GateReading.of(t, T, g) for t, g in zip(theta, gates, strict=True))
        s, wanted = np.array([one.r, two.r]) * T, tuning.logit * np.array([-1.0, 1.0])
        with np.errstate(invalid="ignore"):
            if np.all(np.abs(s - wanted) < tuning.near):
                return Measured(through(one, two), T, self.slope, self.missed, shift)
        if all(tuning.saturated < gate < 1 - tuning.saturated for gate in gates):
            u = through(one, two)
            if grows(u, *ends):
                return Estimated(u, self.slope, self.missed + 1)
        return Bracketed(*ends, tuning.span / ((ends[1] - ends[0]) * T), self.missed + 1)


@dataclass(frozen=True, slots=True)
class Measured:
    """u = (α, β) from two readings at offsets of norm ``T``, all others saturated."""

    u: Array
    T: float
    slope: float
    missed: int = 0
    shift: float = 0.0
    """s, where logits are T r(θ) + s."""


Crossing = Bracketed | ReadOnce | Estimated | Measured


def with_slope(crossing: Crossing, slope: float) -> Crossing:
    """Return the state with another guess of the slope."""
    if isinstance(crossing, ReadOnce):
        return replace(crossing, bracket=replace(crossing.bracket, slope=slope))
    return replace(crossing, slope=slope)


def through(one: GateReading, two: GateReading) -> Array:
    """Return the (α, β) of r(θ) = α cos θ + β sin θ through two readings."""
    turn = two.theta - one.theta
    with np.errstate(divide="ignore", invalid="ignore"):
        k = (two.r - one.r * np.cos(turn)) / np.sin(turn)
    c, s = np.cos(one.theta), np.sin(one.theta)
    return np.array([one.r * c - k * s, one.r * s + k * c])


def along(u: Array, theta: Array) -> tuple[Array, Array]:
    """Return r(θ) and its slope, for u (H, 2) and as many angles."""
    c, s = np.cos(theta), np.sin(theta)
    with np.errstate(invalid="ignore"):  # what is not known yet is NaN
        return u[:, 0] * c + u[:, 1] * s, u[:, 1] * c - u[:, 0] * s


def grows(u: Array, low: float, high: float) -> bool:
    """Tell whether an estimate crosses 0 upwards, in or near its interval."""
    [r], [slope] = along(u[None], np.array([(low + high) / 2]))
    return bool(slope > 0 and abs(r) < 2 * slope * (high - low))
