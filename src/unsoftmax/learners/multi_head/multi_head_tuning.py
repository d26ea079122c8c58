"""All knobs of the recovery of several heads, by the step that they tune."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unsoftmax.arrangement.jumps import JumpTuning
from unsoftmax.learners.multi_head.cell_gradients import CellGradientTuning
from unsoftmax.learners.multi_head.column_table import ColumnTableTuning
from unsoftmax.learners.multi_head.conclusions import HeadsConclusionTuning
from unsoftmax.learners.multi_head.head_sums import HeadSumsTuning
from unsoftmax.learners.multi_head.in_plane import STEEPER
from unsoftmax.learners.multi_head.newton_correction import CorrectionTuning
from unsoftmax.learners.multi_head.orientation import OrientationTuning
from unsoftmax.learners.multi_head.out_of_plane import OutOfPlaneTuning
from unsoftmax.learners.multi_head.pole_search import PoleSearchTuning
from unsoftmax.learners.multi_head.restarts import RestartTuning
from unsoftmax.learners.multi_head.silent_readings import SilentReadingTuning
from unsoftmax.learners.multi_head.token_lengths import TokenLengthTuning
from unsoftmax.learners.multi_head.unseen_logits import UnseenLogitsTuning
from unsoftmax.learners.multi_head.value_system import ValueTuning
from unsoftmax.learners.rotary_heads.rotary_heads_tuning import RotaryHeadsTuning
from unsoftmax.measure.silent_offsets import SilentWindowTuning
from unsoftmax.measure.windows import WindowTuning


@dataclass(frozen=True, slots=True)
class TokenSearchTuning:
    """What holds one search together."""

    offsets: float = 50.0
    """Offsets in windows are about this long in units of 1/‖W b‖."""
    longest_query: float = 5.0
    """A query token so many times longer than those offsets hides what heads add to answers: a
    shorter one is taken."""
    share: float = 4.0
    """Under a cap offsets in windows take the cap over this: the rest is room for other heads."""
    soft_share: float = 0.8
    """Under a cap values at this share of T are asked as well: they are the same where gates are
    steps, and differ where one is open."""
    step: float = 60.0
    """The two values count as the same up to so many times their error: logits are then 40 and
    more, and what is left of a step is too little to tell anything else."""
    hardly: float = 0.3
    """Heads with an error larger than this, relative to them, cannot be corrected: the search
    failed."""
    improved: float = 1e-6
    """Heads with an error larger than this are corrected, where that may make it smaller."""
    vague: float = 0.01
    """Heads with an error larger than this are none, unless a correction makes it smaller."""
    precisions: tuple[float, ...] = (1e-9, 1e-7, 1e-5)
    """Precisions that answers are taken for where only the function is wanted: heads up to about a
    thirtieth of that apart become one."""


@dataclass(frozen=True, slots=True)
class SilentSearchTuning:
    """What holds a search with silent offsets together."""

    cells: CellGradientTuning = field(default=CellGradientTuning())
    readings: SilentReadingTuning = field(default=SilentReadingTuning())
    windows: SilentWindowTuning = field(default=SilentWindowTuning())
    tries: int = 6
    """Query tokens that are tried: two of the heads may be too close on one half circle."""
    octaves: int = 20
    """Tokens between 2⁻²⁰ and 2²⁰ are looked at for logits,"""
    pilots: int = 8
    """in so many directions."""
    opened: float = 0.36
    """Logits are about 1 where answers have this share of what they have far out."""
    shows: float = 100.0
    """Answers below so many times their error show nothing."""
    longer: float = 1.7
    """Query tokens are so many times longer than tokens and offsets of one length are there: W b
    then counts more than w, and is not lost beside offsets. (1, 2 and 4 times as long were worse
    by up to twice.)"""
    share: float = 8.0
    """Under a cap they take this part of it."""
    start: tuple[int, float] = (64, 100.0)
    """Intervals that a half circle begins with, and how much longer than usual baselines are: short
    ones read pieces too coarsely."""
    noises: float = 3.0
    """Values of the half circle are taken to be off by so many times their error: scores of many
    terms are rounded more often than answers to single tokens."""
    slack: int = 16
    """Jumps beyond the heads that are allowed: pieces that are none are left out later."""
    least_rest: int = 1
    """Dimensions across all values that silent offsets need."""
    checks: int = 24
    """Answers that check all u_h and v_h before the columns are asked."""
    check_logit: float = 20.0
    """Length of their offsets, in units of 1/‖u_h‖, h in turn: logits of about 1 in 400 dimensions,
    of 7 in 8."""
    agrees: float = 0.02
    """They are missed by this share at most; two heads taken for one miss them by a tenth."""
    ample: float = 1.5
    """Columns that a column space is made of, per rank."""
    widest: float = 5.0
    """Larger logits are asked again, nearer: there an answer's error counts forty times."""

    def at_most(self, heads: int, dim: int, columns: int) -> int:
        """Return how many queries are asked at most, ``columns`` being those of all columns."""
        readings, per_head = self.readings, 2 * self.cells.times * dim
        octaves = (2 * readings.octaves + 1) * (readings.directions + 1)
        per_head += octaves + (readings.times + 2) * (dim + 1) + heads
        pilots = (4 * self.octaves + 1) * self.pilots + self.checks
        circle = 40 * (heads + self.slack + self.start[0])
        return self.tries * (pilots + circle + (heads + 1) * per_head) + int(
            3 * self.ample * columns
        )


