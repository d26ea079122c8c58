"""All u_h of one query token roughly, then all v_h at once: 2·H·d queries.

*Out of the plane.* At offsets T·(cos θ_k p + sin θ_k q) + τ z only head k is unsaturated, and
the component u_k·z is read from its gate; what the unknown v_h·z add is small beside T.

*Values.* At huge offsets every gate is a step whose side is known from the rough u_h:
Σ_h sign(a·u_h) v_h·a is linear in all v_h. Rows are chosen so that the system is well
conditioned. With the v_h known, the first readings give the u_h to many more digits.

*Under a cap* T is too short for unknown v_h·z to drown: they are read before, from the gradients
of the half circle's cells. Gates that stay open are no signs but tanh(a·u_h/2), known from u_h.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import qr

from unsoftmax.learners.multi_head.two_tokens import Coincident, Ground, Unsaturated
from unsoftmax.learners.multi_head.zoom import InPlane
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers

# τ moves the logit by about this; readings beyond _USABLE are repeated closer to the hyperplane.
_MOVE, _USABLE, _CLOSER = 0.8, 2.5, 4.0
_REPEATS = 8
# Out-of-plane values must be this much smaller than what T makes of those in the plane.
# Further out than angles were read to, noise may move the logit by _OFF.
_DROWNED, _FAR, _OFF = 3e3, 1e5, 0.3
# Up to so many unknowns, rows are picked among six times as many candidates by pivoted QR.
_PICKED, _CANDIDATES = 900, 6
_CHECKS = 2  # rows more than unknowns: wrong signs show
# Beyond, a fifth more rows than unknowns make a random system's condition number 40 to 160 instead
# of H·d, and conjugate gradients converge: to eight digits, twice.
_SPARE = 1.2
_DIGITS, _COARSE, _ITERATIONS = 1e-10, 1e-2, 2000
_PROBES = 2  # solutions for random noise, from which the error is estimated
# From the middle of a cell a gradient goes this share of its half width: no gate is reached.
_INSIDE = 0.3
# Directions closer than this to a hyperplane (in units of 1/√d) are not asked.
# Rough u_h are off by about _ROUGH; where heads crowd, less room has to do.
_CLOSEST, _ROUGH, _ERRORS, _AMPLE, _CROWD = 1e-3, 2e-3, 4.0, 0.25, 8.0
_DRAWS = 50
# Gates of logits beyond are steps; where a cap leaves no room for so much, half has to do.
_SHUT, _EASED = 40.0, 5
# Neighbours more parallel than this get rows of their own between them; rows take this share of
# the room there is.
_PARALLEL, _ROOM = 0.98, 0.5
# Rows agree to this if all signs are right; else signs are taken anew, so often.
_AGREES, _NOISES = 1e-9, 1e4
_AGAIN, _AGAIN_OPEN = 5, 40  # gates that are open settle slowly


@dataclass(frozen=True, slots=True)
class Frame:
    """One query token b, and the plane that was searched: orthonormal p, q and the rest Z."""

    b: Array
    plane: Array
    Z: Array

    @classmethod
    def random(cls, dim: int, length: float, rng: np.random.Generator) -> Frame:
        """Draw b of the given norm and a random plane."""
        b = rng.standard_normal(dim)
        Q, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
        return cls(length * b / np.linalg.norm(b), Q[:, :2].T, Q[:, 2:].T)

    def offsets(self, theta: Array, T: Array) -> Array:
        """Return T·(cos θ p + sin θ q)."""
        return np.asarray((T * np.stack([np.cos(theta), np.sin(theta)])).T @ self.plane)


@dataclass(frozen=True, slots=True)
class Readings:
    """One reading of every head and direction: offsets (H, m, d) and reduced answers (H, m)."""

    a: Array
    y: Array
    along: Array
    """u_h in the plane, as vectors (H, d)."""
    tau: Array

    def vectors(self, frame: Frame, jumps: Array, rest: Array) -> tuple[Array, Array]:
        """Return u (H, d) and the logits, given each head's v·a and what all others add.

        Both (H, m); logits beyond float64's gates are NaN.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            s = 2 * np.arctanh((self.y - rest) / jumps)
        base = np.einsum("hmd,hd->hm", self.a, self.along)
        return np.asarray(self.along + ((s - base) / self.tau) @ frame.Z), s


