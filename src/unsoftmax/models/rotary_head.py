"""One attention head whose scores turn with distance: rotary positions, with key biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.arrays import sequences
from unsoftmax.models.attention import exponentials, softmax
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Composition
from unsoftmax.models.model import (
    ROTARY_PARTS,
    Parameter,
    TurnedProjections,
    values_and_constant,
)
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.scores import RotaryScores
from unsoftmax.probes import Array


class RotaryHead(TurnedProjections):
    """f(X) = Σ_i α_i x_i·v + c with the scores (K x_i + b_k)·R(Δ_i)(Q x_N + b_q).

    Δ_i = N − 1 − i counts tokens back from the query token; α is their softmax. Made by
    ``SingleHead.from_factors(K, Q, v, rotary=…)``.

    Parameters
    ----------
    K, Q : array_like, shape (r, d)
        Key and query projections, the scale 1/√r inside; rows 2k and 2k + 1 are plane k.
    v : array_like, shape (d,)
        Value vector.
    rotary : Rotary
        Frequencies of the r/2 planes.
    k_bias, q_bias : array_like, shape (r,), optional
        b_k and b_q; zeros by default. With positions a key bias is no constant of the softmax.
    c : float, optional
        What value and output biases add to every answer.

    Raises
    ------
    ValueError
        Shapes do not fit, or an entry is not finite.

    Notes
    -----
    Immutable. Determined by its function up to one complex number per plane, by which the plane
    of K is multiplied and that of Q divided; the order of planes; b_k where a plane does not
    turn; and all of it but c when v = 0. `canonical` has the details.

    Examples
    --------
    >>> head = RotaryHead(np.eye(2), np.eye(2), [1.0, 0.0], Rotary([np.pi]))
    >>> head(np.array([[[5.0, 0.0], [5.0, 0.0]]])), head.attention(np.ones((1, 2, 2))).round(3)
    (array([5.]), array([[0.018, 0.982]]))
    """

    _tensors: ClassVar[Mapping[str, str]] = {
        **{f"{name}": f"heads.{name}" for name in ROTARY_PARTS},
        "v": "heads.M",
        "c": "heads.c",
    }
    _noun = "head"
    _needed = frozenset({"K", "Q", "v", "frequencies"})
    _optional = frozenset({"k_bias", "q_bias", "c"})

    def __init__(
        self,
        K: ArrayLike,
        Q: ArrayLike,
        v: ArrayLike,
        rotary: Rotary,
        *,
        k_bias: ArrayLike | None = None,
        q_bias: ArrayLike | None = None,
        c: float = 0.0,
    ) -> None:
        v, c_ = values_and_constant(v, c, ("d",))
        if not isinstance(rotary, Rotary):
            raise TypeError(f"rotary must be a Rotary; it is {rotary!r}.")
        parts = {"K": K, "Q": Q, "k_bias": k_bias, "q_bias": q_bias}
        self._scores = RotaryScores(len(v), parts, rotary)
        self._arrays = {**self._scores.arrays, "v": v, "c": c_}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Build the head from what `arrays` returned."""
        others = {name: array for name, array in arrays.items() if name != "frequencies"}
        return cls(**others, rotary=Rotary(arrays["frequencies"]))

    @property
    def rotary(self) -> Rotary:
        """The frequencies of its planes."""
        return self._scores.rotary

    @property
    def scores(self) -> RotaryScores:
        """How its tokens are scored."""
        return self._scores

    v = Parameter(np.asarray, "Value vector (d,).")
    c = Parameter(float, "Constant added to every answer.")

    def parameter_norm(self, name: str) -> float:
        """Return a parameter's norm; "W" is W(0), and "w" the biases' part of the scores."""
        if name == "W":
            return self._scores.norm
        if name == "w":
            return self._scores.bias_norm
        return super().parameter_norm(name)

    def W_at(self, distance: float) -> Array:
        """Return W(Δ) = Kᵀ R(Δ) Q, (d, d): what scores a token Δ before the query token."""
        return self._scores.at(distance)

    def attention(self, X: Array) -> Array:
        """Map sequences (B, N, d) to the weights α, (B, N)."""
        return softmax(self._scores.of(sequences(X, self.dim, self._noun)))

    def _composed(self) -> Composition:
        parts: dict[str, Any] = {name: self._arrays[name][None] for name in ROTARY_PARTS}
        return Composition.of(
            {"heads": Attention(O=self.v[None, None], c=np.array([self.c]), **parts)}
        )

    def _answers(self, X: Array) -> Array:
        numerators, total = exponentials(self._scores.of(X))
        answers: Array = np.einsum("bn,bn->b", numerators, X @ self.v) / total + self.c
        return answers

    def _sizes(self) -> tuple[str, ...]:
        return f"d={self.dim}", f"rank ≤ {len(self.K)}", "rotary"