@dataclass(frozen=True, slots=True)
class PlanTuning:
    """What is planned for, at most."""

    times: int = 3
    """The bulk may be asked so often: columns again where logits are lost, heads corrected where
    they are close."""
    per_head: int = 200
    """Queries per head of one search along half a circle: 20 are usual, more where heads crowd."""
    rounds: int = 1000
    """Rounds of one search: 90 for 64 heads in 64 dimensions."""


@dataclass(frozen=True, slots=True)
class MultiHeadTuning:
    """Knobs of `MultiHeadLearner`, in the order in which they are used."""

    lengths: TokenLengthTuning = field(default=TokenLengthTuning())
    sums: HeadSumsTuning = field(default=HeadSumsTuning())
    search: TokenSearchTuning = field(default=TokenSearchTuning())
    jumps: JumpTuning = field(default=JumpTuning())
    slower: float = STEEPER
    """The first head's slope is found by so much a reading once one overshot."""
    out_of_plane: OutOfPlaneTuning = field(default=OutOfPlaneTuning())
    values: ValueTuning = field(default=ValueTuning())
    windows: WindowTuning = field(default=WindowTuning())
    columns: ColumnTableTuning = field(default=ColumnTableTuning())
    orientation: OrientationTuning = field(default=OrientationTuning())
    unseen: UnseenLogitsTuning = field(default=UnseenLogitsTuning())
    correction: CorrectionTuning = field(default=CorrectionTuning())
    conclusion: HeadsConclusionTuning = field(default=HeadsConclusionTuning())
    restarts: RestartTuning = field(default=RestartTuning())
    silence: SilentSearchTuning = field(default=SilentSearchTuning())
    poles: PoleSearchTuning = field(default=PoleSearchTuning())
    shorter: RestartTuning = field(
        default=RestartTuning(starts=((1, 1.0), (16, 100.0)), most_unlucky=30)
    )
    """The same at each length of tokens that is tried for coarse answers: others follow."""
    plan: PlanTuning = field(default=PlanTuning())
    rotary: RotaryHeadsTuning = field(default=RotaryHeadsTuning())
    """What is more where there are rotary positions."""

    def with_positions(self) -> MultiHeadTuning:
        """Return the knobs of a search among heads with positions (`learners.rotary_heads`)."""
        own = self.rotary
        fresh = replace(self.conclusion.fresh, alike=True)
        return replace(
            self,
            sums=replace(self.sums, line=own.line, pairs=own.pairs),
            slower=own.slower,
            out_of_plane=replace(
                self.out_of_plane, move=own.move, value_over_jump=own.value_over_jump
            ),
            columns=replace(self.columns, checked=own.checked, extra=own.extra),
            conclusion=replace(self.conclusion, fresh=fresh, confirm=own.confirm),
        )
