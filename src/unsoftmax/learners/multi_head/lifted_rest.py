"""Queries of all heads with biases at the tokens that are left, keys being known: r rows a token.

With K, b_k and the planes, a logit in the window of a head is linear in its query q(b),

    a·u + s = ((K(a + b) + b_k)·R(1) − (K b + b_k)) q(b),

so r rows tell q(b), and the shift takes none. What other heads' nearly shut gates add depends on
their own q(b), hence sweeps over heads. *Source*: beyond Proposition 7.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.column_table import telling_rows
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head.window_sweeps import UNSETTLED, swept
from unsoftmax.learners.multi_head.lifted_search import ShiftedHeads
from unsoftmax.learners.single_head.lifted import KeySide
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Indices


@dataclass(frozen=True, slots=True)
class RestReadings:
    """Logits of one head at some tokens."""

    rows: list[Array]
    """a of every token, (≥ r, d)."""
    tokens: Array
    """b, (m, d)."""
    logits: list[Array]
    off: list[Array]
    """How far each may be off."""

    def queries(self, side: KeySide) -> Array:
        """Return q(b) of all tokens, (m, rows of K)."""
        solved = [
            np.linalg.lstsq(side.rows(a + b, b), logits, rcond=None)[0]
            for a, b, logits in zip(self.rows, self.tokens, self.logits, strict=True)
        ]
        return np.reshape(solved, (len(self.tokens), len(side.K)))

    def moved(self, rng: np.random.Generator) -> RestReadings:
        """Move all logits by as much as they may be off, of either sign."""
        logits = [
            one + off * rng.choice([-1.0, 1.0], off.shape)
            for one, off in zip(self.logits, self.off, strict=True)
        ]
        return replace(self, logits=logits)


def read_rest(
    found: ShiftedHeads,
    sides: list[KeySide],
    ranks: Indices,
) -> Asking[list[RestReadings]]:
    """Ask the tokens that are left; ``sides`` have what is known of each head."""
    answers, n = found.answers, found.columns.shape[2]
    seen = answers.token.seen
    rest = np.arange(n, len(answers.directions))
    b = found.b + found.t * answers.directions[rest]
    wanted = []
    for h, (side, rank) in enumerate(zip(sides, ranks, strict=True)):
        a = seen.windows[h].a
        noise = seen.error.of_logits(a, seen.v, h, a @ seen.u[h])
        rows = telling_rows(a, noise, _lifted(side, found.b, int(rank)))
        # some were asked already, to see whether earlier columns predict them
        new = rest[~answers.asked[h][:, rest].any(axis=0)]
        wanted.append((h, rows, new))
    yield from answers.ask(wanted, "columns")
    shifted = np.repeat(found.base[:, :, None], len(rest), axis=2)
    readings: list[RestReadings] = []

    def sweep() -> float:
        nonlocal readings
        before = shifted.copy()
        readings = [_read(found, h, b, rest, shifted) for h in range(len(sides))]
        for h, side in enumerate(sides):
            shifted[h] = _seen(side, b, readings[h].queries(side)).T
        size = np.linalg.norm(before, axis=1)
        return float(np.max(np.linalg.norm(shifted - before, axis=1) / (size + TINY), initial=0.0))

    if swept(sweep) > UNSETTLED:
        raise CoincidentJumps
    return readings


def _read(found: ShiftedHeads, h: int, b: Array, rest: Indices, shifted: Array) -> RestReadings:
    """Read the logits of one head, the others' (u, s) being ``shifted`` (H, d + 1, m)."""
    answers, seen = found.answers, found.answers.token.seen
    moves = shifted - seen.u[:, :, None]
    rows, logits, off = [], [], []
    for place, j in enumerate(rest):
        which = np.flatnonzero(answers.asked[h][:, j])
        a = seen.windows[h].a[which]
        one, lost = seen.logits(h, a, answers.y[h][which, j, None], moves[:, :, [place]])
        if np.any(lost):
            raise CoincidentJumps
        rows.append(a[:, :-1])
        logits.append(one[:, 0])
        off.append(seen.error.of_logits(a, seen.v, h, one[:, 0]))
    return RestReadings(rows, b, logits, off)


def _lifted(side: KeySide, b: Array, rank: int) -> Array:
    """Return what makes (u, s) at b of a query, (d + 1, r): planes of zeros left out."""
    unit = np.eye(len(side.K))[:rank]
    return _seen(side, np.tile(b, (rank, 1)), unit).T


def _seen(side: KeySide, b: Array, queries: Array) -> Array:
    """Return (u, s) at tokens b of these queries, (m, d + 1)."""
    once = side.rotary.turned(queries, np.array(1.0))
    s = np.einsum("mr,mr->m", b @ side.K.T + side.k_bias, once - queries)
    return np.column_stack([once @ side.K, s])
