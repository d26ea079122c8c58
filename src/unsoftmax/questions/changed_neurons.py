"""Which of A, b and B of a feed-forward layer was changed? Where each alone explains the answers.

Along a ray x = τe, with Δ the change of u = B relu(A x + b) + c from the claim's:

- b was changed: Δ = B·(relu(z + β) − relu(z)) with the same β, a number per neuron, at all tokens;
- A was changed: the same with τα instead of β;
- B was changed: Δ is linear in the neurons relu(z). Within a cell these are linear in τ, and so is
  Δ whatever was changed; but a change of B is continuous across a hyperplane, one of A or b is not.
  In few neighbouring cells relu(z) has few dimensions, so that membership can be tested.

β and α are found by Newton's steps, which end where neurons no longer switch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy

from unsoftmax.models import FeedForward
from unsoftmax.probes import Array
from unsoftmax.questions.claim import Claim


@dataclass(frozen=True, slots=True)
class NeuronSearchTuning:
    """Knobs of telling A, b and B apart."""

    cells: int = 5
    """Neighbouring cells that are looked at; they have this many dimensions and one more."""
    per_cell: int = 4
    """Tokens in each."""
    along: int = 30
    """Tokens along the whole ray."""
    least: float = 1.5
    """Numbers of the answers per neuron; with fewer a change of A explains whatever it is."""
    most: int = 2048
    """More neurons are not told apart: a Newton step takes time as their cube."""
    steps: int = 6
    """Newton steps. Neurons that switch by the change are right after two or three."""
    ridge: float = 1e-12
    """Of what neurons that no token shows leave singular."""


@dataclass(frozen=True, slots=True)
class Ray:
    """Tokens τe: some along all of it, then some in neighbouring cells."""

    direction: Array
    places: Array
    """τ, (K,)."""
    near: slice
    """Those in neighbouring cells."""

    @classmethod
    def drawn(
        cls, claim: Claim, rng: np.random.Generator, tuning: NeuronSearchTuning
    ) -> Ray | None:
        """Draw it; None where too few hyperplanes are crossed."""
        layer = claim.model
        e = rng.standard_normal(claim.dim) / np.sqrt(claim.dim)
        e = e.astype(np.float32).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            kinks = -layer.b / (layer.A @ e)
        kinks = np.sort(kinks[np.isfinite(kinks) & (kinks != 0)])
        if len(kinks) <= tuning.cells:
            return None
        far = 2 * float(np.quantile(np.abs(kinks), 0.75))
        along = far * (np.arange(tuning.along) + rng.random(tuning.along)) / tuning.along
        along = along * rng.choice([-1.0, 1.0], tuning.along)
        first = int(np.argmin(np.abs(kinks - np.median(kinks)))) - tuning.cells // 2
        first = min(max(0, first), len(kinks) - tuning.cells - 1)
        ends = kinks[first : first + tuning.cells + 1]
        inner = (np.arange(tuning.per_cell) + 0.5) / tuning.per_cell
        near = (ends[:-1, None] + np.diff(ends)[:, None] * inner).ravel()
        places = np.append(along, near).astype(np.float32).astype(np.float64)
        return cls(e, places, slice(tuning.along, None))

    @property
    def tokens(self) -> Array:
        """The tokens, (K, d)."""
        return np.outer(self.places, self.direction)


@dataclass(frozen=True, slots=True)
class NeuronFit:
    """A change of b or A that explains answers along a ray best."""

    layer: FeedForward
    ray: Ray
    factors: Array
    """What a neuron's change counts with at each token, (K,): 1 of b, τ of A."""
    tuning: NeuronSearchTuning

    def explained(self, change: Array, along: Array | None) -> Array:
        """Return the part of Δ (K, m), known up to t·ẑ, that the best change explains."""
        A, b, B = self.layer.A, self.layer.b, self.layer.B
        z = self.ray.tokens @ A.T + b
        relu, found = np.maximum(z, 0.0), np.zeros(len(b))
        explained = np.zeros_like(change)
        gram = B.T @ B
        for _ in range(self.tuning.steps):
            moved = z + self.factors[:, None] * found
            explained = (np.maximum(moved, 0.0) - relu) @ B.T
            left = _across(change - explained, along)
            on = (moved > 0) * self.factors[:, None]
            system = gram * (on.T @ on)
            if along is not None:
                shadow = on * (_unit(along) @ B)
                system = system - shadow.T @ shadow
            ridge = self.tuning.ridge * (np.trace(system) / len(b) or 1.0)
            system[np.diag_indices_from(system)] += ridge
            step = scipy.linalg.solve(system, np.sum(on * (left @ B), axis=0), assume_a="sym")
            found = found + step
        moved = z + self.factors[:, None] * found
        return np.asarray((np.maximum(moved, 0.0) - relu) @ B.T)


def _unit(along: Array) -> Array:
    lengths = np.linalg.norm(along, axis=1, keepdims=True)
    return np.asarray(along / np.where(lengths > 0, lengths, 1.0))


def _across(change: Array, along: Array | None) -> Array:
    """Take ẑ's part off each row."""
    if along is None:
        return change
    unit = _unit(along)
    return np.asarray(change - np.sum(change * unit, axis=1, keepdims=True) * unit)


def with_outputs(layer: FeedForward, used: Array, centred: bool) -> FeedForward:
    """Return the layer as a norm behind shows it: without the mean, and some numbers alone."""
    B = layer.B - layer.B.mean(axis=0) if centred else layer.B
    return FeedForward(layer.A, layer.b, B[used], layer.c[used])


def fits(claim: Claim, ray: Ray, tuning: NeuronSearchTuning) -> dict[str, NeuronFit]:
    """Return what may explain answers along a ray, by name."""
    norm = claim.behind
    layer = claim.model
    if norm is not None:
        layer = with_outputs(layer, norm.scale != 0, norm.centred)
    one = NeuronFit(layer, ray, np.ones_like(ray.places), tuning)
    return {"b": one, "A": replace(one, factors=ray.places)}
