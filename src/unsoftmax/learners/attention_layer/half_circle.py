"""The gates of many heads, along half a circle of query tokens.

Beside one long offset a, a gate's logit a·W_h b is a sinusoid along b(θ) = cos θ b₁ + sin θ b₂: it
changes its sign once on half a circle. So the answers are constant between H jumps of ±M_h a, in
any order: intervals whose ends differ are halved until there are H of them. The signs of the jumps
are those for which they add up to M a. About H·(4 + log₂ H) queries, for any number of heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.attention_layer.attention_layer_tuning import AttentionLayerTuning
from unsoftmax.learners.attention_layer.offset_questions import asked_beside
from unsoftmax.learners.attention_layer.value_answers import LayerMap
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.probes import Array, Indices


@dataclass(frozen=True, slots=True)
class HalfCircle:
    """Half a circle of query tokens, and how answers there are read."""

    layer: LayerMap
    noise: AnswerNoise
    rng: np.random.Generator
    tuning: AttentionLayerTuning

    def gates(self, a: Array, length: float, heads: int) -> Asking[tuple[Array, Array, Array]]:
        """Return query tokens (K, d), their answers (K, m), and the gates there (K, H).

        ``heads`` is the rank of answers to random query tokens, beside one offset.
        """
        plane = self.rng.standard_normal((2, len(a))) / np.sqrt(len(a))
        plane *= length * self.tuning.shorter

        def tokens(angles: Array) -> Array:
            b = np.outer(np.cos(angles), plane[0]) + np.outer(np.sin(angles), plane[1])
            return on_one_grid(a, b)[1]

        angles = np.linspace(0, np.pi, self.tuning.half_circle * heads + 1)
        b = tokens(angles)
        y = (yield from asked_beside(a[None], b, "heads on half a circle"))[:, 0]
        for _ in range(self.tuning.halvings):
            jumps = self._jumps(b, y)
            if len(jumps) >= heads:
                break
            middle = (angles[jumps] + angles[jumps + 1]) / 2
            fresh = tokens(middle)
            y_fresh = (yield from asked_beside(a[None], fresh, "heads on half a circle"))[:, 0]
            order = np.argsort(np.concatenate([angles, middle]), kind="stable")
            angles = np.concatenate([angles, middle])[order]
            b, y = np.vstack([b, fresh])[order], np.vstack([y, y_fresh])[order]
        if len(jumps) != heads:
            raise ModelMismatch(
                f"Beside one long offset answers have rank {heads}, but jump {len(jumps)} times "
                "along half a circle of query tokens: they are no sums of heads whose weights are "
                "0 or 1 there."
            )
        return b, y, self._signed(a, b, y, jumps)

    def _jumps(self, b: Array, y: Array) -> Indices:
        """Return the intervals whose ends are answered differently."""
        z = self.layer.beyond(y, b)
        noise = self.tuning.rank_noise * float(np.max(self.noise.of(y)))
        return np.flatnonzero(np.linalg.norm(np.diff(z, axis=0), axis=1) > noise).astype(np.intp)

    def _signed(self, a: Array, b: Array, y: Array, jumps: Indices) -> Array:
        """Return every head's gate, by the signs for which the jumps add up to M a."""
        z = self.layer.beyond(y, b)
        whole = self.layer.M @ a
        steps = z[jumps + 1] - z[jumps]
        rows = [*steps, a] if len(whole) == len(a) else [*steps]  # a: a residual connection
        signs = np.linalg.lstsq(np.array(rows).T, whole, rcond=None)[0]
        opens = signs[: len(jumps)] > 0
        after = np.arange(len(b))[:, None] > jumps
        gates = np.where(opens, after, ~after).astype(np.float64)
        if len(signs) > len(jumps) and abs(signs[-1]) > 1 / 2:
            gates = np.hstack([gates, np.zeros((len(b), 1))])
        return gates
