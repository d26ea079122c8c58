"""Circles until fresh points are predicted: sweep, look, measure again, sweep what is left.

After a sweep fresh points tell two failures apart. *Structure*: a neuron is missing, or two
passed for one; then what is left, F − F̂, is swept along another circle, for measuring a wrong
structure again makes it worse. *Precision*: thin cells gave coarse jumps; then these are measured
anew where cells are wide, at last all of them.

    fresh points miss by              next
    the limit or less                 found
    what the neurons' errors explain  measure coarse neurons anew, more and more of them; all; look
    more                              sweep what is left, merge, look
    three times more than before      undo that, and sweep what is left again
"""

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.relu_network import lifted_target
from unsoftmax.learners.relu_network.circle_sweep import FEW, START, CircleSweep
from unsoftmax.learners.relu_network.lift import Circle, Lift, PiecewiseLinear
from unsoftmax.learners.relu_network.wide_cells import CLEAR, LESS_CLEAR, WalkedForm
from unsoftmax.models import ReluNetwork
from unsoftmax.probes import Array, Flags, Indices, Round
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason

# Two hyperplanes are the same if 1 − |cos| is below this. Smaller: one neuron is found twice.
# Larger: two close neurons become one.
PARALLEL = 1e-9
# A neuron is removed if the correction leaves at most this share of it, or at most so many
# standard deviations. A true neuron that small is found by the next sweep.
GONE, GONE_ERRORS = 1e-5, 30.0
# A neuron is kept if it exceeds so many standard deviations, or one standard deviation and this
# share of the median neuron.
LEAST_JUMP, LEAST_SHARE = 10.0, 1e-7
# Tolerance for the share of a flip, which must be 0 or 1.
FLIPPED = 1e-6
# What flips leave of the linear part must be error: at most so many standard deviations of all
# neurons and of the affine part, or this share of the sum of their sizes.
FLIPS_LEAVE, FLIPS_ROUND = 30.0, 1e-13
# Where a wrong neuron was far out and is measured anew, rounding leaves up to this share of the
# median neuron.
NOTHING = 1e-10


def merged(form: PiecewiseLinear, rest: PiecewiseLinear) -> tuple[PiecewiseLinear, Flags]:
    """Add two forms; say which of the sum's neurons ``rest`` touched."""
    g0 = form.g0 + rest.g0
    # what is left of the affine part also makes up for the errors of neurons that were active there
    g_error = float(np.hypot(rest.g_error, np.linalg.norm(form.error)))
    touched = np.zeros(len(form), dtype=bool)
    if not len(rest):
        return replace(form, g0=g0, g_error=g_error), touched
    near, along = nearest(form, rest)
    same = 1 - np.abs(along) < PARALLEL
    a, eps, error = form.a.copy(), form.eps.copy(), form.error.copy()
    for k in np.flatnonzero(same):
        j = near[k]
        if along[k] < 0:
            g0 = g0 + rest.eps[k] * rest.a[k]
            g_error = float(np.hypot(g_error, rest.error[k]))
        jump = eps[j] * a[j] + rest.eps[k] * np.sign(along[k]) * rest.a[k]
        error[j] = np.hypot(error[j], rest.error[k])
        # a wrong neuron is taken away whole, not left as what the errors leave of it
        gone = max(GONE * np.linalg.norm(a[j]), GONE_ERRORS * error[j])
        eps[j] = 1.0 if jump @ a[j] >= 0 else -1.0
        a[j] = eps[j] * jump * (np.linalg.norm(jump) > gone)
        touched[j] = True
    new = ~same
    whole = PiecewiseLinear(
        g0,
        np.vstack([a, rest.a[new]]),
        np.concatenate([eps, rest.eps[new]]),
        np.concatenate([error, rest.error[new]]),
        g_error,
    )
    return pruned(whole, np.concatenate([touched, np.ones(int(np.sum(new)), dtype=bool)]))


def nearest(form: PiecewiseLinear, rest: PiecewiseLinear) -> tuple[Indices, Array]:
    """Return for each neuron of ``rest`` the most parallel one of ``form``, and their cosine."""
    unit = form.a / np.linalg.norm(form.a, axis=1, keepdims=True)
    other = rest.a / np.linalg.norm(rest.a, axis=1, keepdims=True)
    cosine = other @ unit.T if len(unit) else np.zeros((len(other), 1))
    near = np.argmax(np.abs(cosine), axis=1)
    return near, cosine[np.arange(len(other)), near]


