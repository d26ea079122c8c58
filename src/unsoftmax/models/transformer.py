"""A one-layer Transformer: one softmax head, and a ReLU network on the token it pools."""

from collections.abc import Mapping
from typing import ClassVar, Self

from numpy.typing import ArrayLike

from unsoftmax.models.arrays import axes, declared, split
from unsoftmax.models.attention import BILINEAR, BilinearScores, exponentials, pooled_tokens
from unsoftmax.models.composition import Composition
from unsoftmax.models.model import HeadsModel
from unsoftmax.models.relu_network import ReluNetwork
from unsoftmax.probes import Array

_PART = "network."


class Transformer(BilinearScores, HeadsModel):
    """T(X) = g(Σ_i α_i x_i) with α = softmax_i(x_i·(W x_N + w)), x_N the last token.

    Parameters
    ----------
    W : array_like, shape (d, d)
        Score matrix; K.T @ Q of a key and a query projection, scale included.
    network : ReluNetwork
        The network g on the pooled token; a value matrix is part of its first layer.
    w : array_like, shape (d,), optional
        What the query bias adds to the scores, K.T @ b_q; zeros by default.

    Raises
    ------
    ValueError
        Shapes do not fit, or an entry is not finite.
    TypeError
        ``network`` is no ReluNetwork.

    Notes
    -----
    Immutable: arrays are float64 copies and read-only. Its function determines W and w, unless
    g is constant, and g as far as `ReluNetwork` says.

    Examples
    --------
    >>> import numpy as np
    >>> from unsoftmax.models.relu_network import ReluNetwork
    >>> model = Transformer(np.eye(2), ReluNetwork([[1.0], [-1.0]], [2.0]))
    >>> model(np.array([[[3.0, 1.0]], [[0.0, 5.0]]]))
    array([4., 0.])
    """

    _noun = "Transformer"
    _tensors: ClassVar[Mapping[str, str]] = {
        "W": "heads.W",
        "w": "heads.w",
        **{f"{_PART}{name}": path for name, path in ReluNetwork._tensors.items()},
    }
    _axes = axes(**BILINEAR, **{f"{_PART}{name}": own for name, own in ReluNetwork._axes.items()})

    def __init__(self, W: ArrayLike, network: ReluNetwork, w: ArrayLike | None = None) -> None:
        self._set({"W": W, "w": w}, network)

    @classmethod
    def from_factors(
        cls, K: ArrayLike, Q: ArrayLike, network: ReluNetwork, w: ArrayLike | None = None
    ) -> Self:
        """Build the model with W = K.T @ Q, K and Q of shape (r, d); answering never forms W."""
        return cls._of({"K": K, "Q": Q, "w": w}, network)

    def _set(
        self, given: Mapping[str, ArrayLike | None], network: ReluNetwork | None = None
    ) -> None:
        """Keep arrays, those of a network that is not given among them."""
        own, scores = split(given, _PART)
        network = ReluNetwork.from_arrays(own) if network is None else network
        if not isinstance(network, ReluNetwork):
            raise TypeError(f"network must be a ReluNetwork; it is a {type(network).__name__}.")
        self._network, d = network, network.dim
        scores = declared(scores, BILINEAR, {"d": d}, f"a network of {d} inputs")
        others = {f"{_PART}{name}": array for name, array in network.arrays().items()}
        self._arrays = {**scores, **others}

    @property
    def network(self) -> ReluNetwork:
        """The network on the pooled token."""
        return self._network

    def before(self, network: ReluNetwork) -> Self:
        """Return the same attention before another network."""
        return self._of(split(self._arrays, _PART)[1], network)

    def parameter_norm(self, name: str) -> float:
        """Return the norm of W (Frobenius, without forming it) or w, or of a network's array."""
        own = super().parameter_norm(name)
        return own if name in ("W", "w") else self._network.parameter_norm(name)

    def _composed(self) -> Composition:
        return Composition.of({"heads": self._heads_with(), **dict(self._network.maps.parts)})

    def _answers(self, X: Array) -> Array:
        weights, total = exponentials(self._scored(X))
        return self._network(pooled_tokens(X, weights) / total[:, None])

    def _sizes(self) -> tuple[str, ...]:
        return (*super()._sizes(), f"m={self._network.A.shape[1]}")
