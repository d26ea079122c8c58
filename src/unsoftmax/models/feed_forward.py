"""A whole feed-forward sub-layer: one hidden layer of ReLUs between vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.arrays import frozen, points
from unsoftmax.models.model import FrozenModel
from unsoftmax.probes import Array


class FeedForward(FrozenModel):
    """F(x) = B·max(0, A x + b) + c, and + x with a residual.

    Parameters
    ----------
    A : array_like, shape (m, d)
        Input weights, a neuron per row; m may be 0.
    b : array_like, shape (m,)
        Biases of the neurons.
    B : array_like, shape (d_out, m)
        Output weights, a neuron per column.
    c : array_like, shape (d_out,)
        Constant added to every answer.
    residual : bool, optional
        Whether x itself is added; then d_out is d.

    Raises
    ------
    ValueError, TypeError
        Shapes do not fit, or an entry is not finite.

    Notes
    -----
    Immutable: arrays are float64 copies and read-only. Its function determines the hyperplanes
    a·x + b = 0 across which the Jacobian jumps, the jumps, and one affine part, which holds x too.
    Beyond that neurons are free: parallel ones merge, B_j relu(z) = B_j z + B_j relu(−z) flips one
    at the price of a linear part, a positive factor moves between (A, b) and B. As a rule there is
    one choice of sides, and of the residual, that leaves no linear part: then A, b, B and c are
    determined up to order and positive factors.

    Examples
    --------
    >>> layer = FeedForward([[1.0], [-1.0]], [0.0, 0.0], [[1.0, 1.0], [1.0, -1.0]], [0.5, 0.0])
    >>> layer([[2.0], [-3.0]])  # (|x| + ½, x)
    array([[ 2.5,  2. ],
           [ 3.5, -3. ]])
    """

    _needed = frozenset({"A", "b", "B", "c"})
    _optional = frozenset({"residual"})

    def __init__(
        self, A: ArrayLike, b: ArrayLike, B: ArrayLike, c: ArrayLike, residual: bool = False
    ) -> None:
        A, b, B, c = frozen("A", A), frozen("b", b), frozen("B", B), frozen("c", c)
        if A.ndim != 2 or not A.shape[1]:
            raise ValueError(f"A must have shape (m, d) with d ≥ 1; it has shape {A.shape}.")
        if c.ndim != 1 or not len(c):
            raise ValueError(f"c must have shape (d_out,) with d_out ≥ 1; it has shape {c.shape}.")
        (m, d), d_out = A.shape, len(c)
        for name, array, shape in (("b", b, (m,)), ("B", B, (d_out, m))):
            if array.shape != shape:
                raise ValueError(
                    f"{name} must have shape {shape} beside A of shape {A.shape} and c of shape "
                    f"{c.shape}; it has shape {array.shape}."
                )
        if np.ndim(residual) or float(residual) not in (0.0, 1.0):
            raise ValueError(f"residual must be True or False; it is {residual!r}.")
        if residual and d_out != d:
            raise ValueError(
                f"A residual adds x, of dimension {d}, to answers of dimension {d_out}: they must "
                "be the same."
            )
        self._arrays = {"A": A, "b": b, "B": B, "c": c}
        self._arrays["residual"] = frozen("residual", bool(residual))

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.A.shape[1])

    @property
    def A(self) -> Array:
        """Input weights (m, d)."""
        return self._arrays["A"]

    @property
    def b(self) -> Array:
        """Biases (m,) of the neurons."""
        return self._arrays["b"]

    @property
    def B(self) -> Array:
        """Output weights (d_out, m)."""
        return self._arrays["B"]

    @property
    def c(self) -> Array:
        """Constant (d_out,) added to every answer."""
        return self._arrays["c"]

    @property
    def residual(self) -> bool:
        """Whether x itself is added."""
        return bool(self._arrays["residual"])

    def __call__(self, X: ArrayLike) -> Array:
        """Map points (B, d), or sequences of one token (B, 1, d), to vectors (B, d_out)."""
        x = points(X, self.dim, "feed-forward layer")
        z = x @ self.A.T
        z += self.b
        np.maximum(z, 0.0, out=z)
        answers: Array = z @ self.B.T + self.c
        if self.residual:
            answers += x
        return answers

    def _sizes(self) -> tuple[str, ...]:
        sizes = f"d={self.dim}", f"m={len(self.b)}"
        other = () if len(self.c) == self.dim else (f"d_out={len(self.c)}",)
        return (*sizes, *other, *(("residual",) if self.residual else ()))
