"""A whole feed-forward sub-layer: ReLUs between vectors, a residual, and a LayerNorm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.arrays import frozen, points
from unsoftmax.models.composition import Composition
from unsoftmax.models.layer_norm import NORM_TENSORS, LayerNorm, sublayer
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.neurons import Neurons
from unsoftmax.probes import Array


class FeedForward(FrozenModel):
    """F(x) = B·max(0, A x + b) + c, and + x with a residual.

    With a norm behind, y = norm(F(x)); with one before, A sees norm(x) instead of x.

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
        Whether x itself is added, as it was given; then d_out is d.
    norm : LayerNorm, optional
        Behind the sum, or before (``LayerNorm(…, before=True)``).

    Raises
    ------
    ValueError
        Shapes do not fit, or an entry is not finite.
    TypeError
        ``norm`` is no LayerNorm.

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

    _tensors: ClassVar[Mapping[str, str]] = {
        "A": "neurons.A",
        "b": "neurons.a",
        "B": "neurons.B",
        "c": "neurons.c",
        **NORM_TENSORS,
    }
    _needed = frozenset({"A", "b", "B", "c"})
    _optional = frozenset({"residual"})

    def __init__(
        self,
        A: ArrayLike,
        b: ArrayLike,
        B: ArrayLike,
        c: ArrayLike,
        residual: bool = False,
        norm: LayerNorm | None = None,
    ) -> None:
        A, b, B, c = frozen("A", A), frozen("b", b), frozen("B", B), frozen("c", c)
        if A.ndim != 2 or not A.shape[1]:
            raise ValueError(f"A must have shape (m, d) with d ≥ 1; it has shape {A.shape}.")
        if c.ndim != 1 or not len(c):
            raise ValueError(f"c must have shape (d_out,) with d_out ≥ 1; it has shape {c.shape}.")
        for name, array, shape in (("b", b, (len(A),)), ("B", B, (len(c), len(A)))):
            if array.shape != shape:
                raise ValueError(
                    f"{name} must have shape {shape} beside A of shape {A.shape} and c of shape "
                    f"{c.shape}; it has shape {array.shape}."
                )
        if norm is not None and not isinstance(norm, LayerNorm):
            raise TypeError(f"norm must be a LayerNorm; it is a {type(norm).__name__}.")
        self._arrays, self._norm = {"A": A, "b": b, "B": B, "c": c}, norm
        self._arrays["residual"] = frozen("residual", bool(residual))
        self._refuse_shapes(A.shape[1], len(c))
        if norm is not None:
            self._arrays |= {f"norm.{name}": array for name, array in norm.arrays().items()}

    def _refuse_shapes(self, d: int, d_out: int) -> None:
        if self.residual and d_out != d:
            raise ValueError(
                f"A residual adds x, of dimension {d}, to answers of dimension {d_out}: they must "
                "be the same."
            )
        if self._norm is not None and self._norm.width != (d if self._norm.before else d_out):
            where, width = ("before", d) if self._norm.before else ("behind", d_out)
            raise ValueError(
                f"A norm {where} this layer has {width} numbers; it has {self._norm.width}."
            )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Build the layer from what `arrays` returned: A, b, B, c, ``norm.eps`` and so on."""
        own = {name: array for name, array in arrays.items() if not name.startswith("norm.")}
        norm = {name[5:]: array for name, array in arrays.items() if name.startswith("norm.")}
        return cls(**own, norm=LayerNorm.from_arrays(norm) if norm else None)

    @classmethod
    def has_parameters(cls, names: Iterable[str]) -> bool:
        """Tell whether `from_arrays` takes arrays of these names."""
        return super().has_parameters(name for name in names if not name.startswith("norm."))

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

    @property
    def norm(self) -> LayerNorm | None:
        """The norm behind or before, if there is one."""
        return self._norm

    def parameter_norm(self, name: str) -> float:
        """Return a parameter's norm, of ``scale``, ``shift`` and ``eps`` that of the norm's.

        0 for what is none (a bound on the function).
        """
        if self._norm is not None and name in ("scale", "shift", "eps"):
            return self._norm.parameter_norm(name)
        return super().parameter_norm(name)

    def _composed(self) -> Composition:
        neurons = Neurons(self.A, self.b, self.B, self.c)
        return sublayer("neurons", neurons, self.residual, self._norm)

    @property
    def outputs(self) -> int:
        """How many numbers an answer has, d_out."""
        return len(self.c)

    def __call__(self, X: ArrayLike) -> Array:
        """Map points (B, d), or sequences of one token (B, 1, d), to vectors (B, d_out)."""
        answers = self.sums(X)
        return answers if self._norm is None or self._norm.before else self._norm(answers)

    def sums(self, X: ArrayLike) -> Array:
        """Map points (B, d), or (B, 1, d), to what a norm behind sees (B, d_out)."""
        x = points(X, self.dim, "feed-forward layer")
        before = self._norm is not None and self._norm.before
        z = (self._norm(x) if self._norm is not None and before else x) @ self.A.T
        z += self.b
        np.maximum(z, 0.0, out=z)
        answers: Array = z @ self.B.T + self.c
        if self.residual:
            answers += x
        return answers

    def moved_at_most(self, X: ArrayLike, errors: Mapping[str, float]) -> Array:
        """Bound what errors of the parameters do to answers (2-norms, (B,)).

        Parameters
        ----------
        X : array_like, shape (B, d) or (B, 1, d)
            Points.
        errors : mapping
            ``constant`` and ``slope`` of the sum, ‖δ‖₂ ≤ constant + slope·‖x‖, with a norm
            before of what it makes of x; of a norm behind ``scale``, ``shift`` (2-norms) and
            ``eps`` too.
        """
        x, norm = points(X, self.dim, "feed-forward layer"), self._norm
        seen = norm(x) if norm is not None and norm.before else x
        sums = errors["constant"] + errors["slope"] * np.linalg.norm(seen, axis=1)
        if norm is None or norm.before:
            return np.asarray(sums)
        return norm.moved_at_most(self.sums(x), sums, errors)

    def _sizes(self) -> tuple[str, ...]:
        sizes = f"d={self.dim}", f"m={len(self.b)}"
        other = () if len(self.c) == self.dim else (f"d_out={len(self.c)}",)
        residual = ("residual",) if self.residual else ()
        if self._norm is None:
            return (*sizes, *other, *residual)
        kind, place = ("norm", "RMS norm"), ("behind", "before")
        norm = f"{kind[not self._norm.centred]} {place[self._norm.before]}"
        return (*sizes, *other, *residual, norm)
