"""One softmax attention head with a scalar output."""

from unsoftmax.models.arrays import axes
from unsoftmax.models.attention import BILINEAR
from unsoftmax.models.model import ValuedAttention, tensors_of
from unsoftmax.models.rotary_head import RotaryHead


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
