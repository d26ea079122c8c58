"""All v_h of one query token from one linear system: H·d queries, and two to check.

At huge offsets every gate is a step whose side is known from the rough u_h:
Σ_h sign(a·u_h) v_h·a is linear in all v_h. Offsets are chosen so that the system is well
conditioned and no hyperplane is near. With the v_h known, the readings out of the plane give the
u_h to many more digits; where these change a side, it is solved again.

Under a cap gates that stay open are no signs but tanh(a·u_h/2), known from the u_h.

The matrix of the system has rows g_n ⊗ a_n of gates and offsets, n of them for H·d unknowns. It is
formed where that is small and applied factor by factor otherwise, for LSQR.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy
from scipy.sparse.linalg import LinearOperator, lsqr

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.in_plane import InPlane
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps, UnsaturatedGates
from unsoftmax.probes import Array

# -- All u_h of one query token roughly, outside the plane of the half circle: H·(d − 2) queries.
#
# At offsets T·(cos θ_k p + sin θ_k q) + τ z only head k is open, and the component u_k·z is read
# from its gate; what the unknown v_h·z add is small beside T. The readings are kept: with the v_h
# known they give the u_h to many more digits.
#
# Under a cap T is too short for unknown v_h·z to be small beside it: the v_h are read before, from
# the gradients of the half circle's cells.


# Logit that the step τ z makes, were u_h as long out of the plane along z as in it.
MOVE = 0.8
# Larger logits are read again nearer to the hyperplane: their gates have too few digits.
USABLE = 2.5
# They are then so many times nearer.
NEARER_BY = 4.0
# Readings of a direction at most: a head without a usable one 4⁷ times nearer is refused.
REPEATS = 8
# T·K at least: the logit of other heads is that much larger.
FAR = 1e5
# In-plane values are so many times larger than the unknown v_h·z: the logit is off by 1/3000,
# enough to know on which side of an offset a hyperplane is.
VALUE_OVER_JUMP = 3e3
# Further out than angles were read to, noise may move the logit by at most this.
OFF = 0.3
# A cell's gradient is read this share of its half width from its middle: no gate is open.
INSIDE = 0.3


@dataclass(frozen=True, slots=True)
class SearchPlane:
    """One query token b, and the plane that is searched: orthonormal p, q and the rest Z."""

    b: Array
    plane: Array
    Z: Array

    @classmethod
    def random(cls, dim: int, length: float, rng: np.random.Generator) -> SearchPlane:
        """Draw b of the given norm and a random plane."""
        b = rng.standard_normal(dim)
        Q, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
        return cls(length * b / np.linalg.norm(b), Q[:, :2].T, Q[:, 2:].T)

    @property
    def length(self) -> float:
        """‖b‖."""
        return float(np.linalg.norm(self.b))

    def offsets(self, theta: Array, T: Array) -> Array:
        """Return T·(cos θ p + sin θ q)."""
        return np.asarray((T * np.stack([np.cos(theta), np.sin(theta)])).T @ self.plane)


@dataclass(frozen=True, slots=True)
class OutOfPlaneReadings:
    """One reading of every head and direction: offsets (H, m, d) and reduced answers (H, m)."""

    plane: SearchPlane
    a: Array
    y: Array
    in_plane: Array
    """u_h in the plane, as vectors (H, d)."""
    shift: Array
    """What logits are beside a·u_h (H,)."""
    tau: Array

    def outside(self, own: Array, others: Array) -> Array:
        """Return u_h·z (H, m), given each head's v·a and what all others add, both (H, m).

        NaN where a gate is past ±1.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            s = 2 * np.arctanh((self.y - others) / own)
        s[np.isinf(s)] = np.nan
        along = np.einsum("hmd,hd->hm", self.a, self.in_plane) + self.shift[:, None]
        return np.asarray((s - along) / self.tau)

    def vectors(self, outside: Array) -> Array:
        """Return u (H, d) with these components out of the plane."""
        return np.asarray(self.in_plane + outside @ self.plane.Z)

    def read_again(self, v: Array, u: Array) -> Array:
        """Return better u (H, d) from the same answers, now that the v_h are known."""
        H, m, d = self.a.shape
        if not m:
            return u
        a = self.a.reshape(H * m, d)
        values = (a @ v.T).reshape(H, m, H)
        terms = values * np.tanh((a @ u.T).reshape(H, m, H) / 2)
        own = np.arange(H)
        others = terms.sum(axis=2) - terms[own, :, own]
        outside = self.outside(values[own, :, own], others)
        # a gate past ±1 leaves its direction as it was: the others may show what its v hides
        return self.vectors(np.where(np.isfinite(outside), outside, u @ self.plane.Z.T))


