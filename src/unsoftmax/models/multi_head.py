"""Several softmax attention heads, added up to a scalar output."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models import files
from unsoftmax.models.arrays import frozen
from unsoftmax.models.attention import exponentials, softmax
from unsoftmax.models.scores import BilinearScores, least, sequences
from unsoftmax.models.single_head import SingleHead
from unsoftmax.probes import Array

# The vectors that tokens are scored with, one per head and sequence, are made 32 MiB at a time.
_VECTOR_NUMBERS = 2**22


class MultiHead:
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
    ) -> MultiHead:
        """Build the model with W_h = K_h.T @ Q_h, K and Q (H, r, d); answering never forms W."""
        model = cls.__new__(cls)
        model._set({"K": K, "Q": Q}, v, w, c)
        return model

    def _set(
        self, score: Mapping[str, ArrayLike], v: ArrayLike, w: ArrayLike | None, c: float
    ) -> None:
        v, c_ = frozen("v", v), frozen("c", c)
        if v.ndim != 2 or not v.shape[1]:
            raise ValueError(f"v must have shape (H, d) with d ≥ 1; it has shape {v.shape}.")
        beside = f"beside v of shape {v.shape}"
        if c_.shape:
            raise ValueError(f"c must have shape () {beside}; it has shape {c_.shape}.")
        self._scores = BilinearScores(v.shape[1], score, w, beside, v.shape[:1])
        self._arrays = {**self._scores.arrays, "v": v, "c": c_}

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.v.shape[1])

    @property
    def H(self) -> int:
        """Number of heads."""
        return len(self.v)

    @property
    def W(self) -> Array:
        """Score matrices (H, d, d); computed on demand for a model built from factors."""
        return self._scores.W

    @property
    def v(self) -> Array:
        """Value vectors (H, d)."""
        return self._arrays["v"]

    @property
    def w(self) -> Array:
        """Score vectors (H, d) of the query biases."""
        return self._arrays["w"]

    @property
    def c(self) -> float:
        """Constant added to every answer."""
        return float(self._arrays["c"])

    @property
    def heads(self) -> tuple[SingleHead, ...]:
        """The heads one by one, without c."""
        score = [name for name in ("W", "K", "Q") if name in self._arrays]
        return tuple(
            SingleHead.from_arrays({name: self._arrays[name][h] for name in [*score, "v", "w"]})
            for h in range(self.H)
        )

    def norm(self, name: str) -> float:
        """Return a parameter's norm (Frobenius for W), without forming W; the least over heads.

        Heads where it is 0 do not count. A certificate's bounds are for every head: divided by
        this they bound relative errors. 0 for what is no parameter (a bound on the function).
        """
        if name == "W":
            return self._scores.norm
        if name not in self._arrays:
            return 0.0
        return least(np.linalg.norm(np.atleast_2d(self._arrays[name]), axis=1))

    def arrays(self) -> dict[str, Array]:
        """Return the parameters by name, as the constructor (or `from_factors`) takes them."""
        return dict(self._arrays)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> MultiHead:
        """Build the model from what `arrays` returned."""
        return cls.from_factors(**arrays) if "K" in arrays else cls(**arrays)

    def scores_of(self, x: Array) -> Array:
        """Map query tokens (B, d) to what scores tokens, W_h x + w_h (B, H, d)."""
        return self._scores.vectors(x)

    def attention(self, X: Array) -> Array:
        """Map sequences (B, N, d) to the weights α of every head (B, H, N)."""
        return softmax(self._scores.of(sequences(X, self.dim, "model")))

    def __call__(self, X: Array) -> Array:
        """Map sequences (B, N, d) to numbers (B,)."""
        X = sequences(X, self.dim, "model")
        answers = np.empty(len(X))
        step = max(1, _VECTOR_NUMBERS // max(1, self.v.size))
        for start in range(0, len(X), step):
            part = slice(start, start + step)
            answers[part] = self._answers(X[part])
        return answers

    def _answers(self, X: Array) -> Array:
        weights, total = exponentials(self._scores.of(X))  # (B, H, N) and (B, H)
        values = self.v @ X.transpose(0, 2, 1)
        values *= weights
        return np.asarray((values.sum(axis=2) / total).sum(axis=1) + self.c)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a safetensors file that `unsoftmax.load` reads."""
        files.write(path, type(self).__name__, self._arrays)

    def __getstate__(self) -> dict[str, Any]:
        return {"_arrays": self._arrays}

    def __setstate__(self, state: dict[str, Any]) -> None:
        arrays = dict(state["_arrays"])
        c, v, w = arrays.pop("c"), arrays.pop("v"), arrays.pop("w")
        self._set(arrays, v, w, c)

    def __repr__(self) -> str:
        rank = f", rank ≤ {self._arrays['K'].shape[1]}" if "K" in self._arrays else ""
        return f"MultiHead(H={self.H}, d={self.dim}{rank})"
