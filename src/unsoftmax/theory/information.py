"""How answers move with what is sought, and what they can tell of it at best.

With α the attention weights of a sequence X and f = Σ_i α_i x_i·v,

    ∂f/∂v = Σ_i α_i x_i,        ∂f/∂W = Σ_i α_i (x_i·v − f) x_i x_Nᵀ.

Answers with independent Gaussian noise of deviation σ carry the Fisher information JᵀJ/σ², J
having one row per answer; no unbiased estimate has a smaller covariance than its inverse, the
Cramér–Rao bound.

Exact answers of m numbers cannot tell more parameters than there are numbers. A p×q matrix of
rank r has r(p + q − r). Behind a LayerNorm an answer is a direction orthogonal to 1: m − 2 numbers.

Appendix C asks how a sum of heads bends as the first of two tokens moves. Of
f(X) = Σ_h softmax_i(x_i·(W_h x_N + w_h))ᵀ(X v_h) + c, with the query token b held fixed,

    F(z) = f([z + b; b])
         = b·Σ_h v_h + c + Σ_h (z·v_h)·σ(z·u_h),       u_h = W_h b + w_h
    ∇F(0) = ½ Σ_h v_h,      ∇²F(0) = ¼ Σ_h (u_h v_hᵀ + v_h u_hᵀ),

because σ(0) = ½ and σ'(0) = ¼. Under Assumption C.1 every ∇²F(0) leaves each head's subspace
invariant, whatever b: that is what the paper's conjecture builds on. `unsoftmax.measure.hessians`
reads 4∇²F(0) off answers.
"""

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models import AttentionLayer, LayerHead, MultiHead, SingleHead, canonical
from unsoftmax.models.attention import pooled_tokens
from unsoftmax.probes import Array


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


def layer_parameters(layer: AttentionLayer) -> int:
    """Count what a layer's function determines, a number for every direction it can change in.

    Of the canonical form: m for c, and for every head r(m + d − r) for M of rank r and
    s(2d + 1 − s) for [W | w] of rank s. A norm behind adds 2m + 1 and, centred, takes one off c
    and off m in every M; without a residual it also takes off the size of the sum. A norm before
    adds eps and, centred, takes one off d in every M and two off 2d in every [W | w].
    """
    layer = canonical(layer)
    m, d, norm = layer.outputs, layer.dim, layer.norm
    seen, within, of_norm = m, d, 0
    if norm is not None and norm.before:
        within, of_norm = d - norm.centred, 1
    elif norm is not None:
        seen, of_norm = m - norm.centred, 2 * m + 1 - (not layer.residual)
    of_heads = (
        r * (seen + within - r) + s * (2 * within + 1 - s) for r, s in map(_ranks, layer.heads)
    )
    return seen + sum(of_heads) + of_norm


def least_queries(layer: AttentionLayer) -> int:
    """Bound the queries that tell a layer from all others: parameters over numbers per answer.

    Examples
    --------
    >>> import numpy as np
    >>> from unsoftmax.models import LayerHead, LayerNorm
    >>> factors = np.random.default_rng(0).standard_normal((4, 2, 8))
    >>> heads = [LayerHead.from_factors(O.T, V, K, Q) for O, V, K, Q in [factors]]
    >>> least_queries(AttentionLayer(heads, np.zeros(8)))
    9
    >>> least_queries(AttentionLayer(heads, np.zeros(8), True, LayerNorm(np.ones(8), None, 1e-5)))
    14
    """
    numbers = layer.outputs
    if layer.norm is not None and not layer.norm.before:
        numbers = max(1, numbers - 1 - layer.norm.centred)
    return -(-layer_parameters(layer) // numbers)


def _ranks(head: LayerHead) -> tuple[int, int]:
    """Return the ranks of M and [W | w] of a canonical head."""
    arrays = head.arrays()
    return len(arrays["V"]), len(arrays["K"])


def pair_hessian(model: SingleHead | MultiHead, b: ArrayLike) -> Array:
    """Return ∇²F(0) of F(z) = f([z + b; b]), the Hessian of Appendix C.

    Parameters
    ----------
    model : SingleHead or MultiHead
        f; query biases w_h are part of u_h.
    b : array_like, shape (d,)
        The query token.

    Returns
    -------
    ndarray (d, d)
        ¼ Σ_h (u_h v_hᵀ + v_h u_hᵀ) with u_h = W_h b + w_h; symmetric.

    Raises
    ------
    TypeError, ValueError
        The model is of another class, or b is not finite or of another shape.

    Notes
    -----
    *Source*: Appendix C of arXiv 2601.16873. `OrthogonalHeads` finds heads by it.

    Examples
    --------
    >>> from unsoftmax.models import SingleHead
    >>> pair_hessian(SingleHead(W=[[2.0, 0.0], [0.0, 1.0]], v=[0.0, 1.0]), [1.0, 0.0])
    array([[0. , 0.5],
           [0.5, 0. ]])
    """
    if not isinstance(model, SingleHead | MultiHead):
        raise TypeError(f"model must be a SingleHead or a MultiHead; it is {model!r}.")
    b = np.asarray(b, dtype=np.float64)
    if b.shape != (model.dim,) or not np.isfinite(b).all():
        raise ValueError(
            f"b must be a finite token of shape ({model.dim},); it has shape {b.shape}."
        )
    u = model.scores_of(b[None])[0].reshape(-1, model.dim)
    product = u.T @ model.v.reshape(-1, model.dim)
    return np.asarray((product + product.T) / 4)
