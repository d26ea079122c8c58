"""Several softmax attention heads, added up to a scalar output."""

import numpy as np

from unsoftmax.models.arrays import of_several
from unsoftmax.models.attention import exponentials
from unsoftmax.models.model import SeveralHeads, ValuedAttention, tensors_of
from unsoftmax.models.rotary_heads import RotaryHeads
from unsoftmax.models.single_head import SingleHead
from unsoftmax.probes import Array


class MultiHead(SeveralHeads[SingleHead], ValuedAttention[RotaryHeads]):
    """f(X) = Σ_h Σ_i α_hi x_i·v_h + c with α_h = softmax_i(x_i·(W_h x_N + w_h)), x_N the last.

    Parameters
    ----------
    W : array_like, shape (H, d, d)
        Score matrices; W_h = K_h.T @ Q_h of a key and a query projection, scale included.
    v : array_like, shape (H, d)
        Value vectors. H may be 1, and 0: then v of shape (0, d) says what d is.
    w : array_like, shape (H, d), optional
        What the query biases add to the scores; zeros by default.
    c : float, optional
        What value and output biases add to every answer.

    Raises
    ------
    ValueError
        Shapes do not fit, or an entry is not finite.

    Notes
    -----
    Immutable: arrays are float64 copies and read-only. Determined by its function up to the
    order of the heads, except that heads with equal W and w are one, whose v is the sum of
    theirs (Proposition 7.1), and that W and w are free where v = 0.

    Examples
    --------
    >>> import numpy as np
    >>> model = MultiHead(W=[np.eye(2), -np.eye(2)], v=[[1.0, 0.0], [0.0, 1.0]])
    >>> model(np.array([[[3.0, 1.0]], [[0.0, 5.0]]]))
    array([4., 5.])
    """

    _axes, _one, _turned = of_several(SingleHead._axes), SingleHead, RotaryHeads
    _tensors = tensors_of(_axes)

    def _entries(self, tokens: int) -> int:
        return int(self.v.size)

    def _answers(self, X: Array) -> Array:
        weights, total = exponentials(self._scored(X))  # (B, H, N) and (B, H)
        values = self.v @ X.transpose(0, 2, 1)
        values *= weights
        return np.asarray((values.sum(axis=2) / total).sum(axis=1) + self.c)
