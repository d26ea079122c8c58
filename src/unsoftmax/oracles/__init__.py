"""Where answers come from, and defences that stand between a target and its caller."""

from unsoftmax.oracles.defences import clipped, labels, noisy, norm_capped, rounded

__all__ = ["clipped", "labels", "noisy", "norm_capped", "rounded"]
