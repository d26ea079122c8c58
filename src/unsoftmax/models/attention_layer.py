"""A whole attention sub-layer: several heads with vector answers, a residual, and a LayerNorm.

A head is known by its function as M_h = W_o W_v and [W_h | w_h] = Kᵀ[Q | b_q]/√d_h alone, and all
value and output biases as one constant, since the weights sum to 1. So these are the parameters
here; M_h and W_h may be products of factors, which answering never multiplies.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models import attention
from unsoftmax.models.arrays import Length, Parameter, axes, frozen, numbered, sequences
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.layer_norm import NORM_TENSORS, LayerNorm, SubLayer
from unsoftmax.models.model import HeadsModel
from unsoftmax.models.products import Product
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_layer import RotaryLayer
from unsoftmax.probes import Array


class LayerHead(attention.BilinearScores):
    """One head of a layer: M Σ_i α_i x_i with α = softmax_i(x_i·(W x_N + w)), x_N the last token.

    Parameters
    ----------
    M : array_like, shape (m, d)
        What the pooled token is mapped by: output times value projection.
    W : array_like, shape (d, d)
        Score matrix; K.T @ Q of a key and a query projection, scale included.
    w : array_like, shape (d,), optional
        What the query bias adds to the scores, K.T @ b_q; zeros by default.

    Raises
    ------
    ValueError
        Shapes do not fit, or an entry is not finite.

    Examples
    --------
    >>> head = LayerHead(M=[[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], W=[[0.0, 0.0], [0.0, 0.0]])
    >>> head
    LayerHead(m=3, d=2)
    >>> LayerHead.from_factors(O=[[1.0], [2.0]], V=[[1.0, 0.0]], K=[[0, 1]], Q=[[1, 0]]).M
    array([[1., 0.],
           [2., 0.]])
    """

    _axes = axes(M="m≥0 d≥0", V="s d≥0", O="m≥0 s", **attention.BILINEAR)

    def __init__(self, M: ArrayLike, W: ArrayLike, w: ArrayLike | None = None) -> None:
        self._set({"M": M, "W": W, "w": w})

    @classmethod
    def from_factors(
        cls,
        O: ArrayLike,  # noqa: E741 - the projections' own names
        V: ArrayLike,
        K: ArrayLike,
        Q: ArrayLike,
        w: ArrayLike | None = None,
    ) -> Self:
        """Build the head with M = O @ V, O (m, r), V (r, d), and W = K.T @ Q, K and Q (s, d).

        Answering never forms M or W. The ranks r and s may differ, and may be 0.
        """
        return cls._of({"O": O, "V": V, "K": K, "Q": Q, "w": w})

    def _set(self, given: Mapping[str, Any]) -> None:
        for name, x in given.items():
            if name in "MOV" and np.ndim(x) != 2:
                raise ValueError(f"{name} must have two axes; it has shape {np.shape(x)}.")
        super()._set(given)
        if not self.outputs or not self.dim:
            raise ValueError("A head needs m ≥ 1 outputs and d ≥ 1 dimensions.")

    outputs = Length("m", "How many numbers it adds to, m.")

    @cached_property
    def M(self) -> Array:
        """What the pooled token is mapped by (m, d); of factors, computed on demand."""
        if "M" in self._arrays:
            return self._arrays["M"]
        M: Array = self._arrays["O"] @ self._arrays["V"]
        M.flags.writeable = False
        return M

    @property
    def values(self) -> Product:
        """M as a product, without forming it."""
        return self._product("M", "O", "V")

    @property
    def scores(self) -> Product:
        """[W | w], (d, d + 1), as a product; w is not in the span of K's rows by itself."""
        W, w = self._product("W", "K", "Q"), self.w[:, None]
        right = np.hstack([W.right, np.zeros((len(W.right), 1))])
        return Product(W.left, right) + Product(w, np.eye(1, self.dim + 1, self.dim))

    vectors = attention.BilinearScores.scores_of

    def mapped(self, pooled: Array) -> Array:
        """Map pooled tokens (B, d) to M p, (B, m)."""
        if "M" in self._arrays:
            return np.asarray(pooled @ self._arrays["M"].T)
        return np.asarray(pooled @ self._arrays["V"].T @ self._arrays["O"].T)

    def parameter_norm(self, name: str) -> float:
        """Return the norm of M, W (Frobenius, without forming them) or w; 0 for what is none."""
        in_factors = name == "M" and "M" not in self._arrays
        return self.values.norm if in_factors else super().parameter_norm(name)

    def _product(self, whole: str, left: str, right: str) -> Product:
        if whole in self._arrays:
            return Product.of(self._arrays[whole])
        first = self._arrays[left]
        return Product(first if left == "O" else first.T, self._arrays[right])

    def _sizes(self) -> tuple[str, ...]:
        ranks = {"M": "V", "W": "K"}
        in_factors = {name: factor for name, factor in ranks.items() if factor in self._arrays}
        known = (f"rank {name} ≤ {len(self._arrays[f])}" for name, f in in_factors.items())
        return f"m={self.outputs}", f"d={self.dim}", *known


class AttentionLayer(SubLayer, HeadsModel):
    """o(X) = Σ_h M_h Σ_i α_hi x_i + c, an attention sub-layer's answer at the last token x_N.

    α_h = softmax_i(x_i·(W_h x_N + w_h)). With a residual connection x_N is added. With a norm
    behind, y = norm(o(X) + x_N); with one before, y = o(norm(X)) + x_N.

    Parameters
    ----------
    heads : sequence of LayerHead
        All of one d and m; their ranks may differ. There may be none.
    c : array_like, shape (m,)
        What value and output biases add to every answer.
    residual : bool, optional
        Whether the last token is added, as it was given; then m = d.
    norm : LayerNorm, optional
        Behind the sum, or before (``LayerNorm(…, before=True)``).
    dim : int, optional
        Dimension d of a token, m by default; needed only where there are no heads.

    Raises
    ------
    ValueError
        Shapes do not fit.
    TypeError
        A head is no LayerHead, or ``norm`` no LayerNorm.

    Notes
    -----
    Immutable. Its function determines [W_h | w_h] and M_h of every head, c, the residual and the
    norm, up to the order of heads, except that

    - heads with equal [W_h | w_h] are one, whose M is the sum of theirs, and that one with M = 0
      is none;
    - of factors only the products count: K against Q, O against V are free up to an invertible
      matrix;
    - behind a LayerNorm the part of M_h and c that is the same in all outputs is invisible
      (behind RMSNorm it is not), and without a residual their sign and size as well;
    - a LayerNorm before: its scale and shift are part of M_h, W_h, w_h and c. `canonical` has
      scale 1 and shift 0.

    Examples
    --------
    >>> import numpy as np
    >>> layer = AttentionLayer([LayerHead(M=np.eye(2), W=np.eye(2))], c=[0.0, 1.0])
    >>> layer(np.array([[[3.0, 1.0]], [[0.0, 5.0]]]))
    array([[3., 2.],
           [0., 6.]])
    >>> AttentionLayer(layer.heads, layer.c, True, LayerNorm([1.0, 1.0], None, eps=1e-12))
    AttentionLayer(H=1, d=2, residual, norm behind)
    """

    _noun, _part = "layer", "heads"
    _tensors: ClassVar[Mapping[str, str]] = {
        **{f"{name} of head {{}}": f"heads.{name}" for name in ("M", "W", "w")},
        "c": "heads.c",
        **NORM_TENSORS,
    }
    _inner = ("norm.", "heads.")
    _axes = axes(c="m≥1", residual="= 0", dim="= none")

    def __init__(
        self,
        heads: Sequence[LayerHead],
        c: ArrayLike,
        residual: bool = False,
        norm: LayerNorm | None = None,
        dim: int | None = None,
    ) -> None:
        self._heads = tuple(heads)
        self._set({"c": c, "residual": bool(residual), "dim": dim}, norm)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Build the layer from what `arrays` returned; those of its norm begin with ``norm.``."""
        parts, others = numbered(arrays, "heads")
        made = cls.__new__(cls)
        made._heads = tuple(LayerHead.from_arrays(own) for own in parts)
        cls._refuse_others(others)
        made._set(others)
        return made

    def _inside(self, given: Mapping[str, Any]) -> dict[str, Array]:
        for head in self._heads:
            if not isinstance(head, LayerHead):
                raise TypeError(f"heads must be LayerHeads; one is a {type(head).__name__}.")
        own = super()._inside(given)
        m, dim = len(own["c"]), int(own["dim"]) if "dim" in own else None
        self._dim = d = self._heads[0].dim if self._heads else m if dim is None else dim
        for h, head in enumerate(self._heads):
            if (head.outputs, head.dim) != (m, d):
                raise ValueError(
                    f"Head {h} has M of shape ({head.outputs}, {head.dim}); beside c of shape "
                    f"({m},) and d = {d} it must be ({m}, {d})."
                )
        if d < 1 or dim not in (None, d):
            raise ValueError(f"dim must be that of the heads and at least 1; it is {dim}.")
        if self._heads:
            own.pop("dim", None)
        else:
            own["dim"] = frozen("dim", d)
        each = ((h, head.arrays().items()) for h, head in enumerate(self._heads))
        return {f"heads.{h}.{name}": array for h, own in each for name, array in own} | own

    @classmethod
    def from_factors(
        cls,
        O: ArrayLike,  # noqa: E741 - the projections' own names
        V: ArrayLike,
        K: ArrayLike,
        Q: ArrayLike,
        c: ArrayLike,
        *,
        rotary: Rotary,
        k_bias: ArrayLike | None = None,
        q_bias: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        residual: bool = False,
        norm: LayerNorm | None = None,
    ) -> RotaryLayer:
        """Build a layer whose scores turn with distance, a `RotaryLayer`, of its projections.

        O (H, m, s) and Q (H, r, d) of every head, V (G, s, d) and K (G, r, d) of every group. A
        layer without positions is made of its heads, ``LayerHead.from_factors(O, V, K, Q, w)``.
        """
        biases = {"k_bias": k_bias, "q_bias": q_bias}
        return RotaryLayer(
            O, V, K, Q, c, rotary, **biases, groups=groups, residual=residual, norm=norm
        )

    @classmethod
    def has_parameters(cls, names: Iterable[str]) -> bool:
        """Tell whether `from_arrays` takes arrays of these names."""
        return super().has_parameters(known := [*names]) and known != ["c"]

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return self._dim

    @property
    def heads(self) -> tuple[LayerHead, ...]:
        """The heads."""
        return self._heads

    @property
    def H(self) -> int:
        """Number of heads."""
        return len(self._heads)

    c = Parameter(np.asarray, "Constant (m,) of every answer, before a norm behind.")

    def values_of(self, head: int) -> Product:
        """Return M_h, which is never formed."""
        return self._heads[head].values

    def score_forms(self, head: int) -> tuple[Product, ...]:
        """Return [W_h | w_h], which scores tokens with (x_N, 1) at any distance."""
        return (self._heads[head].scores,)

    def vectors(self, queries: Array) -> Array:
        """Map query tokens (B, d) to what heads score tokens with, W_h x + w_h, (B, H, d)."""
        found = np.empty((len(queries), self.H, self.dim))
        for h, head in enumerate(self._heads):
            found[:, h] = head.vectors(queries)
        return found

    def score_sizes(self, X: Array) -> Array:
        """Return the sizes of what scores are added up of, (B, H, N), of tokens as heads see them.

        A score is off by so many roundoffs.
        """
        vectors = np.linalg.norm(self.vectors(X[:, -1]), axis=2)
        return np.asarray(vectors[..., None] * np.linalg.norm(X, axis=2)[:, None])

    def parameter_norm(self, name: str) -> float:
        """Return a parameter's norm: of M, W (Frobenius, without forming them) or w the least.

        Heads where it is 0 do not count. Of ``scale``, ``shift`` and ``eps`` it is the norm's; 0
        for what is no parameter.
        """
        if name in ("M", "W", "w"):
            return attention.least(np.array([head.parameter_norm(name) for head in self._heads]))
        return super().parameter_norm(name)

    def _scored(self, X: Array) -> Array:
        return attention.token_scores(X, self.vectors(X[:, -1]))

    def _entries(self, tokens: int) -> int:
        return max(1, self.H) * max(self.dim, tokens)

    @cached_property
    def _map(self) -> Attention:
        each = [head.arrays() for head in self._heads]
        Q, K = _stack(each, "W", ("Q", "K"), self._dim)
        O, V = _stack(each, "M", ("O", "V"), self._dim)  # noqa: E741
        w = np.reshape([one["w"] for one in each], (len(each), self._dim))
        return Attention(Q, K, w, O if each else np.zeros((0, len(self.c), self._dim)), V, self.c)

    def _answers(self, X: Array) -> Array:
        answers = self._sums(X)
        return answers if self._behind is None else self._behind(answers)

    def _sums(self, X: Array) -> Array:
        """Map sequences (B, N, d) to what a norm behind sees, (B, m)."""
        tokens, answers = self._seen(X), np.tile(self.c, (len(X), 1))
        if self._heads:
            numerators, total = attention.exponentials(self._scored(tokens))
            pooled = attention.pooled_tokens(tokens, numerators) / total[..., None]  # (B, H, d)
            for h, head in enumerate(self._heads):
                answers += head.mapped(pooled[:, h])
        return answers + X[:, -1] if self.residual else answers

    def moved_at_most(self, X: ArrayLike, errors: Mapping[str, float]) -> Array:
        """Bound what errors of the parameters do to answers (2-norms, (B,)).

        Parameters
        ----------
        X : array_like, shape (B, N, d)
            Sequences of any length and size.
        errors : mapping
            Bounds such as a certificate's: ``M``, ``W``, ``w`` (of every head) and ``c``; of a
            norm behind ``scale``, ``shift`` and ``eps`` too. Where one is infinite, as of heads
            that are too close to each other, so is what is returned.

        Examples
        --------
        >>> layer = AttentionLayer([LayerHead(M=np.eye(2), W=np.eye(2))], c=[0.0, 1.0])
        >>> errors = {"M": 1e-9, "W": 0.0, "w": 0.0, "c": 0.0}
        >>> float(layer.moved_at_most([[[3.0, 4.0]]], errors)[0])
        5e-09
        """
        X = sequences(X, self.dim, self._noun)
        if not np.all(np.isfinite([*errors.values()])):
            return np.full(len(X), np.inf)
        moved = _moved_at_most(self._heads, self._seen(X), errors)
        return (
            moved
            if self._behind is None
            else self._behind.moved_at_most(self._sums(X), moved, errors)
        )

    def _sizes(self) -> tuple[str, ...]:
        m = () if self.outputs == self.dim else (f"m={self.outputs}",)
        return f"H={self.H}", f"d={self.dim}", *m, *self._around()


def _stack(
    heads: Sequence[Mapping[str, Array]], whole: str, factors: tuple[str, str], dim: int
) -> tuple[Array, Array | None]:
    """Stack heads' W or M, or factors of the largest rank: of a whole matrix I is the other."""
    if all(whole in one for one in heads):
        return np.array([one[whole] for one in heads] or np.zeros((0, dim, dim))), None
    stacks = []
    for k, name in enumerate(factors):
        each = [one[name] if name in one else np.eye(dim) if k else one[whole] for one in heads]
        axis = 1 if name == "O" else 0
        rank = max(x.shape[axis] for x in each)
        widths = [[(0, rank - x.shape[a]) if a == axis else (0, 0) for a in (0, 1)] for x in each]
        stacks.append(np.array([np.pad(x, w) for x, w in zip(each, widths, strict=True)]))
    return stacks[0], stacks[1]


def _moved_at_most(heads: Sequence[LayerHead], tokens: Array, errors: Mapping[str, float]) -> Array:
    """Bound ‖ô − o‖₂ (B,) before a norm behind, for tokens (B, N, d) as the heads see them.

    With heads' M off by δM (Frobenius norm), W by δW, w by δw, c by δc, and p = Σ_i α_i x_i pooled,

        ‖ô − o‖ ≤ δc + Σ_h (δM (‖p_h‖ + ‖Δp_h‖) + ‖M_h Δp_h‖),

    where every score moves by at most m = max_i ‖x_i − p‖·(δW ‖x_N‖ + δw), what all scores have in
    common being invisible, and a mean by no more than `attention.largest_mean_shift` at this m. The
    bound holds for sequences of any length and size; a norm behind turns it into one on directions.
    """
    query, moved = tokens[:, -1], np.full(len(tokens), errors["c"])
    turned = errors["W"] * np.linalg.norm(query, axis=1) + errors["w"]
    for head in heads:
        scores = attention.token_scores(tokens, head.vectors(query)[:, None])[:, 0]
        weights = attention.softmax(scores)
        pooled = np.einsum("bn,bnd->bd", weights, tokens)
        apart = tokens - pooled[:, None]
        far = np.linalg.norm(apart, axis=2)
        value = np.linalg.norm(apart @ head.values.right.T @ head.values.left.T, axis=2)
        shift = turned * far.max(axis=1)
        length = np.linalg.norm(pooled, axis=1) + attention.largest_mean_shift(weights, far, shift)
        moved += errors["M"] * length + attention.largest_mean_shift(weights, value, shift)
    return moved
