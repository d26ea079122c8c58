"""What a head of low rank is asked with: offsets, query tokens, and how they are scaled.

Both are rows of random orthogonal matrices, made when they are asked for: no d × d array is
kept. Nothing is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unsoftmax.measure.logit_grid import LogitGrid
from unsoftmax.measure.logit_scales import LogitGridTuning
from unsoftmax.measure.offsets import Offsets
from unsoftmax.measure.scales import Split
from unsoftmax.measure.single_tokens import Values
from unsoftmax.probes import Array, Indices, Rows, pick


@dataclass(frozen=True, slots=True)
class LowRankProbes:
    """What a head of low rank is asked with."""

    values: Values
    """v̂ and ĉ."""
    Z: Offsets
    """All d offsets, balanced on v̂."""
    T: Offsets
    """d orthonormal query tokens."""
    split: Split
    """How scales are divided between offset and query token where there is no bias."""
    biases: bool
    """Whether there may be a w."""
    grid_tuning: LogitGridTuning = field(default=LogitGridTuning())

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return len(self.values.v)

    def tokens(self, index: Indices) -> Rows:
        """Return some query tokens."""
        return pick(self.T.rows, index)

    def grid(
        self, offsets: Rows, queries: Rows, split: Split, phase: str, shift: Array | None = None
    ) -> LogitGrid:
        """Return a grid in which nothing is asked yet."""
        tuning = self.grid_tuning
        return LogitGrid(offsets, queries, self.values, split, phase, shift, tuning=tuning)
