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
from typing import Any

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.rotary_head.biased_reading import BiasedTuning, read_biased
from unsoftmax.learners.rotary_head.rotary_conclusion import (
    RotaryHoldoutTuning,
    conclude_turned,
)
from unsoftmax.learners.rotary_head.rotary_reading import RotaryTuning, TurnedReading, turned
from unsoftmax.learners.single_head.column_space import ColumnTuning, find_columns, growths
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
from unsoftmax.measure.logit_scales import LogitGridTuning
from unsoftmax.measure.offsets import DENSE_GRID
from unsoftmax.measure.scales import amplified
from unsoftmax.measure.single_tokens import Values
from unsoftmax.measure.spaced_answers import ask_spaced
from unsoftmax.models.rotary import Rotary
from unsoftmax.probes import FARTHEST
from unsoftmax.protocol import Found, Plan
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


@dataclass(frozen=True, slots=True)
class RotaryTask:
    """What is to be learned of a head with positions."""

    dim: int
    rank: int | None
    biases: bool
    told: Rotary | None
    """The frequencies, where they are known."""
    seed: int
    at_most: int
    """Queries of the whole run, for answers that drift."""
    tuning: RotaryHeadTuning

    def steps(self, checks: int) -> Asking[Found[Any]]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        rng, tuning = np.random.default_rng(self.seed), self.tuning
        ahead = self.at_most + checks
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
        head = yield from self._read(first.values, rng)
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
        values = columns.grid.values
        if not len(columns.tokens):
            return ZeroReading(values, columns.left_out)
        probes = replace(probes, values=values)
        near = yield from read_rows(probes, columns, rng, tuning.rows)
        alpha, beta = (float(scale[0]) for scale in split(columns.grid.common_scale()[:1]))
        tokens = T.rows[columns.tokens]
        spaced = yield from ask_spaced(near.skeleton.rows, tokens, (alpha, beta), 1, "W(2)")
        return turned(near, spaced, self.told, tuning.positions)


def _otherwise(rank: int | None, biases: bool) -> str:
    """Say what else may explain a target that is not predicted."""
    above = "" if rank is None else f", or the rank of its keys and queries is not {rank}"
    biased = "" if biases else ", or it has biases: then biases=True"
    return (
        f", or its positions are not rotary or change beyond some distance{above}{biased}, or keys "
        "or queries of a plane depend on those of others"
    )


def rotary_plan(dim: int, rank: int | None, biases: bool, tuning: RotaryHeadTuning) -> Plan:
    """Say beforehand what a head with positions costs; only a bound where r is not known."""
    d, r = int(dim), int(dim if rank is None else rank)
    queries = counts.rotary_head_queries(d, r, biases=biases)
    searched, steps = (2 * d, 2 * growths(d)) if rank is None else (0, 0)
    formula = "1 + d + 2dr + 3r" if biases else "d + 2dr"
    formula += ", and at most 2d to find r" if rank is None else ""
    pilots = tuning.biases.pilots * tuning.biases.lengths if biases else 0
    again = pilots if biases else 2 * (r + 1)
    return Plan(
        queries=None if rank is None or biases else queries,
        at_most=queries + searched + again,
        tokens=2 * (queries + searched) - d - biases,
        rounds=30 + steps,
        formula=formula + (f", and {tuning.biases.pilots} to {pilots} pilots" if biases else ""),
        longest_token=FARTHEST,
        most_tokens=tuning.holdout.most_tokens(d),
    )


def refuse_beside_rotary(
    rotary: bool | Rotary, rank: int | None, biases: bool, tolerance: float | None
) -> None:
    """Refuse a setting ``rotary`` that is none, and what it cannot be beside."""
    if rotary is False:
        return
    if rotary is not True and not isinstance(rotary, Rotary):
        raise TypeError(f"rotary must be True, False or a Rotary; it is {rotary!r}.")
    if tolerance is not None:
        raise ValueError("tolerance is not taken beside rotary: exact values are needed.")
    if biases and not rank:
        raise ValueError("rank must be given, 1 or more, beside rotary and biases.")
    if isinstance(rotary, Rotary) and rank is not None and 2 * len(rotary) < rank:
        raise ValueError(
            f"rotary has {len(rotary)} frequencies, too few for the planes of rank = {rank}."
        )
