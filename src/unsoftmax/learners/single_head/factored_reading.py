"""A head of low rank as it was read, in two factors, with what bounds its errors.

With Π = Q(A Q)⁻¹A, the projection onto the columns' span along A's kernel, and W = C K, errors E
of the columns C and F of the rows A W give Ŵ − W = (I − Π)E K + Q(A Q)⁻¹F, exactly
(`unsoftmax.solve.skeleton`). What a rank too low may leave out is added, as are biases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.single_head.column_space import LeftOut, SpanningColumns
from unsoftmax.measure.logit_grid import LogitGrid
from unsoftmax.measure.offsets import DENSE_GRID, Offsets
from unsoftmax.measure.precision import UNIT
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models import SingleHead
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array
from unsoftmax.solve.dense import DenseSolution
from unsoftmax.solve.skeleton import Amplification, Skeleton, dependence
from unsoftmax.validate.head_comparison import HeadBounds


@dataclass(frozen=True, slots=True)
class ZeroReading:
    """W = 0, w = 0."""

    values: Values
    left_out: LeftOut

    @property
    def model(self) -> SingleHead:
        """The head."""
        none = np.zeros((0, len(self.values.v)))
        return SingleHead.from_factors(none, none, self.values.v, None, self.values.c)

    def bounds(self) -> HeadBounds:
        """Bound the errors of W, v, w and c."""
        W_error, w_error = self.errors_beside(self.left_out(self.values))
        return HeadBounds.of(self.values, W_error, w_error, "W has rank 0.")

    def errors_beside(self, left_out: float) -> tuple[float, float]:
        """Bound the errors of W and w where so much is left out."""
        return left_out, left_out

    def span(self) -> Array:
        """Return an orthonormal basis of W's columns, (d, 0)."""
        return np.zeros((len(self.values.v), 0))

    def notes(self) -> tuple[str, ...]:
        """Say what a user should know."""
        return self.values.precision.why


@dataclass(frozen=True, slots=True)
class RowErrors:
    """Bounds on what was read beside the columns, and what they make of the rows."""

    shift: float
    """Of A w."""
    right: float
    """Of ``right``, the row factor."""


