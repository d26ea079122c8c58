"""What a cap on tokens may hide: heads whose logits are too small to be seen. Eight queries.

Where no gate switches along a half circle, heads are taken for W = 0. Without a cap that leaves
nothing out. Under one, logits may be small at the longest tokens: then v·a·a·(W b)/4 is left of
each head, which is looked for there, and what cannot be seen is bounded.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from unsoftmax.learners.multi_head.two_tokens import Ground, Unsaturated
from unsoftmax.models import MultiHead
from unsoftmax.probes import Round, Sequences
from unsoftmax.protocol import Answers

_PAIRS = 8
# What is more than this many times the answers' error is seen.
_NOISES = 30.0
# a·(W b) is ‖W‖‖a‖‖b‖/d for random a and b; of eight, all are below a third of that once in 10⁶.
_SMALL = 3.0


def read_flat(
    model: MultiHead, ground: Ground, rng: np.random.Generator
) -> Generator[Round, Answers, dict[str, float]]:
    """Look for logits that the model has not; return bounds on its errors.

    Raises
    ------
    Unsaturated
        There are some.
    """
    d, reach = model.dim, ground.reach
    length = reach.length
    far = reach.far(length)
    b, a = (rng.standard_normal((_PAIRS, d)) for _ in range(2))
    total = model.v.sum(axis=0)
    if np.any(total):  # heads show in their values: half of a along them
        a = a / np.linalg.norm(a, axis=1, keepdims=True) + total / np.linalg.norm(total)
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    a, b = far * reach.turned(a, b), length * b
    X = np.stack([a + b, b], axis=1)
    [y] = yield [Sequences(X, phase="hidden heads", purpose="pilot")]
    size = ground.scale * (far + length) + abs(ground.c)
    allowed = _NOISES * (ground.eta * size + ground.absolute)
    if np.any(np.abs(y - model(X)) > allowed):
        raise Unsaturated
    values = max(float(np.median(np.abs(a @ total))), allowed)
    logit = 4 * allowed / values
    error = _SMALL * d * logit / far
    v = float(allowed / far * np.sqrt(d) + logit * ground.scale)
    return {"W": error / length, "v": v, "w": error}