def read_cells(reduced: ReducedAnswers, plane: SearchPlane, heads: InPlane) -> Asking[Array]:
    """Read all v_h (H, d) from one gradient in the middle of each cell of the half circle.

    Far out a cell's answers are linear in a; from one cell to the next Σ_g sign(a·u_g) v_g grows
    by 2v_h. Narrow cells give few digits: the values are read again once the u_h are known.
    """
    H, m = len(heads.u), len(plane.Z)
    far = reduced.lengths.far(plane.length)
    jumps = heads.jumps
    low, high = jumps.high, np.append(jumps.low[1:], jumps.low[0] + np.pi)
    middle = (low + high) / 2
    tau = INSIDE * far * np.minimum(1.0, (high - low) / 2)
    # after() turns the last piece's sign: beyond π it is the first one again
    centre = np.asarray(jumps.after(middle))
    if np.any(tau <= 0):  # no cell between two jumps
        raise UnsaturatedGates
    a = plane.offsets(middle, np.sqrt(far**2 - tau**2))[:, None] + tau[:, None, None] * plane.Z
    y = yield from reduced.ask(a.reshape(H * m, reduced.dim), plane.b, "cells")
    rest = np.sqrt(far**2 - tau**2) * centre * reduced.scale
    slope = (y.reshape(H, m) - rest[:, None]) / tau[:, None]
    previous = np.concatenate([-slope[-1:], slope[:-1]])
    v = (slope - previous) / 2
    return np.asarray(reduced.scale * jumps.plane_vectors() @ plane.plane + v @ plane.Z)


def read_out_of_plane(
    reduced: ReducedAnswers,
    plane: SearchPlane,
    heads: InPlane,
    v: Array,
    *,
    move: float = MOVE,
    value_over_jump: float = VALUE_OVER_JUMP,
) -> Asking[tuple[Array, OutOfPlaneReadings]]:
    """Read every u_h out of the plane, to about three digits; return what was read as well.

    ``v`` (H, d) counts only out of the plane, and for what open gates leave: in the plane the
    pieces on both sides of a jump are exact, and values read far away are not.
    """
    H, m = len(v), len(plane.Z)
    at, own_at, others_at, gates = _crossings(reduced, plane, heads, v, move, value_over_jump)
    tau = np.repeat((move / heads.slope)[:, None], m, axis=1)
    a, y, across = np.empty((H, m, reduced.dim)), np.zeros((H, m)), v @ plane.Z.T
    own, others = np.zeros((H, m)), np.zeros((H, m))
    left = np.ones((H, m), dtype=bool)
    for _ in range(REPEATS):
        if not np.any(left):
            break
        h, i = np.nonzero(left)
        a[h, i] = at[h] + tau[h, i, None] * plane.Z[i]
        y[h, i] = yield from reduced.ask(a[h, i], plane.b, "out of the plane")
        own = own_at[:, None] + tau * across
        others = others_at[:, None] + tau * (gates @ across)
        with np.errstate(invalid="ignore", divide="ignore"):
            s = 2 * np.arctanh((y - others) / own)
        left = ~(np.abs(s) < USABLE)
        tau[left] /= NEARER_BY
    if np.any(left):
        raise CoincidentJumps
    readings = OutOfPlaneReadings(plane, a, y, heads.u @ plane.plane, heads.shift, tau)
    return readings.vectors(readings.outside(own, others)), readings


