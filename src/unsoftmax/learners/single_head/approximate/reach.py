"""How far a learner may reach: tokens as long as a radius allows, logits where they tell most.

A probe [αz+βb; βb] has the logit αβ·z·(W b), and an error ±τ moves its p by τ/(α|z·v|). So α is
as large as it may be, and β sets the logit: under a radius α + β = R, without one α = 2⁴⁰. The
scale αβ = 2^k comes from a bound on ‖W‖, or from pilots that are asked again where they say
little. Directions are random and on a grid, so that tokens are exact in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.single_head.approximate.tolerated import Pass, saturated
from unsoftmax.measure import offsets
from unsoftmax.measure.two_tokens import Values
from unsoftmax.probes import Array

# Without a radius: ±τ moves nothing by more than 1e-12 τ, and 2⁴⁰·z + 2⁻⁴⁰·b is 2⁴⁰·z in float64
# and in float32 alike, so that no target sees other tokens than were meant.
_STRETCH = 40
# Tokens on this grid, times scales of few bits, are exact in float32, where most targets compute.
_GRID = 2.0**-14
# Under a radius R ≥ α + β an error ±τ moves small logits by τ/(α²β): least for β = R/3. 5/16 has
# few bits; so has α = R − β for shorter query tokens, as long as R − α ≥ 2⁻¹⁰R.
_QUERY_SHARE = 5 / 16
_SHORTEST = 2.0**-10
# Errors of W are least for logits of RMS 1 (σ' falls beyond); scales are powers of two, so
# pilots are kept between a quarter of that and a bit more.
_TARGET, _LARGEST = 0.9, 1.3
# With ‖W‖_F ≤ W̄ no logit is much beyond this, and σ' stays above 0.05.
_BOUNDED = 2.0
# Pilots are asked this often at most: lower by so many octaves where they are saturated (±τ
# hides |t| > 5 or so, float64 |t| > 30).
PILOTS = 4
_LOWER = (4, 8, 16)
_LOWER_STRETCHED = (20, 24, 24)
_EXTREME = 100.0
# Radii below 1000 or so leave logits no room for more octaves.
_SHORT = 20.0


@dataclass(frozen=True, slots=True)
class Reach:
    """How long tokens may be, and the scales that follow."""

    radius: float | None

    @property
    def single(self) -> float:
        """Norm of single tokens."""
        return 2.0**_STRETCH if self.radius is None else self.radius

    @property
    def most(self) -> float:
        """Largest k."""
        if self.radius is None:
            return _EXTREME
        return float(np.log2(_QUERY_SHARE * (1 - _QUERY_SHARE)) + 2 * np.log2(self.radius))

    def first(self, dim: int) -> float:
        """Return the scale to begin with: for ‖W‖_F ≈ √d, or the largest."""
        moderate = float(np.round(np.log2(np.sqrt(dim) * _TARGET)))
        return min(moderate, self.most)

    def bounded(self, norm_bound: float) -> float:
        """Return a scale at which no W up to a norm leaves the range."""
        return min(float(np.floor(np.log2(_BOUNDED / norm_bound))), self.most)

    def split(self, k: float) -> tuple[float, float]:
        """Split αβ ≈ 2^k into the largest α there may be, and β."""
        if self.radius is not None:
            share = _QUERY_SHARE * float(np.exp2(min(0.0, np.floor(k - self.most))))
            return self.radius * (1 - max(share, _SHORTEST)), self.radius * share
        up = _STRETCH + max(0.0, float(np.ceil(k / 2)))
        return float(np.exp2(up)), float(np.exp2(k - up))

    def better(self, asked: Pass, values: Values, k: float, attempt: int) -> float:
        """Suggest a scale from pilots on the diagonal; the same when they are in range."""
        within = asked.read(values, None)
        t, noise = np.diag(within.logit), float(np.median(4 * np.diag(within.p_error)))
        if saturated(np.diag(within.open), np.diag(within.p_error)):
            steps = _LOWER if self.most < _SHORT else _LOWER_STRETCHED
            return k - steps[min(attempt, len(steps) - 1)]
        size = float(np.sqrt(np.mean(t**2)))
        resolved = size > 3 * noise
        octaves = float(np.floor(np.log2(_TARGET / (size if resolved else size + noise))))
        if size > _LARGEST and resolved:
            return k + octaves
        return min(k + octaves, self.most) if octaves > 1 else k


def basis(dim: int, rng: np.random.Generator) -> Array:
    """Make a random basis, orthonormal up to the grid."""
    return _on_grid(offsets.rotation(dim, rng).made())


def balanced(v: Array, rng: np.random.Generator) -> Array:
    """Make balanced offsets on the grid; see `offsets.balanced`."""
    return _on_grid(offsets.balanced(v, rng).made())


def _on_grid(rows: Array) -> Array:
    """Cut rows to the grid; none becomes longer than 1."""
    cut: Array = np.trunc(rows / _GRID) * _GRID
    norms = np.linalg.norm(cut, axis=1, keepdims=True)
    return np.where(norms >= 1, cut * (1 - _GRID), cut)
