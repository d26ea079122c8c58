"""The part of every u_h in the plane of the half circle: five to twelve queries a head.

Inside interval k, at offsets T·(cos θ p + sin θ q) so large that all other heads are saturated,

    (g(θ) − before) / (after − before) = σ(T r_k(θ)),   r_k(θ) = α_k cos θ + β_k sin θ,

(α_k, β_k) being u_k in the plane, with the sign that makes r_k grow through the jump. Two
readings give both. All crossings go through four stages, a round at a time:

    BRACKETED --open--> READ_ONCE --open--> ESTIMATED --two at ∓2--> MEASURED
        ^ |                 |                   |                       |
        | +-saturated:      |                   +-missed: anew          |
        |   narrower        +-saturated or contradictory: anew          |
        +------------------------- hides another jump: cut in two ------+

1. One head alone, from where gates are steps down: the first slope.
2. All others at a scale guessed from it, until each has an estimate.
3. All again, at offsets so long that, by the estimates, the others are saturated.
4. A last reading far out tells an interval of one jump from one that hides several, which is cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from unsoftmax.arrangement.jumps import Jumps, JumpSearch, bisect, isolate
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.reduced_answers import TokenLengths
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.probes import Array, Flags, Indices

AskPlane = Callable[[Array, Array], Asking[Array]]
"""Angles and offset sizes to values g."""

# Gates within this of 0 or 1 say on which side the jump is, and no more.
SATURATED = 1e-3
# Gates this far below 0 or above 1 are none: another head is open, or another jump near.
OUTSIDE = 0.01
# The first reading is tried at T that makes the interval span so many units of the logit.
SPAN = 12.0
# A saturated gate multiplies the guessed slope by this, so that T comes down; more overshoots to
# where other heads are open.
STEEPER = 3.0
# A reading that is no gate multiplies it by this: others are saturated further out.
FLATTER = 0.1
# The second reading is this share of the interval beside the first, where answers are exact to
# NOISELESS (float64's error, relative to their terms: measured, 1e-16 to 4e-16). Larger for coarser
# answers, as the root of their error: the difference of two logits must not be lost in it.
BESIDE, NOISELESS = 1e-3, 4e-16
# Largest share of the interval for that: further away the second gate may be saturated.
MOST_BESIDE = 0.05
# Logit at which a gate is a step: the first head's slope is at least that over T·width.
STEP = 40.0
# The first head's slope is found by so much a reading, from there.
FIRST_STEEPER = 64.0
# A head still saturated at this slope is a step at every scale, or hidden beside one.
STEEPEST = 1e60
# Two readings at logits ∓ this confirm an estimate: a gate is steep there, and not at 0.
LOGIT = 2.0
# How far from these logits they may be: further, and the estimate was too far off for T to be
# right.
NEAR = 1.0
# Logit of all other heads where a reading counts: they are off by e⁻⁴⁵.
OTHERS = 45.0
# T·K at least where an estimate is confirmed: the jump is then narrow on the circle,
SHARP = 20.0
# so narrow that the next interval is at least so many widths of the jump away.
APART = 12.0
# An interval whose estimate fails so often holds more than one jump: it is cut in two.
MISSED = 3
# T·K at least of the last reading, which looks for hidden jumps: two jumps this much closer than a
# radian are seen as two.
FAR = 1e5
# T of the last reading is at least so many times that of the readings before.
FURTHER = 30.0
# Logit at which the last reading is predicted: a gate is steep there.
FAR_LOGIT = 1.5
# The last reading is within this of it, and what noise adds: measured, hidden pairs 10⁻⁵ apart are
# found by it.
AGREES = 1e-3
# T·K of the last reading for heads of small jumps, over their noise: their angle is needed further
# out, where other heads' values do not hide them.
QUIET_REACH = 3e2
# There noise may move the logit by at most this.
OFF = 0.3
# Noise of a logit, over error divided by jump; and how many times that is allowed.
NOISES = 10.0
# Rounds after which intervals that are still cut count as coincident (64 heads in 64 dimensions
# take fewer than 90 rounds for all steps).
ROUNDS = 200


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
    slower: float = STEEPER,
) -> Asking[InPlane]:
    """Measure every head in the plane from answers of error ``eta``; cut what hides several.

    ``mirrored``: logits are shifted, T r_k(θ) + s_k, and gates that confirm are read at −a as well.
    ``slower``: the first head's slope is found by so much a reading once one overshot.
    """
    rounds = _PlaneRounds(Crossings.unread(jumps), ask, eta, lengths, slower, mirrored)
    for _ in range(ROUNDS):
        crossings = rounds.crossings
        done = bool(np.all(crossings.rows["stage"] == CrossingStage.MEASURED))
        suspects = yield from rounds.hiding() if done else rounds.advanced()
        if np.any(suspects):
            jumps = crossings.jumps
            if np.any(jumps.width[suspects] < lengths.narrowest):
                raise CoincidentJumps
            crossings.reset(suspects)
            jumps = yield from bisect(jumps, suspects, circle)
            jumps = yield from isolate(jumps, circle)
            rounds.crossings = crossings.moved(jumps)
        elif done:
            rows = crossings.rows
            return InPlane(
                crossings.jumps, rows["u"], rounds.farthest_asked, rounds.noise, rows["shift"]
            )
    raise CoincidentJumps


class CrossingStage(IntEnum):
    """How far one crossing is measured."""

    BRACKETED = 0
    """The jump is in [low, high], its slope is a guess."""
    READ_ONCE = 1
    """One open gate, r at angle θ and offsets of norm T: a second one beside it gives u."""
    ESTIMATED = 2
    """u from two readings, while other heads may not have been saturated."""
    MEASURED = 3
    """u from two readings at logits ∓2 and offsets of norm T, all other heads saturated."""


ROW = np.dtype(
    [
        *((name, np.intp) for name in ("stage", "missed")),
        *((name, np.float64) for name in ("low", "high", "slope", "theta", "r", "T", "shift")),
        ("u", np.float64, 2),
    ]
)
"""What is known of one crossing; u is NaN before there is an estimate, ``missed`` says how often
readings did not confirm one."""


@dataclass(slots=True)
class Crossings:
    """The intervals of a half circle, and what is known of the crossing in each: rows of `ROW`."""

    jumps: Jumps
    rows: NDArray[np.void]

    @classmethod
    def unread(cls, jumps: Jumps, slope: float = np.nan) -> Crossings:
        """Begin with all intervals unread, slopes being guessed."""
        crossings = cls(jumps, np.zeros(len(jumps), ROW))
        crossings.rows["slope"] = slope
        crossings.reset(np.ones(len(jumps), dtype=bool))
        return crossings

    def reset(self, chosen: Flags) -> None:
        """Forget what was read in some intervals, but for the guess of the slope."""
        self.rows["missed"][chosen] = 0
        self._begin_anew(np.flatnonzero(chosen), self.rows["slope"][chosen])

    def _begin_anew(self, chosen: Indices, slope: Array) -> None:
        """Look for some jumps in the whole of their intervals again."""
        rows, jumps = self.rows, self.jumps
        rows["stage"][chosen], rows["u"][chosen] = CrossingStage.BRACKETED, np.nan
        rows["low"][chosen], rows["high"][chosen] = jumps.low[chosen], jumps.high[chosen]
        rows["slope"][chosen] = slope

    def moved(self, jumps: Jumps) -> Crossings:
        """Take over what is known to other intervals, for those that were not cut."""
        known = self.rows["u"][self.rows["stage"] >= CrossingStage.ESTIMATED]
        guesses = self.rows["slope"]
        slope = np.median(np.linalg.norm(known, axis=1)) if len(known) else np.nanmax(guesses)
        new = Crossings.unread(jumps, float(slope))
        old = dict(zip(_pieces(self.jumps), self.rows, strict=True))
        for k, pieces in enumerate(_pieces(jumps)):
            if pieces in old:
                new.rows[k] = row = old[pieces]
                inner = max(row["low"], jumps.low[k]), min(row["high"], jumps.high[k])
                ends = inner if inner[0] < inner[1] else (jumps.low[k], jumps.high[k])
                new.rows["low"][k], new.rows["high"][k] = ends
        return new

    def next_angles(self, chosen: Indices, noise: float) -> Array:
        """Return where some crossings are read next, for answers of error ``noise``."""
        now = self.rows[chosen]
        share = min(MOST_BESIDE, BESIDE * max(1.0, (noise / NOISELESS) ** 0.5))
        beside = now["theta"] - share * (now["high"] - now["low"]) * np.sign(now["r"])
        once = now["stage"] == CrossingStage.READ_ONCE
        return np.asarray(np.where(once, beside, (now["low"] + now["high"]) / 2))

    def after_one(
        self, chosen: Indices, theta: Array, T: Array, gates: Array, steeper: float
    ) -> Flags:
        """Take in one gate of each of some crossings without an estimate.

        Returns which intervals do not look like one jump.
        """
        now, r = self.rows[chosen], _logits(gates) / T
        none = (gates < -OUTSIDE) | (gates > 1 + OUTSIDE)
        below, above = ~none & (gates < SATURATED), ~none & (gates > 1 - SATURATED)
        opened = ~(none | below | above)  # NaN passes, and is refused where it is used
        second = opened & (now["stage"] == CrossingStage.READ_ONCE)
        first = opened & ~second
        now["u"][second] = through((now["theta"], theta), (now["r"], r))[second]
        now["low"] = np.where(below | first & ~(r > 0), theta, now["low"])
        now["high"] = np.where(above | first & (r > 0), theta, now["high"])
        now["slope"] *= np.where(none, FLATTER, np.where(below | above, steeper, 1.0))
        for name, value in (("theta", theta), ("r", r), ("T", T)):
            now[name][first] = value[first]
        now["stage"] = np.where(second, CrossingStage.ESTIMATED, first * CrossingStage.READ_ONCE)
        self.rows[chosen] = now
        vain = second & ~grows(now["u"], self.jumps.take(chosen))
        self._begin_anew(chosen[vain], FLATTER * now["slope"][vain])
        suspects = np.zeros(len(self.rows), dtype=bool)
        suspects[chosen] = none | vain
        return suspects

    def after_two(
        self, chosen: Indices, theta: Array, T: Array, gates: Array, shift: Array
    ) -> None:
        """Take in two gates (2, n) of each of some estimated crossings, meant for logits ∓2.

        ``shift`` was taken off the gates. Where they tell nothing it is begun anew.
        """
        rows, r, jumps = self.rows, _logits(gates) / T, self.jumps.take(chosen)
        u = through(theta, r)
        with np.errstate(invalid="ignore"):
            measured = np.all(np.abs(r * T - [[-LOGIT], [LOGIT]]) < NEAR, axis=0)
        inside = np.all((gates > SATURATED) & (gates < 1 - SATURATED), axis=0)
        lost = ~(measured | inside & grows(u, jumps))
        rows["missed"][chosen] += ~measured
        rows["u"][chosen] = u
        for name, value in (
            ("T", T),
            ("shift", shift),
            ("stage", CrossingStage.MEASURED + 0 * chosen),
        ):
            rows[name][chosen[measured]] = value[measured]
        self._begin_anew(chosen[lost], SPAN / (jumps.width[lost] * T[lost]))

    def gates(self, chosen: Indices, theta: Array, g: Array) -> Array:
        """Turn values g, at one angle for each of some crossings, into gates σ(T r(θ))."""
        t = np.zeros(len(self.jumps))
        t[chosen] = theta
        before, after = self.jumps.before(t)[chosen], self.jumps.after(t)[chosen]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((g - before) / (after - before))

    def others_saturated(self, chosen: Indices, theta: Array, logit: float) -> Array:
        """Return the T at which all other known heads have at least this logit at θ."""
        u = self.rows["u"]
        with np.errstate(invalid="ignore", divide="ignore"):
            r = np.abs(np.cos(theta)[:, None] * u[:, 0] + np.sin(theta)[:, None] * u[:, 1])
            r[np.arange(len(chosen)), chosen] = np.inf
            r[:, np.isnan(u[:, 0])] = np.inf
            return np.asarray(logit / np.min(r, axis=1, initial=np.inf))

    @property
    def jump(self) -> Array:
        """How much values jump at each crossing."""
        root = roots(self.jumps, self.rows["u"])
        return np.abs(self.jumps.after(root) - self.jumps.before(root))


@dataclass(slots=True)
class _PlaneRounds:
    """The rounds that are asked of all crossings."""

    crossings: Crossings
    ask: AskPlane
    eta: float
    lengths: TokenLengths
    slower: float
    mirrored: bool
    """Whether heads are confirmed at −a as well."""
    steeper: float = FIRST_STEEPER
    """How fast T comes down from where gates are steps, for the first head."""
    farthest_asked: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def farthest(self) -> float:
        return self.lengths.far(self.lengths.length)

    @property
    def noise(self) -> Array:
        """What the noise of answers makes of a moderate logit of each head."""
        with np.errstate(divide="ignore"):
            return np.asarray(NOISES * self.eta / self.crossings.jump)

    def advanced(self) -> Asking[Flags]:
        """Ask one round; return the intervals that do not look like one jump."""
        stage = self.crossings.rows["stage"]
        unread = np.flatnonzero(stage < CrossingStage.ESTIMATED)
        if len(unread) == len(stage):
            return (yield from self._first_slope())
        if len(unread):
            return (yield from self._read(unread, STEEPER))
        return (yield from self._confirm(np.flatnonzero(stage == CrossingStage.ESTIMATED)))

    def _first_slope(self) -> Asking[Flags]:
        """Read the head with the most room around it, from where gates are steps."""
        rows, jumps = self.crossings.rows, self.crossings.jumps
        first = int(np.argmax(jumps.gap()))
        if np.isnan(rows["slope"][first]):
            rows["slope"][first] = FIRST_STEEPER * STEP / (self.farthest * jumps.width[first])
        suspects = yield from self._read(np.array([first]), self.steeper)
        if suspects[first]:  # too far down: T goes slower
            self.steeper = self.slower
        if rows["stage"][first] == CrossingStage.ESTIMATED:
            rows["slope"] = np.linalg.norm(rows["u"][first])
        return suspects

    def _read(self, chosen: Indices, steeper: float) -> Asking[Flags]:
        """Ask once for each of some heads: the middle, or beside the first reading."""
        crossings, now = self.crossings, self.crossings.rows[chosen]
        theta, T = crossings.next_angles(chosen, self.eta), now["T"]
        with np.errstate(divide="ignore"):
            first = np.minimum(SPAN / (now["slope"] * (now["high"] - now["low"])), self.farthest)
        first = np.maximum(np.maximum(first, self.lengths.silent), self._quiet(chosen, theta))
        T = np.where(now["stage"] == CrossingStage.READ_ONCE, T, first)
        gates = crossings.gates(chosen, theta, (yield from self.ask(theta, T)))
        suspects = crossings.after_one(chosen, theta, T, gates, steeper)
        if np.any(crossings.rows["slope"][chosen] > STEEPEST):
            raise CoincidentJumps
        return suspects

    def _quiet(self, chosen: Indices, theta: Array) -> Array:
        """Return the T beyond which all other known heads are saturated at θ."""
        return np.minimum(self.crossings.others_saturated(chosen, theta, OTHERS), self.farthest)

    def _confirm(self, chosen: Indices) -> Asking[Flags]:
        """Ask twice for each head with an estimate, where all others are saturated."""
        rows, jumps = self.crossings.rows, self.crossings.jumps
        K, root = np.linalg.norm(rows["u"][chosen], axis=1), roots(jumps, rows["u"])[chosen]
        with np.errstate(divide="ignore"):  # jumps side by side: as far out as may be
            apart = APART / jumps.gap()[chosen]
        T = np.maximum(self._quiet(chosen, root), np.maximum(SHARP, apart) / K)
        T = np.minimum(np.maximum(T, self.lengths.near), self.farthest)
        theta = root + np.array([[-LOGIT], [LOGIT]]) / (T * K)
        gates, shift = yield from self._both(chosen, theta, T)
        self.crossings.after_two(chosen, theta, T, gates, shift)
        return np.asarray(rows["missed"] >= MISSED)

    def _both(self, chosen: Indices, theta: Array, T: Array) -> Asking[tuple[Array, Array]]:
        """Ask two angles of each head; return the gates as they are without a shift, and it."""
        # the function is even but for the shift: σ(T r + s) here, σ(T r − s) at −a
        sides = np.stack([theta, theta + np.pi]) if self.mirrored else theta[None]
        g = yield from self.ask(sides.ravel(), np.broadcast_to(T, sides.shape).ravel())
        gates = np.array(
            [
                [self.crossings.gates(chosen, *at) for at in zip(theta, values, strict=True)]
                for values in g.reshape(sides.shape)
            ]
        )
        if not self.mirrored:
            return gates[0], np.zeros(len(chosen))
        found, shifts = unshifted(gates)
        with np.errstate(invalid="ignore"):  # infinite ones of both signs
            return found, shifts.mean(axis=0)

    def hiding(self) -> Asking[Flags]:
        """Ask once for each head, far out; say which intervals hide more than one jump."""
        rows, jumps, noise = self.crossings.rows, self.crossings.jumps, self.noise
        u, last = rows["u"], rows["T"].copy()
        K = np.linalg.norm(u, axis=1)
        seen = np.maximum(FAR, QUIET_REACH * noise / self.eta) / K
        known = np.maximum(FAR / K, last * OFF / (NOISES * noise))
        T = np.minimum(np.maximum(FURTHER * last, seen), np.minimum(known, self.farthest))
        theta = roots(jumps, u) + FAR_LOGIT / (T * K)
        g = yield from self.ask(theta, T)
        s = _logits(self.crossings.gates(np.arange(len(K)), theta, g)) - rows["shift"]
        suspects = ~(np.abs(s - FAR_LOGIT) < AGREES + NOISES * noise * (1 + T / last))
        away = np.where(suspects, 0.0, s / T - along(u, theta)[0])
        rows["u"] = u + away[:, None] * np.stack([np.cos(theta), np.sin(theta)], axis=1)
        self.farthest_asked = T
        return np.asarray(suspects)


def unshifted(gates: Array) -> tuple[Array, Array]:
    """Return σ(l) and s of gates σ(l + s) and σ(l − s); no gate where one of them is none.

    NaN where one is saturated at 0 and the other at 1: s is then larger than answers can tell.

    Examples
    --------
    >>> gates = 1 / (1 + np.exp(-np.array([[0.5 + 2.0], [0.5 - 2.0]])))
    >>> gate, s = unshifted(gates)
    >>> gate.round(6).tolist(), s.round(6).tolist()
    ([0.622459], [2.0])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logits = np.log(np.clip(gates, 0, 1)) - np.log1p(-np.clip(gates, 0, 1))
        gate = 1 / (1 + np.exp(-logits.mean(axis=0)))
        shift = (logits[0] - logits[1]) / 2
    worst = np.take_along_axis(gates, np.argmax(np.abs(gates - 0.5), axis=0)[None], axis=0)[0]
    none = (worst < -OUTSIDE) | (worst > 1 + OUTSIDE)
    return np.where(none, worst, gate), np.asarray(shift)


