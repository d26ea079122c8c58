"""One softmax attention head with a scalar output."""

from __future__ import annotations

from typing import Self, overload

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.arrays import sequences
from unsoftmax.models.attention import exponentials, token_scores
from unsoftmax.models.model import ValuedAttention
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.probes import Array


class SingleHead(ValuedAttention):
    """f(X) = Σ_i α_i x_i·v + c with α = softmax_i(x_i·(W x_N + w)), x_N the last token.

    Parameters
    ----------
    W : array_like, shape (d, d)
        Score matrix; K.T @ Q of a key and a query projection, scale included.
    v : array_like, shape (d,)
        Value vector; a value projection read through one output coordinate.
    w : array_like, shape (d,), optional
        What the query bias adds to the scores, K.T @ b_q; zeros by default. A key bias adds
        the same to every score and so is no parameter.
    c : float, optional
        What value and output biases add to every answer.

    Raises
    ------
    ValueError
        Shapes do not fit, or an entry is not finite.

    Notes
    -----
    Immutable: arrays are float64 copies and read-only. Determined by its function, except
    that W and w are free when v = 0.

    Examples
    --------
    >>> import numpy as np
    >>> head = SingleHead(W=np.eye(2), v=[1.0, 0.0])
    >>> head(np.array([[[3.0, 1.0]], [[0.0, 5.0]]]))
    array([3., 0.])
    """

    _noun = "head"

    @overload
    @classmethod
    def from_factors(
        cls,
        K: ArrayLike,
        Q: ArrayLike,
        v: ArrayLike,
        w: ArrayLike | None = None,
        c: float = 0.0,
    ) -> Self: ...

    @overload
    @classmethod
    def from_factors(
        cls,
        K: ArrayLike,
        Q: ArrayLike,
        v: ArrayLike,
        w: None = None,
        c: float = 0.0,
        *,
        rotary: Rotary,
        k_bias: ArrayLike | None = None,
        q_bias: ArrayLike | None = None,
    ) -> RotaryHead: ...

    @classmethod
    def from_factors(
        cls,
        K: ArrayLike,
        Q: ArrayLike,
        v: ArrayLike,
        w: ArrayLike | None = None,
        c: float = 0.0,
        *,
        rotary: Rotary | None = None,
        k_bias: ArrayLike | None = None,
        q_bias: ArrayLike | None = None,
    ) -> Self | RotaryHead:
        """Build the head with W = K.T @ Q, K and Q of shape (r, d); answering never forms W.

        With ``rotary`` scores turn with distance and the head is a `RotaryHead`; its biases are
        ``k_bias`` and ``q_bias``, not w.
        """
        if rotary is not None:
            refuse_w(w)
            return RotaryHead(K, Q, v, rotary, k_bias=k_bias, q_bias=q_bias, c=c)
        refuse_biases(k_bias, q_bias)
        return super().from_factors(K, Q, v, w, c)

    def __call__(self, X: Array) -> Array:
        """Map sequences (B, N, d) to numbers (B,)."""
        X = sequences(X, self.dim, self._noun)
        return self._mean(X, *exponentials(self._scores.of(X)))

    def in_parts(self, X: Array) -> tuple[Array, Array, Array]:
        """Return the answers (B,), the weights α (B, N) and the vectors W x_N + w (B, d).

        Of one forward pass: three calls would make three.
        """
        X = sequences(X, self.dim, self._noun)
        vectors = self._scores.vectors(X[:, -1])
        numerators, total = exponentials(token_scores(X, vectors))
        return self._mean(X, numerators, total), numerators / total[:, None], vectors

    def _mean(self, X: Array, numerators: Array, total: Array) -> Array:
        answers: Array = np.einsum("bn,bn->b", numerators, X @ self.v) / total + self.c
        return answers


def refuse_w(w: ArrayLike | None) -> None:
    """Refuse w beside rotary positions."""
    if w is not None:
        raise ValueError("w is no parameter beside rotary: give q_bias, (r,) for each head.")


def refuse_biases(k_bias: ArrayLike | None, q_bias: ArrayLike | None) -> None:
    """Refuse biases of keys and queries without positions."""
    if k_bias is not None or q_bias is not None:
        raise ValueError(
            "k_bias and q_bias are given beside rotary; without positions a key bias changes "
            "nothing and a query bias is w = K.T @ q_bias."
        )
