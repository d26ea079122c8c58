"""Whether answers change when tokens before the query token change places: positions.

Asked where several heads were refused, so that the refusal names what may be the matter: a few
sequences at three sizes, in two orders, the first one twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.compose import Asking, T
from unsoftmax.probes import Sequences


@dataclass(frozen=True, slots=True)
class OrderTuning:
    """What is asked, and what counts as a change."""

    sizes: tuple[float, ...] = (1.0, 4.0, 16.0)
    """Norms of tokens, about: scores of some size show it."""
    tokens: int = 5
    """Tokens of a sequence."""
    share: float = 1e-6
    """A change of less than this share of the answers is none: it may be rounding."""
    noises: float = 100.0
    """Nor is one of less than so many times what the same question changes by."""


def positions_named(
    steps: Asking[T], dim: int, rng: np.random.Generator, tuning: OrderTuning
) -> Asking[T]:
    """Run a learner that knows no positions; where it refuses a target that has some, say so."""
    try:
        return (yield from steps)
    except ModelMismatch as error:
        if (yield from order_matters(dim, rng, tuning)):
            raise ModelMismatch(
                "Answers change when tokens before the query token change places: scores depend on "
                "positions. Rotary ones of several heads are recovered by MultiHeadLearner with "
                "rotary=True, of one head with biases by LowRankHead; no learner here recovers "
                "other ones."
            ) from error
        raise


def order_matters(dim: int, rng: np.random.Generator, tuning: OrderTuning) -> Asking[bool]:
    """Whether the order of the tokens before the query token changes answers."""
    X = rng.standard_normal((len(tuning.sizes), tuning.tokens, dim)) / np.sqrt(dim)
    X *= np.reshape(tuning.sizes, (-1, 1, 1))
    turned = np.concatenate([X[:, -2::-1], X[:, -1:]], axis=1)
    [y] = yield [
        Sequences(np.concatenate([X, turned, X]), phase="order of tokens", purpose="check")
    ]
    first, other, again = np.split(y, 3)
    least = np.maximum(tuning.share * np.abs(first).max(), tuning.noises * np.abs(again - first))
    return bool(np.any(np.abs(other - first) > least))
