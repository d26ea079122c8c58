"""What errors of an attention layer's parameters do to its answers, for any sequence.

With heads' M off by δM (Frobenius norm), W by δW, w by δw, c by δc, and p = Σ_i α_i x_i pooled,

    ‖ô − o‖ ≤ δc + Σ_h (δM (‖p_h‖ + ‖Δp_h‖) + ‖M_h Δp_h‖),

where every score moves by at most m = max_i ‖x_i − p‖·(δW ‖x_N‖ + δw), what all scores have in
common being invisible, and a mean by no more than `attention.largest_mean_shift` at this m. The
bound holds for sequences of any length and size; a norm behind turns it into one on directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from unsoftmax.models.attention import largest_mean_shift, softmax, token_scores
from unsoftmax.models.products import Product
from unsoftmax.probes import Array


class ScoringHead(Protocol):
    """What is needed of a head."""

    @property
    def values(self) -> Product:
        """M (m, d)."""
        ...

    def vectors(self, x: Array) -> Array:
        """Map query tokens (B, d) to W x + w (B, d)."""
        ...


def heads_moved_at_most(
    heads: Sequence[ScoringHead], tokens: Array, errors: Mapping[str, float]
) -> Array:
    """Bound ‖ô − o‖₂ (B,) before a norm behind, for tokens (B, N, d) as the heads see them.

    Parameters
    ----------
    heads : sequence of LayerHead
    tokens : ndarray (B, N, d)
    errors : mapping
        ``M``, ``W``, ``w`` of every head, and ``c``.
    """
    query, moved = tokens[:, -1], np.full(len(tokens), errors["c"])
    turned = errors["W"] * np.linalg.norm(query, axis=1) + errors["w"]
    for head in heads:
        scores = token_scores(tokens, head.vectors(query)[:, None])[:, 0]
        weights = softmax(scores)
        pooled = np.einsum("bn,bnd->bd", weights, tokens)
        apart = tokens - pooled[:, None]
        far = np.linalg.norm(apart, axis=2)
        value = np.linalg.norm(apart @ head.values.right.T @ head.values.left.T, axis=2)
        shift = turned * far.max(axis=1)
        length = np.linalg.norm(pooled, axis=1) + largest_mean_shift(weights, far, shift)
        moved += errors["M"] * length + largest_mean_shift(weights, value, shift)
    return moved
