"""From (u_h, s_h) at some query tokens, and r × (r + 1) logits one token farther, to one head.

With B the span of Kᵀ and U₁, U₂ the columns Bᵀ KᵀR(1) q, Bᵀ KᵀR(2) q at r query tokens,

    T = U₂ U₁⁻¹ = P R(1) P⁻¹,    Kᵀ = B P,    q(b) = R(−1) P⁻¹ Bᵀ u(b),
    b_k·(R(1) − I) q = s − b·Kᵀ(R(1) − I) q,    b_k·(R(2) − I) q = s₂ + b·Kᵀq.

The last are twice as many equations as unknowns: what they miss shows a search that went wrong. Q
comes from how q(b) moves with b, b_q = q(b) − Q b. Arrays in, a head and bounds out; nothing is
asked here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.multi_head.lifted_rest import RestReadings
from unsoftmax.learners.multi_head.lifted_search import ShiftedHeads
from unsoftmax.learners.multi_head.second_distance import ShiftedStep
from unsoftmax.learners.single_head.distances import RotaryTuning, TurnedKeys
from unsoftmax.learners.single_head.lifted import KeySide
from unsoftmax.models.arrays import TINY
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.probes import Array
from unsoftmax.solve.turning_planes import turning_planes


@dataclass(frozen=True, slots=True)
class ShiftedReadings:
    """All that was read of one head; ``rest`` is None until it is asked."""

    found: ShiftedHeads
    h: int
    step: ShiftedStep
    rest: RestReadings | None = None

    def _coordinates(self, b: Array) -> Array:
        """Return Bᵀ KᵀR(1) q at tokens (m, d) in the span of those that were read, (r, m)."""
        return np.asarray(self.step.basis.T @ self.found.at(b)[:, self.h, :-1].T)

    @property
    def turn(self) -> Array:
        """T, (r, r)."""
        here = self._coordinates(self.step.tokens)
        return np.asarray(np.linalg.solve(here.T, self.step.there[:, :-1]).T)

    def moved(self, rng: np.random.Generator) -> ShiftedReadings:
        """Move all that was read by as much as it may be off."""
        rest = None if self.rest is None else self.rest.moved(rng)
        return replace(self, found=self.found.moved(rng), step=self.step.moved(rng), rest=rest)

    def keys(self, still: float, told: Array | None = None) -> tuple[KeySide, float]:
        """Return K, b_k and the planes, with q(b) of the tokens; and what b_k misses, a share.

        Planes that turn by less than ``still`` do not turn; others by ``told`` angles if given.
        """
        found, planes = self.found, turning_planes(self.turn, still)
        angles = planes.angles if told is None else told
        keys = TurnedKeys.of(self.step.basis, planes, angles)
        K, rotary = keys.K, keys.rotary
        near, far = found.tokens, self.step.tokens
        at_near, at_far = (keys.queries(self._coordinates(b)) for b in (near, far))
        once = rotary.turned(at_near, np.array(1.0)) - at_near
        twice = rotary.turned(at_far, np.array(2.0)) - at_far
        s = found.base[self.h, -1] + found.t * np.append(0.0, found.columns[self.h, -1])
        # differences over t: these tokens are close to each other
        rows, values = (
            np.concatenate([x[:1], (x[1:] - x[:1]) / found.t])
            for x in (once, s - np.einsum("nd,nd->n", near, once @ K))
        )
        M, s_two = np.vstack([rows, twice]), self.step.there[:, -1]
        y = np.append(values, s_two + np.einsum("nd,nd->n", far, at_far @ K))
        bias = np.linalg.lstsq(M, y, rcond=None)[0]
        size = max(float(np.linalg.norm(np.append(s, s_two))), TINY)
        return KeySide(K, bias, rotary, at_near), float(np.linalg.norm(M @ bias - y)) / size

    def head(self, still: float, told: Array | None = None) -> RotaryHead:
        """Return the head."""
        assert self.rest is not None
        found, (side, _) = self.found, self.keys(still, told)
        q = side.queries[0]
        moves = np.vstack([side.queries[1:], self.rest.queries(side)]) - q
        Q = (moves / found.t).T @ found.answers.directions
        return RotaryHead(
            side.K,
            Q,
            found.v[self.h],
            side.rotary,
            k_bias=side.k_bias,
            q_bias=q - Q @ found.b,
            c=found.reduced.c,
        )


def unexplained(read: ShiftedReadings, tuning: RotaryTuning) -> float:
    """Return how many times more b_k misses its equations by than what was read may be off."""
    rng = np.random.default_rng(0)
    missed = read.keys(0.0)[1]
    moved = [read.moved(rng).keys(0.0)[1] for _ in range(tuning.perturbed)]
    return missed / max(*moved, TINY)
