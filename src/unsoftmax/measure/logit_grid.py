"""Read M_ji = z_i·(W b_j) for every offset z_i and query token b_j, one answer each.

By the two-token identity (Theorem 4.1) each answer gives one logit t = s·z_i·(W b_j), whose
digits are best for |t| near 1 and gone for |t| > 30 or so. So each query token gets its own
scale s = 2^k, found on the way with queries that count as data:

1. a pilot, asked again at most twice at another scale when its logit is out of range;
2. the stages of `LogitGridTuning.stages`: a second offset at ⅛ of the scale that the pilot
   suggests, three more at ¼ of the scale that puts the RMS of both logits at ½, and the rest at
   the scale that puts the RMS of these five at ½;
3. again, what is still out of range or much less precise than its column.

*Queries*: query tokens × offsets; at most ``spare`` are asked again. v and c must be known, and
no offset may be orthogonal to v. `unsoftmax.measure.scales` says how a scale is divided between
offset and query token, `unsoftmax.measure.logit_scales` which one to ask at.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.measure.logit_scales import (
    LogitGridTuning,
    SeenLogits,
    better_scale,
    common_scale,
    first_scale,
    poor_readings,
    suggested_scale,
)
from unsoftmax.measure.precision import ADVICE, advice, why
from unsoftmax.measure.reading import Reading
from unsoftmax.measure.scales import Exponents, Split
from unsoftmax.measure.single_tokens import Values
from unsoftmax.measure.two_tokens import Gates, TwoTokenAnswers, Vectors
from unsoftmax.probes import Array, Grid, Indices, Pairs, Purpose, Round, Rows, pick
from unsoftmax.protocol import Answers

Ask: TypeAlias = Generator[Round, Answers, None]


@dataclass(slots=True)
class LogitGrid:
    """Answers to (query tokens, offsets), with the scales they were asked at; NaN before that."""

    offsets: Rows
    """z_i, (n_a, d); none with z·v = 0."""
    queries: Rows
    """b_j, (n_b, d)."""
    values: Values
    """v̂ and ĉ."""
    split: Split
    """How a scale s = 2^k becomes α (offset) and β (query token); see `measure.scales`."""
    phase: str
    """Name of the progress shown."""
    shift: Array | None = None
    """z_i·w, the part of a logit per unit offset that is not the query token's."""
    tuning: LogitGridTuning = field(default=LogitGridTuning(), kw_only=True)
    y: Array = field(init=False)
    alpha: Array = field(init=False)
    beta: Array = field(init=False)
    a: Vectors = field(init=False)
    b: Vectors = field(init=False)
    again: int = field(init=False, default=0)
    """Queries that were asked again."""

    def __post_init__(self) -> None:
        self.y, self.alpha, self.beta = np.full((3, *self.shape), np.nan)
        self.take(self.values)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of query tokens and of offsets."""
        return self.queries.shape[0], self.offsets.shape[0]

    def widened(self, queries: Rows) -> LogitGrid:
        """Return the grid with room for more query tokens; these begin with the old ones."""
        wider = replace(self, queries=queries)
        for mine, its in ((self.y, wider.y), (self.alpha, wider.alpha), (self.beta, wider.beta)):
            its[: len(mine)] = mine
        wider.again = self.again
        return wider

    def kept(self, tokens: Indices) -> LogitGrid:
        """Return the grid of some query tokens alone."""
        kept = replace(self, queries=pick(self.queries, tokens))
        kept.y, kept.alpha, kept.beta = (x[tokens] for x in (self.y, self.alpha, self.beta))
        kept.again = self.again
        return kept

    def moved(
        self, rng: np.random.Generator, values: Values, columns: Array, w: Array | float = 0.0
    ) -> LogitGrid:
        """Return the grid with all answers moved by about as much as they are off.

        ``values`` are moved alike; ``columns`` are the norms ‖W b_j‖.
        """
        score_norm = self.beta * columns[:, None] + np.linalg.norm(w)
        moved = replace(self, values=values)
        moved.y = self.answered().moved(rng, score_norm)
        moved.alpha, moved.beta = self.alpha, self.beta
        return moved

    @property
    def scale(self) -> Array:
        """The scales s = αβ of all answers."""
        return self.alpha * self.beta

    def take(self, values: Values) -> None:
        """Assume other errors of v and c, and another precision."""
        self.values = values
        self.a = Vectors.of(self.offsets, values)
        self.b = Vectors.of(self.queries, values).take((slice(None), None))

    def _listen(self) -> None:
        """Let the answers tell their precision where single tokens left it open."""
        if self.values.reread is not None:
            self.take(self.values.told_by(self.answered().telling))

    # -- what the answers say

    def answered(self, values: Values | None = None) -> TwoTokenAnswers:
        """Return all answers as they were asked; ``values`` may assume other errors."""
        if values is None:
            return TwoTokenAnswers(self.y, self.a, self.b, self.alpha, self.beta, self.values)
        a, b = Vectors.of(self.offsets, values), Vectors.of(self.queries, values)
        b = b.take((slice(None), None))
        return TwoTokenAnswers(self.y, a, b, self.alpha, self.beta, values)

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

    def seen(self, tokens: Indices | slice, offsets: int | slice) -> SeenLogits:
        """Return the logits of some answers and what is known of them."""
        rows = (tokens, slice(None)) if isinstance(offsets, slice) else (tokens, 0)
        asked = TwoTokenAnswers(
            self.y[tokens, offsets],
            self.a.take(offsets),
            self.b.take(rows),
            self.alpha[tokens, offsets],
            self.beta[tokens, offsets],
            self.values,
        )
        shift = 0.0 if self.shift is None else self.shift[offsets]
        return SeenLogits.of(asked, shift, self.tuning.trusted)

    def common_scale(self, k: int | None = None) -> Exponents:
        """Suggest one scale for all query tokens; see `logit_scales.common_scale`."""
        suggested = common_scale(self.answered(), self.measured(), k, self.tuning)
        return np.full(self.shape[0], suggested)

    def first_scale(self) -> Exponents:
        """Guess a scale before anything is asked; see `logit_scales.first_scale`."""
        return first_scale(self.shape[0], self.offsets.shape[1], self.tuning)

    # -- asking

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
        self._listen()

    def ask_some(self, j: Indices, i: Indices, k: Exponents, purpose: Purpose) -> Ask:
        """Ask for single pairs of a query token and an offset, at a scale each."""
        alpha, beta = self.split(k)
        self.alpha[j, i], self.beta[j, i] = alpha, beta
        name = f"{self.phase}, again" if purpose == "again" else self.phase
        pairs = Pairs(self.offsets, self.queries, i, j, alpha, beta, phase=name, purpose=purpose)
        [self.y[j, i]] = yield [pairs]
        self._listen()
        self.again += len(j) if purpose == "again" else 0

    def pilot(self, tokens: Indices, k: Exponents, spare: int) -> Ask:
        """Ask for the first offset, again where the logit is out of range; ``k`` is adjusted."""
        tuning, few = self.tuning, self.shape[1] < self.tuning.few_offsets
        yield from self.ask_some(tokens, np.zeros_like(tokens), k[tokens], "pilot")
        for lowered in tuning.saturated:
            better = better_scale(self.seen(tokens, 0), k[tokens], lowered, few, tuning)
            changed = np.not_equal(self.split(better), self.split(k[tokens])).any(axis=0)
            tokens = tokens[changed][: spare - self.again]
            if not len(tokens):
                break
            k[tokens] = better[changed][: len(tokens)]
            yield from self.ask_some(tokens, np.zeros_like(tokens), k[tokens], "again")

    def retry(self, k: Exponents, spare: int) -> Ask:
        """Ask again what is out of range or much less precise than its column, worst first."""
        while self.again < spare:
            j, i, better = (x[: spare - self.again] for x in self._poor(k))
            if not len(j):
                break
            yield from self.ask_some(j, i, better, "again")
        self._refuse_unreadable()

    def _poor(self, k: Exponents) -> tuple[Indices, Indices, Exponents]:
        """Find answers to ask again, worst first, and the scales that change something."""
        seen, weight = self.seen(slice(None), slice(None)), np.abs(self.a.value) / self.a.norm
        j, i, better = poor_readings(seen, np.isfinite(self.y), weight, k, self.tuning)
        alpha, beta = self.split(better)
        changes = (alpha != self.alpha[j, i]) | (beta != self.beta[j, i])
        return j[changes], i[changes], better[changes]

    def _refuse_unreadable(self) -> None:
        """Refuse answers outside what any weights can give, and logits still out of range."""
        gates, values = self.gates(), self.values
        asked = np.isfinite(self.y)
        outside = np.maximum(-gates.p, gates.p - 1) > self.tuning.trusted * gates.p_error
        if np.any(outside) and values.reread is not None:
            raise NotIdentifiable(
                "The answers are too coarse to determine W, or the target is no single attention "
                f"head: {np.count_nonzero(outside)} of {outside.size} answers to two tokens lie "
                "outside of what exact answers allow, and no answer told whether they are rounded "
                "or the head's values are round. v is determined." + ADVICE,
                determined={"v": values.v, "c": values.c},
            )
        if np.any(outside):
            raise ModelMismatch(
                f"{np.count_nonzero(outside)} of {outside.size} answers to two tokens lie outside "
                "of what any attention weights between them can give: no single attention head "
                "answers so."
            )
        if lost := np.count_nonzero(asked & ~np.isfinite(gates.logit)):
            # with errors of half their range and more no answer has a logit, whatever it is
            drowned = np.median(gates.p_error[asked & ~np.isfinite(gates.logit)]) >= 1 / 2
            cause = (
                "answers may be off by more than the weights change in them"
                if drowned
                else "answers equal b·v or (a+b)·v as far as they tell, as with hard attention or "
                "where logits are too far apart to be in range together"
            )
            raise NotIdentifiable(
                f"{lost} of {outside.size} logits are out of the answers' reach: at every scale "
                f"tried {cause}. v is determined, W is not."
                + why(values.precision)
                + advice(values.precision),
                determined={"v": values.v, "c": values.c},
            )


def measure(grid: LogitGrid, spare: int) -> Generator[Round, Answers, LogitGrid]:
    """Ask for every (query token, offset) once, at most ``spare`` again; return the grid.

    Raises
    ------
    ModelMismatch
        Answers lie outside of what any attention weights can give.
    NotIdentifiable
        Logits are out of the answers' reach at every scale tried; or answers lie outside of what
        exact ones allow while their format is open (`Values.reread`).
    """
    tokens, count = grid.shape
    k = grid.first_scale()
    yield from grid.pilot(np.arange(tokens), k, spare)
    for stage in grid.tuning.stages:
        if stage.first < count:
            seen = grid.seen(slice(None), slice(0, stage.first))
            k = suggested_scale(seen, k, grid.tuning) - stage.below
            yield from grid.ask(slice(None), slice(stage.first, stage.last), k)
    yield from grid.retry(k, spare)
    return grid


def measure_unscaled(grid: LogitGrid) -> Generator[Round, Answers, LogitGrid]:
    """Ask for every (query token, offset) once, at scale 1, whatever the logits are.

    Raises
    ------
    ModelMismatch, NotIdentifiable
        As `measure` does; logits may be out of reach here that another scale would bring back.
    """
    k = np.zeros(grid.shape[0], dtype=np.int64)
    yield from grid.ask(slice(None), slice(None), k)
    try:
        yield from grid.retry(k, 0)
    except NotIdentifiable as error:
        raise NotIdentifiable(
            f"{error} Only unit scales were allowed: others may bring them into range.",
            determined=error.determined,
        ) from error
    return grid
