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

What a family of models calls its arrays, and how it lays them out, is a row of `FAMILIES`: another
family is another row.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unsoftmax.models.arrays import axes, declared
from unsoftmax.models.attention_layer import AttentionLayer, LayerHead
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.models.multi_head import MultiHead
from unsoftmax.models.products import Product
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_layer import RotaryLayer
from unsoftmax.probes import Array

NAMES = ("q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "o_bias")


@dataclass(frozen=True, slots=True)
class Family:
    """What a family of models calls a sub-layer's arrays, and what these mean."""

    projections: Mapping[str, str]
    """Behind the layer's prefix; "qkv" is one array that holds the three."""
    norm: str
    """The sub-layer's norm, of the layer's prefix ({layer}, with its last dot), that of what the
    layer is in ({parent}), or the prefix without its dot ({stem})."""
    before: bool | None = None
    """Where that norm is; None where models of these names differ."""
    square: bool = False
    """Whether such layers have as many outputs and query rows as d."""
    bare: bool = False
    """Whether such layers have no biases, and norms without a mean: RMSNorm."""
    rotary: bool = False
    """Whether such models turn queries and keys by their positions."""
    transposed: bool = False
    """Whether arrays are (in, out), as Conv1D has them. Such are read, not written."""
    ends: tuple[str, str] = ("weight", "bias")
    """What follows a projection's name."""
    norm_ends: tuple[str, str] = ("weight", "bias")
    """What follows the norm's: scale and shift."""

    def arrays(self, prefix: str) -> Iterator[tuple[str, list[str]]]:
        """Go through a layer's arrays: what theirs is called, and which of `NAMES` it holds."""
        for roles, name in self.projections.items():
            for end, ours in zip(self.ends, ("", "_bias"), strict=True):
                yield prefix + name + end, [role + ours for role in roles]

    def norm_names(self, prefix: str) -> list[str]:
        """Return what the scale and the shift of a layer's norm are called."""
        stem = prefix.rstrip(".")
        name = self.norm.format(layer=prefix, stem=stem, parent=stem[: stem.rfind(".") + 1])
        return [name + end for end in self.norm_ends]


_OPT = {"q": "q_proj.", "k": "k_proj.", "v": "v_proj.", "o": "out_proj."}
_LLAMA = _OPT | {"o": "o_proj."}
_TORCH = {"qkv": "in_proj_", "o": "out_proj."}
_GPT_2 = {"qkv": "c_attn.", "o": "c_proj."}
_BERT = {"q": "self.query.", "k": "self.key.", "v": "self.value.", "o": "output.dense."}

FAMILIES: Mapping[str, Family] = {
    "torch": Family(_TORCH, "{parent}norm1.", before=False, square=True),
    "BERT": Family(_BERT, "{layer}output.LayerNorm.", before=False, square=True),
    "Llama": Family(_LLAMA, "{parent}input_layernorm.", before=True, bare=True, rotary=True),
    "OPT": Family(_OPT, "{stem}_layer_norm.", square=True),
    "GPT-2": Family(_GPT_2, "{parent}ln_1.", before=True, transposed=True),
}
_OURS = Family({r: r for r in "qkvo"}, "norm_", ends=("", "_bias"), norm_ends=("scale", "shift"))


QK_NORMS = ("_norm", "_layernorm")
"""What norms of queries and keys are called after q and k: Qwen3's, Gemma's, OLMo's; Phi's."""


def find_projections(
    weights: Mapping[str, Any],
    layer: str | None = None,
    eps: float | None = None,
    before: bool | None = None,
) -> dict[str, Any]:
    """Find a layer's projections among a model's own arrays, by the names that people use.

    Parameters
    ----------
    weights : mapping of str to array
        A state dict, or what an ``.npz`` or ``.safetensors`` holds: q, k, v, o (with q_bias …),
        or the names of torch's MultiheadAttention (in_proj_weight), BERT, Llama, OPT or GPT-2.
    layer : str, optional
        What the names begin with, as in ``encoder.layer.0.attention``; it may be left out
        where only one layer is there.
    eps : float, optional
        What the model's norms add to variances: a setting of the model, none of its arrays. Then
        the whole sub-layer is found, its residual and its norm with it (norm_scale and
        norm_shift; BERT's ``output.LayerNorm``, torch's ``norm1``, Llama's ``input_layernorm``,
        ``self_attn_layer_norm``, GPT-2's ``ln_1``).
    before : bool, optional
        Whether that norm is before the heads, for names that do not say: torch's are behind by
        default (``norm_first=False``), OPT's before, BART's, of the same names, behind.

    Returns
    -------
    dict
        ``q``, ``k``, ``v``, ``o`` and the biases that are there, as `from_projections` takes them;
        with ``eps`` also ``residual`` and ``norm``.

    Raises
    ------
    ValueError
        No layer is there, or several are and ``layer`` names none of them; or queries and keys
        are normalised (q_norm, q_layernorm, …), which no projection holds; or a norm is asked for
        and none is there, or its place is not known.

    Examples
    --------
    >>> import numpy as np
    >>> state = {"attn.in_proj_weight": np.ones((12, 4)), "attn.out_proj.weight": np.ones((4, 4))}
    >>> {name: array.shape for name, array in find_projections(state).items()}
    {'q': (4, 4), 'k': (4, 4), 'v': (4, 4), 'o': (4, 4)}
    """
    prefix, _ = _only_layer(weights, layer)
    for name in (f"{prefix}{one}{end}.weight" for end in QK_NORMS for one in "qk"):
        if name in weights:
            raise ValueError(
                f"{name} is there: this layer normalises queries or keys, so its projections "
                "alone are not its function. Of Qwen3 us.from_checkpoint takes the checkpoint's "
                "folder; of other families with QK-norm (Gemma 3, OLMo 2, Phi, Persimmon) no "
                "layer is known."
            )
    return arrays_of_layer(weights, layer, eps, before)


def arrays_of_layer(
    weights: Mapping[str, Any],
    layer: str | None,
    eps: float | None = None,
    before: bool | None = None,
) -> dict[str, Any]:
    """Find a layer's projections, whatever else it has."""
    prefix, family = _only_layer(weights, layer)
    found: dict[str, Any] = {}
    for name, ours in family.arrays(prefix):
        if name in weights:
            x = real_array(name, weights[name])
            x = x.T if family.transposed else x
            if len(x) % len(ours):
                parts = "+".join(ours)
                raise ValueError(f"{name} must hold {parts} in equal parts; it has {x.shape}.")
            found |= zip(ours, np.split(x, len(ours)), strict=True)
    found = {name: found[name] for name in NAMES if name in found}
    if eps is not None:
        return {**found, "residual": True, "norm": _norm(weights, prefix, family, eps, before)}
    if before is not None:
        raise ValueError("before says where a norm is: give eps with it.")
    return found


def file_names(weights: Mapping[str, Any], layer: str) -> dict[str, str]:
    """Return what a layer's arrays are called, by `NAMES` and norm_scale and norm_shift.

    Examples
    --------
    >>> state = {"attn.in_proj_weight": 0, "attn.out_proj.weight": 0, "norm1.weight": 0}
    >>> file_names(state, "attn")["k"], file_names(state, "attn")["norm_scale"]
    ('attn.in_proj_weight', 'norm1.weight')
    """
    prefix, family = _only_layer(weights, layer)
    found = {role: name for name, roles in family.arrays(prefix) for role in roles}
    found |= zip(("norm_scale", "norm_shift"), family.norm_names(prefix), strict=True)
    return {role: name for role, name in found.items() if name in weights}


def named_projections(
    projections: Mapping[str, Array], norm: LayerNorm | None, names: str, prefix: str = ""
) -> dict[str, Array]:
    """Return projections, and a norm, under the names of a family; the inverse of the search."""
    family, state = family_called(names), {}
    prefix = f"{prefix.rstrip('.')}." if prefix else ""
    for name, ours in family.arrays(prefix):
        array = np.concatenate([projections[part] for part in ours])
        if array.ndim > 1 or not family.bare or array.any():
            state[name] = array
    if norm is None:
        return state
    # torch's layers have an argument for it, norm_first
    if family.before not in (None, norm.before) and names != "torch":
        at = "before" if family.before else "behind"
        raise ValueError(f"{names} has its norm {at} the heads; this one is on their other side.")
    scale, shift = family.norm_names(prefix)
    kept = norm.centred or norm.shift.any()
    return state | {scale: norm.scale} | ({shift: norm.shift} if kept else {})


def family_called(names: str) -> Family:
    """Return the family whose names arrays may be given."""
    written = {name: family for name, family in FAMILIES.items() if not family.transposed}
    if names not in written:
        raise ValueError(f"names must be one of {', '.join(written)}; it is {names!r}.")
    return written[names]


def may_be_rotary(weights: Mapping[str, Any]) -> bool:
    """Tell whether names are those of models that turn queries and keys by their positions."""
    ends = tuple(f"{f.projections['o']}{f.ends[0]}" for f in FAMILIES.values() if f.rotary)
    return any(name.endswith(ends) for name in weights)


def _only_layer(weights: Mapping[str, Any], layer: str | None) -> tuple[str, Family]:
    """Return the one layer's prefix and whose names it has."""
    found: dict[str, Family] = {}
    for family in FAMILIES.values():
        first, *others = (name + family.ends[0] for name in family.projections.values())
        for key in sorted(weights):
            at = key.removesuffix(first)
            if key.endswith(first) and all(at + name in weights for name in others):
                found.setdefault(at, family)
    found = {"": _OURS} if weights.keys() >= _OURS.projections.keys() else found
    begin = "" if layer is None else f"{layer.rstrip('.')}."  # whole words
    found = {at: family for at, family in found.items() if f"{at}.".startswith(begin)}
    if not found:
        where = "" if layer is None else f" that begins with {layer!r}"
        raise ValueError(
            f"No attention layer{where}: looked for q, k, v and o, and for the names of "
            f"{', '.join(FAMILIES)}. The arrays are called {_some(sorted(weights), 6)}."
        )
    if len(found) > 1:
        several = _some([at.rstrip(".") for at in found], 8)
        raise ValueError(f"{len(found)} attention layers are there: name one of {several}.")
    return next(iter(found.items()))


def _some(names: Sequence[str], most: int) -> str:
    return (", ".join(names[:most]) or "none") + (" …" if len(names) > most else "")


def _norm(
    weights: Mapping[str, Any], prefix: str, family: Family, eps: float, before: bool | None
) -> LayerNorm:
    """Read a sub-layer's norm."""
    scale, shift = family.norm_names(prefix)
    if scale not in weights:
        raise ValueError(f"No norm of this layer: looked for {scale}. Without eps none is needed.")
    where = family.before if before is None else before
    if where is None:
        raise ValueError(f"Whether {scale} is before the heads or behind is not known: say before.")
    there = real_array(shift, weights[shift]) if shift in weights else None
    centred = there is not None or not family.bare
    return LayerNorm(real_array(scale, weights[scale]), there, eps, where, centred)


def real_array(name: str, values: Any, dimensions: int | None = None) -> Array:
    """Return real, finite numbers of so many dimensions, or of any, as float64."""
    # a torch tensor on another device, or one that needs gradients, is no array yet
    array = np.asarray(values.detach().cpu().double() if hasattr(values, "detach") else values)
    wanted = array.ndim if dimensions is None else dimensions
    if array.dtype.kind not in "fiub" or array.ndim != wanted:
        raise ValueError(
            f"{name} must have {wanted} dimension{'s' if wanted > 1 else ''} of real numbers; it "
            f"is {array.dtype} of shape {array.shape}."
        )
    if not np.isfinite(array := array.astype(np.float64)).all():
        raise ValueError(f"{name} must be finite; it holds NaN or infinity.")
    return array


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
        plane = in_planes(rows) if layout == "halves" else rows
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


def in_planes(rows: NDArray[Any]) -> NDArray[Any]:
    """Return rows of keys or queries, k and k + r/2 of a plane, so that 2k and 2k + 1 are."""
    return rows.reshape(2, -1).T.ravel()


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
