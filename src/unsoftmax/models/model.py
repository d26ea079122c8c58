"""What the model classes share: answers, derivatives, files, attention, value vectors.

`FrozenModel` answers and saves its arrays. `HeadsModel` adds the weights of tokens, in one head or
in several, and `ValuedHeads` value vectors and a constant.
"""

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models import files
from unsoftmax.models import linearised as lin
from unsoftmax.models.arrays import FrozenArrays, Length, Parameter, sequences
from unsoftmax.models.attention import BilinearScores, RotaryScores, exponentials, least, softmax
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Composition
from unsoftmax.models.rotary import Rotary
from unsoftmax.probes import Array


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
    def array(self) -> str:
        """The array itself, which may be transposed: then the path ends with ``.T``."""
        return self.path.removesuffix(".T")

    @property
    def transposed(self) -> bool:
        """Whether people know its transpose."""
        return self.path.endswith(".T")

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

    def __call__(self, X: Array) -> Array:
        """Map sequences (B, N, d) to numbers (B,), or to vectors (B, m)."""
        X = sequences(X, self.dim, self._noun)
        shape = () if self.outputs is None else (self.outputs,)
        return self._sliced(self._answers, X, self._entries(X.shape[1]), shape)

    def _answers(self, X: Array) -> Array:
        """Map sequences (B, N, d) to answers, all at a time."""
        answers = self.maps.answers(X)
        return answers[:, 0, 0] if self.outputs is None else answers[:, 0]

    def _entries(self, tokens: int) -> int:
        """Return how many numbers a sequence's answer needs; 0: all are answered at a time."""
        return 0

    def _everywhere(self, maps: Composition, X: Array) -> Array:
        """Map sequences (B, N, d) to what maps answer at all positions, (B, N, m)."""
        N, answers = X.shape[1], partial(maps.answers, every=True)
        return self._sliced(answers, X, maps.entries(N, True), (N, self.outputs or 1))

    def _sliced(
        self, of: Callable[[Array], Array], X: Array, entries: int, shape: tuple[int, ...]
    ) -> Array:
        """Answer as many sequences at a time as there may be numbers, each with that shape."""
        answers, step = np.empty((len(X), *shape)), max(1, self._numbers_at_once // max(1, entries))
        for start in range(0, len(X), step):
            answers[start : start + step] = of(X[start : start + step])
        return answers

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

    def linearise(self, X: ArrayLike) -> lin.Linearised:
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

        def jvp(changes: lin.Changes, dX: Array | None = None) -> Array:
            moved: dict[str, Array] = {}
            for name, change in changes.items():
                tensor = self.tensors[name]
                array, place, shape = tensor.array, tensor.place, self.maps.size(tensor.array).shape
                own = np.reshape(change, tensor.shape)
                if place is None:
                    moved[array] = np.broadcast_to(own.T if tensor.transposed else own, shape)
                else:
                    moved.setdefault(array, np.zeros(shape))[place] = own.reshape(shape[1:])
            return shown(at.jvp(moved, None if dX is None else np.reshape(dX, X.shape)))

        def vjp(y: Array) -> lin.Pullback:
            back = at.vjp(y[:, :, None, None] if scalar else y[:, :, None])

            by = {name: partial(_gradients, back, own) for name, own in self.tensors.items()}
            return lin.Pullback(lin.OnDemand(by), back.tokens)

        return lin.Linearised(shown(at.value), lambda: shown(at.rounding), jvp, vjp)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a safetensors file that `unsoftmax.load` reads."""
        files.write(path, type(self).__name__, self._arrays)


class TurnedProjections(FrozenModel):
    """A model whose scores turn with distance: projections and biases of one head, or of several.

    Several heads have one of each, and layers one of keys for each group.
    """

    K = Parameter(np.asarray, "Key projection (r, d); of heads (H, r, d), of groups (G, r, d).")
    Q = Parameter(np.asarray, "Query projection (r, d); of several heads (H, r, d).")
    k_bias = Parameter(np.asarray, "Key bias b_k, (r,); of heads (H, r), of groups (G, r).")
    q_bias = Parameter(np.asarray, "Query bias b_q, (r,); of several heads (H, r).")

    @property
    @abstractmethod
    def every_scores(self) -> tuple[RotaryScores, ...]:
        """How heads score tokens."""

    def parameter_norm(self, name: str) -> float:
        """Return a parameter's norm; of heads the least that is not 0.

        "W" is W(0), and "w" the biases' part of the scores.
        """
        if name not in ("W", "w"):
            return super().parameter_norm(name)
        every = self.every_scores
        return least(np.array([one.norm if name == "W" else one.bias_norm for one in every]))


class HeadsModel(FrozenModel):
    """A model that weighs tokens with the softmax of their scores, in one head or in several."""

    @abstractmethod
    def _scored(self, X: Array) -> Array:
        """Map tokens (B, N, d), as heads see them, to scores, (B, N) or of H heads (B, H, N)."""

    def _seen(self, X: Array) -> Array:
        """Return tokens as heads see them."""
        return X

    def scored(self, X: Array) -> Array:
        """Map sequences (B, N, d) to the scores of tokens, (B, N) or of H heads (B, H, N)."""
        return self._scored(self._seen(sequences(X, self.dim, self._noun)))

    def attention(self, X: Array) -> Array:
        """Map sequences (B, N, d) to the weights α, (B, N) or of H heads (B, H, N)."""
        return softmax(self.scored(X))

    def score_sizes(self, X: Array) -> Array:
        """Return the sizes of what scores are added up of, (B, H, N): they round relative to it."""
        heads = self.maps.leaves["heads."]
        assert isinstance(heads, Attention)
        return heads.score_sizes(self._seen(X))

    def _heads_with(self, **outer: Any) -> Attention:
        """Return what weighs tokens, of one head as of several, with what follows."""
        names = ("K", "w", "k_bias", "q_bias", "frequencies")
        Q = self._arrays["Q" if "Q" in self._arrays else "W"]
        scores: dict[str, Any] = {n: self._arrays[n] for n in names if n in self._arrays}
        if Q.ndim == 2:
            Q, scores = Q[None], {name: x[None] for name, x in scores.items()}
        return Attention(Q, **scores, **outer)

    def parameter_norm(self, name: str) -> float:
        """Return a parameter's norm (of W Frobenius), of what every head has the least.

        Heads where it is 0 do not count. A certificate's bounds are for every head: divided by
        this they bound relative errors. 0 for what is no parameter (a bound on the function).
        """
        if "H" in self._axes.get(name, "") and name in self._arrays:
            return least(np.array([np.linalg.norm(own) for own in self._arrays[name]]))
        return super().parameter_norm(name)

    def _sizes(self) -> tuple[str, ...]:
        K = self._arrays.get("K")
        rank = () if K is None else (f"rank ≤ {K.shape[-2]}",)
        return f"d={self.dim}", *rank, *(("rotary",) if "frequencies" in self._arrays else ())


class ValuedHeads(HeadsModel):
    """One head or several that answer with weighted means of the values x_i·v, plus c."""

    v = Parameter(np.asarray, "Value vector (d,), of H heads (H, d).")
    c = Parameter(float, "Constant added to every answer.")

    def _composed(self) -> Composition:
        O = np.atleast_2d(self.v)[:, None]  # noqa: E741
        return Composition.of({"heads": self._heads_with(O=O, c=np.array([self.c]))})

    def _answers(self, X: Array) -> Array:
        numerators, total = exponentials(self._scored(X))
        answers: Array = np.einsum("bn,bn->b", numerators, X @ self.v) / total + self.c
        return answers


def tensors_of(axes: Mapping[str, str]) -> Mapping[str, str]:
    """Return where the map has the arrays of valued heads: of several each head's by itself."""
    return {
        f"{name} of head {{}}"
        if "H" in axes[name]
        else name: f"heads.{'M' if name == 'v' else name}"
        for name in axes
        if "W" not in axes or name not in "KQ"  # factors count by their product
    }


One = TypeVar("One", bound=ValuedHeads)
"""What each of several heads is by itself."""


class SeveralHeads(ValuedHeads, Generic[One]):
    """Several heads, added up."""

    _one: ClassVar[type[Any]]
    """The class of one."""

    H = Length("H", "Number of heads.")

    @property
    def heads(self) -> tuple[One, ...]:
        """The heads one by one, without c."""
        return self._heads

    @cached_property
    def _heads(self) -> tuple[One, ...]:
        arrays = {name: array for name, array in self._arrays.items() if name != "c"}
        each = ({name: array[h] for name, array in arrays.items()} for h in range(self.H))
        return tuple(self._one._of(own) for own in each)

    def _sizes(self) -> tuple[str, ...]:
        return f"H={self.H}", *super()._sizes()


class ValuedRotary(ValuedHeads, TurnedProjections):
    """One head or several whose scores turn with distance, and that answer with means of values."""

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
        given = {"K": K, "Q": Q, "k_bias": k_bias, "q_bias": q_bias, "v": v, "c": c}
        self._set({**given, "frequencies": self._frequencies(rotary, len(np.asarray(v)))})

    @staticmethod
    @abstractmethod
    def _frequencies(rotary: Any, heads: int) -> Array:
        """Return the frequencies of the planes, of several heads each one's."""


Turned = TypeVar("Turned", bound=ValuedRotary)
"""What heads are whose scores turn with distance."""


class ValuedAttention(BilinearScores, ValuedHeads, Generic[Turned]):
    """One head or several without positions that answer with weighted means of values."""

    _turned: ClassVar[Callable[..., Any]]
    """Its class where scores turn with distance."""

    def __init__(
        self, W: ArrayLike, v: ArrayLike, w: ArrayLike | None = None, c: float = 0.0
    ) -> None:
        self._set({"W": W, "w": w, "v": v, "c": c})

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
        if rotary is None and k_bias is None and q_bias is None:
            return cls._of({"K": K, "Q": Q, "w": w, "v": v, "c": c})
        if rotary is None:
            raise ValueError(
                "k_bias and q_bias are given beside rotary; without positions a key bias changes "
                "nothing and a query bias is w = K.T @ q_bias."
            )
        if w is not None:
            raise ValueError("w is no parameter beside rotary: give q_bias, (r,) for each head.")
        return cls._turned(K, Q, v, rotary, k_bias=k_bias, q_bias=q_bias, c=c)


def _gradients(back: lin.Pullback, tensor: Tensor) -> lin.Gradients:
    """Return the gradient of one head or group, or of what all of them share."""
    each = back.by[tensor.array]
    if tensor.place is not None:
        return (each[tensor.place],)
    one = each[0] if len(each) == 1 else lin.Direct(np.sum([own.whole for own in each], axis=0))
    return (lin.Transposed(one) if tensor.transposed else one,)
