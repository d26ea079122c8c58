"""The Hessian of Appendix C: how a sum of heads bends as the first of two tokens moves.

Of f(X) = Σ_h softmax_i(x_i·(W_h x_N + w_h))ᵀ(X v_h) + c, with the query token b held fixed,

    F(z) = f([z + b; b])
         = b·Σ_h v_h + c + Σ_h (z·v_h)·σ(z·u_h),       u_h = W_h b + w_h
    ∇F(0) = ½ Σ_h v_h,      ∇²F(0) = ¼ Σ_h (u_h v_hᵀ + v_h u_hᵀ),

because σ(0) = ½ and σ'(0) = ¼. Under Assumption C.1 every ∇²F(0) leaves each head's subspace
invariant, whatever b: that is what the paper's conjecture builds on. `unsoftmax.measure.hessians`
reads 4∇²F(0) off answers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models import MultiHead, SingleHead
from unsoftmax.probes import Array


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
