"""One search for all heads with one query token, from half a circle of offsets to a model.

1. Half a circle of huge offsets crosses every hyperplane a·u_h = 0 once (`arrangement.jumps`).
2. Near each crossing one head alone is open: u_h in the plane, then out of it, then all v_h from
   one linear system.
3. Offsets at which head h is open and the others are saturated give u_h to full precision and all
   columns of W_h in one round.
4. Three copies of a token tell W_h from −W_h.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.arrangement.jumps import JumpSearch, find_jumps
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head import in_plane, reduced_answers, rough_heads
from unsoftmax.learners.multi_head.columns import (
    ColumnTableTuning,
    HeadColumns,
    no_columns,
    read_columns,
)
from unsoftmax.learners.multi_head.heads_conclusion import RecoveredHeads, no_heads
from unsoftmax.learners.multi_head.in_plane import InPlane, measure_in_plane
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.rough_heads import (
    HeadValues,
    SearchPlane,
    read_cells,
    read_out_of_plane,
    read_values,
)
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps, UnsaturatedGates
from unsoftmax.learners.multi_head.window_sweeps import TokenHeads, WindowAnswers, read_base
from unsoftmax.measure.windows import OffsetRoom, WindowedHeads, choose_windows, with_shift
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array, Indices, Sequences
from unsoftmax.solve.skeleton import rank_by_gap

# -- The knobs of the recovery of several heads that something sets.


@dataclass(frozen=True, slots=True)
class MultiHeadTuning:
    """Knobs of `MultiHeadLearner`; all others are constants of the modules that use them."""

    line: int = reduced_answers.LINE
    pairs: int = reduced_answers.PAIRS
    slower: float = in_plane.STEEPER
    """The first head's slope is found by so much a reading once one overshot."""
    move: float = rough_heads.MOVE
    value_over_jump: float = rough_heads.VALUE_OVER_JUMP
    columns: ColumnTableTuning = field(default=ColumnTableTuning())
    confirm: int = 6
    """Fresh sequences that a model must predict before it is believed, the hold-out apart."""
    alike: bool = False
    """Whether these have one token many times but for the last."""

    def with_positions(self, biases: bool = False) -> MultiHeadTuning:
        """Return the knobs of a search among heads with positions (`heads_distances`)."""
        return replace(
            self,
            # [g a; b/g] loses nothing beside b, and the search has digits to spare: fewer tokens
            # tell the answers' precision and the size of the values
            line=3,
            pairs=2,
            slower=8.0,
            # shorter steps out of the plane: fewer logits are too large and asked again. What it
            # costs in digits offsets further out make up for: they may be as long as they like
            move=0.3,
            value_over_jump=1e4,
            # W(2), which has to have the same range, and fresh sequences show what more rows would
            # (with biases the shift is a row more already)
            columns=replace(self.columns, checked=0, extra=1 if biases else 2),
            # one answer at each size of logits before W(2) is asked for
            confirm=3,
            alike=True,
        )


# -- What two tokens leave open: signs, heads W beside −W, heads W = 0. H + 1 queries.
#
# Three copies of a+b and one b shift every logit by ℓ = ln 3. With v_h = α_h − β_h for heads
# (W_h, α_h), (−W_h, β_h), m_h = α_h + β_h, and v₀ the value of a head W = 0,
#
#     F − c − b·s = Σ_h [v_h·a (σ(s_h+ℓ) − σ(−s_h+ℓ))/2 + m_h·a ψ_h] + ¾ v₀·a,
#     ψ_h = (σ(s_h+ℓ) + σ(−s_h+ℓ))/2,   Σ m_h + v₀ = s.
#
# ψ_h is ½ where head h is saturated, so its own window gives m_h. One row of it tells m_h = ±v_h,
# the usual case of a single head; else all d rows are asked.
#
# What a cap on tokens may hide: heads whose logits are too small to be seen. Where no gate switches
# along a half circle, heads are taken for W = 0. Without a cap that leaves nothing out. Under one,
# logits may be small at the longest tokens: then v·a·a·(W b)/4 is left of each head, which is
# looked for there by eight queries, and what cannot be seen is bounded.