def _crossings(
    reduced: ReducedAnswers,
    plane: SearchPlane,
    heads: InPlane,
    v: Array,
    move: float,
    value_over_jump: float,
) -> tuple[Array, Array, Array, Array]:
    """Choose how far out every crossing is read, and predict what is answered there.

    Returns offsets a (H, d) at which each head's logit is 0, v_h·a of the head itself (H,), what
    the others add (H,), and at crossing k the gate of head g, almost always ±1, 0 for its own.
    """
    angle, K = heads.angle, heads.slope
    towards = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    before, after = (
        reduced.scale * side(angle) for side in (heads.jumps.before, heads.jumps.after)
    )
    # far out, but not further than the angle is known to
    spread, jump = reduced.scale * np.sqrt(reduced.dim / 2), np.abs(after - before) / 2
    with np.errstate(divide="ignore"):
        T = np.maximum(FAR, value_over_jump * spread / jump) / K
    T = np.maximum(heads.T, np.minimum(T, heads.T * OFF / heads.noise))
    longest, step = reduced.lengths.longest(plane.length), move / K
    if np.any(longest <= step):
        raise UnsaturatedGates
    T = np.minimum(T, np.sqrt(longest - step) * np.sqrt(longest + step))
    gates = np.tanh(T[:, None] * (towards @ heads.u.T) / 2)
    np.fill_diagonal(gates, 0.0)
    opened = np.sum((gates - np.sign(gates)) * (towards @ (v @ plane.plane.T).T), axis=1)
    own, others = T * (after - before) / 2, T * ((after + before) / 2 + opened)
    # out there a shift is a small step aside
    aside = (heads.shift / K**2)[:, None] * (heads.u @ plane.plane)
    return plane.offsets(angle, T) - aside, own, others, gates


# Where the system is small, rows are picked among so many times as many candidates by pivoted QR:
# of random rows the condition number would be H·d.
CANDIDATES = 6
# Where it is large, so many times as many random rows as unknowns: they make the condition number
# 40 to 160, and LSQR converges.
SPARE = 1.2
# Rows more than unknowns: wrong signs show.
CHECKS = 2
# Directions closer to a hyperplane (in units of 1/√d) are not asked: four times what the rough
# u_h are off by, if not for the rounding of logits, which counts beside it.
CLOSEST = 8e-3
# Where heads crowd, closer directions have to do: this divided by H over ``crowd``.
AMPLE = 0.25
# Number of heads from which on they crowd.
CROWD = 8.0
# Times that directions are drawn until enough are clear of all hyperplanes.
DRAWS = 50
# Logits from which on gates are steps. Under a cap directions are asked at which all gates are.
SHUT = 40.0
# Where so many draws gave too few of these, half the logit has to do, again and again.
EASED_EVERY = 5
# Neighbours on the half circle more parallel than this (cosine) get rows of their own between
# them, where random ones seldom fall.
PARALLEL = 0.98
# Such rows take this share of the room between the two hyperplanes.
ROOM = 0.5
# Rows agree to so many times what random errors of answers leave, if all signs are right.
NOISES = 100.0
# Under a cap gates that are open are known as far as the u_h are: rows that agree to this, in
# units of the values' size, do as well.
AGREES = 1e-9
# Rows that are off by so many times the answers' error do not agree, whatever that leaves.
MOST = 1e4
# Times that signs are taken anew.
AGAIN = 5
# The same under a cap: gates that are open settle slowly.
AGAIN_OPEN = 40
# Solutions for random noise, from which the error is estimated.
PROBES = 2
# Accuracy of those solutions: two digits of an error are enough.
COARSE = 1e-2
# Unknowns up to which the matrix is formed: beyond, its decomposition takes longer than all the
# rest of a recovery.
LARGEST_DENSE = 900
# LSQR ends when what is left of the equations is this share of them. Twice, the second time for
# what was left, is as exact as a decomposition.
ACCURACY = 1e-10
# Steps after which they end anyway: as many as a condition number of 160 needs. Random systems
# with a fifth more rows than unknowns have 40 to 160.
ITERATIONS = 2000


