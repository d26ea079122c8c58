"""What the model classes share: read-only parameters by name, attention, value vectors.

`FrozenArrays` keeps and pickles parameters, of a model or of a part of one; `FrozenModel` saves
them and answers. `AttentionModel` adds the scores of tokens, `ValuedAttention` value vectors and
a constant: one head, or several.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models import files
from unsoftmax.models.arrays import frozen, sequences
from unsoftmax.models.attention import softmax
from unsoftmax.models.scores import BilinearScores
from unsoftmax.probes import Array


class FrozenArrays(ABC):
    """Named arrays that nobody can change: the parameters of a model, or of a part of one."""

    _arrays: dict[str, Array]

    def arrays(self) -> dict[str, Array]:
        """Return the parameters by name, as `from_arrays` takes them."""
        return dict(self._arrays)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Build it from what `arrays` returned."""
        return cls(**arrays)

    def parameter_norm(self, name: str) -> float:
        """Return the norm of a parameter, 0 for what is none (a bound on the function)."""
        return float(np.linalg.norm(self._arrays[name])) if name in self._arrays else 0.0

    @abstractmethod
    def _sizes(self) -> tuple[str, ...]:
        """Return the sizes that `repr` shows, such as "d=8"."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._sizes())})"

    def __getstate__(self) -> dict[str, Any]:
        return {"arrays": self._arrays}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = type(self).from_arrays(state["arrays"]).__dict__


class FrozenModel(FrozenArrays):
    """A function of batches, determined by named arrays that nobody can change."""

    _needed: ClassVar[frozenset[str]]
    _optional: ClassVar[frozenset[str]]
    """Names of the arrays that `from_arrays` needs, and of those that may be left out."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Dimension d of a token."""

    @abstractmethod
    def __call__(self, X: Array) -> Array:
        """Map a batch of B inputs to numbers (B,), or to vectors (B, m)."""

    @classmethod
    def has_parameters(cls, names: Iterable[str]) -> bool:
        """Tell whether `from_arrays` takes arrays of these names."""
        return cls._needed <= {*names} <= cls._needed | cls._optional

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a safetensors file that `unsoftmax.load` reads."""
        files.write(path, type(self).__name__, self._arrays)


class TurnedProjections(FrozenModel):
    """A model whose scores turn with distance: projections and biases of one head, or of several.

    Several heads have one of each, and layers one of keys for each group.
    """

    @property
    def K(self) -> Array:
        """Key projection (r, d); of several heads (H, r, d), of G groups (G, r, d)."""
        return self._arrays["K"]

    @property
    def Q(self) -> Array:
        """Query projection (r, d); of several heads (H, r, d)."""
        return self._arrays["Q"]

    @property
    def k_bias(self) -> Array:
        """Key bias b_k, (r,); of several heads (H, r), of G groups (G, r)."""
        return self._arrays["k_bias"]

    @property
    def q_bias(self) -> Array:
        """Query bias b_q, (r,); of several heads (H, r)."""
        return self._arrays["q_bias"]


class AttentionModel(FrozenModel):
    """A model that weighs tokens with α = softmax_i(x_i·(W x_N + w)), x_N the last."""

    _scores: BilinearScores
    _noun: ClassVar[str] = "model"

    @classmethod
    @abstractmethod
    def from_factors(cls, K: ArrayLike, Q: ArrayLike, *args: Any, **parameters: Any) -> Self:
        """Build the model with W = K.T @ Q; answering never forms W."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Build the model from what `arrays` returned."""
        return cls.from_factors(**arrays) if "K" in arrays else cls(**arrays)

    @classmethod
    def has_parameters(cls, names: Iterable[str]) -> bool:
        """Tell whether `from_arrays` takes arrays of these names."""
        known, factors = {*names}, {"K", "Q"}
        in_factors = factors <= known and "W" not in known
        return super().has_parameters(known - factors | {"W"} if in_factors else known)

    @property
    def W(self) -> Array:
        """Score matrix (d, d), of H heads (H, d, d); of factors, computed on demand."""
        return self._scores.W

    @property
    def w(self) -> Array:
        """Score vector (d,) of the query bias, of H heads (H, d)."""
        return self._scores.arrays["w"]

    def parameter_norm(self, name: str) -> float:
        """Return a parameter's norm (Frobenius for W), without forming W; 0 for what is none."""
        return self._scores.norm if name == "W" else super().parameter_norm(name)

    def scores_of(self, x: Array) -> Array:
        """Map query tokens (B, d) to the vectors W x + w, (B, d) or (B, H, d).

        The tokens of a sequence are scored with the vector of its query token.
        """
        return self._scores.vectors(x)

    def attention(self, X: Array) -> Array:
        """Map sequences (B, N, d) to the weights α, (B, N) or of H heads (B, H, N)."""
        return softmax(self._scores.of(sequences(X, self.dim, self._noun)))

    def _sizes(self) -> tuple[str, ...]:
        K = self._scores.arrays.get("K")
        return (f"d={self.dim}", *(() if K is None else (f"rank ≤ {K.shape[-2]}",)))


class ValuedAttention(AttentionModel):
    """One head or several that answer with weighted means of the values x_i·v, plus c."""

    _leading: ClassVar[tuple[str, ...]] = ()
    """Symbols of the axes that all arrays but c begin with: H for several heads."""
    _needed = frozenset({"W", "v"})
    _optional = frozenset({"w", "c"})

    def __init__(
        self, W: ArrayLike, v: ArrayLike, w: ArrayLike | None = None, c: float = 0.0
    ) -> None:
        self._set({"W": W}, v, w, c)

    @classmethod
    def from_factors(
        cls, K: ArrayLike, Q: ArrayLike, v: ArrayLike, w: ArrayLike | None = None, c: float = 0.0
    ) -> Self:
        """Build the model with W = K.T @ Q, K and Q of shape (r, d); answering never forms W.

        Of several heads every W_h is K_h.T @ Q_h, K and Q of shape (H, r, d).
        """
        model = cls.__new__(cls)
        model._set({"K": K, "Q": Q}, v, w, c)
        return model

    def _set(
        self, matrix: Mapping[str, ArrayLike], v: ArrayLike, w: ArrayLike | None, c: float
    ) -> None:
        v, c_ = frozen("v", v), frozen("c", c)
        if v.ndim != len(self._leading) + 1 or not v.shape[-1]:
            shape = str((*self._leading, "d")).replace("'", "")
            raise ValueError(f"v must have shape {shape} with d ≥ 1; it has shape {v.shape}.")
        beside = f"beside v of shape {v.shape}"
        if c_.shape:
            raise ValueError(f"c must have shape () {beside}; it has shape {c_.shape}.")
        self._scores = BilinearScores(v.shape[-1], matrix, w, beside, v.shape[:-1])
        self._arrays = {**self._scores.arrays, "v": v, "c": c_}

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.v.shape[-1])

    @property
    def v(self) -> Array:
        """Value vector (d,), of H heads (H, d)."""
        return self._arrays["v"]

    @property
    def c(self) -> float:
        """Constant added to every answer."""
        return float(self._arrays["c"])