# Copies of a+b beside one b: the smallest number that shifts logits, by ln 3, and keeps all digits.
COPIES = 3

# m_h counts as ±v_h if it is so to this accuracy: a head beside its opposite is missed where the
# values of that one are smaller by this.
SIGN = 1e-8
# The same in units of what answers' precision leaves; the larger of the two counts.
NOISES = 30.0
# Random directions among which those farthest from all hyperplanes show a head W = 0.
CANDIDATES = 2000
# Logits up to this move answers by less than the search for jumps resolves.
UNSEEN = 1e-8
# Gates that leave more open than this share of the values hide a head W = 0.
TOO_OPEN = 1e-6
# Sweeps over heads that have their opposite beside them: each leaves e⁻¹⁴ of the error.
PAIR_SWEEPS = 4
# Pairs of tokens that are asked.
PAIRS = 8
# What is more than this many times the answers' error is seen.
UNSEEN_NOISES = 30.0
# a·(W b) is ‖W‖‖a‖‖b‖/d for random a and b; of eight, all are below a third of that once in 10⁶.
SMALL = 3.0


@dataclass(frozen=True, slots=True)
class OrientedHeads:
    """Heads as they are: which W each belongs to, its sign, and values."""

    index: list[int]
    sign: list[float]
    v: list[Array]
    constant: Array | None
    """The value of a head W = 0, if there is one."""
    v_error: float
    """Estimated error of the values (2-norm, the largest over heads)."""
    unswitched: float
    """Scores W b that the head W = 0 may have: nothing that was asked would have shown them."""

    def __len__(self) -> int:
        return len(self.index) + (self.constant is not None)

    def times_off(self, s: Array) -> float:
        """Return how many times more than estimated the values miss their sum s (d,), at least 1.

        s was read before all searches, the values in this one: answers that drift changed since,
        and are coarser than the first ones told.
        """
        values = self.v if self.constant is None else [*self.v, self.constant]
        expected = self.v_error * np.sqrt(len(values))
        if expected == 0:
            return 1.0
        return max(1.0, float(np.linalg.norm(np.sum(values, axis=0) - s) / expected))


def orient(token: TokenHeads, rng: np.random.Generator) -> Asking[OrientedHeads]:
    """Tell every head's sign, and the heads that two tokens cannot see."""
    v, error = token.seen.v, token.seen.error.v_error
    v0, v0_error = yield from _constant(token, rng)
    if v0 is not None:
        error = max(error, v0_error)
    f, paired = yield from _signs(token, v0)
    m = np.sign(f)[:, None] * v
    if len(paired):
        m, m_error = yield from _sums_of_pairs(token, paired, m, v0)
        error = max(error, m_error)
    index: list[int] = []
    sign: list[float] = []
    values: list[Array] = []
    for h in range(len(v)):
        if h in paired:
            found = list(_pair(m[h], v[h], error))
        else:
            found = [(float(np.sign(f[h])), np.sign(f[h]) * v[h])]
        index += [h] * len(found)
        sign += [turned for turned, _ in found]
        values += [value for _, value in found]
    unswitched = UNSEEN / token.reduced.lengths.far(token.length)
    return OrientedHeads(index, sign, values, v0, error, unswitched)


def _pair(m: Array, v: Array, error: float) -> list[tuple[float, Array]]:
    """Return signs and values of W and −W, from their sum and difference; leave out zeros."""
    both = ((1.0, (m + v) / 2), (-1.0, (m - v) / 2))
    least = max(SIGN * float(np.linalg.norm(v)), NOISES * error)
    return [(sign, value) for sign, value in both if float(np.linalg.norm(value)) > least]


