"""How long tokens may be, and at which scales logits tell most.

A probe [αz+βb; βb] has the logit αβ·z·(W b), and an error ±τ moves its p by τ/(α|z·v|). So α is
as large as it may be, and β sets the logit: under a radius α + β = R, without one α = 2⁴⁰. The
scale αβ = 2^k comes from a bound on ‖W‖, or from pilots, which are asked again at another k
where their logits are saturated, or hidden by ±τ. Directions are random and on a grid, so that
tokens are exact in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.measure import offsets
from unsoftmax.measure.intervals import IntervalTuning, LogitIntervals, saturated
from unsoftmax.probes import Array

# Without a radius offsets are 2⁴⁰ times as long: ±τ moves p by 1e-12 τ at most, and 2⁴⁰·z +
# 2⁻⁴⁰·b is 2⁴⁰·z in float64 and in float32 alike, so no target sees other tokens than were meant.
# Smaller: answers are less precise; larger: answers near float32's largest.
STRETCH = 40
# Entries of directions are multiples of this: times scales of few bits they are exact in float32,
# where most targets compute.
GRID = 2.0**-14
# Longest query token in lengths of the radius R. An error ±τ moves small logits by τ/(α²β), which
# under α + β = R is least for β = R/3; 5/16 has few bits.
QUERY_SHARE = 5 / 16
# For shorter query tokens α = R − β, as long as that leaves α few bits: R(1 − 2⁻¹⁰).
SHORTEST = 2.0**-10
# Root mean square of logits that pilots aim at. Errors of W are least for 1 (beyond it σ' falls),
# and scales are powers of two.
WANTED = 0.9
# Pilots whose logits have a larger root mean square are asked again.
LARGEST = 1.3
# With ‖W‖_F ≤ W̄ the scale is chosen so that no logit is much beyond this, and σ' stays above
# 0.05. Larger: saturated entries; smaller: every entry less precise.
WITHIN_BOUND = 2.0
# Pilots are asked this often at most.
PILOT_ROUNDS = 4
# Octaves by which saturated pilots are lowered, try by try, under a radius. ±τ hides |t| > 5 or
# so, so steps are small, to stay in range.
LOWER = (4, 8, 16)
# The same without a radius, where only float64 hides, |t| > 30, and ranges are wide.
LOWER_STRETCHED = (20, 24, 24)
# The largest k below which steps are these: radii below 1000 or so leave logits no room for
# more octaves.
SHORT = 20.0
# Largest k without a radius; for W as small as 2⁻¹⁰⁰.
EXTREME = 100.0
# How answers are read as intervals of logits.
READING = IntervalTuning()


@dataclass(frozen=True, slots=True)
class TokenScales:
    """Scales of tokens no longer than a radius, if there is one."""

    radius: float | None

    @property
    def single(self) -> float:
        """Norm of single tokens."""
        return 2.0**STRETCH if self.radius is None else self.radius

    @property
    def most(self) -> float:
        """Largest k."""
        if self.radius is None:
            return EXTREME
        return float(np.log2(QUERY_SHARE * (1 - QUERY_SHARE)) + 2 * np.log2(self.radius))

    def first(self, dim: int) -> float:
        """Return the scale to begin with: for ‖W‖_F ≈ √d, or the largest."""
        moderate = float(np.round(np.log2(np.sqrt(dim) * WANTED)))
        return min(moderate, self.most)

    def within(self, norm_bound: float) -> float:
        """Return a scale at which no W up to a norm has saturated logits."""
        return min(float(np.floor(np.log2(WITHIN_BOUND / norm_bound))), self.most)

    def split(self, k: float) -> tuple[float, float]:
        """Split αβ ≈ 2^k into the largest α there may be, and β."""
        if self.radius is not None:
            share = QUERY_SHARE * float(np.exp2(min(0.0, np.floor(k - self.most))))
            return self.radius * (1 - max(share, SHORTEST)), self.radius * share
        up = STRETCH + max(0.0, float(np.ceil(k / 2)))
        return float(np.exp2(up)), float(np.exp2(k - up))

    def better(self, pilots: LogitIntervals, k: float, attempt: int) -> float:
        """Suggest a scale from pilots at scale k; the same when they are in range."""
        if saturated(pilots.open, pilots.p_error, READING):
            steps = LOWER if self.most < SHORT else LOWER_STRETCHED
            return k - steps[min(attempt, len(steps) - 1)]
        size = float(np.sqrt(np.mean(pilots.logit**2)))
        noise = float(np.median(4 * pilots.p_error))  # dt/dp = 4 at t = 0
        resolved = size > 3 * noise
        octaves = float(np.floor(np.log2(WANTED / (size if resolved else size + noise))))
        if size > LARGEST and resolved:
            return k + octaves
        return min(k + octaves, self.most) if octaves > 1 else k

    def basis(self, dim: int, rng: np.random.Generator) -> Array:
        """Draw a random basis, orthonormal up to the grid."""
        return self._on_grid(offsets.rotation(dim, rng).made())

    def balanced(self, v: Array, rng: np.random.Generator) -> Array:
        """Draw balanced offsets on the grid; see `offsets.balanced`."""
        return self._on_grid(offsets.balanced(v, rng).made())

    def _on_grid(self, rows: Array) -> Array:
        """Cut rows to the grid; none becomes longer than 1."""
        cut = np.trunc(rows / GRID) * GRID
        norms = np.linalg.norm(cut, axis=1, keepdims=True)
        return np.where(norms >= 1, cut * (1 - GRID), cut)
