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

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from unsoftmax.errors import NotIdentifiable
from unsoftmax.learners import settings
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.single_head import column_space, distances, first_round
from unsoftmax.learners.single_head.conclusion import MOST_UNEXPLAINED, conclude
from unsoftmax.learners.single_head.factored_reading import (
    FactoredReading,
    ZeroReading,
    check_rank,
    read_on_row_space,
    read_rows,
)
from unsoftmax.learners.single_head.lifted import LENGTHS, PILOTS, read_lifted
from unsoftmax.learners.tokens.table_head import TableHead, TokenTable
from unsoftmax.measure import offsets
from unsoftmax.measure.logit_grid import amplified, even
from unsoftmax.measure.offsets import DENSE_GRID
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models import SingleHead
from unsoftmax.models.rotary import Rotary
from unsoftmax.protocol import Plan, Steps
from unsoftmax.refusals import reworded
from unsoftmax.theory import counts
from unsoftmax.theory.costs import Cost
from unsoftmax.validate import long_sequences, sequences

# With a tolerance offsets are so many times as long as logits ask for, query tokens as much
# shorter: logits stay, and additive noise matters so many times less.
GAIN = 2.0**40
# The same for the single tokens that give v: longer still, since every offset sees v's error.
SINGLE_GAIN = 2.0**46
# To explain the hold-out with a given rank, answers may be this many times as coarse as they look:
# what too small a rank leaves out must not pass for coarse arithmetic. Naive loops at d = 1024 are
# 8 times as coarse as is assumed.
MOST_UNEXPLAINED_OF_RANK = 2.0**4
# The same with positions: a bias of 0.1 at one distance of 512 makes answers look 100 to 2,000
# times as coarse.
MOST_UNEXPLAINED_OF_POSITIONS = 2.0**6
# Norm of the hold-out's largest first tokens: with rank 0 they bound what W may be. A few random
# tokens may see so many times less of such a W than usual.
LARGEST_OPENING, FEW_SEE = 64.0, 2.0**10