@dataclass(frozen=True, slots=True)
class FactoredReading:
    """Columns and rows of W, joined."""

    model: SingleHead
    values: Values
    columns: SpanningColumns
    C: DenseSolution
    """The columns, (d, r)."""
    skeleton: Skeleton
    """An orthonormal basis Q of their span, and the offsets A."""
    right: DenseSolution
    """W = Q right, (r, d)."""
    bias: LogitGrid | None
    """A w."""
    rows: LogitGrid | None
    """A W at the other tokens."""
    refined: LogitGrid | None = None
    """W at the row space."""

    def bounds(self) -> HeadBounds:
        """Bound the errors of W, v, w and c."""
        values, columns = self.values, self.columns
        W_error, w_error = self.errors_beside(
            0.0 if columns.left_out is None else columns.left_out(values)
        )
        further = columns.grid.unbounded(values)
        further += self.rows.unbounded(values) if self.rows is not None else ()
        return HeadBounds.of(
            values,
            W_error,
            w_error,
            f"W has rank {len(self.skeleton.rows)} or less"
            + (", but for what is below the answers' noise" if columns.left_out else "")
            + "; the row space found is close enough to the true one that it is seen through the "
            "query tokens at least half as well.",
            *further,
        )

    def errors_beside(self, left_out: float) -> tuple[float, float]:
        """Bound the errors of W and w where so much is left out."""
        right, tokens = self._through_tokens()
        found = dependence(right, tokens)
        W_error, w_error = self._errors(left_out, 2 * found)
        # the true row space may tilt against the one found by so much, and be seen less
        smallest = float(np.linalg.svd(right, compute_uv=False).min(initial=np.inf))
        off = float(np.hypot(W_error, w_error / (self.columns.beta or np.inf))) / (smallest or TINY)
        if off < 1 and found:
            seen = np.sqrt(1 - off**2) / found - off * float(np.linalg.norm(tokens, 2))
            if seen * 2 * found > 1:
                return self._errors(left_out, 1 / seen)
        return W_error, w_error

    def _errors(self, left_out: float, spread: float) -> tuple[float, float]:
        """Bound the errors of W and w where ‖K‖₂ in W = C K is at most ``spread``."""
        columns, skeleton = self.columns, self.skeleton
        grows, E = skeleton.amplification(), self._column_error()
        rows = self._row_errors(grows, E)
        # where columns span everything I − Π is 0
        from_columns = 0.0 if skeleton.spans_all else grows.error(E, spread, 0.0)
        # at (x, 1) a query token is longer than x, which is a unit vector
        longest = np.sqrt(1 + len(skeleton.rows)) if columns.beta else 1.0
        beyond = left_out * grows.tilt * (1 + longest * spread)
        w_error = float((from_columns + beyond) * columns.beta + grows.gain * rows.shift)
        rounding = 8 * UNIT * grows.tilt * float(np.linalg.norm(self.right.matrix))
        if self.refined is None:
            return float(from_columns + rows.right + beyond + rounding), w_error
        # the true row space may tilt against the one found: its factor counts twice
        along = self._refined_error(self.refined, w_error)
        return float(along + 2 * rows.right + beyond + rounding), w_error

    def moved(self, rng: np.random.Generator) -> FactoredReading:
        """Return what is read from answers moved by about as much as they are off."""
        values, w = self.values.moved(rng), self.model.w
        grid = self.columns.grid.moved(rng, values, np.linalg.norm(self.C.matrix, axis=0))
        bias, rows = self.bias, self.rows
        if bias is not None:
            bias = bias.moved(rng, values, np.zeros(1), w)
        if rows is not None:
            lengths = np.linalg.norm(self.skeleton.coordinates(rows.measured().T), axis=0)
            rows = rows.moved(rng, values, lengths, w)
            rows.shift = None if bias is None else bias.measured()[0]
        C = DenseSolution(self.C.offsets, self.C.offsets.solve(grid.measured()))
        skeleton = replace(self.skeleton, basis=np.linalg.qr(C.matrix)[0])
        columns = replace(self.columns, grid=grid)
        return joined(values, columns, C, skeleton, self.right.offsets, bias, rows)

    def span(self) -> Array:
        """Return an orthonormal basis of W's columns, (d, r)."""
        return self.skeleton.basis

    def _column_error(self) -> float:
        """Bound ‖E‖_F."""
        lengths = np.linalg.norm(self.C.matrix, axis=0)
        stretch = self.C.offsets.largest
        read = self.columns.grid.reading(self.values, lengths, np.zeros(1), stretch)
        return self.C.error_of(read)

    def _row_errors(self, grows: Amplification, E: float) -> RowErrors:
        """Bound the row factor's error; where a token's column is known its rows are A Ĉ."""
        values, w, skeleton = self.values, self.model.w, self.skeleton
        stretch = float(np.linalg.norm(skeleton.rows, 2))
        F = shift = 0.0
        if self.bias is not None:
            shift = self.bias.reading(values, np.zeros(1), w, stretch).total
            F += np.sqrt(len(skeleton.rows)) * shift / self.columns.beta
        if self.rows is not None:
            lengths = np.linalg.norm(skeleton.coordinates(self.rows.measured().T), axis=0)
            F += self.rows.reading(values, lengths, w, stretch, shift).total
        return RowErrors(shift, self.right.error(grows.error(E, 1.0, F)))

    def _refined_error(self, grid: LogitGrid, w_error: float) -> float:
        """Bound the error of W on the row space found, whose tokens were rounded."""
        K, stretch = self.model.arrays()["K"], self.C.offsets.largest
        lengths = np.linalg.norm(K, axis=1)
        read = grid.reading(self.values, lengths, self.model.w, stretch, stretch * w_error)
        narrow = 1 - DENSE_GRID * np.sqrt(K.size)
        return float(DenseSolution(self.C.offsets, K).error_of(read, w_error) / narrow)

    def _through_tokens(self) -> tuple[Array, Array]:
        """Return rows that span the row space found, and the query tokens that see it."""
        right, tokens = self.right.matrix, self.right.offsets.rows[self.columns.tokens]
        if self.columns.beta:  # columns of [W w/β] at (x, 1)
            w: Array = self.skeleton.basis.T @ self.model.w / self.columns.beta
            right = np.column_stack([right, w])
            tokens = np.column_stack([tokens, np.ones(len(tokens))])
        return right, tokens

    def notes(self) -> tuple[str, ...]:
        """Say what a user should know."""
        return (*self.values.precision.why, *self.columns.notes)


def joined(
    values: Values,
    columns: SpanningColumns,
    C: DenseSolution,
    skeleton: Skeleton,
    tokens: Offsets,
    bias: LogitGrid | None,
    rows: LogitGrid | None,
) -> FactoredReading:
    """Join columns C with the rows A W of all ``tokens``."""
    shift = None if bias is None else bias.measured()[0]
    seen = skeleton.rows @ C.matrix
    if shift is not None:
        seen = seen - shift[:, None] / columns.beta
    by_token = np.empty((len(C.matrix), len(columns.tokens)))
    by_token[columns.tokens] = seen.T
    if rows is not None:
        by_token[np.setdiff1d(np.arange(len(by_token)), columns.tokens)] = rows.measured()
    right = skeleton.coordinates(tokens.solve(by_token.T).T)
    w = None if shift is None else skeleton.solve(shift)
    model = SingleHead.from_factors(skeleton.basis.T, right, values.v, w, values.c)
    return FactoredReading(
        model, values, columns, C, skeleton, DenseSolution(tokens, right), bias, rows
    )
