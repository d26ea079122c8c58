"""What the model classes share: read-only parameters by name, attention, value vectors.

`FrozenArrays` keeps and pickles parameters, of a model or of a part of one; `FrozenModel` saves
them and answers. `AttentionModel` adds the scores of tokens, `ValuedAttention` value vectors and
a constant: one head, or several.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models import files
from unsoftmax.models.arrays import frozen, sequences
from unsoftmax.models.attention import softmax
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Composition
from unsoftmax.models.linearised import (
    Changes,
    Direct,
    Gradient,
    Gradients,
    Linearised,
    OnDemand,
    Pullback,
    Transposed,
)
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.scores import BilinearScores
from unsoftmax.probes import Array

T = TypeVar("T")


class Parameter(property, Generic[T]):
    """A parameter of a model, read by its name: an array, or one number or flag."""

    def __init__(self, kind: Callable[[Array], T], doc: str) -> None:
        super().__init__(lambda model: kind(model._arrays[self.name]), doc=doc)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    if TYPE_CHECKING:

        def __get__(self, model: Any, owner: type | None = None) -> T: ...  # type: ignore[override]


class FrozenArrays(ABC):
    """Named arrays that nobody can change: the parameters of a model, or of a part of one."""

    _needed: ClassVar[frozenset[str]]
    _optional: ClassVar[frozenset[str]]
    """Names of the arrays that `from_arrays` needs, and of those that may be left out."""
    _arrays: dict[str, Array]

    def arrays(self) -> dict[str, Array]:
        """Return the parameters by name, as `from_arrays` takes them."""
        return dict(self._arrays)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Build it from what `arrays` returned."""
        return cls(**arrays)

    @classmethod
    def has_parameters(cls, names: Iterable[str]) -> bool:
        """Tell whether `from_arrays` takes arrays of these names."""
        return cls._needed <= {*names} <= cls._needed | cls._optional

    def parameter_norm(self, name: str) -> float:
        """Return the norm of a parameter, 0 for what is none (a bound on the function)."""
        return float(np.linalg.norm(self._arrays[name])) if name in self._arrays else 0.0

    @abstractmethod
    def _sizes(self) -> tuple[str, ...]:
        """Return the sizes that `repr` shows, such as "d=8"."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._sizes())})"

    def __getstate__(self) -> dict[str, Any]:
        return {"arrays": self._arrays}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = type(self).from_arrays(state["arrays"]).__dict__


class Tensor(NamedTuple):
    """An array of a model, or one head's part of one, by the name that people know it by."""

    path: str
    """The array of the model's maps, such as ``heads.W``."""
    place: int | None
    """Which head or group of it; None: all of it."""
    norm: float
    """2-norm of its entries."""
    shape: tuple[int, ...]

    @property
    def entries(self) -> int:
        """How many numbers it has."""
        return int(np.prod(self.shape))


