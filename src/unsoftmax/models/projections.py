"""Attention weights as models have them: query, key, value and output projections, and their names.

A layer of H heads of d_h dimensions computes q = W_q x + b_q, k = W_k x + b_k, u = W_v x + b_v,
scores k_i·q_N/√d_h in each head, and answers with W_o times all heads' weighted means of u, plus
b_o. Seen through one output coordinate, with rows K_h, Q_h, V_h and the part o_h of the
coordinate's row of W_o that belong to head h, that is a `MultiHead` with

    W_h = K_hᵀ Q_h/√d_h,   w_h = K_hᵀ b_q,h/√d_h,   v_h = V_hᵀ o_h,   c = Σ_h o_h·b_v,h + b_o.

b_k adds the same to all scores of a head, so no answer depends on it: it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.multi_head import MultiHead
from unsoftmax.probes import Array

ROLES = ("q", "k", "v", "o")

NAMES: Mapping[str, Mapping[str, str]] = {
    "torch": {"q+k+v": "in_proj_", "o": "out_proj."},
    "BERT": {
        "q": "self.query.",
        "k": "self.key.",
        "v": "self.value.",
        "o": "output.dense.",
    },
    "Llama": {role: f"{role}_proj." for role in ROLES},
    "OPT": {"q": "q_proj.", "k": "k_proj.", "v": "v_proj.", "o": "out_proj."},
}
"""What projections are called behind a layer's prefix, before "weight" and "bias"."""


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
) -> MultiHead:
    """Build the heads of a layer, seen through one output coordinate, from its projections.

    Parameters
    ----------
    q, k, v : array_like, shapes (H d_h, d), (G d_h, d) and (G d_h, d)
        Query, key and value projections, (out, in) as torch has them; G = ``kv_heads``.
    o : array_like, shape (m, H d_h)
        Output projection.
    heads : int
        Number of heads H.
    q_bias, k_bias, v_bias, o_bias : array_like, optional
        Their biases. ``k_bias`` is checked and left out: no answer depends on it.
    kv_heads : int, optional
        Number G of key and value heads, H by default: H/G query heads share one.
    coordinate : int or array_like of shape (m,)
        Which of the m output numbers is asked for, or the weights of those that are added up.

    Returns
    -------
    MultiHead
        With factors K and Q (H, d_h, d); W_h = K_hᵀQ_h holds the scale 1/√d_h.

    Raises
    ------
    ValueError
        Shapes do not fit each other, an entry is not finite, or ``coordinate`` is missing.

    Notes
    -----
    Scores depend on the tokens alone. A layer that turns queries and keys by their positions
    (rotary, as Llama's) is another function than the model built here.

    Examples
    --------
    >>> import numpy as np
    >>> q, k, v, o = np.random.default_rng(0).standard_normal((4, 6, 6))
    >>> layer = from_projections(q, k, v, o, heads=2, coordinate=0)
    >>> layer.v.shape, bool(np.allclose(layer.W[1], k[3:].T @ q[3:] / np.sqrt(3)))
    ((2, 6), True)
    """
    if coordinate is None:
        raise ValueError(
            "coordinate is missing: name the output coordinate that is asked for, or its weights "
            "(m,). A layer with all its outputs is no model of this version."
        )
    H, G = _positive("heads", heads), _positive("kv_heads", heads if kv_heads is None else kv_heads)
    Q, K, V, out = _arrays({"q": q, "k": k, "v": v, "o": o}, 2)
    size = _head_size(Q, K, V, out, H, G)
    b_q, b_k, b_v, b_o = (
        np.zeros(len(rows)) if bias is None else _arrays({f"{name}_bias": bias}, 1)[0]
        for name, rows, bias in zip(
            ROLES, (Q, K, V, out), (q_bias, k_bias, v_bias, o_bias), strict=True
        )
    )
    for name, rows, bias in zip(ROLES, (Q, K, V, out), (b_q, b_k, b_v, b_o), strict=True):
        if bias.shape != (len(rows),):
            raise ValueError(f"{name}_bias must have shape ({len(rows)},); it has {bias.shape}.")
    row = _weights_of(coordinate, len(out))
    o_h = (row @ out).reshape(H, size)
    # query heads that share a key and value head stand beside each other
    K, V = (np.repeat(x.reshape(G, size, -1), H // G, axis=0) for x in (K, V))
    b_v = np.repeat(b_v.reshape(G, size), H // G, axis=0)
    scale = 1 / math.sqrt(size)
    return MultiHead.from_factors(
        K,
        scale * Q.reshape(H, size, -1),
        v=np.einsum("hr,hrd->hd", o_h, V),
        w=scale * np.einsum("hrd,hr->hd", K, b_q.reshape(H, size)),
        c=float(np.sum(o_h * b_v) + row @ b_o),
    )


def find_projections(weights: Mapping[str, Any], layer: str | None = None) -> dict[str, Any]:
    """Find a layer's projections among a model's own arrays, by the names that people use.

    Parameters
    ----------
    weights : mapping of str to array
        A state dict, or what an ``.npz`` or ``.safetensors`` holds: q, k, v, o (with q_bias …),
        or the names of torch's MultiheadAttention (in_proj_weight), BERT, Llama or OPT.
    layer : str, optional
        What the names begin with, as in ``encoder.layer.0.attention``; it may be left out
        where only one layer is there.

    Returns
    -------
    dict of str to ndarray
        ``q``, ``k``, ``v``, ``o`` and the biases that are there, as `from_projections` takes them.

    Raises
    ------
    ValueError
        No layer is there, or several are and ``layer`` names none of them; or queries and keys
        are normalised (q_norm, k_norm), which no projection holds.

    Examples
    --------
    >>> import numpy as np
    >>> state = {"attn.in_proj_weight": np.ones((12, 4)), "attn.out_proj.weight": np.ones((4, 4))}
    >>> {name: array.shape for name, array in find_projections(state).items()}
    {'q': (4, 4), 'k': (4, 4), 'v': (4, 4), 'o': (4, 4)}
    """
    found = _layers(weights)
    if layer is not None:
        found = {prefix: names for prefix, names in found.items() if _begins(prefix, layer)}
    if not found:
        where = "" if layer is None else f" that begins with {layer!r}"
        some = ", ".join(sorted(weights)[:6]) or "none"
        raise ValueError(
            f"No attention layer{where}: looked for q, k, v and o, and for the names of "
            f"{', '.join(NAMES)}. The arrays are called {some}{' …' if len(weights) > 6 else ''}."
        )
    if len(found) > 1:
        raise ValueError(
            f"{len(found)} attention layers are there: name one of "
            f"{', '.join(prefix.rstrip('.') for prefix in list(found)[:8])}"
            f"{' …' if len(found) > 8 else ''}."
        )
    [(prefix, names)] = found.items()
    for name in (f"{prefix}q_norm.weight", f"{prefix}k_norm.weight"):
        if name in weights:
            raise ValueError(
                f"{name} is there: this layer normalises queries or keys, so its projections "
                "alone are not its function."
            )
    return _read(weights, names)


def may_be_rotary(weights: Mapping[str, Any]) -> bool:
    """Tell whether names are those of models that turn queries and keys by their positions."""
    return any(name.endswith("o_proj.weight") for name in weights)


def _layers(weights: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the names of every layer's projections, by the layer's prefix."""
    if set(ROLES) <= weights.keys():
        return {"": {role: role for role in ROLES}}
    found: dict[str, dict[str, str]] = {}
    for names in NAMES.values():
        first = next(iter(names.values())) + "weight"
        for key in sorted(weights):
            prefix = key.removesuffix(first)
            whole = {role: prefix + name for role, name in names.items()}
            if key.endswith(first) and all(f"{name}weight" in weights for name in whole.values()):
                found.setdefault(prefix, whole)
    return found


def _begins(prefix: str, layer: str) -> bool:
    """Tell whether a layer's prefix begins with these whole words."""
    return f"{prefix}.".startswith(f"{layer.rstrip('.')}.")


def _read(weights: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Array]:
    """Take a layer's arrays as float64, q, k and v apart; biases where they are."""
    plain = set(names.values()) == set(ROLES)
    found: dict[str, Array] = {}
    for role, name in names.items():
        bias = f"{name}_bias" if plain else f"{name}bias"
        for key, suffix in ((name if plain else f"{name}weight", ""), (bias, "_bias")):
            if key not in weights:
                continue
            array = _float64(key, weights[key])
            parts = role.split("+")
            if len(array) % len(parts):
                raise ValueError(f"{key} must hold {role} in equal parts; it has {array.shape}.")
            for part, rows in zip(parts, np.split(array, len(parts)), strict=True):
                found[part + suffix] = rows
    order = [role + suffix for suffix in ("", "_bias") for role in ROLES]
    return {name: found[name] for name in order if name in found}


def _float64(name: str, array: Any) -> Array:
    # a torch tensor on another device, or one that needs gradients, is no array yet
    if hasattr(array, "detach"):
        array = array.detach().cpu().double().numpy()
    [checked] = _arrays({name: array}, np.ndim(array))
    return checked


def _arrays(given: Mapping[str, ArrayLike], dimensions: int) -> list[Array]:
    """Return arrays of real, finite numbers and of so many dimensions as float64."""
    arrays = []
    for name, values in given.items():
        array = np.asarray(values)
        if array.dtype.kind not in "fiub" or array.ndim != dimensions:
            raise ValueError(
                f"{name} must have {dimensions} dimension{'s' if dimensions > 1 else ''} of real "
                f"numbers; it is {array.dtype} of shape {array.shape}."
            )
        array = array.astype(np.float64)
        if not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite; it holds NaN or infinity.")
        arrays.append(array)
    return arrays


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
    [row] = _arrays({"coordinate": coordinate}, 1)
    if row.shape != (outputs,):
        raise ValueError(f"coordinate must be a number or have shape ({outputs},).")
    return row
