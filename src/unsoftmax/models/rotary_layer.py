"""A whole attention sub-layer whose scores turn with distance: rotary positions, grouped heads.

Llama, Qwen, Mistral and SmolLM have H query heads and G ≤ H key and value heads, which groups of
query heads share. The arrays here are stacked as theirs: keys and values once per group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.arrays import frozen, sequences
from unsoftmax.models.attention import softmax
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Composition
from unsoftmax.models.model import TurnedProjections
from unsoftmax.models.products import Product
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_heads import RotaryHeads
from unsoftmax.models.scores import RotaryScores, least
from unsoftmax.probes import Array, Indices

_AXES = {
    "O": "(H, m, s)",
    "V": "(G, s, d)",
    "K": "(G, r, d)",
    "Q": "(H, r, d)",
    "k_bias": "(G, r)",
    "q_bias": "(H, r)",
    "c": "(m,)",
    "groups": "(H,)",
}


class RotaryLayer(TurnedProjections):
    """o(X) = Σ_h O_h V_g Σ_i α_hi x_i + c, g the group of head h, plus x_N with a residual.

    α_h = softmax_i((K_g x_i + b_k,g)·R(Δ_i)(Q_h x_N + b_q,h)), Δ_i = N − 1 − i tokens before the
    last one. Made by ``AttentionLayer.from_factors(O, V, K, Q, c, rotary=…)``.

    Parameters
    ----------
    O : array_like, shape (H, m, s)
        Output projection, head by head.
    V : array_like, shape (G, s, d)
        Value projections of the G groups.
    K : array_like, shape (G, r, d)
        Key projections of the groups; rows 2k and 2k + 1 are plane k.
    Q : array_like, shape (H, r, d)
        Query projections, the scale 1/√r inside.
    c : array_like, shape (m,)
        What value and output biases add to every answer.
    rotary : Rotary
        Frequencies of the r/2 planes.
    k_bias, q_bias : array_like, shapes (G, r) and (H, r), optional
        b_k and b_q; zeros by default. With positions a key bias is no constant of the softmax.
    groups : array_like of int, shape (H,), optional
        The group of every head; by default H/G heads each, one group after the other.
    residual : bool, optional
        Whether the last token is added; then m = d.

    Raises
    ------
    ValueError
        Shapes do not fit, or an entry is not finite.

    Notes
    -----
    Immutable. Determined by its function up to the order of heads; one complex number per plane
    and group, by which the plane of K is multiplied and that of every Q in the group divided; an
    invertible matrix between V and every O of a group; the order of planes; b_k where a plane does
    not turn. Heads of equal scores are one, whose O V is the sum of theirs. `canonical` shares
    nothing: every head has its own K and V there.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> O, Q = rng.standard_normal((4, 6, 2)), rng.standard_normal((4, 2, 6))
    >>> V, K = rng.standard_normal((2, 2, 2, 6))
    >>> layer = RotaryLayer(O, V, K, Q, np.zeros(6), Rotary.of(10_000, 2), residual=True)
    >>> layer, layer(rng.standard_normal((3, 5, 6))).shape
    (RotaryLayer(H=4, G=2, d=6, residual, rotary), (3, 6))
    """

    _tensors: ClassVar[Mapping[str, str]] = {
        **{f"{name} of group {{}}": f"heads.{name}" for name in ("K", "k_bias", "V")},
        **{f"{name} of head {{}}": f"heads.{name}" for name in ("Q", "q_bias", "O")},
        "frequencies": "heads.frequencies",
        "c": "heads.c",
    }
    _needed = frozenset({"O", "V", "K", "Q", "c", "frequencies"})
    _optional = frozenset({"k_bias", "q_bias", "groups", "residual"})
    _noun = "layer"
    _numbers_at_once = 2**22
    """How many entries of keys and values are made at a time: 32 MiB. Larger: more memory."""

    def __init__(
        self,
        O: ArrayLike,  # noqa: E741 - the projections' own names
        V: ArrayLike,
        K: ArrayLike,
        Q: ArrayLike,
        c: ArrayLike,
        rotary: Rotary,
        *,
        k_bias: ArrayLike | None = None,
        q_bias: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        residual: bool = False,
    ) -> None:
        if not isinstance(rotary, Rotary):
            raise TypeError(f"rotary must be a Rotary; it is {rotary!r}.")
        given = {"O": O, "V": V, "K": K, "Q": Q, "c": c}
        arrays = {name: frozen(name, array) for name, array in given.items()}
        for name, array in arrays.items():
            if array.ndim != _AXES[name].count(",") + (name not in "c"):
                raise ValueError(f"{name} must have shape {_AXES[name]}; it has {array.shape}.")
        H, G = len(arrays["Q"]), len(arrays["K"])
        if groups is None:
            groups = np.arange(H) // max(1, H // max(1, G))
        zeros = (np.zeros((n, 2 * len(rotary))) for n in (G, H))
        further = {"k_bias": k_bias, "q_bias": q_bias}
        for (name, bias), none in zip(further.items(), zeros, strict=True):
            arrays[name] = frozen(name, none if bias is None else bias)
        arrays["groups"] = frozen("groups", groups)
        self._rotary, self._residual = rotary, bool(residual)
        self._arrays = {
            **arrays,
            "frequencies": rotary.frequencies,
            "residual": frozen("residual", self._residual),
        }
        self._refuse_shapes()

    def _refuse_shapes(self) -> None:
        H, G, d, m = self.H, len(self.K), self.Q.shape[2], len(self.c)
        sizes = {"H": H, "G": G, "d": d, "m": m, "s": self.V.shape[1], "r": 2 * len(self.rotary)}
        for name, axes in _AXES.items():
            wanted = tuple(sizes[axis] for axis in axes.strip("(),").split(", "))
            if self._arrays[name].shape != wanted:
                raise ValueError(
                    f"{name} must have shape {axes} = {wanted} beside the other arrays and "
                    f"{len(self.rotary)} frequencies; it has shape {self._arrays[name].shape}."
                )
        known = self._arrays["groups"]
        if not d or not m or not np.array_equal(np.unique(known), np.arange(G)):
            raise ValueError(
                f"groups must name each of the {G} groups from 0 for {H} heads, which H/G heads "
                f"each do where H is a multiple of G; here they are {known.tolist()}."
            )
        if self._residual and m != d:
            raise ValueError(f"With a residual m = d; here m = {m} and d = {d}.")

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Build the layer from what `arrays` returned."""
        others = {name: array for name, array in arrays.items() if name != "frequencies"}
        return cls(**others, rotary=Rotary(arrays["frequencies"]))

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.Q.shape[2])

    @property
    def outputs(self) -> int:
        """How many numbers an answer has, m."""
        return len(self.c)

    @property
    def H(self) -> int:
        """Number of heads."""
        return len(self.Q)

    @property
    def G(self) -> int:
        """Number of groups."""
        return len(self.K)

    @property
    def rotary(self) -> Rotary:
        """The frequencies of its planes."""
        return self._rotary

    @property
    def residual(self) -> bool:
        """Whether the last token is added."""
        return self._residual

    @property
    def O(self) -> Array:  # noqa: E743 - the projections' own names
        """Output projections (H, m, s)."""
        return self._arrays["O"]

    @property
    def V(self) -> Array:
        """Value projections (G, s, d)."""
        return self._arrays["V"]

    @property
    def c(self) -> Array:
        """Constant (m,) of every answer."""
        return self._arrays["c"]

    @property
    def groups(self) -> Indices:
        """The group of every head, (H,)."""
        return self._arrays["groups"].astype(np.intp)

    def scores_of(self, head: int) -> RotaryScores:
        """Return how a head scores tokens."""
        g = self.groups[head]
        keys = {"K": self.K[g], "k_bias": self.k_bias[g]}
        queries = {"Q": self.Q[head], "q_bias": self.q_bias[head]}
        return RotaryScores(self.dim, {**keys, **queries}, self.rotary)

    def values_of(self, head: int) -> Product:
        """Return M_h = O_h V_g, which is never formed."""
        return Product(self.O[head], self.V[self.groups[head]])

    def coordinate(self, weights: ArrayLike) -> RotaryHeads:
        """Return one sum of its outputs, with ``weights`` (m,), as several heads.

        A residual is no part of them.
        """
        row = np.asarray(weights, dtype=np.float64)
        places = self.groups
        return RotaryHeads(
            self.K[places],
            self.Q,
            np.einsum("hs,hsd->hd", np.einsum("m,hms->hs", row, self.O), self.V[places]),
            self.rotary,
            k_bias=self.k_bias[places],
            q_bias=self.q_bias,
            c=float(row @ self.c),
        )

    def parameter_norm(self, name: str) -> float:
        """Return a parameter's norm: of M, W(0) or the biases' part w of scores the least.

        Heads where it is 0 do not count.
        """
        if name in ("M", "W", "w"):
            return least(np.array([self._norm_of(name, h) for h in range(self.H)]))
        return super().parameter_norm(name)

    def _norm_of(self, name: str, head: int) -> float:
        if name == "M":
            return self.values_of(head).norm
        scores = self.scores_of(head)
        return scores.norm if name == "W" else scores.bias_norm

    def attention(self, X: Array) -> Array:
        """Map sequences (B, N, d) to the weights α, (B, H, N)."""
        return softmax(self.scores(X))

    def _composed(self) -> Composition:
        parts: dict[str, Any] = {
            name: self._arrays[name] for name in ("O", "V", "K", "Q", "k_bias", "q_bias", "c")
        }
        theta = np.tile(self.rotary.frequencies, (self.G, 1))
        heads = Attention(**parts, frequencies=theta, groups=self.groups)
        return Composition.of({"heads": heads}, self._residual)

    def __call__(self, X: ArrayLike) -> Array:
        """Map sequences (B, N, d) to answers (B, m)."""
        X = sequences(X, self.dim, self._noun)
        answers = np.tile(self.c, (len(X), 1))
        widest = max(1, self.K.shape[1] + self.V.shape[1], self.dim)
        step = max(1, self._numbers_at_once // (X.shape[1] * widest))
        for start in range(0, len(X), step):
            part = slice(start, start + step)
            answers[part] += self._mixed(X[part])
        return answers + X[:, -1] if self._residual else answers

    def _mixed(self, X: Array) -> Array:
        """Return Σ_h O_h V_g Σ_i α_hi x_i, (B, m)."""
        weights, mixed = softmax(self.scores(X)), np.zeros((len(X), self.outputs))
        for g, V in enumerate(self.V):
            heads = np.flatnonzero(self.groups == g)
            pooled = weights[:, heads] @ (X @ V.T)
            mixed += np.einsum("bhs,hms->bm", pooled, self.O[heads])
        return mixed

    def scores(self, X: Array) -> Array:
        """Map sequences (B, N, d) to all heads' scores, (B, H, N).

        Keys are turned back, once for all heads of a group.
        """
        X = sequences(X, self.dim, self._noun)
        distances = np.arange(X.shape[1])[::-1]
        scores = np.empty((len(X), self.H, X.shape[1]))
        queries = np.einsum("bd,hrd->bhr", X[:, -1], self.Q) + self.q_bias
        for g, (K, k_bias) in enumerate(zip(self.K, self.k_bias, strict=True)):
            heads = np.flatnonzero(self.groups == g)
            keys = self.rotary.turned(X @ K.T + k_bias, -distances)
            scores[:, heads] = queries[:, heads] @ keys.transpose(0, 2, 1)
        return scores

    def _sizes(self) -> tuple[str, ...]:
        m = () if self.outputs == self.dim else (f"m={self.outputs}",)
        residual = ("residual",) if self._residual else ()
        return f"H={self.H}", f"G={self.G}", f"d={self.dim}", *m, *residual, "rotary"
