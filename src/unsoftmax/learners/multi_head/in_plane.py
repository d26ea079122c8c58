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

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.arrangement.jumps import Jumps, JumpSearch, bisect, isolate
from unsoftmax.learners.multi_head.crossing_states import (
    Bracketed,
    Crossing,
    CrossingTuning,
    Estimated,
    Measured,
    ReadOnce,
    Sight,
    along,
    grows,
    with_slope,
)
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head.token_lengths import TokenLengths
from unsoftmax.probes import Array, Flags, Indices, Round
from unsoftmax.protocol import Answers

AskPlane = Callable[[Array, Array], Generator[Round, Answers, Array]]
"""Angles and offset sizes to values g."""


@dataclass(frozen=True, slots=True)
class InPlaneTuning:
    """At which offsets crossings are read."""

    crossing: CrossingTuning = field(default=CrossingTuning())
    steps: float = 40.0
    """Logit at which a gate is a step: the first head's slope is at least that over T·width."""
    first_steeper: float = 64.0
    """The first head's slope is found by so much a reading, from there; by the usual factor once
    a reading overshot."""
    steepest: float = 1e60
    """A head still saturated at this slope is a step at every scale, or hidden beside one."""
    others: float = 45.0
    """Logit of all other heads where a reading counts: they are off by e⁻⁴⁵."""
    sharp: float = 20.0
    """T·K at least where an estimate is confirmed: the jump is then narrow on the circle."""
    apart: float = 12.0
    """… and at most a twelfth of the distance to the next interval."""
    missed: int = 3
    """An interval whose estimate fails so often holds more than one jump: it is cut in two."""
    far: float = 1e5
    """T·K at least of the last reading, which looks for hidden jumps: two jumps this much closer
    than a radian are seen as two."""
    further: float = 30.0
    """… and T at least so many times that of the readings before."""
    far_logit: float = 1.5
    """Logit at which the last reading is predicted: a gate is steep there."""
    agrees: float = 1e-3
    """The last reading is within this of it, and what noise adds: measured, hidden pairs 10⁻⁵
    apart are found by it."""
    quiet: float = 3e2
    """T·K of the last reading for heads of small jumps, over their noise: their angle is needed
    further out, where other heads' values do not hide them."""
    off: float = 0.3
    """There noise may move the logit by at most this."""
    noises: float = 10.0
    """Noise of a logit, over error divided by jump; and how many times that is allowed."""
    rounds: int = 200
    """Rounds after which intervals that are still cut count as coincident; 60 are usual."""


@dataclass(frozen=True, slots=True)
class InPlane:
    """Heads in the plane: r_k(θ) = ``u``[k]·(cos θ, sin θ)."""

    jumps: Jumps
    u: Array
    T: Array
    """The longest offsets that were asked near each jump."""
    noise: Array
    """What answers' noise makes of a logit that is read there."""

    @property
    def angle(self) -> Array:
        """Where each head's hyperplane is crossed, upwards."""
        return _roots(self.jumps, self.u)

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
    tuning: InPlaneTuning,
) -> Generator[Round, Answers, InPlane]:
    """Measure every head in the plane from answers of error ``eta``; cut what hides several."""
    plane = _PlaneSearch.of(jumps, ask, eta, lengths, tuning)
    for _ in range(tuning.rounds):
        done = all(isinstance(crossing, Measured) for crossing in plane.crossings)
        suspects = yield from plane.hiding() if done else plane.advanced()
        if np.any(suspects):
            jumps = plane.jumps
            if np.any((jumps.high - jumps.low)[suspects] < lengths.narrowest):
                raise CoincidentJumps
            plane.reset(suspects)
            jumps = yield from bisect(jumps, suspects, circle)
            jumps = yield from isolate(jumps, circle)
            plane = plane.moved(jumps)
        elif done:
            return InPlane(plane.jumps, plane.u, plane.farthest_asked, plane.noise())
    raise CoincidentJumps


