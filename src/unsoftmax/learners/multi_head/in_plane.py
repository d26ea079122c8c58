"""The part of every u_h in the plane of the half circle: five to twelve queries a head.

Inside interval k, at offsets T·(cos θ p + sin θ q) so large that all other heads are saturated,

    (g(θ) − before) / (after − before) = σ(T r_k(θ)),   r_k(θ) = α_k cos θ + β_k sin θ,

(α_k, β_k) being u_k in the plane, with the sign that makes r_k grow through the jump. Two
readings give both. Each crossing goes through four states (`learners.multi_head.crossing_states`),
all of them a round at a time:

1. one head alone, from where gates are steps down: the first slope;
2. all others at a scale guessed from it, until each has an estimate;
3. all again, at offsets so long that, by the estimates, the others are saturated;
4. a last reading far out tells an interval of one jump from one that hides several, which is cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.arrangement.jumps import Jumps, JumpSearch, bisect, isolate
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.crossing_states import (
    Bracketed,
    CrossingTuning,
    Estimated,
    Measured,
    ReadOnce,
    Sight,
    along,
    grows,
    with_slope,
)
from unsoftmax.learners.multi_head.crossings import Crossings, roots
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head.token_lengths import TokenLengths
from unsoftmax.probes import Array, Flags, Indices

AskPlane = Callable[[Array, Array], Asking[Array]]
"""Angles and offset sizes to values g."""


@dataclass(frozen=True, slots=True)
class InPlaneTuning:
    """At which offsets crossings are read."""

    crossing: CrossingTuning = field(default=CrossingTuning())
    steps: float = 40.0
    """Logit at which a gate is a step: the first head's slope is at least that over T·width."""
    first_steeper: float = 64.0
    """The first head's slope is found by so much a reading, from there;"""
    slower: float = 3.0
    """by this once a reading overshot."""
    steepest: float = 1e60
    """A head still saturated at this slope is a step at every scale, or hidden beside one."""
    others: float = 45.0
    """Logit of all other heads where a reading counts: they are off by e⁻⁴⁵."""
    sharp: float = 20.0
    """T·K at least where an estimate is confirmed: the jump is then narrow on the circle."""
    apart: float = 12.0
    """The jump is then so narrow that the next interval is at least so many widths of the jump
    away."""
    missed: int = 3
    """An interval whose estimate fails so often holds more than one jump: it is cut in two."""
    far: float = 1e5
    """T·K at least of the last reading, which looks for hidden jumps: two jumps this much closer
    than a radian are seen as two."""
    further: float = 30.0
    """T of the last reading is at least so many times that of the readings before."""
    far_logit: float = 1.5
    """Logit at which the last reading is predicted: a gate is steep there."""
    agrees: float = 1e-3
    """The last reading is within this of it, and what noise adds: measured, hidden pairs 10⁻⁵
    apart are found by it."""
    quiet_reach: float = 3e2
    """T·K of the last reading for heads of small jumps, over their noise: their angle is needed
    further out, where other heads' values do not hide them."""
    off: float = 0.3
    """There noise may move the logit by at most this."""
    noises: float = 10.0
    """Noise of a logit, over error divided by jump; and how many times that is allowed."""
    rounds: int = 200
    """Rounds after which intervals that are still cut count as coincident (64 heads in 64
    dimensions take fewer than 90 rounds for all steps)."""


@dataclass(frozen=True, slots=True)
class InPlane:
    """Heads in the plane: r_k(θ) = ``u``[k]·(cos θ, sin θ)."""

    jumps: Jumps
    u: Array
    T: Array
    """The longest offsets that were asked near each jump."""
    noise: Array
    """What answers' noise makes of a logit that is read there."""
    shift: Array
    """s_k: logits are T r_k(θ) + s_k, 0 unless both sides were asked."""

    @property
    def angle(self) -> Array:
        """Where each head's hyperplane is crossed, upwards."""
        return roots(self.jumps, self.u)

    @property
    def slope(self) -> Array:
        """How fast the logit of each head grows there, per unit of T."""
        return np.asarray(np.linalg.norm(self.u, axis=1))


def measure_in_plane(
    jumps: Jumps,
    circle: JumpSearch,
    ask: AskPlane,
    eta: float,
    lengths: TokenLengths,
    *,
    mirrored: bool = False,
    tuning: InPlaneTuning,
) -> Asking[InPlane]:
    """Measure every head in the plane from answers of error ``eta``; cut what hides several.

    ``mirrored``: logits are shifted, T r_k(θ) + s_k, and gates that confirm are read at −a as well.
    """
    rounds = _PlaneRounds(
        Crossings.unread(jumps), ask, eta, lengths, tuning, tuning.first_steeper, mirrored
    )
    for _ in range(tuning.rounds):
        crossings = rounds.crossings
        done = crossings.measured
        suspects = yield from rounds.hiding() if done else rounds.advanced()
        if np.any(suspects):
            jumps = crossings.jumps
            if np.any((jumps.high - jumps.low)[suspects] < lengths.narrowest):
                raise CoincidentJumps
            crossings.reset(suspects)
            jumps = yield from bisect(jumps, suspects, circle)
            jumps = yield from isolate(jumps, circle)
            rounds.crossings = crossings.moved(jumps)
        elif done:
            return InPlane(
                crossings.jumps, crossings.u, rounds.farthest_asked, rounds.noise, rounds.shift
            )
    raise CoincidentJumps


