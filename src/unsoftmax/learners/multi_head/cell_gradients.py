"""All v_h of one query token from the cells of half a circle: 2·H·d queries, whatever the u_h are.

Far out a cell's answers are linear, f(a) = a·G with G = Σ_g sign(a·u_g) v_g: from one cell to the
next G grows by 2v_h. A slope is read in both directions from a cell's middle, and nearer to it
where the two do not agree: a hyperplane is between. Rounding moves no gate that is far from 0, so
coarse arithmetic does not matter here.

Where values are coarse a piece of the half circle may have been read across a jump: it is none, and
shows as two jumps next to each other that cancel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.arrangement.jumps import Jumps
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.out_of_plane import SearchPlane
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class CellGradientTuning:
    """Which jumps count, and where in a cell slopes are read."""

    together: float = 1e-4
    """Jumps closer than this angle count as one: a piece that is none is narrower, and of twelve
    heads two are so close on one half circle of two hundred."""
    none: float = 1e3
    """A jump below so many times the error of a value is none: pieces that are none left up to 400,
    jumps of trained heads 25,000 and more."""
    inside: float = 0.3
    """Slopes are read this share of a cell's half width from its middle,"""
    nearer_by: float = 3.0
    """so many times nearer where a hyperplane is between,"""
    times: int = 5
    """so often at most."""
    agrees: float = 200.0
    """Values on both sides agree up to so many times their error."""


@dataclass(frozen=True, slots=True)
class CircleCells:
    """The cells of half a circle between crossings: their middles and half widths (H,)."""

    middle: Array
    half: Array

    def __len__(self) -> int:
        return len(self.middle)

    @classmethod
    def between(cls, jumps: Jumps, error: float, tuning: CellGradientTuning) -> CircleCells:
        """Return the cells between jumps that are some, values being off by ``error``."""
        low, high = _crossings(jumps, error, tuning)
        end = np.append(low[1:], low[:1] + np.pi)
        return cls((high + end) / 2, (end - high) / 2)


def _crossings(jumps: Jumps, error: float, tuning: CellGradientTuning) -> tuple[Array, Array]:
    """Return the ends of the intervals that hold a jump, close ones joined."""
    n = len(jumps)
    if not n:
        return jumps.low, jumps.high
    gap = np.append(jumps.low[1:], jumps.low[0] + np.pi) - jumps.high
    last = np.flatnonzero(gap >= tuning.together)
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
    some = np.linalg.norm(after - before, axis=0) > tuning.none * error
    return low[some], high[some]


def read_cell_values(
    reduced: ReducedAnswers,
    plane: SearchPlane,
    cells: CircleCells,
    tuning: CellGradientTuning,
) -> Asking[Array]:
    """Read the gradients of all cells; return the v_h (H, d), up to their signs."""
    H, far = len(cells), reduced.lengths.far(plane.length)
    centre = plane.offsets(cells.middle, np.ones(H))
    along = plane.offsets(cells.middle + np.pi / 2, np.ones(H))[:, None]
    frame = np.concatenate([along, np.repeat(plane.Z[None], H, axis=0)], axis=1)
    value = (yield from reduced.ask(far * centre, plane.b, "cells")) / far
    allowed = tuning.agrees * reduced.error(far, plane.length) * reduced.scale
    step = np.repeat(tuning.inside * np.minimum(1.0, cells.half)[:, None], frame.shape[1], axis=1)
    slope, left = np.zeros(step.shape), np.ones(step.shape, dtype=bool)
    for _ in range(tuning.times):
        k, i = np.nonzero(left)
        if not len(k):
            break
        move = step[k, i, None] * frame[k, i]
        a = far * np.concatenate([centre[k] + move, centre[k] - move])
        y = (yield from reduced.ask(a, plane.b, "cells")) / far
        up, down = y.reshape(2, -1) - value[k]
        slope[k, i] = (up - down) / (2 * step[k, i])
        left[k, i] = np.abs(up + down) > allowed
        step[left] /= tuning.nearer_by
    if np.any(left):
        raise CoincidentJumps
    gradient = np.einsum("hm,hmd->hd", slope, frame) + value[:, None] * centre
    # one half circle earlier the gradient was the opposite
    previous = np.concatenate([-gradient[-1:], gradient[:-1]])
    return np.asarray((gradient - previous) / 2)
