"""Offsets at which one head answers and all others are silent: their values there are 0.

A reduced answer at offset a is Σ_g (v_g·a) tanh(a·u_g / 2) (`learners.multi_head`). With the dual
vectors e_h of the values, v_g·e_h = 1 for g = h and 0 else, and z ⟂ all v_g,

    a = α e_h + z:   (v_h·a) tanh(a·u_h / 2) = α tanh((α e_h + z)·u_h / 2),

whatever the other gates are: none has to be saturated, so offsets stay short, and where arithmetic
is coarse a logit loses little beside them. What these offsets do not span is a part of u_h along
the other values: at a = α e_h + δ e_k + z head k answers as well, and z saturates it. All that
takes fewer heads than dimensions, and independent values. Choosing takes no queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.measure.windows import ReducedError, Window
from unsoftmax.probes import Array

# α‖e_h‖, in units of the part z: longer shows a logit better beside what the query token adds, up
# to where it moves too far with the query token (1, 2 and 3 were measured).
AHEAD = 2.0
# δ‖e_k‖ in these units.
BESIDE = 0.5
# Logit of a head that answers as well: what e⁻¹⁶ leaves of it is subtracted. Longer offsets move
# logits too far.
SATURATED = 16.0
# Size of head h's logits.
LOGIT = 1.0
# They move by about this much with the query token: gates stay open.
MOVED = 1.0


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


def _window(
    u: Array,
    h: int,
    frame: SilentFrame,
    error: ReducedError,
    t: float,
) -> Window:
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
