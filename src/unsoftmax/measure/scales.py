"""How a logit's scale s = 2^k is divided between offset and query token: [αa + βb; βb], αβ = s.

An answer is off by about u·‖αa + βb‖, so ‖βb‖ ≤ ‖αa‖ always: to raise a logit the offset is
scaled up, to lower it the query token is scaled down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from unsoftmax.probes import Array

Exponents: TypeAlias = NDArray[np.int64]
Split: TypeAlias = Callable[[Exponents], tuple[Array, Array]]


def free(k: Exponents) -> tuple[Array, Array]:
    """Split s = 2^k: offsets scaled up for k > 0, query tokens scaled down for k < 0."""
    return np.exp2(np.maximum(k, 0)), np.exp2(np.minimum(k, 0))


def offset_only(k: Exponents) -> tuple[Array, Array]:
    """Split s = 2^k for the query token 0, which has no scale."""
    return np.exp2(k), np.ones(len(k))


def amplified(gain: float) -> Split:
    """Split s = 2^k with offsets scaled up by ``gain`` more, query tokens down by as much.

    Logits stay, answers grow: additive noise counts for 1/``gain`` of what it did.
    """

    def split(k: Exponents) -> tuple[Array, Array]:
        alpha, beta = free(k)
        return gain * alpha, beta / gain

    return split


def even(k: Exponents) -> tuple[Array, Array]:
    """Split s = 2^k into two factors as equal as powers of two can be."""
    return np.exp2(k - k // 2), np.exp2(k // 2)


def at_query_scale(beta: float) -> Split:
    """Split s = 2^k for query tokens whose scale is settled."""

    def split(k: Exponents) -> tuple[Array, Array]:
        return np.exp2(k) / beta, np.full(len(k), beta)

    return split


def beside_bias(shift: Array, split: Split = free, most: float = 2.0) -> Split:
    """Change a split of s = 2^k for logits that have a part α·z·w of their own.

    It grows with the offset alone, so offsets are scaled as far as it stays moderate, and
    query tokens as far as β ≤ α. Where 2^k is out of reach the largest s that is not is taken.

    Parameters
    ----------
    shift : ndarray
        z_i·w of every offset.
    split : callable
        How scales are divided where that part is small.
    most : float
        Root mean square that it may have: beyond 2 the logits around it lose digits.
    """
    rms = float(np.sqrt(np.mean(shift**2)))
    limit = float(np.exp2(np.floor(np.log2(max(most / max(rms, 1e-100), 1e-100)))))

    def beside(k: Exponents) -> tuple[Array, Array]:
        alpha = np.minimum(split(k)[0], limit)
        return alpha, np.minimum(alpha, np.exp2(k) / alpha)

    return beside
