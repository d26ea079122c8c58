"""Several softmax attention heads, added up to a scalar output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self, overload

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.arrays import sequences
from unsoftmax.models.attention import exponentials
from unsoftmax.models.model import ValuedAttention
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_heads import RotaryHeads
from unsoftmax.models.scores import least
from unsoftmax.models.single_head import SingleHead, refuse_biases, refuse_w
from unsoftmax.probes import Array


class MultiHead(ValuedAttention):
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

    _leading = ("H",)
    _tensors: ClassVar[Mapping[str, str]] = {
        "W of head {}": "heads.W",
        "w of head {}": "heads.w",
        "v of head {}": "heads.M",
        "c": "heads.c",
    }
    _numbers_at_once: ClassVar[int] = 2**22
    """How many entries of the vectors W_h x_N + w_h are made at a time: 32 MiB.

    Every sequence needs H·d of them. Larger: more memory; smaller: more calls into NumPy.
    """

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
        rotary: Rotary | Sequence[Rotary],
        k_bias: ArrayLike | None = None,
        q_bias: ArrayLike | None = None,
    ) -> RotaryHeads: ...

    @classmethod
    def from_factors(
        cls,
        K: ArrayLike,
        Q: ArrayLike,
        v: ArrayLike,
        w: ArrayLike | None = None,
        c: float = 0.0,
        *,
        rotary: Rotary | Sequence[Rotary] | None = None,
        k_bias: ArrayLike | None = None,
        q_bias: ArrayLike | None = None,
    ) -> Self | RotaryHeads:
        """Build the heads with W_h = K_h.T @ Q_h, K and Q of shape (H, r, d).

        With ``rotary`` scores turn with distance and the model is a `RotaryHeads`; its biases are
        ``k_bias`` and ``q_bias``, (H, r), not w.
        """
        if rotary is not None:
            refuse_w(w)
            return RotaryHeads(K, Q, v, rotary, k_bias=k_bias, q_bias=q_bias, c=c)
        refuse_biases(k_bias, q_bias)
        return super().from_factors(K, Q, v, w, c)

    @property
    def H(self) -> int:
        """Number of heads."""
        return len(self.v)

    @property
    def heads(self) -> tuple[SingleHead, ...]:
        """The heads one by one, without c."""
        arrays = {name: array for name, array in self._arrays.items() if name != "c"}
        return tuple(
            SingleHead.from_arrays({name: array[h] for name, array in arrays.items()})
            for h in range(self.H)
        )

    def parameter_norm(self, name: str) -> float:
        """Return a parameter's norm (Frobenius for W), without forming it; the least over heads.

        Heads where it is 0 do not count. A certificate's bounds are for every head: divided by
        this they bound relative errors. 0 for what is no parameter (a bound on the function).
        """
        if name in ("v", "w"):
            return least(np.linalg.norm(self._arrays[name], axis=1))
        return super().parameter_norm(name)

    def __call__(self, X: Array) -> Array:
        """Map sequences (B, N, d) to numbers (B,)."""
        X = sequences(X, self.dim, self._noun)
        answers = np.empty(len(X))
        step = max(1, self._numbers_at_once // max(1, self.v.size))
        for start in range(0, len(X), step):
            part = slice(start, start + step)
            answers[part] = self._answers(X[part])
        return answers

    def _answers(self, X: Array) -> Array:
        weights, total = exponentials(self._scores.of(X))  # (B, H, N) and (B, H)
        values = self.v @ X.transpose(0, 2, 1)
        values *= weights
        return np.asarray((values.sum(axis=2) / total).sum(axis=1) + self.c)

    def _sizes(self) -> tuple[str, ...]:
        return (f"H={self.H}", *super()._sizes())
