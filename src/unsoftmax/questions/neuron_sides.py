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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models import LayerNorm
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Map
from unsoftmax.models.neurons import Neurons
from unsoftmax.probes import Array

Sides = NDArray[np.bool_]


# Points that are aimed at so many different groups of sides, for every size of group.
_GROUPS = 4
# Ridge of the equations for a point on several sides: of two that exclude each other neither is
# met, rather than both far away.
_SOFT = 1e-3
# A side counts as met from this depth on, in units of what random tokens have: the change of a
# neuron must show beside the rounding of all others.
_DEEP = 0.125
# What meeting a neuron where it is off is worth, beside meeting it where it is on.
_OFF = 0.25


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
    def of(cls, A: Array, a: Array, heights: Array) -> NeuronSides:
        """Return those of neurons x·A_j + a_j, A (n, d), that add ``heights`` (n,) to answers.

        One that never switches is infinitely far away.
        """
        norms = np.linalg.norm(A, axis=1)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            normals = np.where(norms[:, None] > 0, A / norms[:, None], 0.0)
            distances = np.where(norms > 0, -a / norms, np.inf)
            weights = norms * np.abs(heights)
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

    def met(self, x: Array) -> Sides:
        """Say which sides points (B, d) lie on, and not merely at their edge, (B, 2n)."""
        sizes = np.linalg.norm(x, axis=1)[:, None] + np.abs(self.distances)
        share = _DEEP / np.sqrt(x.shape[1])
        return np.asarray(self.depths(x) > share * sizes)

    @property
    def worth(self) -> Array:
        """What it is worth to meet each side, (2n,)."""
        return np.repeat([1.0, _OFF], self.neurons)

    def hidden(self, x: Array, bounds: Array) -> Sides:
        """Say on which sides no answer to points (B, d) shows a neuron beyond ``bounds`` (B,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            shown = self.weights * np.maximum(self.depths(x), 0.0) > bounds[:, None]
        return np.asarray(~np.any(shown, axis=0))

    def aimed(self, wanted: Sides, length: float, rng: np.random.Generator) -> Array:
        """Return points (K, d) on groups of the sides that are wanted, none where none is.

        Points have about the norm ``length`` or, where hyperplanes are further away, a larger one.
        """
        places = np.flatnonzero(wanted & np.isfinite(self.distances))
        found, size, d = [], 1, self.normals.shape[1]
        typical = length / float(np.sqrt(d))
        while size <= min(d, len(places)):
            for _ in range(_GROUPS):
                group = rng.choice(places, size, replace=False)
                near = np.asarray(typical * rng.standard_normal(d))
                deep = np.maximum(np.abs(self.distances[group]), typical)
                # the point nearest to a random one that is so deep in all sides of the group
                normals, depth = self.normals[group], self.distances[group] + deep
                gram = normals @ normals.T + _SOFT * np.eye(size)
                found.append(near + normals.T @ np.linalg.solve(gram, depth - normals @ near))
            size *= 2
        return np.array(found).reshape(-1, d)


@dataclass(frozen=True, slots=True)
class Bends:
    """Where a model bends: the hyperplanes of its first neurons, in what these are given.

    Attributes
    ----------
    sides : NeuronSides
        Those of the neurons that switch, and move answers.
    single : NeuronSides
        The same in single tokens.
    lengths : ndarray
        Lengths at which single tokens meet hyperplanes.
    before : LayerNorm, Attention or None
        What gives the neurons what they are given: tokens of size 1, or what heads pool.
    """

    sides: NeuronSides
    single: NeuronSides
    lengths: Array
    before: Map | None

    @classmethod
    def of(cls, maps: Sequence[Map]) -> Bends | None:
        """Find them in maps, one after the other; None where there are none, or not known.

        They are known of ReLUs that are given tokens, what a norm makes of them, or what heads
        pool.
        """
        before = maps[0] if len(maps) > 1 and not isinstance(maps[0], Neurons) else None
        neurons = maps[before is not None] if maps else None
        if not isinstance(neurons, Neurons):
            return None
        if neurons.activation != "relu" or neurons.G is not None:
            return None
        A, a = neurons.A, neurons.a
        alone, lengths = None, None
        if isinstance(before, Attention) and before.O is not None:
            if A is not None or before.V is not None:
                return None
            a = a if before.c is None else a + before.c
            layers = [*before.O, *([] if before.R is None else [before.R])]
            none = np.zeros((len(a), before.Q.shape[2]))
            A, alone = np.hstack(layers or [none]), sum(layers, none)
        assert A is not None
        if isinstance(before, LayerNorm):  # in tokens of size 1
            A, a = A * before.scale, a + A @ before.shift
            A = A - A.mean(axis=1, keepdims=True) if before.centred else A
            lengths = np.array([np.sqrt(A.shape[1])])
        alone = A if alone is None else alone
        heights = np.linalg.norm(neurons.B, axis=0) / np.sqrt(len(neurons.B))
        used = np.any(A, axis=1) & np.any(neurons.B, axis=0)
        own, single = (NeuronSides.of(one[used], a[used], heights[used]) for one in (A, alone))
        if lengths is None:  # √d times the hyperplanes' distances: where random tokens meet them
            norms = np.linalg.norm(alone, axis=1)
            met = (norms > 0) & (a != 0)
            lengths = np.sort(np.abs(a[met]) / norms[met]) * float(np.sqrt(alone.shape[1]))
        return cls(own, single, lengths, before)

    def points(self, sequences: Sequence[Array]) -> Array:
        """Return the points that sequences (N, d) of any lengths give to the neurons, (B, D)."""
        points = np.array([self.given(X[None])[0] for X in sequences])
        return points.reshape(-1, self.sides.normals.shape[1])

    def met(self, sequences: Sequence[Array]) -> Sides:
        """Say on which sides of the hyperplanes sequences lie, (B, 2n)."""
        return self.sides.met(self.points(sequences))

    def given(self, X: Array) -> Array:
        """Return the points that sequences (B, N, d) give to the neurons, (B, D)."""
        if isinstance(self.before, LayerNorm):
            return self.before.normalised(X[:, -1])
        if not isinstance(self.before, Attention):
            return X[:, -1]
        pooled = self.before.pooled(X)
        beside = [] if self.before.R is None else [X[:, -1:]]
        given = np.concatenate([pooled, *beside], axis=1).reshape(len(X), -1)
        return given if given.size else np.zeros((len(X), X.shape[2]))
