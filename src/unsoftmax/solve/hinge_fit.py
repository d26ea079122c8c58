"""All parameters of a feed-forward layer at once, from answers to any tokens: Gauss and Newton.

Near the right parameters it is known which neurons are active at a token, h_j ∈ {0, 1}, and

    F̂(x) + Σ_j δB_j relu(z_j) + Σ_j B_j h_j (δa_j·x + δb_j) + δc

is linear in what they are off by: least squares, solved without a matrix (LSMR). Tokens may be as
far apart as they like, so that coarse answers tell most here. What errors of the answers do to the
parameters is read off the same equations with drawn errors in place of the misses.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class HingeFitTuning:
    """How a layer is fitted."""

    steps: int = 5
    """Limit on the Gauss–Newton steps; three are usual."""
    iterations: int = 400
    """Limit on the iterations for each. Fewer: directions that the tokens hardly show stay."""
    gained: float = 0.9
    """A step that leaves more than this share of the misses is the last."""
    drawn: int = 3
    """How often errors are drawn."""


@dataclass(frozen=True, slots=True)
class HingeParameters:
    """A (m, d), b (m,), B (d_out, m) and c (d_out,), or what they are off by."""

    A: Array
    b: Array
    B: Array
    c: Array

    @property
    def flat(self) -> Array:
        """All numbers in a row."""
        return np.concatenate([self.A.ravel(), self.b, self.B.ravel(), self.c])

    def of_flat(self, numbers: Array) -> Self:
        """Arrange a row of numbers as these are."""
        parts = (self.A, self.b, self.B, self.c)
        ends = np.cumsum([part.size for part in parts])[:-1]
        shaped = zip(np.split(numbers, ends), parts, strict=True)
        return type(self)(*(x.reshape(part.shape) for x, part in shaped))

    def moved(self, by: Self) -> Self:
        """Add what they are off by."""
        return type(self)(self.A + by.A, self.b + by.b, self.B + by.B, self.c + by.c)

    def at(self, x: Array) -> Array:
        """Evaluate the layer, without a residual."""
        return np.asarray(np.maximum(x @ self.A.T + self.b, 0.0) @ self.B.T + self.c)


@dataclass(frozen=True, slots=True)
class HingeFit:
    """Tokens and answers that a layer is fitted to."""

    x: Array
    y: Array
    weight: Array
    """(n,): one over the errors of the answers, but for a factor."""
    tuning: HingeFitTuning = field(default=HingeFitTuning())

    def run(self, start: HingeParameters) -> tuple[HingeParameters, float]:
        """Fit; return the parameters, and the misses' root mean square, weighted."""
        best, misses = start, self._misses(start)
        for _ in range(self.tuning.steps):
            new = best.moved(best.of_flat(self._solved(best, misses)))
            left = self._misses(new)
            gained = np.linalg.norm(left) / (np.linalg.norm(misses) or 1.0)
            if gained < 1:
                best, misses = new, left
            if gained > self.tuning.gained:
                break
        free = max(1, misses.size - best.flat.size)
        return best, float(np.linalg.norm(misses) / np.sqrt(free))

    def errors(
        self, found: HingeParameters, size: float, rng: np.random.Generator
    ) -> list[HingeParameters]:
        """Return what drawn errors of this weighted size do to the parameters."""
        shape = self.y.shape
        drawn = (size * rng.standard_normal(shape) for _ in range(self.tuning.drawn))
        return [found.of_flat(self._solved(found, one)) for one in drawn]

    def _misses(self, layer: HingeParameters) -> Array:
        return np.asarray(self.weight[:, None] * (self.y - layer.at(self.x)))

    def _solved(self, layer: HingeParameters, misses: Array) -> Array:
        """Return the change of all parameters that explains the misses best."""
        # takes long to load, and few runs come here
        from scipy.sparse.linalg import LinearOperator, lsmr

        z = self.x @ layer.A.T + layer.b
        w, active = self.weight[:, None], (z > 0).astype(float)
        relu = w * np.maximum(z, 0.0)
        # columns of about one size
        spread = np.sqrt(np.mean((w * self.x) ** 2))
        wide = np.linalg.norm(layer.B, axis=0) * spread
        tall = np.sqrt(np.mean(relu**2, axis=0))
        unit = HingeParameters(
            np.repeat(wide[:, None], layer.A.shape[1], axis=1),
            wide,
            np.repeat(tall[None], len(layer.c), axis=0),
            np.full(len(layer.c), float(np.sqrt(np.mean(w**2)))),
        ).flat
        unit = np.where(unit > 0, unit, np.inf)

        def ahead(change: Array) -> Array:
            by = layer.of_flat(change / unit)
            bent = active * (self.x @ by.A.T + by.b)
            return np.asarray(relu @ by.B.T + w * (bent @ layer.B.T + by.c)).ravel()

        def back(misses: Array) -> Array:
            r = misses.reshape(self.y.shape)
            bent = active * ((w * r) @ layer.B)
            by = HingeParameters(bent.T @ self.x, bent.sum(axis=0), r.T @ relu, (w * r).sum(axis=0))
            return by.flat / unit

        system = LinearOperator(
            (misses.size, layer.flat.size), matvec=ahead, rmatvec=back, dtype=np.float64
        )
        found = lsmr(system, misses.ravel(), atol=0, btol=0, maxiter=self.tuning.iterations)
        return np.asarray(found[0] / unit)


def balanced_parameters(layer: HingeParameters) -> HingeParameters:
    """Return the same layer with every row of A as long as its column of B."""
    scale = np.sqrt(np.linalg.norm(layer.B, axis=0) / np.linalg.norm(layer.A, axis=1))
    return replace(layer, A=scale[:, None] * layer.A, b=scale * layer.b, B=layer.B / scale)
