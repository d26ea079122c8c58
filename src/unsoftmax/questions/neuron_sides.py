"""The two sides of every neuron's hyperplane, and points that lie on many of them.

A neuron that was changed shows where it is on, x·A_j + b_j > 0; one that was replaced by its linear
part, as optimisers do with neurons that seem never to be off, shows where it is off. So a network
is tested where its points lie on both sides of every hyperplane.

Random points of a hyperplane's own distance leave a share of the sides out. `aimed` solves for
points on those that are left: with unit normals n_j and distances t_j, the point nearest to a
random one for which x·n_j = t_j + s_j, for up to d sides at once; s_j is as large as t_j, or as
random tokens' x·n_j.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models import ReluNetwork
from unsoftmax.probes import Array

Sides = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SideTuning:
    """Knobs of meeting neurons."""

    draws: int = 32
    """Points that are drawn for each that is asked."""
    groups: int = 4
    """Points that are aimed at so many different groups of sides, for every size of group."""
    soft: float = 1e-3
    """Ridge of the equations for a point on several sides: of two that exclude each other neither
    is met, rather than both far away."""
    deep: float = 0.125
    """A side counts as met from this depth on, in units of what random tokens have: the change of
    a neuron must show beside the rounding of all others."""
    off: float = 0.25
    """What meeting a neuron where it is off is worth, beside meeting it where it is on."""


@dataclass(frozen=True, slots=True)
class NeuronSides:
    """Both sides of the hyperplanes of a network: those where neurons are on, then the others.

    Attributes
    ----------
    normals : ndarray, shape (2n, d)
        Unit normals, which point into the side.
    distances : ndarray, shape (2n,)
        How far the hyperplane is from 0 along the normal; negative where 0 is on the side.
    weights : ndarray, shape (2n,)
        By how much an answer changes per unit of depth if the neuron is left out, or is linear.
    """

    normals: Array
    distances: Array
    weights: Array

    @classmethod
    def of(cls, network: ReluNetwork) -> NeuronSides:
        """Return those of the neurons that the answers depend on and that switch at all."""
        return cls.of_neurons(network, seen_neurons(network))

    @classmethod
    def of_neurons(cls, network: ReluNetwork, used: Sides) -> NeuronSides:
        """Return those of some neurons; one that never switches is infinitely far away."""
        norms = np.linalg.norm(network.A, axis=0)[used]
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            normals = np.where(norms[:, None] > 0, network.A.T[used] / norms[:, None], 0.0)
            distances = np.where(norms > 0, -network.b[used] / norms, np.inf)
            weights = norms * np.abs(network.w_o[used])
        both = np.vstack([normals, -normals]), np.append(distances, -distances)
        return cls(*both, np.append(weights, weights))

    @property
    def neurons(self) -> int:
        """How many neurons there are."""
        return len(self.weights) // 2

    def depths(self, x: Array) -> Array:
        """Return how far points (B, d) are inside each side, (B, 2n)."""
        n = self.neurons
        on = x @ self.normals[:n].T - self.distances[:n]
        return np.hstack([on, -on])

    def met(self, x: Array, tuning: SideTuning) -> Sides:
        """Say which sides points (B, d) lie on, and not merely at their edge, (B, 2n)."""
        sizes = np.linalg.norm(x, axis=1)[:, None] + np.abs(self.distances)
        share = tuning.deep / np.sqrt(x.shape[1])
        return np.asarray(self.depths(x) > share * sizes)

    def worth(self, tuning: SideTuning) -> Array:
        """Return what it is worth to meet each side, (2n,)."""
        return np.repeat([1.0, tuning.off], self.neurons)

    def hidden(self, x: Array, bounds: Array) -> Sides:
        """Say on which sides no answer to points (B, d) shows a neuron beyond ``bounds`` (B,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            shown = self.weights * np.maximum(self.depths(x), 0.0) > bounds[:, None]
        return np.asarray(~np.any(shown, axis=0))

    def aimed(
        self, wanted: Sides, length: float, rng: np.random.Generator, tuning: SideTuning
    ) -> Array:
        """Return points (K, d) on groups of the sides that are wanted, none where none is.

        Points have about the norm ``length`` or, where hyperplanes are further away, a larger one.
        """
        places = np.flatnonzero(wanted & np.isfinite(self.distances))
        found, size, d = [], 1, self.normals.shape[1]
        typical = length / float(np.sqrt(d))
        while size <= min(d, len(places)):
            for _ in range(tuning.groups):
                group = rng.choice(places, size, replace=False)
                near = np.asarray(typical * rng.standard_normal(d))
                deep = np.maximum(np.abs(self.distances[group]), typical)
                found.append(self._nearest(group, deep, near, tuning))
            size *= 2
        return np.array(found).reshape(-1, d)

    def _nearest(
        self, group: NDArray[np.intp], deep: Array, near: Array, tuning: SideTuning
    ) -> Array:
        """Return the point nearest to another one that is so deep in a group of sides."""
        normals, wanted = self.normals[group], self.distances[group] + deep
        gram = normals @ normals.T + tuning.soft * np.eye(len(group))
        return np.asarray(near + normals.T @ np.linalg.solve(gram, wanted - normals @ near))


def seen_neurons(network: ReluNetwork) -> Sides:
    """Say which neurons switch, and move answers."""
    return np.asarray(np.any(network.A, axis=0) & (network.w_o != 0))
