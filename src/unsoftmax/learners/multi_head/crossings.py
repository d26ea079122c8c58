"""All crossings of one half circle: which state each is in, and what follows for the others.

Interval k holds one jump, of head k; its state is one of `learners.multi_head.crossing_states`.
Nothing is asked here: `learners.multi_head.in_plane` asks, a round at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.arrangement.jumps import Jumps
from unsoftmax.learners.multi_head.crossing_states import (
    Bracketed,
    Crossing,
    Estimated,
    Measured,
    ReadOnce,
    along,
    with_slope,
)
from unsoftmax.probes import Array, Flags, Indices


@dataclass(slots=True)
class Crossings:
    """The intervals of a half circle, and the state of the crossing in each."""

    jumps: Jumps
    states: list[Crossing]

    @classmethod
    def unread(cls, jumps: Jumps, slope: float = np.nan) -> Crossings:
        """Begin with all intervals unread, slopes being guessed."""
        ends = zip(jumps.low, jumps.high, strict=True)
        return cls(jumps, [Bracketed(low, high, slope) for low, high in ends])

    def __len__(self) -> int:
        return len(self.states)

    @property
    def u(self) -> Array:
        """Estimates (α, β) of all heads (H, 2); NaN where there is none."""
        nothing = np.full(2, np.nan)
        return np.array(
            [x.u if isinstance(x, (Estimated, Measured)) else nothing for x in self.states]
        ).reshape(-1, 2)

    @property
    def measured(self) -> bool:
        """Whether all are."""
        return all(isinstance(state, Measured) for state in self.states)

    def having(self, *states: type[Crossing]) -> Indices:
        """Return the crossings in one of some states."""
        chosen = [k for k, state in enumerate(self.states) if isinstance(state, states)]
        return np.array(chosen, dtype=np.intp)

    def unread_state(self, k: int) -> Bracketed | ReadOnce:
        """Return the state of a crossing without an estimate."""
        state = self.states[k]
        assert isinstance(state, (Bracketed, ReadOnce))
        return state

    def interval(self, k: int) -> tuple[float, float]:
        """Return the ends of interval k."""
        return self.jumps.low[k], self.jumps.high[k]

    @property
    def roots(self) -> Array:
        """Angles in (or near) the intervals at which estimates cross 0."""
        return roots(self.jumps, self.u)

    def guess(self, slope: float) -> None:
        """Guess the same slope for all."""
        self.states = [with_slope(state, slope) for state in self.states]

    def reset(self, chosen: Flags) -> None:
        """Forget what was read in some intervals."""
        for k in np.flatnonzero(chosen).tolist():
            self.states[k] = Bracketed(*self.interval(k), self.states[k].slope)

    def moved(self, jumps: Jumps) -> Crossings:
        """Take over what is known to other intervals, for those that were not cut."""
        known = self.u[self.having(Estimated, Measured)]
        guesses = [state.slope for state in self.states]
        slope = np.median(np.linalg.norm(known, axis=1)) if len(known) else np.nanmax(guesses)
        new = Crossings.unread(jumps, float(slope))
        old = dict(zip(_pieces(self.jumps), self.states, strict=True))
        for k, pieces in enumerate(_pieces(jumps)):
            if pieces in old:
                new.states[k] = _inside(old[pieces], *new.interval(k))
        return new

    def gates(self, chosen: Indices, theta: Array, g: Array) -> Array:
        """Turn values g, at one angle for each of some crossings, into gates σ(T r(θ))."""
        t = np.full(len(self.jumps), 0.0)
        t[chosen] = theta
        before, after = self.jumps.before(t)[chosen], self.jumps.after(t)[chosen]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((g - before) / (after - before))

    def others_saturated(self, chosen: Indices, theta: Array, logit: float) -> Array:
        """Return the T at which all other known heads have at least this logit at θ."""
        u = self.u
        with np.errstate(invalid="ignore"):
            r = np.cos(theta)[:, None] * u[:, 0] + np.sin(theta)[:, None] * u[:, 1]
            r = np.abs(r)
        r[np.arange(len(chosen)), chosen] = np.inf
        r[:, np.isnan(u[:, 0])] = np.inf
        with np.errstate(divide="ignore"):
            return np.asarray(logit / np.min(r, axis=1, initial=np.inf))

    @property
    def jump(self) -> Array:
        """How much values jump at each crossing."""
        root = self.roots
        return np.abs(self.jumps.after(root) - self.jumps.before(root))


def roots(jumps: Jumps, u: Array) -> Array:
    """Return the angles in (or near) the intervals at which u·(cos θ, sin θ) is 0."""
    middle = (jumps.low + jumps.high) / 2
    return np.asarray(middle - np.arctan2(*along(u, middle)))


def _pieces(jumps: Jumps) -> list[tuple[int, int, float]]:
    """Name every interval by the pieces at its ends."""
    return list(zip(jumps.left, jumps.right, jumps.sign, strict=True))


def _inside(state: Crossing, low: float, high: float) -> Crossing:
    """Return the state, its bracket inside the interval as that is now."""
    if isinstance(state, (Estimated, Measured)):
        return state
    bracket = state.bracket if isinstance(state, ReadOnce) else state
    inner = max(bracket.low, low), min(bracket.high, high)
    low, high = inner if inner[0] < inner[1] else (low, high)
    bracket = replace(bracket, low=low, high=high)
    return replace(state, bracket=bracket) if isinstance(state, ReadOnce) else bracket
