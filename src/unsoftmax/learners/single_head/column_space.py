"""Find query tokens x_1 … x_r whose columns W x_k span W's range, and read these columns.

With biases the readings are z·(W x_k + w/β), those of the columns of [W w] at (x_k, 1/β).

Any r random tokens would do, but by chance their columns may be nearly dependent, which costs
digits. A few offsets tell: the leading block B_jk = z_j·(W x_k) has the columns' singular
values but for a moderate factor. Where r is given and B is ill-conditioned one more token is
asked with these few offsets, and the best r stay. Where r is unknown the block grows until B
has fewer singular values above its noise than tokens: that is r.

*Queries*: d·r; where r is unknown, those of the tokens that are not chosen come on top, 2d at
most. Source: beyond Theorem 5.1.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.measure.logit_grid import SATURATED, STAGES, LogitGrid, Split, at_query_scale, even
from unsoftmax.measure.offsets import Offsets
from unsoftmax.measure.precision import small_by_chance
from unsoftmax.measure.single_tokens import Values
from unsoftmax.probes import Array, Indices, Rows, pick
from unsoftmax.solve.skeleton import pivots, rank_by_gap

# Queries with the first token that may be asked again beside its two pilots: a pilot that is
# small by chance suggests a scale at which the next answers are lost.
FIRST_AGAIN = 2
# So many tokens after the first are asked before the rest: the first column may be short by
# chance, and then the scale it suggests is too large for the others.
FEW = 4
# Octaves below that scale at which these few are asked.
CAUTION = 3
# One more token is asked where B's condition is more than this times r. Random tokens condition B
# by about 10 r; beyond this, one run in ten, digits are lost.
ILL_CONDITIONED = 60.0
# By chance the leading tokens and offsets may see so many times less of W than usual: what may be
# left out of W is estimated as so many times as large.
SEEN_LESS = 4.0
# Where few tokens are beyond the rank they see what is left out by fewer numbers: as many times
# less as these are small with this probability, 26 times for one token, 6 for two.
BY_CHANCE = 3e-2


@dataclass(frozen=True, slots=True)
class LowRankProbes:
    """What a head of low rank is asked with; nothing is asked here.

    Offsets and query tokens are rows of random orthogonal matrices, made when they are asked for:
    no d × d array is kept.
    """

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
        return LogitGrid(offsets, queries, self.values, split, phase, shift)


LeftOut: TypeAlias = Callable[[Values], float]
"""Estimate of the norm of what W may have beyond its rank, for the errors that answers may have."""


@dataclass(frozen=True, slots=True)
class SpanningColumns:
    """The columns of W at some tokens, all read."""

    grid: LogitGrid
    """(r tokens, d offsets)."""
    tokens: Indices
    """Which rows of T they are."""
    asked: int
    """How many of T's rows were asked to find them."""
    beta: float
    """With biases the columns are W x + w/β; otherwise 0."""
    left_out: LeftOut | None
    """None where r is given, or all of W was found."""
    shown: float
    """What W may have beyond its rank as the block shows it that the rank was read off."""
    notes: tuple[str, ...]

    def hidden(self, values: Values) -> float:
        """Estimate the norm of what W may have beyond its rank, for a certificate."""
        return 0.0 if self.left_out is None else min(self.left_out(values), self.shown)


_Judged: TypeAlias = tuple[Indices, LeftOut | None, float, tuple[str, ...]]


def find_columns(
    probes: LowRankProbes, rank: int | None, most: float = ILL_CONDITIONED
) -> Asking[SpanningColumns]:
    """Ask for the columns of W at r of T's rows; r ≥ 1 is found where ``rank`` is None.

    One more token is asked where the columns' condition is above ``most`` times r.
    """
    grid, beta, seen = yield from _first_token(probes)
    judged: _Judged
    if rank is None:
        grid, width, judged = yield from _ask_until_dependent(probes, grid, seen)
    else:
        width = min(probes.dim, max(seen, 2 * rank))
        grid = yield from _ask_leading_block(probes, grid, (rank, width), seen)
        affordable = rank < probes.dim and width <= 2 * (rank + 1) - grid.again
        if affordable and _ill_conditioned(grid, width, most):
            grid = yield from _one_more(probes, grid, width)
        judged = _best(grid, width, rank), None, np.inf, ()
    tokens, left_out, shown, notes = judged
    asked = grid.shape[0]
    if len(tokens):
        grid = grid.kept(tokens)
        k = grid.common_scale()
        if width < probes.dim:
            yield from grid.ask(slice(None), slice(width, None), k)
        yield from grid.retry(k, 2 * (len(tokens) + 1))
    return SpanningColumns(grid, tokens, asked, beta, left_out, shown, notes)


