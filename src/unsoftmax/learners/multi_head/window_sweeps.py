"""All u_h at one query token to full precision, from the heads' windows: H·d queries.

From a reduced answer in the window of head h the other heads are subtracted and the gate of h is
inverted. What the others add depends on their own u_g, hence sweeps over heads, weak ones first;
two to four of them settle all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.rough_heads import ValueEquations
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.measure.windows import WindowedHeads
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Flags, Grid, Indices

WindowCells: TypeAlias = "tuple[int, Indices, Indices]"
"""A head, rows of its window, and query tokens by their number."""

# At most so many: two to four are usual, a hundred where heads of rank one overlap.
SWEEPS = 300
# Sweeps end when no head moves by more than this, relative to it: what is left is rounding.
SETTLED = 4e-15
# Heads that still move by more are read wrongly.
UNSETTLED = 1e-10
# What moves more from one sweep to the next after so many never settles.
FEW = 30


@dataclass(frozen=True, slots=True)
class TokenHeads:
    """The heads seen from one query token b, and how it is asked."""

    reduced: ReducedAnswers
    b: Array
    seen: WindowedHeads

    @property
    def length(self) -> float:
        """‖b‖."""
        return float(np.linalg.norm(self.b))

    def offsets(self, h: int, rows: Indices) -> Array:
        """Return rows of the window of head h, without what is beside their d entries."""
        return self.seen.windows[h].a[rows, : self.reduced.dim]


@dataclass(frozen=True, slots=True)
class WindowAnswers:
    """Reduced answers y (H, d, k) at the windows' offsets and query tokens b + t q."""

    token: TokenHeads
    directions: Array
    """The q (k, d)."""
    y: Array
    asked: Flags
    t: Array
    """Steps of the query tokens (H, k)."""

    @classmethod
    def none(cls, token: TokenHeads, directions: Array) -> WindowAnswers:
        """Return a table in which nothing was asked yet."""
        shape = (*token.seen.u.shape, len(directions))
        t = np.array([window.t for window in token.seen.windows])
        t = np.repeat(t[:, None], len(directions), axis=1)
        return cls(token, directions, np.zeros(shape), np.zeros(shape, dtype=bool), t)

    def first(self, count: int) -> WindowAnswers:
        """Return the answers at the first directions."""
        now = slice(count)
        return replace(
            self,
            directions=self.directions[now],
            y=self.y[:, :, now],
            asked=self.asked[:, :, now],
            t=self.t[:, now],
        )

    def ask(self, wanted: list[WindowCells], phase: str) -> Asking[None]:
        """Ask for each (head, rows, columns) in one round, and enter the answers."""
        wanted = [(h, rows, columns) for h, rows, columns in wanted if len(rows) and len(columns)]
        if not wanted:
            return
        reduced, grids, tokens = self.token.reduced, [], []
        for h, rows, columns in wanted:
            b = self.token.b + self.t[h, columns, None] * self.directions[columns]
            ones, a = np.ones(len(b)), self.token.offsets(h, rows)
            grids.append(Grid(a, b, ones, ones, phase=phase, purpose="data"))
            tokens.append(b)
        answers = yield list(grids)
        for (h, rows, columns), grid, b, y in zip(wanted, grids, tokens, answers, strict=True):
            a = self.token.offsets(h, rows)
            singles = reduced.c + b @ reduced.s
            here = np.ix_(np.array([h]), rows, columns)
            self.y[here] = 2 * (grid.table(y).T - singles) - (a @ reduced.s)[:, None]
            self.asked[here] = True


def read_base(
    token: TokenHeads, values: ValueEquations | None = None
) -> Asking[tuple[TokenHeads, Array]]:
    """Read all u_h at b to full precision; return them with the logits measured (H, d).

    Where a cap left gates open, the v_h are no better than the u_h were: they are solved for anew
    from ``values``.
    """
    H, d = token.seen.u.shape
    answers = WindowAnswers.none(token, np.zeros((1, token.reduced.dim)))
    yield from answers.ask([(h, np.arange(d), np.arange(1)) for h in range(H)], "base")
    seen, s, lost = settled_base(token.seen, answers.y, values)
    if np.any(lost):
        raise CoincidentJumps
    return replace(token, seen=seen), s


def settled_base(
    seen: WindowedHeads, y: Array, values: ValueEquations | None = None
) -> tuple[WindowedHeads, Array, Flags]:
    """Sweep until the u_h agree with reduced answers y (H, d, 1); return their logits as well."""
    u, s = seen.u.copy(), np.zeros(seen.u.shape)
    lost, still = np.zeros(y.shape, dtype=bool), np.zeros(y.shape)

    def sweep() -> float:
        nonlocal seen
        before = u.copy()
        for h in seen.order:
            a = seen.windows[h].a
            now, lost[h] = replace(seen, u=u).logits(h, a, y[h], still)
            s[h] = now[:, 0]
            u[h] = np.linalg.solve(a, s[h])
        if values is not None:
            seen = replace(seen, v=values.solved(u))
        return moved(u, before)

    swept(sweep)
    return replace(seen, u=u), s, lost


def swept(sweep: Callable[[], float]) -> float:
    """Sweep until nothing moves but rounding, or never will; return how much moved last."""
    now = np.inf
    for n in range(SWEEPS):
        last, now = now, sweep()
        stuck = last <= now and (now < UNSETTLED or n > FEW)
        if now <= SETTLED or stuck:
            break
    return now


def moved(new: Array, old: Array) -> float:
    """Return the largest relative change of a head."""
    change, size = (np.linalg.norm(x.reshape(len(x), -1), axis=1) for x in (new - old, new))
    return float(np.max(change / np.maximum(size, TINY), initial=0.0))
