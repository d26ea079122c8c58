"""A network of one hidden layer of ReLUs with a scalar output."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models import files
from unsoftmax.models.arrays import frozen
from unsoftmax.probes import Array


class ReluNetwork:
    """g(x) = Σ_j w_o[j]·max(0, x·A[:, j] + b[j]) + c.

    Parameters
    ----------
    A : array_like, shape (d, m)
        Input weights, a neuron per column; m may be 0.
    w_o : array_like, shape (m,)
        Output weights.
    b : array_like, shape (m,), optional
        Biases of the neurons; zeros by default.
    c : float, optional
        Constant added to every answer.

    Raises
    ------
    ValueError
        Shapes do not fit, or an entry is not finite.

    Notes
    -----
    Immutable: arrays are float64 copies and read-only. Its function determines the hyperplanes
    x·a + b = 0 across which the gradient jumps, the jumps, and one affine part. Neurons are
    free beyond that: parallel ones merge, s·relu(z) = s·z + s·relu(−z) flips one at the price
    of a linear part, a positive factor moves between A, b and w_o.

    Examples
    --------
    >>> network = ReluNetwork(A=[[1.0, -1.0]], w_o=[1.0, 1.0], c=0.5)  # |x| + ½
    >>> network([[2.0], [-3.0]])
    array([2.5, 3.5])
    """

    def __init__(
        self, A: ArrayLike, w_o: ArrayLike, b: ArrayLike | None = None, c: float = 0.0
    ) -> None:
        A = frozen("A", A)
        if A.ndim != 2 or not len(A):
            raise ValueError(f"A must have shape (d, m) with d ≥ 1; it has shape {A.shape}.")
        m = A.shape[1]
        self._arrays = {
            "A": A,
            "w_o": frozen("w_o", w_o),
            "b": frozen("b", np.zeros(m) if b is None else b),
            "c": frozen("c", c),
        }
        for name, shape in {"w_o": (m,), "b": (m,), "c": ()}.items():
            if self._arrays[name].shape != shape:
                raise ValueError(
                    f"{name} must have shape {shape} beside A of shape {A.shape}; "
                    f"it has shape {self._arrays[name].shape}."
                )

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.A.shape[0])

    @property
    def A(self) -> Array:
        """Input weights (d, m)."""
        return self._arrays["A"]

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

    def norm(self, name: str) -> float:
        """Return the norm of a parameter, 0 for what is none (a bound on the function)."""
        return float(np.linalg.norm(self._arrays[name])) if name in self._arrays else 0.0

    def arrays(self) -> dict[str, Array]:
        """Return the parameters by name, as the constructor takes them."""
        return dict(self._arrays)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> ReluNetwork:
        """Build the network from what `arrays` returned."""
        return cls(**arrays)

    def __call__(self, X: ArrayLike) -> Array:
        """Map points (B, d), or sequences of one token (B, 1, d), to numbers (B,)."""
        x = np.asarray(X, dtype=np.float64)
        if x.ndim == 3 and x.shape[1] == 1:
            x = x[:, 0]
        if x.ndim != 2 or x.shape[1] != self.dim:
            raise ValueError(
                f"This network takes points of shape (B, {self.dim}), or sequences of one token, "
                f"(B, 1, {self.dim}); it was given shape {np.shape(X)}."
            )
        z = x @ self.A
        z += self.b
        np.maximum(z, 0.0, out=z)
        answers: Array = z @ self.w_o + self.c
        return answers

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the network to a safetensors file that `unsoftmax.load` reads."""
        files.write(path, type(self).__name__, self._arrays)

    def __getstate__(self) -> dict[str, Any]:
        return {"_arrays": self._arrays}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["_arrays"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"ReluNetwork(d={self.dim}, m={self.A.shape[1]})"