def pruned(form: PiecewiseLinear, touched: Flags) -> tuple[PiecewiseLinear, Flags]:
    """Leave out neurons that are nothing but error."""
    if not len(form):
        return form, touched
    size = form.sizes
    keep = size > LEAST_SHARE * np.median(size)
    keep |= size > LEAST_JUMP * form.error
    keep &= size > np.maximum(form.error, NOTHING * np.median(size))
    return replace(form, a=form.a[keep], eps=form.eps[keep], error=form.error[keep]), touched[keep]


def network_of(form: PiecewiseLinear, lift: Lift) -> ReluNetwork:
    """Write a form as a network with at most two neurons more."""
    d = lift.dim
    U, w = form.a[:, :d] / lift.length, form.g0[:d] / lift.length
    b = form.a[:, d] if lift.biases else np.zeros(len(U))
    c = float(form.g0[d]) if lift.biases else 0.0
    errors = form.g_error + float(np.sum(form.error))
    error = max(FLIPS_LEAVE * errors, FLIPS_ROUND * float(np.sum(form.sizes)))
    flips = flipped(form.eps[:, None] * U, w, error / lift.length, FLIPPED)
    if flips is None and np.linalg.norm(w) * lift.length <= form.g_error:
        w = np.zeros(d)
    U, eps, b, c = with_linear(U, form.eps, b, c, w, flips)
    return ReluNetwork(U.T, eps, b, c)


def flipped(jumps: Array, w: Array, error: float, close: float = np.inf) -> Flags | None:
    """Find the neurons whose flips make up the linear part but for its error, if some do.

    ``close``: how near shares of their jumps (K, n) in −w have to be to 0 or 1.
    """
    # neurons of unlike size count alike
    size = np.linalg.norm(jumps, axis=1)
    if not len(jumps) or len(jumps) > jumps.shape[1] or not np.any(w) or not np.all(size > 0):
        return None
    share, _, rank, _ = np.linalg.lstsq((jumps / size[:, None]).T, -w, rcond=1e-10)
    if rank < len(jumps):
        return None
    share = share / size
    whole = np.round(share)
    left = np.linalg.norm(w + whole @ jumps)
    if np.any(np.abs(share - whole) > close) or np.any((whole != 0) & (whole != 1)):
        return None
    return None if left > error else whole == 1


def with_linear(
    rows: Array, eps: Array, b: Array, c: float, linear: Array, flips: Flags | None
) -> tuple[Array, Array, Array, float]:
    """Write Σ_k ε_k relu(rows_k·x + b_k) + linear·x + c as neurons; return rows, ε, b and c.

    ``flips`` make up the linear part; else two neurons more carry what there is of it.
    """
    if flips is not None:
        c, sign = c + float(np.sum((eps * b)[flips])), np.where(flips, -1.0, 1.0)
        return sign[:, None] * rows, eps, sign * b, c
    if np.any(linear):
        rows = np.vstack([rows, linear, -linear])
        b, eps = np.append(b, [0.0, 0.0]), np.append(eps, [1.0, -1.0])
    return rows, eps, b, c


# A neuron is missing if fresh points are missed by more than this many standard deviations of the
# form plus so many of an answer. A missing neuron shows 10⁴ times as large, imprecise cells up to
# 10 times.
STRUCTURE, STRUCTURE_NOISE = 30.0, 100.0
# Error to which every neuron is measured, relative to its size. Neurons larger than the median
# count as the median one.
PRECISE = 4e-9
# Neurons smaller than this share of the median one count as that large.
SMALL = 0.1
# Cells are measured anew, the thinnest first, until their total error should be below the limit
# by this factor: the largest error at fresh points varies by 30 %.
BELOW = 0.9
# Limit on how often more cells are measured before all of them are.
LEVELS = 8
# Limit on the circles of one sweep, until one shows kinks: a neuron that is hidden behind another
# one on one circle is not hidden on five.
CIRCLES = 5
# Largest number of kinks of a residual: so many per neuron and so many more. A wrong neuron
# leaves two, its own and the true one's; more kinks mean another kind of target.
LEFT_TIMES, LEFT_MORE = 4, 64
# Sweeps of the residual after which the target is refused.
SWEEPS = 8
# A step is undone if it makes the error this many times as large; chance makes it twice.
WORSE = 3.0
# If the relative error of answers is above this, a refusal names it as the reason.
ROUNDING = 1e-14
# Later looks take one fresh point for so many dimensions, at least.
PER_DIM = 4