class FrozenModel(FrozenArrays):
    """A function of batches, determined by named arrays that nobody can change."""

    _noun: ClassVar[str] = "model"
    _numbers_at_once: ClassVar[int] = 2**22
    """How many numbers of one kind are made at a time: 32 MiB.

    Larger: more memory; smaller: more calls into NumPy, and products that read all parameters for
    few sequences.
    """
    _tensors: ClassVar[Mapping[str, str]] = {}
    """Arrays of the model's maps by the names of its tensors; ``{}`` stands for a head or group,
    and ``.T`` behind a path for the transpose."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Dimension d of a token."""

    def __call__(self, X: Array) -> Array:
        """Map sequences (B, N, d) to numbers (B,), or to vectors (B, m)."""
        X = sequences(X, self.dim, self._noun)
        answers = np.empty((len(X), *(() if self.outputs is None else (self.outputs,))))
        for part in self._slices(X, self._entries(X.shape[1])):
            answers[part] = self._answers(X[part])
        return answers

    def _answers(self, X: Array) -> Array:
        """Map sequences (B, N, d) to answers, all at a time."""
        answers = self.maps.answers(X)
        return answers[:, 0, 0] if self.outputs is None else answers[:, 0]

    def _entries(self, tokens: int) -> int:
        """Return how many numbers a sequence's answer needs; 0: all are answered at a time."""
        return 0

    def _everywhere(self, maps: Composition, X: Array) -> Array:
        """Map sequences (B, N, d) to what maps answer at all positions, (B, N, m)."""
        B, N, _ = X.shape
        answers = np.empty((B, N, self.outputs or 1))
        for part in self._slices(X, maps.entries(N, True)):
            answers[part] = maps.answers(X[part], True)
        return answers

    def _slices(self, X: Array, entries: int) -> Iterator[slice]:
        """Yield what parts of a batch may be answered at a time."""
        step = max(1, self._numbers_at_once // max(1, entries))
        return (slice(start, start + step) for start in range(0, len(X), step))

    @property
    def outputs(self) -> int | None:
        """How many numbers an answer has; None where it is one that is no vector."""
        return None

    def _composed(self) -> Composition:
        """Return the maps that the model is made of."""
        raise NotImplementedError(f"Of what maps a {type(self).__name__} is made is not known.")

    @cached_property
    def maps(self) -> Composition:
        """The maps that the model is made of: what it answers, and its derivatives."""
        return self._composed()

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """What the answers depend on, by name: of several heads "W of head 3"."""
        found = {}
        for name, path in self._tensors.items():
            shape, norms, each = self.maps.size(path.removesuffix(".T"))
            if "{}" in name or (each and len(norms) == 1):
                for h, norm in enumerate(norms):
                    found[name.format(h)] = Tensor(path, h, norm, shape[1:])
            elif norms:  # what heads or groups share counts once
                shape = shape[1:] if each else shape[::-1] if path.endswith(".T") else shape
                found[name] = Tensor(path, None, norms[0], shape)
        return found

    def linearise(self, X: ArrayLike) -> Linearised:
        """Return the model at sequences: its answers, their derivatives, and what may round.

        Parameters
        ----------
        X : array_like, shape (B, N, d)
            Sequences; points (B, d) for models of single tokens.

        Returns
        -------
        Linearised
            ``value`` (B,) or (B, m) and ``rounding``, alike; ``jvp(changes, dX)`` of changes of
            `tensors` by name, and of X; ``vjp(y)`` of covectors y (C, B) or (C, B, m).

        Examples
        --------
        >>> from unsoftmax.models import SingleHead
        >>> at = SingleHead(W=[[1.0]], v=[2.0]).linearise([[[1.0], [0.0]]])
        >>> at.value, at.jvp({"v": np.array([1.0])}, None)  # half of the second token is 0
        (array([1.]), array([0.5]))
        >>> float(at.vjp(np.ones((1, 1))).by["v"][0].norms[0, 0])
        0.5
        """
        X = np.asarray(X, dtype=np.float64)
        X = X[:, None] if X.ndim == 2 else X
        at, scalar = self.maps.linearise(X), self.outputs is None

        def shown(answers: Array) -> Array:
            return answers[:, 0, 0] if scalar else answers[:, 0]

        def jvp(changes: Changes, dX: Array | None = None) -> Array:
            moved: dict[str, Array] = {}
            for name, change in changes.items():
                tensor = self.tensors[name]
                path = tensor.path.removesuffix(".T")
                own, shape = np.reshape(change, tensor.shape), self.maps.size(path).shape
                if tensor.place is None:
                    own = own.T if path != tensor.path else own
                    moved[path] = np.broadcast_to(own, shape)
                else:
                    moved.setdefault(path, np.zeros(shape))[tensor.place] = own.reshape(shape[1:])
            return shown(at.jvp(moved, None if dX is None else np.reshape(dX, X.shape)))

        def vjp(y: Array) -> Pullback:
            back = at.vjp(y[:, :, None, None] if scalar else y[:, :, None])

            def by(tensor: Tensor) -> Callable[[], Gradients]:
                path = tensor.path.removesuffix(".T")

                def made() -> Gradients:
                    one = _one(back.by[path], tensor.place)
                    return (one if path == tensor.path else Transposed(one),)

                return made

            return Pullback(OnDemand({n: by(t) for n, t in self.tensors.items()}), back.tokens)

        return Linearised(shown(at.value), shown(at.rounding), jvp, vjp)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a safetensors file that `unsoftmax.load` reads."""
        files.write(path, type(self).__name__, self._arrays)


ROTARY_PARTS = ("K", "Q", "k_bias", "q_bias", "frequencies")
"""What scores with rotary positions are made of."""


class TurnedProjections(FrozenModel):
    """A model whose scores turn with distance: projections and biases of one head, or of several.

    Several heads have one of each, and layers one of keys for each group.
    """

    K = Parameter(np.asarray, "Key projection (r, d); of heads (H, r, d), of groups (G, r, d).")
    Q = Parameter(np.asarray, "Query projection (r, d); of several heads (H, r, d).")
    k_bias = Parameter(np.asarray, "Key bias b_k, (r,); of heads (H, r), of groups (G, r).")
    q_bias = Parameter(np.asarray, "Query bias b_q, (r,); of several heads (H, r).")

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.Q.shape[-1])


class ScoredArrays(FrozenArrays):
    """What scores tokens with x_i·(W x_N + w), x_N the last: a head, or a model of some."""

    _scores: BilinearScores
    w = Parameter(np.asarray, "Score vector (d,) of the query bias, of H heads (H, d).")

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.w.shape[-1])

    @property
    def W(self) -> Array:
        """Score matrix (d, d), of H heads (H, d, d); of factors, computed on demand."""
        return self._scores.W

    def parameter_norm(self, name: str) -> float:
        """Return a parameter's norm (Frobenius for W), without forming W; 0 for what is none."""
        return self._scores.norm if name == "W" else super().parameter_norm(name)


class AttentionModel(ScoredArrays, FrozenModel):
    """A model that weighs tokens with α = softmax_i(x_i·(W x_N + w)), x_N the last."""

    @classmethod
    @abstractmethod
    def from_factors(cls, K: ArrayLike, Q: ArrayLike, *args: Any, **parameters: Any) -> Any:
        """Build the model with W = K.T @ Q; answering never forms W."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Build the model from what `arrays` returned."""
        model: Self = cls.from_factors(**arrays) if "K" in arrays else cls(**arrays)
        return model

    @classmethod
    def has_parameters(cls, names: Iterable[str]) -> bool:
        """Tell whether `from_arrays` takes arrays of these names."""
        known, factors = {*names}, {"K", "Q"}
        in_factors = factors <= known and "W" not in known
        return super().has_parameters(known - factors | {"W"} if in_factors else known)

    def _attention(self) -> Attention:
        """Return what weighs tokens, of one head as of several."""
        own = self._scores.arrays
        one = own["w"].ndim == 1
        whole = {name: x[None] if one else x for name, x in own.items()}
        return Attention(whole["Q" if "Q" in whole else "W"], whole.get("K"), whole["w"])

    def scores_of(self, x: Array) -> Array:
        """Map query tokens (B, d) to the vectors W x + w, (B, d) or (B, H, d).

        The tokens of a sequence are scored with the vector of its query token.
        """
        return self._scores.vectors(x)

    def attention(self, X: Array) -> Array:
        """Map sequences (B, N, d) to the weights α, (B, N) or of H heads (B, H, N)."""
        return softmax(self._scores.of(sequences(X, self.dim, self._noun)))

    def _sizes(self) -> tuple[str, ...]:
        K = self._scores.arrays.get("K")
        return (f"d={self.dim}", *(() if K is None else (f"rank ≤ {K.shape[-2]}",)))


Turned = TypeVar("Turned", bound=TurnedProjections)
"""What heads are whose scores turn with distance."""


class ValuedAttention(AttentionModel, Generic[Turned]):
    """One head or several that answer with weighted means of the values x_i·v, plus c."""

    _leading: ClassVar[tuple[str, ...]] = ()
    """Symbols of the axes that all arrays but c begin with: H for several heads."""
    _turned: ClassVar[Callable[..., Any]]
    """Its class where scores turn with distance."""
    _needed = frozenset({"W", "v"})
    _optional = frozenset({"w", "c"})

    def __init__(
        self, W: ArrayLike, v: ArrayLike, w: ArrayLike | None = None, c: float = 0.0
    ) -> None:
        self._set({"W": W}, v, w, c)

    @overload
    @classmethod
    def from_factors(
        cls, K: ArrayLike, Q: ArrayLike, v: ArrayLike, w: ArrayLike | None = None, c: float = 0.0
    ) -> Self: ...

    @overload
    @classmethod
    def from_factors(
        cls,
        K: ArrayLike,
        Q: ArrayLike,
        v: ArrayLike,
        w: None = None,
        c: float = 0.0,
        *,
        rotary: Rotary | Sequence[Rotary],
        k_bias: ArrayLike | None = None,
        q_bias: ArrayLike | None = None,
    ) -> Turned: ...

    @classmethod
    def from_factors(
        cls,
        K: ArrayLike,
        Q: ArrayLike,
        v: ArrayLike,
        w: ArrayLike | None = None,
        c: float = 0.0,
        *,
        rotary: Rotary | Sequence[Rotary] | None = None,
        k_bias: ArrayLike | None = None,
        q_bias: ArrayLike | None = None,
    ) -> Any:
        """Build the model with W = K.T @ Q, K and Q of shape (r, d); answering never forms W.

        Of several heads every W_h is K_h.T @ Q_h, K and Q of shape (H, r, d). With ``rotary``
        scores turn with distance, and the model is a `RotaryHead`, or `RotaryHeads`; its biases
        are ``k_bias`` and ``q_bias``, (r,) or (H, r), not w.
        """
        if rotary is not None:
            if w is not None:
                raise ValueError(
                    "w is no parameter beside rotary: give q_bias, (r,) for each head."
                )
            return cls._turned(K, Q, v, rotary, k_bias=k_bias, q_bias=q_bias, c=c)
        if k_bias is not None or q_bias is not None:
            raise ValueError(
                "k_bias and q_bias are given beside rotary; without positions a key bias changes "
                "nothing and a query bias is w = K.T @ q_bias."
            )
        model = cls.__new__(cls)
        model._set({"K": K, "Q": Q}, v, w, c)
        return model

    def _set(
        self, matrix: Mapping[str, ArrayLike], v: ArrayLike, w: ArrayLike | None, c: float
    ) -> None:
        v, c_ = values_and_constant(v, c, (*self._leading, "d"))
        beside = f"beside v of shape {v.shape}"
        self._scores = BilinearScores(v.shape[-1], matrix, w, beside, v.shape[:-1])
        self._arrays = {**self._scores.arrays, "v": v, "c": c_}

    _tensors: ClassVar[Mapping[str, str]] = {
        "W": "heads.W",
        "w": "heads.w",
        "v": "heads.M",
        "c": "heads.c",
    }

    def _composed(self) -> Composition:
        O = np.atleast_2d(self.v)[:, None]  # noqa: E741
        return Composition.of({"heads": replace(self._attention(), O=O, c=np.array([self.c]))})

    v = Parameter(np.asarray, "Value vector (d,), of H heads (H, d).")
    c = Parameter(float, "Constant added to every answer.")


def values_and_constant(v: ArrayLike, c: float, axes: tuple[str, ...]) -> tuple[Array, Array]:
    """Return v, of these axes, and c, if they are what they must be."""
    v, c_ = frozen("v", v), frozen("c", c)
    if v.ndim != len(axes) or not v.shape[-1]:
        shape = str(axes).replace("'", "")
        raise ValueError(f"v must have shape {shape} with d ≥ 1; it has shape {v.shape}.")
    if c_.shape:
        raise ValueError(
            f"c must have shape () beside v of shape {v.shape}; it has shape {c_.shape}."
        )
    return v, c_


def _one(gradients: Gradients, place: int | None) -> Gradient:
    """Return the gradient of one head or group, or of what all of them share."""
    if place is not None:
        return gradients[place]
    if len(gradients) == 1:
        return gradients[0]
    return Direct(np.sum([one.whole for one in gradients], axis=0))
