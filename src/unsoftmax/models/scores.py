"""How tokens are scored against the query token, and what weights the softmax makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.arrays import frozen
from unsoftmax.probes import Array


class Scores:
    """Scores x_i·(W x_N + w) of the tokens of a sequence, W whole or W = K.T @ Q.

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    matrix : dict of str to array_like
        Either W of shape (d, d), or K and Q of shape (r, d): then W is never formed unless
        it is asked for.
    w : array_like, shape (d,), optional
        Zeros by default.
    beside : str
        Where d comes from, to end a sentence with.

    Raises
    ------
    ValueError
        Shapes do not fit, or an entry is not finite.
    """

    def __init__(
        self, dim: int, matrix: Mapping[str, ArrayLike], w: ArrayLike | None, beside: str
    ) -> None:
        self.arrays = {
            **{name: frozen(name, array) for name, array in matrix.items()},
            "w": frozen("w", np.zeros(dim) if w is None else w),
        }
        if "K" in matrix and self.arrays["K"].ndim != 2:
            raise ValueError(
                f"K must have shape (r, {dim}); it has shape {self.arrays['K'].shape}."
            )
        factor = (len(self.arrays["K"]), dim) if "K" in matrix else ()
        shapes = {"W": (dim, dim), "K": factor, "Q": factor, "w": (dim,)}
        for name, array in self.arrays.items():
            if array.shape != shapes[name]:
                raise ValueError(
                    f"{name} must have shape {shapes[name]} {beside}; it has shape {array.shape}."
                )

    @cached_property
    def W(self) -> Array:
        """Score matrix (d, d); computed on demand from factors."""
        if "W" in self.arrays:
            return self.arrays["W"]
        W: Array = self.arrays["K"].T @ self.arrays["Q"]
        W.flags.writeable = False
        return W

    @property
    def norm(self) -> float:
        """‖W‖_F, without forming W from its factors."""
        if "W" in self.arrays:
            return float(np.linalg.norm(self.arrays["W"]))
        K, Q = (np.linalg.qr(self.arrays[factor].T)[1] for factor in "KQ")
        return float(np.linalg.norm(K @ Q.T))

    def vectors(self, x: Array) -> Array:
        """Map query tokens (B, d) to the vectors W x + w that every token is scored with."""
        arrays = self.arrays
        Wx = x @ arrays["W"].T if "W" in arrays else (x @ arrays["Q"].T) @ arrays["K"]
        return np.asarray(Wx + arrays["w"])

    def exponentials(self, X: Array) -> tuple[Array, Array]:
        """Map sequences (B, N, d) to the softmax's numerators (B, N) and denominators (B,)."""
        scores = np.einsum("bnd,bd->bn", X, self.vectors(X[:, -1]))
        with np.errstate(over="ignore"):  # a score may be 2·10³⁰⁸ below the largest: weight 0
            scores -= scores.max(axis=1, keepdims=True)
        weights = np.exp(scores, out=scores)
        return weights, weights.sum(axis=1)


def sequences(X: ArrayLike, dim: int, what: str) -> Array:
    """Return X as float64 if it has shape (B, N, d) with N ≥ 1, or raise ValueError."""
    X = np.asarray(X, dtype=np.float64)
    if X.ndim != 3 or X.shape[2] != dim or not X.shape[1]:
        raise ValueError(
            f"This {what} takes sequences of shape (B, N, {dim}) with N ≥ 1; "
            f"it was given shape {X.shape}."
        )
    return X
