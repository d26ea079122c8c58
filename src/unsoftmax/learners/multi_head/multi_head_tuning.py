"""The knobs of the recovery of several heads that something sets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unsoftmax.learners.multi_head import in_plane, out_of_plane, reduced_answers
from unsoftmax.learners.multi_head.columns import ColumnTableTuning
from unsoftmax.learners.multi_head.search_outcomes import RestartTuning


@dataclass(frozen=True, slots=True)
class MultiHeadTuning:
    """Knobs of `MultiHeadLearner`; all others are constants of the modules that use them."""

    line: int = reduced_answers.LINE
    pairs: int = reduced_answers.PAIRS
    slower: float = in_plane.STEEPER
    """The first head's slope is found by so much a reading once one overshot."""
    move: float = out_of_plane.MOVE
    value_over_jump: float = out_of_plane.VALUE_OVER_JUMP
    columns: ColumnTableTuning = field(default=ColumnTableTuning())
    confirm: int = 6
    """Fresh sequences that a model must predict before it is believed, the hold-out apart."""
    alike: bool = False
    """Whether these have one token many times but for the last."""
    restarts: RestartTuning = field(default=RestartTuning())

    def with_positions(self) -> MultiHeadTuning:
        """Return the knobs of a search among heads with positions (`heads_distances`)."""
        return replace(
            self,
            # [g a; b/g] loses nothing beside b, and the search has digits to spare: fewer tokens
            # tell the answers' precision and the size of the values
            line=3,
            pairs=2,
            slower=8.0,
            # shorter steps out of the plane: fewer logits are too large and asked again. What it
            # costs in digits offsets further out make up for: they may be as long as they like
            move=0.3,
            value_over_jump=1e4,
            # W(2), which has to have the same range, and fresh sequences show what more rows would
            columns=replace(self.columns, checked=0, extra=2),
            # one answer at each size of logits before W(2) is asked for
            confirm=3,
            alike=True,
        )
