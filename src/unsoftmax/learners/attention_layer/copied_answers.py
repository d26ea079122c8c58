"""From answers where tokens are repeated to each head's M_h = U_h V_h: pure arithmetic.

m copies of b + a and k of b are answered by c + M b + Σ_h σ(l_h + log m/k) M_h a, with l_h =
a·(W_h b + w_h): where tokens cannot be long, copies move gates instead. With b = P s, s of a few
coordinates, l_h is affine in s, and every head's gates are found in the span of the answers by
themselves (`solve.soft_gates`); the M_h a follow by least squares, and those of several a show
U_h. As for saturated gates (`value_answers`), V_h = (U⁺)_h M, or all directions are asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.attention_layer.value_answers import (
    AffineAnswers,
    HeadMaps,
    LayerMap,
    leading,
)
from unsoftmax.probes import Array
from unsoftmax.solve.soft_gates import SoftGateTuning, columns_at, nearest_gates

GATES = SoftGateTuning()


@dataclass(frozen=True, slots=True)
class CopiedAnswers:
    """Answers to copies of b + a and of b, for one offset a.

    Attributes
    ----------
    a : ndarray (d,)
    b : ndarray (K, d)
    s : ndarray (K, q)
        (1, coordinates of b).
    copies : ndarray (K, 2)
        Of b + a, and of b.
    y : ndarray (K, m)
    """

    a: Array
    b: Array
    s: Array
    copies: Array
    y: Array

    @property
    def shift(self) -> Array:
        """Log m/k, (K,)."""
        return np.asarray(np.log(self.copies[:, 0] / self.copies[:, 1]))

    def rows(self, layer: LayerMap) -> Array:
        """Return M a, as if all gates were 1, and what a adds to the answers, (K + 1, m)."""
        return np.vstack([layer.heads @ self.a, layer.beyond(self.y, self.b)])

    def span(self, layer: LayerMap, heads: int) -> tuple[Array, Array]:
        """Return a basis of the gates' columns and the singular values of the rows."""
        left, singular, _ = np.linalg.svd(self.rows(layer), full_matrices=False)
        return left[:, :heads], singular

    def refined(self, layer: LayerMap, theta: Array) -> Array:
        """Return the gates' θ (H, q) near those given, by these answers."""
        span, _ = self.span(layer, len(theta))
        return nearest_gates(span, self.s, self.shift, theta, GATES).theta

    def vectors(self, layer: LayerMap, theta: Array) -> tuple[Array, float]:
        """Return all M_h a (H, m), and the norm of what they leave of the answers."""
        gates, rows = columns_at(theta, self.s, self.shift).T, self.rows(layer)
        vectors = np.linalg.lstsq(gates, rows, rcond=None)[0]
        return np.asarray(vectors), float(np.linalg.norm(rows - gates @ vectors))

    def joined(self, more: CopiedAnswers) -> CopiedAnswers:
        """Put further answers of the same offset behind these."""
        b, s, copies, y = (
            np.concatenate(parts) for parts in zip(self._rows(), more._rows(), strict=True)
        )
        return CopiedAnswers(self.a, b, s, copies, y)

    def _rows(self) -> tuple[Array, ...]:
        return self.b, self.s, self.copies, self.y


@dataclass(frozen=True, slots=True)
class SoftGates:
    """All answers of soft gates that the maps M_h are computed from.

    Attributes
    ----------
    single : AffineAnswers
        Of single tokens.
    offsets : tuple of CopiedAnswers
        The base a_1, and a_j that differ from it in orthonormal directions of their own.
    theta : tuple of ndarray (H, q)
        The gates of each, heads in one order.
    ranks : tuple of int
        r_h.
    whole : bool
        Whether every M_h is read in all directions.
    """

    single: AffineAnswers
    offsets: tuple[CopiedAnswers, ...]
    theta: tuple[Array, ...]
    ranks: tuple[int, ...]
    whole: bool

    def layer(self) -> LayerMap:
        """Return c and M."""
        return self.single.layer()

    def vectors(self) -> Array:
        """Return all M_h a_j, (J, H, m)."""
        layer = self.layer()
        return np.array(
            [
                one.vectors(layer, one.refined(layer, theta))[0]
                for one, theta in zip(self.offsets, self.theta, strict=True)
            ]
        )

    def spans(self) -> Array:
        """Return M_h of orthonormal directions, (H, J, m)."""
        base, *others = self.vectors()
        lengths = np.linalg.norm(self._steps(), axis=1)
        beside = (v - base for v in others)
        return np.stack([v / n for v, n in zip([base, *beside], lengths, strict=True)], axis=1)

    def _steps(self) -> Array:
        base = self.offsets[0].a
        return np.array([base, *(one.a - base for one in self.offsets[1:])])

    def solved(self) -> HeadMaps:
        """Compute all M_h."""
        spans = self.spans()
        if not self.whole:
            ranges = [leading(span, r) for span, r in zip(spans, self.ranks, strict=True)]
            return HeadMaps.of_spans(ranges, self.layer())
        steps = self._steps()
        directions = steps / np.linalg.norm(steps, axis=1, keepdims=True)
        maps = [np.linalg.lstsq(directions, span, rcond=None)[0].T for span in spans]
        return HeadMaps.of_maps(maps, self.ranks)
