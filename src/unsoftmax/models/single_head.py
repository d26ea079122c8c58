"""One softmax attention head with a scalar output."""

from __future__ import annotations

import numpy as np

from unsoftmax.models.arrays import axes, sequences
from unsoftmax.models.attention import exponentials, token_scores
from unsoftmax.models.model import ValuedAttention, tensors_of
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.models.scores import BILINEAR
from unsoftmax.probes import Array


class SingleHead(ValuedAttention[RotaryHead]):
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

    _axes = axes(**BILINEAR, v="d≥1", c="= 0")
    _tensors = tensors_of(_axes)
    _noun = "head"
    _turned = RotaryHead

    def in_parts(self, X: Array) -> tuple[Array, Array, Array]:
        """Return the answers (B,), the weights α (B, N), and what scores round by relative to.

        Of one forward pass: three calls would make three. A score rounds as ‖x_i‖·‖W x_N + w‖ does.
        """
        X = sequences(X, self.dim, self._noun)
        vectors = self.scores_of(X[:, -1])
        numerators, total = exponentials(token_scores(X, vectors))
        sizes = np.linalg.norm(X, axis=2) * np.linalg.norm(vectors, axis=1)[:, None]
        return self._mean(X, numerators, total), numerators / total[:, None], sizes
