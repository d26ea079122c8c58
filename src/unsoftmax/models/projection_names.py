"""What people call a layer's projections: found among a model's own arrays, and named like them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.probes import Array

ROLES = ("q", "k", "v", "o")


@dataclass(frozen=True, slots=True)
class NameScheme:
    """What a family of models calls a sub-layer's arrays, before "weight" and "bias"."""

    projections: Mapping[str, str]
    """Behind the layer's prefix; "q+k+v" is one array that holds the three."""
    norm: str
    """The sub-layer's norm: behind the prefix, the prefix's own parent where it begins with "../",
    and the prefix without its dot where it begins with "_"."""
    before: bool | None
    """Where that norm is; None where models of these names differ."""
    square: bool
    """Whether such layers have as many outputs and query rows as d."""
    bare: bool = False
    """Whether such layers have no biases, and norms without a mean: RMSNorm."""


SCHEMES: Mapping[str, NameScheme] = {
    "torch": NameScheme({"q+k+v": "in_proj_", "o": "out_proj."}, "../norm1.", False, True),
    "BERT": NameScheme(
        {"q": "self.query.", "k": "self.key.", "v": "self.value.", "o": "output.dense."},
        "output.LayerNorm.",
        False,
        True,
    ),
    "Llama": NameScheme(
        {role: f"{role}_proj." for role in ROLES}, "../input_layernorm.", True, False, bare=True
    ),
    "OPT": NameScheme(
        {"q": "q_proj.", "k": "k_proj.", "v": "v_proj.", "o": "out_proj."},
        "_layer_norm.",
        None,
        True,
    ),
}


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
        or the names of torch's MultiheadAttention (in_proj_weight), BERT, Llama or OPT.
    layer : str, optional
        What the names begin with, as in ``encoder.layer.0.attention``; it may be left out
        where only one layer is there.
    eps : float, optional
        What the model's norms add to variances: a setting of the model, none of its arrays. Then
        the whole sub-layer is found, its residual and its norm with it (norm_scale and
        norm_shift; BERT's ``output.LayerNorm``, torch's ``norm1``, Llama's ``input_layernorm``,
        ``self_attn_layer_norm``).
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
        are normalised (q_norm, k_norm), which no projection holds; or a norm is asked for and
        none is there, or its place is not known.

    Examples
    --------
    >>> import numpy as np
    >>> state = {"attn.in_proj_weight": np.ones((12, 4)), "attn.out_proj.weight": np.ones((4, 4))}
    >>> {name: array.shape for name, array in find_projections(state).items()}
    {'q': (4, 4), 'k': (4, 4), 'v': (4, 4), 'o': (4, 4)}
    """
    prefix, kind = _only_layer(weights, layer)
    for name in (f"{prefix}q_norm.weight", f"{prefix}k_norm.weight"):
        if name in weights:
            raise ValueError(
                f"{name} is there: this layer normalises queries or keys, so its projections "
                "alone are not its function."
            )
    found: dict[str, Any] = _read(weights, _names(prefix, kind), plain=kind is None)
    if eps is not None:
        found |= {"residual": True, "norm": _norm(weights, prefix, kind, eps, before)}
    elif before is not None:
        raise ValueError("before says where a norm is: give eps with it.")
    return found


def named_projections(
    projections: Mapping[str, Any], names: str, prefix: str = ""
) -> dict[str, Array]:
    """Return projections under the names of a family of models; the inverse of the search.

    Parameters
    ----------
    projections : mapping
        What `find_projections` returns; ``heads``, ``kv_heads`` and ``residual`` are not held by
        arrays.
    names : {"torch", "BERT", "Llama", "OPT"}
        Which names.
    prefix : str, optional
        The layer's, as in ``encoder.layer.0.attention``.

    Raises
    ------
    ValueError
        Models of such names have no place for a norm where this one is.
    """
    scheme, norm = scheme_of(names), projections.get("norm")
    prefix = f"{prefix.rstrip('.')}." if prefix else ""
    state: dict[str, Array] = {}
    for role, name in scheme.projections.items():
        for suffix, ours in (("weight", ""), ("bias", "_bias")):
            parts = [projections.get(part + ours) for part in role.split("+")]
            rows = [part for part in parts if part is not None]
            if rows and not (ours and scheme.bare and not any(x.any() for x in rows)):
                state[f"{prefix}{name}{suffix}"] = np.concatenate(rows)
    if norm is not None:
        if scheme.before not in (None, norm.before) and names != "torch":
            where = "before" if scheme.before else "behind"
            raise ValueError(
                f"{names} has its norm {where} the heads; this one is on their other side."
            )
        place = _norm_place(prefix, scheme)
        state[f"{place}weight"] = norm.scale
        if norm.centred or norm.shift.any():
            state[f"{place}bias"] = norm.shift
    return state


def scheme_of(names: str) -> NameScheme:
    """Return the scheme that people call so."""
    if names not in SCHEMES:
        raise ValueError(f"names must be one of {', '.join(SCHEMES)}; it is {names!r}.")
    return SCHEMES[names]


def may_be_rotary(weights: Mapping[str, Any]) -> bool:
    """Tell whether names are those of models that turn queries and keys by their positions."""
    return any(name.endswith("o_proj.weight") for name in weights)


def _only_layer(weights: Mapping[str, Any], layer: str | None) -> tuple[str, NameScheme | None]:
    """Return the one layer's prefix and names; None for q, k, v and o themselves."""
    found = _layers(weights)
    if layer is not None:
        found = {prefix: names for prefix, names in found.items() if _begins(prefix, layer)}
    if not found:
        where = "" if layer is None else f" that begins with {layer!r}"
        some = ", ".join(sorted(weights)[:6]) or "none"
        raise ValueError(
            f"No attention layer{where}: looked for q, k, v and o, and for the names of "
            f"{', '.join(SCHEMES)}. The arrays are called {some}{' …' if len(weights) > 6 else ''}."
        )
    if len(found) > 1:
        raise ValueError(
            f"{len(found)} attention layers are there: name one of "
            f"{', '.join(prefix.rstrip('.') for prefix in list(found)[:8])}"
            f"{' …' if len(found) > 8 else ''}."
        )
    [only] = found.items()
    return only


