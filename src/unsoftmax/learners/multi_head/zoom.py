"""The part of every u_h in the plane of the half circle: five to twelve queries a head.

Inside interval k, at offsets T·(cos θ p + sin θ q) so large that all other heads are saturated,

    (g(θ) − before) / (after − before) = σ(T r_k(θ)),   r_k(θ) = α_k cos θ + β_k sin θ,

(α_k, β_k) being u_k in the plane, with the sign that makes r_k grow through the jump. Two
readings give both. What is still known too coarsely to saturate the others is measured first
at a scale guessed from the heads already known. A last reading, far out, tells an interval of
one jump from one that hides several.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from unsoftmax.arrangement.jumps import Jumps, JumpSearch, bisect, isolate
from unsoftmax.learners.multi_head.reach import Reach
from unsoftmax.learners.multi_head.two_tokens import Coincident, Mask
from unsoftmax.probes import Array, Indices, Round
from unsoftmax.protocol import Answers

At = Callable[[Array, Array], Generator[Round, Answers, Array]]
"""Angles and offset sizes to values g."""

# An interval spans this many units of the logit where the slope is as guessed.
_SPAN = 12.0
# The first head's slope is found by taking T down from where gates are steps.
_STEPS, _PILOT, _STEEPER, _FLATTER = 40.0, 64.0, 3.0, 0.1
# What is steeper still is a step at every scale, or hidden beside one.
_STEEPEST = 1e60
# Gates within this of 0 or 1 say on which side the jump is, and no more.
_SATURATED = 1e-3
# A second reading beside the first, in widths of the interval; further where answers are noisy.
_BESIDE, _NOISELESS = 1e-3, 4e-16
_MOST_BESIDE = 0.05
# Others are off by e⁻⁴⁵ where readings count; jumps are 20/(T K) wide; 12 widths to the next.
_OTHERS, _SHARP, _APART = 45.0, 20.0, 12.0
# Two readings at logits ∓2 are accepted if they come within 1 of that.
_LOGIT, _NEAR = 2.0, 1.0
# What is missed so often is not one jump: the interval is bisected.
_MISSED = 3
# The last reading: this much further out, at this logit, to this accuracy, or what noise leaves;
# for small jumps further still, until noise may move the logit by _OFF.
_FAR, _FURTHER, _FAR_LOGIT, _AGREES = 1e5, 30.0, 1.5, 1e-3
_QUIET, _OFF, _NOISES = 3e2, 0.3, 10.0
_ROUNDS = 200


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
        return _angle(self.jumps, self.u)

    @property
    def slope(self) -> Array:
        """How fast the logit of each head grows there, per unit of T."""
        return np.asarray(np.linalg.norm(self.u, axis=1))


def zoom(
    jumps: Jumps, circle: JumpSearch, at: At, eta: float, reach: Reach
) -> Generator[Round, Answers, InPlane]:
    """Measure every head in the plane; split intervals that hide several."""
    search = _Search.of(jumps, eta, reach)
    for _ in range(_ROUNDS):
        checked = bool(np.all(search.done))
        suspects = yield from search.hidden(at) if checked else search.advanced(at)
        if np.any(suspects):
            jumps = search.jumps
            if np.any((jumps.high - jumps.low)[suspects] < reach.narrowest):
                raise Coincident
            search.reset(suspects)
            jumps = yield from bisect(jumps, suspects, circle)
            jumps = yield from isolate(jumps, circle)
            search = search.moved(jumps)
        elif checked:
            return InPlane(search.jumps, search.u, search.outmost, search.noise())
    raise Coincident


@dataclass(slots=True)
class _Search:
    """What is known of every head while it is searched for."""

    jumps: Jumps
    eta: float
    reach: Reach
    low: Array
    high: Array
    kappa: Array
    u: Array
    T: Array
    outmost: Array
    """The longest offset that was asked of each head."""
    first: Array
    """Angle and r of a single reading, (H, 2); NaN if there is none."""
    trusted: Mask
    done: Mask
    missed: Indices
    """How often a head's two readings were not where it was thought to be."""
    steeper: float = _PILOT
    """How fast T comes down from where gates are steps, for the first head."""

    @classmethod
    def of(cls, jumps: Jumps, eta: float, reach: Reach) -> _Search:
        H = len(jumps)
        nothing = np.full(H, np.nan)
        no = np.zeros(H, dtype=bool)
        return cls(
            jumps,
            eta,
            reach,
            jumps.low.copy(),
            jumps.high.copy(),
            nothing.copy(),
            np.full((H, 2), np.nan),
            nothing.copy(),
            nothing.copy(),
            np.full((H, 2), np.nan),
            no,
            no.copy(),
            np.zeros(H, dtype=np.intp),
        )

    @property
    def farthest(self) -> float:
        return self.reach.far(self.reach.length)

    def moved(self, jumps: Jumps) -> _Search:
        """Take over what is known of intervals that were not split."""
        new = _Search.of(jumps, self.eta, self.reach)
        new.steeper = self.steeper
        slopes = np.linalg.norm(self.u[self.trusted], axis=1)
        new.kappa[:] = np.median(slopes) if len(slopes) else np.nanmax(self.kappa)
        old = {
            ends: k
            for k, ends in enumerate(
                zip(self.jumps.left, self.jumps.right, self.jumps.sign, strict=True)
            )
        }
        for k, ends in enumerate(zip(jumps.left, jumps.right, jumps.sign, strict=True)):
            if ends in old:
                same = old[ends]
                for name in ("kappa", "u", "T", "outmost", "first", "trusted", "done", "missed"):
                    getattr(new, name)[k] = getattr(self, name)[same]
                low, high = max(self.low[same], new.low[k]), min(self.high[same], new.high[k])
                if low < high:
                    new.low[k], new.high[k] = low, high
        return new

    def reset(self, k: Mask) -> None:
        """Forget what was read in some intervals."""
        self.trusted[k] = self.done[k] = False
        self.first[k] = np.nan
        self.missed[k] = 0
        self.low[k], self.high[k] = self.jumps.low[k], self.jumps.high[k]

    def advanced(self, at: At) -> Generator[Round, Answers, Mask]:
        """Ask one round; return the intervals that do not look like one jump."""
        if not np.any(self.trusted):
            pilot = np.argmax(self.jumps.gap())
            if np.isnan(self.kappa[pilot]):
                width = self.high[pilot] - self.low[pilot]
                self.kappa[pilot] = _PILOT * _STEPS / (self.farthest * width)
            suspects = yield from self._read(at, np.array([pilot]), self.steeper)
            if suspects[pilot]:  # too far down: T goes slower
                self.steeper = _STEEPER
            if np.any(self.trusted):
                self.kappa[:] = np.linalg.norm(self.u[pilot])
            return suspects
        untrusted = np.flatnonzero(~self.trusted)
        if len(untrusted):
            return (yield from self._read(at, untrusted, _STEEPER))
        return (yield from self._confirm(at))

    def _read(self, at: At, k: Indices, steeper: float) -> Generator[Round, Answers, Mask]:
        """Ask once for each of the heads k: the middle, or beside the first reading."""
        width = self.high[k] - self.low[k]
        again = ~np.isnan(self.first[k, 0])
        share = min(_MOST_BESIDE, _BESIDE * max(1.0, (self.eta / _NOISELESS) ** 0.5))
        with np.errstate(invalid="ignore"):
            beside = self.first[k, 0] - share * width * np.sign(self.first[k, 1])
        theta = np.where(again, beside, (self.low[k] + self.high[k]) / 2)
        with np.errstate(divide="ignore"):
            T = np.minimum(_SPAN / (self.kappa[k] * width), self.farthest)
        T = np.maximum(T, self.reach.silent)
        T = np.where(again, self.T[k], np.maximum(T, self._quiet(theta, k)))
        self.T[k] = T
        phi = self._gate(k, theta, (yield from at(theta, T)))
        bad = (phi < -0.01) | (phi > 1.01)
        under, over = ~bad & (phi < _SATURATED), ~bad & (phi > 1 - _SATURATED)
        good = ~bad & ~under & ~over
        self.low[k[under]], self.high[k[over]] = theta[under], theta[over]
        self.kappa[k[under | over]] *= steeper
        if np.any(self.kappa[k] > _STEEPEST):
            raise Coincident
        self.kappa[k[bad]] *= _FLATTER
        self.first[k[~good]] = np.nan
        s = np.log(phi[good] / (1 - phi[good]))
        now = np.stack([theta[good], s / T[good]], axis=1)
        both = again[good]
        who = k[good]
        self.u[who[both]] = _through(self.first[who[both]], now[both])
        self.trusted[who[both]] = self._grows(who[both])
        self.first[who[both]] = np.nan
        self.first[who[~both]] = now[~both]
        bad_slope = who[both][~self.trusted[who[both]]]
        self.kappa[bad_slope] *= _FLATTER
        suspects = np.zeros(len(self.jumps), dtype=bool)
        suspects[k[bad]] = suspects[bad_slope] = True
        positive = now[~both, 1] > 0
        self.high[who[~both][positive]] = now[~both, 0][positive]
        self.low[who[~both][~positive]] = now[~both, 0][~positive]
        return suspects

    def _grows(self, k: Indices) -> Mask:
        """Tell whether estimates cross upwards in or near their intervals."""
        middle = (self.jumps.low[k] + self.jumps.high[k]) / 2
        r, slope = _turned(self.u[k], middle)
        width = self.jumps.high[k] - self.jumps.low[k]
        return np.asarray((slope > 0) & (np.abs(r) < 2 * slope * width))

    def _quiet(self, theta: Array, k: Indices) -> Array:
        """Return the T beyond which all other known heads are saturated at θ."""
        with np.errstate(invalid="ignore"):
            r = np.cos(theta)[:, None] * self.u[:, 0] + np.sin(theta)[:, None] * self.u[:, 1]
            r = np.abs(r)
        r[np.arange(len(k)), k] = np.inf
        r[:, ~self.trusted] = np.inf
        with np.errstate(divide="ignore"):
            T = _OTHERS / np.min(r, axis=1, initial=np.inf)
        return np.asarray(np.minimum(T, self.farthest))

    def _gate(self, k: Indices, theta: Array, g: Array) -> Array:
        t = np.full(len(self.jumps), 0.0)
        t[k] = theta
        before, after = self.jumps.before(t)[k], self.jumps.after(t)[k]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((g - before) / (after - before))

    def _confirm(self, at: At) -> Generator[Round, Answers, Mask]:
        """Ask twice for each head with an estimate, where all others are saturated."""
        k = np.flatnonzero(~self.done)
        K = np.linalg.norm(self.u[k], axis=1)
        root = self._roots()[k]
        gap = self.jumps.gap()[k]
        with np.errstate(divide="ignore"):  # jumps side by side: as far out as may be
            apart = _APART / gap
        T = np.maximum(self._quiet(root, k), np.maximum(_SHARP, apart) / K)
        T = np.maximum(T, self.reach.near)
        T = np.minimum(T, self.farthest)
        step = _LOGIT / (T * K)
        theta = np.concatenate([root - step, root + step])
        g = yield from at(theta, np.concatenate([T, T]))
        n = len(k)
        phi = np.stack([self._gate(k, theta[:n], g[:n]), self._gate(k, theta[n:], g[n:])])
        with np.errstate(divide="ignore", invalid="ignore"):
            s = np.log(phi / (1 - phi))
        good = np.all(np.abs(s - _LOGIT * np.array([[-1.0], [1.0]])) < _NEAR, axis=0)
        readings = [
            np.stack([t, r / T], axis=1) for t, r in zip((theta[:n], theta[n:]), s, strict=True)
        ]
        who = k[good]
        self.u[who] = _through(readings[0][good], readings[1][good])
        self.T[who] = T[good]
        # heads that were moved may leave their neighbours less quiet than thought: T tells
        self.done[who] = True
        usable = ~good & np.all((phi > _SATURATED) & (phi < 1 - _SATURATED), axis=0)
        self.u[k[usable]] = _through(readings[0][usable], readings[1][usable])
        usable[usable] = self._grows(k[usable])
        wrong = k[~good & ~usable]
        self.trusted[wrong] = False
        self.low[wrong], self.high[wrong] = self.jumps.low[wrong], self.jumps.high[wrong]
        self.kappa[wrong] = _SPAN / ((self.high - self.low)[wrong] * T[~good & ~usable])
        self.first[wrong] = np.nan
        self.missed[k[~good]] += 1
        return np.asarray(self.missed >= _MISSED)

    def _roots(self) -> Array:
        return _angle(self.jumps, self.u)

    def hidden(self, at: At) -> Generator[Round, Answers, Mask]:
        """Ask once for each head, far out; say which intervals hide more than one jump."""
        K = np.linalg.norm(self.u, axis=1)
        root, noise = self._roots(), self.noise()
        # the angle of a quiet head is needed further out, where others' values do not drown it
        T = np.maximum(_FURTHER * self.T, np.maximum(_FAR, _QUIET * noise / self.eta) / K)
        T = np.minimum(T, np.maximum(_FAR / K, self.T * _OFF / (_NOISES * noise)))
        T = np.minimum(T, self.farthest)
        theta = root + _FAR_LOGIT / (T * K)
        phi = self._gate(np.arange(len(K)), theta, (yield from at(theta, T)))
        with np.errstate(divide="ignore", invalid="ignore"):
            s = np.log(phi / (1 - phi))
        allowed = _AGREES + _NOISES * noise * (1 + T / self.T)
        suspects = ~(np.abs(s - _FAR_LOGIT) < allowed)
        away = np.where(suspects, 0.0, s / T - _turned(self.u, theta)[0])
        self.u = self.u + away[:, None] * np.stack([np.cos(theta), np.sin(theta)], axis=1)
        self.outmost = T
        return np.asarray(suspects)

    def noise(self) -> Array:
        """Return what the noise of answers makes of a moderate logit of each head."""
        root = self._roots()
        with np.errstate(divide="ignore"):
            return np.asarray(
                _NOISES * self.eta / np.abs(self.jumps.after(root) - self.jumps.before(root))
            )


def _angle(jumps: Jumps, u: Array) -> Array:
    middle = (jumps.low + jumps.high) / 2
    return np.asarray(middle - np.arctan2(*_turned(u, middle)))


def _through(one: Array, two: Array) -> Array:
    """Return the (α, β) of r(θ) = α cos θ + β sin θ through two readings each."""
    turn = two[:, 0] - one[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        k = (two[:, 1] - one[:, 1] * np.cos(turn)) / np.sin(turn)
    c, s = np.cos(one[:, 0]), np.sin(one[:, 0])
    return np.stack([one[:, 1] * c - k * s, one[:, 1] * s + k * c], axis=1)


def _turned(u: Array, theta: Array) -> tuple[Array, Array]:
    """Return r(θ) and its slope."""
    c, s = np.cos(theta), np.sin(theta)
    with np.errstate(invalid="ignore"):  # what is not known yet is NaN
        return u[:, 0] * c + u[:, 1] * s, u[:, 1] * c - u[:, 0] * s
