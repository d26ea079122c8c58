"""Where answers come from, and what may stand between a target and its caller."""

from unsoftmax.oracles.coordinates import coordinate
from unsoftmax.oracles.defences import clipped, labels, noisy, norm_capped, rounded
from unsoftmax.oracles.hostile_errors import within

__all__ = ["clipped", "coordinate", "labels", "noisy", "norm_capped", "rounded", "within"]
