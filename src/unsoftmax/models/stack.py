"""Sub-layers one after the other: a Transformer block, or several, from tokens to answers.

A part answers at the positions that a later one attends to, the last one at the last position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeAlias

from numpy.typing import ArrayLike

from unsoftmax.models.arrays import Parameter, axes, frozen, numbered, sequences
from unsoftmax.models.attention_layer import AttentionLayer
from unsoftmax.models.composition import Composition, chain
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.models.model import FrozenModel, Tensor
from unsoftmax.models.qk_norm_layer import QkNormLayer
from unsoftmax.models.rotary_layer import RotaryLayer
from unsoftmax.probes import Array

Part: TypeAlias = "AttentionLayer | RotaryLayer | QkNormLayer | FeedForward | LayerNorm | Stack"


class Origin(NamedTuple):
    """What the file says of a stack's tensors that its maps do not."""

    names: Mapping[str, str]
    """What it calls them, by their map and role, such as ``0.heads.Q``."""
    biases: Mapping[str, Mapping[str, Array]]
    """b_v of heads, (G s,), of which answers see c alone, and b_k, which they may not see at all;
    by their map."""

    @classmethod
    def joined(cls, origins: Sequence[Origin]) -> Origin:
        """Return that of stacks inside another one."""
        each = [(f"{k}.", one) for k, one in enumerate(origins)]
        return cls(
            {at + place: name for at, one in each for place, name in one.names.items()},
            {at + place: own for at, one in each for place, own in one.biases.items()},
        )


_DEEPEST = 8
"""How many stacks may be inside each other: a file that would exhaust Python's is refused."""


