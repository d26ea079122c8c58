"""Attention on arrays: softmax, scores, pooled tokens, and how errors move the answer.

A head gives token x_i of a sequence the score s_i = x_i·u with u = W x_N + w, the weights are
α = softmax(s), and f = Σ_i α_i y_i is the weighted mean of the tokens' values y_i = x_i·v. Then

    ∂f/∂s_i = α_i (y_i − f),    ∂f/∂W = Σ_i ∂f/∂s_i x_i x_Nᵀ,    ∂f/∂w = Σ_i ∂f/∂s_i x_i,
    ∂f/∂v = Σ_i α_i x_i.

Shapes: sequences X are (B, N, d). What belongs to one head has shape (B, d) or (B, N), what
belongs to H heads (B, H, d) or (B, H, N). Nothing here knows a model class; how scores come
from parameters is `unsoftmax.models.scores`.
"""

from __future__ import annotations

import numpy as np

from unsoftmax.probes import Array

# Beyond this shift m of the scores e^{2m} leaves float64's range.
_LARGEST_SHIFT = float(np.log(np.finfo(np.float64).max)) / 2


def softmax(scores: Array, axis: int = -1) -> Array:
    """Return exp(s_i)/Σ_j exp(s_j) along an axis, at any finite scores.

    Parameters
    ----------
    scores : ndarray
        Scores; −inf masks a token, whose weight is then 0.
    axis : int, optional
        The axis that the weights sum to 1 along.

    Returns
    -------
    ndarray, as ``scores``
        Weights; all 0 where every token is masked, or where there is none.

    Examples
    --------
    >>> softmax(np.array([[0.0, 0.0], [-np.inf, 3.0], [-np.inf, -np.inf]]))
    array([[0.5, 0.5],
           [0. , 1. ],
           [0. , 0. ]])
    """
    numerators, denominators = exponentials(scores, axis)
    return numerators / np.expand_dims(denominators, axis)


def exponentials(scores: Array, axis: int = -1) -> tuple[Array, Array]:
    """Return the softmax's numerators, at most 1, and their sum, without dividing.

    A forward pass divides once per answer instead of once per token. The sum is 1 instead of 0
    where every token is masked, so that the quotients are 0.

    Parameters
    ----------
    scores : ndarray
        Scores; −inf masks a token.
    axis : int, optional
        The axis that is summed along.

    Returns
    -------
    numerators : ndarray, as ``scores``
        exp(s_i − max_j s_j).
    denominators : ndarray, as ``scores`` without the axis
        Σ_i exp(s_i − max_j s_j).
    """
    largest = scores.max(axis=axis, keepdims=True, initial=-np.inf)
    masked = largest == -np.inf
    if masked.any():
        largest[masked] = 0.0
    with np.errstate(over="ignore"):  # a score may be 2·10³⁰⁸ below the largest: weight 0
        shifted = scores - largest
    numerators = np.exp(shifted, out=shifted)
    total = numerators.sum(axis=axis)
    if masked.any():
        total = np.where(total == 0, 1.0, total)
    return numerators, total


def token_scores(X: Array, vectors: Array) -> Array:
    """Return x_i·u, (B, N), for the vectors u (B, d) that a sequence's tokens are scored with.

    For several heads' vectors (B, H, d) the scores are (B, H, N).
    """
    if vectors.ndim == 2:
        return np.asarray(np.einsum("bnd,bd->bn", X, vectors))
    return np.asarray(vectors @ X.transpose(0, 2, 1))


def pooled_tokens(X: Array, weights: Array) -> Array:
    """Return Σ_i α_i x_i, (B, d), for weights (B, N); (B, H, d) for weights (B, H, N)."""
    if weights.ndim == 2:
        return np.asarray(np.einsum("bn,bnd->bd", weights, X))
    return np.asarray(weights @ X)


def largest_mean_shift(weights: Array, deviations: Array, shift: Array) -> Array:
    """Bound how far the weighted mean f = Σ_i α_i y_i moves, for scores that move any distance.

    If every score moves by at most m, the mean moves by Σ_i α_i (e^{δ_i} − 1)(y_i − f) over
    Σ_i α_i e^{δ_i}, |δ_i| ≤ m: at most (e^m − 1)·e^m·Σ_i α_i|y_i − f|. It is a mean of the y_i
    wherever it moves to: at most max_i|y_i − f|.

    Parameters
    ----------
    weights, deviations : ndarray (..., N)
        As for `mean_shift`.
    shift : ndarray (...)
        A bound m on how far all scores of a sequence move.

    Returns
    -------
    ndarray (...)
        The smaller of the two bounds.
    """
    spread = np.sum(weights * deviations, axis=-1)
    most = np.max(deviations, axis=-1, initial=0.0)
    m = np.minimum(shift, _LARGEST_SHIFT)
    with np.errstate(over="ignore"):
        moved = np.expm1(m) * np.exp(m) * spread
    # beyond float64 a weight that has rounded to 0 may become the largest
    return np.asarray(np.where(shift < _LARGEST_SHIFT, np.minimum(moved, most), most))