def independent(columns: SpanningColumns) -> SpanningColumns:
    """Leave out tokens whose columns depend on the others': r may be below the given one."""
    if columns.left_out is not None or not len(columns.tokens):
        return columns  # the rank was found
    grid, seen = columns.grid, columns.grid.measured()
    hidden = partial(_noise, grid, grid.shape[1])
    noise = hidden(grid.values)
    rank = rank_by_gap(np.asarray(np.linalg.svd(seen, compute_uv=False)), noise)
    if rank == len(columns.tokens) or not np.isfinite(noise):
        return columns
    kept = pivots(seen.T, rank)
    note = f"Keys and queries were found to have rank {rank} together, below the one given."
    return replace(
        columns,
        grid=grid.kept(kept) if rank else grid,
        tokens=columns.tokens[kept],
        left_out=hidden,
        shown=np.inf,
        notes=(*columns.notes, note),
    )


def growths(dim: int) -> int:
    """Count the steps from one token to all."""
    steps, count = 0, 1
    while count < dim:
        steps, count = steps + 1, _next(count, dim)[0]
    return steps


# -- asking


def _first_token(probes: LowRankProbes) -> Asking[tuple[LogitGrid, float, int]]:
    """Ask for one token until its scale is known; with biases that settles β for all."""
    one, beta = np.arange(1), 0.0
    split = even if probes.biases else probes.split
    grid = probes.grid(probes.Z.rows, probes.tokens(one), split, "W, columns")
    k = grid.first_scale()
    pilots = len(SATURATED)
    yield from grid.pilot(one, k, pilots)
    if probes.biases:
        # β = α at the pilot: larger would cost digits, smaller would hide W beside w
        beta = float(grid.beta[0, 0])
        grid.split, grid.settled = at_query_scale(beta), True
    seen = 1
    for stage in STAGES:
        if stage.last is not None and stage.first < grid.shape[1]:
            seen = min(stage.last, grid.shape[1])
            k = grid.common_scale() - stage.below
            yield from grid.ask(slice(0, 1), slice(stage.first, seen), k)
    yield from grid.retry(k, pilots + FIRST_AGAIN)
    return grid, beta, seen


def _ask_until_dependent(
    probes: LowRankProbes, grid: LogitGrid, seen: int
) -> Asking[tuple[LogitGrid, int, _Judged]]:
    """Ask for more and more tokens until some depend on the others, or all are asked."""
    count = 0
    while True:
        count, width = _next(count, probes.dim)
        grid = yield from _ask_leading_block(probes, grid, (count, width), seen)
        seen = width
        judged = _judged(grid, width)
        if len(judged[0]) < count or count == probes.dim:
            return grid, width, judged


def _ask_leading_block(
    probes: LowRankProbes, grid: LogitGrid, block: tuple[int, int], seen: int
) -> Asking[LogitGrid]:
    """Ask until the leading ``block`` of (tokens, offsets) is known.

    All tokens of the grid have been asked with its first ``seen`` offsets: the further offsets of
    these tokens come first, then the further tokens.
    """
    count, width = block
    known = grid.shape[0]
    if width > seen:
        yield from grid.ask(slice(None), slice(seen, width), grid.common_scale())
    if count > known:
        grid = grid.widened(probes.tokens(np.arange(count)))
        begun = known
        if known == 1:
            # one token's scale is a guess for others: a few with one offset, then all of theirs
            begun = min(count, 1 + FEW)
            k = grid.common_scale() - CAUTION
            yield from grid.ask(slice(1, begun), slice(0, 1), k[1:begun])
            k = grid.common_scale()
            yield from grid.ask(slice(1, begun), slice(1, width), k[1:begun])
        if begun < count:
            k = grid.common_scale()[begun:]
            yield from grid.ask(slice(begun, None), slice(0, width), k)
    yield from grid.retry(grid.common_scale(), 2 * (count + 1))
    return grid


