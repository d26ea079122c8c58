"""A whole attention sub-layer whose scores turn with distance: rotary positions, grouped heads.

Llama, Qwen, Mistral and SmolLM have H query heads and G ≤ H key and value heads, which groups of
query heads share. The arrays here are stacked as theirs: keys and values once per group.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.arrays import Length, Parameter, axes, frozen
from unsoftmax.models.attention import RotaryScores, least
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.layer_norm import NORM_TENSORS, LayerNorm, SubLayer
from unsoftmax.models.model import HeadsModel, TurnedProjections
from unsoftmax.models.products import Product
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_heads import RotaryHeads
from unsoftmax.probes import Array, Indices


class GroupedLayer(SubLayer):
    """A sub-layer of heads whose scores turn with distance, in groups that share keys and values.

    What class it is says which arrays its map has.
    """

    _noun, _part = "layer", "heads"

    def _inside(self, given: Mapping[str, Any]) -> dict[str, Array]:
        arrays = super()._inside(given)
        H, G = len(arrays["Q"]), len(arrays["K"])
        in_turn = np.arange(H) // max(1, H // max(1, G))
        groups = arrays.setdefault("groups", frozen("groups", in_turn))
        if not np.array_equal(np.unique(groups), np.arange(G)):
            raise ValueError(
                f"groups must name each of the {G} groups from 0 for {H} heads, which H/G heads "
                f"each do where H is a multiple of G; here they are {groups.tolist()}."
            )
        return arrays

    H = Length("H", "Number of heads.")
    G = Length("G", "Number of groups.")

    @property
    def groups(self) -> Indices:
        """The group of every head (H,)."""
        return self._arrays["groups"].astype(np.intp)

    @cached_property
    def _map(self) -> Attention:
        names = ("O", "V", "K", "Q", "k_bias", "q_bias", "c", "k_scale", "q_scale")
        parts: dict[str, Any] = {name: self._arrays[name] for name in names if name in self._arrays}
        if "qk_eps" in self._arrays:
            parts["qk_eps"] = float(self._arrays["qk_eps"])
        theta = np.tile(self._arrays["frequencies"], (self.G, 1))
        return Attention(**parts, frequencies=theta, groups=self.groups)

    def _entries(self, tokens: int) -> int:
        return self.maps.entries(tokens, False)

    def _sizes(self) -> tuple[str, ...]:
        m = () if self.outputs == self.dim else (f"m={self.outputs}",)
        return f"H={self.H}", f"G={self.G}", f"d={self.dim}", *m, *self._around()


FARTHEST_BOUNDED = 20
"""Bounds on the errors of scores are those of W(Δ) up to this distance: beyond it they grow."""


class RotaryLayer(GroupedLayer, HeadsModel, TurnedProjections):
    """o(X) = Σ_h O_h V_g Σ_i α_hi x_i + c, g the group of head h, plus x_N with a residual.

    α_h = softmax_i((K_g x_i + b_k,g)·R(Δ_i)(Q_h x_N + b_q,h)), Δ_i = N − 1 − i tokens before the
    last one; with a norm behind y = norm(o(X)), with one before y = o(norm(X)). Made by
    ``AttentionLayer.from_factors(O, V, K, Q, c, rotary=…)``.

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
        Whether the last token is added, as it was given; then m = d.
    norm : LayerNorm, optional
        Behind the sum, or before (``LayerNorm(…, before=True)``): then heads see norm(X).

    Raises
    ------
    ValueError
        Shapes do not fit, or an entry is not finite.
    TypeError
        ``rotary`` is no Rotary, or ``norm`` no LayerNorm.

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
        **NORM_TENSORS,
    }
    _axes = axes(
        **{"O": "H m s", "V": "G s d≥1", "K": "G 2p d", "Q": "H 2p d", "c": "m≥1"},
        **{"k_bias": "G 2p = 0", "q_bias": "H 2p = 0", "groups": "H = none"},
        **{"frequencies": "p≥0", "residual": "= 0"},
    )

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
        norm: LayerNorm | None = None,
    ) -> None:
        if not isinstance(rotary, Rotary):
            raise TypeError(f"rotary must be a Rotary; it is {rotary!r}.")
        given = {"O": O, "V": V, "K": K, "Q": Q, "c": c, "k_bias": k_bias, "q_bias": q_bias}
        others = {"groups": groups, "frequencies": rotary.frequencies, "residual": bool(residual)}
        self._set({**given, **others}, norm)

    @cached_property
    def rotary(self) -> Rotary:
        """The frequencies of its planes."""
        return Rotary(self._arrays["frequencies"])

    O = Parameter(np.asarray, "Output projections (H, m, s).")  # noqa: E741 - the projections' own names
    V = Parameter(np.asarray, "Value projections (G, s, d).")
    c = Parameter(np.asarray, "Constant (m,) of every answer, before a norm behind.")

    def scores_of(self, head: int) -> RotaryScores:
        """Return how a head scores tokens."""
        g = self.groups[head]
        keys = {"K": self.K[g], "k_bias": self.k_bias[g]}
        queries = {"Q": self.Q[head], "q_bias": self.q_bias[head]}
        return RotaryScores(self.dim, {**keys, **queries}, self.rotary)

    def values_of(self, head: int) -> Product:
        """Return M_h = O_h V_g, which is never formed."""
        return Product(self.O[head], self.V[self.groups[head]])

    scores = HeadsModel.scored

    def score_forms(self, head: int) -> tuple[Product, ...]:
        """Return what scores (x, 1) with (x_N, 1) at distances 0, 1 and `FARTHEST_BOUNDED`."""
        scores = self.scores_of(head)
        return tuple(scores.form(distance) for distance in (0, 1, FARTHEST_BOUNDED))

    def vectors(self, queries: Array) -> Array:
        """Map query tokens (B, d) to what heads score the tokens before them with, (B, H, d)."""
        return self._map.scored(queries)

    @property
    def biased(self) -> bool:
        """Whether keys or queries have biases."""
        return bool(np.any(self.k_bias) or np.any(self.q_bias))

    def coordinate(self, weights: ArrayLike) -> RotaryHeads:
        """Return one sum of its outputs, with ``weights`` (m,), as several heads.

        A residual is no part of them.

        Raises
        ------
        ValueError
            The layer has a norm.
        """
        if self._norm is not None:
            raise ValueError("A sum of outputs is several heads only where the layer has no norm.")
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

    @property
    def every_scores(self) -> tuple[RotaryScores, ...]:
        """How heads score tokens."""
        return tuple(map(self.scores_of, range(self.H)))

    def parameter_norm(self, name: str) -> float:
        """Return a parameter's norm, of M and of scores the least over heads."""
        if name == "M":
            return least(np.array([self.values_of(h).norm for h in range(self.H)]))
        return super().parameter_norm(name)

    def _scored(self, X: Array) -> Array:
        return self._map.scores(X)[:, :, 0]

    def _sizes(self) -> tuple[str, ...]:
        return *super()._sizes(), "rotary"