@dataclass(frozen=True, slots=True)
class NetworkSearch:
    """The search for the form of a lifted target."""

    target: lifted_target.LiftedTarget
    most: int
    """More neurons are refused."""
    everything: bool
    """Whether all neurons are measured anew, not the coarse ones alone."""
    rng: np.random.Generator
    first: int = 16
    """Number of fresh points after the first sweep. A missing neuron shows in most of them."""
    later: int = 32
    """Number of fresh points later, at least."""

    def run(self) -> Generator[Round, Answers, PiecewiseLinear]:
        """Find the form of F.

        Raises
        ------
        NotIdentifiable, ModelMismatch
            No form predicts fresh points, with answers that are coarse or precise.
        """
        state = yield from self.sweep(self.target.circle, None).run(self.most)
        seen = yield from self._look(state, self.first)
        sound = self._sound(seen, state.form.spread)
        best, best_seen = state, seen
        for _ in range(SWEEPS):
            if sound:
                state, seen, passed = yield from self._measured_anew(state, seen)
                if passed:
                    return state.form.cleared
                if seen.rms < best_seen.rms or not best_seen.size:
                    best, best_seen = state, seen
            state = yield from self._swept_again(best)
            seen = yield from self._look(state)
            sound = self._sound(seen, state.form.spread)
            if seen.rms > WORSE * best_seen.rms:
                state, sound = best, False
            else:
                best, best_seen = state, seen
        raise self._refusal(best_seen, len(best.form))

    # -- looking

    def _look(
        self, state: WalkedForm, count: int | None = None
    ) -> Generator[Round, Answers, lifted_target.FreshLook]:
        """Compare a form with F at fresh points."""
        lift = self.target.lift
        if count is None:
            count = max(self.later, lift.D // PER_DIM)
        x = lifted_target.fresh_tokens(lift, count, self.rng)
        return (yield from lifted_target.look(lift, state.form, x))

    def _limit(self, seen: lifted_target.FreshLook) -> float:
        return lifted_target.accepted_error(self.target.noise, seen.size)

    def _sound(self, seen: lifted_target.FreshLook, spread: float) -> bool:
        """Tell whether errors are what a form with all its neurons leaves."""
        expected = STRUCTURE * spread
        expected += STRUCTURE_NOISE * self.target.noise.deviation
        return seen.largest <= expected or seen.share <= self._limit(seen)

    # -- precision

    def _measured_anew(
        self, state: WalkedForm, seen: lifted_target.FreshLook
    ) -> Generator[Round, Answers, tuple[WalkedForm, lifted_target.FreshLook, bool]]:
        """Measure coarse neurons anew, at last all; return whether fresh points are predicted."""
        passed = None
        if self.everything:
            seen = lifted_target.FreshLook.none()
            state = yield from self._coarse(state, self._tolerated(state.form), first=True)
        else:
            state, seen, passed = yield from self._more_and_more(state, seen)
        if passed is not None:
            return state, seen, passed
        whole = yield from self._all_cells(state)
        last = yield from self._look(whole)
        if last.rms > WORSE * seen.rms:
            return state, seen, seen.share <= self._limit(seen)
        return whole, last, last.share <= self._limit(last)

    def _more_and_more(
        self, state: WalkedForm, seen: lifted_target.FreshLook
    ) -> Generator[Round, Answers, tuple[WalkedForm, lifted_target.FreshLook, bool | None]]:
        """Measure coarse neurons anew, more of them each time, until fresh points are predicted.

        Returns True if they are, False if a neuron is missing, None if precision is.
        """
        tolerated = self._tolerated(state.form)
        for level in range(LEVELS):
            before, old = state, seen
            state = yield from self._coarse(state, tolerated, first=level == 0)
            seen = yield from self._look(state)
            missed = seen.share > self._limit(seen)
            if missed and seen.rms > WORSE * old.rms:
                state, seen = before, old
            limit, needed = self._limit(seen), self._tolerated(state.form)
            # two neurons that nearly cancel do so at fresh points too: coarse ones are measured
            # once more
            again = level == 0 and np.any(state.form.error > needed)
            if not again and seen.share <= limit:
                return state, seen, True
            if not self._sound(seen, state.form.spread):
                return state, seen, False
            if state is before:
                break
            if seen.share > limit:
                share = BELOW * min(1.0, limit / seen.share)
                tolerated = np.minimum(needed, _summing_to(state.form.error, share))
        return state, seen, None

    def _coarse(
        self, state: WalkedForm, tolerated: Array, first: bool
    ) -> Generator[Round, Answers, WalkedForm]:
        """Measure the cells of coarse neurons anew, here, and if need be along another circle."""
        state = yield from self._coarse_cells(state, tolerated, first)
        if np.any(state.form.error > tolerated):
            state = WalkedForm.along(state.form, self._circle())
            state = yield from self._coarse_cells(state, tolerated, first)
        return state

    def _coarse_cells(
        self, state: WalkedForm, tolerated: Array, first: bool
    ) -> Generator[Round, Answers, WalkedForm]:
        """Measure cells beside coarse neurons that are not as precise as these should be."""
        form = state.form
        needed = np.where(form.error > tolerated, tolerated / np.sqrt(2 * len(form.g0)), np.inf)
        needed = needed[state.order]
        limits = np.minimum(np.append(needed, np.inf), np.insert(needed, 0, np.inf))
        cells = np.flatnonzero(state.error > limits)
        clear = CLEAR if first else LESS_CLEAR
        deviation = self.target.noise.deviation
        return (yield from state.measured(cells, deviation, clear)).corrected()

    def _all_cells(self, state: WalkedForm) -> Generator[Round, Answers, WalkedForm]:
        """Measure every cell of a fresh circle."""
        deviation = self.target.noise.deviation
        fresh = WalkedForm.along(state.form, self._circle())
        cells = np.arange(len(fresh.middle))
        return (yield from fresh.measured(cells, deviation)).corrected()

    def _tolerated(self, form: PiecewiseLinear) -> Array:
        """Return the error that every neuron may have."""
        size = form.sizes_beyond(self.target.lift)
        typical = float(np.median(size)) if len(size) else 0.0
        return np.asarray(PRECISE * np.clip(size, SMALL * typical, typical))

    # -- structure

    def _swept_again(self, state: WalkedForm) -> Generator[Round, Answers, WalkedForm]:
        """Sweep what is left along fresh circles until one shows kinks; measure what it touched."""
        form = state.form
        allowed = min(self.most, LEFT_TIMES * len(form) + LEFT_MORE)
        for n in range(CIRCLES):
            circle = self._circle()
            rest = yield from self.sweep(circle, form, FEW if n else START).run(allowed)
            form, touched = merged(form, rest.form)
            if len(rest.form):
                break
        state = WalkedForm.along(form, circle)
        state = yield from state.measured(state.beside(touched), self.target.noise.deviation)
        state = state.corrected(touched)
        form, _ = pruned(state.form, touched)
        if len(form) == len(state.order):
            return replace(state, form=form)
        return WalkedForm.along(form, circle)

    def _circle(self) -> Circle:
        return Circle.random(self.target.lift, self.rng)

    def sweep(
        self, circle: Circle, known: PiecewiseLinear | None, start: int = START
    ) -> CircleSweep:
        """Return the sweep of a circle for F, or for what is left beside what is known."""
        noise = self.target.noise
        if known is not None:
            # the known neurons' own errors are no structure
            noise = replace(noise, search=max(noise.search, known.spread))
        return CircleSweep(circle, known, noise, start)

    def _refusal(self, seen: lifted_target.FreshLook, neurons: int) -> Exception:
        target = self.target
        if target.noise.deviation > ROUNDING * target.noise.size:
            return Reason.NEURONS_NOT_SEPARATED.error(
                noise=target.coarseness, neurons=neurons, missed=seen.share
            )
        return Reason.SWEEPS_MISS_FRESH_ANSWERS.error(
            sweeps=SWEEPS, neurons=neurons, missed=seen.share
        )


def _summing_to(errors: Array, share: float) -> float:
    """Return the largest error of those that are kept where their sum is to fall to a share."""
    if not len(errors):
        return 0.0  # an affine target behind noise
    ascending = np.sort(errors)
    total = np.sqrt(np.cumsum(ascending**2))
    kept = int(np.searchsorted(total, share * total[-1], side="right"))
    return float(ascending[kept - 1]) if kept else 0.0
