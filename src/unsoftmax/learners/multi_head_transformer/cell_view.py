"""Within a cell of the network, the layer is several heads with a scalar answer.

While every pooled token stays in the cell of the base point b, S being its active neurons,

    f([b+a; b]) = N(b) + Σ_h σ(a·u_h)·v_h·a,   u_h = W_h b + w_h,   N(b) = g(b),

with v_h = ℓ_h + Σ_{k∈S} E_h[k] and Σ_h v_h = ∇g. That is `multi_head`'s target with c + b·s = N(b)
and s = ∇g, so its steps serve here, with offsets no longer than a share of ‖b‖. A residual, the
last token as one more input of the network, adds r·x_N within the cell; without it s = ∇g − r.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.compose import Asking, T, read_as
from unsoftmax.learners.multi_head.token_lengths import TokenLengths
from unsoftmax.probes import Array, Probes, Round
from unsoftmax.protocol import Answers


@dataclass(frozen=True, slots=True)
class CellLengths(TokenLengths):
    """Norms of tokens in a cone: offsets and steps up to ``share`` of the query token's."""

    share: float = 1.0

    @property
    def soft(self) -> bool:
        """Gates count as steps at the longest offsets: tokens are chosen so long that they are."""
        return False

    def far(self, length: float) -> float:
        """Return the norm of offsets at which gates are steps."""
        return self.share * length

    def longest(self, length: float, moved: float = 0.0) -> float:
        """Return the norm of the longest offsets."""
        return self.share * length - moved

    def step(self, length: float) -> float:
        """Return how far a query token may be moved: half of the room, the rest is for offsets."""
        return self.share * length / 2

    def turned(self, a: Array, b: Array) -> Array:
        """Leave offsets as they are: the cell holds both of a and −a."""
        return np.asarray(a)


def beside_residual(steps: Asking[T], r: Array, at_once: int) -> Asking[T]:
    """Let steps see answers less r·x_N, x_N being the last token of each sequence.

    So many sequences are made at a time to find out what their last tokens are.
    """

    def less(asked: Round, answers: Answers) -> Answers:
        return [
            y - last_tokens(probes, at_once) @ r for probes, y in zip(asked, answers, strict=True)
        ]

    return read_as(steps, less)


def last_tokens(probes: Probes, at_once: int) -> Array:
    """Return the last tokens of all sequences, (n, d)."""
    parts = [probes[i : i + at_once][:, -1] for i in range(0, len(probes), at_once)]
    return np.concatenate(parts) if parts else np.zeros((0, probes.dim))