def _one_more(probes: LowRankProbes, grid: LogitGrid, width: int) -> Asking[LogitGrid]:
    """Ask one more token: this is paid as asking again."""
    new = grid.shape[0]
    grid = grid.widened(probes.tokens(np.arange(new + 1)))
    j, i = np.full(width, new), np.arange(width)
    yield from grid.ask_some(j, i, grid.common_scale()[j], "again")
    return grid


def _next(count: int, dim: int) -> tuple[int, int]:
    """Grow as far as tokens that turn out to be dependent cost no more than 2d."""
    following = count + 1
    while following < min(dim, 2 * count + 2) and (
        (following + 1 - count) * _width(following + 1, dim) <= 2 * dim
    ):
        following += 1
    following = min(following, dim)
    return following, _width(following, dim)


def _width(count: int, dim: int) -> int:
    """Offsets enough to condition ``count`` columns about as well as all would."""
    return min(dim, count + count // 2 + 4)


# -- judging the leading block


def _leading(grid: LogitGrid, width: int) -> tuple[Array, float]:
    """Return B's singular values and the noise beneath them."""
    singular = np.linalg.svd(grid.measured()[:, :width], compute_uv=False)
    return np.asarray(singular), _noise(grid, width, grid.values)


def _noise(grid: LogitGrid, width: int, values: Values) -> float:
    """Return what errors alone may give a singular value of B."""
    error = (grid.gates(values).logit_error / grid.scale)[:, :width]
    # errors e in n × n entries move a singular value by 2√n·e at most, and their bounds are loose
    return float(np.sqrt(max(error.shape)) * np.sqrt(np.mean(error**2)))


def _left_out(grid: LogitGrid, width: int, rank: int, values: Values) -> float:
    """Estimate what the noise of the leading block hides of W."""
    noise = _noise(grid, width, values) * float(np.sqrt(grid.shape[0] - rank))
    return _seen_less(grid, width, rank) * noise


def _seen_less(grid: LogitGrid, width: int, rank: int) -> float:
    """Return how many times less of W the leading block may see beyond its rank."""
    count, dim = grid.shape
    # random tokens and offsets see a singular value σ of W as entries of about σ/d
    seen = float(np.sqrt(count * width)) / dim
    return max(SEEN_LESS, small_by_chance(count - rank, BY_CHANCE)) / seen


def _shown(grid: LogitGrid, width: int, rank: int, beyond: Array) -> float:
    """Estimate what is left out of W by the block's singular values beyond the rank.

    They are what is left out and the answers' errors, which are independent of it, so that both
    together are rarely smaller by much than it is. Of rank 0 answers may all be round numbers.
    Where the block is all of W, both together are no smaller than it less the errors.
    """
    (count, dim), size = grid.shape, float(np.linalg.norm(beyond))
    if count == width == dim:
        return size + _noise(grid, width, grid.values) * float(np.sqrt(count - rank))
    if not rank:
        return np.inf
    numbers = (count - rank) * (width - rank)
    return _seen_less(grid, width, rank) * small_by_chance(numbers, BY_CHANCE) * size


def _ill_conditioned(grid: LogitGrid, width: int, most: float) -> bool:
    singular, noise = _leading(grid, width)
    return bool(singular[0] > most * len(singular) * singular[-1] and singular[-1] > noise)


def _best(grid: LogitGrid, width: int, rank: int) -> Indices:
    """Choose tokens whose columns are far from dependent."""
    return pivots(grid.measured()[:, :width].T, rank)


def _judged(grid: LogitGrid, width: int) -> _Judged:
    """Read the rank off B, choose as many tokens, and say what is below its noise."""
    singular, noise = _leading(grid, width)
    count = grid.shape[0]
    rank, notes = rank_by_gap(singular, noise), list[str]()
    left_out = partial(_left_out, grid, width, rank) if rank < count else None
    shown = _shown(grid, width, rank, singular[rank:]) if rank < count else np.inf
    if not rank:
        notes.append("The rank was found to be 0: W is 0 as far as the answers tell.")
    if 0 < rank < count:
        beyond = max(float(singular[rank]), 1e-300)
        notes.append(
            f"The rank was found to be {rank}: seen through {count} tokens and {width} offsets, "
            f"singular value {rank} of W is {singular[rank - 1] / singular[0]:.1e} of the largest, "
            f"the next one {beyond / singular[0]:.1e}, not above its noise of "
            f"{noise / singular[0]:.1e}."
        )
    return _best(grid, width, rank), left_out, shown, tuple(notes)
