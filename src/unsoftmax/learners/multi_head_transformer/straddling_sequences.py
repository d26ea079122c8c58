"""Sequences beside hyperplanes, by Newton's steps: where neurons that switch as one switch apart.

Two neurons with the same Σ_h B_h[j] and b[j] are one at single tokens, and wherever tokens are far
closer to each other than to their hyperplane. Values in cells are those of one neuron then, and so
is the layer that comes of them. Their hyperplanes z_j = Σ_h B_h[j]·p_h + b[j] = 0 differ all the
same: where what heads pool differs a sequence lies between them. So sequences are made at which
neurons of the layer are given nearly 0,

    z_k = δ_k s_k,   s_k² = Σ_h (B_h[k]·(p_h − p̄))²,   p̄ the mean of the p_h,

for as many neurons at once as the tokens of a sequence have numbers to spare. Of weights of one
sign the two neurons are on unlike sides there; of opposite signs they are on one of both sides of
z_k = 0, so both are asked, and both very close to it for first layers that are nearly alike. The
same tokens, moved far away together, lie on one side of every hyperplane: a layer that predicts
these and not the others has neurons that switch apart. Nothing is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.arrangement.base_points import NetworkHinges
from unsoftmax.learners.multi_head_transformer.layer_search import RecoveredTransformer
from unsoftmax.models import MultiHeadTransformer
from unsoftmax.probes import Array, Indices


@dataclass(frozen=True, slots=True)
class StraddlingTuning:
    """How close to hyperplanes sequences are, and how they are made."""

    sides: tuple[float, ...] = (0.02, -0.02, 2e-3, -2e-3, 2e-4, -2e-4, 2e-5, -2e-5, 1e-6, -1e-6)
    """δ, in turn. Of opposite weights a layer of one neuron for two misses this share of one's; of
    alike ones their whole difference, where first layers differ by a larger share."""
    tokens: int = 4
    per_dim: int = 2
    """Neurons per sequence, over d: with 4 tokens half of the numbers are to spare."""
    within: float = 0.5
    """δ is met to this share."""
    steps: int = 30
    longest: float = 0.5
    """A step is at most this share of the sequence's norm."""
    tries: int = 4
    """Sequences that steps begin with, until one ends where it should; groups that none serves are
    halved."""
    sizes: tuple[float, float] = (-0.5, 0.7)
    """Range of log₁₀ of the first query tokens' lengths, in typical distances of hyperplanes."""
    logits: tuple[float, ...] = (1.0, 2.0, 3.0)
    """Root mean squares of one head's first logits: what heads pool differs."""
    directions: int = 64
    kept: int = 3
    away: float = 20.0
    """The way to the nearest hyperplane is so many times as far as tokens differ, once they are
    moved, both ways along the widest of so many random directions."""
    outlying: float = 1e3
    """A sequence that is missed by so many times what half of the others are is looked at, even if
    bounds allow it: 5 at most in 72 layers, 5,000 and more where neurons are nearly alike."""
    alike: float = 0.01
    """There answers are missed by at most this share of what they are beside the hyperplanes."""


