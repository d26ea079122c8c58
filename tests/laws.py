"""The registry: every learner, with targets of its class, for the laws that all must keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import unsoftmax as us
from unsoftmax.protocol import Learner, Model


@dataclass(frozen=True)
class Case:
    """A learner and a family of targets that it must recover."""

    name: str
    learner: Callable[[int], Learner]
    """From a seed."""
    target: Callable[[int], Model]
    """From a seed; every call makes another target of the class."""


def _head(dim: int, biases: bool) -> Callable[[int], us.SingleHead]:
    def make(seed: int) -> us.SingleHead:
        rng = np.random.default_rng([dim, seed])
        W, v = rng.standard_normal((dim, dim)), rng.standard_normal(dim)
        return us.SingleHead(W, v, rng.standard_normal(dim), 0.5) if biases else us.SingleHead(W, v)

    return make


CASES = [
    *(
        Case(
            f"ExactHead {probes}",
            lambda seed, probes=probes: us.learners.ExactHead(6, probes=probes, seed=seed),
            _head(6, False),
        )
        for probes in ("balanced", "paper", "gaussian")
    ),
    Case(
        "ExactHead with biases",
        lambda seed: us.learners.ExactHead(7, biases=True, seed=seed),
        _head(7, True),
    ),
    Case(
        "ExactHead in one dimension",
        lambda seed: us.learners.ExactHead(1, seed=seed),
        _head(1, False),
    ),
]