@dataclass(frozen=True, slots=True)
class RowProducts:
    """The linear map from v (H, d) to Σ_h g_nh a_n·v_h, for gates (n, H) and A (n, d)."""

    A: Array
    gates: Array

    def of(self, v: Array) -> Array:
        """Apply the map to v (H, d)."""
        return np.asarray(np.sum(self.gates * (self.A @ v.T), axis=1))

    def adjoint(self, r: Array) -> Array:
        """Apply the adjoint to r (n,)."""
        return np.asarray((self.gates * r[:, None]).T @ self.A)

    def solved(self, y: Array, accuracy: float = ACCURACY) -> Array:
        """Return the v (H, d) that fit y (n,) best.

        Raises
        ------
        numpy.linalg.LinAlgError
            The rows do not determine v.
        """
        n, d = self.A.shape
        H = self.gates.shape[1]
        if H * d > LARGEST_DENSE:
            products = LinearOperator(
                (n, H * d),
                matvec=lambda v: self.of(v.reshape(H, d)),
                rmatvec=lambda r: self.adjoint(r).ravel(),
                dtype=np.float64,
            )
            found = lsqr(products, y, atol=accuracy, btol=accuracy, iter_lim=ITERATIONS)[0]
            return np.asarray(found.reshape(H, d))
        rows = (self.gates[:, :, None] * self.A[:, None, :]).reshape(n, H * d)
        v, _, rank, _ = np.linalg.lstsq(rows, y, rcond=None)
        if rank < H * d:
            raise np.linalg.LinAlgError(f"{n} rows of rank {rank} do not determine {H * d} numbers")
        return np.asarray(v.reshape(H, d))


@dataclass(frozen=True, slots=True)
class ValueEquations:
    """Reduced answers T·y (n,) at offsets T·A, A (n, d) of unit rows."""

    A: Array
    y: Array
    T: float

    def at(self, u: Array) -> RowProducts:
        """Return the linear map of the values, gates being those of u (H, d)."""
        return RowProducts(self.A, np.tanh(self.T * (self.A @ u.T) / 2))

    def solved(self, u: Array) -> Array:
        """Return the v_h (H, d), gates being those of u."""
        system = self.at(u)
        v = system.solved(self.y)
        return v + system.solved(self.y - system.of(v))


@dataclass(frozen=True, slots=True)
class HeadValues:
    """All v_h (H, d), their error, and what they were solved from."""

    v: Array
    error: float
    equations: ValueEquations

    def at_share(self, share: float) -> HeadValues:
        """Return the same for query tokens ``share`` times as long: T·‖b‖ is what counts."""
        return replace(self, equations=replace(self.equations, T=self.equations.T / share))


def read_values(
    reduced: ReducedAnswers,
    heads: InPlane,
    rough: tuple[Array, Array, OutOfPlaneReadings],
    rng: np.random.Generator,
) -> Asking[tuple[HeadValues, Array]]:
    """Learn all v_h from one system; return them with better u (H, d).

    ``rough`` are u, v (H, d) as they are known, and what u was read from out of the plane.
    """
    u, known, readings = rough
    plane, soft = readings.plane, reduced.lengths.soft
    far = reduced.lengths.far(plane.length)
    error = reduced.error(far, plane.length) * reduced.scale
    shut = SHUT / far if soft else 0.0
    read_at = float(np.linalg.norm(readings.a, axis=2).max(initial=0.0))
    rounding = reduced.eta * read_at * float(np.linalg.norm(u, axis=1).max(initial=0.0))
    A = _directions(heads, plane, u, (shut, rounding), rng)
    A = reduced.lengths.turned(A, plane.b)
    y = (yield from reduced.ask(far * A, plane.b, "values")) / far
    equations = ValueEquations(A, y, far)
    noise = rng.standard_normal((PROBES, len(A))) * error
    gates: Array | None = None
    for _ in range(AGAIN_OPEN if soft else AGAIN):
        system = equations.at(u)
        if gates is not None and np.array_equal(system.gates, gates):
            break
        gates = system.gates
        v = equations.solved(u)
        missed, before = np.abs(system.of(v) - y), u
        u = readings.read_again(v, u)
        # where gates are steps a right system leaves noise alone: more is a wrong sign of a head
        # whose values are as small
        agreed = soft and bool(np.all(missed < AGREES * reduced.scale))
        if agreed or np.all(missed < MOST * error):
            errors = [system.solved(row, COARSE) for row in noise]
            left = np.abs([system.of(x) - row for x, row in zip(errors, noise, strict=True)])
            if agreed or np.all(missed < NOISES * np.max(left)):
                for _ in range(2):
                    u = readings.read_again(v, u)
                return HeadValues(v, float(np.max(np.linalg.norm(errors, axis=2))), equations), u
        if not soft:
            u = readings.read_again(_as_in_plane(v, known, plane), before)
    raise CoincidentJumps


