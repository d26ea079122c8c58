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
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.arrays import axes, declared
from unsoftmax.models.attention_layer import AttentionLayer, LayerHead
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.models.multi_head import MultiHead
from unsoftmax.models.products import Product
from unsoftmax.models.projection_names import NAMES, family_called, named_projections, real_array
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_layer import RotaryLayer
from unsoftmax.probes import Array

_Piece = tuple[Product, Product]
"""What one head of arrays holds: [W | w] and M, compact."""


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
    rotary_base: float | Rotary | None = None,
    layout: str = "halves",
) -> Any:
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
    rotary_base : float or Rotary, optional
        Queries and keys are turned by their positions with the frequencies base^(−2k/d_h), as
        ``rope_theta`` says in the configuration of Llama, Qwen, Mistral or SmolLM; or with these.
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
        sub-layer with a residual or a norm, which is no `MultiHead`.

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
    given = dict(zip(NAMES, (q, k, v, o, q_bias, k_bias, v_bias, o_bias), strict=True))
    Q, K, V, O, b_q, b_k, b_v, b_o = _by_head(given, heads, kv_heads)  # noqa: E741
    if coordinate is not None and (residual or norm is not None):
        raise ValueError(
            "One coordinate of a sub-layer with a residual or a norm is no sum of heads: leave "
            "coordinate out."
        )
    row = None if coordinate is None else _weights_of(coordinate, len(b_o))
    g = np.arange(len(Q)) // (len(Q) // len(K))  # the key and value head of every query head
    if rotary_base is not None:
        base, rows = rotary_base, np.arange(K.shape[1])
        rotary = base if isinstance(base, Rotary) else Rotary.of(base, len(rows))
        if layout not in ("halves", "interleaved"):
            raise ValueError(f'layout must be "halves" or "interleaved"; it is {layout!r}.')
        # rows 2k and 2k + 1 are plane k from here on
        plane = rows.reshape(2, -1).T.ravel() if layout == "halves" else rows
        K, Q, b_k, b_q = K[:, plane], Q[:, plane], b_k[:, plane], b_q[:, plane]
        c = b_o + np.einsum("hmr,hr->m", O, b_v[g])
        biases = {"k_bias": b_k, "q_bias": b_q}
        layer = RotaryLayer(O, V, K, Q, c, rotary, residual=residual, norm=norm, **biases)
        return layer if row is None else layer.coordinate(row)
    K, V, b_v, each = K[g], V[g], b_v[g], range(len(g))
    if row is None:
        parts = [LayerHead.from_factors(O[h], V[h], K[h], Q[h], K[h].T @ b_q[h]) for h in each]
        return AttentionLayer(parts, sum((O[h] @ b_v[h] for h in each), b_o), residual, norm)
    o_h = np.einsum("m,hmr->hr", row, O)
    v, w = np.einsum("hr,hrd->hd", o_h, V), np.einsum("hrd,hr->hd", K, b_q)
    return MultiHead.from_factors(K, Q, v, w, float(np.sum(o_h * b_v) + row @ b_o))


_AXES = axes(
    **{"k": "kv d", "v": "kv d", "o": "m rows", "q_bias": "rows = 0"},
    **{"k_bias": "kv = 0", "v_bias": "kv = 0", "o_bias": "m = 0"},
)
"""Of what axes arrays are beside q, (rows, d)."""


