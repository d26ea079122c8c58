"""A whole attention sub-layer whose keys and queries are normalised before they turn: QK-norm.

Qwen3 has such layers. Its scores are no bilinear form of tokens, so no learner recovers them and
`equivalent` does not know their other parameters: `verify` compares answers.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.arrays import Parameter, axes
from unsoftmax.models.rotary_layer import GroupedLayer, RotaryLayer
from unsoftmax.probes import Array


class QkNormLayer(GroupedLayer):
    """o(X) = Σ_h O_h V_g Σ_i α_hi x_i + c with α_h = softmax_i(n_k(k_i)·R(Δ_i) n_q(q_N)).

    k_i = K_g x_i + b_k,g and q_N = Q_h x_N + b_q,h as in `RotaryLayer`, and
    n(u) = scale ⊙ u/√(mean u² + eps), with one scale for the keys of all groups and one for the
    queries of all heads.

    Parameters
    ----------
    layer : RotaryLayer
        The layer without these norms; Q includes no 1/√r, which ``q_scale`` has.
    k_scale, q_scale : array_like, shape (r,)
        What normalised keys and queries are multiplied by, in the order of the layer's planes;
        1/√r inside ``q_scale``.
    eps : float
        What both norms add to the mean of squares.

    Raises
    ------
    ValueError
        Shapes do not fit, an entry is not finite, or ``eps`` is negative.
    TypeError
        ``layer`` is no RotaryLayer.

    Notes
    -----
    Immutable. `from_checkpoint` builds it of Qwen3's blocks. No factor of K or Q shows but for eps.

    Examples
    --------
    >>> from unsoftmax.models import Rotary
    >>> eye = np.eye(2)[None]
    >>> plain = RotaryLayer(eye, eye, eye, eye, [0, 0], Rotary([1.0]))
    >>> layer = QkNormLayer(plain, [1.0, 1.0], [1.0, 1.0], eps=0.0)
    >>> layer, layer([[[3.0, 0.0], [0.0, 5.0]]]).round(3)
    (QkNormLayer(H=1, G=1, d=2), array([[0.074, 4.877]]))
    """

    _tensors: ClassVar[Mapping[str, str]] = {
        **RotaryLayer._tensors,
        **{name: f"heads.{name}" for name in ("k_scale", "q_scale")},
    }
    _axes: ClassVar = {**RotaryLayer._axes, **axes(k_scale="2p", q_scale="2p", qk_eps="")}

    def __init__(
        self, layer: RotaryLayer, k_scale: ArrayLike, q_scale: ArrayLike, eps: float
    ) -> None:
        if not isinstance(layer, RotaryLayer):
            raise TypeError(f"layer must be a RotaryLayer; it is a {type(layer).__name__}.")
        own = {"k_scale": k_scale, "q_scale": q_scale, "qk_eps": eps}
        self._set({**layer.arrays(), **own})

    def _inside(self, given: Mapping[str, Any]) -> dict[str, Array]:
        arrays = super()._inside(given)
        if not arrays["qk_eps"] >= 0:
            raise ValueError(f"eps must be 0 or more; it is {arrays['qk_eps']}.")
        return arrays

    k_scale = Parameter(np.asarray, "What normalised keys are multiplied by, (r,).")
    q_scale = Parameter(np.asarray, "What normalised queries are multiplied by, (r,).")
    qk_eps = Parameter(float, "What the norms of keys and queries add to the mean of squares.")
