"""Vectors k_j = Qᵀ(W x_j + w) read at query tokens x_j = β_j b_j, and what they say of W and w.

    C = (u_j/β_j)_j at r tokens, u_j = W x_j + w       Q = qr(C) spans the range of [W w]
    QᵀW b_1 = (k_1 − k_0)/(β_1 − γ)                    from x_0 = γ b_1 beside x_1
    Qᵀw = k_0 − γ·QᵀW b_1,     QᵀW b_j = (k_j − Qᵀw)/β_j

*Error.* Vectors read within the span miss what the span itself is off by: with E the error of C
and k = Qᵀ C K, that is at most ‖E‖·‖K‖ to first order (`unsoftmax.solve.skeleton`), and twice
that is assumed. No query is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.measure.through_network.segment_answers import SegmentAnswers
from unsoftmax.probes import Array
from unsoftmax.solve.skeleton import Skeleton


@dataclass(frozen=True, slots=True)
class ScoreVectors:
    """k_j = Qᵀ(W x_j + w) at query tokens x_j = β_j b_j.

    Attributes
    ----------
    beta : ndarray (k,)
        Signed lengths of the tokens.
    vectors : ndarray (k, r)
        k_j; all of W x_j + w where there is no Q.
    errors : ndarray (k,)
        Bounds on ‖Δk_j‖.
    """

    beta: Array
    vectors: Array
    errors: Array

    @classmethod
    def of(cls, answers: SegmentAnswers) -> ScoreVectors:
        """Solve the logits of every token."""
        return cls(answers.aimed.beta, *answers.vectors())

    def __add__(self, other: ScoreVectors) -> ScoreVectors:
        """Return the vectors of both, one after the other."""
        return ScoreVectors(
            np.append(self.beta, other.beta),
            np.vstack([self.vectors, other.vectors]),
            np.concatenate([self.errors, other.errors]),
        )


@dataclass(frozen=True, slots=True)
class ScoreSpan:
    """The range of [W w], from the columns u_j/β_j at r query tokens."""

    skeleton: Skeleton
    """Q, asked with its own columns as rows: its core is the identity."""
    columns: Array
    """u_j/β_j, (d, r)."""
    error: float
    """Bound on the columns' error, doubled: the true range may tilt against the one found."""

    @classmethod
    def of(cls, found: ScoreVectors) -> ScoreSpan:
        """Return the span of the vectors at r tokens."""
        columns = (found.vectors / found.beta[:, None]).T
        Q = np.linalg.qr(columns)[0]
        return cls(Skeleton(Q, Q.T), columns, 2 * float(np.linalg.norm(found.errors / found.beta)))

    @property
    def basis(self) -> Array:
        """Q, (d, r)."""
        return self.skeleton.basis

    def coordinates(self, found: ScoreVectors) -> ScoreVectors:
        """Return Qᵀu for the vectors u that the span came from."""
        return ScoreVectors(found.beta, found.vectors @ self.basis, found.errors)

    def tilted(self, found: ScoreVectors) -> ScoreVectors:
        """Add to the errors of vectors k, read within the span, what the span is off by."""
        dependence = self.skeleton.in_columns(self.columns, found.vectors.T)
        off = self.error * np.linalg.norm(dependence, axis=0)
        return ScoreVectors(found.beta, found.vectors, found.errors + off)


def without_bias(
    found: ScoreVectors, beside: ScoreVectors | None
) -> tuple[Array, Array, Array, float]:
    """Return QᵀW b_j (k, r) with errors (k,), and Qᵀw with its error, from k_j = Qᵀ(W x_j + w).

    ``beside`` is read at x_0 = γ b_1: two vectors on one line give W b_1 by their difference, and
    w by going on to 0. Without it w is 0.
    """
    beta, k, error = found.beta, found.vectors, found.errors
    if beside is None:
        return k / beta[:, None], error / np.abs(beta), np.zeros(k.shape[1]), 0.0
    gamma = float(beside.beta[0])
    w, w_error = beside.vectors[0], float(beside.errors[0])
    first = (k[0] - w) / (beta[0] - gamma)
    first_error = (error[0] + w_error) / abs(beta[0] - gamma)
    if gamma:
        w, w_error = w - gamma * first, float(w_error + abs(gamma) * first_error)
    columns, off = (k - w) / beta[:, None], (error + w_error) / np.abs(beta)
    columns[0], off[0] = first, first_error
    return columns, off, w, w_error
