"""Offsets far longer than query tokens: a layer with positions as one without them.

[2⁴⁰ a_1; …; 2⁴⁰ a_n; 2⁻⁴⁰ b] has the scores a_i·W(Δ_i) b, and 2⁻⁸⁰ of them for b itself, whose own
values are as little beside those of the offsets. So with z = (o − c)/2⁴⁰ what is asked of a layer
without positions, [b + a_1; …; b + a_n; b] ↦ c + M b + z, is answered for one with them: its heads
have other W_h at every place, and everything else is as it was. A token b among the offsets is
asked as a zero token, which scores 0 as the query token does.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from unsoftmax.learners.attention_layer.value_answers import LayerMap
from unsoftmax.learners.compose import Asking, mapped
from unsoftmax.probes import Array, Round, Sequences
from unsoftmax.protocol import Answers

T = TypeVar("T")


def with_long_offsets(steps: Asking[T], layer: LayerMap, gain: float) -> Asking[T]:
    """Run a generator that asks offsets beside query tokens, ``gain``² times as long as these.

    Parameters
    ----------
    steps : generator
        Yields rounds of `Sequences`, the query token added to every token of them.
    layer : LayerMap
        What single tokens are answered with.
    gain : float
        A power of two.
    """
    queries: list[Array] = []

    def ask(asked: Round) -> Round:
        queries.clear()
        apart: Round = []
        for probes in asked:
            X = probes[0 : len(probes)]
            b = X[:, -1:]
            queries.append(X[:, -1])
            tokens = np.concatenate([gain * (X[:, :-1] - b), b / gain], axis=1)
            apart.append(Sequences(tokens, phase=probes.phase, purpose=probes.purpose))
        return apart

    def answer(answers: Answers) -> Answers:
        return [
            layer.c + b @ layer.M.T + (y - layer.c) / gain
            for b, y in zip(queries, answers, strict=True)
        ]

    return mapped(steps, ask, answer)
