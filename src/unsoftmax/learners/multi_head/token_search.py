"""One search for all heads with one query token, from half a circle of offsets to a model.

1. Half a circle of huge offsets crosses every hyperplane a·u_h = 0 once (`arrangement.jumps`).
2. Near each crossing one head alone is open: u_h in the plane, then out of it, then all v_h from
   one linear system.
3. Offsets at which head h is open and the others are saturated give u_h to full precision and all
   columns of W_h in one round.
4. Three copies of a token tell W_h from −W_h.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.arrangement.jumps import JumpSearch, find_jumps
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.columns import (
    ColumnTableTuning,
    HeadColumns,
    no_columns,
    read_columns,
)
from unsoftmax.learners.multi_head.heads_conclusion import RecoveredHeads, no_heads
from unsoftmax.learners.multi_head.in_plane import InPlane, measure_in_plane
from unsoftmax.learners.multi_head.multi_head_tuning import MultiHeadTuning
from unsoftmax.learners.multi_head.orientation import OrientedHeads, bound_unseen_logits, orient
from unsoftmax.learners.multi_head.out_of_plane import SearchPlane, read_cells, read_out_of_plane
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head.value_system import HeadValues, read_values
from unsoftmax.learners.multi_head.window_sweeps import TokenHeads, WindowAnswers, read_base
from unsoftmax.measure.windows import OffsetRoom, WindowedHeads, choose_windows, with_shift
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array

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
    ranks = sorted({int(rank) for rank in columns.ranks if rank < d})
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
