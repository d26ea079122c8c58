"""A head's answers to sequences of several tokens, for `pair_fit`; and which questions tell most.

    f(X) = Σ_i α_i x_i·v + c,  α = softmax(x_i·(W x_N + w))

The derivative by W is Σ_i α_i (x_i·v − Σ_j α_j x_j·v) x_i ⊗ x_N. What a question tells beside
errors that are independent is its derivative by all parameters; those that tell most of all of
them together have the largest determinant of JᵀJ (a D-optimal design, by Titterington's weights).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import scipy

from unsoftmax.probes import Array, Indices
from unsoftmax.questions.defence.pair_fit import PairParameters


@dataclass(frozen=True, slots=True)
class SequenceAnswers:
    """Answers y (n,) to sequences X (n, N, d), and how a head fits them."""

    X: Array
    y: Array

    def first(self, count: int) -> SequenceAnswers:
        """Return the first of them."""
        return replace(self, X=self.X[:count], y=self.y[:count])

    def joined(self, other: SequenceAnswers) -> SequenceAnswers:
        """Return these and others."""
        return SequenceAnswers(np.concatenate([self.X, other.X]), np.append(self.y, other.y))

    def misfit(self, W: Array, v: Array, w: Array, c: float) -> float:
        """Return the sum of squares of what the head misses."""
        weights = _weights(self.X, W, w)
        return float(np.sum((self.y - c - np.sum(weights * (self.X @ v), axis=1)) ** 2))

    def linear(self, theta: Array, of: PairParameters, block: int) -> Iterator[tuple[Array, Array]]:
        """Yield derivatives by all parameters and what is missed, block by block."""
        for start in range(0, len(self.y), block):
            J, f = derivatives(theta, of, self.X[start : start + block])
            yield J, self.y[start : start + block] - f


def derivatives(theta: Array, of: PairParameters, X: Array) -> tuple[Array, Array]:
    """Return derivatives of the answers to X by all parameters, and the answers."""
    W, v, w, c = of.parts(theta)
    weights, values = _weights(X, W, w), X @ v
    means = np.sum(weights * values, axis=1)
    by_v = np.matmul(weights[:, None], X)[:, 0]
    by_w = np.matmul((weights * (values - means[:, None]))[:, None], X)[:, 0]
    by_W = (by_w[:, :, None] * X[:, -1][:, None]).reshape(len(X), -1)
    return of.columns(by_v, by_w, by_W), means + c


def _weights(X: Array, W: Array, w: Array) -> Array:
    logits = np.matmul(X, (X[:, -1] @ W.T + w)[:, :, None])[:, :, 0]
    return np.asarray(scipy.special.softmax(logits, axis=1))


def most_telling(J: Array, known: Array, count: int, rounds: int) -> Indices:
    """Return which ``count`` rows of J tell most beside ``known``, which is JᵀJ of the others."""
    parameters, shares = J.shape[1], np.full(len(J), 1 / len(J))
    for _ in range(rounds):
        information = known + count * (J * shares[:, None]).T @ J
        inverse = np.linalg.pinv(information, hermitian=True)
        shares *= np.einsum("np,np->n", J @ inverse, J) / parameters
        shares /= np.sum(shares)
    return np.asarray(np.argsort(-shares, kind="stable")[:count], dtype=np.intp)
