"""An attack: what a client reads of a head whose budget is below the number of its parameters.

v first, d queries, then W column by column, d queries each, as `ExactHead` does (Theorem 4.1); with
biases c and w before the columns, d + 1 more. Columns that the budget does not reach count as 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unsoftmax.learners.settings import Configured
from unsoftmax.learners.single_head.exact import ExactTuning
from unsoftmax.learners.single_head.first_round import FirstRoundSettings, ask_first_round
from unsoftmax.measure import offsets
from unsoftmax.measure.logit_grid import LogitGrid, measure
from unsoftmax.measure.scales import Split, beside_bias, free, offset_only
from unsoftmax.models import SingleHead
from unsoftmax.protocol import Plan, Steps
from unsoftmax.questions.defence.fitted_head import unproved
from unsoftmax.solve.dense import solve


@dataclass(frozen=True, slots=True)
class FirstColumns(Configured):
    """Learn v and the first columns of W of a single head from exact values."""

    dim: int
    columns: int
    """How many of W's d columns."""
    biases: bool = False
    seed: int = 0

    revision: ClassVar[int] = 1

    @classmethod
    def within(cls, dim: int, queries: int, biases: bool, seed: int) -> FirstColumns | None:
        """Read as many columns as a budget is enough for, all but one at most; None for none."""
        each = dim + ExactTuning().again_per_token
        columns = min(dim - 1, (queries - (2 * each if biases else dim)) // each)
        return cls(dim, columns, biases, seed) if columns > 0 else None

    def plan(self) -> Plan:
        """Say beforehand what it costs."""
        d, of_bias, tuning = int(self.dim), int(self.biases), ExactTuning()
        queries = d + of_bias + d * (self.columns + of_bias)
        again = tuning.again_per_token * (self.columns + of_bias)
        return Plan(
            queries=queries,
            at_most=queries + again,
            tokens=2 * queries,
            rounds=3 + tuning.grid.rounds * (1 + of_bias),
            formula="d + d·columns",
        )

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; the hold-out is left to whoever has the whole head."""
        rng, tuning, d = np.random.default_rng(self.seed), ExactTuning(), int(self.dim)
        settings = FirstRoundSettings(
            bool(self.biases), listens=True, ahead=self.plan().at_most, tuning=tuning.first_round
        )
        first = yield from ask_first_round(d, 0, rng, settings)
        values = first.values
        Z = offsets.balanced(values.v, rng)
        spare = tuning.again_per_token
        w, shift = np.zeros(d), None
        split: Split = free
        if self.biases:
            none = np.zeros((1, d))
            bias = LogitGrid(Z.made(), none, values, offset_only, "w", tuning=tuning.grid)
            yield from measure(bias, spare)
            [shift] = bias.measured()
            w, values = solve(Z, bias.measured()).matrix[:, 0], bias.values
            split = beside_bias(shift)
        queries = np.eye(d)[: self.columns]
        grid = LogitGrid(Z.made(), queries, values, split, "W", shift, tuning=tuning.grid)
        yield from measure(grid, spare * self.columns)
        W = np.zeros((d, d))
        W[:, : self.columns] = solve(Z, grid.measured()).matrix
        return unproved(SingleHead(W, values.v, w, values.c))
