"""One search for all heads with offsets at which other heads are silent, for coarse answers.

Rounding inside a float32 service loses what a short offset adds beside a long one, and windows
that saturate many heads are long (`token_search`). What does not depend on short offsets stays:
on which side of its hyperplane a head is.

1. The crossings of half a circle of far offsets, as in `token_search`, and the gradients of the
   cells between: all v_h.
2. Offsets at which all heads but one are silent, their values being 0, tell all u_h, and far ones
   all v_h again, to the answers' precision.
3. A few answers at moderate logits check both. Two heads that the half circle showed as one are
   noticed here.
4. Windows of such offsets give the columns, as in `token_search`.

Fewer heads than dimensions, and independent v_h, as layers have. About 5·H·d queries before the
columns, and half as many more of these than a rank has: coarse answers tell the weakest direction
of a column space badly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.arrangement.jumps import Jumps, find_jumps
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.heads_conclusion import RecoveredHeads
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.rough_heads import SearchPlane
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps, Restarts
from unsoftmax.learners.multi_head.token_search import SoughtHeads, TokenSearch
from unsoftmax.learners.multi_head.window_sweeps import TokenHeads, read_base
from unsoftmax.measure.windows import ReducedError, Window, WindowedHeads, predicted
from unsoftmax.probes import Array, Pairs

# Tokens between 2⁻²⁰ and 2²⁰ are looked at for logits,
SCALE_OCTAVES = 20
# in so many directions.
PILOTS = 8
# Logits are about 1 where answers have this share of what they have far out.
OPENED = 0.36
# Answers below so many times their error show nothing.
SHOWS = 100.0
# Query tokens are so many times longer than tokens and offsets of one length are there: W b then
# counts more than w, and is not lost beside offsets. (1, 2 and 4 times as long were worse by up
# to twice.)
LONGER = 1.7
# Under a cap they take this part of it.
SHARE = 8.0
# Query tokens that are tried: two of the heads may be too close on one half circle. Intervals that
# a half circle begins with, and how much longer than usual baselines are: short ones read pieces
# too coarsely.
SILENT_STARTS = Restarts(starts=((64, 100.0),) * 6, most_unlucky=0, refuse_many=False)
# Values of the half circle are taken to be off by so many times their error: scores of many terms
# are rounded more often than answers to single tokens.
CIRCLE_NOISES = 3.0
# Jumps beyond the heads that are allowed: pieces that are none are left out later.
SLACK = 16
# Dimensions across all values that silent offsets need.
LEAST_REST = 1
# Answers that check all u_h and v_h before the columns are asked.
CHECKS = 24
# Length of their offsets, in units of 1/‖u_h‖, h in turn: logits of about 1 in 400 dimensions, of
# 7 in 8.
CHECK_LOGIT = 20.0
# They are missed by this share at most; two heads taken for one miss them by a tenth.
CHECK_AGREES = 0.02
# Columns that a column space is made of, per rank.
AMPLE = 1.5
# Larger logits are asked again, nearer: there an answer's error counts forty times.
WIDEST = 5.0
# Jumps closer than this angle count as one: a piece that is none is narrower, and of twelve heads
# two are so close on one half circle of two hundred.
TOGETHER = 1e-4
# A jump below so many times the error of a value is none: pieces that are none left up to 400,
# jumps of trained heads 25,000 and more.
NO_JUMP = 1e3
# Slopes are read this share of a cell's half width from its middle,
INSIDE = 0.3
# so many times nearer where a hyperplane is between,
CELL_NEARER_BY = 3.0
# so often at most.
CELL_TIMES = 5
# Values on both sides agree up to so many times their error.
CELL_AGREES = 200.0
# Parts of offsets between 2⁻¹² and 2¹² are tried, in units of the query token: heads of sizes
# within a thousand of each other.
OCTAVES = 12
GROWING: Array = np.exp2(np.arange(-OCTAVES, OCTAVES + 1.0))
# Directions z in which they are.
DIRECTIONS = 6
# α‖e_h‖ at most, in these units: longer gains nothing.
LONGEST_OWN = 4.0
# Gates that the part along e_h alone may make: others are to be added.
OWN = 0.5
# Gates at trial directions: at others they are rarely twice as open.
ALL = 0.7
# α‖e_h‖ in windows, in units of the part z: longer shows a logit better beside what the query token
# adds, up to where it moves too far with the query token (1, 2 and 3 were measured).
AHEAD = 2.0
# Size of head h's logits in windows.
LOGIT = 1.0
# They move by about this much with the query token: gates stay open.
MOVED = 1.0
# Larger logits are read again, nearer.
USABLE = 3.0
NEARER_BY = 4.0
# They are then so many times nearer, so often at most.
TIMES = 5
# δ‖e_k‖, as a share of the part z, also in windows.
BESIDE = 0.5
# Logit of a head that answers as well: what e⁻¹⁶ leaves of it is subtracted in windows, and longer
# offsets would move logits too far,
SATURATED = 16.0
# and so much more per ‖u_k‖/‖u_h‖: what α e_h gives head k is not known yet.
UNKNOWN = 4.0
# Far offsets go this share of the way to the nearest hyperplane.
ROOM = 0.5


def silent_queries(heads: int, dim: int, columns: int) -> int:
    """Return how many queries are asked at most, ``columns`` being those of all columns."""
    per_head = 2 * CELL_TIMES * dim + (2 * OCTAVES + 1) * (DIRECTIONS + 1)
    per_head += (TIMES + 2) * (dim + 1) + heads
    pilots = (4 * SCALE_OCTAVES + 1) * PILOTS + CHECKS
    starts = SILENT_STARTS.starts
    circle = 40 * (heads + SLACK + starts[0][0])
    return len(starts) * (pilots + circle + (heads + 1) * per_head) + int(3 * AMPLE * columns)


def silently(
    sought: SoughtHeads, reduced: ReducedAnswers, rng: np.random.Generator
) -> Asking[RecoveredHeads]:
    """Go through all steps with one query token, drawn like all offsets by ``rng``.

    Raises
    ------
    Exception
        One of `search_outcomes.ENDINGS`: nothing was found, another query token may do better.
    """
    length = yield from _query_length(reduced, rng)
    reduced = replace(reduced, lengths=replace(reduced.lengths, length=length))
    one = TokenSearch.random(sought, reduced, 0.0, rng)
    token, s = yield from read_base((yield from _token_heads(one)))
    columns = replace(sought.tuning.columns, ample=AMPLE, widest=WIDEST)
    return (yield from one.heads_from(token, s, columns))


def _query_length(reduced: ReducedAnswers, rng: np.random.Generator) -> Asking[float]:
    """Choose the norm of query tokens: longer than offsets of the same length need for logits."""
    room = reduced.lengths.room / SHARE
    sizes = 2.0 ** np.arange(-SCALE_OCTAVES, SCALE_OCTAVES + 0.5, 0.5)
    sizes = sizes[sizes <= room] if np.any(sizes <= room) else np.array([room])
    x = rng.standard_normal((2, PILOTS, reduced.dim))
    a, b = x / np.linalg.norm(x, axis=2, keepdims=True)
    n = np.tile(np.arange(PILOTS), len(sizes))
    scales = np.repeat(sizes, PILOTS)
    [y] = yield [Pairs(a, b, n, n, scales, scales, phase="scale", purpose="pilot")]
    reduced_y = reduced.of(y, scales[:, None] * a[n], scales[:, None] * b[n])
    level = np.linalg.norm((reduced_y / scales).reshape(len(sizes), -1), axis=1)
    noise = np.array([reduced.error(size, size) for size in sizes.tolist()]) * reduced.scale
    level[level < SHOWS * noise] = 0.0  # the constant hides what tiny tokens show
    first = int(np.argmax(level >= OPENED * np.max(level)))
    return float(min(LONGER * sizes[first], room))


def _token_heads(one: TokenSearch) -> Asking[TokenHeads]:
    """Learn all u_h and v_h of one query token; choose windows."""
    sought, reduced, plane, rng = one.sought, one.reduced, one.plane, one.rng
    far = reduced.lengths.far(plane.length)
    error = reduced.error(far, plane.length)
    # room for pieces that are none: they are left out
    circle = one.circle(CIRCLE_NOISES * error, sought.max_heads + SLACK)
    jumps = yield from find_jumps(circle, *SILENT_STARTS.starts[0])
    cells = CircleCells.between(jumps, error)
    if not 0 < len(cells) <= min(sought.max_heads, reduced.dim - LEAST_REST):
        raise CoincidentJumps
    v = yield from read_cell_values(reduced, plane, cells)
    readings = SilentReadings(reduced, plane.b)
    u, v, v_error = yield from readings.read(v, rng)
    yield from _refuse_merged(one, u, v)
    errors = reduced.errors_at(plane.length, v_error, u)
    step = reduced.lengths.step(plane.length)
    windows = silent_windows(u, SilentFrame.of(v, rng), errors, step)
    seen = WindowedHeads(u, v, windows, errors)
    return TokenHeads(reduced, plane.b, seen)


def _refuse_merged(one: TokenSearch, u: Array, v: Array) -> Asking[None]:
    """Give up where a few answers at moderate logits are not what these heads give."""
    d = one.reduced.dim
    a = one.rng.standard_normal((CHECKS, d))
    sizes = np.resize(np.linalg.norm(u, axis=1), CHECKS)
    a *= (CHECK_LOGIT / sizes)[:, None]
    y = yield from one.reduced.ask(a, one.plane.b, "silent check", "check")
    missed, size = np.linalg.norm(y - predicted(v, u, a)), np.linalg.norm(y)
    if not missed <= CHECK_AGREES * size:
        raise CoincidentJumps


# -- values from cells: 2·H·d queries, whatever the u_h are
#
# Far out a cell's answers are linear, f(a) = a·G with G = Σ_g sign(a·u_g) v_g: from one cell to the
# next G grows by 2v_h. A slope is read in both directions from a cell's middle, and nearer to it
# where the two do not agree: a hyperplane is between. Rounding moves no gate that is far from 0, so
# coarse arithmetic does not matter here. Where values are coarse a piece of the half circle may
# have been read across a jump: it is none, and shows as two jumps next to each other that cancel.


@dataclass(frozen=True, slots=True)
class CircleCells:
    """The cells of half a circle between crossings: their middles and half widths (H,)."""

    middle: Array
    half: Array

    def __len__(self) -> int:
        return len(self.middle)

    @classmethod
    def between(cls, jumps: Jumps, error: float) -> CircleCells:
        """Return the cells between jumps that are some, values being off by ``error``."""
        low, high = _crossings(jumps, error)
        end = np.append(low[1:], low[:1] + np.pi)
        return cls((high + end) / 2, (end - high) / 2)


def _crossings(jumps: Jumps, error: float) -> tuple[Array, Array]:
    """Return the ends of the intervals that hold a jump, close ones joined."""
    n = len(jumps)
    if not n:
        return jumps.low, jumps.high
    gap = np.append(jumps.low[1:], jumps.low[0] + np.pi) - jumps.high
    last = np.flatnonzero(gap >= TOGETHER)
    if not len(last):
        raise CoincidentJumps
    first = (np.roll(last, 1) + 1) % n
    # a group that goes on beyond π begins there, one half circle earlier
    turned = np.pi * (first > last)
    low, high = jumps.low[first] - turned, jumps.high[last]
    angle = np.repeat([[0.0], [np.pi / 2]], len(last), axis=1) + (low + high) / 2
    t = np.zeros((2, n))
    t[:, first] = angle + turned
    before = np.array([jumps.before(row)[first] for row in t])
    t[:, last] = angle
    after = np.array([jumps.after(row)[last] for row in t])
    some = np.linalg.norm(after - before, axis=0) > NO_JUMP * error
    return low[some], high[some]


def read_cell_values(
    reduced: ReducedAnswers, plane: SearchPlane, cells: CircleCells
) -> Asking[Array]:
    """Read the gradients of all cells; return the v_h (H, d), up to their signs."""
    H, far = len(cells), reduced.lengths.far(plane.length)
    centre = plane.offsets(cells.middle, np.ones(H))
    along = plane.offsets(cells.middle + np.pi / 2, np.ones(H))[:, None]
    frame = np.concatenate([along, np.repeat(plane.Z[None], H, axis=0)], axis=1)
    value = (yield from reduced.ask(far * centre, plane.b, "cells")) / far
    allowed = CELL_AGREES * reduced.error(far, plane.length) * reduced.scale
    step = np.repeat(INSIDE * np.minimum(1.0, cells.half)[:, None], frame.shape[1], axis=1)
    slope, left = np.zeros(step.shape), np.ones(step.shape, dtype=bool)
    for _ in range(CELL_TIMES):
        k, i = np.nonzero(left)
        if not len(k):
            break
        move = step[k, i, None] * frame[k, i]
        a = far * np.concatenate([centre[k] + move, centre[k] - move])
        y = (yield from reduced.ask(a, plane.b, "cells")) / far
        up, down = y.reshape(2, -1) - value[k]
        slope[k, i] = (up - down) / (2 * step[k, i])
        left[k, i] = np.abs(up + down) > allowed
        step[left] /= CELL_NEARER_BY
    if np.any(left):
        raise CoincidentJumps
    gradient = np.einsum("hm,hmd->hd", slope, frame) + value[:, None] * centre
    # one half circle earlier the gradient was the opposite
    previous = np.concatenate([-gradient[-1:], gradient[:-1]])
    return np.asarray((gradient - previous) / 2)


# -- silent offsets: one head answers, and the values of all others are 0
#
# A reduced answer at offset a is Σ_g (v_g·a) tanh(a·u_g / 2). With the dual vectors e_h of the
# values, v_g·e_h = 1 for g = h and 0 else, and z ⟂ all v_g,
#
#     a = α e_h + z:   (v_h·a) tanh(a·u_h / 2) = α tanh((α e_h + z)·u_h / 2),
#
# whatever the other gates are: none has to be saturated, so offsets stay short, and where
# arithmetic is coarse a logit loses little beside them. What these offsets do not span is a part of
# u_h along the other values: at a = α e_h + δ e_k + z head k answers as well, and z saturates it.


@dataclass(frozen=True, slots=True)
class SilentFrame:
    """The dual vectors e_h of the values, (H, d), and an orthonormal basis Z of what is across."""

    v: Array
    duals: Array
    Z: Array

    @classmethod
    def of(cls, v: Array, rng: np.random.Generator) -> SilentFrame:
        """Return the frame of values v (H, d), the basis turned at random."""
        H, d = v.shape
        Q, _ = np.linalg.qr(v.T, mode="complete")
        turned, _ = np.linalg.qr(rng.standard_normal((d - H, d - H)))
        duals = np.asarray(np.linalg.pinv(v).T, dtype=np.float64)
        return cls(v, duals, np.asarray(turned @ Q[:, H:].T))

    @property
    def length(self) -> Array:
        """‖e_h‖ (H,)."""
        return np.asarray(np.linalg.norm(self.duals, axis=1))

    def beside(self, u: Array, heads: tuple[int, int], logits: tuple[float, float]) -> Array:
        """Return the shortest z at which two heads of u (H, d) have these logits."""
        across = u[list(heads)] @ self.Z.T
        return np.asarray(np.linalg.lstsq(across, np.array(logits), rcond=None)[0] @ self.Z)


def silent_windows(u: Array, frame: SilentFrame, error: ReducedError, step: float) -> list[Window]:
    """Choose d silent offsets for each head, u (H, d); query tokens may move by ``step``."""
    share = MOVED / (LOGIT * np.hypot(1.0, AHEAD))
    t = min(step, share * error.length)
    return [_window(u, h, frame, error, t) for h in range(len(u))]


def _window(u: Array, h: int, frame: SilentFrame, error: ReducedError, t: float) -> Window:
    across, own = frame.Z @ u[h], frame.duals[h]
    # turned within the silent offsets so that its logit is 0, however long it is
    level = own - (own @ u[h]) / (across @ across) * (across @ frame.Z)
    size = LOGIT * np.sqrt(len(across)) / float(np.linalg.norm(across))
    level = AHEAD * size / np.linalg.norm(level) * level
    rows = [level + size * _balanced(across) @ frame.Z, level[None]]
    for k in range(len(u)):
        if k != h:
            other = BESIDE * size / np.linalg.norm(frame.duals[k]) * frame.duals[k]
            start = level + other
            logits = -float(other @ u[h]), SATURATED - float(start @ u[k])
            rows.append((start + frame.beside(u, (h, k), logits))[None])
    a = np.concatenate(rows)
    off = np.linalg.norm(np.linalg.inv(a) * error.of_logits(a, frame.v, h, a @ u[h]))
    return Window(a, t, float(off) / t)


def _balanced(x: Array) -> Array:
    """Return an orthogonal matrix whose rows have products with x of one size, signs in turn."""
    n = len(x)
    target = np.where(np.arange(n) % 2, -1.0, 1.0) * np.linalg.norm(x) / np.sqrt(n)
    normal = x - target
    size = normal @ normal
    reflected = np.outer(normal, normal) * (2 / size if size else 0.0)
    return np.asarray(np.eye(n) - reflected)


# -- readings at silent offsets
#
# 1. α e_h + z with z ⟂ all v_g: head h alone answers, whatever the others' gates are
#    (see above). At H·(d − H + 1) such offsets u_h is read across the other values.
# 2. α e_h + δ e_k + z: head k answers as well, z saturates it. These H(H − 1) tell the rest of u_h.
# 3. With every u_h to a few digits, offsets are chosen at which all gates are on given sides, with
#    room around: Σ_g ±v_g from d + 1 far answers, and with the side of one head changed its v_h. In
#    all (H + 1)(d + 1) answers, and every v_h to the answers' precision.


@dataclass(frozen=True, slots=True)
class SilentReadings:
    """What silent offsets of one query token b are answered."""

    reduced: ReducedAnswers
    b: Array

    def read(self, v: Array, rng: np.random.Generator) -> Asking[tuple[Array, Array, float]]:
        """Return all u_h and v_h (H, d), and the error of these, from v_h of a few digits."""
        frame = SilentFrame.of(v, rng)
        own = yield from self._own(frame)
        across = yield from self._across(frame, own, rng)
        u = yield from self._each(frame, own, across)
        v, v_error = yield from self._sided_values(u, frame.Z, rng)
        u = yield from self._rest(u, SilentFrame.of(v, rng), across)
        return u, v, v_error

    @property
    def length(self) -> float:
        """‖b‖."""
        return float(np.linalg.norm(self.b))

    def _gates(self, a: Array, alpha: Array) -> Asking[Array]:
        """Ask silent offsets a (…, d) at which v_h·a = alpha; return tanh(a·u_h/2)."""
        flat = a.reshape(-1, a.shape[-1])
        y = yield from self.reduced.ask(flat, self.b, "silent")
        return np.asarray(y.reshape(a.shape[:-1]) / alpha)

    def _own(self, frame: SilentFrame) -> Asking[Array]:
        """Choose α (H,): the longest part along e_h that leaves the gate open."""
        sizes, longest = self.length * GROWING, LONGEST_OWN * self.length
        alpha = sizes[None] / frame.length[:, None]
        gates = yield from self._gates(alpha[:, :, None] * frame.duals[:, None], alpha)
        return np.minimum(_longest(sizes, gates, OWN), longest) / frame.length

    def _across(self, frame: SilentFrame, own: Array, rng: np.random.Generator) -> Asking[Array]:
        """Choose the length of the parts z (H,), in the same way."""
        sizes, Z = self.length * GROWING, frame.Z
        z = rng.standard_normal((DIRECTIONS, len(Z))) @ Z
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        a = (own[:, None] * frame.duals)[:, None, None] + sizes[:, None, None] * z
        gates = yield from self._gates(a, own[:, None, None])
        return _longest(sizes, np.max(np.abs(gates), axis=2), ALL)

    def _each(self, frame: SilentFrame, own: Array, across: Array) -> Asking[Array]:
        """Read every u_h along its e_h and all of Z."""
        Z, duals = frame.Z, frame.duals
        base = own[:, None] * duals
        at_base = _logits((yield from self._gates(base, own)))
        step = np.repeat(across[:, None], len(Z), axis=1)
        s, left = np.zeros(step.shape), np.ones(step.shape, dtype=bool)
        for _ in range(TIMES):
            h, i = np.nonzero(left)
            if not len(h):
                break
            a = base[h] + step[h, i, None] * Z[i]
            s[h, i] = _logits((yield from self._gates(a, own[h])))
            left = ~(np.abs(s) < USABLE)
            step[left] /= NEARER_BY
        if np.any(left) or not np.all(np.isfinite(at_base)):
            raise CoincidentJumps
        along = (at_base / own / frame.length**2)[:, None] * duals
        return np.asarray(((s - at_base[:, None]) / step) @ Z + along)

    def _sided_values(
        self, u: Array, Z: Array, rng: np.random.Generator
    ) -> Asking[tuple[Array, float]]:
        """Read all v_h far out, all gates being on sides that u tells; return their error as well.

        The middle of these offsets is in the span of Z, where every u_h is known.
        """
        (H, d), size = u.shape, np.linalg.norm(u, axis=1, keepdims=True)
        sides = np.ones((H + 1, H))
        sides[1 + np.arange(H), np.arange(H)] = -1.0
        middle = sides @ np.linalg.pinv(u / size @ Z.T).T @ Z
        turned, _ = np.linalg.qr(rng.standard_normal((d, d)))
        near = float(np.max(np.abs(turned @ (u / size).T)))
        a = middle[:, None] + ROOM / near * np.concatenate([np.zeros((1, d)), turned])
        a /= float(np.max(np.linalg.norm(a, axis=2)))  # far is how long offsets may be
        far = self.reduced.lengths.far(self.length)
        y = yield from self.reduced.ask(far * a.reshape(-1, d), self.b, "values")
        y = y.reshape(H + 1, d + 1) / far
        move = a[0, 1:] - a[0, 0]
        slope = np.linalg.solve(move, (y[:, 1:] - y[:, :1]).T).T
        error = self.reduced.error(far, self.length) * self.reduced.scale
        v_error = float(np.sqrt(d) * error / np.linalg.norm(move[0]))
        return np.asarray((slope[0] - slope[1:]) / 2), v_error

    def _rest(self, u: Array, frame: SilentFrame, across: Array) -> Asking[Array]:
        """Add the parts of every u_h along the other values."""
        v, duals, H = frame.v, frame.duals, len(u)
        h, k = np.nonzero(~np.eye(H, dtype=bool))
        if not len(h):
            return u
        first = (across / frame.length)[h, None] * duals[h]
        beside = BESIDE * across[h] / frame.length[k]
        level, size = -np.sum(first * u[h], axis=1), np.linalg.norm(u, axis=1)
        shut = SATURATED + UNKNOWN * size[k] / size[h]
        pairs = zip(h.tolist(), k.tolist(), level.tolist(), shut.tolist(), strict=True)
        z = np.array([frame.beside(u, (g, other), (s, most)) for g, other, s, most in pairs])
        a = first + beside[:, None] * duals[k] + z
        y = yield from self.reduced.ask(a, self.b, "silent")
        s = _logits((y - np.sum(a * v[k], axis=1)) / np.sum(a * v[h], axis=1))
        if not np.all(np.isfinite(s)):
            raise CoincidentJumps
        missing = np.zeros((H, H))
        missing[h, k] = (s - np.sum(a * u[h], axis=1)) / beside
        return np.asarray(u + missing @ v)


def _logits(gates: Array) -> Array:
    """Return the s of tanh(s/2), NaN or infinite past ±1."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(2 * np.arctanh(gates))


def _longest(sizes: Array, gates: Array, most: float) -> Array:
    """Return, for each row of gates (H, n), the last of n growing sizes before one is wider."""
    wide = np.abs(gates) > most
    first = np.where(wide.any(axis=1), np.argmax(wide, axis=1), len(sizes))
    return np.asarray(sizes[np.maximum(first - 1, 0)])
