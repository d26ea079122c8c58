"""Find query tokens x_1 … x_r whose columns W x_k span W's range, and measure these columns.

With biases the tokens measured are [W x_k + w/β], the columns of [W w] at (x_k, 1/β).

Any r random tokens would do, but by chance their columns may be nearly dependent, which costs
digits. A few offsets tell: the leading block B_jk = z_j·(W x_k) has the columns' singular
values but for a moderate factor. Where r is given and B is ill-conditioned one more token is
asked with these few offsets, and the best r stay. Where r is unknown the block grows until B
has fewer singular values above its noise than tokens: that is r. The tokens that are not
chosen were the price of knowing.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import qr

from unsoftmax.measure.logit_grid import STAGES, Block, common_scale, first_scale
from unsoftmax.measure.offsets import Offsets
from unsoftmax.measure.scales import Split, at_query_scale, even
from unsoftmax.measure.two_tokens import Values
from unsoftmax.probes import Array, Indices, Round, pick
from unsoftmax.protocol import Answers

# A pilot that is small by chance suggests a scale at which the next answers are lost.
_FIRST_AGAIN = 2
_CAUTION, _FEW = 3, 4
# Random tokens condition B by about 10 r; beyond this, one run in ten, digits are lost:
_CONDITION = 60.0
# Errors e in n × n entries move a singular value by 2√n·e at most, and their bounds are loose.
_NOISE = 1.0
# By chance the leading tokens and offsets may see so many times less of W than usual.
_SEEN_LESS = 4.0


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of W at some tokens, all measured."""

    block: Block
    """(r tokens, d offsets)."""
    tokens: Indices
    """Which rows of T they are."""
    beta: float
    """With biases the columns are W x + w/β; otherwise 0."""
    left_out: float
    """Estimate of the norm of what W may have beyond its rank r; 0 where r is given."""
    notes: tuple[str, ...]


def find_columns(
    values: Values, Z: Offsets, T: Offsets, rank: int | None, biases: bool, split: Split
) -> Generator[Round, Answers, Columns]:
    """Ask for the columns of W at r of T's rows.

    Parameters
    ----------
    values : Values
        v̂ and ĉ.
    Z, T : Offsets
        All d offsets, balanced on v̂, and d orthonormal query tokens.
    rank : int or None
        r ≥ 1, to be found where it is None.
    biases : bool
        Whether there may be a w.
    split : callable
        How scales are divided where there is none.
    """
    dim = len(values.v)
    most = 4 if rank is None else 2 * (rank + 1)
    block, beta, seen = yield from _first(values, Z, T, biases, split, most)
    if rank is None:
        count = 0
        while True:
            count, width = _next(count, dim)
            block = yield from _lead(block, T, count, width, seen)
            seen = width
            tokens, left_out, notes = _judged(block, width)
            if len(tokens) < count or count == dim:
                break
    else:
        width = min(dim, max(seen, 2 * rank))
        block = yield from _lead(block, T, rank, width, seen)
        spare = 2 * (rank + 1) - block.again
        if rank < dim and width <= spare and _ill(block, width):
            block = yield from _one_more(block, T, width)
        tokens, left_out, notes = _best(block, width, rank), 0.0, ()
    if len(tokens):
        block = block.kept(tokens)
        k = common_scale(block)
        if width < dim:
            yield from block.ask(slice(None), slice(width, None), k)
        yield from block.retry(k, 2 * (len(tokens) + 1))
    return Columns(block, tokens, beta, left_out, notes)


def _first(
    values: Values, Z: Offsets, T: Offsets, biases: bool, split: Split, most: int
) -> Generator[Round, Answers, tuple[Block, float, int]]:
    """Ask for one token until its scale is known; with biases that settles β for all."""
    one, phase, beta = np.arange(1), "W, columns", 0.0
    block = Block(Z.rows, pick(T.rows, one), values, even if biases else split, phase)
    k = first_scale(block)
    yield from block.pilot(one, k, 2)
    if biases:
        # β = α at the pilot: larger would cost digits, smaller would hide W beside w
        beta = float(block.beta[0, 0])
        block.split = at_query_scale(beta)
    seen = 1
    for first, last, reserve in STAGES:
        if last is not None and first < block.shape[1]:
            seen = min(last, block.shape[1])
            k = common_scale(block) - reserve
            yield from block.ask(slice(0, 1), slice(first, seen), k)
    yield from block.retry(k, min(most, 2 + _FIRST_AGAIN))
    return block, beta, seen