def read_cells(ground: Ground, frame: Frame, heads: InPlane) -> Generator[Round, Answers, Array]:
    """Read all v_h (H, d) from one gradient in the middle of each cell of the half circle.

    Far out a cell's answers are linear in a; from one cell to the next Σ_g sign(a·u_g) v_g grows
    by 2v_h. Narrow cells give few digits: the values are read again once the u_h are known.
    """
    H, m = len(heads.u), len(frame.Z)
    length = float(np.linalg.norm(frame.b))
    far = ground.reach.far(length)
    jumps = heads.jumps
    low, high = jumps.high, np.append(jumps.low[1:], jumps.low[0] + np.pi)
    middle, tau = (low + high) / 2, _INSIDE * far * np.minimum(1.0, (high - low) / 2)
    # after() turns the last piece's sign: beyond π it is the first one again
    centre = np.asarray(jumps.after(middle))
    if np.any(tau <= 0):  # no cell between two jumps
        raise Unsaturated
    a = frame.offsets(middle, np.sqrt(far**2 - tau**2))[:, None] + tau[:, None, None] * frame.Z
    y = yield from ground.ask(a.reshape(H * m, ground.dim), frame.b, "cells")
    rest = np.sqrt(far**2 - tau**2) * centre * ground.scale
    slope = (y.reshape(H, m) - rest[:, None]) / tau[:, None]
    previous = np.concatenate([-slope[-1:], slope[:-1]])
    v = (slope - previous) / 2
    return np.asarray(ground.scale * jumps.plane_vectors() @ frame.plane + v @ frame.Z)


def read_out_of_plane(
    ground: Ground, frame: Frame, heads: InPlane, v: Array
) -> Generator[Round, Answers, tuple[Array, Readings]]:
    """Read every u_h out of the plane, to about three digits; keep what was read.

    In the plane the pieces on both sides of a jump are exact, as values v (H, d) read far away
    are not: of those only what is out of the plane, and what open gates leave, counts.
    """
    H, m = len(v), len(frame.Z)
    K, angle = heads.slope, heads.angle
    towards = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    before, after = (ground.scale * side(angle) for side in (heads.jumps.before, heads.jumps.after))
    jump = np.abs(after - before) / 2
    spread = ground.scale * np.sqrt(ground.dim / 2)
    T = np.maximum(_FAR, _DROWNED * spread / np.maximum(jump, 1e-300)) / K
    T = np.maximum(heads.T, np.minimum(T, heads.T * _OFF / heads.noise))
    along = heads.u @ frame.plane
    tau = np.repeat((_MOVE / K)[:, None], m, axis=1)
    longest = ground.reach.longest(float(np.linalg.norm(frame.b)))
    if np.any(longest <= _MOVE / K):
        raise Unsaturated
    T = np.minimum(T, np.sqrt(longest - _MOVE / K) * np.sqrt(longest + _MOVE / K))
    # (k, g): what head g is along direction k, almost always ±1
    gates = np.tanh(T[:, None] * (towards @ heads.u.T) / 2)
    np.fill_diagonal(gates, 0.0)
    opened = np.sum((gates - np.sign(gates)) * (towards @ (v @ frame.plane.T).T), axis=1)
    beside = T * ((after + before) / 2 + opened)
    outside = frame.Z @ v.T  # (m, H)
    a = np.empty((H, m, ground.dim))
    y, own, others = (np.zeros((H, m)) for _ in range(3))
    left = np.ones((H, m), dtype=bool)
    centre = frame.offsets(angle, T)
    for _ in range(_REPEATS):
        if not np.any(left):
            break
        h, i = np.nonzero(left)
        a[h, i] = centre[h] + tau[h, i, None] * frame.Z[i]
        y[h, i] = yield from ground.ask(a[h, i], frame.b, "out of the plane")
        own = (T * (after - before) / 2)[:, None] + tau * outside.T
        others = beside[:, None] + tau * (gates @ outside.T)
        ratio = (y - others) / own
        with np.errstate(invalid="ignore", divide="ignore"):
            s = 2 * np.arctanh(ratio)
        left = ~(np.abs(s) < _USABLE)
        tau[left] /= _CLOSER
    if np.any(left):
        raise Coincident
    readings = Readings(a, y, along, tau)
    u, _ = readings.vectors(frame, own, others)
    return u, readings


