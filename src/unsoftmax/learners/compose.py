"""Learning on a subspace, and several things side by side: generators made of generators."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

from unsoftmax.probes import Array, Embedded, Round
from unsoftmax.protocol import Answers

T = TypeVar("T")


def restricted(steps: Generator[Round, Answers, T], basis: Array) -> Generator[Round, Answers, T]:
    """Run a learner of k dimensions on the columns' span of ``basis``, (d, k), orthonormal.

    Inner products of tokens stay, so a head (W, v) looks like (EᵀWE, Eᵀv) in there.
    """
    try:
        asked = next(steps)
        while True:
            asked = steps.send((yield [Embedded.of(probes, basis) for probes in asked]))
    except StopIteration as end:
        found: T = end.value
        return found


def together(steps: Sequence[Generator[Round, Answers, T]]) -> Generator[Round, Answers, list[T]]:
    """Run generators in step: what they ask at the same time is one round."""
    found: dict[int, T] = {}
    asked: dict[int, Round] = {}
    answers: dict[int, Answers] = {}
    while True:
        for k, one in enumerate(steps):
            if k in found:
                continue
            try:
                asked[k] = one.send(answers[k]) if k in answers else next(one)
            except StopIteration as end:
                found[k] = end.value
                asked.pop(k, None)
        if not asked:
            return [found[k] for k in range(len(steps))]
        everything = yield [probes for k in asked for probes in asked[k]]
        for k in asked:
            answers[k], everything = everything[: len(asked[k])], everything[len(asked[k]) :]
