"""Do two ReLU networks compute the same function? Decided on their hinge sums.

Parallel neurons are one, and s·max(0, z) = s·z + s·max(0, −z) turns a neuron around at the price
of a linear part. So networks are equal exactly if the hyperplanes, the gradient's jumps across
them and the affine parts are (`HingeSum`). Where these differ by more than the tolerance, the
functions may still be close: values in the cells on both sides of every hyperplane decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.equality.equivalence import Equivalence, ModelEquality, Tolerance
from unsoftmax.models.equality.hinge_sum import HingeSum, squared_distance
from unsoftmax.models.equality.witnesses import witness_of
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.relu_network import ReluNetwork, typical_length
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class ReluNetworkEquality(ModelEquality[ReluNetwork]):
    """Networks are equal if hyperplanes, jumps of the gradient and affine parts are."""

    model: ClassVar[type[FrozenModel]] = ReluNetwork

    parallel: float = 1e-12
    """Unit normals closer than this are one hyperplane. Smaller: the rounding of a network's
    weights splits one; larger: two that are close become one."""
    near: float = 1e-2
    """Hyperplanes of two networks are compared if 1 − |cos| of their normals is below this; the
    others count as missing in the other network."""
    points: int = 512
    """Random points, beside ten at every hyperplane, where values are compared. With fewer a
    difference away from all hyperplanes may stay undecided."""

    def canonical(self, model: ReluNetwork) -> ReluNetwork:
        """Return the network that stands for all that compute the same function.

        Parallel neurons are merged, every neuron's first weight that is not 0 is positive and
        its ‖(A_k, b_k)‖ is 1, neurons are ordered by their weights; two neurons x·l and −x·l
        come last if a linear part is left.
        """
        d, parts = model.dim, HingeSum.of(model, 1.0).merged(self.parallel)
        parts = parts.turned(_first_is_negative(parts.u))
        order = np.lexsort(parts.u.T[::-1]) if len(parts.u) else np.zeros(0, dtype=np.intp)
        A, b, w_o = parts.u[order, :d], parts.u[order, d], parts.s[order]
        norm = float(np.linalg.norm(parts.linear[:d]))
        size = norm + float(np.sum(np.abs(parts.s)))
        if norm > 8 * UNIT * (1 + len(parts.s)) * size:  # else it is the rounding of the sum
            direction = parts.linear[:d] / norm
            A = np.vstack([A, direction, -direction])
            b, w_o = np.append(b, [0.0, 0.0]), np.append(w_o, [norm, -norm])
        return ReluNetwork(A.T, w_o, b, float(parts.linear[d]))

    def affine_part(self, network: ReluNetwork) -> tuple[Array, float] | None:
        """Return l and c of a network that is l·x + c, None if its gradient jumps anywhere."""
        parts = HingeSum.of(network, 1.0).merged(self.parallel)
        return None if len(parts.s) else (parts.linear[:-1], float(parts.linear[-1]))

    def read(self, model: FrozenModel) -> ReluNetwork | None:
        """Return a network as it is; nothing else is one."""
        return model if isinstance(model, ReluNetwork) else None

    def compare(self, a: ReluNetwork, b: ReluNetwork, tolerance: Tolerance) -> Equivalence:
        """Compare hinge sums, then values in the cells at all hyperplanes."""
        by, gap = self.agreement(a, b, tolerance)
        if by is not None:
            return Equivalence("equal", None, gap, by)
        x = self._in_cells(a, b, typical_length(a, b))
        return Equivalence.unequal(witness_of(a, b, [x[:, None]], _rounding), gap)

    def agreement(
        self, a: ReluNetwork, b: ReluNetwork, tolerance: Tolerance
    ) -> tuple[Literal["canonical form", "cells"] | None, float]:
        """Say by what the networks are equal, None if they are not, and their relative difference.

        No witness is looked for where they are not.
        """
        length = typical_length(a, b)
        first, second = (HingeSum.of(g, length).merged(self.parallel) for g in (a, b))
        size = max(first.norm, second.norm)
        difference = float(np.sqrt(squared_distance(first, second, self.near)))
        gap = difference / size if size else 0.0
        if tolerance.allows(difference, size):
            return "canonical form", gap
        if tolerance.exact:
            return None, gap
        x = self._in_cells(a, b, length)
        close = tolerance.allows(_largest_difference(a, b, x, length), size)
        return ("cells" if close else None), gap

    def share(self, a: ReluNetwork, b: ReluNetwork, errors: Mapping[str, float]) -> float:
        """Compare values in the cells at all hyperplanes with constant + slope·‖x‖."""
        x = self._in_cells(a, b, typical_length(a, b))
        off, rounding = np.abs(a(x) - b(x)), _rounding(a, x[:, None]) + _rounding(b, x[:, None])
        beyond = np.maximum(off - rounding, 0.0)
        if not np.any(beyond):
            return 0.0
        if not all(np.isfinite(errors.get(name, 0.0)) for name in ("constant", "slope")):
            return float("inf")
        slope = errors.get("slope", 0.0) * np.linalg.norm(x, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = beyond / (errors.get("constant", 0.0) + slope)
        return float(np.max(share[beyond > 0]))

    def _in_cells(self, a: ReluNetwork, b: ReluNetwork, length: float) -> Array:
        """Return points in the cells beside every hyperplane, at its foot and elsewhere on it."""
        return points_in_cells([(g.A.T, g.b) for g in (a, b)], length, self.points)


def points_in_cells(neurons: Iterable[tuple[Array, Array]], length: float, points: int) -> Array:
    """Return points beside every hyperplane, at its foot and elsewhere on it, and at random.

    Parameters
    ----------
    neurons : iterable of (ndarray (m, d), ndarray (m,))
        Rows and biases.
    length : float
        Typical distance of a hyperplane from 0.
    points : int
        How many random ones there are.
    """
    rng = np.random.default_rng(0)
    x: list[Array] = []
    for A, b in neurons:
        d = A.shape[1]
        if not x:
            directions = rng.standard_normal((points, d))
            lengths = length * 10.0 ** rng.uniform(-2, 4, (points, 1))
            x += [np.zeros((1, d)), lengths * directions]
        norm = np.linalg.norm(A, axis=1)
        used = norm > 0
        normal = A[used] / norm[used, None]
        foot = -(b[used] / norm[used])[:, None] * normal
        reach = length + np.linalg.norm(foot, axis=1, keepdims=True)
        along = rng.standard_normal(foot.shape)
        along -= np.sum(along * normal, axis=1, keepdims=True) * normal
        for on in (foot, foot + reach / np.sqrt(d) * along):
            x += [on, *(on + size * reach * normal for size in (1.0, -1.0, 1e-3, -1e-3))]
    return np.concatenate(x)


def sum_of_sizes(network: ReluNetwork, x: Array) -> Array:
    """Sum the sizes of all terms of the answers to points (B, d)."""
    inside = np.abs(x) @ np.abs(network.A) + np.abs(network.b)
    return np.asarray(inside @ np.abs(network.w_o) + abs(network.c))


def _rounding(network: ReluNetwork, X: Array) -> Array:
    """Bound the rounding of answers to (B, 1, d): sums of d + 1 terms err as √(d + 1)."""
    return np.asarray(16 * np.sqrt(network.dim + 1) * UNIT * sum_of_sizes(network, X[:, 0]))


def _largest_difference(a: ReluNetwork, b: ReluNetwork, x: Array, length: float) -> float:
    """Return the largest ``|a − b|`` over ‖Y‖."""
    height = np.hypot(np.linalg.norm(x, axis=1) / length, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.max(np.abs(a(x) - b(x)) / height))


def _first_is_negative(u: Array) -> NDArray[np.bool_]:
    """Say of which hyperplanes the first weight that is not 0 is negative."""
    return np.asarray(u[np.arange(len(u)), np.argmax(u != 0, axis=1)] < 0)
