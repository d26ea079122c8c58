"""An attack: a head from rounded answers to tokens of bounded length, by where the rounding steps.

Rounding to multiples of q hides a value, and shows exactly where it passes (n − ½)q. The answer
to tX moves continuously with t, from 0 at t = 0. So t is bisected to where the rounded answer
steps, and there the value is known to as many digits as there are bisections:

    f([t x]) = t·x·v = (n − ½)q                                            x·v, and v
    f([t(a + b); tb]) = t(b·v) + t(a·v)·σ(t²·a·(W b)) = (n − ½)q           a·(W b), and W

A W of rank r is read as a skeleton (`solve.skeleton` has the algebra): of Z W Zᵀ k = r + 4 columns
and rows are enough. Asks 16d + (d² + d)·(bits + 5) queries at most, with k(2d − k) in place of d²
where the rank is known, and no token longer than ``radius``. Needs answers
that do not round to 0: offsets and query tokens lie near v's direction, so that ‖v‖·radius of a
little more than q is enough. Deterministic rounding alone is attacked like this; beside noise the
steps are blurred. It knows q, as whoever sees a few answers does. The head has no biases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from unsoftmax.errors import NotIdentifiable
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.settings import Configured
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Flags, Pairs, Probes, Sequences
from unsoftmax.protocol import Plan, Steps
from unsoftmax.questions.defence.fitted_head import unproved

Stretched: TypeAlias = Callable[[Array], Probes]
"""Makes the probes of one family, each at a length t ≤ 1 of its own."""


@dataclass(frozen=True, slots=True)
class EdgeHead(Configured):
    """Learn a single head from answers that are rounded to multiples of ``step``."""

    dim: int
    step: float
    radius: float
    bits: int = 40
    """Bisections of every step."""
    seed: int = 0
    rank: int | None = None
    """Rank of W, where it is known."""

    revision: ClassVar[int] = 1
    octaves: ClassVar[int] = 4
    """Lengths of pairs that are tried, half as long each: long ones saturate the softmax."""

    @property
    def entries(self) -> int:
        """How many entries of Z W Zᵀ are read: those of k columns and rows, or all."""
        return self._crossing * (2 * self.dim - self._crossing)

    @property
    def _crossing(self) -> int:
        """The number k; four beyond the rank: a core of the rank alone may be ill-conditioned."""
        return self.dim if self.rank is None else min(self.dim, self.rank + 4)

    def plan(self) -> Plan:
        """Say beforehand what it costs."""
        d, bits, longest = self.dim, self.bits, self.radius * (1 + 1e-12)
        most = 16 * d + d * (1 + bits) + self.entries * (self.octaves + 1 + bits)
        formula = "16d + (d² + d)(bits + 5)"
        return Plan(None, most, 2 * most, 4 + 2 * bits, formula, longest, 2)

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; nothing is certified, and nothing checked."""
        rng, d, radius = np.random.default_rng(self.seed), self.dim, self.radius
        x = rng.standard_normal((16 * d, d))
        x *= radius / np.linalg.norm(x, axis=1, keepdims=True)
        [y] = yield [Sequences(x[:, None], phase="direction of v", purpose="data")]
        along = x.T @ y
        if not (size := float(np.linalg.norm(along))):
            answered = f"Every answer to a single token of norm {radius:g} rounds to 0."
            raise NotIdentifiable(answered, determined={})
        along /= size
        frame, _ = np.linalg.qr(rng.standard_normal((d, d)))
        # on v's side: 1 alongᵀ + frame/2 is then never near singular. Nearer to v values are
        # larger, which coarser rounding shows; farther from it they span directions more evenly
        frame *= np.where(frame @ along < 0, -1.0, 1.0)[:, None]
        Z = along + frame / 2
        Z /= np.linalg.norm(Z, axis=1, keepdims=True)

        def singles(t: Array) -> Probes:
            X = (t * radius)[:, None, None] * Z[:, None]
            return Sequences(X, phase="v", purpose="data")

        t, value, there = yield from self._steps(singles, np.ones(d))
        if not np.any(there):
            raise NotIdentifiable("Answers to single tokens round to 0.", determined={})
        v = np.linalg.lstsq(Z[there], (value / (t * radius))[there])[0]
        W = yield from self._scores(Z, np.asarray(v))
        return unproved(SingleHead(W, v))

    def _scores(self, Z: Array, v: Array) -> Asking[Array]:
        """Read Z W Zᵀ off steps, and W from it."""
        d, half = self.dim, self.radius / 2
        read = np.minimum(*np.indices((d, d))) < self._crossing
        i, j = np.nonzero(read)
        values = half * (Z @ v)

        def pairs(t: Array) -> Probes:
            return Pairs(Z, Z, i, j, t * half, t * half, phase="W", purpose="data")

        longest = yield from self._open_lengths(pairs, values[i], values[j])
        t, value, there = yield from self._steps(pairs, longest)
        with np.errstate(divide="ignore", invalid="ignore"):
            gates = (value / t - values[j]) / values[i]
            logits = np.log(gates / (1 - gates)) / (t * half) ** 2
        table, known = np.zeros((d, d)), np.zeros((d, d), dtype=bool)
        known[read] = there & np.isfinite(logits)
        table[known] = logits[known[read]]
        if self.rank is not None and (k := self._crossing) < d:
            # of the rank, from columns and rows; an entry that is not known counts as 0
            U, sizes, V = np.linalg.svd(table[:k, :k])
            r = max(1, min(self.rank, int(np.count_nonzero(sizes))))
            columns = np.linalg.solve(Z, table[:, :k] @ V[:r].T)
            rows = np.linalg.solve(Z, (U[:, :r].T @ table[:k]).T).T
            return np.asarray(columns @ (rows / np.maximum(sizes[:r], 1e-300)[:, None]))
        columns = np.linalg.solve(Z, table)
        for column, entries, seen in zip(columns.T, table.T, known.T, strict=True):
            if not np.all(seen):  # by the smallest column
                column[:] = np.linalg.lstsq(Z[seen], entries[seen])[0]
        return np.asarray(np.linalg.solve(Z, columns.T).T)

    def _open_lengths(self, pairs: Stretched, of_a: Array, of_b: Array) -> Asking[Array]:
        """Choose each pair's length: the longest at which the gate is seen to be open.

        It is open where its weight is 0.05 from 0 and 1, which answers of two steps show.
        """
        tried = [np.full(len(of_a), 0.5**n) for n in range(self.octaves)]
        answers = yield [pairs(t) for t in tried]
        chosen = tried[0].copy()
        for t, y in zip(tried[::-1], answers[::-1], strict=True):
            gates = (y / t - of_b) / of_a
            seen = np.abs(y) >= 2 * self.step
            chosen = np.where(seen & (np.abs(gates - 0.5) < 0.45), t, chosen)
        return chosen

    def _steps(self, probes: Stretched, longest: Array) -> Asking[tuple[Array, Array, Flags]]:
        """Find where rounded answers step to those of the longest: lengths and exact values there.

        And whether there is one: not where the longest answer rounds to 0.
        """
        [y] = yield [probes(longest)]
        sign, count = np.sign(y), np.rint(np.abs(y) / self.step)
        edge = (count - 0.5) * self.step
        low, high = np.zeros(len(longest)), longest
        for _ in range(self.bits):
            middle = (low + high) / 2
            [y] = yield [probes(middle)]
            beyond = sign * y > edge
            low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
        return (low + high) / 2, sign * edge, count > 0
