"""Beyond Theorem 5.1: one head of rank r from as many values as it has parameters.

Recovers W of rank r, v (and w, c with biases) from an oracle of exact values with
d + r(2d − r) queries, 1 + d + r(2d + 1 − r) with biases: as many as there are free
parameters. Where r is not given it is found with at most 2d queries more. Queries asked again
come on top, at most 2(r + 1), 2 more with biases, 1 more where r is found. All parameters are
determined, unless v = 0.

A matrix of rank r is the product of any r of its columns and any r of its rows that span
them. With X (d × r) query tokens, A (r × d) offsets, one answer for each entry:

    f([x]) = x·v + c            v, and what answers may be off by     `first_round`
    C = W X                     r tokens, d offsets                   `column_space`
    A W                         r offsets, the other tokens           `row_space`
    a·(W x)                     once, where r is found                `rank_check`
    W = C (A C)⁻¹ (A W)         kept as two factors                   `unsoftmax.solve.skeleton`

Theorem 5.1 as written, with Gaussian measurements and the nuclear norm, is `SensingHead`.
Differences from it: (1) adaptive queries, so as many as free parameters instead of O(rd), and
no convex programme; (2) r may be unknown: the leading tokens are asked with a few offsets until
they stop being independent, and of these the best r are completed; (3) biases: [W w] has rank
r; (4) with a ``tolerance`` one more column measurement over the row space found, whose error is
that of the noise alone; (5) hold-out and certificate. W stays in factors, and so do tokens and
offsets: no d × d array.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.rotary_head.rotary_learner import RotaryHeadTuning, RotaryTask, rotary_task
from unsoftmax.learners.settings import Configured, flag, positive, rank_up_to, whole_number
from unsoftmax.learners.single_head.column_space import (
    ColumnTuning,
    find_columns,
    growths,
)
from unsoftmax.learners.single_head.conclusion import ConclusionTuning, conclude
from unsoftmax.learners.single_head.factored_reading import FactoredReading, ZeroReading
from unsoftmax.learners.single_head.first_round import (
    FirstRoundSettings,
    FirstRoundTuning,
    ask_first_round,
    or_biased,
)
from unsoftmax.learners.single_head.low_rank_probes import LowRankProbes
from unsoftmax.learners.single_head.rank_check import check_rank
from unsoftmax.learners.single_head.row_space import RowTuning, read_on_row_space, read_rows
from unsoftmax.measure import offsets
from unsoftmax.measure.logit_scales import LogitGridTuning
from unsoftmax.measure.offsets import DENSE_GRID
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.scales import amplified, even
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models import SingleHead
from unsoftmax.models.rotary import Rotary
from unsoftmax.probes import FARTHEST
from unsoftmax.protocol import Plan, Steps
from unsoftmax.theory import counts


@dataclass(frozen=True, slots=True)
class LowRankTuning:
    """Knobs of `LowRankHead`, those of its parts nested."""

    gain: float = 2.0**40
    """With a ``tolerance`` offsets are so many times as long as logits ask for, query tokens as
    much shorter: logits stay, and additive noise matters so many times less."""
    single_gain: float = 2.0**46
    """The same for the single tokens that give v: longer still, since every offset sees v's
    error."""
    most_unexplained: float = 2.0**4
    """To explain the hold-out with a given rank, answers may be this many times as coarse as they
    look: what too small a rank leaves out must not pass for coarse arithmetic. Naive loops
    at d = 1024 are 8 times as coarse as is assumed."""
    largest_opening: float = 64.0
    """Norm of the hold-out's largest first tokens: with rank 0 they bound what W may be."""
    few_see: float = 2.0**10
    """A few random tokens may see this many times less of such a W than usual."""
    first_round: FirstRoundTuning = field(default=FirstRoundTuning())
    columns: ColumnTuning = field(default=ColumnTuning())
    rows: RowTuning = field(default=RowTuning())
    grid: LogitGridTuning = field(default=LogitGridTuning())
    conclusion: ConclusionTuning = field(default=ConclusionTuning())
    rotary: RotaryHeadTuning = field(default=RotaryHeadTuning())
    """All of them where there are rotary positions."""


