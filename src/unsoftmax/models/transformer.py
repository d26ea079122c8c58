"""A one-layer Transformer: one softmax head, and a ReLU network on the token it pools."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models import files
from unsoftmax.models.attention import exponentials, pooled_tokens, softmax
from unsoftmax.models.relu_network import ReluNetwork
from unsoftmax.models.scores import BilinearScores, sequences
from unsoftmax.probes import Array

_PART = "network."


class Transformer:
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

    def __init__(self, W: ArrayLike, network: ReluNetwork, w: ArrayLike | None = None) -> None:
        self._set({"W": W}, network, w)

    @classmethod
    def from_factors(
        cls, K: ArrayLike, Q: ArrayLike, network: ReluNetwork, w: ArrayLike | None = None
    ) -> Transformer:
        """Build the model with W = K.T @ Q, K and Q of shape (r, d); answering never forms W."""
        model = cls.__new__(cls)
        model._set({"K": K, "Q": Q}, network, w)
        return model

    def _set(
        self, matrix: Mapping[str, ArrayLike], network: ReluNetwork, w: ArrayLike | None
    ) -> None:
        if not isinstance(network, ReluNetwork):
            raise TypeError(f"network must be a ReluNetwork; it is a {type(network).__name__}.")
        self._network = network
        self._scores = BilinearScores(
            network.dim, matrix, w, f"beside a network of {network.dim} inputs"
        )

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return self._network.dim

    @property
    def W(self) -> Array:
        """Score matrix (d, d); computed on demand for a model built from factors."""
        return self._scores.W

    @property
    def w(self) -> Array:
        """Score vector (d,) of the query bias."""
        return self._scores.arrays["w"]

    @property
    def network(self) -> ReluNetwork:
        """The network on the pooled token."""
        return self._network

    def before(self, network: ReluNetwork) -> Transformer:
        """Return the same attention before another network."""
        model = type(self).__new__(type(self))
        scores = dict(self._scores.arrays)
        w = scores.pop("w")
        model._set(scores, network, w)
        return model

    def norm(self, name: str) -> float:
        """Return the norm of W (Frobenius, without forming it) or w, or of a network's array."""
        if name in ("W", "w"):
            return self._scores.norm if name == "W" else float(np.linalg.norm(self.w))
        return self._network.norm(name)

    def arrays(self) -> dict[str, Array]:
        """Return the parameters by name, the network's after ``network.``."""
        network = {f"{_PART}{name}": array for name, array in self._network.arrays().items()}
        return {**self._scores.arrays, **network}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Transformer:
        """Build the model from what `arrays` returned."""
        parts = {name.removeprefix(_PART): x for name, x in arrays.items() if _PART in name}
        scores = {name: x for name, x in arrays.items() if _PART not in name}
        make = cls.from_factors if "K" in scores else cls
        return make(network=ReluNetwork.from_arrays(parts), **scores)

    def scores_of(self, x: Array) -> Array:
        """Map query tokens (B, d) to the vectors W x + w that every token is scored with."""
        return self._scores.vectors(x)

    def attention(self, X: Array) -> Array:
        """Map sequences (B, N, d) to the weights α (B, N)."""
        return softmax(self._scores.of(sequences(X, self.dim, "Transformer")))

    def __call__(self, X: Array) -> Array:
        """Map sequences (B, N, d) to numbers (B,)."""
        X = sequences(X, self.dim, "Transformer")
        weights, total = exponentials(self._scores.of(X))
        return self._network(pooled_tokens(X, weights) / total[:, None])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a safetensors file that `unsoftmax.load` reads."""
        files.write(path, type(self).__name__, self.arrays())

    def __getstate__(self) -> dict[str, Any]:
        return {"arrays": self.arrays()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = type(self).from_arrays(state["arrays"]).__dict__

    def __repr__(self) -> str:
        scores = self._scores.arrays
        rank = f", rank ≤ {len(scores['K'])}" if "K" in scores else ""
        return f"Transformer(d={self.dim}{rank}, m={self._network.A.shape[1]})"
