"""One head with rotary positions, from scalar answers: d + 2dr queries.

Recovers v, the frequencies of the planes, and all W(Δ) = Kᵀ R(Δ) Q of rank r: as many numbers
as there are but for r, since K and Q are free up to one complex number per plane. With biases
see `biased_rotary_head`. It is what `LowRankHead` and `ExactHead` do with ``rotary``.

    f([x]) = x·v + c                            v
    [αa; βb], α ≫ β                             W(1) = B L: as a head without positions
    [αa; 0; βb], r offsets × r query tokens     W(2) X, and T = P R(1) P⁻¹

A query token that is 2⁻⁸⁰ times an offset has a score of its own that is nothing beside a·W(1)b,
and a zero token scores exactly 0: distance is the only thing that a zero between them changes.
All W(Δ) follow from two, in exact arithmetic: one step of distance is a matrix T, and a step
turns planes. Source: beyond Theorem 5.1; positions are in no paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from unsoftmax.errors import NotIdentifiable
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.rotary_head.biased_reading import BiasedTuning, read_biased
from unsoftmax.learners.rotary_head.rotary_conclusion import (
    RotaryHoldoutTuning,
    conclude_turned,
)
from unsoftmax.learners.rotary_head.rotary_reading import RotaryTuning, TurnedReading, turned
from unsoftmax.learners.settings import positive
from unsoftmax.learners.single_head.column_space import (
    ColumnTuning,
    SpanningColumns,
    find_columns,
    growths,
)
from unsoftmax.learners.single_head.conclusion import ConclusionTuning, conclude
from unsoftmax.learners.single_head.factored_reading import ZeroReading
from unsoftmax.learners.single_head.first_round import (
    FirstRoundSettings,
    FirstRoundTuning,
    ask_first_round,
)
from unsoftmax.learners.single_head.low_rank_probes import LowRankProbes
from unsoftmax.learners.single_head.row_space import RowTuning, read_rows
from unsoftmax.measure import offsets
from unsoftmax.measure.logit_grid import LogitGrid
from unsoftmax.measure.logit_scales import LogitGridTuning
from unsoftmax.measure.offsets import DENSE_GRID
from unsoftmax.measure.scales import amplified
from unsoftmax.measure.single_tokens import Values
from unsoftmax.measure.spaced_answers import ask_spaced
from unsoftmax.models.rotary import Rotary
from unsoftmax.probes import FARTHEST
from unsoftmax.protocol import Found, Plan
from unsoftmax.solve.skeleton import pivots, rank_by_gap
from unsoftmax.theory import counts


@dataclass(frozen=True, slots=True)
class RotaryHeadTuning:
    """Knobs of learning a head with rotary positions, those of its parts nested."""

    first_round: FirstRoundTuning = field(default=FirstRoundTuning())
    columns: ColumnTuning = field(default=ColumnTuning(condition=1e30))
    """No token more is asked where columns are ill-conditioned: W(2) is read at those r tokens."""
    rows: RowTuning = field(default=RowTuning())
    grid: LogitGridTuning = field(default=LogitGridTuning())
    positions: RotaryTuning = field(default=RotaryTuning())
    biases: BiasedTuning = field(default=BiasedTuning())
    holdout: RotaryHoldoutTuning = field(default=RotaryHoldoutTuning())
    conclusion: ConclusionTuning = field(default=ConclusionTuning())
    """Of a head whose W is 0."""


class Positioned(Protocol):
    """A learner of a head that may have rotary positions."""

    @property
    def dim(self) -> int:
        """Dimension d of a token."""

    @property
    def biases(self) -> bool:
        """Whether there may be biases."""

    @property
    def seed(self) -> int:
        """Of tokens, offsets and hold-out."""

    @property
    def rotary(self) -> bool | Rotary:
        """Whether there are positions, or their frequencies."""

    @property
    def rotary_base(self) -> float | None:
        """Base of the frequencies."""


def rotary_task(
    learner: Positioned, rank: int | None, tuning: RotaryHeadTuning
) -> RotaryTask | None:
    """Return what a learner is to learn of positions, None where it knows of none.

    Raises
    ------
    ValueError, TypeError
        Settings are out of range, not of their type, or do not go together.
    """
    rank = None if rank is None else int(rank)
    turns, told = told_frequencies(learner.rotary, learner.rotary_base, rank)
    if not turns:
        return None
    if learner.biases and not rank:
        raise ValueError("rank must be given, 1 or more, beside rotary and biases.")
    return RotaryTask(int(learner.dim), rank, bool(learner.biases), told, int(learner.seed), tuning)


def told_frequencies(
    rotary: bool | Rotary, rotary_base: float | None, rank: int | None
) -> tuple[bool, Rotary | None]:
    """Return whether a learner is to learn of positions, and the frequencies where it was told.

    Raises
    ------
    ValueError, TypeError
        Settings are out of range, not of their type, or do not go together.
    """
    if rotary_base is not None and rank is None and not isinstance(rotary, Rotary):
        raise ValueError(
            "rank must be given beside rotary_base: it is the head size, twice as many as there "
            "are frequencies."
        )
    refuse_contrary(rotary, rotary_base, "rank", rank)
    told = rotary if isinstance(rotary, Rotary) else None
    if rotary_base is not None and rank is not None:
        told = Rotary.of(float(rotary_base), rank)
    if told is not None and rank is not None and 2 * len(told) < rank:
        raise ValueError(
            f"rotary has {len(told)} frequencies, too few for the planes of rank = {rank}."
        )
    return told is not None or bool(rotary), told


def refuse_contrary(
    rotary: bool | Rotary, rotary_base: float | None, rows: str, count: int | None
) -> None:
    """Refuse what cannot be said of frequencies; ``rows`` names the setting that counts rows.

    Raises
    ------
    ValueError, TypeError
        Settings are out of range, not of their type, or do not go together.
    """
    if not isinstance(rotary, (bool, np.bool_, Rotary)):
        raise TypeError(f"rotary must be True, False or a Rotary; it is {rotary!r}.")
    if rotary_base is None:
        return
    positive("rotary_base", rotary_base)
    if isinstance(rotary, Rotary):
        raise ValueError("rotary_base is given beside rotary: one of them says the same.")
    if count is not None and count % 2:
        raise ValueError(
            f"rotary_base needs an even {rows} of keys and queries, whose planes have two "
            f"coordinates each; it is {count}."
        )


@dataclass(frozen=True, slots=True)
class RotaryTask:
    """What is to be learned of a head with positions."""

    dim: int
    rank: int | None
    biases: bool
    told: Rotary | None
    """The frequencies, where they are known."""
    seed: int
    tuning: RotaryHeadTuning

    def plan(self) -> Plan:
        """Say beforehand what it costs; only a bound where r is not known, or with pilots."""
        d, r, biases = self.dim, self.dim if self.rank is None else self.rank, self.biases
        queries = counts.rotary_head_queries(d, r, biases=biases)
        known, asking = self.rank is not None, self.tuning.biases
        searched = 0 if known else 2 * d
        pilots = asking.pilots * asking.lengths
        formula = "1 + d + 2dr + 3r" if biases else "d + 2dr"
        formula += f", and {asking.pilots} to {pilots} pilots" if biases else ""
        formula += "" if known else ", and at most 2d to find r"
        return Plan(
            queries=queries if known and not biases else None,
            at_most=queries + searched + (pilots if biases else 2 * (r + 1)),
            tokens=2 * (queries + searched) - d - biases + r * (r + biases),
            rounds=30 + (0 if known else 2 * growths(d)),
            formula=formula,
            longest_token=FARTHEST,
            most_tokens=self.tuning.holdout.most_tokens(d),
        )

    def steps(self, checks: int) -> Asking[Found[Any]]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        rng, tuning = np.random.default_rng(self.seed), self.tuning
        ahead = self.plan().at_most + checks
        given = FirstRoundSettings(
            self.biases, listens=True, ahead=ahead, tuning=tuning.first_round
        )
        first = yield from ask_first_round(self.dim, checks, rng, given)
        otherwise = _otherwise(self.rank, self.biases)
        if self.biases:
            assert self.rank is not None
            both = tuning.positions, tuning.biases
            read = yield from read_biased(first.values, self.rank, self.told, rng, both)
            return (yield from conclude_turned(read, first, rng, otherwise, tuning.holdout))
        try:
            head = yield from self._read(first.values, rng)
        except NotIdentifiable as refused:
            raise NotIdentifiable(
                f"{refused} Keys or queries with biases answer so as well: biases=True, with a "
                "rank, reads them.",
                determined=refused.determined,
            ) from None
        if isinstance(head, ZeroReading):
            return (yield from conclude(head, first, rng, otherwise, tuning.conclusion))
        return (yield from conclude_turned(head, first, rng, otherwise, tuning.holdout))

    def _read(
        self, values: Values, rng: np.random.Generator
    ) -> Asking[TurnedReading | ZeroReading]:
        """Read W(1), then W(2) where that says how planes turn."""
        tuning = self.tuning
        Z, T = offsets.balanced(values.v, rng, DENSE_GRID), offsets.rotation(self.dim, rng)
        split = amplified(tuning.positions.gain)
        probes = LowRankProbes(values, Z, T, split, False, tuning.grid)
        columns = yield from find_columns(probes, self.rank, tuning.columns)
        columns, values = _independent(columns), columns.grid.values
        if not len(columns.tokens) and columns.left_out is not None:
            return ZeroReading(values, columns.left_out)
        probes = replace(probes, values=values)
        near = yield from read_rows(probes, columns, rng, tuning.rows)
        alpha, beta = (float(scale[0]) for scale in split(columns.grid.common_scale()[:1]))
        tokens = T.rows[columns.tokens]
        spaced = yield from ask_spaced(near.skeleton.rows, tokens, (alpha, beta), 1, "W(2)")
        return turned(near, spaced, self.told, tuning.positions)


def _independent(columns: SpanningColumns) -> SpanningColumns:
    """Leave out tokens whose columns depend on the others': r may be below the given one."""
    if columns.left_out is not None or not len(columns.tokens):
        return columns  # the rank was found
    grid, seen = columns.grid, columns.grid.measured()
    noise = _noise(grid, grid.values)
    rank = rank_by_gap(np.asarray(np.linalg.svd(seen, compute_uv=False)), noise)
    if rank == len(columns.tokens) or not np.isfinite(noise):
        return columns
    kept = pivots(seen.T, rank)
    note = f"Keys and queries were found to have rank {rank} together, below the one given."
    return replace(
        columns,
        grid=grid.kept(kept) if rank else grid,
        tokens=columns.tokens[kept],
        left_out=partial(_noise, grid),
        notes=(*columns.notes, note),
    )


def _noise(grid: LogitGrid, values: Values) -> float:
    """Return what errors of the readings alone may give a singular value."""
    error = grid.gates(values).logit_error / grid.scale
    return float(np.sqrt(max(error.shape) * np.mean(error**2)))


def _otherwise(rank: int | None, biases: bool) -> str:
    """Say what else may explain a target that is not predicted."""
    above = "" if rank is None else f", or the rank of its keys and queries is not {rank}"
    biased = "" if biases else ", or it has biases: then biases=True"
    return (
        f", or its positions are not rotary or change beyond some distance{above}{biased}, or keys "
        "or queries of a plane depend on those of others"
    )