def _signs(token: TokenHeads, v0: Array | None) -> Asking[tuple[Array, Indices]]:
    """Ask one row of every window; return f with m_h = f_h v_h, and the heads with |f| ≠ 1."""
    seen = token.seen
    H, d = seen.u.shape
    rows = [int(np.argmax(np.abs(seen.windows[h].a @ seen.v[h]))) for h in range(H)]
    a = np.array([seen.windows[h].a[i] for h, i in enumerate(rows)]).reshape(H, d)
    rest, psi = yield from _shifted(token, a, v0)
    f = np.asarray(np.linalg.solve((a @ seen.v.T) * psi, rest), dtype=np.float64)
    still = np.zeros(1)
    noise = np.array([seen.error.of_logits(a[[h]], seen.v, h, still)[0] for h in range(H)])
    own = np.abs(np.diag(psi)) if H else np.zeros(0)
    allowed = np.maximum(SIGN, NOISES * noise / own)
    return f, np.flatnonzero(np.abs(np.abs(f) - 1) > allowed)


def _ask(token: TokenHeads, a: Array) -> Asking[Array]:
    """Ask three copies of each a+b with one b; return F − c − b·s."""
    X = np.repeat((a + token.b)[:, None], COPIES + 1, axis=1)
    X[:, -1] = token.b
    [y] = yield [Sequences(X, phase="orientation", purpose="data")]
    return np.asarray(y - token.reduced.c - token.b @ token.reduced.s)


def _shifted(token: TokenHeads, a: Array, v0: Array | None) -> Asking[tuple[Array, Array]]:
    """Return Σ_h m_h·a (ψ_h − ½), one for each offset, and ψ_h − ½ (n, H)."""
    y = yield from _ask(token, a)
    s = a @ token.seen.u.T
    up, down = shifted_gate(s), shifted_gate(-s)
    rest = y - np.sum((a @ token.seen.v.T) * (up - down) / 2, axis=1) - a @ token.reduced.s / 2
    if v0 is not None:
        rest -= a @ v0 / 4
    return rest, (up + down - 1) / 2


def shifted_gate(s: Array) -> Array:
    """Return σ(s + ln 3)."""
    # beyond 709 float64's exp overflows
    return np.asarray(COPIES / (COPIES + np.exp(-np.clip(s, -700, 700))))


