"""Several softmax heads before a ReLU network: a whole one-layer Transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.arrays import frozen, sequences
from unsoftmax.models.attention import exponentials, pooled_tokens
from unsoftmax.models.model import AttentionModel
from unsoftmax.models.relu_network import ReluNetwork
from unsoftmax.models.scores import BilinearScores, least
from unsoftmax.models.transformer import Transformer
from unsoftmax.probes import Array


class MultiHeadTransformer(AttentionModel):
    """f(X) = Σ_j w_o[j]·max(0, Σ_h B_h[j]·p_h + b[j]) + c with p_h = Σ_i α_hi x_i.

    α_h = softmax_i(x_i·(W_h x_N + w_h)), x_N the last token: every neuron sees what all heads
    pool, each head through weights of its own.

    Parameters
    ----------
    W : array_like, shape (H, d, d)
        Score matrices; W_h = K_h.T @ Q_h of a key and a query projection, scale included.
    B : array_like, shape (H, m, d)
        First layers, a neuron per row: B_h = A V_h of value matrices V_h and a network's first
        layer A, see `from_heads`. H may be 1, and 0: then B of shape (0, m, d) says what d is.
    w_o : array_like, shape (m,)
        Output weights.
    b : array_like, shape (m,), optional
        Biases of the neurons; zeros by default.
    w : array_like, shape (H, d), optional
        What the query biases add to the scores; zeros by default.
    c : float, optional
        Constant added to every answer.

    Raises
    ------
    ValueError
        Shapes do not fit, or an entry is not finite.

    Notes
    -----
    Immutable: arrays are float64 copies and read-only. It is a `ReluNetwork` of Hd inputs on the
    heads' pooled tokens, one after the other (`network`). Where all W_h differ, its function
    determines the heads up to order and that network as far as `ReluNetwork` says; heads of equal
    W and w are one, whose B is the sum of theirs, and a head with B = 0 is none. Single tokens
    show the network of Σ_h B_h (`on_single_tokens`).

    Examples
    --------
    >>> import numpy as np
    >>> B = [[[1.0, 0.0]], [[0.0, 1.0]]]
    >>> model = MultiHeadTransformer([np.eye(2), -np.eye(2)], B, w_o=[2.0], b=[-1.0])
    >>> model(np.array([[[3.0, 1.0]], [[0.0, 0.5]]]))
    array([6., 0.])
    """

    _noun = "Transformer of several heads"
    _needed = frozenset({"W", "B", "w_o"})
    _optional = frozenset({"b", "w", "c"})
    _numbers_at_once: ClassVar[int] = 2**22
    """How many scores, or entries of pooled tokens, are made at a time: 32 MiB.

    Larger: more memory; smaller: more calls into NumPy.
    """

    def __init__(
        self,
        W: ArrayLike,
        B: ArrayLike,
        w_o: ArrayLike,
        b: ArrayLike | None = None,
        w: ArrayLike | None = None,
        c: float = 0.0,
    ) -> None:
        self._set({"W": W}, B, {"w_o": w_o, "b": b, "c": c}, w)

    @classmethod
    def from_factors(
        cls,
        K: ArrayLike,
        Q: ArrayLike,
        B: ArrayLike,
        w_o: ArrayLike,
        b: ArrayLike | None = None,
        w: ArrayLike | None = None,
        c: float = 0.0,
    ) -> Self:
        """Build the model with W_h = K_h.T @ Q_h, K and Q (H, r, d); answering never forms W."""
        model = cls.__new__(cls)
        model._set({"K": K, "Q": Q}, B, {"w_o": w_o, "b": b, "c": c}, w)
        return model

    @classmethod
    def from_heads(
        cls, W: ArrayLike, V: ArrayLike, network: ReluNetwork, w: ArrayLike | None = None
    ) -> Self:
        """Build the model from value matrices: the network on Σ_h V_h p_h, so B_h = A.T @ V_h.

        Parameters
        ----------
        W : array_like, shape (H, d, d)
            Score matrices.
        V : array_like, shape (H, k, d)
            Value matrices, an output projection included; what value and output biases add is
            part of the network's biases.
        network : ReluNetwork
            The network of k inputs.
        w : array_like, shape (H, d), optional
            What the query biases add to the scores.
        """
        if not isinstance(network, ReluNetwork):
            raise TypeError(f"network must be a ReluNetwork; it is a {type(network).__name__}.")
        values = frozen("V", V)
        if values.ndim != 3 or values.shape[1] != network.dim:
            raise ValueError(
                f"V must have shape (H, {network.dim}, d) beside a network of {network.dim} "
                f"inputs; it has shape {values.shape}."
            )
        return cls(W, network.A.T @ values, network.w_o, network.b, w, network.c)

    @classmethod
    def of(cls, model: Transformer) -> Self:
        """Return a Transformer of one head as one of several, H = 1."""
        arrays, network = model.arrays(), model.network
        scores: dict[str, Any] = {name: x[None] for name, x in arrays.items() if name in "WKQw"}
        rest = {"w_o": network.w_o, "b": network.b, "c": network.c}
        return cls.from_arrays({**scores, **rest, "B": network.A.T[None]})

    def _set(
        self,
        matrix: Mapping[str, ArrayLike],
        B: ArrayLike,
        outer: Mapping[str, ArrayLike | None],
        w: ArrayLike | None,
    ) -> None:
        B = frozen("B", B)
        if B.ndim != 3 or not B.shape[2]:
            raise ValueError(f"B must have shape (H, m, d) with d ≥ 1; it has shape {B.shape}.")
        H, m, d = B.shape
        beside = f"beside B of shape {B.shape}"
        self._scores = BilinearScores(d, matrix, w, beside, (H,))
        self._arrays = {**self._scores.arrays, "B": B}
        for name, shape in {"w_o": (m,), "b": (m,), "c": ()}.items():
            given = outer[name]
            array = frozen(name, np.zeros(m) if given is None else given)
            if array.shape != shape:
                raise ValueError(f"{name} must have shape {shape} {beside}; it has {array.shape}.")
            self._arrays[name] = array

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.B.shape[2])

    @property
    def H(self) -> int:
        """Number of heads."""
        return len(self.B)

    @property
    def B(self) -> Array:
        """First layers (H, m, d)."""
        return self._arrays["B"]

    @property
    def w_o(self) -> Array:
        """Output weights (m,)."""
        return self._arrays["w_o"]

    @property
    def b(self) -> Array:
        """Biases (m,) of the neurons."""
        return self._arrays["b"]

    @property
    def c(self) -> float:
        """Constant added to every answer."""
        return float(self._arrays["c"])

    @property
    def network(self) -> ReluNetwork:
        """The network of Hd inputs on all heads' pooled tokens, one after the other.

        Raises
        ------
        ValueError
            There is no head, so there are no inputs.
        """
        return ReluNetwork(_stacked(self.B), self.w_o, self.b, self.c)

    @property
    def on_single_tokens(self) -> ReluNetwork:
        """The network that single tokens show, whose first layer is Σ_h B_h."""
        return ReluNetwork(self.B.sum(axis=0).T, self.w_o, self.b, self.c)

    def before(self, network: ReluNetwork) -> Self:
        """Return the same heads before another network of Hd inputs."""
        B = network.A.T.reshape(len(network.b), self.H, self.dim).transpose(1, 0, 2)
        rest = {"B": B, "w_o": network.w_o, "b": network.b, "c": network.c}
        return type(self).from_arrays({**self._scores.arrays, **rest})

    def parameter_norm(self, name: str) -> float:
        """Return a parameter's norm, of W, w and B the least over heads that is not 0.

        A certificate's bounds are for every head: divided by this they bound relative errors. 0
        for what is no parameter (a bound on the function).
        """
        if name in ("w", "B"):
            return least(np.array([np.linalg.norm(part) for part in self._arrays[name]]))
        return super().parameter_norm(name)

    def __call__(self, X: Array) -> Array:
        """Map sequences (B, N, d) to numbers (B,)."""
        X = sequences(X, self.dim, self._noun)
        first = _stacked(self.B)
        answers = np.empty(len(X))
        most = max(1, self.H * max(X.shape[1], self.dim), len(self.b))
        step = max(1, self._numbers_at_once // most)
        for start in range(0, len(X), step):
            part = slice(start, start + step)
            answers[part] = self._answers(X[part], first)
        return answers

    def pooled(self, X: Array) -> Array:
        """Map sequences (B, N, d) to what every head pools, (B, H, d)."""
        weights, total = exponentials(self._scores.of(X))
        return np.asarray(pooled_tokens(X, weights) / total[:, :, None])

    def _answers(self, X: Array, first: Array) -> Array:
        z = self.pooled(X).reshape(len(X), self.H * self.dim) @ first
        z += self.b
        np.maximum(z, 0.0, out=z)
        return np.asarray(z @ self.w_o + self.c)

    def _sizes(self) -> tuple[str, ...]:
        return (f"H={self.H}", *super()._sizes(), f"m={len(self.b)}")


def _stacked(B: Array) -> Array:
    """Return first layers (H, m, d) as one of Hd inputs, (Hd, m)."""
    H, m, d = B.shape
    return B.transpose(0, 2, 1).reshape(H * d, m)
