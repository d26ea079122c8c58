"""Whether the rank found is too low: one question more, outside of what was asked.

Few numbers say that nothing is beyond a rank: of r + 1 tokens one, which may be small by chance.
With biases so may all d: where x_k·u = −1/β for all of them the columns W x_k + w/β, with
w = W u + n, see n nowhere. So one answer is asked for a token x that was not, or for 0 where all
were, and an offset a outside of the columns' span. The head found says that it is σ(t̂), but for

    |σ(t) − σ(t̂)| ≤ the answer's own error + ¼·αβ‖a‖(‖x‖·‖ΔW‖ + ‖Δw‖/β + ‖(x, 1)‖·L),

‖ΔW‖ and ‖Δw‖ the bounds on its errors beside what is left out, and L the estimate of that.
*Queries*: 1, beside what is asked again. Source: beyond Theorem 5.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from unsoftmax.errors import NotIdentifiable
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.single_head.column_space import LeftOut, LowRankProbes, SpanningColumns
from unsoftmax.learners.single_head.factored_reading import FactoredReading, ZeroReading
from unsoftmax.measure.logit_scales import scale_for
from unsoftmax.measure.offsets import DENSE_GRID
from unsoftmax.probes import Array


def check_rank(
    probes: LowRankProbes,
    columns: SpanningColumns,
    head: FactoredReading | ZeroReading,
    rng: np.random.Generator,
) -> Asking[None]:
    """Ask once more where the rank was found; refuse a rank that the answer contradicts.

    Raises
    ------
    NotIdentifiable
        The rank found is too low.
    """
    x = _fresh_token(probes, columns)
    if columns.left_out is None or x is None:
        return
    look = _Look(_outside(head.span(), head.values.v, rng), x, columns, head)
    if not np.isfinite(look.open_by(columns.left_out)):
        return  # answers that bound nothing contradict nothing
    grid = probes.grid(look.a[None], x[None], columns.grid.split, "W, beyond its rank")
    one = np.zeros(1, dtype=np.intp)
    yield from grid.ask_some(one, one, np.array([look.scale(columns.left_out)]), "again")
    gates, s = grid.gates(), float(grid.scale[0, 0])
    allowed = float(gates.p_error[0, 0]) + s / 4 * look.open_by(columns.left_out)
    if not abs(float(gates.p[0, 0]) - float(scipy.special.expit(s * look.expected))) > allowed:
        return
    rank, values = head.span().shape[1], head.values
    raise NotIdentifiable(
        f"The rank was found to be {rank}, and a further answer contradicts it: by chance the "
        f"{columns.asked} tokens asked hide part of W. Say rank=, or ask other tokens by "
        "another seed=. v is determined.",
        determined={"v": values.v, "c": values.c},
    )


def _fresh_token(probes: LowRankProbes, columns: SpanningColumns) -> Array | None:
    """Return a token that was not asked with all offsets; None where those asked tell W."""
    if columns.asked < probes.dim:
        return np.asarray(probes.tokens(np.array([columns.asked]))[np.arange(1)][0])
    return np.zeros(probes.dim) if columns.beta else None


def _outside(span: Array, v: Array, rng: np.random.Generator) -> Array:
    """Return an offset n ± v̂, n a random unit vector orthogonal to a span (d, r), r < d."""
    n = rng.standard_normal(len(span))
    n -= span @ (span.T @ n)
    n /= np.linalg.norm(n)
    a = n + np.copysign(1.0, n @ v) * v / np.linalg.norm(v)
    return np.asarray(np.round(a / DENSE_GRID) * DENSE_GRID)


@dataclass(frozen=True, slots=True)
class _Look:
    """What the head found says of an offset and a token."""

    a: Array
    x: Array
    columns: SpanningColumns
    head: FactoredReading | ZeroReading

    @property
    def expected(self) -> float:
        """a·(Ŵ x + ŵ/β)."""
        model, beta = self.head.model, self.columns.beta
        scored = model.scores_of(self.x[None])[0] - model.w
        return float(self.a @ (scored + model.w / beta if beta else scored))

    def open_by(self, left_out: LeftOut) -> float:
        """Bound what that may be off by, where no more than the estimate is left out."""
        W_error, w_error = self.head.errors_beside(0.0)
        beta, length = self.columns.beta, float(np.linalg.norm(self.x))
        lifted, from_w = (np.hypot(length, 1.0), w_error / beta) if beta else (length, 0.0)
        beyond = lifted * left_out(self.head.values)
        return float(np.linalg.norm(self.a) * (length * W_error + from_w + beyond))

    def scale(self, left_out: LeftOut) -> int:
        """Return the exponent at which all of it moves the logit moderately."""
        asked = self.columns.grid
        most = int(np.log2(np.nanmax(asked.scale)))
        return min(most, scale_for(abs(self.expected) + self.open_by(left_out), asked.tuning))
