"""Measure M_ji = z_i·(W b_j) for every offset z_i and query token b_j, one answer each.

By the two-token identity each answer gives one logit t = s·z_i·(W b_j); its digits are best
for |t| near 1 and gone for |t| > 30 or so. So each query token gets its own scale s = 2^k,
found on the way with queries that count as data:

1. a pilot, asked again at most twice at another scale when its logit is out of range;
2. a second offset at ⅛ of the scale that the pilot suggests (it may be small by chance);
3. three more at ¼ of the scale that puts the RMS of both logits at ½;
4. the rest at the scale that puts the RMS of these five at ½;
5. again, what is still out of range or much less precise than its column.

At most ``spare`` queries are asked again. `unsoftmax.measure.scales` says how a scale is divided.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.measure.precision import ADVICE, Precision
from unsoftmax.measure.reading import Reading
from unsoftmax.measure.scales import Exponents, Split
from unsoftmax.measure.two_tokens import Gates, TwoTokenAnswers, Values, Vectors
from unsoftmax.probes import Array, Grid, Indices, Pairs, Purpose, Round, Rows, pick
from unsoftmax.protocol import Answers

Ask: TypeAlias = Generator[Round, Answers, None]

# A pilot beyond this has lost digits.
_LARGEST = 6.0
_TARGET = 0.5
# With fewer offsets than this the pilot's digits matter: |t| below _SMALLEST is asked again.
_ENOUGH = 5
_SMALLEST = 0.1
# Where each stage ends, and by how many octaves it stays below the suggested scale.
STAGES = ((1, 2, 3), (2, 5, 2), (5, None, 0))
# An answer is asked again when its error is this many times its column's median: at 1e3 the
# worst runs at d = 128 lost a digit, below 60 generic columns are asked again for nothing.
_POOR = 60.0
# Unresolved logits are below 100 times their error, so the scale can be raised by its inverse.
_RESOLVED = 100.0
# A saturated pilot says only that |t| > 30: try a million times less, and once more.
_SATURATED = (-20, -24, 0)
# Other saturated answers bound the scale from above, well below where they were asked.
_SATURATED_STEP = 6
# Scaled tokens and their answers must stay in float32's range, 2^±126, for ‖v‖ up to 10⁶.
_EXTREME = 100


@dataclass(slots=True)
class Block:
    """Answers to (query tokens, offsets), with the scales they were asked at; NaN before that."""

    offsets: Rows
    queries: Rows
    values: Values
    split: Split
    phase: str
    shift: Array | None = None
    """z_i·w, the part of a logit per unit offset that is not the query token's."""
    y: Array = field(init=False)
    alpha: Array = field(init=False)
    beta: Array = field(init=False)
    a: Vectors = field(init=False)
    b: Vectors = field(init=False)
    again: int = field(init=False, default=0)
    """Queries that were asked again."""

    def __post_init__(self) -> None:
        self.y, self.alpha, self.beta = np.full((3, *self.shape), np.nan)
        self.a = Vectors.of(self.offsets, self.values)
        self.b = Vectors.of(self.queries, self.values).take((slice(None), None))

    @property
    def shape(self) -> tuple[int, int]:
        """Number of query tokens and of offsets."""
        return self.queries.shape[0], self.offsets.shape[0]

    def widened(self, queries: Rows) -> Block:
        """Return the block with room for more query tokens; these begin with the old ones."""
        wider = Block(self.offsets, queries, self.values, self.split, self.phase, self.shift)
        for mine, its in ((self.y, wider.y), (self.alpha, wider.alpha), (self.beta, wider.beta)):
            its[: len(mine)] = mine
        wider.again = self.again
        return wider

    def kept(self, tokens: Indices) -> Block:
        """Return the block of some query tokens alone."""
        rows = pick(self.queries, tokens)
        kept = Block(self.offsets, rows, self.values, self.split, self.phase, self.shift)
        kept.y, kept.alpha, kept.beta = (x[tokens] for x in (self.y, self.alpha, self.beta))
        kept.again = self.again
        return kept

    @property
    def scale(self) -> Array:
        """S = αβ of every answer."""
        return self.alpha * self.beta

    def answered(self, values: Values | None = None) -> TwoTokenAnswers:
        """Return all answers as they were asked; ``values`` may assume another precision."""
        values = self.values if values is None else values
        return TwoTokenAnswers(self.y, self.a, self.b, self.alpha, self.beta, values)

    def gates(self, values: Values | None = None) -> Gates:
        """Read every answer through the two-token identity."""
        return self.answered(values).gates()

    def measured(self) -> Array:
        """Return M̂, (query tokens, offsets)."""
        return self.answered().measured(0.0 if self.shift is None else self.shift)

    def reading(
        self,
        values: Values,
        columns: Array,
        w: Array,
        stretch: float,
        shift_error: float = 0.0,
    ) -> Reading:
        """Return M̂ with its errors; see `TwoTokenAnswers.reading`.

        ``values`` holds the precision that is assumed, ``columns`` are the norms ‖W b_j‖,
        ``stretch`` is ‖Z‖₂, and ``shift_error`` bounds ‖Δshift‖₂.
        """
        score_norm = self.beta * columns[:, None] + np.linalg.norm(w)
        shift = 0.0 if self.shift is None else self.shift
        return self.answered(values).reading(score_norm, stretch, shift, shift_error)

    def unbounded(self, values: Values) -> tuple[str, ...]:
        """Say how many logits have no bound."""
        margin = self.gates(values).margin
        lost = np.count_nonzero(~(margin > 0))
        if not lost:
            return ()
        return (
            f"No bound on W: {lost} of {margin.size} answers are within their own error of b·v or "
            "(a+b)·v, so their logits are unbounded.",
        )

    def ask(self, tokens: slice, offsets: slice, k: Exponents) -> Ask:
        """Ask for some query tokens, at a scale each, with some offsets."""
        rows = np.arange(*tokens.indices(self.shape[0]))
        columns = np.arange(*offsets.indices(self.shape[1]))
        alpha, beta = self.split(k)
        self.alpha[tokens, offsets] = alpha[:, None]
        self.beta[tokens, offsets] = beta[:, None]
        grid = Grid(
            pick(self.offsets, columns),
            pick(self.queries, rows),
            alpha,
            beta,
            phase=self.phase,
            purpose="data",
        )
        [y] = yield [grid]
        self.y[tokens, offsets] = grid.table(y)

    def ask_some(self, j: Indices, i: Indices, k: Exponents, purpose: Purpose) -> Ask:
        """Ask for single pairs of a query token and an offset, at a scale each."""
        alpha, beta = self.split(k)
        self.alpha[j, i], self.beta[j, i] = alpha, beta
        name = f"{self.phase}, again" if purpose == "again" else self.phase
        pairs = Pairs(self.offsets, self.queries, i, j, alpha, beta, phase=name, purpose=purpose)
        [self.y[j, i]] = yield [pairs]
        self.again += len(j) if purpose == "again" else 0

    def pilot(self, tokens: Indices, k: Exponents, spare: int) -> Ask:
        """Ask for the first offset, again where the logit is out of range; ``k`` is adjusted."""
        purpose: Purpose = "pilot"
        for lower in _SATURATED:
            zeros = np.zeros(len(tokens), dtype=np.intp)
            yield from self.ask_some(tokens, zeros, k[tokens], purpose)
            better = _better_scale(self, tokens, k[tokens], lower)
            changed = np.not_equal(self.split(better), self.split(k[tokens])).any(axis=0)
            tokens, purpose = tokens[changed][: spare - self.again], "again"
            if not lower or not len(tokens):
                break
            k[tokens] = better[changed][: len(tokens)]

    def retry(self, k: Exponents, spare: int) -> Ask:
        """Ask again what is out of range or much less precise than its column, worst first."""
        while self.again < spare:
            j, i, k_better = (x[: spare - self.again] for x in _poor(self, k))
            if not len(j):
                break
            yield from self.ask_some(j, i, k_better, "again")
        _refuse_unreadable(self)


