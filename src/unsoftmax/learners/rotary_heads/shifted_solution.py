"""From (u_h, s_h) at d + 1 query tokens, and r × (r + 1) logits one token farther, to one head.

With B the span of Kᵀ and U₁, U₂ the columns Bᵀ KᵀR(1) q, Bᵀ KᵀR(2) q at r query tokens,

    T = U₂ U₁⁻¹ = P R(1) P⁻¹,    Kᵀ = B P,    q(b) = R(−1) P⁻¹ Bᵀ u(b),
    Q from how q(b) moves with b, b_q = q(b) − Q b,
    b_k·(R(1) − I) q = s − b·Kᵀ(R(1) − I) q,    b_k·(R(2) − I) q = s₂ + b·Kᵀq.

The last are d + 1 + r equations for r numbers: what they miss shows a search that went wrong.
Arrays in, a head and bounds out; nothing is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.rotary_head.rotary_reading import (
    PositionErrors,
    RotaryTuning,
    angles_of,
    unsure_of,
)
from unsoftmax.learners.rotary_heads.shifted_search import ShiftedHeads
from unsoftmax.learners.rotary_heads.shifted_steps import ShiftedStep
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models.arrays import TINY
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.probes import Array
from unsoftmax.solve.turning_planes import TurningPlanes, turning_planes


@dataclass(frozen=True, slots=True)
class ShiftedReadings:
    """All that was read of one head."""

    found: ShiftedHeads
    h: int
    step: ShiftedStep

    @property
    def _u(self) -> tuple[Array, Array]:
        """Return Bᵀu at b, (r,), and what it moves by along every direction, (r, d)."""
        d, B = self.found.reduced.dim, self.step.basis
        return B.T @ self.found.base[self.h, :d], B.T @ self.found.columns[self.h, :d]

    @property
    def turn(self) -> Array:
        """T, (r, r)."""
        base, columns = self._u
        steps = (self.step.tokens - self.found.b) @ self.found.directions.T
        here = base[:, None] + columns @ steps.T
        return np.asarray(np.linalg.solve(here.T, self.step.there[:, :-1]).T)

    def moved(self, rng: np.random.Generator) -> ShiftedReadings:
        """Move all that was read by as much as it may be off."""
        return replace(self, found=self.found.moved(rng), step=self.step.moved(rng))

    def head(self, still: float, told: Array | None = None) -> tuple[RotaryHead, float]:
        """Return the head, and what its key bias misses its equations by, relative to them.

        Planes that turn by less than ``still`` do not turn; others by ``told`` angles if given.
        """
        found, planes = self.found, turning_planes(self.turn, still)
        angles = planes.angles if told is None else told
        base, columns = self._u
        K, once = (self.step.basis @ planes.P).T, np.linalg.solve(planes.P, base)
        moves = np.linalg.solve(planes.P, columns)
        rotary, odd = Rotary(np.pad(angles, (0, (len(K) + 1) // 2 - len(angles)))), len(K) % 2
        K, once, moves = (
            np.pad(x, [(0, odd)] + [(0, 0)] * (x.ndim - 1)) for x in (K, once, moves)
        )
        # turned back by one token: queries at b, and what they move by
        q = rotary.turned(once, np.array(-1.0))
        Q = rotary.turned(moves.T, np.array(-1.0)).T @ found.directions
        bias, missed = self._key_bias(K, rotary, q, Q)
        head = RotaryHead(
            K, Q, found.v[self.h], rotary, k_bias=bias, q_bias=q - Q @ found.b, c=found.reduced.c
        )
        return head, missed

    def _key_bias(self, K: Array, rotary: Rotary, q: Array, Q: Array) -> tuple[Array, float]:
        """Return b_k, and how much of its equations it misses."""
        found, d, t = self.found, self.found.reduced.dim, self.found.t
        s = found.base[self.h, d] + t * np.append(0.0, found.columns[self.h, d])
        near, far = found.tokens, self.step.tokens
        at_near, at_far = (q + (b - found.b) @ Q.T for b in (near, far))
        once = rotary.turned(at_near, np.array(1.0)) - at_near
        twice = rotary.turned(at_far, np.array(2.0)) - at_far
        rest = s - np.einsum("nd,nd->n", near, once @ K)
        # differences over t: these tokens are close to each other
        rows, values = (np.concatenate([x[:1], (x[1:] - x[:1]) / t]) for x in (once, rest))
        M = np.vstack([rows, twice])
        y = np.append(values, self.step.there[:, -1] + np.einsum("nd,nd->n", far, at_far @ K))
        bias = np.linalg.lstsq(M, y, rcond=None)[0]
        size = float(np.linalg.norm(np.append(s, self.step.there[:, -1])))
        return bias, float(np.linalg.norm(M @ bias - y)) / max(size, TINY)


def solved(
    read: ShiftedReadings, values: Values, told: Rotary | None, tuning: RotaryTuning
) -> tuple[RotaryHead, PositionErrors, float]:
    """Return the head with bounds on its errors, and what its key bias misses.

    Planes that turn too slowly to tell are taken not to.
    """
    head, _ = read.head(0.0)
    errors = _errors(read, head, tuning)
    unsure = unsure_of(errors, float(np.linalg.norm(head.W_at(1))), values, tuning)
    planes: TurningPlanes = turning_planes(read.turn, unsure)
    angles = angles_of(planes, told, unsure, tuning)
    head, missed = read.head(unsure, None if told is None else angles)
    return head, _errors(read, head, tuning), missed


def _errors(read: ShiftedReadings, head: RotaryHead, tuning: RotaryTuning) -> PositionErrors:
    """Bound what W(Δ) with biases may be off by: what it moves by when readings do."""
    rng, distances = np.random.default_rng(0), (0.0, 1.0, 2.0, float(tuning.farthest))
    mine = [head.scores.whole(n) for n in distances]
    near = turning = 0.0
    for _ in range(tuning.perturbed):
        try:
            others = read.moved(rng).head(0.0)[0].scores
        except (np.linalg.LinAlgError, ValueError):
            return PositionErrors(np.inf, np.inf, True)
        moved = [np.linalg.norm(x - others.whole(n)) for x, n in zip(mine, distances, strict=True)]
        near = max(near, float(max(moved[:3])))
        turning = max(turning, float(moved[3]) / (tuning.farthest - 1))
    return PositionErrors(tuning.margin * near, tuning.margin * turning, True)
