"""Several softmax heads before a ReLU network: a whole one-layer Transformer."""

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.arrays import Length, Parameter, axes, declared, of_several
from unsoftmax.models.attention import BILINEAR, BilinearScores, exponentials, pooled_tokens
from unsoftmax.models.composition import Composition
from unsoftmax.models.model import HeadsModel
from unsoftmax.models.neurons import Neurons
from unsoftmax.models.relu_network import ReluNetwork
from unsoftmax.models.transformer import Transformer
from unsoftmax.probes import Array


class MultiHeadTransformer(BilinearScores, HeadsModel):
    """f(X) = Σ_j w_o[j]·max(0, Σ_h B_h[j]·p_h + R[j]·x_N + b[j]) + c with p_h = Σ_i α_hi x_i.

    α_h = softmax_i(x_i·(W_h x_N + w_h)), x_N the last token: every neuron sees what all heads
    pool, each head through weights of its own, and the last token where there is a residual R.

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
    residual : array_like, shape (m, d), optional
        First layer R of the last token: what a residual connection around the heads adds. None
        without one.

    Raises
    ------
    ValueError
        Shapes do not fit, or an entry is not finite.

    Notes
    -----
    Immutable: arrays are float64 copies and read-only. It is a `ReluNetwork` of Hd inputs on the
    heads' pooled tokens, one after the other (`network`), and of d more, the last token, with a
    residual. Where all W_h differ, its function determines the heads up to order and that network
    as far as `ReluNetwork` says; heads of equal W and w are one, whose B is the sum of theirs, a
    head with B = 0 is none, and a residual R = 0 neither. Single tokens show the network of
    Σ_h B_h + R (`on_single_tokens`).

    Examples
    --------
    >>> import numpy as np
    >>> B = [[[1.0, 0.0]], [[0.0, 1.0]]]
    >>> model = MultiHeadTransformer([np.eye(2), -np.eye(2)], B, w_o=[2.0], b=[-1.0])
    >>> model(np.array([[[3.0, 1.0]], [[0.0, 0.5]]]))
    array([6., 0.])
    """

    _noun = "Transformer of several heads"
    _tensors: ClassVar[Mapping[str, str]] = {
        "W of head {}": "heads.W",
        "w of head {}": "heads.w",
        "B of head {}": "heads.M",
        "w_o": "network.B",
        "b": "heads.c",
        "c": "network.c",
        "residual": "heads.R",
    }
    _axes = axes(
        **of_several(BILINEAR),
        **{"B": "H m d≥1", "w_o": "m", "b": "m = 0", "c": "= 0", "residual": "m d = none"},
    )

    def __init__(
        self,
        W: ArrayLike,
        B: ArrayLike,
        w_o: ArrayLike,
        b: ArrayLike | None = None,
        w: ArrayLike | None = None,
        c: float = 0.0,
        residual: ArrayLike | None = None,
    ) -> None:
        outer = {"B": B, "w_o": w_o, "b": b, "c": c, "residual": residual}
        self._set({"W": W, "w": w, **outer})

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
        residual: ArrayLike | None = None,
    ) -> Self:
        """Build the model with W_h = K_h.T @ Q_h, K and Q (H, r, d); answering never forms W."""
        outer = {"B": B, "w_o": w_o, "b": b, "c": c, "residual": residual}
        return cls._of({"K": K, "Q": Q, "w": w, **outer})

    @classmethod
    def from_heads(
        cls,
        W: ArrayLike,
        V: ArrayLike,
        network: ReluNetwork,
        w: ArrayLike | None = None,
        residual: bool = False,
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
        residual : bool
            The network is given Σ_h V_h p_h + x_N, so R = A.T; then k = d.
        """
        if not isinstance(network, ReluNetwork):
            raise TypeError(f"network must be a ReluNetwork; it is a {type(network).__name__}.")
        k, beside = network.dim, f"a network of {network.dim} inputs"
        values = declared({"V": V}, {"V": "H k d"}, {"k": k}, beside)["V"]
        R = network.A.T if residual else None
        return cls(W, network.A.T @ values, network.w_o, network.b, w, network.c, R)

    @classmethod
    def of(cls, model: Transformer) -> Self:
        """Return a Transformer of one head as one of several, H = 1."""
        arrays, network = model.arrays(), model.network
        scores = {name: x[None] for name, x in arrays.items() if name in BILINEAR}
        rest = {"w_o": network.w_o, "b": network.b, "c": network.c}
        return cls.from_arrays({**scores, **rest, "B": network.A.T[None]})

    H = Length("H", "Number of heads.")

    B = Parameter(np.asarray, "First layers (H, m, d).")
    w_o = Parameter(np.asarray, "Output weights (m,).")
    b = Parameter(np.asarray, "Biases (m,) of the neurons.")
    c = Parameter(float, "Constant added to every answer.")

    @property
    def residual(self) -> Array | None:
        """First layer R (m, d) of the last token, None without a residual connection."""
        return self._arrays.get("residual")

    @property
    def first_layers(self) -> Array:
        """B, and R after the last head where there is one, (H or H + 1, m, d)."""
        return self.B if self.residual is None else np.concatenate([self.B, self.residual[None]])

    @property
    def network(self) -> ReluNetwork:
        """The network of Hd inputs on all heads' pooled tokens, one after the other.

        With a residual it has d inputs more, the last token.

        Raises
        ------
        ValueError
            There is no head and no residual, so there are no inputs.
        """
        return ReluNetwork(_stacked(self.first_layers), self.w_o, self.b, self.c)

    @property
    def on_single_tokens(self) -> ReluNetwork:
        """The network that single tokens show, whose first layer is Σ_h B_h + R."""
        return ReluNetwork(self.first_layers.sum(axis=0).T, self.w_o, self.b, self.c)

    def _composed(self) -> Composition:
        heads = self._heads_with(O=self.B, c=self.b, R=self.residual)
        m = len(self.b)
        network = Neurons(None, np.zeros(m), self.w_o[None], np.array([self.c]))
        return Composition.of({"heads": heads, "network": network})

    def _entries(self, tokens: int) -> int:
        return max(self.H * max(tokens, self.dim), len(self.b))

    def pooled(self, X: Array) -> Array:
        """Map sequences (B, N, d) to what every head pools, (B, H, d)."""
        weights, total = exponentials(self._scored(X))
        return np.asarray(pooled_tokens(X, weights) / total[:, :, None])

    def given(self, X: Array) -> Array:
        """Map sequences to what the network is given: all p_h, and x_N with a residual."""
        pooled = self.pooled(X)
        return pooled if self.residual is None else np.concatenate([pooled, X[:, -1:]], axis=1)

    def _answers(self, X: Array) -> Array:
        first = _stacked(self.first_layers)
        z = self.given(X).reshape(len(X), len(first)) @ first
        z += self.b
        np.maximum(z, 0.0, out=z)
        return np.asarray(z @ self.w_o + self.c)

    def _sizes(self) -> tuple[str, ...]:
        residual = () if self.residual is None else ("residual",)
        return (f"H={self.H}", *super()._sizes(), f"m={len(self.b)}", *residual)


def _stacked(B: Array) -> Array:
    """Return first layers (n, m, d) as one of nd inputs, (nd, m)."""
    H, m, d = B.shape
    return B.transpose(0, 2, 1).reshape(H * d, m)
