"""Several attention heads whose scores turn with distance, added up to a scalar output."""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np

from unsoftmax.models.arrays import Parameter, of_several
from unsoftmax.models.attention import RotaryScores
from unsoftmax.models.model import SeveralHeads, ValuedRotary, tensors_of
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.probes import Array


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
