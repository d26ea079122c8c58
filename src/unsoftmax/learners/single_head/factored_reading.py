"""A head of low rank as it was read, in two factors, with what bounds its errors.

With Π = Q(A Q)⁻¹A, the projection onto the columns' span along A's kernel, and W = C K, errors E
of the columns C and F of the rows A W give Ŵ − W = (I − Π)E K + Q(A Q)⁻¹F, exactly
(`unsoftmax.solve.skeleton`). What a rank too low may leave out is added, as are biases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.single_head.column_space import LeftOut, LowRankProbes, SpanningColumns
from unsoftmax.measure import logit_grid, offsets
from unsoftmax.measure.offsets import DENSE_GRID, Offsets
from unsoftmax.measure.precision import UNIT
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models import SingleHead
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array
from unsoftmax.refusals import Reason
from unsoftmax.solve.dense import DenseSolution, solve
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
    bias: logit_grid.LogitGrid | None
    """A w."""
    rows: logit_grid.LogitGrid | None
    """A W at the other tokens."""
    refined: logit_grid.LogitGrid | None = None
    """W at the row space."""

    def bounds(self) -> HeadBounds:
        """Bound the errors of W, v, w and c."""
        values, columns = self.values, self.columns
        W_error, w_error = self.errors_beside(columns.hidden(values))
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

    def _refined_error(self, grid: logit_grid.LogitGrid, w_error: float) -> float:
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
    bias: logit_grid.LogitGrid | None,
    rows: logit_grid.LogitGrid | None,
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


# -- Join the columns of W with its rows: W = C (A C)⁻¹ (A W), and once more on its row space
#
#     A W x_k     r offsets in W's range, the d − r tokens whose columns are not known
#     A w         with biases: the query token 0
#     W Pᵀ        d offsets, r query tokens in the row space: only where answers are noisy
#
# The offsets a_k = Q z_k + v̂, Q a basis of the columns and z balanced, make A Q well conditioned
# and every a_k·v ≥ ‖v‖, whether v lies in W's range or not.
#
# *Queries*: r(d − r), r more with biases; d·r for the refinement. Source: beyond Theorem 5.1.

# From this rank on the columns' size says at which scale other tokens are asked.
ENOUGH = 8
# Below it, so many tokens are asked first: the columns known are few, and say only roughly how
# long the others are.
FEW = 2
# Octaves below the columns' scale at which these few are asked.
CAUTION = 2
# Where no more than this share of v lies in W's range, offsets are balanced on a random direction
# of it: balancing on v's part there would follow its error.
ORTHOGONAL = 1e-3


def read_rows(
    probes: LowRankProbes, columns: SpanningColumns, rng: np.random.Generator
) -> Asking[FactoredReading]:
    """Ask for the rows A W and join them with the columns."""
    values, dim, rank = probes.values, probes.dim, len(columns.tokens)
    spare = 2 * (rank + 1 + probes.biases) - columns.grid.again
    C = solve(probes.Z, columns.grid.measured())
    basis = np.linalg.qr(C.matrix)[0]
    skeleton = Skeleton(basis, _offsets_in(basis, values.v, rng))
    bias, shift, split = None, None, probes.split
    seen = skeleton.rows @ C.matrix
    if columns.beta:
        zero = np.zeros((1, dim))
        bias = probes.grid(skeleton.rows, zero, logit_grid.offset_only, "w, rows")
        yield from logit_grid.measure(bias, max(0, min(spare, 2)))
        probes = replace(probes, values=bias.values)
        [shift] = bias.measured()
        split = logit_grid.beside_bias(shift, logit_grid.even)
        seen = seen - shift[:, None] / columns.beta
        spare -= bias.again
    rest = np.setdiff1d(np.arange(dim), columns.tokens)
    rows = None
    if len(rest):
        rows = probes.grid(skeleton.rows, probes.tokens(rest), split, "W, rows", shift)
        k = logit_grid.scale_for(float(np.sqrt(np.mean(seen**2))))
        yield from _ask_rows(rows, k, spare)
    values = probes.values if rows is None else rows.values
    for grid in (columns.grid, bias):
        if grid is not None:
            grid.take(values)
    return joined(values, columns, C, skeleton, probes.T, bias, rows)


def _ask_rows(rows: logit_grid.LogitGrid, k: int, spare: int) -> Asking[None]:
    """Ask all offsets with all tokens; 2^k is the scale that the columns suggest."""
    count, rank = rows.shape
    scales = rows.common_scale(k)
    few = min(FEW, count) if rank < ENOUGH else 0
    if few:
        yield from rows.ask(slice(0, few), slice(None), scales[:few] - CAUTION)
        scales = rows.common_scale()
    if few < count:
        yield from rows.ask(slice(few, None), slice(None), scales[few:])
    yield from rows.retry(scales, max(0, spare))


def _offsets_in(Q: Array, v: Array, rng: np.random.Generator) -> Array:
    """Make r offsets Q z_k + v̂: A Q is well conditioned and a_k·v ≥ ‖v‖ whatever v is."""
    direction = v / np.linalg.norm(v)
    within = Q.T @ direction
    if np.linalg.norm(within) < ORTHOGONAL:
        within = rng.standard_normal(len(within))
    rows = offsets.balanced(within, rng).made() @ Q.T + direction
    return np.asarray(np.round(rows / DENSE_GRID) * DENSE_GRID)


def read_on_row_space(probes: LowRankProbes, found: FactoredReading) -> Asking[FactoredReading]:
    """Read W once more on the row space V found: Ŵ = (W Pᵀ)(V Pᵀ)⁻¹V, P being V rounded."""
    model, values, right = found.model, found.values, found.right.matrix
    V = np.linalg.qr(right.T)[0].T
    P = np.round(V / DENSE_GRID) * DENSE_GRID
    shift, split = None, probes.split
    if found.bias is not None:
        shift = probes.Z.times(model.w)
        split = logit_grid.beside_bias(shift, logit_grid.even)
    grid = probes.grid(probes.Z.rows, P, split, "W on its row space", shift)
    size = float(np.linalg.norm(right) / np.sqrt(grid.y.size))
    k = grid.common_scale(logit_grid.scale_for(size))
    yield from grid.ask(slice(None), slice(None), k)
    yield from grid.retry(k, 0)
    K = solve(probes.Z, grid.measured())
    again = SingleHead.from_factors(
        K.matrix.T, np.linalg.solve(V @ P.T, V), values.v, model.w, values.c
    )
    return replace(found, model=again, refined=grid)


# -- Whether the rank found is too low: one question more, outside of what was asked
#
# Few numbers say that nothing is beyond a rank: of r + 1 tokens one, which may be small by chance.
# With biases so may all d: where x_k·u = −1/β for all of them the columns W x_k + w/β, with
# w = W u + n, see n nowhere. So one answer is asked for a token x that was not, or for 0 where all
# were, and an offset a outside of the columns' span. The head found says that it is σ(t̂), but for
#
#     |σ(t) − σ(t̂)| ≤ the answer's own error + ¼·αβ‖a‖(‖x‖·‖ΔW‖ + ‖Δw‖/β + ‖(x, 1)‖·L),
#
# ‖ΔW‖ and ‖Δw‖ the bounds on its errors beside what is left out, and L the estimate of that.
# *Queries*: 1, beside what is asked again. Source: beyond Theorem 5.1.


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
    raise Reason.FOUND_RANK_CONTRADICTED.error(
        {"v": values.v, "c": values.c}, rank=rank, asked=columns.asked
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
        return min(most, logit_grid.scale_for(abs(self.expected) + self.open_by(left_out)))
