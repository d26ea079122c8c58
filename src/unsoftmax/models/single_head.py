"""One softmax attention head with a scalar output."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models import files
from unsoftmax.models.arrays import frozen
from unsoftmax.models.attention import exponentials, softmax
from unsoftmax.models.scores import BilinearScores, sequences
from unsoftmax.probes import Array


class SingleHead:
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

    def __init__(
        self, W: ArrayLike, v: ArrayLike, w: ArrayLike | None = None, c: float = 0.0
    ) -> None:
        self._set({"W": W}, v, w, c)

    @classmethod
    def from_factors(
        cls,
        K: ArrayLike,
        Q: ArrayLike,
        v: ArrayLike,
        w: ArrayLike | None = None,
        c: float = 0.0,
    ) -> SingleHead:
        """Build the head with W = K.T @ Q, K and Q of shape (r, d); answering never forms W."""
        head = cls.__new__(cls)
        head._set({"K": K, "Q": Q}, v, w, c)
        return head

    def _set(
        self, matrix: Mapping[str, ArrayLike], v: ArrayLike, w: ArrayLike | None, c: float
    ) -> None:
        v, c_ = frozen("v", v), frozen("c", c)
        if v.ndim != 1 or not v.size:
            raise ValueError(f"v must have shape (d,) with d ≥ 1; it has shape {v.shape}.")
        beside = f"beside v of shape ({v.size},)"
        if c_.shape:
            raise ValueError(f"c must have shape () {beside}; it has shape {c_.shape}.")
        self._scores = BilinearScores(v.size, matrix, w, beside)
        self._arrays = {**self._scores.arrays, "v": v, "c": c_}

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return self.v.size

    @property
    def W(self) -> Array:
        """Score matrix (d, d); computed on demand for a head built from factors."""
        return self._scores.W

    @property
    def v(self) -> Array:
        """Value vector (d,)."""
        return self._arrays["v"]

    @property
    def w(self) -> Array:
        """Score vector (d,) of the query bias."""
        return self._arrays["w"]

    @property
    def c(self) -> float:
        """Constant added to every answer."""
        return float(self._arrays["c"])

    def norm(self, name: str) -> float:
        """Return the norm of a parameter (Frobenius for W), without forming W from its factors."""
        return self._scores.norm if name == "W" else float(np.linalg.norm(getattr(self, name)))

    def arrays(self) -> dict[str, Array]:
        """Return the parameters by name, as the constructor (or `from_factors`) takes them."""
        return dict(self._arrays)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> SingleHead:
        """Build the head from what `arrays` returned."""
        return cls.from_factors(**arrays) if "K" in arrays else cls(**arrays)

    def scores_of(self, x: Array) -> Array:
        """Map query tokens (B, d) to the vectors W x + w that every token is scored with."""
        return self._scores.vectors(x)

    def attention(self, X: Array) -> Array:
        """Map sequences (B, N, d) to the weights α (B, N)."""
        return softmax(self._scores.of(sequences(X, self.dim, "head")))

    def __call__(self, X: Array) -> Array:
        """Map sequences (B, N, d) to numbers (B,)."""
        X = sequences(X, self.dim, "head")
        weights, total = exponentials(self._scores.of(X))
        values = X @ self.v
        answers: Array = np.einsum("bn,bn->b", weights, values) / total + self.c
        return answers

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the head to a safetensors file that `unsoftmax.load` reads."""
        files.write(path, type(self).__name__, self._arrays)

    def __getstate__(self) -> dict[str, Any]:
        return {"_arrays": self._arrays}

    def __setstate__(self, state: dict[str, Any]) -> None:
        arrays = dict(state["_arrays"])
        c, v, w = arrays.pop("c"), arrays.pop("v"), arrays.pop("w")
        self._set(arrays, v, w, c)

    def __repr__(self) -> str:
        rank = f", rank ≤ {len(self._arrays['K'])}" if "K" in self._arrays else ""
        return f"SingleHead(d={self.dim}{rank})"
