"""One attention head whose scores turn with distance: rotary positions, with key biases."""

from functools import cached_property
from typing import Any

from unsoftmax.models.arrays import axes
from unsoftmax.models.attention import ROTARY, RotaryScores
from unsoftmax.models.model import ValuedRotary, tensors_of
from unsoftmax.models.rotary import Rotary
from unsoftmax.probes import Array


class RotaryHead(ValuedRotary):
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
    >>> import numpy as np
    >>> head = RotaryHead(np.eye(2), np.eye(2), [1.0, 0.0], Rotary([np.pi]))
    >>> head(np.array([[[5.0, 0.0], [5.0, 0.0]]])), head.attention(np.ones((1, 2, 2))).round(3)
    (array([5.]), array([[0.018, 0.982]]))
    """

    _axes = axes(**ROTARY, frequencies="p≥0", v="d≥1", c="= 0")
    _tensors = tensors_of(_axes)
    _noun = "head"

    @staticmethod
    def _frequencies(rotary: Any, heads: int) -> Array:
        if not isinstance(rotary, Rotary):
            raise TypeError(f"rotary must be a Rotary; it is {rotary!r}.")
        return rotary.frequencies

    @property
    def rotary(self) -> Rotary:
        """The frequencies of its planes."""
        return self.scores.rotary

    @cached_property
    def scores(self) -> RotaryScores:
        """How its tokens are scored."""
        return RotaryScores(self.dim, self._arrays, Rotary(self._arrays["frequencies"]))

    @property
    def every_scores(self) -> tuple[RotaryScores, ...]:
        """How it scores tokens."""
        return (self.scores,)

    def W_at(self, distance: float) -> Array:
        """Return W(Δ) = Kᵀ R(Δ) Q, (d, d): what scores a token Δ before the query token."""
        return self.scores.at(distance)

    def _scored(self, X: Array) -> Array:
        return self.scores.of(X)
