"""Circles until fresh points are predicted: sweep, look, polish, sweep what is left.

After a sweep fresh points tell two failures apart. *Structure*: a neuron is missing, or two
passed for one; then what is left, F − F̂, is swept along another circle, for polishing a wrong
structure makes it worse. *Precision*: thin cells gave coarse jumps; then these are measured
anew in fat cells, at last all of them.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.arrangement.cells import Circle, Noise, Swept, sweep
from unsoftmax.arrangement.lift import Form
from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.relu_network.merge import merged, pruned
from unsoftmax.learners.relu_network.opening import Opened, fresh_points, residuals, strictness
from unsoftmax.learners.relu_network.polish import Left, Walk, corrected, left_over
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers

ACCEPTED = 4e-10
"""Largest error at fresh points, over their root mean square, of a network that is found."""
_COARSE = 200.0  # times the answers' error where that is larger: measured 10 to 80
_COARSEST = 1e-3  # beyond which a prediction supports nothing
_FIRST_LOOK, _LOOK, _LOOK_SHARE = 16, 32, 4  # fresh points at first; later, and D/4 at least
# Beyond so many deviations of the form and of an answer a neuron is missing: a missing one is seen
# 10⁴ times as large, coarse cells up to 10 times.
_STRUCTURE, _STRUCTURE_NOISE = 30.0, 100.0
# How precise every neuron must be. What is not clear of all hyperplanes by so many deviations at
# first is asked with fewer of them later: error bars of what was left over are wide.
_PRECISE = 4e-9
_CLEAR, _LESS_CLEAR = 10.0, 1.0
# Cells are measured anew, the thinnest first, until fresh points are predicted: each time as many
# as should bring their error below the limit by this much, for their largest error varies by 30 %.
_BELOW, _LEVELS = 0.9, 8
# Sweeps of what is left over before the target is refused, each along so many circles at most until
# one shows kinks: a neuron hidden behind another on one circle is not on five.
_SWEEPS, _CIRCLES = 8, 5
# A wrong neuron leaves its own kink and the true one's; more kinks than this are another target's.
_LEFT_TIMES, _LEFT_MORE = 4, 64
_WORSE = 3.0  # times as large an error undoes a step: chance alone makes it twice as large


@dataclass(frozen=True, slots=True)
class Look:
    """How fresh points are predicted."""

    largest: float
    rms: float
    size: float
    """Root mean square of F there."""

    @property
    def share(self) -> float:
        """Largest error relative to the answers."""
        return self.largest / self.size if self.size else self.largest


@dataclass(frozen=True, slots=True)
class State:
    """A form, a circle, and what is left in each cell there."""

    form: Form
    walk: Walk
    left: Left

    @classmethod
    def along(cls, form: Form, circle: Circle) -> State:
        """Follow a circle on which nothing was asked."""
        walk = Walk.of(form, circle)
        return cls(form, walk, Left.unknown(walk))


def look(
    opened: Opened, form: Form, count: int, rng: np.random.Generator
) -> Generator[Round, Answers, Look]:
    """Compare with fresh points."""
    x = fresh_points(opened.lift, count, rng)
    Y, F = yield from residuals(opened.lift, x, "fresh points")
    miss = (F - form(Y)) * strictness(opened.lift, x, len(form.a))
    return Look(
        float(np.abs(miss).max()), float(np.sqrt(np.mean(miss**2))), float(np.sqrt(np.mean(F**2)))
    )


def limit(noise: Noise, size: float) -> float:
    """Return the largest relative error of a network that is accepted."""
    return max(ACCEPTED, min(_COARSE * noise.bars / size, _COARSEST)) if size else ACCEPTED


def recover(
    opened: Opened, most: int, polish: bool, rng: np.random.Generator
) -> Generator[Round, Answers, Form]:
    """Find the form of F, or refuse it."""
    swept = yield from sweep(opened.circle, None, opened.noise, most, rng)
    state = _state(swept)
    count = max(_LOOK, opened.lift.D // _LOOK_SHARE)
    seen = yield from look(opened, state.form, _FIRST_LOOK, rng)
    sound = _sound(seen, swept.spread, opened.noise)
    best, best_seen = state, seen
    for _ in range(_SWEEPS):
        if sound:
            state, seen, passed = yield from _polished(state, opened, count, polish, rng)
            if passed:
                return state.form
            if seen.rms < best_seen.rms or not best_seen.size:
                best, best_seen = state, seen
        state = yield from _swept_again(best, opened, most, rng)
        seen = yield from look(opened, state.form, count, rng)
        sound = _sound(seen, _spread(state.form), opened.noise)
        if seen.rms > _WORSE * best_seen.rms:
            state, sound = best, False
        else:
            best, best_seen = state, seen
    raise _refusal(best_seen, opened, len(best.form.a))


def _sound(seen: Look, spread: float, noise: Noise) -> bool:
    """Tell whether errors are what a form with all its neurons leaves."""
    expected = _STRUCTURE * spread + _STRUCTURE_NOISE * noise.bars
    return seen.largest <= expected or seen.share <= limit(noise, seen.size)


def _state(swept: Swept) -> State:
    walk = Walk.swept(swept)
    return State(swept.form, walk, replace(Left.unknown(walk), error=swept.error))


def _polished(
    state: State, opened: Opened, count: int, polish: bool, rng: np.random.Generator
) -> Generator[Round, Answers, tuple[State, Look, bool]]:
    """Measure thin cells anew, more and more of them until fresh points are predicted."""
    seen = Look(np.inf, np.inf, 1.0)
    tolerated = _tolerated(state.form)
    for level in range(1 if polish else _LEVELS):
        before, old = state, seen
        clear = _LESS_CLEAR if level else _CLEAR
        state = yield from _thin(state, opened, tolerated, clear, rng)
        if polish:
            break
        seen = yield from look(opened, state.form, count, rng)
        if seen.rms > _WORSE * old.rms:
            state, seen = before, old
        allowed = limit(opened.noise, seen.size)
        # two neurons that nearly cancel do so at fresh points too: coarse ones get a second chance
        again = level == 0 and np.any(state.form.error > _tolerated(state.form))
        if not again and seen.share <= allowed:
            return state, seen, True
        if not _sound(seen, _spread(state.form), opened.noise):
            return state, seen, False
        if state is before:
            break
        if seen.share > allowed:
            share = _BELOW * min(1.0, allowed / seen.share)
            tolerated = np.minimum(_tolerated(state.form), _summing_to(state.form.error, share))
    before = state
    state = yield from _full(state, opened, rng)
    last = yield from look(opened, state.form, count, rng)
    if last.rms > _WORSE * seen.rms:
        return before, seen, False
    return state, last, last.share <= limit(opened.noise, last.size)


def _summing_to(errors: Array, share: float) -> float:
    """Return the largest error of those that are kept where their sum is to fall to a share."""
    ascending = np.sort(errors)
    total = np.sqrt(np.cumsum(ascending**2))
    kept = int(np.searchsorted(total, share * total[-1], side="right"))
    return float(ascending[kept - 1]) if kept else 0.0


def _spread(form: Form) -> float:
    return float(np.sqrt(np.sum(form.error**2) / (2 * len(form.g0)))) if len(form.a) else 0.0


def _thin(
    state: State, opened: Opened, tolerated: Array, clear: float, rng: np.random.Generator
) -> Generator[Round, Answers, State]:
    """Measure the cells of coarse neurons anew, here, and if need be along another circle."""
    state = yield from _coarse_cells(state, opened, tolerated, clear)
    if np.any(state.form.error > tolerated):
        state = State.along(state.form, Circle.random(opened.lift, rng))
        state = yield from _coarse_cells(state, opened, tolerated, clear)
    return state


def _tolerated(form: Form) -> Array:
    # far out, a large bias makes its neuron no larger
    size = np.linalg.norm(form.a, axis=1)
    typical = float(np.median(size)) if len(size) else 0.0
    return np.asarray(_PRECISE * np.clip(size, 0.1 * typical, typical))


def _coarse_cells(
    state: State, opened: Opened, tolerated: Array, clear: float
) -> Generator[Round, Answers, State]:
    """Measure cells beside coarse neurons that are not as precise as these should be."""
    form, walk = state.form, state.walk
    asked = np.where(form.error > tolerated, tolerated / np.sqrt(2 * len(form.g0)), np.inf)
    asked = asked[walk.order]
    limits = np.minimum(np.append(asked, np.inf), np.insert(asked, 0, np.inf))
    cells = np.flatnonzero(state.left.error > limits)
    left = yield from left_over(form, walk, cells, state.left, opened.noise, clear)
    form, left = corrected(form, walk, left)
    return State(form, walk, left)


def _full(
    state: State, opened: Opened, rng: np.random.Generator
) -> Generator[Round, Answers, State]:
    """Measure every cell of a fresh circle."""
    fresh = State.along(state.form, Circle.random(opened.lift, rng))
    cells = np.arange(len(fresh.walk.middle))
    left = yield from left_over(fresh.form, fresh.walk, cells, fresh.left, opened.noise, _CLEAR)
    form, left = corrected(fresh.form, fresh.walk, left)
    return State(form, fresh.walk, left)


def _swept_again(
    state: State, opened: Opened, most: int, rng: np.random.Generator
) -> Generator[Round, Answers, State]:
    """Sweep what is left along fresh circles until one shows kinks; measure what it touched."""
    form = state.form
    # the known neurons' own errors are no structure
    floor = _spread(form)
    noise = replace(opened.noise, search=max(opened.noise.search, floor))
    allowed = min(most, _LEFT_TIMES * len(form.a) + _LEFT_MORE)
    for _ in range(_CIRCLES):
        circle = Circle.random(opened.lift, rng)
        rest = yield from sweep(circle, form, noise, allowed, rng)
        form, touched = merged(form, rest.form)
        if len(rest.form.a):
            break
    walk = Walk.of(form, circle)
    near = touched[walk.order]
    cells = np.flatnonzero(np.append(near, False) | np.insert(near, 0, False))
    left = yield from left_over(form, walk, cells, Left.unknown(walk), opened.noise, _CLEAR)
    form, left = corrected(form, walk, left, touched)
    form, _ = pruned(form, touched)
    return State(form, walk, left) if len(form.a) == len(walk.order) else State.along(form, circle)


def _refusal(seen: Look, opened: Opened, neurons: int) -> Exception:
    size = opened.noise.size
    if opened.noise.bars > 1e-14 * size:
        return NotIdentifiable(
            f"Answers are only precise to {opened.noise.bars / size:.0e} of their size; that does "
            f"not separate the {neurons} neurons found: fresh answers are missed by "
            f"{seen.share:.0e}. Answers in float64 would do.",
            determined={},
        )
    return ModelMismatch(
        f"After {_SWEEPS} sweeps a network of {neurons} neurons misses fresh answers by "
        f"{seen.share:.1e} of their size. The target is no ReLU network of one hidden layer, or "
        "has neurons so close to each other that float64 answers do not separate them."
    )
