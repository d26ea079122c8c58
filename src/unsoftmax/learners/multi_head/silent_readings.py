"""All u_h and v_h of one query token from silent offsets, where answers are coarse.

1. α e_h + z with z ⟂ all v_g: head h alone answers, whatever the others' gates are
   (`measure.silent_offsets`). At H·(d − H + 1) such offsets u_h is read across the other values.
2. α e_h + δ e_k + z: head k answers as well, z saturates it. These H(H − 1) tell the rest of u_h.
3. With every u_h to a few digits, offsets are chosen at which all gates are on given sides, with
   room around: Σ_g ±v_g from d + 1 far answers, and with the side of one head changed its v_h. In
   all (H + 1)(d + 1) answers, and every v_h to the answers' precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.measure.silent_offsets import SilentFrame
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class SilentReadingTuning:
    """How long silent offsets are, and which gates are read."""

    octaves: int = 12
    """Parts of offsets between 2⁻¹² and 2¹² are tried, in units of the query token: heads of sizes
    within a thousand of each other."""
    directions: int = 6
    """Directions z in which they are."""
    longest: float = 4.0
    """α‖e_h‖ at most, in these units: longer gains nothing."""
    own: float = 0.5
    """Gates that the part along e_h alone may make: others are to be added."""
    all: float = 0.7
    """Gates at trial directions: at others they are rarely twice as open."""
    usable: float = 3.0
    """Larger logits are read again, nearer."""
    nearer_by: float = 4.0
    times: int = 5
    """They are then so many times nearer, so often at most."""
    beside: float = 0.5
    """δ‖e_k‖, as a share of the part z."""
    saturated: float = 16.0
    """Logit of a head that answers as well,"""
    unknown: float = 4.0
    """and so much more per ‖u_k‖/‖u_h‖: what α e_h gives head k is not known yet."""
    room: float = 0.5
    """Far offsets go this share of the way to the nearest hyperplane."""


@dataclass(frozen=True, slots=True)
class SilentReadings:
    """What silent offsets of one query token b are answered."""

    reduced: ReducedAnswers
    b: Array
    tuning: SilentReadingTuning

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

    def _sizes(self) -> Array:
        octaves = np.arange(-self.tuning.octaves, self.tuning.octaves + 1)
        return np.asarray(self.length * 2.0**octaves)

    def _gates(self, a: Array, alpha: Array) -> Asking[Array]:
        """Ask silent offsets a (…, d) at which v_h·a = alpha; return tanh(a·u_h/2)."""
        flat = a.reshape(-1, a.shape[-1])
        y = yield from self.reduced.ask(flat, self.b, "silent")
        return np.asarray(y.reshape(a.shape[:-1]) / alpha)

    def _own(self, frame: SilentFrame) -> Asking[Array]:
        """Choose α (H,): the longest part along e_h that leaves the gate open."""
        sizes, longest = self._sizes(), self.tuning.longest * self.length
        alpha = sizes[None] / frame.length[:, None]
        gates = yield from self._gates(alpha[:, :, None] * frame.duals[:, None], alpha)
        return np.minimum(_longest(sizes, gates, self.tuning.own), longest) / frame.length

    def _across(self, frame: SilentFrame, own: Array, rng: np.random.Generator) -> Asking[Array]:
        """Choose the length of the parts z (H,), in the same way."""
        sizes, Z = self._sizes(), frame.Z
        z = rng.standard_normal((self.tuning.directions, len(Z))) @ Z
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        base = own[:, None] * frame.duals
        a = base[:, None, None] + sizes[:, None, None] * z
        gates = yield from self._gates(a, own[:, None, None])
        return _longest(sizes, np.max(np.abs(gates), axis=2), self.tuning.all)

    def _each(self, frame: SilentFrame, own: Array, across: Array) -> Asking[Array]:
        """Read every u_h along its e_h and all of Z."""
        Z, duals = frame.Z, frame.duals
        base = own[:, None] * duals
        at_base = _logits((yield from self._gates(base, own)))
        step = np.repeat(across[:, None], len(Z), axis=1)
        s, left = np.zeros(step.shape), np.ones(step.shape, dtype=bool)
        for _ in range(self.tuning.times):
            h, i = np.nonzero(left)
            if not len(h):
                break
            a = base[h] + step[h, i, None] * Z[i]
            s[h, i] = _logits((yield from self._gates(a, own[h])))
            left = ~(np.abs(s) < self.tuning.usable)
            step[left] /= self.tuning.nearer_by
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
        a = middle[:, None] + self.tuning.room / near * np.concatenate([np.zeros((1, d)), turned])
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
        beside = self.tuning.beside * across[h] / frame.length[k]
        level, size = -np.sum(first * u[h], axis=1), np.linalg.norm(u, axis=1)
        shut = self.tuning.saturated + self.tuning.unknown * size[k] / size[h]
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