@dataclass(frozen=True, slots=True)
class StraddlingSequences:
    """Makes sequences beside the hyperplanes of a recovered layer."""

    found: RecoveredTransformer
    length: float
    """Typical distance of hyperplanes."""
    rng: np.random.Generator
    tuning: StraddlingTuning

    def drawn(self) -> list[Array]:
        """Return sequences (N, d), one for each side of each group of neurons."""
        model = self.found.model
        K = len(model.b) - 2 * self.found.linear
        if len(model.first_layers) < 2 or not K:
            return []  # of one head no neurons switch apart
        order: Indices = self.rng.permutation(K)
        size = self.tuning.per_dim * model.dim
        groups = [order[i : i + size] for i in range(0, K, size)]
        made = []
        while groups:
            group = groups.pop()
            sides = self._sides(group)
            if sides is None and len(group) > 1:
                groups += [group[: len(group) // 2], group[len(group) // 2 :]]
            made += sides or []
        return made

    def _sides(self, group: Indices) -> list[Array] | None:
        """Return sequences beside some neurons' hyperplanes, None where a side is met by none.

        Of one neuron alone those sides that are met.
        """
        tuning, most = self.tuning, list[Array]()
        signs = self.rng.choice([-1.0, 1.0], len(group))
        for attempt in range(tuning.tries):
            X: Array | None = self._first(attempt)
            sides = []
            for side in tuning.sides:
                X = None if X is None else self._beside(group, side * signs, X)
                sides.append(X)
            met = [X for X in sides if X is not None]
            if len(met) == len(sides):
                return met
            most = max(most, met, key=len)
        return most if len(group) == 1 else None

    def _first(self, attempt: int) -> Array:
        model, tuning, d = self.found.model, self.tuning, self.found.model.dim
        size = self.length * 10.0 ** self.rng.uniform(*tuning.sizes)
        b = size * self.rng.standard_normal(d) / np.sqrt(d)
        offsets = self.rng.standard_normal((tuning.tokens - 1, d)) / np.sqrt(d)
        u = model.scores_of(b[None])[0, attempt % model.H]
        rms = float(np.sqrt(np.mean((offsets @ u) ** 2)))
        reach = max(float(np.linalg.norm(b)), self.length)
        wanted = tuning.logits[attempt % len(tuning.logits)]
        stretch = min(wanted / rms, reach) if rms > 0 else reach
        return np.vstack([b + stretch * offsets, b])

    def _beside(self, group: Indices, wanted: Array, X: Array) -> Array | None:
        """Move tokens until z/s of a group of neurons is what is wanted; None in vain."""
        tuning = self.tuning
        for _ in range(tuning.steps):
            z, slope, s = given_to(self.found.model, group, X)
            if not np.all(s > 0):
                return None
            off = z / s - wanted
            if np.all(np.abs(off) <= tuning.within * np.abs(wanted)):
                return X
            J = (slope / s[:, None, None]).reshape(len(group), -1)
            if not np.all(np.isfinite(J)):
                return None
            step = np.linalg.lstsq(J, -off, rcond=None)[0].reshape(X.shape)
            most = tuning.longest * float(np.linalg.norm(X))
            X = X + min(1.0, most / (float(np.linalg.norm(step)) or 1.0)) * step
        return None

    def moved_away(self, X: Array, hinges: NetworkHinges) -> list[Array]:
        """Move all tokens of a sequence together, beyond all hyperplanes, several ways."""
        tuning = self.tuning
        x = self.rng.standard_normal((tuning.directions, hinges.dim))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        x = x[np.argsort(-hinges.margin(x), kind="stable")[: tuning.kept]]
        steep = np.linalg.norm(self.found.model.first_layers, axis=2).sum(axis=0)[: len(hinges)]
        share = float(np.max(steep / np.linalg.norm(hinges.A, axis=1), initial=1.0))
        spread = share * float(np.linalg.norm(X, axis=1).max())
        far = tuning.away * np.maximum(spread / hinges.margin(x), hinges.reach(x))
        steps = far[:, None] * x
        return [X + step for step in (*steps, *-steps)]


def given_to(model: MultiHeadTransformer, neurons: Indices, X: Array) -> tuple[Array, Array, Array]:
    """Return z of some neurons (k,), its derivatives by the tokens X (k, N, d), and s (k,)."""
    alpha, given = model.attention(X[None])[0], model.given(X[None])[0]
    u = model.scores_of(X[None, -1])[0]
    first = model.first_layers[:, neurons]
    B, p = first[: model.H], given[: model.H]
    z = np.einsum("hkd,hd->k", first, given) + model.b[neurons]
    away = X[None] - p[:, None]
    pull = np.einsum("hkd,hnd->hkn", B, away) * alpha[:, None]
    slope = np.einsum("hn,hkd->knd", alpha, B) + np.einsum("hkn,hd->knd", pull, u)
    slope[:, -1] += np.einsum("hde,hkn,nd->ke", model.W, pull, X, optimize=True)
    slope[:, -1] += first[model.H :].sum(axis=0)
    parts = np.einsum("hkd,hd->hk", first, given - given.mean(axis=0))
    return np.asarray(z), np.asarray(slope), np.sqrt(np.sum(parts**2, axis=0))
