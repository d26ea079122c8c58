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
from unsoftmax.learners.multi_head.out_of_plane import OutOfPlaneReadings, SearchPlane
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.probes import Array

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