def measure(
    values: Values,
    offsets: Rows,
    queries: Rows,
    split: Split,
    phase: str,
    spare: int,
    shift: Array | None = None,
) -> Generator[Round, Answers, Block]:
    """Ask for every (query token, offset) once, and again where the logit was out of range.

    Parameters
    ----------
    values : Values
        v̂ and ĉ.
    offsets, queries : Rows (n_a, d), (n_b, d)
        What to ask; no offset with z·v = 0.
    split : callable
        How a scale s = 2^k becomes α (offset) and β (query token): `free`, `offset_only`
        or `beside_bias`.
    phase : str
        Name of the progress shown.
    spare : int
        Queries that may be asked again.
    shift : ndarray (n_a,), optional
        z_i·w, already measured, when queries have a bias.
    """
    block = Block(offsets, queries, values, split, phase, shift)
    tokens, count = block.shape
    k = first_scale(block)
    yield from block.pilot(np.arange(tokens), k, spare)
    for first, last, reserve in STAGES:
        if first < count:
            k = _suggested_scale(block, first, k) - reserve
            yield from block.ask(slice(None), slice(first, last), k)
    yield from block.retry(k, spare)
    return block


def common_scale(block: Block, k: int | None = None) -> Exponents:
    """Suggest one scale for all query tokens from every logit seen so far.

    For tokens that are random to W: then all columns W b are about equally long. ``k`` is
    taken where no logit was asked; where none can be told from 0 the scale stays.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        measured = block.measured()
        error = block.gates().logit_error / block.scale
        usable = np.isfinite(measured) & np.isfinite(error)
        asked = np.isfinite(block.y)
        octaves = np.log2(block.scale)
    suggested = int(np.median(octaves[asked])) if k is None else k
    if np.any(usable):
        rms = float(np.sqrt(np.mean(measured[usable] ** 2)))
        if rms > np.sqrt(np.mean(error[usable] ** 2)):
            suggested = int(_octaves(np.array(_TARGET / rms)))
    if np.any(saturated := asked & ~np.isfinite(error)):
        suggested = min(suggested, int(np.min(octaves[saturated])) - _SATURATED_STEP)
    return np.full(block.shape[0], suggested)


def first_scale(block: Block) -> Exponents:
    """Guess a scale for query tokens of norm 1: logits are moderate for the W of trained heads."""
    octaves = int(np.round(np.log2(np.sqrt(block.offsets.shape[1]) * _TARGET)))
    return np.full(block.shape[0], octaves)


def _refuse_unreadable(block: Block) -> None:
    """Refuse answers outside what any weights can give, and logits still out of range."""
    gates = block.gates()
    asked = np.isfinite(block.y)
    outside = np.maximum(-gates.p, gates.p - 1) > 3 * gates.p_error
    if np.any(outside):
        raise ModelMismatch(
            f"{np.count_nonzero(outside)} of {outside.size} answers to two tokens lie outside of "
            "what any attention weights between them can give: no single attention head answers so."
        )
    if lost := np.count_nonzero(asked & ~np.isfinite(gates.logit)):
        raise NotIdentifiable(
            f"{lost} of {outside.size} logits are out of the answers' reach: they equal b·v or "
            "(a+b)·v to the last digit at every scale tried, as with hard attention. v is "
            "determined, W is not. "
            + " ".join(block.values.precision.why)
            + (ADVICE if block.values.precision != Precision() else ""),
            determined={"v": block.values.v, "c": block.values.c},
        )


def _read(block: Block, j: Indices | slice, i: int | slice) -> tuple[Array, Array, Gates]:
    """Return the logit's part from W, its error, and the gates of some answers."""
    alpha, beta = block.alpha[j, i], block.beta[j, i]
    b = block.b.take((j, slice(None)) if isinstance(i, slice) else (j, 0))
    gates = TwoTokenAnswers(block.y[j, i], block.a.take(i), b, alpha, beta, block.values).gates()
    logit = gates.logit if block.shift is None else gates.logit - alpha * block.shift[i]
    logit = np.where(gates.margin > 3 * gates.p_error, logit, np.nan)
    return logit, gates.logit_error, gates


