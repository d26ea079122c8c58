"""What a cap on tokens may hide: heads whose logits are too small to be seen. Eight queries.

Where no gate switches along a half circle, heads are taken for W = 0. Without a cap that leaves
nothing out. Under one, logits may be small at the longest tokens: then v·a·a·(W b)/4 is left of
each head, which is looked for there, and what cannot be seen is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.search_outcomes import UnsaturatedGates
from unsoftmax.models import MultiHead
from unsoftmax.probes import Sequences


@dataclass(frozen=True, slots=True)
class UnseenLogitsTuning:
    """How small logits are looked for."""

    pairs: int = 8
    """Pairs of tokens that are asked."""
    noises: float = 30.0
    """What is more than this many times the answers' error is seen."""
    small: float = 3.0
    """a·(W b) is ‖W‖‖a‖‖b‖/d for random a and b; of eight, all are below a third of that once in
    10⁶."""


def bound_unseen_logits(
    model: MultiHead,
    reduced: ReducedAnswers,
    rng: np.random.Generator,
    tuning: UnseenLogitsTuning,
) -> Asking[dict[str, float]]:
    """Look for logits that the model has not; return bounds on its errors.

    Raises
    ------
    UnsaturatedGates
        There are some.
    """
    d, lengths = model.dim, reduced.lengths
    length = lengths.length
    far = lengths.far(length)
    b, a = (rng.standard_normal((tuning.pairs, d)) for _ in range(2))
    total = model.v.sum(axis=0)
    if np.any(total):  # heads show in their values: half of a along them
        a = a / np.linalg.norm(a, axis=1, keepdims=True) + total / np.linalg.norm(total)
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    a, b = far * lengths.turned(a, b), length * b
    X = np.stack([a + b, b], axis=1)
    [y] = yield [Sequences(X, phase="hidden heads", purpose="pilot")]
    size = reduced.scale * (far + length) + abs(reduced.c)
    allowed = tuning.noises * float(reduced.precision.error(size))
    if np.any(np.abs(y - model(X)) > allowed):
        raise UnsaturatedGates
    values = max(float(np.median(np.abs(a @ total))), allowed)
    logit = 4 * allowed / values
    error = tuning.small * d * logit / far
    v = float(allowed / far * np.sqrt(d) + logit * reduced.scale)
    return {"W": error / length, "v": v, "w": error}