@dataclass(frozen=True, slots=True)
class LowRankHead(Configured):
    """Learn a single head of low rank from as many exact values as it has parameters.

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    rank : int, optional
        Rank r of W, of [W w] with biases; for a trained head its key dimension. Found where
        it is not given, with at most 2d queries more.
    biases : bool
        Also learn w (what a query bias adds to the scores) and c (value and output biases).
    tolerance : float, optional
        The answers are within ± this of the head's: probes are scaled so that it matters
        least, and d·r queries more are asked, so that W's error is the noise's alone. With
        biases they cannot be: w moves a logit with the offset's size.
    seed : int
        Decides tokens, offsets and the hold-out: the same seed asks the same.
    rotary : bool or Rotary
        Scores turn with distance: the model is a `RotaryHead`. The frequencies are found, or said
        by rotary_base; in Python also by a `Rotary` here. The rank is that of K and Q, and with
        biases it must be given.
    rotary_base : float, optional
        Says the frequencies by their base, as ``Rotary.of(rotary_base, rank)`` does: rotary need
        not be given beside it.
    tuning : LowRankTuning
        Knobs of the algorithm, each with its reason in the source. To change some:
        ``dataclasses.replace(learner.tuning, …)``, given to a new learner.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type.

    Notes
    -----
    *Queries*: d + r(2d − r); 1 + d + r(2d + 1 − r) with biases; asked again at most 2(r + 1), 2
    more with biases, 1 more where r is found. With rotary positions d + 2dr, and 1 + d + 2dr + 3r
    with biases beside 4 to 32 pilots.
    *Determined up to* nothing; W and w are free when v = 0. A rank above the given one is
    refused, never cut off. *With rotary positions up to* one complex number per plane, by which
    that of K is multiplied and that of Q divided, and the sign of a frequency and multiples of 2π:
    all W(Δ) are determined. *Source*: Theorem 5.1 of arXiv 2601.16873 for what is learned;
    how, to the last query, is beyond it.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(1)
    >>> K, Q, v = rng.standard_normal((2, 32)), rng.standard_normal((2, 32)), np.ones(32)
    >>> target = us.SingleHead.from_factors(K, Q, v)
    >>> learner = us.learners.LowRankHead(32, rank=2)
    >>> learner.plan().queries
    156
    >>> recovery = us.learn(target, learner)
    >>> bool(np.allclose(recovery.model.W, target.W, rtol=0, atol=1e-11))
    True
    """

    dim: int
    rank: int | None = None
    biases: bool = False
    tolerance: float | None = None
    seed: int = 0
    tuning: LowRankTuning = field(default=LowRankTuning(), kw_only=True)
    rotary: bool | Rotary = field(default=False, kw_only=True)
    rotary_base: float | None = field(default=None, kw_only=True)

    revision: ClassVar[int] = 4

    def __post_init__(self) -> None:
        whole_number("dim", self.dim, 1)
        whole_number("seed", self.seed, 0)
        flag("biases", self.biases)
        if self.rank is not None:
            rank_up_to(self.dim, self.rank, 0)
        if self.tolerance is not None:
            positive("tolerance", self.tolerance)
        if self._positions() is not None and self.rank is not None:
            whole_number("rank", self.rank, 1)
        if self._positions() is not None and self.tolerance is not None:
            raise ValueError("tolerance is not taken beside rotary, which needs exact values.")

    def plan(self) -> Plan:
        """Say beforehand what learning costs; only a bound when the rank is not known."""
        if (positions := self._positions()) is not None:
            return positions.plan()
        d, biases = int(self.dim), bool(self.biases)
        r = d if self.rank is None else int(self.rank)
        once = counts.low_rank_head(d, r, biases=biases)
        holdout = self.tuning.conclusion.holdout
        queries = once + (d * r if self.tolerance is not None else 0)
        searched = 2 * d if self.rank is None else 0
        formula = "1 + d + r(2d + 1 − r)" if biases else "d + r(2d − r)"
        formula += " + dr" if self.tolerance is not None else ""
        formula += ", and at most 2d to find r" if self.rank is None else ""
        return Plan(
            queries=None if self.rank is None else queries,
            at_most=queries + searched + 2 * (r + 1 + biases),
            tokens=2 * (queries + searched) - d - biases,
            rounds=26 + 8 * biases + 2 * (self.rank is None) * growths(d),
            formula=formula,
            longest_token=FARTHEST,
            most_tokens=holdout.long.most_tokens(d, *holdout.lengths),
        )

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        if (positions := self._positions()) is not None:
            return (yield from positions.steps(checks))
        rng, tuning = np.random.default_rng(self.seed), self.tuning
        declared = None if self.tolerance is None else Precision.declared(self.tolerance)
        long = None if declared is None else tuning.single_gain
        given = FirstRoundSettings(
            bool(self.biases),
            declared,
            long,
            listens=True,
            ahead=self.plan().at_most + checks,
            tuning=tuning.first_round,
        )
        first = yield from ask_first_round(self.dim, checks, rng, given)
        head = yield from self._read(first.values, rng)
        above = "" if self.rank is None else f", or its rank is above {self.rank}"
        otherwise = above + or_biased(self.biases)
        return (yield from conclude(head, first, rng, otherwise, self._conclusion()))

    def _positions(self) -> RotaryTask | None:
        """Say what is to be learned of positions."""
        return rotary_task(self, self.rank, self.tuning.rotary)

    def _read(
        self, values: Values, rng: np.random.Generator
    ) -> Asking[FactoredReading | ZeroReading]:
        """Read columns, then rows, and join them."""
        tuning, noisy = self.tuning, self.tolerance is not None
        Z, T = offsets.balanced(values.v, rng, DENSE_GRID), offsets.rotation(self.dim, rng)
        if self.rank == 0:
            return ZeroReading(values, partial(_unseen, tuning))
        split = amplified(tuning.gain) if noisy else even
        probes = LowRankProbes(values, Z, T, split, bool(self.biases), tuning.grid)
        columns = yield from find_columns(probes, self.rank, tuning.columns)
        values = columns.grid.values
        probes = replace(probes, values=values)
        if not len(columns.tokens) and columns.left_out is not None:
            zero = ZeroReading(values, columns.left_out)
            yield from check_rank(probes, columns, zero, rng)
            return zero
        found = yield from read_rows(probes, columns, rng, tuning.rows)
        yield from check_rank(replace(probes, values=found.values), columns, found, rng)
        return (yield from read_on_row_space(probes, found)) if noisy else found

    def _conclusion(self) -> ConclusionTuning:
        """Say how much coarser answers may be than they look, and how long fresh offsets are."""
        conclusion = self.tuning.conclusion
        if self.rank is not None:
            conclusion = replace(conclusion, most_unexplained=self.tuning.most_unexplained)
        if self.tolerance is not None and not self.biases:
            holdout = replace(conclusion.holdout, gain=self.tuning.gain)
            conclusion = replace(conclusion, holdout=holdout)
        return conclusion


def _unseen(tuning: LowRankTuning, values: Values) -> float:
    """Estimate the norm of a W that the hold-out would not tell from 0.

    At tokens of norm s a logit is about s²‖W‖/d, and an answer moves by s‖v‖ of it.
    """
    s = tuning.largest_opening
    return tuning.few_see * len(values.v) * values.precision.share_of(s * values.norm) / s**2