def _layers(weights: Mapping[str, Any]) -> dict[str, NameScheme | None]:
    """Return what every layer's names are, by the layer's prefix."""
    if set(ROLES) <= weights.keys():
        return {"": None}
    found: dict[str, NameScheme | None] = {}
    for kind in SCHEMES.values():
        first = next(iter(kind.projections.values())) + "weight"
        for key in sorted(weights):
            prefix = key.removesuffix(first)
            whole = _names(prefix, kind).values()
            if key.endswith(first) and all(f"{name}weight" in weights for name in whole):
                found.setdefault(prefix, kind)
    return found


def _names(prefix: str, kind: NameScheme | None) -> dict[str, str]:
    """Return what a layer's projections are called, by their role."""
    if kind is None:
        return {role: role for role in ROLES}
    return {role: prefix + name for role, name in kind.projections.items()}


def _begins(prefix: str, layer: str) -> bool:
    """Tell whether a layer's prefix begins with these whole words."""
    return f"{prefix}.".startswith(f"{layer.rstrip('.')}.")


def _norm_place(prefix: str, kind: NameScheme | None) -> str:
    """Return what a layer's norm is called, before "weight" and "bias"."""
    if kind is None:
        return "norm_"
    if kind.norm.startswith("../"):
        parent, dot, _ = prefix.rstrip(".").rpartition(".")
        return parent + dot + kind.norm.removeprefix("../")
    return (prefix.rstrip(".") if kind.norm.startswith("_") else prefix) + kind.norm


def _norm(
    weights: Mapping[str, Any],
    prefix: str,
    kind: NameScheme | None,
    eps: float,
    before: bool | None,
) -> LayerNorm:
    """Read a sub-layer's norm."""
    place = _norm_place(prefix, kind)
    scale, shift = (place + x for x in (("scale", "shift") if kind is None else ("weight", "bias")))
    if scale not in weights:
        raise ValueError(f"No norm of this layer: looked for {scale}. Without eps none is needed.")
    where = before if before is not None else None if kind is None else kind.before
    if where is None:
        raise ValueError(f"Whether {scale} is before the heads or behind is not known: say before.")
    there = _float64(shift, weights[shift]) if shift in weights else None
    centred = there is not None or kind is None or not kind.bare
    return LayerNorm(_float64(scale, weights[scale]), there, eps, where, centred)


def _read(weights: Mapping[str, Any], names: Mapping[str, str], plain: bool) -> dict[str, Any]:
    """Take a layer's arrays as float64, q, k and v apart; biases where they are."""
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
    [checked] = real_arrays({name: array}, np.ndim(array))
    return checked


def real_arrays(given: Mapping[str, ArrayLike], dimensions: int) -> list[Array]:
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
