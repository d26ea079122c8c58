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
from numpy.typing import ArrayLike

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


def score_gradient(weights: Array, values: Array) -> Array:
    """Return ∂f/∂s_i = α_i (y_i − f), the derivative of f = Σ_i α_i y_i by the scores.

    Parameters
    ----------
    weights : ndarray (..., N)
        Attention weights α.
    values : ndarray (..., N)
        The tokens' values y.

    Examples
    --------
    >>> score_gradient(np.array([0.5, 0.5]), np.array([1.0, 3.0]))
    array([-0.5,  0.5])
    """
    mean = np.sum(weights * values, axis=-1, keepdims=True)
    return np.asarray(weights * (values - mean))


def score_shift(X: Array, W_error: ArrayLike, w_error: ArrayLike = 0.0) -> Array:
    """Bound how far errors of W and w move the scores of a sequence, beside the query token's.

    Softmax ignores what all scores share, so (x_i − x_N)·(ΔW x_N + Δw) counts, which is at most
    ‖x_i − x_N‖·(‖ΔW‖·‖x_N‖ + ‖Δw‖).

    Parameters
    ----------
    X : ndarray (B, N, d)
        Sequences.
    W_error, w_error : float, or ndarray that broadcasts with (B,) or, for heads, with (B, H)
        Bounds on ‖ΔW‖ and ‖Δw‖. Two dimensions, as (1, H) has, mean several heads.

    Returns
    -------
    ndarray (B, N), or (B, H, N)
        The bound for every token; 0 for the query token.
    """
    away = np.linalg.norm(X - X[:, -1:], axis=2)
    length = np.linalg.norm(X[:, -1], axis=1)
    if max(np.ndim(W_error), np.ndim(w_error)) == 2:
        away, length = away[:, None], length[:, None]
    vector_error = length * np.asarray(W_error) + np.asarray(w_error)
    return np.asarray(away * vector_error[..., None])


def score_rounding(X: Array, vectors: Array, roundoff: float) -> Array:
    """Bound the rounding of the scores x_i·u: ``roundoff``·‖x_i‖·‖u‖.

    Parameters
    ----------
    X : ndarray (B, N, d)
        Sequences.
    vectors : ndarray (B, d), or (B, H, d)
        What tokens are scored with.
    roundoff : float
        Relative error of a dot product.

    Returns
    -------
    ndarray (B, N), or (B, H, N)
    """
    norms = np.linalg.norm(X, axis=2)
    if vectors.ndim == 3:
        norms = norms[:, None]
    return np.asarray(norms * (roundoff * np.linalg.norm(vectors, axis=-1))[..., None])


def mean_shift(weights: Array, deviations: Array, shift: Array) -> Array:
    """Bound how far the weighted mean f = Σ_i α_i y_i moves to first order in the scores.

    Parameters
    ----------
    weights : ndarray (..., N)
        Attention weights α.
    deviations : ndarray (..., N)
        |y_i − f|; or ‖x_i − p‖ for the pooled token p = Σ_i α_i x_i.
    shift : ndarray (..., N)
        Bounds m_i on how far scores move.

    Returns
    -------
    ndarray (...)
        Σ_i α_i |y_i − f| m_i. `largest_mean_shift` holds at any m.
    """
    return np.asarray(np.sum(weights * deviations * shift, axis=-1))


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
