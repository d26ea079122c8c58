"""The knobs of the recovery of several heads that something sets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unsoftmax.learners.multi_head import in_plane, out_of_plane, reduced_answers
from unsoftmax.learners.multi_head.column_table import ColumnTuning
from unsoftmax.learners.multi_head.conclusions import HeadsConclusionTuning
from unsoftmax.learners.multi_head.newton_correction import CorrectionTuning
from unsoftmax.learners.multi_head.search_outcomes import RestartTuning
from unsoftmax.learners.rotary_heads.rotary_heads_tuning import RotaryHeadsTuning


@dataclass(frozen=True, slots=True)
class MultiHeadTuning:
    """Knobs of `MultiHeadLearner`; all others are constants of the modules that use them."""

    line: int = reduced_answers.LINE
    pairs: int = reduced_answers.PAIRS
    slower: float = in_plane.STEEPER
    """The first head's slope is found by so much a reading once one overshot."""
    move: float = out_of_plane.MOVE
    value_over_jump: float = out_of_plane.VALUE_OVER_JUMP
    columns: ColumnTuning = field(default=ColumnTuning())
    correction: CorrectionTuning = field(default=CorrectionTuning())
    conclusion: HeadsConclusionTuning = field(default=HeadsConclusionTuning())
    restarts: RestartTuning = field(default=RestartTuning())
    rotary: RotaryHeadsTuning = field(default=RotaryHeadsTuning())
    """What is more where there are rotary positions."""

    def with_positions(self) -> MultiHeadTuning:
        """Return the knobs of a search among heads with positions (`learners.rotary_heads`)."""
        own = self.rotary
        fresh = replace(self.conclusion.fresh, alike=True)
        return replace(
            self,
            line=own.line,
            pairs=own.pairs,
            slower=own.slower,
            move=own.move,
            value_over_jump=own.value_over_jump,
            columns=replace(self.columns, checked=own.checked, extra=own.extra),
            conclusion=replace(self.conclusion, fresh=fresh, confirm=own.confirm),
        )