@dataclass(slots=True)
class _PlaneSearch:
    """All crossings of the half circle, and how they are asked."""

    jumps: Jumps
    ask: AskPlane
    eta: float
    lengths: TokenLengths
    tuning: InPlaneTuning
    crossings: list[Crossing]
    steeper: float
    """How fast T comes down from where gates are steps, for the first head."""
    farthest_asked: Array = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of(
        cls,
        jumps: Jumps,
        ask: AskPlane,
        eta: float,
        lengths: TokenLengths,
        tuning: InPlaneTuning,
    ) -> _PlaneSearch:
        ends = zip(jumps.low, jumps.high, strict=True)
        crossings: list[Crossing] = [Bracketed(low, high, np.nan) for low, high in ends]
        return cls(jumps, ask, eta, lengths, tuning, crossings, tuning.first_steeper)

    @property
    def farthest(self) -> float:
        return self.lengths.far(self.lengths.length)

    @property
    def u(self) -> Array:
        """Estimates (α, β) of all heads (H, 2); NaN where there is none."""
        nothing = np.full(2, np.nan)
        return np.array(
            [x.u if isinstance(x, (Estimated, Measured)) else nothing for x in self.crossings]
        ).reshape(-1, 2)

    def _in(self, *states: type[Crossing]) -> Indices:
        """Return the crossings in one of some states."""
        return np.array(
            [k for k, crossing in enumerate(self.crossings) if isinstance(crossing, states)],
            dtype=np.intp,
        )

    def moved(self, jumps: Jumps) -> _PlaneSearch:
        """Take over what is known of intervals that were not cut."""
        new = _PlaneSearch.of(jumps, self.ask, self.eta, self.lengths, self.tuning)
        new.steeper = self.steeper
        known = self.u[self._in(Estimated, Measured)]
        guesses = [crossing.slope for crossing in self.crossings]
        slope = np.median(np.linalg.norm(known, axis=1)) if len(known) else np.nanmax(guesses)
        old = dict(zip(_ends(self.jumps), self.crossings, strict=True))
        for k, ends in enumerate(_ends(jumps)):
            fresh = Bracketed(jumps.low[k], jumps.high[k], float(slope))
            new.crossings[k] = _kept(old[ends], fresh) if ends in old else fresh
        return new

    def reset(self, chosen: Flags) -> None:
        """Forget what was read in some intervals."""
        for k in np.flatnonzero(chosen).tolist():
            self.crossings[k] = Bracketed(*self._interval(k), self.crossings[k].slope)

    def _interval(self, k: int) -> tuple[float, float]:
        return self.jumps.low[k], self.jumps.high[k]

    def advanced(self) -> Generator[Round, Answers, Flags]:
        """Ask one round; return the intervals that do not look like one jump."""
        unread = self._in(Bracketed, ReadOnce)
        if len(unread) == len(self.crossings):
            return (yield from self._first_slope())
        if len(unread):
            return (yield from self._read(unread, self.tuning.crossing.steeper))
        return (yield from self._confirm(self._in(Estimated)))

    def _first_slope(self) -> Generator[Round, Answers, Flags]:
        """Read the head with the most room around it, from where gates are steps."""
        pilot = int(np.argmax(self.jumps.gap()))
        if np.isnan(self.crossings[pilot].slope):
            low, high = self._interval(pilot)
            guess = self.tuning.first_steeper * self.tuning.steps / (self.farthest * (high - low))
            self.crossings[pilot] = with_slope(self.crossings[pilot], guess)
        suspects = yield from self._read(np.array([pilot]), self.steeper)
        if suspects[pilot]:  # too far down: T goes slower
            self.steeper = self.tuning.crossing.steeper
        now = self.crossings[pilot]
        if isinstance(now, Estimated):
            slope = float(np.linalg.norm(now.u))
            self.crossings = [with_slope(crossing, slope) for crossing in self.crossings]
        return suspects

    def _read(self, chosen: Indices, steeper: float) -> Generator[Round, Answers, Flags]:
        """Ask once for each of some heads: the middle, or beside the first reading."""
        tuning = self.tuning.crossing
        theta = np.array([self._unread(k).theta(self.eta, tuning) for k in chosen])
        T = self._lengths(chosen, theta)
        gates = self._gates(chosen, theta, (yield from self.ask(theta, T)))
        suspects = np.zeros(len(self.crossings), dtype=bool)
        for k, t, length, gate in zip(chosen, theta, T, gates, strict=True):
            now = self._unread(k).after(t, length, gate, steeper, tuning)
            suspects[k] = Sight.of(gate, tuning) is Sight.OUTSIDE
            if isinstance(now, Estimated) and not grows(now.u, *self._interval(k)):
                now = Bracketed(*self._interval(k), now.slope * tuning.flatter, now.missed)
                suspects[k] = True
            self.crossings[k] = now
        if any(self.crossings[k].slope > self.tuning.steepest for k in chosen):
            raise CoincidentJumps
        return suspects

    def _unread(self, k: int) -> Bracketed | ReadOnce:
        crossing = self.crossings[k]
        assert isinstance(crossing, (Bracketed, ReadOnce))
        return crossing

    def _lengths(self, chosen: Indices, theta: Array) -> Array:
        """Return T of the next readings of heads without an estimate."""
        unread = [self._unread(k) for k in chosen]
        brackets = [x.bracket if isinstance(x, ReadOnce) else x for x in unread]
        width = np.array([x.high - x.low for x in brackets])
        slope = np.array([x.slope for x in brackets])
        with np.errstate(divide="ignore"):
            T = np.minimum(self.tuning.crossing.span / (slope * width), self.farthest)
        T = np.maximum(np.maximum(T, self.lengths.silent), self._quiet(theta, chosen))
        same = np.array([x.T if isinstance(x, ReadOnce) else np.nan for x in unread])
        return np.where(np.isnan(same), T, same)

    def _quiet(self, theta: Array, chosen: Indices) -> Array:
        """Return the T beyond which all other known heads are saturated at θ."""
        u = self.u
        with np.errstate(invalid="ignore"):
            r = np.cos(theta)[:, None] * u[:, 0] + np.sin(theta)[:, None] * u[:, 1]
            r = np.abs(r)
        r[np.arange(len(chosen)), chosen] = np.inf
        r[:, np.isnan(u[:, 0])] = np.inf
        with np.errstate(divide="ignore"):
            T = self.tuning.others / np.min(r, axis=1, initial=np.inf)
        return np.asarray(np.minimum(T, self.farthest))

    def _gates(self, chosen: Indices, theta: Array, g: Array) -> Array:
        """Turn values at one angle for each of some heads into gates."""
        t = np.full(len(self.jumps), 0.0)
        t[chosen] = theta
        before, after = self.jumps.before(t)[chosen], self.jumps.after(t)[chosen]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((g - before) / (after - before))

    def _confirm(self, chosen: Indices) -> Generator[Round, Answers, Flags]:
        """Ask twice for each head with an estimate, where all others are saturated."""
        tuning, u, n = self.tuning, self.u, len(chosen)
        K = np.linalg.norm(u[chosen], axis=1)
        root = _roots(self.jumps, u)[chosen]
        with np.errstate(divide="ignore"):  # jumps side by side: as far out as may be
            apart = tuning.apart / self.jumps.gap()[chosen]
        T = np.maximum(self._quiet(root, chosen), np.maximum(tuning.sharp, apart) / K)
        T = np.minimum(np.maximum(T, self.lengths.near), self.farthest)
        step = tuning.crossing.logit / (T * K)
        low, high = root - step, root + step
        g = yield from self.ask(np.concatenate([low, high]), np.concatenate([T, T]))
        below, above = self._gates(chosen, low, g[:n]), self._gates(chosen, high, g[n:])
        for i, k in enumerate(chosen):
            crossing = self.crossings[k]
            assert isinstance(crossing, Estimated)
            self.crossings[k] = crossing.after(
                (low[i], high[i]),
                T[i],
                (below[i], above[i]),
                self._interval(k),
                tuning.crossing,
            )
        return np.array([crossing.missed >= tuning.missed for crossing in self.crossings])

    def hiding(self) -> Generator[Round, Answers, Flags]:
        """Ask once for each head, far out; say which intervals hide more than one jump."""
        tuning, measured = self.tuning, [x for x in self.crossings if isinstance(x, Measured)]
        u, last = self.u, np.array([crossing.T for crossing in measured])
        K, root, noise = np.linalg.norm(u, axis=1), _roots(self.jumps, u), self.noise()
        T = np.maximum(
            tuning.further * last, np.maximum(tuning.far, tuning.quiet * noise / self.eta) / K
        )
        T = np.minimum(T, np.maximum(tuning.far / K, last * tuning.off / (tuning.noises * noise)))
        T = np.minimum(T, self.farthest)
        theta = root + tuning.far_logit / (T * K)
        gates = self._gates(np.arange(len(K)), theta, (yield from self.ask(theta, T)))
        with np.errstate(divide="ignore", invalid="ignore"):
            s = np.log(gates / (1 - gates))
        allowed = tuning.agrees + tuning.noises * noise * (1 + T / last)
        suspects = ~(np.abs(s - tuning.far_logit) < allowed)
        away = np.where(suspects, 0.0, s / T - along(u, theta)[0])
        u = u + away[:, None] * np.stack([np.cos(theta), np.sin(theta)], axis=1)
        self.crossings = [replace(x, u=row) for x, row in zip(measured, u, strict=True)]
        self.farthest_asked = T
        return np.asarray(suspects)

    def noise(self) -> Array:
        """Return what the noise of answers makes of a moderate logit of each head."""
        root = _roots(self.jumps, self.u)
        jump = np.abs(self.jumps.after(root) - self.jumps.before(root))
        with np.errstate(divide="ignore"):
            return np.asarray(self.tuning.noises * self.eta / jump)


def _ends(jumps: Jumps) -> list[tuple[int, int, float]]:
    """Name every interval by the pieces at its ends."""
    return list(zip(jumps.left, jumps.right, jumps.sign, strict=True))


def _kept(old: Crossing, fresh: Bracketed) -> Crossing:
    """Return the old state, its bracket inside the interval as that is now."""
    if isinstance(old, (Estimated, Measured)):
        return old
    bracket = old.bracket if isinstance(old, ReadOnce) else old
    low, high = max(bracket.low, fresh.low), min(bracket.high, fresh.high)
    ends = (low, high) if low < high else (fresh.low, fresh.high)
    bracket = replace(bracket, low=ends[0], high=ends[1])
    return replace(old, bracket=bracket) if isinstance(old, ReadOnce) else bracket


def _roots(jumps: Jumps, u: Array) -> Array:
    """Return the angles in (or near) the intervals at which r is 0."""
    middle = (jumps.low + jumps.high) / 2
    return np.asarray(middle - np.arctan2(*along(u, middle)))
