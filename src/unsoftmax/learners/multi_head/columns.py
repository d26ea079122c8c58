"""The bulk: all columns of all W_h from the heads' windows, one query per entry.

All heads' windows are asked at query tokens b + t q for directions q, in blocks of columns, and
solved together (`learners.multi_head.column_table`). Once a column is predicted by those before
it, which takes a few rows more than there are columns, a head's other columns are asked with as
many rows as its rank. A few of them are asked with more: where answers show a tail of W beside that
rank, as they do where a W of low rank is stored as float32, all columns are read in full; a tail
that they do not show counts to the error.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.column_table import ColumnTable, ColumnTableTuning
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head.window_sweeps import UNSETTLED, WindowAnswers, WindowCells
from unsoftmax.probes import Array, Indices

# Where a logit is too large to be read, the query token is asked again so many times closer to b.
# A larger factor loses more digits of W b at once, a smaller one takes more rounds.
QUERY_NEARER_BY = 5.0
# Times that this is done: a logit that is still too large then is read wrongly.
QUERY_NEARER_TIMES = 6
# Ranks up to this one are tried one by one, each in a round of its own.
TRIED = 8
# Larger ranks are tried in steps of the columns known over this, up to half of d: fewer rounds,
# and at most an eighth more queries.
STEPS = 8


@dataclass(frozen=True, slots=True)
class HeadColumns:
    """W_h q for all heads and directions (H, d, k), how precise, and the ranks found."""

    W: Array
    error: Array
    """Estimated Frobenius norm of each head's error (H,)."""
    ranks: Indices
    off: Array
    """How far each entry was seen to move when answers did (H, d, k);"""
    base_off: Array
    """and those of u_h at b (H, d)."""


def read_columns(
    answers: WindowAnswers,
    s: Array,
    rank: int | None,
    rng: np.random.Generator,
    tuning: ColumnTableTuning,
    *,
    spanning: bool = False,
) -> Asking[HeadColumns]:
    """Read W_h q for all heads and directions; ``s`` (H, d) are the logits at b.

    ``spanning``: read only the first columns, as many as span all of every head.
    """
    table = ColumnTable.empty(answers, s, tuning)
    H, d, k = table.W.shape
    for first, last in blocks(d, k, rank, tuning.ample):
        now = np.arange(first, last)
        if rank is not None and first >= rank - 1:
            for h in range(H):
                table.close(h, first, rank)
        elif rank is None and first + 2 < d and 2 * first <= d:
            yield from _try_rank(table, first)
        if spanning and len(table.spaces) == H:
            table = yield from _spanning(table, first)
            break
        yield from answers.ask(_wanted(table, now), "columns")
        yield from _settle(table, now)
    last_move = table.settle_all()
    while tailed := table.tailed(given=rank is not None):
        yield from _read_whole(table, tailed, np.arange(k))
        last_move = table.settle_all()
    if np.any(table.lost) or last_move > UNSETTLED:
        raise CoincidentJumps
    unsettled = last_move * np.linalg.norm(table.W, axis=(1, 2))
    errors, off, base_off = table.errors(rng)
    return HeadColumns(table.W, errors + unsettled, table.ranks, off, base_off)


def no_columns(dim: int) -> HeadColumns:
    """Return the columns of no heads."""
    W, u = np.zeros((0, dim, dim)), np.zeros((0, dim))
    return HeadColumns(W, np.zeros(0), np.zeros(0, dtype=np.intp), W, u)


def blocks(d: int, k: int, rank: int | None, ample: float = 1.0) -> list[tuple[int, int]]:
    """Divide k columns: with a rank in two, else so that ranks can be tried between."""
    if rank is not None:
        cut = min(max(int(np.ceil(ample * rank)) - 1, 0), k)
        return [block for block in ((0, cut), (cut, k)) if block[0] < block[1]]
    edges = [0]
    while edges[-1] < k:
        at = edges[-1]
        step = 1 if at < TRIED else at // STEPS
        edges.append(min(k, at + step) if 2 * (at + step) <= d else k)
    return list(itertools.pairwise(edges))


def _wanted(table: ColumnTable, block: Indices) -> list[WindowCells]:
    """List what to ask of a block of columns; its first one may have been asked in part.

    The first columns of a head whose rank is known are asked with more rows than that.
    """
    wanted: list[WindowCells] = []
    for h, asked in enumerate(table.answers.asked):
        rows = table.rows_of(h)
        wanted += [(h, rows[~asked[rows, block[0]]], block[:1]), (h, rows, block[1:])]
        if h in table.spaces:
            space = table.spaces[h]
            new = block[(block < space.known + table.tuning.checked) & (block >= space.known)]
            asked_beside = asked[np.ix_(space.beside, new)].all(axis=0)
            wanted.append((h, space.beside, new[~asked_beside]))
    return wanted


def _try_rank(table: ColumnTable, column: int) -> Asking[None]:
    """Ask one column with as few rows as show whether those before predict it."""
    wanted: list[WindowCells] = []
    spaces = {h: space.unchecked() for h, space in table.spaces.items()}
    for h in range(len(table.W)):
        if h not in spaces:
            spaces[h] = table.space(h, column)
        wanted.append((h, spaces[h].both, np.array([column])))
    yield from table.answers.ask(wanted, "columns")
    # other heads' columns are not known yet: at first a prediction is held loosely
    predicted: list[int] = []
    for loosely in (True, True, True, False):
        predicted = []
        for h in table.heads.order:
            if table.predicts(h, column, spaces[h], loosely=loosely):
                predicted.append(h)
    for h in predicted:
        rank = spaces[h].basis.shape[1] - table.heads.shifted
        if column + 1 >= table.tuning.ample * rank:
            table.close(h, column)


def _spanning(table: ColumnTable, known: int) -> Asking[ColumnTable]:
    """Read the first columns in full, and more where they span a head badly; return these alone."""
    ranks, heads = table.ranks - table.heads.shifted, list(range(len(table.W)))
    yield from _read_whole(table, heads, np.arange(known))
    while known < table.W.shape[2] and not table.spanned_well(ranks, known):
        yield from _read_whole(table, heads, np.array([known]))
        known += 1
    return table.first(known)


def _read_whole(table: ColumnTable, heads: list[int], columns: Indices) -> Asking[None]:
    """Ask for what is left of some columns of some heads: more than their rank shows."""
    for h in heads:
        table.spaces.pop(h, None)  # if it leaves something beside it is of full rank
    missing: list[WindowCells] = [
        (h, np.flatnonzero(~table.answers.asked[h, :, j]), np.array([j]))
        for h, j in itertools.product(heads, columns)
    ]
    yield from table.answers.ask(missing, "columns")
    yield from _settle(table, columns)


def _settle(table: ColumnTable, columns: Indices) -> Asking[None]:
    """Settle columns; ask those whose logits moved too far again, closer to b."""
    answers = table.answers
    table.settle(columns)
    for _ in range(QUERY_NEARER_TIMES):
        lost = (table.lost | table.wide)[:, :, columns].any(axis=1)
        if not np.any(lost):
            return
        wanted: list[WindowCells] = []
        for h, n in zip(*np.nonzero(lost), strict=True):
            column = columns[n : n + 1]
            answers.t[h, column] /= QUERY_NEARER_BY
            table.W[h][:, column] = 0.0
            wanted.append((int(h), np.flatnonzero(answers.asked[h, :, column[0]]), column))
        yield from answers.ask(wanted, "columns again")
        table.settle(columns)
    raise CoincidentJumps