def again(readings: Readings, frame: Frame, v: Array, u: Array) -> Array:
    """Read the u_h once more from the same answers, now that the v_h are known."""
    H, m, d = readings.a.shape
    if not m:
        return u
    a = readings.a.reshape(H * m, d)
    values = (a @ v.T).reshape(H, m, H)
    terms = values * np.tanh((a @ u.T).reshape(H, m, H) / 2)
    own = np.arange(H)
    rest = terms.sum(axis=2) - terms[own, :, own]
    new, s = readings.vectors(frame, values[own, :, own], rest)
    usable = np.all(np.isfinite(s), axis=1)
    return np.where(usable[:, None], new, u)


@dataclass(frozen=True, slots=True)
class Values:
    """All v_h (H, d), their error, and what they were read from."""

    v: Array
    error: float
    A: Array
    y: Array
    T: float

    def again(self, u: Array) -> Array:
        """Solve for the v_h once more, gates being those of u."""
        steps = Steps.at(self.A, self.T, u)
        v = steps.solved(self.y)
        return v + steps.solved(self.y - steps.of(v))

    def beside(self, share: float) -> Values:
        """Return the same values for query tokens of another length: T·‖b‖ is what counts."""
        return replace(self, T=self.T / share)


def read_values(
    ground: Ground,
    frame: Frame,
    heads: InPlane,
    readings: Readings,
    u: Array,
    v: Array,
    rng: np.random.Generator,
) -> Generator[Round, Answers, tuple[Values, Array]]:
    """Learn all v_h from one system; return them with better u (H, d)."""
    reach, length = ground.reach, float(np.linalg.norm(frame.b))
    far = reach.far(length)
    error = ground.error(far, length) * ground.scale
    A = reach.turned(_directions(frame, heads, u, _SHUT / far if reach.soft else 0.0, rng), frame.b)
    y = (yield from ground.ask(far * A, frame.b, "values")) / far
    tolerance = max(_AGREES * ground.scale, _NOISES * error)
    previous = None
    for _ in range(_AGAIN_OPEN if reach.soft else _AGAIN):
        values = Values(v, error, A, y, far)
        steps = Steps.at(A, far, u)
        if previous is not None and np.array_equal(steps.signs, previous):
            break
        v = values.again(u)
        missed = np.abs(steps.of(v) - y)
        u = again(readings, frame, v, u)
        if np.all(missed < tolerance):
            for _ in range(2):
                u = again(readings, frame, v, u)
            noise = rng.standard_normal((_PROBES, len(A))) * error
            errors = [np.linalg.norm(steps.solved(row, _COARSE), axis=1).max() for row in noise]
            return replace(values, v=v, error=float(max(errors))), u
        previous = steps.signs
    raise Coincident