def _better_scale(block: Block, j: Indices, k: Exponents, lower: int) -> Exponents:
    """Suggest a scale for pilots that are out of range; the same where they are in range."""
    logit, error, gates = _read(block, j, 0)
    size = np.abs(logit)
    with np.errstate(divide="ignore", invalid="ignore"):
        step = np.where(np.abs(gates.logit) > _LARGEST, _octaves(_TARGET / size), 0.0)
        step = np.where(size <= _RESOLVED * error, _octaves(_TARGET / _RESOLVED / error), step)
        if block.shape[1] < _ENOUGH:
            step = np.where(size < _SMALLEST, np.maximum(step, _octaves(_TARGET / size)), step)
    step = np.where(np.isnan(logit), lower, step)
    return np.clip(k + step, -_EXTREME, _EXTREME).astype(np.int64)


def _suggested_scale(block: Block, seen: int, k: Exponents) -> Exponents:
    """Put the RMS of the logits seen so far at the target."""
    logit, error, _ = _read(block, slice(None), slice(0, seen))
    usable = np.isfinite(logit)
    with np.errstate(divide="ignore", invalid="ignore"):
        per_scale = np.where(usable, logit / block.scale[:, :seen], 0.0)
        spread = np.where(usable, error / block.scale[:, :seen], 0.0)
        rms = np.sqrt(np.sum(per_scale**2, axis=1) / np.sum(usable, axis=1))
        floor = np.sqrt(np.sum(spread**2, axis=1) / np.sum(usable, axis=1))
        suggested = _octaves(_TARGET / rms)
    # nothing but rounding: W b = 0 as far as the answers tell, and any scale is as good
    suggested = np.where(rms > floor, suggested, k)
    # a saturated answer bounds the scale from above whatever the others say
    with np.errstate(invalid="ignore"):
        scales = np.where(usable, np.inf, block.scale[:, :seen])
        lowest = np.min(np.log2(scales), axis=1)
    suggested = np.minimum(
        suggested, np.where(np.isfinite(lowest), lowest - _SATURATED_STEP, _EXTREME)
    )
    return np.clip(suggested, -_EXTREME, _EXTREME).astype(np.int64)


