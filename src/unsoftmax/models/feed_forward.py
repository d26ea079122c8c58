"""A whole feed-forward sub-layer: neurons between vectors, a residual, and a norm."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.arrays import Parameter, axes, points
from unsoftmax.models.layer_norm import NORM_TENSORS, LayerNorm, SubLayer
from unsoftmax.models.neurons import ACTIVATIONS, Neurons, function_bound
from unsoftmax.probes import Array


class FeedForward(SubLayer):
    """F(x) = B·φ(A x + b) + c, and + x with a residual; φ is max(0, ·) unless it is told.

    With a gate, F(x) = B·(φ(G x + g) ⊙ (A x + b)) + c. With a norm behind, y = norm(F(x)); with
    one before, A and G see norm(x) instead of x.

    Parameters
    ----------
    A : array_like, shape (m, d)
        Input weights, a neuron per row; m may be 0.
    b : array_like, shape (m,), or None
        Biases of the neurons, None for zeros.
    B : array_like, shape (d_out, m)
        Output weights, a neuron per column.
    c : array_like, shape (d_out,), or None
        Constant added to every answer, None for zeros.
    residual : bool, optional
        Whether x itself is added, as it was given; then d_out is d.
    norm : LayerNorm, optional
        Behind the sum, or before (``LayerNorm(…, before=True)``).
    activation : str, optional
        φ: "relu", "gelu" (by the error function), "gelu_tanh", "silu", "quick_gelu" (z σ(1.702 z)),
        "sigmoid", "tanh", "softplus" or "identity".
    gate : tuple of array_like, optional
        G (m, d) and g (m,), or None for zeros: what is added up for φ, if not A x + b itself.

    Raises
    ------
    ValueError
        Shapes do not fit, an entry is not finite, or there is no such activation.
    TypeError
        ``norm`` is no LayerNorm, or A, B or G is None.

    Notes
    -----
    Immutable: arrays are float64 copies and read-only. With ReLUs and without a gate its function
    determines the hyperplanes a·x + b = 0 across which the Jacobian jumps, the jumps, and one
    affine part, which holds x too. Beyond that neurons are free: parallel ones merge, B_j relu(z)
    = B_j z + B_j relu(−z) flips one at the price of a linear part, a positive factor moves between
    (A, b) and B. As a rule there is one choice of sides, and of the residual, that leaves no
    linear part: then A, b, B and c are determined up to order and positive factors.

    Of other activations the scale is determined too. φ(z) = z + φ(−z) holds of GELUs, SiLU and
    softplus as well; a tanh turns around with B_j. Quick GELU is SiLU, and sigmoid tanh, of other
    parameters. With a gate a factor, of any sign, moves between (A_j, b_j) and B_j; gates stay on
    their side but for those of tanh and sigmoid, σ(t) z = z − σ(−t) z. `equivalent` and `canonical`
    know all of that.

    In arrays and files G and g are beside A and b, and the activation's name is its code points;
    a layer of plain ReLUs has none of these.

    Examples
    --------
    >>> layer = FeedForward([[1.0], [-1.0]], [0.0, 0.0], [[1.0, 1.0], [1.0, -1.0]], [0.5, 0.0])
    >>> layer([[2.0], [-3.0]])  # (|x| + ½, x)
    array([[ 2.5,  2. ],
           [ 3.5, -3. ]])
    >>> A, B = np.eye(2), [[1.0, 1.0]]
    >>> gated = FeedForward(A, [0, 0], B, [0], activation="silu", gate=([[0, 0], [0, 0]], [1, 1]))
    >>> gated, gated([[1.0, 2.0]]).round(4)
    (FeedForward(d=2, m=2, d_out=1, gated silu), array([[2.1932]]))
    """

    _tensors: ClassVar[Mapping[str, str]] = {
        "A": "neurons.A",
        "b": "neurons.a",
        "B": "neurons.B",
        "c": "neurons.c",
        "G": "neurons.G",
        "g": "neurons.g",
        **NORM_TENSORS,
    }
    _axes = axes(
        **{"A": "m d≥1", "b": "m", "B": "d_out m", "c": "d_out≥1", "residual": "= 0"},
        **{"activation": "letters = none", "G": "m d = none", "g": "m = none"},
    )
    _noun, _part = "feed-forward layer", "neurons"

    def __init__(
        self,
        A: ArrayLike,
        b: ArrayLike | None,
        B: ArrayLike,
        c: ArrayLike | None,
        residual: bool = False,
        norm: LayerNorm | None = None,
        activation: str = "relu",
        gate: tuple[ArrayLike, ArrayLike | None] | None = None,
    ) -> None:
        for name, W in (("A", A), ("B", B), ("G", gate is None or gate[0])):
            if W is None:
                raise TypeError(f"{name} must be an array; it is None.")
        b = np.zeros(np.shape(A)[:1]) if b is None else b
        c = np.zeros(np.shape(B)[:1]) if c is None else c
        given: dict[str, Any] = {"A": A, "b": b, "B": B, "c": c, "residual": bool(residual)}
        if activation != "relu":
            given["activation"] = [*map(ord, activation)]
        if gate is not None:
            given["G"], given["g"] = gate
        self._set(given, norm)

    def _inside(self, given: Mapping[str, Any]) -> dict[str, Array]:
        codes = np.ravel(given.get("activation", ())).tolist()
        name = "".join(chr(int(code)) if 0 <= code < 2**20 else "?" for code in codes)
        self._activation = name or "relu"
        if self._activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}: {name!r}.")
        if "g" in given and "G" not in given:
            raise ValueError("g are the biases of gates, whose weights G are missing.")
        if "G" in given and given.get("g") is None:
            given = {**given, "g": np.zeros(len(given["b"]))}
        return super()._inside(given)

    A = Parameter(np.asarray, "Input weights (m, d).")
    b = Parameter(np.asarray, "Biases (m,) of the neurons.")
    B = Parameter(np.asarray, "Output weights (d_out, m).")
    c = Parameter(np.asarray, "Constant (d_out,) added to every answer, before a norm behind.")

    @property
    def activation(self) -> str:
        """The name of φ."""
        return self._activation

    @property
    def gate(self) -> tuple[Array, Array] | None:
        """G (m, d) and g (m,), None where neurons have no gates."""
        return (self._arrays["G"], self._arrays["g"]) if "G" in self._arrays else None

    @cached_property
    def _map(self) -> Neurons:
        G, g = self.gate or (None, 0.0)
        return Neurons(self.A, self.b, self.B, self.c, self._activation, G, g)

    def __call__(self, X: ArrayLike) -> Array:
        """Map points (B, d), or sequences of one token (B, 1, d), to vectors (B, d_out)."""
        return self.maps.answers(points(X, self.dim, self._noun)[:, None])[:, 0]

    def sums(self, X: ArrayLike) -> Array:
        """Map points (B, d), or (B, 1, d), to what a norm behind sees (B, d_out)."""
        return self._sum.answers(points(X, self.dim, self._noun)[:, None])[:, 0]

    def moved_at_most(self, X: ArrayLike, errors: Mapping[str, float]) -> Array:
        """Bound what errors of the parameters do to answers (2-norms, (B,)).

        Parameters
        ----------
        X : array_like, shape (B, d) or (B, 1, d)
            Points.
        errors : mapping
            ``constant`` and ``slope`` of the sum, ‖δ‖₂ ≤ constant + slope·‖x‖, whatever its
            neurons are; with a norm before of what it makes of x; of gated neurons ``square`` too,
            constant + square·‖x‖² where that is more; of a norm behind ``scale``, ``shift``
            (2-norms) and ``eps``.
        """
        x = points(X, self.dim, self._noun)
        sums = function_bound(errors, np.linalg.norm(self._seen(x), axis=1))
        if self._behind is None:
            return sums
        return self._behind.moved_at_most(self.sums(x), sums, errors)

    def _sizes(self) -> tuple[str, ...]:
        sizes = f"d={self.dim}", f"m={len(self.b)}"
        other = () if len(self.c) == self.dim else (f"d_out={len(self.c)}",)
        kind = ("gated " if self.gate else "") + self._activation
        return (*sizes, *other, *(() if kind == "relu" else (kind,)), *self._around())