@dataclass(slots=True)
class _PlaneRounds:
    """The rounds that are asked of all crossings."""

    crossings: Crossings
    ask: AskPlane
    eta: float
    lengths: TokenLengths
    tuning: InPlaneTuning
    steeper: float
    """How fast T comes down from where gates are steps, for the first head."""
    mirrored: bool
    """Whether heads are confirmed at −a as well."""
    farthest_asked: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def farthest(self) -> float:
        return self.lengths.far(self.lengths.length)

    @property
    def measured(self) -> list[Measured]:
        """The crossings in their last state."""
        return [state for state in self.crossings.states if isinstance(state, Measured)]

    @property
    def shift(self) -> Array:
        """What the logits of measured crossings are beside T r(θ)."""
        return np.array([state.shift for state in self.measured])

    @property
    def noise(self) -> Array:
        """What the noise of answers makes of a moderate logit of each head."""
        with np.errstate(divide="ignore"):
            return np.asarray(self.tuning.noises * self.eta / self.crossings.jump)

    def advanced(self) -> Asking[Flags]:
        """Ask one round; return the intervals that do not look like one jump."""
        unread = self.crossings.having(Bracketed, ReadOnce)
        if len(unread) == len(self.crossings):
            return (yield from self._first_slope())
        if len(unread):
            return (yield from self._read(unread, self.tuning.crossing.steeper))
        return (yield from self._confirm(self.crossings.having(Estimated)))

    def _first_slope(self) -> Asking[Flags]:
        """Read the head with the most room around it, from where gates are steps."""
        crossings, tuning = self.crossings, self.tuning
        first = int(np.argmax(crossings.jumps.gap()))
        if np.isnan(crossings.states[first].slope):
            low, high = crossings.interval(first)
            guess = tuning.first_steeper * tuning.steps / (self.farthest * (high - low))
            crossings.states[first] = with_slope(crossings.states[first], guess)
        suspects = yield from self._read(np.array([first]), self.steeper)
        if suspects[first]:  # too far down: T goes slower
            self.steeper = tuning.slower
        now = crossings.states[first]
        if isinstance(now, Estimated):
            crossings.guess(float(np.linalg.norm(now.u)))
        return suspects

    def _read(self, chosen: Indices, steeper: float) -> Asking[Flags]:
        """Ask once for each of some heads: the middle, or beside the first reading."""
        crossings, tuning = self.crossings, self.tuning.crossing
        theta = np.array([crossings.unread_state(k).theta(self.eta, tuning) for k in chosen])
        T = self._lengths(chosen, theta)
        gates = crossings.gates(chosen, theta, (yield from self.ask(theta, T)))
        suspects = np.zeros(len(crossings), dtype=bool)
        for k, t, length, gate in zip(chosen, theta, T, gates, strict=True):
            now = crossings.unread_state(k).after(t, length, gate, steeper, tuning)
            suspects[k] = Sight.of(gate, tuning) is Sight.OUTSIDE
            if isinstance(now, Estimated) and not grows(now.u, *crossings.interval(k)):
                now = Bracketed(*crossings.interval(k), now.slope * tuning.flatter, now.missed)
                suspects[k] = True
            crossings.states[k] = now
        if any(crossings.states[k].slope > self.tuning.steepest for k in chosen):
            raise CoincidentJumps
        return suspects

    def _lengths(self, chosen: Indices, theta: Array) -> Array:
        """Return T of the next readings of heads without an estimate."""
        unread = [self.crossings.unread_state(k) for k in chosen]
        brackets = [x.bracket if isinstance(x, ReadOnce) else x for x in unread]
        width = np.array([x.high - x.low for x in brackets])
        slope = np.array([x.slope for x in brackets])
        with np.errstate(divide="ignore"):
            T = np.minimum(self.tuning.crossing.span / (slope * width), self.farthest)
        T = np.maximum(np.maximum(T, self.lengths.silent), self._quiet(chosen, theta))
        same = np.array([x.T if isinstance(x, ReadOnce) else np.nan for x in unread])
        return np.where(np.isnan(same), T, same)

    def _quiet(self, chosen: Indices, theta: Array) -> Array:
        """Return the T beyond which all other known heads are saturated at θ."""
        quiet = self.crossings.others_saturated(chosen, theta, self.tuning.others)
        return np.minimum(quiet, self.farthest)

    def _confirm(self, chosen: Indices) -> Asking[Flags]:
        """Ask twice for each head with an estimate, where all others are saturated."""
        crossings, tuning = self.crossings, self.tuning
        K = np.linalg.norm(crossings.u[chosen], axis=1)
        root = crossings.roots[chosen]
        with np.errstate(divide="ignore"):  # jumps side by side: as far out as may be
            apart = tuning.apart / crossings.jumps.gap()[chosen]
        T = np.maximum(self._quiet(chosen, root), np.maximum(tuning.sharp, apart) / K)
        T = np.minimum(np.maximum(T, self.lengths.near), self.farthest)
        step = tuning.crossing.logit / (T * K)
        low, high = root - step, root + step
        below, above, shift = yield from self._both(chosen, low, high, T)
        for i, k in enumerate(chosen):
            state = crossings.states[k]
            assert isinstance(state, Estimated)
            theta, read = (low[i], high[i]), (below[i], above[i])
            ends = crossings.interval(k)
            crossings.states[k] = state.after(
                theta, T[i], read, ends, tuning.crossing, shift=float(shift[i])
            )
        return np.array([state.missed >= tuning.missed for state in crossings.states])

    def _both(
        self, chosen: Indices, low: Array, high: Array, T: Array
    ) -> Asking[tuple[Array, Array, Array]]:
        """Ask two angles of each head; return the gates as they are without a shift, and it."""
        angles = np.stack([low, high])
        # the function is even but for the shift: σ(T r + s) here, σ(T r − s) at −a
        sides = np.stack([angles, angles + np.pi]) if self.mirrored else angles[None]
        g = yield from self.ask(sides.ravel(), np.broadcast_to(T, sides.shape).ravel())
        gates = np.array(
            [
                [self.crossings.gates(chosen, *at) for at in zip(angles, values, strict=True)]
                for values in g.reshape(sides.shape)
            ]
        )
        if not self.mirrored:
            return *gates[0], np.zeros(len(chosen))
        found, shifts = unshifted(gates, self.tuning.crossing.outside)
        with np.errstate(invalid="ignore"):  # infinite ones of both signs
            return *found, shifts.mean(axis=0)

    def hiding(self) -> Asking[Flags]:
        """Ask once for each head, far out; say which intervals hide more than one jump."""
        crossings, tuning, noise = self.crossings, self.tuning, self.noise
        measured = self.measured
        u, root, last = crossings.u, crossings.roots, np.array([state.T for state in measured])
        K = np.linalg.norm(u, axis=1)
        seen = np.maximum(tuning.far, tuning.quiet_reach * noise / self.eta) / K
        known = np.maximum(tuning.far / K, last * tuning.off / (tuning.noises * noise))
        T = np.minimum(np.maximum(tuning.further * last, seen), np.minimum(known, self.farthest))
        theta = root + tuning.far_logit / (T * K)
        gates = crossings.gates(np.arange(len(K)), theta, (yield from self.ask(theta, T)))
        with np.errstate(divide="ignore", invalid="ignore"):
            s = np.log(gates / (1 - gates)) - self.shift
        allowed = tuning.agrees + tuning.noises * noise * (1 + T / last)
        suspects = ~(np.abs(s - tuning.far_logit) < allowed)
        away = np.where(suspects, 0.0, s / T - along(u, theta)[0])
        u = u + away[:, None] * np.stack([np.cos(theta), np.sin(theta)], axis=1)
        crossings.states = [replace(x, u=row) for x, row in zip(measured, u, strict=True)]
        self.farthest_asked = T
        return np.asarray(suspects)


def unshifted(gates: Array, outside: float) -> tuple[Array, Array]:
    """Return σ(l) and s of gates σ(l + s) and σ(l − s); no gate where one of them is none.

    NaN where one is saturated at 0 and the other at 1: s is then larger than answers can tell.

    Examples
    --------
    >>> gates = 1 / (1 + np.exp(-np.array([[0.5 + 2.0], [0.5 - 2.0]])))
    >>> gate, s = unshifted(gates, 0.01)
    >>> gate.round(6).tolist(), s.round(6).tolist()
    ([0.622459], [2.0])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logits = np.log(np.clip(gates, 0, 1)) - np.log1p(-np.clip(gates, 0, 1))
        gate = 1 / (1 + np.exp(-logits.mean(axis=0)))
        shift = (logits[0] - logits[1]) / 2
    worst = np.take_along_axis(gates, np.argmax(np.abs(gates - 0.5), axis=0)[None], axis=0)[0]
    none = (worst < -outside) | (worst > 1 + outside)
    return np.where(none, worst, gate), np.asarray(shift)
