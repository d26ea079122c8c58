"""Query tokens that open one gate, where keys and queries have biases.

[b + a; b] has the logit a·(W(1) b + w) + t(b), where t, of the key bias and the query token's own
score, is not affine in b. [b − a; b] has t(b) beside the negative of the first part, so half the
difference of both logits is affine: two queries for each query token. Where tokens are long, t is
next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.attention_layer.offset_questions import asked_beside
from unsoftmax.learners.attention_layer.opening_tokens import OpeningSearch
from unsoftmax.learners.compose import Asking
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class MirroredOpening(OpeningSearch):
    """The search for these tokens, beside offsets of both signs."""

    def _logits(self, a: Array, b: Array, phase: str) -> Asking[Array]:
        y = yield from asked_beside(np.array([a, -a]), b, phase)
        plus, minus = (self._logits_of(sign * a, b, y[:, k]) for k, sign in enumerate((1, -1)))
        return np.asarray((plus - minus) / 2)