def _poor(block: Block, k: Exponents) -> tuple[Indices, Indices, Exponents]:
    """Find answers far less precise than their column, worst first, and a better scale."""
    logit, error, _ = _read(block, slice(None), slice(None))
    asked = np.isfinite(block.y)
    with np.errstate(invalid="ignore", divide="ignore"):
        # the offset's own share, 1/|a·v|, is no fault of the scale
        blame = error / block.scale * np.abs(block.a.value) / block.a.norm
        blame = np.where(np.isfinite(logit), blame, np.inf)
        # by the lower quartile: finite even where half of a column is saturated
        quartile = np.count_nonzero(asked, axis=1) // 4
        typical = np.take_along_axis(np.sort(blame, axis=1), quartile[:, None], axis=1)
        j, i = np.nonzero(asked & (blame > _POOR * typical))
        at_one = _octaves(block.scale[j, i] / np.abs(logit[j, i]))
        lower = _octaves(block.scale[j, i]) - _SATURATED_STEP
    better = np.where(np.isfinite(logit[j, i]), np.minimum(at_one, k[j]), lower)
    worst_first = np.argsort(-blame[j, i], kind="stable")
    j, i, better = j[worst_first], i[worst_first], better[worst_first].astype(np.int64)
    alpha, beta = block.split(better)
    changes = (alpha != block.alpha[j, i]) | (beta != block.beta[j, i])
    return j[changes], i[changes], better[changes]


def _octaves(ratio: Array) -> Array:
    """Round log₂ to an integer, within what float64 scales can be."""
    octaves: Array = np.round(np.clip(np.log2(ratio), -_EXTREME, _EXTREME))
    return octaves