class Stack(FrozenModel):
    """f_K(… f_2(f_1(X)) …): sub-layers in order, as blocks of BERT, OPT or Llama are.

    Parameters
    ----------
    parts : sequence of AttentionLayer, RotaryLayer, QkNormLayer, FeedForward, LayerNorm or Stack
        The first one is given the tokens; each answers with as many numbers as the next one takes.
        A LayerNorm, or RMSNorm, may be a part by itself, as the last one of a whole model is.
    causal : bool, optional
        Whether a position attends to the tokens up to it alone, as in OPT and Llama, or to all,
        as in BERT. Stacks inside have the same.

    Raises
    ------
    ValueError
        There is no part, a part does not take what the one before it answers, a stack inside
        attends in another way, or stacks are inside each other more than 8 deep.
    TypeError
        A part is none of these.

    Notes
    -----
    Immutable. Arrays, and so files, name a part by its place: ``parts.0.heads.1.K``. `tensors`
    does so behind a tensor's own name: "K of group 1 of part 0". What its function determines is
    not known in general: positions of one part are seen through all later ones.

    Examples
    --------
    A block of two dimensions, with a norm before each sub-layer:

    >>> import numpy as np
    >>> from unsoftmax.models import Rotary
    >>> before = LayerNorm([1.0, 1.0], None, eps=1e-5, before=True, centred=False)
    >>> eye = np.eye(2)[None]
    >>> heads = RotaryLayer(eye, eye, eye, eye, [0, 0], Rotary([1.0]), residual=True, norm=before)
    >>> gated = FeedForward(eye[0], [0, 0], eye[0], [0, 0], True, before, "silu", (eye[0], None))
    >>> block = Stack([heads, gated], causal=True)
    >>> block
    Stack(RotaryLayer, FeedForward, d=2, causal)
    >>> X = np.array([[[1.0, 2.0], [3.0, 0.0]]])
    >>> block(X).round(3), block.all(X).round(3)[0, 1]
    (array([[5.591, 0.655]]), array([5.591, 0.655]))
    """

    origin: Origin | None = None
    """Of one that comes from a checkpoint; files do not keep it."""

    _noun = "stack"
    _inner = ("parts.",)
    _axes = axes(causal="")

    def __init__(self, parts: Sequence[Part], causal: bool = False) -> None:
        self._parts = tuple(parts)
        if not self._parts:
            raise ValueError("A stack needs a part.")
        self._arrays = {}
        for k, part in enumerate(self._parts):
            if not isinstance(part, (*_KINDS, Stack)):
                raise TypeError(
                    "Parts of a stack are AttentionLayer, RotaryLayer, QkNormLayer, FeedForward, "
                    f"LayerNorm and Stack; part {k} is a {type(part).__name__}."
                )
            if isinstance(part, Stack) and part.causal != bool(causal):
                raise ValueError(f"Part {k} has causal={part.causal}: give the whole stack that.")
            given = self._parts[max(0, k - 1)].outputs
            if k and part.dim != given:
                raise ValueError(
                    f"Part {k} takes {part.dim} numbers; the part before it answers with {given}."
                )
            self._arrays |= {f"parts.{k}.{name}": array for name, array in part.arrays().items()}
        _refuse_depth(self._arrays)
        self._arrays["causal"] = frozen("causal", bool(causal))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Build the stack from what `arrays` returned; the names of a part's say what it is."""
        parts, rest = numbered(arrays, "parts")
        _refuse_depth(arrays)
        if rest.keys() != {"causal"}:
            raise ValueError(f"Beside parts a stack has causal; here are {sorted(rest)}.")
        return cls([_part(own) for own in parts], **rest)

    @classmethod
    def has_parameters(cls, names: Iterable[str]) -> bool:
        """Tell whether `from_arrays` takes arrays of these names."""
        return super().has_parameters(known := [*names]) and known != ["causal"]

    causal = Parameter(bool, "Whether a position attends to the tokens up to it alone.")

    @property
    def parts(self) -> tuple[Part, ...]:
        """The sub-layers in order."""
        return self._parts

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return self._parts[0].dim

    @property
    def outputs(self) -> int:
        """How many numbers an answer has, m."""
        return self._parts[-1].outputs

    def parameter_norm(self, name: str) -> float:
        """Return the norm of a part's parameter, such as ``M of part 0``."""
        own, _, k = name.rpartition(" of part ")
        return self._parts[int(k)].parameter_norm(own) if own else super().parameter_norm(name)

    def _composed(self) -> Composition:
        return chain([part.maps for part in self._parts]).attending(self.causal)

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """What the answers depend on, by name: "M of head 3 of part 0"."""
        return {
            f"{name} of part {k}": tensor._replace(path=f"{k}.{tensor.path}")
            for k, part in enumerate(self._parts)
            for name, tensor in part.tensors.items()
        }

    def _entries(self, tokens: int) -> int:
        return self.maps.entries(tokens, False)

    def all(self, X: ArrayLike) -> Array:
        """Map sequences (B, N, d) to answers at all positions, (B, N, m)."""
        return self._everywhere(self.maps, sequences(X, self.dim, self._noun))

    def _sizes(self) -> tuple[str, ...]:
        m = () if self.outputs == self.dim else (f"m={self.outputs}",)
        kinds = (type(part).__name__ for part in self._parts)
        return *kinds, f"d={self.dim}", *m, *(("causal",) if self.causal else ())


_KINDS = (AttentionLayer, RotaryLayer, QkNormLayer, FeedForward, LayerNorm)


def _refuse_depth(names: Iterable[str]) -> None:
    """Refuse stacks that no file could be read back to."""
    if any(name.count("parts.") > _DEEPEST for name in names):
        raise ValueError(f"Stacks are inside each other more than {_DEEPEST} deep.")


def _part(arrays: Mapping[str, Any]) -> Part:
    """Build a part from its arrays: of every kind they have other names."""
    for kind in (Stack, *_KINDS):
        if kind.has_parameters(arrays):
            return kind.from_arrays(arrays)
    raise ValueError(f"No part of a stack has the arrays {', '.join(sorted(arrays))}.")
