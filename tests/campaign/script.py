"""A learner that asks what a test tells it to, and keeps the answers."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import unsoftmax as us
from unsoftmax.probes import Sequences
from unsoftmax.protocol import Certificate, Evidence, Found, Plan


@dataclass(frozen=True)
class Answers:
    """What stands for a model: the answers themselves."""

    rounds: list[list[np.ndarray]]
    dim: int = 2

    def __call__(self, X):
        raise NotImplementedError

    def save(self, path):
        raise NotImplementedError


@dataclass
class Script:
    """Asks the given rounds, in order; ``closed`` counts the generators that were closed."""

    rounds: list[list[Any]]
    name: str = "script"
    dim: int = 2
    planned: int | None = None
    closed: int = 0
    at_most: int = 0
    tokens: int = 0
    longest_token: float | None = None
    most_tokens: int | None = None

    revision: ClassVar[int] = 1

    def settings(self):
        return {"learner": "Script", "name": self.name}

    def plan(self):
        limits = self.longest_token, self.most_tokens
        return Plan(
            self.planned, self.at_most, self.tokens, len(self.rounds), "as written", *limits
        )

    def steps(self, checks):
        answers = []
        try:
            for asked in self.rounds:
                answers.append((yield list(asked)))
        finally:
            self.closed += 1
        certificate = Certificate({"W": 0.0, "v": 0.0}, ())
        evidence = Evidence(checks, 0.0, 0.0, 0.0, True)
        return Found(Answers(answers), certificate, evidence)


def answers_of(recovery: us.Recovery[Any]) -> list[list[np.ndarray]]:
    """Return what a script was answered, by round and part."""
    assert isinstance(recovery.model, Answers)
    return recovery.model.rounds


def sequences(count: int, tokens: int = 2, dim: int = 2, seed: int = 0, purpose: Any = "data"):
    """Generic probes."""
    X = np.random.default_rng(seed).standard_normal((count, tokens, dim))
    return Sequences(X, phase=f"part {seed}", purpose=purpose)


def head(dim: int = 4, seed: int = 0) -> us.SingleHead:
    """A target that learners recover."""
    rng = np.random.default_rng(seed)
    return us.SingleHead(rng.standard_normal((dim, dim)), rng.standard_normal(dim))


def first_number(X: np.ndarray) -> np.ndarray:
    """A target whose bits depend on nothing but the probe."""
    return X[:, 0, 0].copy()
