"""A ReLU network; and networks, or feed-forward layers, as hyperplanes, jumps and one affine part.

With Y = (x/λ, 1) a network is l·Y + Σ_k s_k·max(0, u_k·Y), ‖u_k‖ = 1: the gradient jumps by
s_k u_k across u_k·Y = 0. Parallel neurons are one, and s·max(0, z) = s·z + s·max(0, −z) turns
u_k around, so functions are equal exactly if hyperplanes, jumps and affine parts are. Of a layer
with vector answers s_k is a vector, l a matrix, and the Jacobian jumps by s_k u_kᵀ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unsoftmax.models.arrays import UNIT, Parameter, axes, points
from unsoftmax.models.composition import Composition
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.neurons import Neurons
from unsoftmax.probes import Array


class ReluNetwork(FrozenModel):
    """g(x) = Σ_j w_o[j]·max(0, x·A[:, j] + b[j]) + c.

    Parameters
    ----------
    A : array_like, shape (d, m)
        Input weights, a neuron per column; m may be 0.
    w_o : array_like, shape (m,)
        Output weights.
    b : array_like, shape (m,), optional
        Biases of the neurons; zeros by default.
    c : float, optional
        Constant added to every answer.

    Raises
    ------
    ValueError
        Shapes do not fit, or an entry is not finite.

    Notes
    -----
    Immutable: arrays are float64 copies and read-only. Its function determines the hyperplanes
    x·a + b = 0 across which the gradient jumps, the jumps, and one affine part. Neurons are
    free beyond that: parallel ones merge, s·relu(z) = s·z + s·relu(−z) flips one at the price
    of a linear part, a positive factor moves between A, b and w_o.

    Examples
    --------
    >>> network = ReluNetwork(A=[[1.0, -1.0]], w_o=[1.0, 1.0], c=0.5)  # |x| + ½
    >>> network([[2.0], [-3.0]])
    array([2.5, 3.5])
    """

    _tensors: ClassVar[Mapping[str, str]] = {
        "A": "network.A.T",
        "w_o": "network.B",
        "b": "network.a",
        "c": "network.c",
    }
    _axes = axes(A="d≥1 m", w_o="m", b="m = 0", c="= 0")

    def __init__(
        self, A: ArrayLike, w_o: ArrayLike, b: ArrayLike | None = None, c: float = 0.0
    ) -> None:
        self._set({"A": A, "w_o": w_o, "b": b, "c": c})

    A = Parameter(np.asarray, "Input weights (d, m).")
    w_o = Parameter(np.asarray, "Output weights (m,).")
    b = Parameter(np.asarray, "Biases (m,) of the neurons.")
    c = Parameter(float, "Constant added to every answer.")

    def _composed(self) -> Composition:
        neurons = Neurons(self.A.T, self.b, self.w_o[None], np.array([self.c]))
        return Composition.of({"network": neurons})

    def __call__(self, X: ArrayLike) -> Array:
        """Map points (B, d), or sequences of one token (B, 1, d), to numbers (B,)."""
        return self._answers(points(X, self.dim, "network")[:, None])

    def _sizes(self) -> tuple[str, ...]:
        return f"d={self.dim}", f"m={self.A.shape[1]}"


def typical_length(*networks: ReluNetwork, negligible: float = 1e-6) -> float:
    """Return the typical distance of a hyperplane from 0, a power of two.

    Parameters
    ----------
    networks : ReluNetwork
        One network, or two that are compared in the same unit.
    negligible : float, optional
        Biases count as none where the largest distance in one network is at most this share of
        the largest in the other: a network without biases may be recovered with some of 1e-15.
        Too large: a network near 0 is measured in the unit 1. Too small: rounding sets the unit.

    Returns
    -------
    float
        1 where a network has no biases, or none beside the other's.
    """
    distances = []
    for network in networks:
        norm = np.linalg.norm(network.A, axis=0)
        used = (norm > 0) & (network.b != 0)
        distances.append(np.abs(network.b[used]) / norm[used])
    farthest = [float(np.max(some, initial=0.0)) for some in distances]
    if not min(farthest) > negligible * max(farthest):
        return 1.0
    return float(2.0 ** np.round(np.log2(np.median(np.concatenate(distances)))))


@dataclass(frozen=True, slots=True)
class HingeSum:
    """The affine part l, unit normals u, (K, d + 1), and jumps s.

    l is (d + 1,) and s (K,); where answers are vectors, l is (m, d + 1) and s (K, m).
    """

    linear: Array
    u: Array
    s: Array

    @classmethod
    def of(cls, network: ReluNetwork, length: float) -> HingeSum:
        """Read a network off in the unit of length λ; constant neurons join the affine part."""
        linear = np.append(np.zeros(network.dim), network.c)
        return cls.of_neurons(length * network.A.T, network.b, network.w_o, linear)

    @classmethod
    def of_neurons(cls, A: Array, b: Array, s: Array, linear: Array) -> HingeSum:
        """Add up l·Y and s_j·max(0, A_j·x + b_j), A in the unit of length."""
        constant = ~np.any(A, axis=1)
        linear = linear.copy()
        linear[..., -1] += s[constant].T @ np.maximum(b[constant], 0.0)
        used = ~constant & (_sizes(s) > 0)
        vectors = np.column_stack([A, b])[used]
        norm = np.linalg.norm(vectors, axis=1)
        return cls(linear, vectors / norm[:, None], (norm * s[used].T).T)

    def turned(self, back: NDArray[np.bool_]) -> HingeSum:
        """Turn some hyperplanes around: s·relu(z) = s·z + s·relu(−z)."""
        linear = self.linear + self.s[back].T @ self.u[back]
        return HingeSum(linear, np.where(back[:, None], -self.u, self.u), self.s)

    def merged(self, parallel: float) -> HingeSum:
        """Add up neurons whose unit normals are within ``parallel``; drop those that cancel."""
        u, s, linear = self.u, self.s.copy(), self.linear.copy()
        if not len(s):
            return self
        size = _sizes(s)
        cosine = u @ u.T
        keep = np.full(len(s), True)
        rows, columns = np.nonzero(np.triu(1 - np.abs(cosine) < parallel, 1))
        for i, j in zip(rows.tolist(), columns.tolist(), strict=True):
            turn = np.sign(cosine[i, j])
            if not (keep[i] and keep[j]) or np.linalg.norm(u[i] - turn * u[j]) > parallel:
                continue
            if turn < 0:
                linear += np.multiply.outer(s[j], u[j])
            s[i] += s[j]
            size[i] += size[j]
            keep[j] = False
        # a sum this small beside its terms is their rounding
        keep &= _sizes(s) > 16 * UNIT * size
        return HingeSum(linear, u[keep], s[keep])

    def scaled(self, factor: float) -> HingeSum:
        """Return the sum times a factor."""
        return HingeSum(factor * self.linear, self.u, factor * self.s)

    @property
    def norm(self) -> float:
        """Norm of all jumps and the affine part."""
        return float(np.sqrt(np.sum(self.s**2) + np.sum(self.linear**2)))

    @property
    def lost(self) -> float:
        """What of the linear part, without its constant, may be the rounding of the sum."""
        size = float(np.linalg.norm(self.linear[..., :-1])) + float(np.sum(_sizes(self.s)))
        return 8 * UNIT * (1 + len(self.s)) * size

    @property
    def reach(self) -> Array:
        """Largest values of the neurons where ‖Y‖ = 1, of those that are 0 at x = 0."""
        return np.asarray(_sizes(self.s) * np.linalg.norm(self.u[:, :-1], axis=1))


def squared_distance(first: HingeSum, second: HingeSum, near: float) -> float:
    """Return the squared norm of the difference of all jumps and the affine part.

    A jump counts for no more than its neuron can add to an answer: turned to be 0 at x = 0,
    neuron k adds at most ``reach[k]``·‖Y‖, next to nothing where its hyperplane is far from 0.
    Hyperplanes are compared where each is the other's nearest and 1 − |cos| < ``near``; the others
    count as missing in the other network.
    """
    first, second = (parts.turned(parts.u[:, -1] > 0) for parts in (first, second))
    linear = first.linear - second.linear
    left, missing = np.full(len(first.s), True), np.full(len(second.s), True)
    squares, cosine = 0.0, first.u @ second.u.T
    if cosine.size:
        j = np.argmax(np.abs(cosine), axis=1)
        i = np.flatnonzero(np.argmax(np.abs(cosine), axis=0)[j] == np.arange(len(j)))
        i = i[1 - np.abs(cosine[i, j[i]]) < near]
        j = j[i]
        turn = np.sign(cosine[i, j])
        # s·relu(z) = s·z + s·relu(−z)
        linear = linear - (second.s[j].T * (turn < 0)) @ second.u[j]
        change = _distances(first.s[i], first.u[i], second.s[j], turn[:, None] * second.u[j])
        # turned around to compare, a neuron is not 0 at x = 0
        most = np.where(turn > 0, first.reach[i] + second.reach[j], np.inf)
        squares += float(np.sum(np.minimum(change, most) ** 2))
        left[i], missing[j] = False, False
    squares += float(np.sum(first.reach[left] ** 2) + np.sum(second.reach[missing] ** 2))
    return squares + float(np.sum(linear**2))


def _sizes(s: Array) -> Array:
    """Return the sizes of jumps, numbers or vectors."""
    return np.asarray(np.linalg.norm(s, axis=1) if s.ndim > 1 else np.abs(s))


def _distances(s: Array, u: Array, other: Array, v: Array) -> Array:
    """Return ‖s_k u_kᵀ − t_k v_kᵀ‖ without the products, of unit vectors u and v."""
    moved, turned = s - other, u - v
    mixed = np.sum(moved * other, axis=tuple(range(1, s.ndim))) * np.sum(u * turned, axis=1)
    squares = _sizes(moved) ** 2 + (_sizes(other) * np.linalg.norm(turned, axis=1)) ** 2 + 2 * mixed
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))