@dataclass(frozen=True, slots=True)
class LowRankHead(settings.Configured):
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
    table : array_like, shape (V, d), optional
        The target takes ids of a vocabulary, and looks these vectors up: ids are asked. With
        positions an array (P, V, d), the vectors by position and id. W and w are learned on the
        span of the table (of its first two positions), and w and c whatever ``biases`` says.
    context : int
        With a table, the most ids of a sequence that the target takes.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type.

    Notes
    -----
    *Queries*: d + r(2d − r); 1 + d + r(2d + 1 − r) with biases; asked again at most 2(r + 1), 2
    more with biases, 1 more where r is found. With rotary positions d + 2dr, and 1 + d + 2dr + 3r
    with biases, where at most 32 are asked again. With a table of D dimensions about a fifth more
    than D + 1 + r(2D + 1 − r).
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
    rotary: bool | Rotary = field(default=False, kw_only=True)
    rotary_base: float | None = field(default=None, kw_only=True)
    table: Any = field(default=None, kw_only=True)
    context: int = field(default=512, kw_only=True)

    revision: ClassVar[int] = 10

    def __post_init__(self) -> None:
        settings.whole_number("dim", self.dim, 1)
        settings.whole_number("seed", self.seed, 0)
        settings.flag("biases", self.biases)
        if self.rank is not None:
            settings.rank_up_to(self.dim, self.rank, 0)
        if self.tolerance is not None:
            settings.positive("tolerance", self.tolerance)
        rank = None if self.rank is None else int(self.rank)
        turns, _ = settings.given_frequencies(self.rotary, self.rotary_base, rank)
        if turns and self.biases and not rank:
            raise ValueError("rank must be given, 1 or more, beside rotary and biases.")
        if turns and rank is not None:
            settings.whole_number("rank", rank, 1)
        if turns and self.tolerance is not None:
            raise ValueError("tolerance is not taken beside rotary, which needs exact values.")
        if self.table is not None:
            object.__setattr__(self, "table", TokenTable.of(self.table, int(self.dim)))
            settings.whole_number("context", self.context, 2)
            if turns or self.tolerance is not None:
                raise ValueError("rotary and tolerance are not taken beside table.")

    @property
    def vocabulary(self) -> int | None:
        """How many ids there are; None where vectors are asked."""
        return None if self.table is None else len(self.table)

    def _behind(self) -> TableHead | None:
        """Return what learns from ids where a table is given."""
        if self.table is None:
            return None
        rank = None if self.rank is None else int(self.rank)
        return TableHead(self.table, rank, int(self.context), int(self.seed))

    def plan(self) -> Plan:
        """Say beforehand what learning costs; only a bound when the rank is not known."""
        if (behind := self._behind()) is not None:
            return behind.plan()
        d, biases, turns = int(self.dim), bool(self.biases), self._positions()[0]
        known, r = self.rank is not None, d if self.rank is None else int(self.rank)
        searched, growing = (0, 0) if known else (2 * d, 2 * column_space.growths(d))
        if turns:
            queries = counts.rotary_head_queries(d, r, biases=biases)
            spare = PILOTS * LENGTHS if biases else 2 * (r + 1)
            rounds, farther = 30, r * (r + biases)
            formula = "1 + d + 2dr + 3r" if biases else "d + 2dr"
            most_tokens = long_sequences.most_tokens(d)
        else:
            noisy = self.tolerance is not None
            queries = counts.low_rank_head(d, r, biases=biases) + d * r * noisy
            spare, rounds, farther = 2 * (r + 1 + biases), 26 + 8 * biases, 0
            formula = "1 + d + r(2d + 1 − r)" if biases else "d + r(2d − r)"
            formula += " + dr" * noisy
            most_tokens = sequences.most_tokens(d)
        pairs = queries + searched - d - biases - farther
        cost = (
            Cost.of(d + biases, rounds=rounds)
            + Cost.of(pairs, tokens=2, rounds=growing, again=spare)
            + Cost.of(farther, tokens=3)
        )
        formula += "" if known else ", and at most 2d to find r"
        return cost.plan(formula, most_tokens, known=known)

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        if (behind := self._behind()) is not None:
            return (yield from behind.steps(checks))
        rng = np.random.default_rng(self.seed)
        declared = None if self.tolerance is None else Precision.declared(self.tolerance)
        long = None if declared is None else SINGLE_GAIN
        given = first_round.FirstRoundSettings(
            bool(self.biases), declared, long, listens=True, ahead=self.plan().at_most + checks
        )
        first = yield from first_round.ask_first_round(self.dim, checks, rng, given)
        head = yield from self._read(first.values, rng)
        most = MOST_UNEXPLAINED if self.rank is None else MOST_UNEXPLAINED_OF_RANK
        most = MOST_UNEXPLAINED_OF_POSITIONS if self._positions()[0] else most
        gain = GAIN if self.tolerance is not None and not self.biases else 1.0
        end = conclude(head, first, rng, self._otherwise(), gain=gain, most_unexplained=most)
        return (yield from end)

    def _positions(self) -> tuple[bool, Rotary | None]:
        """Say whether there are positions, and their frequencies where these are given."""
        rank = None if self.rank is None else int(self.rank)
        return settings.given_frequencies(self.rotary, self.rotary_base, rank)

    def _read(
        self, values: Values, rng: np.random.Generator
    ) -> Asking[FactoredReading | ZeroReading | distances.PositionedReading]:
        """Read columns, then rows, and join them; with positions at two distances."""
        noisy, (turns, given) = self.tolerance is not None, self._positions()
        Z, T = offsets.balanced(values.v, rng, DENSE_GRID), offsets.rotation(self.dim, rng)
        if self.rank == 0:
            return ZeroReading(values, _unseen)
        gain = distances.POSITION_GAIN if turns else GAIN
        split = amplified(gain) if noisy or turns else even
        probes = column_space.LowRankProbes(values, Z, T, split, bool(self.biases))
        if turns and self.biases:
            assert self.rank is not None
            return (yield from read_lifted(probes, int(self.rank), given, rng))
        # with positions no spare token is asked: W(2) is read at the same r tokens
        most = (
            1e30 if turns else column_space.ILL_CONDITIONED
        )  # no columns are conditioned so badly
        columns = yield from column_space.find_columns(probes, self.rank, most)
        columns = column_space.independent(columns) if turns else columns
        if noisy:  # errors may be any up to the tolerance, such as those that hide a part of W
            columns = replace(columns, shown=np.inf)
        values = columns.grid.values
        probes = replace(probes, values=values)
        if not len(columns.tokens) and columns.left_out is not None:
            zero = ZeroReading(values, columns.left_out)
            if not turns:
                yield from check_rank(probes, columns, zero, rng)
            return zero
        found = yield from read_rows(probes, columns, rng)
        if turns:
            return (yield from self._read_farther(probes, columns, found))
        yield from check_rank(replace(probes, values=found.values), columns, found, rng)
        return (yield from read_on_row_space(probes, found)) if noisy else found

    def _read_farther(
        self,
        probes: column_space.LowRankProbes,
        columns: column_space.SpanningColumns,
        near: FactoredReading,
    ) -> Asking[distances.PositionedReading]:
        """Read W(2) where W(1) says how planes turn: r offsets in its range, r query tokens."""
        tokens = probes.T.rows[columns.tokens]
        scales = probes.split(columns.grid.common_scale())
        spaced = yield from distances.ask_spaced(near.skeleton.rows, tokens, *scales)
        read, given = partial(distances.StepAnswers.assuming, near, spaced), self._positions()[1]
        try:
            head = distances.PositionedReading.of(near.values, read, given, False)
        except NotIdentifiable as refused:
            raise reworded(
                refused,
                f"{refused} Keys or queries with biases answer so as well: biases=True, with a "
                "rank, reads them.",
            ) from None
        return replace(head, further=near.columns.notes)

    def _otherwise(self) -> str:
        """Say what else may explain a target that is not predicted."""
        turns, biases = self._positions()[0], bool(self.biases)
        if not turns:
            above = "" if self.rank is None else f", or its rank is above {self.rank}"
            return above + first_round.or_biased(biases)
        given = f", or the rank of its keys and queries is not {self.rank}"
        rank = "" if self.rank is None else given
        biased = "" if biases else ", or it has biases: then biases=True"
        return (
            f", or its positions are not rotary or change beyond some distance{rank}{biased}, or "
            "keys or queries of a plane depend on those of others"
        )


def _unseen(values: Values) -> float:
    """Estimate the norm of a W that the hold-out would not tell from 0.

    At tokens of norm s a logit is about s²‖W‖/d, and an answer moves by s‖v‖ of it.
    """
    s = LARGEST_OPENING
    return FEW_SEE * len(values.v) * values.precision.share_of(s * values.norm) / s**2
