"""A ReLU network as hyperplanes, jumps of the gradient, and one affine part.

With Y = (x/λ, 1) a network is l·Y + Σ_k s_k·max(0, u_k·Y), ‖u_k‖ = 1: the gradient jumps by
s_k u_k across u_k·Y = 0. Parallel neurons are one, and s·max(0, z) = s·z + s·max(0, −z) turns
u_k around, so functions are equal exactly if hyperplanes, jumps and affine parts are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.relu_network import ReluNetwork
from unsoftmax.probes import Array, Indices


@dataclass(frozen=True, slots=True)
class HingeSum:
    """The affine part l, (d + 1,), unit normals u, (K, d + 1), and jumps s, (K,)."""

    linear: Array
    u: Array
    s: Array

    @classmethod
    def of(cls, network: ReluNetwork, length: float) -> HingeSum:
        """Read a network off in the unit of length λ; constant neurons join the affine part."""
        vectors = np.column_stack([length * network.A.T, network.b])
        constant = ~np.any(network.A, axis=0)
        linear = np.zeros(network.dim + 1)
        linear[-1] = network.c + np.maximum(network.b[constant], 0.0) @ network.w_o[constant]
        used = ~constant & (network.w_o != 0)
        norm = np.linalg.norm(vectors[used], axis=1)
        return cls(linear, vectors[used] / norm[:, None], norm * network.w_o[used])

    def turned(self, back: NDArray[np.bool_]) -> HingeSum:
        """Turn some hyperplanes around: s·relu(z) = s·z + s·relu(−z)."""
        linear = self.linear + self.s[back] @ self.u[back]
        return HingeSum(linear, np.where(back[:, None], -self.u, self.u), self.s)

    def merged(self, parallel: float) -> HingeSum:
        """Add up neurons whose unit normals are within ``parallel``; drop those that cancel."""
        u, s, linear = self.u, self.s.copy(), self.linear.copy()
        if not len(s):
            return self
        size = np.abs(s)
        cosine = u @ u.T
        keep = np.full(len(s), True)
        rows, columns = np.nonzero(np.triu(1 - np.abs(cosine) < parallel, 1))
        for i, j in zip(rows.tolist(), columns.tolist(), strict=True):
            turn = np.sign(cosine[i, j])
            if not (keep[i] and keep[j]) or np.linalg.norm(u[i] - turn * u[j]) > parallel:
                continue
            if turn < 0:
                linear += s[j] * u[j]
            s[i] += s[j]
            size[i] += size[j]
            keep[j] = False
        # a sum this small beside its terms is their rounding
        keep &= np.abs(s) > 16 * UNIT * size
        return HingeSum(linear, u[keep], s[keep])

    @property
    def norm(self) -> float:
        """Norm of all jumps and the affine part."""
        return float(np.sqrt(np.sum(self.s**2) + np.sum(self.linear**2)))

    @property
    def reach(self) -> Array:
        """Largest values of the neurons where ‖Y‖ = 1, of those that are 0 at x = 0."""
        return np.asarray(np.abs(self.s) * np.linalg.norm(self.u[:, :-1], axis=1))


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
    squares = 0.0
    i, j, turn = _nearest_pairs(first.u, second.u, near)
    if len(i):
        # s·relu(z) = s·z + s·relu(−z)
        linear = linear - (second.s[j] * (turn < 0)) @ second.u[j]
        change = first.s[i, None] * first.u[i] - (second.s[j] * turn)[:, None] * second.u[j]
        # turned around to compare, a neuron is not 0 at x = 0
        most = np.where(turn > 0, first.reach[i] + second.reach[j], np.inf)
        squares += float(np.sum(np.minimum(np.linalg.norm(change, axis=1), most) ** 2))
        left[i], missing[j] = False, False
    squares += float(np.sum(first.reach[left] ** 2) + np.sum(second.reach[missing] ** 2))
    return squares + float(np.sum(linear**2))


def _nearest_pairs(u: Array, other: Array, near: float) -> tuple[Indices, Indices, Array]:
    """Return indices of hyperplanes that are each other's nearest, and the signs of u·other."""
    cosine = u @ other.T
    if not cosine.size:
        none = np.zeros(0, dtype=np.intp)
        return none, none, np.zeros(0)
    j = np.argmax(np.abs(cosine), axis=1)
    i = np.arange(len(j))
    both = np.argmax(np.abs(cosine), axis=0)[j] == i
    both &= 1 - np.abs(cosine[i, j]) < near
    i, j = i[both], j[both]
    return i, j, np.sign(cosine[i, j])
