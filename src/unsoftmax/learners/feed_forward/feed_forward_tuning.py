"""Knobs of the recovery of feed-forward layers."""

from __future__ import annotations

from dataclasses import dataclass, field

from unsoftmax.arrangement.direction_kinks import DirectionKinkTuning
from unsoftmax.arrangement.vector_kinks import VectorKinkTuning
from unsoftmax.learners.feed_forward.affine_part import AffinePartTuning
from unsoftmax.learners.feed_forward.fitted_layer import FittedLayerTuning
from unsoftmax.learners.feed_forward.layer_claim import LayerClaimTuning


@dataclass(frozen=True, slots=True)
class FeedForwardTuning:
    """How a layer is searched for, in the order of the search."""

    line: VectorKinkTuning = field(default=VectorKinkTuning())
    directions: DirectionKinkTuning = field(default=DirectionKinkTuning())
    affine: AffinePartTuning = field(default=AffinePartTuning())
    fitted: FittedLayerTuning = field(default=FittedLayerTuning())
    claims: LayerClaimTuning = field(default=LayerClaimTuning())
    bounded: float = 1e-3
    """Answers grow with tokens if the longest are answered otherwise than ones an eighth as long by
    more than this share of the largest such difference; where they do not, a norm is there."""
    neurons_per_dim: int = 16
    neurons: int = 1024
    """A target that shows more than neurons_per_dim·d + neurons kinks is refused."""
    start: float = 0.5
    """How far the line is from 0, in length scales: on a line through 0 the hyperplanes of a layer
    without biases all meet."""
    moved: float = 30.0
    """A column of B found on the line, and again elsewhere, differs by no more than so many of its
    errors."""
    doubtful: float = 0.3
    """Of coarse answers this share of the columns may."""
    unsure: float = 1e-4
    """Behind a norm, columns that the line shows to no more than this are not compared with those
    of the crossings: kinks so close to each other have right places and wrong columns. What the
    crossings show must then explain answers beside hyperplanes, and fresh ones."""
    recrossed: float = 0.2
    recrossings: int = 2
    """Behind a norm, crossings that contradict the line are repeated, and with them those that show
    a column off by more than ``unsure``: where they are no larger a share of all, and how often."""
    unclear: float = 1.0
    """Neurons smaller than so many of their errors are none. Those that noise of
    1e-7 made had 0.2 to 0.5, real ones 10 or more where a line was of any use."""
    astray: float = 1e-6
    """Behind a norm, directions beside hyperplanes that are missed by more than this are those of
    another layer."""
    attempts: int = field(default=3, metadata={"least": 1})
    """Lines before a target is refused; from the second on kinks are looked at once more, which
    tells neurons apart whose columns of B are parallel."""
    per_neuron: int = 16
    rounds: int = 1000
    """Limits of an attempt: queries, as the line takes 3 and the crossings 3, beside those of the
    cells; and rounds, of which 50 are usual."""
    asked_again: int = 4
    """Before a refusal so many tokens of the opening are asked again, ..."""
    alike: float = 1e-13
    alike_noise: float = 10.0
    """... whose answers changed if they differ by more than this, of their size, which sums in
    another order do not reach, and than so many times the noise that is known of."""
