"""The registry: every learner, with targets of its class, for the laws that all must keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import unsoftmax as us
from unsoftmax.protocol import Learner, Model


@dataclass(frozen=True)
class Case:
    """A learner and a family of targets that it must recover."""

    name: str
    learner: Callable[[int], Learner[Any]]
    """From a seed."""
    target: Callable[[int], Model]
    """From a seed; every call makes another target of the class."""


def _head(dim: int, biases: bool) -> Callable[[int], us.SingleHead]:
    def make(seed: int) -> us.SingleHead:
        rng = np.random.default_rng([dim, seed])
        W, v = rng.standard_normal((dim, dim)), rng.standard_normal(dim)
        return us.SingleHead(W, v, rng.standard_normal(dim), 0.5) if biases else us.SingleHead(W, v)

    return make


def _exact(dim: int, **settings: Any) -> Callable[[int], Learner[Any]]:
    return lambda seed: us.learners.ExactHead(dim, seed=seed, **settings)


CASES = [
    Case("ExactHead balanced", _exact(6), _head(6, False)),
    Case("ExactHead paper", _exact(6, probes="paper"), _head(6, False)),
    Case("ExactHead gaussian", _exact(6, probes="gaussian"), _head(6, False)),
    Case("ExactHead with biases", _exact(7, biases=True), _head(7, True)),
    Case("ExactHead in one dimension", _exact(1), _head(1, False)),
]
