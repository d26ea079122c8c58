"""Base points: far out in the cells of a network, one for each neuron and one more.

A ReLU network g(x) = l·x + c + Σ_k ε_k relu(A_k·x + b_k) is linear in every cell of its K
hyperplanes. With s_k = 1 where neuron k is active, what is linear in l and all ε_k A_k is known
from K + 1 cells whose vectors (1, s) are linearly independent. A cell that holds whole rays is a
cone far out: around a point of norm t it holds a ball of radius t·margin. Between parallel
hyperplanes there is a strip, as wide far out as anywhere. Nothing is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy

from unsoftmax.arrangement.centres import CellShapes
from unsoftmax.models import ReluNetwork
from unsoftmax.models.neuron_sum import NeuronSum
from unsoftmax.probes import Array, Flags

# Neurons whose (A_k, b_k) are as parallel as this are one, as in the network's own search.
PARALLEL = 1e-9
# Random directions per cell that is needed, the widest of which are kept, and so many of them, from
# which pivoted QR chooses.
DRAWN, KEPT = 64, 6
# Random points of each hyperplane, on both sides of which a cell is taken besides: their (1, s)
# differ in one neuron, so that all of them span K + 1 dimensions.
BESIDE = 4
# Centres of so many of the widest cells are tried for the first one.
FIRST = 64
# Query tokens are so many times as long as the farthest hyperplane on their way, and this over the
# root of the margin, for W of norm 1: heads' logits may then reach 250.
BEYOND, GATES = 5.0, 25.0
# A network is constant where its gradient is below this share of what its terms add up to.
FLAT = 1e-9
# Vectors (1, s) span K + 1 dimensions if the last pivot is above this. They are weighted by the
# room around their points, which is 1e-5 of the length between parallel hyperplanes.
INDEPENDENT = 1e-9


@dataclass(frozen=True, slots=True)
class NetworkHinges:
    """A network as an affine part and K distinct neurons of weight ±1."""

    linear: Array
    """l (d,)."""
    c: float
    A: Array
    """(K, d)."""
    b: Array
    signs: Array
    """ε (K,)."""

    @classmethod
    def of(cls, network: ReluNetwork) -> Self:
        """Merge parallel neurons; pairs z and −z join the affine part."""
        rows, d = np.column_stack([network.A.T, network.b]), network.dim
        affine = np.append(np.zeros(d), network.c)[None]
        parts = NeuronSum.of("relu", rows, network.w_o[None], None, affine).merged(
            parallel=PARALLEL
        )
        [jumps], [linear] = parts.jumps, parts.linear
        vectors = np.abs(jumps)[:, None] * parts.rows
        return cls(linear[:d], float(linear[d]), vectors[:, :d], vectors[:, d], np.sign(jumps))

    def __len__(self) -> int:
        return len(self.A)

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.A.shape[1])

    @property
    def steepness(self) -> float:
        """‖l‖ + Σ_k ‖A_k‖: what the terms of an answer add up to, per unit of a token."""
        return float(np.linalg.norm(self.linear) + np.linalg.norm(self.A, axis=1).sum())

    def active(self, x: Array) -> Flags:
        """Tell which neurons are active at points (n, d); (n, K)."""
        return np.asarray(x @ self.A.T + self.b > 0)

    def gradients(self, active: Flags) -> Array:
        """Return ∇g in cells (n, K); (n, d)."""
        return np.asarray(self.linear + (active * self.signs) @ self.A)

    def room(self, x: Array) -> Array:
        """Return the distance of points (n, d) to the nearest hyperplane; (n,)."""
        away = np.abs(x @ self.A.T + self.b) / np.linalg.norm(self.A, axis=1)
        return np.asarray(np.min(away, axis=1, initial=np.inf))

    def margin(self, x: Array) -> Array:
        """Return the margin of the cones that hold directions x (n, d); (n,)."""
        normals = self.A / np.linalg.norm(self.A, axis=1, keepdims=True)
        return np.asarray(np.min(np.abs(x @ normals.T), axis=1, initial=np.inf))

    def reach(self, x: Array) -> Array:
        """Return from which length on points along directions x (n, d) are in their cones."""
        with np.errstate(divide="ignore"):
            lengths = np.abs(self.b) / np.abs(x @ self.A.T)
        return np.asarray(np.max(lengths, axis=1, initial=0.0))


@dataclass(frozen=True, slots=True)
class ConeDirections:
    """Directions of cones of a network, the widest first."""

    hinges: NetworkHinges
    x: Array
    """Unit vectors (n, d)."""

    @classmethod
    def drawn(cls, hinges: NetworkHinges, rng: np.random.Generator) -> ConeDirections:
        """Draw directions; keep the widest of each cone, and the widest cones."""
        needed = len(hinges) + 1
        x = rng.standard_normal((DRAWN * needed, hinges.dim))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        x = x[np.argsort(-hinges.margin(x), kind="stable")]
        _, first = np.unique(x @ hinges.A.T > 0, axis=0, return_index=True)
        return cls(hinges, x[np.sort(first)[: KEPT * needed]])

    def widest(self, count: int) -> Array:
        """Return the centres of the widest cones (≤ count, d).

        First come those where the query tokens of a search may be shortest: beyond the network's
        hyperplanes, and so long that offsets within the cone switch heads. Cones where the
        network is constant come last: there no head may show.
        """
        centres = self._centred(self.x[: max(count, FIRST)])
        margin, reach = self.hinges.margin(centres), self.hinges.reach(centres)
        with np.errstate(divide="ignore"):
            length = np.maximum(BEYOND * reach, GATES / np.sqrt(margin))
        slope = self.hinges.gradients(centres @ self.hinges.A.T > 0)
        flat = np.linalg.norm(slope, axis=1) <= FLAT * self.hinges.steepness
        order = np.lexsort((length, flat))
        return np.asarray(centres[order[:count]])

    def spanning(self, active: Flags, length: float, rng: np.random.Generator) -> Array | None:
        """Return K points of norm ``length`` whose (1, s) tell everything; None without any.

        ``active`` (K,) are the neurons of one more cell, which is known already.
        """
        hinges, K = self.hinges, len(self.hinges)
        cones = np.concatenate([self.x, self._beside(rng)])
        points = np.concatenate([length * cones, self._in_strips(length, rng)])
        weight = np.minimum(hinges.room(points) / length, 1.0)
        every = np.concatenate([active[None], hinges.active(points)])
        rows = np.column_stack([np.ones(len(every)), np.where(every, 1.0, -1.0)])
        # what the known cell tells is known already
        along = rows[0] / np.linalg.norm(rows[0])
        rest = rows[1:] - np.outer(rows[1:] @ along, along)
        R, pivots = scipy.linalg.qr((weight[:, None] * rest).T, mode="r", pivoting=True)
        if len(rest) < K or np.min(sizes(R, K)) <= INDEPENDENT:
            return None
        chosen = np.sort(pivots[:K])
        inside = chosen < len(cones)
        return np.concatenate(
            [length * self._centred(cones[chosen[inside]]), points[chosen[~inside]]]
        )

    def _in_strips(self, length: float, rng: np.random.Generator) -> Array:
        """Draw points far out between parallel hyperplanes, where there is no cone."""
        d, count = self.hinges.dim, BESIDE
        size = np.linalg.norm(self.hinges.A, axis=1)
        normals, points = self.hinges.A / size[:, None], [np.zeros((0, d))]
        cosine = normals @ normals.T
        parallel = 1 - np.abs(cosine) < PARALLEL
        for j, k in zip(*np.nonzero(np.triu(parallel, 1)), strict=True):
            n, others = normals[j], normals[~parallel[j]]
            places = [-self.hinges.b[i] / size[i] * np.sign(cosine[i, j]) for i in (j, k)]
            y = rng.standard_normal((DRAWN * count, d))
            y -= np.outer(y @ n, n)
            y /= np.linalg.norm(y, axis=1, keepdims=True)
            clear = np.min(np.abs(y @ others.T), axis=1, initial=1.0)
            y = y[np.argsort(-clear, kind="stable")[:count]]
            points.append(np.mean(places) * n + length * y)
        return np.concatenate(points)

    def _beside(self, rng: np.random.Generator) -> Array:
        """Draw directions on both sides of every hyperplane, none other being between them."""
        (K, d), count = self.hinges.A.shape, BESIDE
        normals = self.hinges.A / np.linalg.norm(self.hinges.A, axis=1, keepdims=True)
        x, k = rng.standard_normal((count * K, d)), np.tile(np.arange(K), count)
        x -= np.sum(x * normals[k], axis=1, keepdims=True) * normals[k]
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        away = np.abs(x @ normals.T)
        away[np.arange(len(x)), k] = np.inf
        step = np.minimum(np.min(away, axis=1, initial=1.0), 1.0)[:, None] / 2 * normals[k]
        both = np.concatenate([x + step, x - step])
        return np.asarray(both / np.linalg.norm(both, axis=1, keepdims=True))

    def _centred(self, x: Array) -> Array:
        if not len(self.hinges) or not len(x):
            return x
        normals = self.hinges.A / np.linalg.norm(self.hinges.A, axis=1, keepdims=True)
        return CellShapes(normals, False).centres(x)


def sizes(R: Array, count: int) -> Array:
    """Return the first pivots of a triangular factor; 0 for those that there are not."""
    pivots = np.zeros(count)
    diagonal = np.abs(np.diag(R))[:count]
    pivots[: len(diagonal)] = diagonal
    return pivots
