"""Attention weights as models have them: query, key, value and output projections; there and back.

A layer of H heads of d_h dimensions computes q = W_q x + b_q, k = W_k x + b_k, u = W_v x + b_v,
scores k_i·q_N/√d_h in each head, and answers with W_o times all heads' weighted means of u, plus
b_o. With rows K_h, Q_h, V_h and the columns O_h of W_o that belong to head h, that is an
`AttentionLayer` with

    M_h = O_h V_h,   W_h = K_hᵀ Q_h/√d_h,   w_h = K_hᵀ b_q,h/√d_h,   c = Σ_h O_h b_v,h + b_o,

and seen through one output coordinate a `MultiHead` with v_h = V_hᵀ o_h of that row of W_o. b_k
adds the same to all scores of a head, so no answer depends on it: it is left out. Where queries
and keys are turned by their positions (rotary) it is a `RotaryLayer`, and b_k counts.

Back, factors are free up to an invertible matrix: of [W_h | w_h] = U S Rᵀ, and of M_h alike, U √S
and √S Rᵀ are taken, padded with zeros to d_h rows; b_v = 0 and b_o = c.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.attention_layer import AttentionLayer, LayerHead
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.models.multi_head import MultiHead
from unsoftmax.models.products import Product
from unsoftmax.models.projection_names import ROLES, named_projections, real_arrays, scheme_of
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_heads import RotaryHeads
from unsoftmax.models.rotary_layer import RotaryLayer
from unsoftmax.probes import Array, Indices


@overload
def from_projections(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    o: ArrayLike,
    heads: int,
    q_bias: ArrayLike | None = None,
    k_bias: ArrayLike | None = None,
    v_bias: ArrayLike | None = None,
    o_bias: ArrayLike | None = None,
    kv_heads: int | None = None,
    coordinate: None = None,
    residual: bool = False,
    norm: LayerNorm | None = None,
) -> AttentionLayer: ...


@overload
def from_projections(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    o: ArrayLike,
    heads: int,
    q_bias: ArrayLike | None = None,
    k_bias: ArrayLike | None = None,
    v_bias: ArrayLike | None = None,
    o_bias: ArrayLike | None = None,
    kv_heads: int | None = None,
    *,
    coordinate: int | ArrayLike,
) -> MultiHead: ...


@overload
def from_projections(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    o: ArrayLike,
    heads: int,
    q_bias: ArrayLike | None = None,
    k_bias: ArrayLike | None = None,
    v_bias: ArrayLike | None = None,
    o_bias: ArrayLike | None = None,
    kv_heads: int | None = None,
    coordinate: None = None,
    residual: bool = False,
    *,
    rotary_base: float,
    layout: str = "halves",
) -> RotaryLayer: ...


@overload
def from_projections(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    o: ArrayLike,
    heads: int,
    q_bias: ArrayLike | None = None,
    k_bias: ArrayLike | None = None,
    v_bias: ArrayLike | None = None,
    o_bias: ArrayLike | None = None,
    kv_heads: int | None = None,
    *,
    coordinate: int | ArrayLike,
    rotary_base: float,
    layout: str = "halves",
) -> RotaryHeads: ...


def from_projections(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    o: ArrayLike,
    heads: int,
    q_bias: ArrayLike | None = None,
    k_bias: ArrayLike | None = None,
    v_bias: ArrayLike | None = None,
    o_bias: ArrayLike | None = None,
    kv_heads: int | None = None,
    coordinate: int | ArrayLike | None = None,
    residual: bool = False,
    norm: LayerNorm | None = None,
    *,
    rotary_base: float | None = None,
    layout: str = "halves",
) -> AttentionLayer | MultiHead | RotaryLayer | RotaryHeads:
    """Build a layer from its projections, or its heads as one output coordinate shows them.

    Parameters
    ----------
    q, k, v : array_like, shapes (H d_h, d), (G d_h, d) and (G d_h, d)
        Query, key and value projections, (out, in) as torch has them; G = ``kv_heads``.
    o : array_like, shape (m, H d_h)
        Output projection.
    heads : int
        Number of heads H.
    q_bias, k_bias, v_bias, o_bias : array_like, optional
        Their biases. ``k_bias`` is checked and left out: no answer depends on it without rotary
        positions.
    kv_heads : int, optional
        Number G of key and value heads, H by default: H/G query heads share one.
    coordinate : int or array_like of shape (m,), optional
        Which of the m output numbers is asked for, or the weights of those that are added up; all
        of them by default.
    residual : bool, optional
        Whether the sub-layer adds its last token to the answer.
    norm : LayerNorm, optional
        Behind or before.
    rotary_base : float, optional
        Queries and keys are turned by their positions with the frequencies base^(−2k/d_h), as
        ``rope_theta`` says in the configuration of Llama, Qwen, Mistral or SmolLM.
    layout : {"halves", "interleaved"}, optional
        Which rows of a head's queries and keys are a plane: k and k + d_h/2, as transformers has
        them, or 2k and 2k + 1, as Meta's own Llama files and GGUF have them.

    Returns
    -------
    AttentionLayer, MultiHead where ``coordinate`` is given; RotaryLayer, RotaryHeads with
    ``rotary_base``
        With factors K and Q of d_h rows; W_h = K_hᵀQ_h holds the scale 1/√d_h.

    Raises
    ------
    ValueError
        Shapes do not fit each other, an entry is not finite, or one coordinate is asked for of a
        sub-layer with a residual or a norm, which is no `MultiHead`; or a norm beside
        ``rotary_base``.

    Notes
    -----
    Without ``rotary_base`` scores depend on the tokens alone: a layer that turns queries and keys
    by their positions is another function than the model built then.

    Examples
    --------
    >>> import numpy as np
    >>> q, k, v, o = np.random.default_rng(0).standard_normal((4, 6, 6))
    >>> from_projections(q, k, v, o, heads=2)
    AttentionLayer(H=2, d=6)
    >>> heads = from_projections(q, k, v, o, heads=2, coordinate=0)
    >>> heads.v.shape, bool(np.allclose(heads.W[1], k[3:].T @ q[3:] / np.sqrt(3)))
    ((2, 6), True)
    >>> from_projections(q[:4], k[:2], v[:2], o[:, :4], heads=2, kv_heads=1, rotary_base=10_000)
    RotaryLayer(H=2, G=1, d=6, rotary)
    """
    biases = {"q": q_bias, "k": k_bias, "v": v_bias, "o": o_bias}
    given = _Projections.of({"q": q, "k": k, "v": v, "o": o}, biases, heads, kv_heads)
    if rotary_base is not None:
        if norm is not None or (coordinate is not None and residual):
            raise ValueError(
                "A RotaryLayer has no norm, and one coordinate of it no residual: leave "
                f"{'norm' if norm is not None else 'coordinate'} out beside rotary_base."
            )
        turned = given.turned(Rotary.of(rotary_base, given.k.shape[1]), layout, residual)
        if coordinate is None:
            return turned
        return turned.coordinate(_weights_of(coordinate, turned.outputs))
    if coordinate is None:
        return given.layer(residual, norm)
    if residual or norm is not None:
        raise ValueError(
            "One coordinate of a sub-layer with a residual or a norm is no sum of heads: leave "
            "coordinate out."
        )
    return given.coordinate(_weights_of(coordinate, len(given.o_bias)))


@dataclass(frozen=True, slots=True)
class _Projections:
    """A layer's projections head by head; query heads that share keys stand beside each other."""

    q: Array
    """(H, d_h, d), times 1/√d_h; q_bias (H, d_h) alike."""
    k: Array
    """(G, d_h, d), and so is v."""
    v: Array
    o: Array
    """(H, m, d_h)."""
    q_bias: Array
    k_bias: Array
    """(G, d_h), and so is v_bias."""
    v_bias: Array
    o_bias: Array
    """(m,)."""

    @classmethod
    def of(
        cls,
        arrays: Mapping[str, ArrayLike],
        biases: Mapping[str, ArrayLike | None],
        heads: int,
        kv_heads: int | None,
    ) -> _Projections:
        H = _positive("heads", heads)
        G = _positive("kv_heads", heads if kv_heads is None else kv_heads)
        Q, K, V, out = real_arrays(arrays, 2)
        size = _head_size(Q, K, V, out, H, G)
        b = {}
        for role, rows in zip(ROLES, (Q, K, V, out), strict=True):
            bias = biases[role]
            given = np.zeros(len(rows)) if bias is None else bias
            [b[role]] = real_arrays({f"{role}_bias": given}, 1)
            if b[role].shape != (len(rows),):
                raise ValueError(
                    f"{role}_bias must have shape ({len(rows)},); it has {b[role].shape}."
                )
        scale = 1 / math.sqrt(size)
        return cls(
            q=scale * Q.reshape(H, size, -1),
            k=K.reshape(G, size, -1),
            v=V.reshape(G, size, -1),
            o=np.moveaxis(out.reshape(len(out), H, size), 1, 0),
            q_bias=scale * b["q"].reshape(H, size),
            k_bias=b["k"].reshape(G, size),
            v_bias=b["v"].reshape(G, size),
            o_bias=b["o"],
        )

    def layer(self, residual: bool, norm: LayerNorm | None) -> AttentionLayer:
        """Return all outputs at once."""
        share, heads, c = len(self.q) // len(self.k), [], self.o_bias
        for h, (Q, out, b_q) in enumerate(zip(self.q, self.o, self.q_bias, strict=True)):
            K, V, b_v = (x[h // share] for x in (self.k, self.v, self.v_bias))
            heads.append(LayerHead.from_factors(out, V, K, Q, K.T @ b_q))
            c = c + out @ b_v
        return AttentionLayer(heads, c, residual, norm)

    def turned(self, rotary: Rotary, layout: str, residual: bool) -> RotaryLayer:
        """Return all outputs at once, of scores that turn with distance."""
        rows = _plane_rows(layout, self.k.shape[1])
        share = len(self.q) // len(self.k)
        b_v = np.repeat(self.v_bias, share, axis=0)
        return RotaryLayer(
            self.o,
            self.v,
            self.k[:, rows],
            self.q[:, rows],
            self.o_bias + np.einsum("hmr,hr->m", self.o, b_v),
            rotary,
            k_bias=self.k_bias[:, rows],
            q_bias=self.q_bias[:, rows],
            residual=residual,
        )

    def coordinate(self, row: Array) -> MultiHead:
        """Return one sum of outputs."""
        share = len(self.q) // len(self.k)
        K, V, b_v = (np.repeat(x, share, axis=0) for x in (self.k, self.v, self.v_bias))
        o_h = np.einsum("m,hmr->hr", row, self.o)
        return MultiHead.from_factors(
            K,
            self.q,
            v=np.einsum("hr,hrd->hd", o_h, V),
            w=np.einsum("hrd,hr->hd", K, self.q_bias),
            c=float(np.sum(o_h * b_v) + row @ self.o_bias),
        )


def _plane_rows(layout: str, size: int) -> Indices:
    """Return which rows of a head's keys are rows 2k and 2k + 1 of plane k."""
    if layout == "interleaved":
        return np.arange(size)
    if layout != "halves":
        raise ValueError(f'layout must be "halves" or "interleaved"; it is {layout!r}.')
    return np.arange(size).reshape(2, -1).T.ravel()


def to_projections(
    layer: AttentionLayer,
    heads: int | None = None,
    head_dim: int | None = None,
    kv_heads: int | None = None,
    names: str | None = None,
    prefix: str = "",
    rtol: float = 1e-9,
) -> dict[str, Any]:
    """Return projections of a layer, as models have them: the inverse of `from_projections`.

    Parameters
    ----------
    layer : AttentionLayer
        The layer, such as a recovered one.
    heads, head_dim : int, optional
        H and d_h of the arrays; by default the layer's own heads and their largest rank, under
        ``names`` of layers with H d_h = d the d_h that follows. Heads and rows that are not needed
        are zeros. A head whose M has a higher rank (as of two that have equal scores) takes
        several heads of the arrays.
    kv_heads : int, optional
        Number of key and value heads, H by default. Fewer hold a layer only where heads share them.
    names : {"torch", "BERT", "Llama", "OPT"}, optional
        Names for a state dict of such a model, the norm's scale and shift among them. Their
        ``eps`` is a setting of the model: ``layer.norm.eps``.
    prefix : str, optional
        What these names begin with, as in ``encoder.layer.0.attention``.
    rtol : float, optional
        What may be cut off a head whose rank is beyond ``head_dim``, as a share of its norm: a
        recovered matrix of rank 32 may have a 33rd singular value of its error's size.

    Returns
    -------
    dict
        Keyword arguments of `from_projections`; with ``names`` a state dict of float64 arrays.

    Raises
    ------
    ValueError
        The layer has more heads, or higher ranks, than the arrays hold, or heads do not share
        keys and values as ``kv_heads`` says; or models of such names differ in shape or norm.

    Notes
    -----
    *Determined up to*: K against Q and V against O, an invertible matrix for every key and value
    head, balanced here; key biases, 0 here; value biases, which ``o_bias`` holds.

    Examples
    --------
    >>> import numpy as np
    >>> from unsoftmax.models import equivalent
    >>> q, k, v, o = np.random.default_rng(0).standard_normal((4, 6, 6))
    >>> layer = from_projections(q, k, v, o, heads=2, o_bias=np.ones(6))
    >>> arrays = to_projections(layer)
    >>> arrays["q"].shape, bool(equivalent(from_projections(**arrays), layer))
    ((6, 6), True)
    >>> sorted(to_projections(layer, names="torch", prefix="attn"))[:2]
    ['attn.in_proj_bias', 'attn.in_proj_weight']
    """
    if not isinstance(layer, AttentionLayer):
        raise TypeError(
            f"to_projections takes an AttentionLayer; this is a {type(layer).__name__}, whose own "
            "arrays, .arrays(), are what it computes with."
        )
    if names is not None and scheme_of(names).square:
        heads, head_dim = _square(layer, heads, head_dim, names)
    groups = _groups(layer, heads, head_dim, kv_heads, rtol)
    arrays = {role: np.concatenate([group[role] for group in groups]) for role in "qkv"}
    arrays["o"] = np.concatenate([group["o"] for group in groups], axis=1)
    arrays["q_bias"] = np.concatenate([group["q_bias"] for group in groups])
    arrays |= {f"{role}_bias": np.zeros(len(arrays[role])) for role in "kv"}
    arrays |= {"o_bias": layer.c}
    whole = {"residual": layer.residual, "norm": layer.norm}
    if names is not None:
        return dict(named_projections({**arrays, **whole}, names, prefix))
    H = sum(group["heads"] for group in groups)
    return {**arrays, "heads": H, "kv_heads": len(groups), **whole}


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one head of the arrays holds: [W | w] and M, compact."""

    scores: Product
    values: Product

    @classmethod
    def empty(cls, layer: AttentionLayer) -> _Piece:
        d, m = layer.dim, layer.outputs
        scores, values = np.zeros((0, d + 1)), np.zeros((0, d))
        return cls(Product(np.zeros((d, 0)), scores), Product(np.zeros((m, 0)), values))

    def shares_with(self, other: _Piece, rtol: float) -> bool:
        """Tell whether the other's keys and values are within the span of these."""
        U, s = self.scores.left, np.linalg.norm(other.scores.right, axis=1)
        beyond = (other.scores.left - U @ (U.T @ other.scores.left)) * s
        V = self.values.right / np.linalg.norm(self.values.right, axis=1)[:, None]
        rows = other.values.right - (other.values.right @ V.T) @ V
        return bool(
            np.linalg.norm(beyond) <= rtol * np.linalg.norm(s)
            and np.linalg.norm(rows) <= rtol * np.linalg.norm(other.values.right)
        )


def _square(
    layer: AttentionLayer, heads: int | None, head_dim: int | None, names: str
) -> tuple[int, int]:
    """Return H and d_h of a layer with H d_h = d = m."""
    H = layer.H if heads is None else _positive("heads", heads)
    size = layer.dim // max(1, H) if head_dim is None else _positive("head_dim", head_dim)
    if layer.outputs != layer.dim or H * size != layer.dim:
        raise ValueError(
            f"{names} has layers of d outputs and heads·head_dim = d; this one has "
            f"d = {layer.dim}, m = {layer.outputs} and would have {H} heads of {size}: say heads."
        )
    return H, size


def _groups(
    layer: AttentionLayer,
    heads: int | None,
    head_dim: int | None,
    kv_heads: int | None,
    rtol: float,
) -> list[dict[str, Any]]:
    """Return the arrays of every key and value head, with those of the query heads it serves."""
    compact = [_Piece(h.scores.compact(), h.values.compact()) for h in layer.heads]
    ranks = [_rank(x, rtol) for piece in compact for x in (piece.scores, piece.values)]
    size = max([1, *ranks]) if head_dim is None else _positive("head_dim", head_dim)
    pieces = [part for h, piece in enumerate(compact) for part in _split(piece, size, h, rtol)]
    H = max(1, len(pieces)) if heads is None else _positive("heads", heads)
    if len(pieces) > H:
        raise ValueError(f"The layer needs {len(pieces)} heads of {size}; the arrays have {H}.")
    pieces += [_Piece.empty(layer)] * (H - len(pieces))
    G = H if kv_heads is None else _positive("kv_heads", kv_heads)
    if H % G:
        raise ValueError(f"{H} query heads cannot share {G} key and value heads equally.")
    return [_balanced(group, size) for group in _sharing(pieces, G, rtol)]


def _rank(product: Product, rtol: float) -> int:
    """Return how many singular values are needed for all but a share of a compact matrix."""
    s = np.linalg.norm(product.right, axis=1)
    tails = np.sqrt(np.cumsum(s[::-1] ** 2))[::-1]  # what is lost from each one on
    return int(np.sum(tails > rtol * np.linalg.norm(s)))


def _split(piece: _Piece, size: int, h: int, rtol: float) -> list[_Piece]:
    """Cut a head into such as the arrays hold: the same scores, and parts of M."""
    rank, rows = _rank(piece.scores, rtol), _rank(piece.values, rtol)
    if rank > size:
        raise ValueError(
            f"Head {h} has scores of rank {rank}, which heads of {size} cannot hold; head_dim says "
            "how large they are, rtol what may be cut off."
        )
    scores = Product(piece.scores.left[:, :rank], piece.scores.right[:rank])
    M = piece.values
    return [
        _Piece(
            scores, Product(M.left[:, i : min(i + size, rows)], M.right[i : min(i + size, rows)])
        )
        for i in range(0, max(1, rows), size)
    ]


def _sharing(pieces: list[_Piece], G: int, rtol: float) -> list[list[_Piece]]:
    """Put heads together that share keys and values, H/G in each group."""
    left, groups = list(pieces), []
    share = len(pieces) // G
    if share > 1:  # the first of a group spans what the others need
        left.sort(key=lambda piece: -len(piece.scores.right) - len(piece.values.right))
    while left:
        first, *rest = left
        partners = [
            k for k, other in enumerate(rest) if share > 1 and first.shares_with(other, rtol)
        ]
        chosen = partners[: share - 1]
        if len(chosen) < share - 1:
            raise ValueError(
                f"The heads do not share keys and values in groups of {share}, as {G} key and "
                "value heads need: leave kv_heads out, or give a larger rtol."
            )
        groups.append([first, *(rest[k] for k in chosen)])
        left = [other for k, other in enumerate(rest) if k not in chosen]
    return groups


def _balanced(group: list[_Piece], size: int) -> dict[str, Any]:
    """Factor what query heads share into K, V and their own Q, O, padded to d_h rows."""
    A = _stacked([piece.scores for piece in group]).compact()
    M = _stacked([Product(p.values.right.T, p.values.left.T) for p in group]).compact()
    K, Q = _factors(A, size, math.sqrt(size))
    V, out = _factors(M, size, 1.0)
    n, d = len(group), len(A.left)
    Q = np.moveaxis(Q.reshape(size, n, d + 1), 1, 0)
    return {
        "q": Q[..., :d].reshape(n * size, d),
        "q_bias": Q[..., d].reshape(n * size),
        "k": K,
        "v": V,
        "o": out.reshape(size, n, -1).transpose(2, 1, 0).reshape(-1, n * size),
        "heads": n,
    }


def _stacked(products: list[Product]) -> Product:
    """Put matrices with one column space beside each other."""
    left = np.hstack([product.left for product in products])
    right = np.zeros((left.shape[1], sum(product.right.shape[1] for product in products)))
    row = column = 0
    for product in products:
        r, width = product.right.shape
        right[row : row + r, column : column + width] = product.right
        row, column = row + r, column + width
    return Product(left, right)


def _factors(product: Product, size: int, scale: float) -> tuple[Array, Array]:
    """Return balanced factors (size, ·) of a compact matrix, times a scale, padded with zeros."""
    rows = min(size, len(product.right))
    root = np.sqrt(np.linalg.norm(product.right[:rows], axis=1))[:, None]
    left, right = (np.zeros((size, n)) for n in (len(product.left), product.right.shape[1]))
    left[:rows] = math.sqrt(scale) * root * product.left[:, :rows].T
    right[:rows] = math.sqrt(scale) / root * product.right[:rows]
    return left, right


def _positive(name: str, number: Any) -> int:
    if not isinstance(number, (int, np.integer)) or isinstance(number, bool) or number < 1:
        raise ValueError(f"{name} must be a whole number of at least 1; it is {number!r}.")
    return int(number)


def _head_size(Q: Array, K: Array, V: Array, out: Array, H: int, G: int) -> int:
    """Return d_h, or say which shape does not fit."""
    if len(Q) % H:
        raise ValueError(f"q has {len(Q)} rows, which {H} heads cannot share equally.")
    size = len(Q) // H
    if H % G:
        raise ValueError(f"{H} query heads cannot share {G} key and value heads equally.")
    for name, x in (("k", K), ("v", V)):
        if x.shape != (G * size, Q.shape[1]):
            hint = "" if G != H else "; where query heads share key heads, give kv_heads"
            raise ValueError(
                f"{name} must have shape {(G * size, Q.shape[1])} beside q of shape {Q.shape} and "
                f"{G} key and value heads; it has {x.shape}{hint}."
            )
    if out.shape[1] != H * size:
        raise ValueError(f"o must have shape (m, {H * size}) beside q; it has {out.shape}.")
    return size


def _weights_of(coordinate: int | ArrayLike, outputs: int) -> Array:
    """Return the weights (m,) of the output numbers."""
    if isinstance(coordinate, (int, np.integer)) and not isinstance(coordinate, bool):
        if not 0 <= coordinate < outputs:
            raise ValueError(f"coordinate must be 0 to {outputs - 1}; it is {coordinate}.")
        return np.asarray(np.eye(1, outputs, int(coordinate))[0])
    [row] = real_arrays({"coordinate": coordinate}, 1)
    if row.shape != (outputs,):
        raise ValueError(f"coordinate must be a number or have shape ({outputs},).")
    return row
