"""The knobs of recovering a layer with positions, in the order of the search."""

from __future__ import annotations

from dataclasses import dataclass, field

from unsoftmax.learners.rotary_head.rotary_conclusion import RotaryHoldoutTuning
from unsoftmax.learners.rotary_head.rotary_reading import RotaryTuning


@dataclass(frozen=True, slots=True)
class TurnedLayerTuning:
    """Knobs of a layer with rotary positions beside those of layers without."""

    head_queries: int = 16
    """Query tokens of the first round that looks for heads: for 9 heads and a residual
    connection, and 6 that test their columns; more heads get as many again."""
    pilot_tokens: int = 20
    """Random query tokens in whose span those that open one gate lie. Fewer: smaller margins, and
    with 16 one layer of 24 flips so many gates that it takes a fifth more queries."""
    deviations: float = 7.0
    """How many typical logits an offset may differ by, where answers are exact. Of shared values
    just as many offsets are asked as ranks there are: one gate that flips and shows in no other
    vector doubles them. With 5 one layer of 100 took a fifth more queries, with 6.7 none."""
    shared: float = 1e-4
    """Heads whose values have the same row space but for this angle share them, ..."""
    shared_noise: float = 1e6
    """... or for so many times the noise: behind float32 row spaces are off by 0.02 to 0.05, and
    random ones are at right angles."""
    spare_tokens: int = 1
    """First query tokens beyond those that the rank of a group needs. Fewer: the rank is not
    seen; each costs two queries a block."""
    scored: float = 30.0
    """Spare singular values of so many times what may be noise are scores: values have a lower
    rank than keys and queries, and more query tokens are asked."""
    left_span: float = 0.05
    """Scores farther away may leave the span of those nearer by for this share: errors of float32
    answers make it a hundredth, queries of a lower rank than their planes a tenth and more."""
    longest: int = 65
    """Most tokens between keys and query token. Slow planes are read so many times better; more
    make queries longer, and fast planes go round more often than the first step tells."""
    longest_coarse: int = 257
    """The same where answers are coarser than those of float64: slow planes are the first that
    their errors hide."""
    alike: float = 1e-8
    """Planes whose angles differ by no more at one token are taken to turn alike, which does no
    harm: they need not be apart."""
    nearly: float = 0.9
    """The shortest shift that keeps planes so much apart as the best one is taken."""
    positions: RotaryTuning = field(default=RotaryTuning())
    """Of frequencies, and of the certificate."""
    unread: float = 1e3
    """Planes whose turning differs from none by so many times the noise turn."""
    samples: int = 3
    """How often answers are taken with errors drawn at random, to see what these do."""
    safety: float = 16.0
    """Certified errors, in multiples of the largest of these samples."""
    holdout: RotaryHoldoutTuning = field(default=RotaryHoldoutTuning())
    """Which fresh sequences are asked."""
