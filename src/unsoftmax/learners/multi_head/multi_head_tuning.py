"""All knobs of the recovery of several heads, by the step that they tune."""

from __future__ import annotations

from dataclasses import dataclass, field

from unsoftmax.arrangement.jumps import JumpTuning
from unsoftmax.learners.multi_head.column_table import ColumnTableTuning
from unsoftmax.learners.multi_head.conclusions import HeadsConclusionTuning
from unsoftmax.learners.multi_head.head_sums import HeadSumsTuning
from unsoftmax.learners.multi_head.in_plane import InPlaneTuning
from unsoftmax.learners.multi_head.newton_correction import CorrectionTuning
from unsoftmax.learners.multi_head.orientation import OrientationTuning
from unsoftmax.learners.multi_head.out_of_plane import OutOfPlaneTuning
from unsoftmax.learners.multi_head.pole_search import PoleSearchTuning
from unsoftmax.learners.multi_head.restarts import RestartTuning
from unsoftmax.learners.multi_head.token_lengths import TokenLengthTuning
from unsoftmax.learners.multi_head.unseen_logits import UnseenLogitsTuning
from unsoftmax.learners.multi_head.value_system import ValueTuning
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
    in_plane: InPlaneTuning = field(default=InPlaneTuning())
    out_of_plane: OutOfPlaneTuning = field(default=OutOfPlaneTuning())
    values: ValueTuning = field(default=ValueTuning())
    windows: WindowTuning = field(default=WindowTuning())
    columns: ColumnTableTuning = field(default=ColumnTableTuning())
    orientation: OrientationTuning = field(default=OrientationTuning())
    unseen: UnseenLogitsTuning = field(default=UnseenLogitsTuning())
    correction: CorrectionTuning = field(default=CorrectionTuning())
    conclusion: HeadsConclusionTuning = field(default=HeadsConclusionTuning())
    restarts: RestartTuning = field(default=RestartTuning())
    poles: PoleSearchTuning = field(default=PoleSearchTuning())
    shorter: RestartTuning = field(
        default=RestartTuning(starts=((1, 1.0), (16, 100.0)), most_unlucky=30)
    )
    """The same at each length of tokens that is tried for coarse answers: others follow."""
    plan: PlanTuning = field(default=PlanTuning())
