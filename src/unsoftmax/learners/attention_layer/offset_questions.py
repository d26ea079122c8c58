"""Offsets beside query tokens, [b + a; b], and their answers as arrays.

[2⁴⁰ a_1; …; 2⁴⁰ a_n; 2⁻⁴⁰ b] has the scores a_i·W(Δ_i) b, and 2⁻⁸⁰ of them for b itself, whose own
values are as little beside those of the offsets. So with z = (o − c)/2⁴⁰ what is asked of a layer
without positions, [b + a_1; …; b + a_n; b] ↦ c + M b + z, is answered for one with them: its heads
have other W_h at every place, and everything else is as it was. A token b among the offsets is
asked as a zero token, which scores 0 as the query token does.
"""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.attention_layer.value_answers import LayerMap
from unsoftmax.learners.compose import Asking, T, mapped
from unsoftmax.probes import Array, Purpose, Round, Sequences
from unsoftmax.protocol import Answers

_GAIN = 2.0**40


def asked_beside(a: Array, b: Array, phase: str) -> Asking[Array]:
    """Ask all offsets (J, d) beside all query tokens (K, d): answers (K, J, m)."""
    X = np.empty((len(b), len(a), 2, b.shape[1]))
    X[:, :, 0] = b[:, None] + a
    X[:, :, 1] = b[:, None]
    [y] = yield [Sequences(X.reshape(-1, 2, b.shape[1]), phase=phase, purpose="data")]
    return np.asarray(y.reshape(len(b), len(a), -1))


def asked_in_pairs(a: Array, b: Array, phase: str, purpose: Purpose = "data") -> Asking[Array]:
    """Ask each offset (K, d) beside the query token (K, d) of its own: answers (K, m)."""
    [y] = yield [Sequences(np.stack([b + a, b], axis=1), phase=phase, purpose=purpose)]
    return np.asarray(y)


def with_long_offsets(steps: Asking[T], layer: LayerMap) -> Asking[T]:
    """Run a generator that asks offsets beside query tokens, 2⁸⁰ times as long as these.

    Parameters
    ----------
    steps : generator
        Yields rounds of `Sequences`, the query token added to every token of them.
    layer : LayerMap
        What single tokens are answered with.
    """
    queries: list[Array] = []

    def ask(asked: Round) -> Round:
        queries.clear()
        apart: Round = []
        for probes in asked:
            X = probes[0 : len(probes)]
            b = X[:, -1:]
            queries.append(X[:, -1])
            tokens = np.concatenate([_GAIN * (X[:, :-1] - b), b / _GAIN], axis=1)
            apart.append(Sequences(tokens, phase=probes.phase, purpose=probes.purpose))
        return apart

    def answer(answers: Answers) -> Answers:
        return [
            layer.c + b @ layer.M.T + (y - layer.c) / _GAIN
            for b, y in zip(queries, answers, strict=True)
        ]

    return mapped(steps, ask, answer)