def _by_head(given: Mapping[str, Any], heads: int, kv_heads: int | None) -> list[Array]:
    """Return q (H, s, d), k and v (G, s, d), o (H, m, s) and their biases alike, d_h = s.

    The scale 1/√s is in q and its bias. Query heads that share keys stand beside each other.
    """
    H = _positive("heads", heads)
    G = _positive("kv_heads", heads if kv_heads is None else kv_heads)
    real = {n: real_array(n, x, 1 if "bias" in n else 2) for n, x in given.items() if x is not None}
    rows, d = real["q"].shape
    if rows % H:
        raise ValueError(f"q has {rows} rows, which {H} heads cannot share equally.")
    size, beside = rows // H, f"q of shape {(rows, d)} and {G} key and value heads"
    hint = "" if G != H else " (where query heads share key heads, give kv_heads)"
    sizes = {"rows": rows, "kv": rows // _shared(H, G), "d": d}
    arrays = {"q": real["q"], **declared(real, _AXES, sizes, beside + hint)}
    scale, o_bias = 1 / math.sqrt(size), arrays.pop("o_bias")
    arrays |= {"q": scale * arrays["q"], "q_bias": scale * arrays["q_bias"], "o": arrays["o"].T}
    parts = {name: x.reshape(-1, size, *x.shape[1:]) for name, x in arrays.items()}
    parts |= {"o": parts["o"].swapaxes(1, 2), "o_bias": o_bias}
    return [parts[name] for name in NAMES]


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
    d, m, H = layer.dim, layer.outputs, None if heads is None else _positive("heads", heads)
    size = None if head_dim is None else _positive("head_dim", head_dim)
    if names is not None and family_called(names).square:
        H = layer.H if H is None else H
        size = d // max(1, H) if size is None else size
        if m != d or H * size != d:
            raise ValueError(
                f"{names} has layers of d outputs and heads·head_dim = d; this one has d = {d}, "
                f"m = {m} and would have {H} heads of {size}: say heads."
            )
    compact = [[_cut(x.compact(), rtol) for x in (h.scores, h.values)] for h in layer.heads]
    size = size or max([1, *(len(x.right) for piece in compact for x in piece)])
    pieces: list[_Piece] = []
    for h, (scores, values) in enumerate(compact):
        rank, rows = len(scores.right), len(values.right)
        if rank > size:
            raise ValueError(
                f"Head {h} has scores of rank {rank}, which heads of {size} cannot hold; head_dim "
                "says how large they are, rtol what may be cut off."
            )
        pieces += [(scores, values.part(i, i + size)) for i in range(0, max(1, rows), size)]
    H = max(1, len(pieces)) if H is None else H
    if len(pieces) > H:
        raise ValueError(f"The layer needs {len(pieces)} heads of {size}; the arrays have {H}.")
    pieces += [(Product.zeros(d, d + 1), Product.zeros(m, d))] * (H - len(pieces))
    G = H if kv_heads is None else _positive("kv_heads", kv_heads)
    groups = [_balanced(group, size) for group in _sharing(pieces, G, rtol)]
    parts = {n: np.concatenate([x[n] for x in groups], axis=int(n == "o")) for n in groups[0]}
    parts |= {f"{role}_bias": np.zeros(len(parts[role])) for role in "kv"} | {"o_bias": layer.c}
    if names is not None:
        return dict(named_projections(parts, layer.norm, names, prefix))
    return {**parts, "heads": H, "kv_heads": G, "residual": layer.residual, "norm": layer.norm}


def _cut(product: Product, rtol: float) -> Product:
    """Leave singular values out that are but a share of a compact matrix together."""
    s = np.linalg.norm(product.right, axis=1)
    tails = np.sqrt(np.cumsum(s[::-1] ** 2))[::-1]  # what is lost from each one on
    return product.part(0, int(np.sum(tails > rtol * np.linalg.norm(s))))


def _sharing(pieces: Sequence[_Piece], G: int, rtol: float) -> list[list[_Piece]]:
    """Put heads together that share keys and values, H/G in each group."""
    share, groups = _shared(len(pieces), G), []
    # the first of a group spans what the others need
    left = sorted(pieces, key=lambda piece: -sum(len(x.right) for x in piece) * (share > 1))
    while left:
        first, *left = left
        fits = [k for k, x in enumerate(left) if share > 1 and _spans(first, x, rtol)][: share - 1]
        if len(fits) < share - 1:
            raise ValueError(
                f"The heads do not share keys and values in groups of {share}, as {G} key and "
                "value heads need: leave kv_heads out, or give a larger rtol."
            )
        groups.append([first, *(left[k] for k in fits)])
        left = [x for k, x in enumerate(left) if k not in fits]
    return groups


def _spans(piece: _Piece, other: _Piece, rtol: float) -> bool:
    """Tell whether the other's keys and values are within the span of the first's."""
    (A, M), (B, N), norm = piece, other, np.linalg.norm
    s, V = norm(B.right, axis=1), M.right / norm(M.right, axis=1)[:, None]
    beyond = (B.left - A.left @ (A.left.T @ B.left)) * s
    rows = N.right - (N.right @ V.T) @ V
    return bool(norm(beyond) <= rtol * norm(s) and norm(rows) <= rtol * norm(N.right))


def _balanced(group: Sequence[_Piece], size: int) -> dict[str, Array]:
    """Factor what query heads share into K, V and their own Q, O, padded to d_h rows."""
    scores, values = zip(*group, strict=True)
    K, Q = _factors(scores, size, math.sqrt(size))
    V, out = _factors([Product(M.right.T, M.left.T) for M in values], size, 1.0)
    n, d = len(group), K.shape[1]
    Q = np.moveaxis(Q.reshape(size, n, d + 1), 1, 0).reshape(n * size, d + 1)
    out = out.reshape(size, n, -1).transpose(2, 1, 0).reshape(-1, n * size)
    return {"q": Q[:, :d], "k": K, "v": V, "o": out, "q_bias": Q[:, d]}


def _factors(products: Sequence[Product], size: int, scale: float) -> tuple[Array, Array]:
    """Return balanced factors (size, ·) of matrices with one column space, beside each other.

    Times a scale, and padded with zeros.
    """
    n, width = len(products), products[0].right.shape[1]
    places = (((0, 0), (i * width, (n - 1 - i) * width)) for i in range(n))
    apart = (Product(p.left, np.pad(p.right, at)) for p, at in zip(products, places, strict=True))
    whole = sum(apart, Product.zeros(len(products[0].left), n * width)).compact().part(0, size)
    root = np.sqrt(np.linalg.norm(whole.right, axis=1))[:, None]
    missing = ((0, size - len(root)), (0, 0))
    left, right = math.sqrt(scale) * root * whole.left.T, math.sqrt(scale) / root * whole.right
    return np.pad(left, missing), np.pad(right, missing)


def _positive(name: str, number: Any) -> int:
    if not isinstance(number, (int, np.integer)) or isinstance(number, bool) or number < 1:
        raise ValueError(f"{name} must be a whole number of at least 1; it is {number!r}.")
    return int(number)


def _shared(H: int, G: int) -> int:
    """Return how many query heads share a key and value head."""
    if H % G:
        raise ValueError(f"{H} query heads cannot share {G} key and value heads equally.")
    return H // G


def _weights_of(coordinate: int | ArrayLike, outputs: int) -> Array:
    """Return the weights (m,) of the output numbers."""
    if isinstance(coordinate, (int, np.integer)) and not isinstance(coordinate, bool):
        if not 0 <= coordinate < outputs:
            raise ValueError(f"coordinate must be 0 to {outputs - 1}; it is {coordinate}.")
        return np.asarray(np.eye(1, outputs, int(coordinate))[0])
    if len(row := real_array("coordinate", coordinate, 1)) != outputs:
        raise ValueError(f"coordinate must be a number or have shape ({outputs},).")
    return row
