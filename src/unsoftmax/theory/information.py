"""What answers can tell at best: the Jacobian of a head's answers, and the Cramér–Rao bound.

With α the attention weights of a sequence X and f = Σ_i α_i x_i·v,

    ∂f/∂v = Σ_i α_i x_i,        ∂f/∂W = Σ_i α_i (x_i·v − f) x_i x_Nᵀ.

Answers with independent Gaussian noise of deviation σ carry the Fisher information JᵀJ/σ², J
having one row per answer; no unbiased estimate has a smaller covariance than its inverse.
"""

from __future__ import annotations

import numpy as np

from unsoftmax.models import SingleHead
from unsoftmax.models.attention import pooled_tokens, score_gradient
from unsoftmax.probes import Array


def jacobian(head: SingleHead, X: Array) -> Array:
    """Differentiate a head's answers by its parameters.

    Parameters
    ----------
    head : SingleHead
        Where to differentiate; w and c are taken as known.
    X : ndarray (B, N, d)
        Sequences.

    Returns
    -------
    ndarray (B, d + d²)
        By v, then by W row by row.

    Examples
    --------
    >>> jacobian(SingleHead(np.eye(2), [1.0, 0.0]), np.array([[[3.0, 1.0]]]))
    array([[3., 1., 0., 0., 0., 0.]])
    """
    weights = head.attention(X)
    by_score = score_gradient(weights, X @ head.v)
    by_v = pooled_tokens(X, weights)
    by_W = np.einsum("bn,bnd,be->bde", by_score, X, X[:, -1])
    return np.concatenate([by_v, by_W.reshape(len(X), -1)], axis=1)


def cramer_rao(head: SingleHead, X: Array, deviation: float) -> tuple[float, float]:
    """Bound the RMS of ‖v̂ − v‖₂ and ‖Ŵ − W‖_F from noisy answers to X, for unbiased estimates.

    Parameters
    ----------
    head, X : SingleHead, ndarray (B, 2 or more, d)
        The target, and all sequences that were asked; single tokens x as [x; x].
    deviation : float
        Standard deviation of the noise of each answer.

    Examples
    --------
    >>> X = np.array([[[1.0], [1.0]], [[1.0], [0.5]]])
    >>> v_error, W_error = cramer_rao(SingleHead([[0.0]], [1.0]), X, 0.01)
    >>> round(v_error, 6), W_error > v_error
    (0.01, True)
    """
    d = head.dim
    # (JᵀJ)⁻¹ = RRᵀ with R = J⁺, which does not square J's condition number
    R = deviation * np.linalg.pinv(jacobian(head, X))
    return float(np.linalg.norm(R[:d])), float(np.linalg.norm(R[d:]))
