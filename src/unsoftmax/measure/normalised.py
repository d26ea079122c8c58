"""What answers behind a LayerNorm tell: directions, each with one unknown scale.

An answer is y = β + Γn with Γ = diag(γ), n = Pu/√(‖Pu‖²/d + eps), P = I − 11ᵀ/d: all that is
left of u is the direction of Pu, and little of its length. With g = 1/γ, y − β is orthogonal to
g, for g·Γn = Σ n_i = 0. With the rows of R an orthonormal basis of g⊥,

    w = R(y − β) = λ·P_w u,   P_w = RΓP,   λ = 1/√(‖Pu‖²/d + eps) > 0,

are the d − 1 numbers that an answer tells. Answers are off by about the same in every direction,
and so are these, whatever γ is. Where u is linear in unknowns, u = k + C q, the equation
μw = P_w k + P_w C q is linear in q and μ = 1/λ: one unknown more than without a norm
(`UnknownScales`). Behind RMSNorm all is the same with P = I and no g⊥: d numbers. A number is off
by a share of |γ_i| + |β_i|; R = diag(1/(|γ| + |β|)) makes all alike, those of small γ too.
*Source*: beyond arXiv 2601.16873; docs/theorems/vector_answers.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import scipy

from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class NormedAnswers:
    """The norm behind a target, as far as directions need it.

    Attributes
    ----------
    shift : ndarray, shape (d,)
        β.
    gain : ndarray, shape (d,)
        g = 1/γ, all of its signs perhaps turned round.
    basis : ndarray, shape (d − 1, d)
        R: an orthonormal basis of g⊥ in its rows; of RMSNorm diag(1/(|γ| + |β|)), (d, d).
    """

    shift: Array
    gain: Array
    basis: Array

    @classmethod
    def of(cls, shift: Array, gain: Array, centred: bool = True) -> Self:
        """Complete a shift and a gain by a basis."""
        if not centred:
            return cls(shift, gain, np.diag(1 / (np.abs(1 / gain) + np.abs(shift))))
        complete, _ = scipy.linalg.qr(gain[:, None])
        return cls(shift, gain, np.asarray(complete[:, 1:].T.copy()))

    @property
    def takes_mean(self) -> bool:
        """Whether the mean is taken off: a LayerNorm, no RMSNorm."""
        return len(self.basis) < len(self.gain)

    @property
    def projection(self) -> Array:
        """P_w = RΓP (d − 1, d), of the sign that the gain has; of RMSNorm RΓ (d, d)."""
        scaled = self.basis / self.gain
        return np.asarray(scaled - self.takes_mean * scaled.mean(axis=1, keepdims=True))

    def directions(self, y: Array) -> Array:
        """Map answers (n, d) to w (n, d − 1)."""
        return (y - self.shift) @ self.basis.T

    def centred(self, w: Array) -> Array:
        """Map columns P_w u (d − 1, k) to Pu (d, k); of RMSNorm to u."""
        back = self.basis.T if self.takes_mean else np.diag(1 / np.diag(self.basis))
        return np.asarray(self.gain[:, None] * (back @ w))

    def with_sign(self, sign: float | Array) -> NormedAnswers:
        """Turn the gain round where ``sign``, one or one for each entry, is negative."""
        return replace(self, gain=np.copysign(1.0, sign) * self.gain)


@dataclass(frozen=True, slots=True)
class FoundGain:
    """g with what tells whether there is one.

    Attributes
    ----------
    gain : ndarray, shape (d,)
        The vector orthogonal to all centred answers; ‖g∘(y − β)‖² = d in the mean.
    missed : float
        How far answers are from orthogonal to it: the least singular value of theirs.
    next : float
        The next singular value. Where it is as small, a second vector is orthogonal too.
    """

    gain: Array
    missed: float
    next: float


def spreads(centred: Array) -> Array:
    """Return the rms of every coordinate of answers y − β (n, d)."""
    return np.asarray(np.sqrt(np.mean(centred**2, axis=0)))


def null_vector(A: Array, steps: int = 2) -> tuple[Array, Array]:
    """Return singular values of A (n, d), n ≥ d, and its last right singular vector, refined.

    That of a decomposition is off by rounding of A's size over the gap below it; ``steps`` of least
    squares with residuals in extended precision leave what errors of A do.

    Examples
    --------
    >>> s, v = null_vector(np.array([[1.0, 1.0], [2.0, 2.0]]))
    >>> v.round(6) * np.sign(v[0])
    array([ 0.707107, -0.707107])
    """
    left, s, right = np.linalg.svd(A, full_matrices=False)
    v, extended = right[-1], A.astype(np.longdouble)
    if len(s) < 2 or s[-2] == 0:
        return s, v
    for _ in range(steps):
        missed = np.asarray(extended @ v.astype(np.longdouble), dtype=np.float64)
        v = v - right[:-1].T @ ((left[:, :-1].T @ missed) / s[:-1])
        v = v / np.linalg.norm(v)
    return s, v


def gain_of(centred: Array) -> FoundGain:
    """Find g from answers y − β (n, d), n ≥ d, to tokens so long that eps does not count.

    Coordinates are weighed by their spread, so that γ may have any sizes.

    Examples
    --------
    >>> n = np.array([[1.0, -1.0, 0.0], [1.0, 0.0, -1.0], [2.0, -1.0, -1.0]])
    >>> n = n * np.sqrt(3 / np.sum(n**2, axis=1, keepdims=True))
    >>> found = gain_of(n * [1.0, -10.0, 0.1])
    >>> np.abs(1 / found.gain).round(9)
    array([ 1. , 10. ,  0.1])
    """
    spread = spreads(centred)
    s, null = null_vector(centred / spread)
    gain = null / spread
    lengths = np.sum((centred * gain) ** 2, axis=1)
    gain = gain * np.sqrt(centred.shape[1] / np.mean(lengths))
    beside = float(s[-2] / s[0]) if len(s) > 1 else 0.0
    return FoundGain(gain, float(s[-1] / s[0]), beside)


def uncentred_gain_of(centred: Array) -> FoundGain:
    """Find |g| of an RMSNorm from answers y − β (n, d), n > d, to tokens so long as before.

    Nothing is taken off u there, and no vector is orthogonal to all answers; but ‖g∘(y − β)‖² = d,
    which is linear in g². ``missed`` is by how much the lengths miss it, ``next`` the least g²
    beside the mean one, in units of the spread.

    Examples
    --------
    >>> n = np.random.default_rng(0).standard_normal((5, 3))
    >>> n = n * np.sqrt(3 / np.sum(n**2, axis=1, keepdims=True))
    >>> (1 / uncentred_gain_of(n * [1.0, -10.0, 0.1]).gain).round(9)
    array([ 1. , 10. ,  0.1])
    """
    spread = spreads(centred)
    squares = (centred / spread) ** 2
    found = np.linalg.lstsq(squares, np.full(len(squares), float(len(spread))), rcond=None)[0]
    missed = float(np.max(np.abs(squares @ found / len(spread) - 1)))
    gain = np.sqrt(np.maximum(found, 0.0)) / spread
    return FoundGain(gain, missed, float(np.min(found) / np.mean(np.abs(found))))


def shift_of(centred: Array, found: FoundGain) -> tuple[Array, float]:
    """Find where answers y = β + Γn are centred: n has the same length in all of them.

    Parameters
    ----------
    centred : ndarray, shape (n, d)
        y without their mean, to tokens so long that eps does not count; n > d.
    found : FoundGain
        What is orthogonal to them, of any length.

    Returns
    -------
    tuple
        β without that mean (d,), and the factor that brings the gain to 1/γ.

    Examples
    --------
    >>> n = np.random.default_rng(0).standard_normal((6, 4))
    >>> n -= n.mean(axis=1, keepdims=True)
    >>> n *= 2 / np.linalg.norm(n, axis=1, keepdims=True)
    >>> y = [1.0, 0.0, 0.0, 3.0] + n * [1.0, 10.0, -1.0, 2.0]
    >>> found = gain_of(y - y.mean(axis=0))
    >>> shift, factor = shift_of(y - y.mean(axis=0), found)
    >>> np.round(y.mean(axis=0) + shift, 9) + 0.0, np.abs(1 / (factor * found.gain)).round(9)
    (array([1., 0., 0., 3.]), array([ 1., 10.,  1.,  2.]))
    """
    z = centred * found.gain
    # what errors leave across the hyperplane would be solved for, and move the shift there
    z = z - z.mean(axis=1, keepdims=True)
    squares = np.sum(z * z, axis=1)
    size = np.sqrt(np.mean(squares))
    # |z − b|² is the same for all, Σ b_i = 0
    system = np.column_stack([2 * z / size, np.ones(len(z))])
    solution = np.linalg.lstsq(system, squares / size**2, rcond=None)[0]
    b = solution[:-1] * size
    length = np.sqrt(np.mean(np.sum((z - b) ** 2, axis=1)))
    return np.asarray(b / found.gain), float(np.sqrt(z.shape[1]) / length)


@dataclass(frozen=True, slots=True)
class UnknownScales:
    """Solve μw = k + C q for μ and q, for many w and k with the same columns C.

    C is eliminated first: μ is what brings w and k together outside the span of C.
    """

    orthonormal: Array
    triangle: Array

    @classmethod
    def beside(cls, columns: Array) -> Self:
        """Take C (m, q)."""
        orthonormal, triangle = np.linalg.qr(columns)
        return cls(orthonormal, triangle)

    def solved(self, w: Array, k: Array) -> tuple[Array, Array, Array]:
        """Return μ (n,), q (n, columns) and what is missed, relative to k's outer part (n,).

        ``w`` and ``k`` are (n, m).
        """
        Q = self.orthonormal
        w_out, k_out = w - w @ Q @ Q.T, k - k @ Q @ Q.T
        mu = np.sum(w_out * k_out, axis=1) / np.sum(w_out**2, axis=1)
        inner = (mu[:, None] * w - k) @ Q
        q = scipy.linalg.solve_triangular(self.triangle, inner.T).T
        outer = np.linalg.norm(mu[:, None] * w_out - k_out, axis=1)
        return mu, q, outer / np.linalg.norm(k, axis=1)


def column_scales(directions: Array, signs: Array, sums: Array) -> FoundGain:
    """Find the lengths s of columns known by direction alone, from sums of all of them.

    Parameters
    ----------
    directions : ndarray, shape (m, d)
        n_j ∥ the j-th column.
    signs : ndarray, shape (k, d)
        Coefficients ±1 of k ≥ 2 sums.
    sums : ndarray, shape (m, k)
        Directions of Σ_j ξ_j s_j n_j.

    Returns
    -------
    FoundGain
        With s in the place of the gain: of mean square 1, its first entry positive.
    """
    k, (m, d) = len(signs), directions.shape
    system = np.zeros((k * m, d + k))
    for i in range(k):
        rows = slice(i * m, (i + 1) * m)
        system[rows, :d] = directions * signs[i]
        system[rows, d + i] = -sums[:, i] / np.linalg.norm(sums[:, i]) * np.sqrt(d)
    s, null = null_vector(system)
    scales = null[:d]
    scales = np.copysign(1.0, scales[0]) * scales / np.sqrt(np.mean(scales**2))
    return FoundGain(scales, float(s[-1] / s[0]), float(s[-2] / s[0]))


def scales_by_null_space(w: Array, k: Array, null: Array) -> Array:
    """Find λ with w_j/λ_j − k_j in one space of low dimension, its null space known.

    Where the columns of z = W diag(1/λ) − K have Z with z diag(λ) Z = 0, W Z = K diag(λ) Z is
    linear in λ.

    Parameters
    ----------
    w, k : ndarray, shape (m, n)
        W and K; only the part of both in the span of K tells.
    null : ndarray, shape (n, f)
        Z.
    """
    left = np.einsum("mk,kf->mfk", k, null).reshape(-1, k.shape[1])
    scales: Array = np.linalg.lstsq(left, (w @ null).ravel(), rcond=None)[0]
    return scales