def _constant(token: TokenHeads, rng: np.random.Generator) -> Asking[tuple[Array | None, float]]:
    """Look for a head W = 0: far out, where all gates are steps, copies change it alone."""
    reduced, seen = token.reduced, token.seen
    d, far = reduced.dim, reduced.lengths.far(token.length)
    directions = rng.standard_normal((CANDIDATES, d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    directions = reduced.lengths.turned(directions, token.b)
    size = np.linalg.norm(seen.u, axis=1)
    clear = np.min(np.abs(directions @ seen.u.T) / size, axis=1, initial=np.inf)
    picked = directions[np.argsort(-clear)[: 2 * d]]
    first = yield from _quarter(token, picked[:1], far)
    noise = 8 * reduced.error(far, token.length) * reduced.scale
    noise += seen.error.v_error * np.sqrt(len(seen.v))
    noise += _open(token, picked[: d + 1], far)
    if abs(first[0]) <= max(SIGN * reduced.scale, NOISES * noise):
        return None, 0.0
    A = picked[1 : d + 1]
    v0 = np.asarray(np.linalg.solve(A, (yield from _quarter(token, A, far))), dtype=np.float64)
    return v0, float(noise * np.linalg.norm(np.linalg.inv(A)))


def _quarter(token: TokenHeads, directions: Array, far: float) -> Asking[Array]:
    """Return v₀·a at unit directions."""
    y = (yield from _ask(token, far * directions)) / far
    s = far * (directions @ token.seen.u.T)
    gates = shifted_gate(s) - shifted_gate(-s)
    steps = np.sum((directions @ token.seen.v.T) * gates, axis=1)
    return np.asarray(4 * (y - directions @ token.reduced.s / 2 - steps / 2))


def _open(token: TokenHeads, directions: Array, far: float) -> float:
    """Return what is added to v₀·a, at most, by gates that a cap leaves open."""
    s = far * (directions @ token.seen.u.T)
    psi = np.abs(shifted_gate(s) + shifted_gate(-s) - 1) / 2
    values = np.abs(directions @ token.seen.v.T)
    added = 4 * float(np.max(np.sum(values * psi, axis=1), initial=0.0))
    if added > TOO_OPEN * token.reduced.scale:
        raise UnsaturatedGates
    return added


def _sums_of_pairs(
    token: TokenHeads, paired: Indices, m: Array, v0: Array | None
) -> Asking[tuple[Array, float]]:
    """Read the whole m_h of heads that have their opposite beside them, and its error."""
    seen, d = token.seen, token.reduced.dim
    a = np.concatenate([seen.windows[h].a for h in paired])
    rest, psi = yield from _shifted(token, a, v0)
    m = m.copy()
    m[paired] = 0.0
    for _ in range(PAIR_SWEEPS):
        for n, h in enumerate(paired):
            rows = slice(n * d, (n + 1) * d)
            terms = (a[rows] @ m.T) * psi[rows]
            own = rest[rows] - terms.sum(axis=1) + terms[:, h]
            m[h] = np.linalg.solve(seen.windows[h].a, own / psi[rows, h])
    error = 0.0
    for n, h in enumerate(paired):
        window, here = seen.windows[h].a, psi[n * d : (n + 1) * d, h]
        # what moves a logit moves what is left of the answer by v_h·a/4 at most
        logits = seen.error.of_logits(window, seen.v, h, np.zeros(d))
        left = logits * np.abs(window @ seen.v[h]) / np.abs(here)
        error = max(error, float(np.linalg.norm(np.linalg.inv(window) * left)))
    return m, error


def bound_unseen_logits(
    model: MultiHead, reduced: ReducedAnswers, rng: np.random.Generator
) -> Asking[dict[str, float]]:
    """Look for logits that the model has not; return bounds on its errors.

    Raises
    ------
    UnsaturatedGates
        There are some.
    """
    d, lengths = model.dim, reduced.lengths
    length = lengths.length
    far = lengths.far(length)
    b, a = (rng.standard_normal((PAIRS, d)) for _ in range(2))
    total = model.v.sum(axis=0)
    if np.any(total):  # heads show in their values: half of a along them
        a = a / np.linalg.norm(a, axis=1, keepdims=True) + total / np.linalg.norm(total)
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    a, b = far * lengths.turned(a, b), length * b
    X = np.stack([a + b, b], axis=1)
    [y] = yield [Sequences(X, phase="hidden heads", purpose="pilot")]
    size = reduced.scale * (far + length) + abs(reduced.c)
    allowed = UNSEEN_NOISES * float(reduced.precision.error(size))
    if np.any(np.abs(y - model(X)) > allowed):
        raise UnsaturatedGates
    values = max(float(np.median(np.abs(a @ total))), allowed)
    logit = 4 * allowed / values
    error = SMALL * d * logit / far
    v = float(allowed / far * np.sqrt(d) + logit * reduced.scale)
    return {"W": error / length, "v": v, "w": error}


# Offsets in windows are about this long in units of 1/‖W b‖.
OFFSETS = 50.0
# A query token so many times longer than those offsets hides what heads add to answers: a shorter
# one is taken.
LONGEST_QUERY = 5.0
# Under a cap offsets in windows take the cap over this: the rest is room for other heads.
SHARE = 4.0
# Under a cap values at this share of T are asked as well: they are the same where gates are steps,
# and differ where one is open.
SOFT_SHARE = 0.8
# The two values count as the same up to so many times their error: logits are then 40 and more, and
# what is left of a step is too little to tell anything else.
STEP = 60.0
# Heads with an error larger than this, relative to them, cannot be corrected: the search failed.
HARDLY = 0.3


@dataclass(frozen=True, slots=True)
class SoughtHeads:
    """What is looked for, and how."""

    max_heads: int
    biases: bool
    rank: int | None
    tuning: MultiHeadTuning
    shifted: bool = False
    """Whether logits of [(a+b); b] are a·u_h + s_h, as of heads with positions and biases."""


def search(
    sought: SoughtHeads,
    reduced: ReducedAnswers,
    start: tuple[int, float],
    coarse: float,
    rng: np.random.Generator,
) -> Asking[RecoveredHeads]:
    """Go through all steps with one query token, drawn like all offsets by ``rng``.

    The half circle begins with ``start``: its intervals, and how much longer than usual baselines
    are. While jumps are searched for, answers are taken for no more precise than ``coarse``.

    Raises
    ------
    Exception
        One of `search_outcomes.ENDINGS`: nothing was found, another query token may do better.
    """
    if reduced.scale == 0:
        return no_heads(reduced)
    one = TokenSearch.random(sought, reduced, coarse, rng)
    windowed = yield from one.windowed(start)
    if windowed is None:
        return (yield from one.without_crossings())
    token, s, _ = windowed
    return (yield from one.heads_from(token, s, sought.tuning.columns))


@dataclass(frozen=True, slots=True)
class TokenSearch:
    """The steps of one search: ``heads_from`` and ``circle`` serve silent searches as well."""

    sought: SoughtHeads
    reduced: ReducedAnswers
    plane: SearchPlane
    coarse: float
    rng: np.random.Generator

    @classmethod
    def random(
        cls, sought: SoughtHeads, reduced: ReducedAnswers, coarse: float, rng: np.random.Generator
    ) -> TokenSearch:
        """Draw a query token and a plane."""
        plane = SearchPlane.random(reduced.dim, reduced.lengths.length, rng)
        return cls(sought, reduced, plane, coarse, rng)

    def windowed(
        self, start: tuple[int, float]
    ) -> Asking[tuple[TokenHeads, Array, HeadValues] | None]:
        """Find all heads, and read them at b in their windows; None where no gate switches.

        Returns also the logits measured there (H, d), and the values.
        """
        crossings = yield from self.crossings(*start)
        if not len(crossings.u):
            return None
        values, u = yield from self.values(crossings)
        token, s = yield from self.base(values, u, crossings.shift)
        return token, s, values

    @property
    def far(self) -> float:
        """Norm of the offsets of the half circle."""
        return self.reduced.lengths.far(self.reduced.lengths.length)

    @property
    def tolerance(self) -> float:
        """Error of a value of the half circle."""
        reduced, soft = self.reduced, self.reduced.lengths.soft
        T = self.far * SOFT_SHARE if soft else self.far
        return max(self.coarse, reduced.error(T, reduced.lengths.length))

    def crossings(self, start: int, longer: float) -> Asking[InPlane]:
        """Find all heads on half a circle of offsets, and measure them in its plane."""
        lengths, sought = self.reduced.lengths, self.sought
        circle = self.circle(self.tolerance, sought.max_heads)
        jumps = yield from find_jumps(circle, start, longer)
        if not len(jumps):
            return InPlane(jumps, np.zeros((0, 2)), *np.zeros((3, 0)))
        # at logits of a few, offsets are about as long as query tokens are short
        T = max(1 / lengths.length, lengths.near)
        eta = max(self.coarse, self.reduced.error(T, lengths.length))
        return (
            yield from measure_in_plane(
                jumps,
                circle,
                self._ask,
                eta,
                lengths,
                mirrored=sought.shifted,
                slower=sought.tuning.slower,
            )
        )

    def circle(self, error: float, most: int) -> JumpSearch:
        """Return what is asked on the half circle, values being off by ``error``."""
        return JumpSearch(self._values, error, most, self.reduced.lengths.baseline)

    def _ask(self, theta: Array, T: Array) -> Asking[Array]:
        """Ask offsets of norm T at angles θ; return the values g."""
        plane = self.plane
        y = yield from self.reduced.ask(plane.offsets(theta, T), plane.b, "zoom")
        return np.asarray(y / (T * self.reduced.scale))

    def _values(self, theta: Array) -> Asking[Array]:
        """Ask the half circle; NaN where a gate is open.

        Under a cap nearer offsets are asked as well: values are the same there where gates are
        steps.
        """
        soft = self.reduced.lengths.soft
        T = self.far * np.repeat([1.0, SOFT_SHARE] if soft else [1.0], len(theta))
        a = self.plane.offsets(np.resize(theta, len(T)), T)
        y = yield from self.reduced.ask(a, self.plane.b, "half circle")
        g = y / (T * self.reduced.scale)
        first, last = g[: len(theta)], g[-len(theta) :]
        return np.where(np.abs(first - last) <= STEP * self.tolerance, first, np.nan)

    def without_crossings(self) -> Asking[RecoveredHeads]:
        """Look for a head W = 0, where no gate switches."""
        reduced, sought, d = self.reduced, self.sought, self.reduced.dim
        none = np.zeros((0, d))
        error = reduced.errors_at(self.plane.length, 0.0)
        seen = WindowedHeads(none, none, [], error)
        token = TokenHeads(reduced, self.plane.b, seen)
        oriented = yield from orient(token, self.rng)
        found = assembled(token, no_columns(d), np.eye(d), oriented, sought.biases)
        if not reduced.lengths.capped:
            return found
        unseen = yield from bound_unseen_logits(found.model, reduced, self.rng)
        # a model without heads may have lost one, whose errors these are
        errors = {name: np.full(max(1, found.model.H), bound) for name, bound in unseen.items()}
        errors["v"] = np.maximum(errors["v"], found.largest["v"])
        return replace(found, errors=errors)

    def values(self, crossings: InPlane) -> Asking[tuple[HeadValues, Array]]:
        """Learn all v_h, and the u_h (H, d) to many digits."""
        reduced, plane, tuning = self.reduced, self.plane, self.sought.tuning
        if reduced.lengths.soft:
            v = yield from read_cells(reduced, plane, crossings)
        else:
            v = reduced.scale * crossings.jumps.plane_vectors() @ plane.plane
        out_of_plane = read_out_of_plane(
            reduced, plane, crossings, v, move=tuning.move, value_over_jump=tuning.value_over_jump
        )
        u, readings = yield from out_of_plane
        return (yield from read_values(reduced, crossings, (u, v, readings), self.rng))

    def base(
        self, values: HeadValues, u: Array, shift: Array | float = 0.0
    ) -> Asking[tuple[TokenHeads, Array]]:
        """Choose windows; read all u_h in them. Return the heads and the logits measured (H, d).

        Where logits are ``shift`` (H,) beside a·u_h both are read, with a row more.
        """
        lengths, length = self.reduced.lengths, self.reduced.lengths.length
        share = 1.0 if self.sought.biases else self._balanced(u) / length
        b, u, values = share * self.plane.b, share * u, values.at_share(share)
        error = self.reduced.errors_at(share * length, values.error, u)
        step = lengths.step(error.length)
        room = OffsetRoom(step, lengths.longest(error.length, step))
        windows = choose_windows((u, values.v), error, room, self.rng)
        windows = [replace(window, a=lengths.turned(window.a, b)) for window in windows]
        v = values.v
        if self.sought.shifted:
            u = np.column_stack([u, np.broadcast_to(shift, len(u))])
            # one t for all heads: what shifts the others at a token is known at that token alone
            t = min(window.t for window in windows)
            windows = [
                with_shift(replace(window, t=t), h, u[h], v, error)
                for h, window in enumerate(windows)
            ]
            v = np.column_stack([v, np.zeros(len(v))])
        seen = WindowedHeads(u, v, windows, error, self.sought.shifted)
        token = TokenHeads(self.reduced, b, seen)
        return (yield from read_base(token, values.equations if lengths.soft else None))

    def _balanced(self, u: Array) -> float:
        """Return the norm that b had better have, where u are its heads' vectors.

        Where windows' offsets are about as long as b, neither hides the other. Noise of a fixed
        size is small beside long offsets; under a cap b stays long enough to keep weak heads open.
        """
        lengths = self.reduced.lengths
        size = np.linalg.norm(u, axis=1) / lengths.length
        shorter = np.sqrt(OFFSETS / np.median(size))
        if lengths.capped:
            longest = lengths.radius / SHARE
            if self.reduced.precision.absolute > 0:
                shorter = min(shorter, OFFSETS / (np.median(size) * longest))
            shorter = max(shorter, OFFSETS / (np.min(size) * longest))
        return float(shorter) if shorter < lengths.length / LONGEST_QUERY else lengths.length

    def directions(self, token: TokenHeads) -> Array:
        """Return orthonormal directions (k, d) in which query tokens are moved from b."""
        d, towards = self.reduced.dim, token.b / np.linalg.norm(token.b)
        Q, _ = np.linalg.qr(np.column_stack([towards, self.rng.standard_normal((d, d - 1))]))
        Q[:, 0] = towards
        # b itself last: where w = 0 its column is u, which tells nothing of the rank
        return np.asarray(np.roll(Q, -1, axis=1).T if self.sought.biases else Q[:, 1:].T)

    def heads_from(
        self, token: TokenHeads, s: Array, tuning: ColumnTableTuning
    ) -> Asking[RecoveredHeads]:
        """Read all columns in the heads' windows, whose logits at b are s (H, d); and the signs."""
        rank, directions = self.sought.rank, self.directions(token)
        answers = WindowAnswers.none(token, directions)
        columns = yield from read_columns(answers, s, rank, self.rng, tuning)
        self.refuse_vague(token, columns)
        oriented = yield from orient(token, self.rng)
        found = assembled(token, columns, directions, oriented, self.sought.biases)
        if rank is None or np.all(columns.ranks <= rank):
            return found
        return found.with_note(
            f"W has rank {rank} but for a tail that answers show: columns were read in full."
        )

    def refuse_vague(self, token: TokenHeads, columns: HeadColumns) -> None:
        """Give up where a head is not known to a digit."""
        beside = np.linalg.norm(token.seen.u, axis=1) / token.seen.error.length
        size = np.linalg.norm(columns.W, axis=(1, 2)) + beside
        if np.any(columns.error > HARDLY * size):
            raise CoincidentJumps


# Smaller singular values of W_h, as shares of the largest, do not count to its rank: roundoff of
# its columns leaves such.
TAIL = 1e-9


def assembled(
    token: TokenHeads, columns: HeadColumns, directions: Array, found: OrientedHeads, biases: bool
) -> RecoveredHeads:
    """Put the heads together: W from its columns along ``directions`` (k, d), signs and values.

    With biases w_h = u_h − W_h b; without them u_h = W_h b is the column along b.
    """
    d, length, u = token.reduced.dim, token.length, token.seen.u
    W = columns.W @ directions
    w = np.zeros_like(u)
    if biases:
        w = u - W @ token.b
    else:
        W = W + u[:, :, None] * (token.b / length**2)
    sign = np.array(found.sign)
    W, w = sign[:, None, None] * W[found.index], sign[:, None] * w[found.index]
    v = np.array(found.v).reshape(len(found.index), d)
    W_error = columns.error[found.index]
    if found.constant is not None:
        W, w = np.concatenate([W, np.zeros((1, d, d))]), np.concatenate([w, np.zeros((1, d))])
        v = np.concatenate([v, found.constant[None]])
        W_error = np.append(W_error, found.unswitched / length)
    errors = {"W": W_error, "v": np.full(len(v), found.v_error), "w": W_error * length * biases}
    # the space of a head's columns holds u_h as well: with biases it has a dimension more than W_h
    low = [h for h, which in enumerate(found.index) if columns.ranks[which] < d]
    spectra = [np.linalg.svd(W[h], compute_uv=False) for h in low]
    ranks = sorted({rank_by_gap(*one, TAIL) for one in zip(spectra, W_error[low], strict=True)})
    model = MultiHead(W, v, w, token.reduced.c)
    notes, times_off = _notes(len(found), ranks, d), found.times_off(token.reduced.s)
    return RecoveredHeads(model, errors, length, bool(ranks), notes, times_off)


def _notes(heads: int, low_ranks: list[int], d: int) -> tuple[str, ...]:
    low = f" Ranks below {d}: {', '.join(map(str, low_ranks))}." if low_ranks else ""
    count = "1 head" if heads == 1 else f"{heads} heads"
    return (
        f"{count}; those of equal W and w are one, whose v is the sum of theirs "
        f"(Proposition 7.1).{low}",
    )
