"""One softmax attention head that answers with a number, or several, with positions or without."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np

from unsoftmax.models.arrays import Parameter, axes, of_several
from unsoftmax.models.attention import BILINEAR, ROTARY, RotaryScores, exponentials
from unsoftmax.models.model import SeveralHeads, ValuedAttention, ValuedRotary, tensors_of
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


class RotaryHeads(SeveralHeads[RotaryHead], ValuedRotary):
    """f(X) = Σ_h Σ_i α_hi x_i·v_h + c with the scores of a `RotaryHead` for each h.

    Made by ``MultiHead.from_factors(K, Q, v, rotary=…)``.

    Parameters
    ----------
    K, Q : array_like, shape (H, r, d)
        Key and query projections, the scale 1/√r inside; rows 2k and 2k + 1 are plane k. Heads of
        one group, which share K, repeat it. A head with fewer planes has rows of zeros.
    v : array_like, shape (H, d)
        Value vectors. H may be 1, and 0: then v of shape (0, d) says what d is.
    rotary : Rotary, or one for each head
        Frequencies of the r/2 planes.
    k_bias, q_bias : array_like, shape (H, r), optional
        b_k and b_q of every head; zeros by default.
    c : float, optional
        What value and output biases add to every answer.

    Raises
    ------
    ValueError, TypeError
        Shapes do not fit, or an entry is not finite; rotary is none.

    Notes
    -----
    Immutable. Determined by its function up to the order of the heads and what leaves each head
    as it is (see `RotaryHead`), except that heads of equal scores are one, whose v is the sum of
    theirs.

    Examples
    --------
    >>> K = np.random.default_rng(0).standard_normal((2, 2, 2))
    >>> model = RotaryHeads(K, K, [[1.0, 0.0], [0.0, 1.0]], Rotary([1.0]))
    >>> model(np.array([[[3.0, 1.0]], [[0.0, 5.0]]])), model.heads[0]
    (array([4., 5.]), RotaryHead(d=2, rank ≤ 2, rotary))
    """

    _axes, _one = of_several(RotaryHead._axes), RotaryHead
    _tensors = tensors_of(_axes)

    @staticmethod
    def _frequencies(rotary: Any, heads: int) -> Array:
        """Return the frequencies of every head, (H, r/2)."""
        if isinstance(rotary, Rotary):
            return np.tile(rotary.frequencies, (heads, 1))
        each: list[Any] = list(rotary) if isinstance(rotary, Iterable) else [rotary]
        for one in each:
            if not isinstance(one, Rotary):
                raise TypeError(f"rotary must be a Rotary, or one for each head; it has {one!r}.")
        planes = {len(one) for one in each}
        if len(each) != heads or len(planes) > 1:
            raise ValueError(
                f"rotary must be one Rotary, or {heads}, one for each head, with as many "
                f"frequencies each; there are {len(each)}, with {sorted(planes)}."
            )
        return np.reshape([one.frequencies for one in each], (heads, max(planes, default=0)))

    @classmethod
    def of(cls, heads: Sequence[RotaryHead], dim: int, c: float = 0.0) -> Self:
        """Put heads over ``dim`` dimensions together, planes of zeros where one has fewer.

        Their own constants are left out.

        Examples
        --------
        >>> RotaryHeads.of([], 3).H
        0
        """
        planes, H = max((len(head.rotary) for head in heads), default=0), len(heads)
        factors, biases = (H, 2 * planes, dim), (H, 2 * planes)
        shapes = {"K": factors, "Q": factors, "k_bias": biases, "q_bias": biases}
        stacks = {name: np.zeros(shape) for name, shape in shapes.items()}
        stacks |= {"frequencies": np.zeros((H, planes)), "v": np.zeros((H, dim))}
        for h, head in enumerate(heads):
            for name, array in head.arrays().items():
                if name in stacks:
                    stacks[name][h][tuple(map(slice, array.shape))] = array
        return cls.from_arrays({**stacks, "c": c})

    frequencies = Parameter(np.asarray, "Frequencies of the planes of every head, (H, r/2).")

    @property
    def every_scores(self) -> tuple[RotaryScores, ...]:
        """How heads score tokens."""
        return tuple(head.scores for head in self.heads)

    def _scored(self, X: Array) -> Array:
        each = [head._scored(X) for head in self.heads]
        return np.stack(each, axis=1) if each else np.zeros((len(X), 0, X.shape[1]))

    def _answers(self, X: Array) -> Array:
        answers = np.full(len(X), self.c)
        for head in self.heads:
            answers += head(X)
        return answers


class SingleHead(ValuedAttention[RotaryHead]):
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

    _axes = axes(**BILINEAR, v="d≥1", c="= 0")
    _tensors = tensors_of(_axes)
    _noun = "head"
    _turned = RotaryHead


class MultiHead(SeveralHeads[SingleHead], ValuedAttention[RotaryHeads]):
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

    _axes, _one, _turned = of_several(SingleHead._axes), SingleHead, RotaryHeads
    _tensors = tensors_of(_axes)

    def _entries(self, tokens: int) -> int:
        return int(self.v.size)

    def _answers(self, X: Array) -> Array:
        weights, total = exponentials(self._scored(X))  # (B, H, N) and (B, H)
        values = self.v @ X.transpose(0, 2, 1)
        values *= weights
        return np.asarray((values.sum(axis=2) / total).sum(axis=1) + self.c)