def _lead(
    block: Block, T: Offsets, count: int, width: int, seen: int
) -> Generator[Round, Answers, Block]:
    """Ask until the first ``count`` tokens are known at the first ``width`` offsets."""
    known = block.shape[0]
    if width > seen:
        yield from block.ask(slice(None), slice(seen, width), common_scale(block))
    if count > known:
        block = block.widened(pick(T.rows, np.arange(count)))
        begun = known
        if known == 1:
            # by chance the first column may be short: four more tell before the rest is asked
            begun = min(count, 1 + _FEW)
            k = common_scale(block) - _CAUTION
            yield from block.ask(slice(1, begun), slice(0, 1), k[1:begun])
            k = common_scale(block)
            yield from block.ask(slice(1, begun), slice(1, width), k[1:begun])
        if begun < count:
            yield from block.ask(slice(begun, None), slice(0, width), common_scale(block)[begun:])
    yield from block.retry(common_scale(block), 2 * (count + 1))
    return block


def _one_more(block: Block, T: Offsets, width: int) -> Generator[Round, Answers, Block]:
    """Ask one more token: this is paid as asking again."""
    new = block.shape[0]
    block = block.widened(pick(T.rows, np.arange(new + 1)))
    j, i = np.full(width, new), np.arange(width)
    yield from block.ask_some(j, i, common_scale(block)[j], "again")
    return block


def _next(count: int, dim: int) -> tuple[int, int]:
    """Grow as far as tokens that turn out to be dependent cost no more than 2d."""
    following = count + 1
    while following < min(dim, 2 * count + 2) and (
        (following + 1 - count) * _width(following + 1, dim) <= 2 * dim
    ):
        following += 1
    following = min(following, dim)
    return following, _width(following, dim)


def growths(dim: int) -> int:
    """Count the steps from one token to all."""
    steps, count = 0, 1
    while count < dim:
        steps, count = steps + 1, _next(count, dim)[0]
    return steps


def _width(count: int, dim: int) -> int:
    """Offsets enough to condition ``count`` columns about as well as all would."""
    return min(dim, count + count // 2 + 4)


def _leading(block: Block, width: int) -> tuple[Array, float]:
    """Return B's singular values and the noise beneath them."""
    B = block.measured()[:, :width]
    error = (block.gates().logit_error / block.scale)[:, :width]
    singular = np.linalg.svd(B, compute_uv=False)
    noise = _NOISE * np.sqrt(max(B.shape)) * np.sqrt(np.mean(error**2))
    return np.asarray(singular), float(noise)


def _ill(block: Block, width: int) -> bool:
    singular, noise = _leading(block, width)
    return bool(singular[0] > _CONDITION * len(singular) * singular[-1] and singular[-1] > noise)


def _best(block: Block, width: int, rank: int) -> Indices:
    """Choose tokens whose columns are far from dependent: the first pivots."""
    _, pivots = qr(block.measured()[:, :width].T, mode="r", pivoting=True)
    return np.sort(pivots[:rank]).astype(np.intp)


def _judged(block: Block, width: int) -> tuple[Indices, float, tuple[str, ...]]:
    """Read the rank off B, choose as many tokens, and estimate what is below its noise."""
    singular, noise = _leading(block, width)
    count, dim = block.shape
    rank = int(np.count_nonzero(singular > noise))
    left_out, notes = 0.0, list[str]()
    if rank < count:
        # random tokens and offsets see a singular value σ of W as entries of about σ/d
        seen = float(np.sqrt(count * width)) / dim
        left_out = _SEEN_LESS * noise * float(np.sqrt(count - rank)) / seen
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
    return _best(block, width, rank), left_out, tuple(notes)
