"""All u_h of one query token roughly, outside the plane of the half circle: H·(d − 2) queries.

At offsets T·(cos θ_k p + sin θ_k q) + τ z only head k is open, and the component u_k·z is read
from its gate; what the unknown v_h·z add is small beside T. The readings are kept: with the v_h
known (`learners.multi_head.value_system`) they give the u_h to many more digits.

Under a cap T is too short for unknown v_h·z to be small beside it: the v_h are read before, from
the gradients of the half circle's cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.in_plane import InPlane
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps, UnsaturatedGates
from unsoftmax.probes import Array

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