def through(theta: tuple[Array, Array] | Array, r: tuple[Array, Array] | Array) -> Array:
    """Return the u (n, 2) of r(θ) = u·(cos θ, sin θ) through two readings of each head."""
    turn = theta[1] - theta[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        k = (r[1] - r[0] * np.cos(turn)) / np.sin(turn)
        c, s = np.cos(theta[0]), np.sin(theta[0])
        return np.stack([r[0] * c - k * s, r[0] * s + k * c], axis=-1)


def along(u: Array, theta: Array) -> tuple[Array, Array]:
    """Return r(θ) and its slope, for u (H, 2) and as many angles."""
    c, s = np.cos(theta), np.sin(theta)
    with np.errstate(invalid="ignore"):  # what is not known yet is NaN
        return u[:, 0] * c + u[:, 1] * s, u[:, 1] * c - u[:, 0] * s


def roots(jumps: Jumps, u: Array) -> Array:
    """Return the angles in (or near) the intervals at which u·(cos θ, sin θ) is 0."""
    middle = (jumps.low + jumps.high) / 2
    return np.asarray(middle - np.arctan2(*along(u, middle)))


def grows(u: Array, jumps: Jumps) -> Flags:
    """Tell which estimates cross 0 upwards, in or near their intervals."""
    r, slope = along(u, (jumps.low + jumps.high) / 2)
    return np.asarray((slope > 0) & (np.abs(r) < 2 * slope * (jumps.high - jumps.low)))


def _pieces(jumps: Jumps) -> list[tuple[int, int, float]]:
    """Name every interval by the pieces at its ends."""
    return list(zip(jumps.left, jumps.right, jumps.sign, strict=True))


def _logits(gates: Array) -> Array:
    """Return the s of σ(s); NaN or infinite past 0 and 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(np.divide(gates, 1 - gates)))