@dataclass(frozen=True, slots=True)
class Steps:
    """The linear map from all v_h to Σ_h tanh(T a·u_h/2) v_h·a, one for each row a of A (n, d).

    ``signs`` (n, H) are these gates: ±1 but under a cap.
    """

    A: Array
    signs: Array

    @classmethod
    def at(cls, A: Array, T: float, u: Array) -> Steps:
        """Return the map at offsets T·A, A (n, d), for heads u (H, d)."""
        return cls(A, np.tanh(T * (A @ u.T) / 2))

    def of(self, v: Array) -> Array:
        """Apply the map to v (H, d)."""
        return np.asarray(np.sum(self.signs * (self.A @ v.T), axis=1))

    def adjoint(self, r: Array) -> Array:
        """Apply the adjoint to r (n,)."""
        return np.asarray((self.signs * r[:, None]).T @ self.A)

    def solved(self, y: Array, digits: float = _DIGITS) -> Array:
        """Return the v (H, d) that fit y (n,) best."""
        n, d = self.A.shape
        H = self.signs.shape[1]
        if H * d <= _PICKED:
            rows = (self.signs[:, :, None] * self.A[:, None, :]).reshape(n, H * d)
            v, _, rank, _ = np.linalg.lstsq(rows, y, rcond=None)
            if rank < H * d:
                raise Coincident
            return np.asarray(v.reshape(H, d))
        return self._conjugate_gradients(y, digits)

    def _conjugate_gradients(self, r: Array, digits: float) -> Array:
        """Solve the normal equations without forming them."""
        x = np.zeros((self.signs.shape[1], self.A.shape[1]))
        z = self.adjoint(r)
        p, now = z, float(np.sum(z * z))
        enough = digits**2 * now
        for _ in range(_ITERATIONS):
            if now <= enough or now == 0:
                break
            q = self.of(p)
            alpha = now / float(q @ q)
            x, r = x + alpha * p, r - alpha * q
            z = self.adjoint(r)
            now, before = float(np.sum(z * z)), now
            p = z + now / before * p
        return x


def _directions(
    frame: Frame, heads: InPlane, u: Array, shut: float, rng: np.random.Generator
) -> Array:
    """Choose unit offsets, H·d and some more, away from all hyperplanes.

    Most have ``|a·u_h|`` above ``shut`` for all h, or above as much of it as there is room for.

    Random ones seldom fall between two hyperplanes that are nearly parallel; those of the half
    circle halfway between two neighbours do.
    """
    H, d = u.shape
    size = np.linalg.norm(u, axis=1)
    unit = u / size[:, None]
    closest = min(max(_CLOSEST, _ERRORS * _ROUGH), _AMPLE / max(1.0, H / _CROWD)) / np.sqrt(d)
    picking = H * d <= _PICKED
    wanted = int(H * d * (_CANDIDATES if picking else _SPARE)) + _CHECKS
    found = np.zeros((0, d))
    for draw in range(_DRAWS):
        if draw and draw % _EASED == 0:
            shut /= 2
        A = rng.standard_normal((2 * wanted, d))
        A /= np.linalg.norm(A, axis=1, keepdims=True)
        clear = np.all(np.abs(A @ unit.T) > np.maximum(closest, shut / size), axis=1)
        found = np.concatenate([found, A[clear]])
        if len(found) >= wanted:
            break
    angle = heads.angle
    beside = np.abs(np.sum(unit * np.roll(unit, -1, axis=0), axis=1))
    gaps = np.flatnonzero(beside > (0.0 if picking else _PARALLEL))
    middle = (angle + np.append(angle[1:], angle[:1] + np.pi))[gaps] / 2
    centres = np.repeat(frame.offsets(middle, np.ones(len(middle))), d + 1, axis=0)
    moves = rng.standard_normal(centres.shape)
    with np.errstate(divide="ignore"):
        room = np.min(np.abs(centres @ unit.T) / np.abs(moves @ unit.T), axis=1, initial=1.0)
    between = centres + _ROOM * room[:, None] * moves
    between /= np.linalg.norm(between, axis=1, keepdims=True)
    checks, candidates = found[:_CHECKS], np.concatenate([between, found[_CHECKS:wanted]])
    if not picking:
        return np.concatenate([candidates, checks])
    signs = np.sign(candidates @ u.T)
    rows = (signs[:, :, None] * candidates[:, None, :]).reshape(len(candidates), H * d)
    _, pivots = qr(rows.T, mode="r", pivoting=True)
    return np.concatenate([candidates[pivots[: H * d]], checks])
