"""Naming positions where a layer is refused: answers that change when tokens change places."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.compose import Asking
from unsoftmax.probes import Sequences

T = TypeVar("T")


def naming_positions(
    steps: Asking[T],
    dim: int,
    seed: int,
    lengths: tuple[float, ...] = (1.0, 4.0, 16.0),
    changed: float = 1e-3,
) -> Asking[T]:
    """Run a learner that knows no positions; where it refuses, see whether they are the reason.

    Parameters
    ----------
    steps : generator
        The learner's.
    dim, seed : int
        Of the tokens.
    lengths : tuple of float
        Root mean squares of the entries of three tokens, each asked twice, the first two tokens in
        both orders: positions show where logits are moderate.
    changed : float
        Smallest change of an answer, relative to it, that is no rounding.
    """
    try:
        return (yield from steps)
    except (ModelMismatch, NotIdentifiable) as error:
        X = np.random.default_rng(seed).standard_normal((len(lengths), 3, dim))
        X = (np.array(lengths)[:, None, None] * X).astype(np.float32).astype(np.float64)
        orders = [X, X[:, [1, 0, 2]], X]
        y, other, again = yield [
            Sequences(tokens, phase="order of tokens", purpose="check") for tokens in orders
        ]
        size = np.linalg.norm(y, axis=1)
        noise = np.linalg.norm(again - y, axis=1)
        if np.all(np.linalg.norm(other - y, axis=1) <= changed * size + 10 * noise):
            raise
        raise ModelMismatch(
            "Answers change when tokens before the query token change places: scores depend on "
            "positions. Rotary ones of a layer without a norm and without key and query biases are "
            "recovered with rotary=True; no learner here recovers other ones."
        ) from error