def _as_in_plane(v: Array, known: Array, plane: SearchPlane) -> Array:
    """Return v (H, d) with what is known in the plane of the half circle, from jumps.

    Wrong signs of a head leave it with any values, by which its logits would be read.
    """
    return np.asarray(v + (known - v) @ plane.plane.T @ plane.plane)


def _directions(
    heads: InPlane,
    plane: SearchPlane,
    u: Array,
    least: tuple[float, float],
    rng: np.random.Generator,
) -> Array:
    """Choose unit offsets, H·d and some more, away from all hyperplanes; those that check last.

    ``least`` are the logits that most have of all heads, or as much of it as there is room for, and
    what rounding inside the target may move the logits by that the ``u`` were read from.
    """
    shut, rounding = least
    size = np.linalg.norm(u, axis=1)
    unit, picking = np.asarray(u / size[:, None]), u.size <= LARGEST_DENSE
    wanted = int(u.size * (CANDIDATES if picking else SPARE))
    found = _clear(unit, shut / size, max(CLOSEST, rounding), wanted + CHECKS, rng)
    between = _between(heads, plane, unit, 0.0 if picking else PARALLEL, rng)
    checks, others = found[:CHECKS], found[CHECKS : wanted + CHECKS]
    candidates = np.concatenate([between, others])
    if picking:
        # as many rows as unknowns, of a well conditioned system
        signs = np.sign(candidates @ u.T)
        rows = (signs[:, :, None] * candidates[:, None, :]).reshape(len(candidates), -1)
        _, pivots = scipy.linalg.qr(rows.T, mode="r", pivoting=True)
        candidates = candidates[pivots[: u.size]]
    return np.concatenate([candidates, checks])


def _clear(
    unit: Array, shut: Array, closest: float, wanted: int, rng: np.random.Generator
) -> Array:
    """Draw directions away from all hyperplanes, of normals ``unit`` (H, d)."""
    H, d = unit.shape
    closest = min(closest, AMPLE / max(1.0, H / CROWD)) / np.sqrt(d)
    found = np.zeros((0, d))
    for draw in range(DRAWS):
        if draw and draw % EASED_EVERY == 0:
            shut = shut / 2
        A = rng.standard_normal((2 * wanted, d))
        A /= np.linalg.norm(A, axis=1, keepdims=True)
        room = np.maximum(closest, shut)
        found = np.concatenate([found, A[np.all(np.abs(A @ unit.T) > room, axis=1)]])
        if len(found) >= wanted:
            break
    return found


def _between(
    heads: InPlane, plane: SearchPlane, unit: Array, least: float, rng: np.random.Generator
) -> Array:
    """Draw directions halfway between neighbours of the half circle of at least this cosine.

    Random ones seldom fall between two hyperplanes that are nearly parallel.
    """
    angle = heads.angle
    parallel = np.abs(np.sum(unit * np.roll(unit, -1, axis=0), axis=1))
    gaps = np.flatnonzero(parallel > least)
    middle = (angle + np.append(angle[1:], angle[:1] + np.pi))[gaps] / 2
    centres = np.repeat(plane.offsets(middle, np.ones(len(middle))), unit.shape[1] + 1, axis=0)
    moves = rng.standard_normal(centres.shape)
    with np.errstate(divide="ignore"):
        ratio = np.abs(centres @ unit.T) / np.abs(moves @ unit.T)
    room = np.min(ratio, axis=1, initial=1.0)
    between = centres + ROOM * room[:, None] * moves
    return np.asarray(between / np.linalg.norm(between, axis=1, keepdims=True))
