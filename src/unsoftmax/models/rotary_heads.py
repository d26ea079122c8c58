"""Several attention heads whose scores turn with distance, added up to a scalar output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.arrays import frozen, refuse_shapes, sequences
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Composition
from unsoftmax.models.model import (
    ROTARY_PARTS,
    Parameter,
    TurnedProjections,
    values_and_constant,
)
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.models.scores import least
from unsoftmax.probes import Array


class RotaryHeads(TurnedProjections):
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

    _tensors: ClassVar[Mapping[str, str]] = {
        **{f"{name} of head {{}}": f"heads.{name}" for name in ROTARY_PARTS},
        "v of head {}": "heads.M",
        "c": "heads.c",
    }
    _needed = frozenset({"K", "Q", "v", "frequencies"})
    _optional = frozenset({"k_bias", "q_bias", "c"})

    def __init__(
        self,
        K: ArrayLike,
        Q: ArrayLike,
        v: ArrayLike,
        rotary: Rotary | Sequence[Rotary],
        *,
        k_bias: ArrayLike | None = None,
        q_bias: ArrayLike | None = None,
        c: float = 0.0,
    ) -> None:
        v, c_ = values_and_constant(v, c, ("H", "d"))
        each, planes = _one_for_each(rotary, len(v))
        (H, d), r = v.shape, 2 * planes
        shapes: dict[str, tuple[int, ...]] = {"K": (H, r, d), "Q": (H, r, d)}
        shapes |= {"k_bias": (H, r), "q_bias": (H, r)}
        given = {"K": K, "Q": Q, "k_bias": k_bias, "q_bias": q_bias}
        arrays = {
            name: frozen(name, np.zeros(shapes[name]) if array is None else array)
            for name, array in given.items()
        }
        refuse_shapes(arrays, shapes, f"beside {planes} frequencies and v of shape {v.shape}")
        listed = np.reshape([list(one) for one in each], (len(v), planes))
        self._arrays = {**arrays, "frequencies": frozen("frequencies", listed), "v": v, "c": c_}
        self._heads = tuple(
            RotaryHead(v=v[h], rotary=one, **{name: array[h] for name, array in arrays.items()})
            for h, one in enumerate(each)
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Build the heads from what `arrays` returned."""
        others = {name: array for name, array in arrays.items() if name != "frequencies"}
        frequencies = np.asarray(arrays["frequencies"], dtype=np.float64)
        if frequencies.ndim != 2:
            raise ValueError(
                f"frequencies must have shape (H, r/2); they have shape {frequencies.shape}."
            )
        return cls(**others, rotary=[Rotary(one) for one in frequencies])

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

    @property
    def H(self) -> int:
        """Number of heads."""
        return len(self.v)

    @property
    def heads(self) -> tuple[RotaryHead, ...]:
        """The heads one by one, without c."""
        return self._heads

    frequencies = Parameter(np.asarray, "Frequencies of the planes of every head, (H, r/2).")
    v = Parameter(np.asarray, "Value vectors (H, d).")
    c = Parameter(float, "Constant added to every answer.")

    def parameter_norm(self, name: str) -> float:
        """Return the least norm over heads; "W" is W(0), "w" the biases' part of the scores."""
        if name in ("W", "w", "v"):
            return least(np.array([head.parameter_norm(name) for head in self.heads]))
        return super().parameter_norm(name)

    def attention(self, X: Array) -> Array:
        """Map sequences (B, N, d) to the weights α, (B, H, N)."""
        X = sequences(X, self.dim, self._noun)
        each = [head.attention(X) for head in self.heads]
        return np.stack(each, axis=1) if each else np.zeros((len(X), 0, X.shape[1]))

    def _composed(self) -> Composition:
        parts: dict[str, Any] = {name: self._arrays[name] for name in ROTARY_PARTS}
        return Composition.of(
            {"heads": Attention(O=self.v[:, None], c=np.array([self.c]), **parts)}
        )

    def _answers(self, X: Array) -> Array:
        answers = np.full(len(X), self.c)
        for head in self.heads:
            answers += head(X)
        return answers

    def _sizes(self) -> tuple[str, ...]:
        return f"H={self.H}", f"d={self.dim}", f"rank ≤ {self.K.shape[1]}", "rotary"


def _one_for_each(rotary: Rotary | Sequence[Rotary], heads: int) -> tuple[list[Rotary], int]:
    """Return a Rotary for each head, and of how many planes they are."""
    several = isinstance(rotary, Iterable) and not isinstance(rotary, Rotary)
    given: list[Any] = list(rotary) if several else [rotary]
    for one in given:
        if not isinstance(one, Rotary):
            raise TypeError(f"rotary must be a Rotary, or one for each head; it has {one!r}.")
    planes = {len(one) for one in given}
    each = given * heads if isinstance(rotary, Rotary) else given
    if len(each) != heads or len(planes) > 1:
        raise ValueError(
            f"rotary must be one Rotary, or {heads}, one for each head, with as many frequencies "
            f"each; there are {len(given)}, with {sorted(planes)}."
        )
    return each, max(planes, default=0)
