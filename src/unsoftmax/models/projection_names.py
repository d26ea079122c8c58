"""What people call a layer's projections: found among a model's own arrays, and named like them.

What a family of models calls its arrays, and how it lays them out, is a row of `FAMILIES`: another
family is another row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unsoftmax.models.layer_norm import LayerNorm
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
        are normalised (q_norm, k_norm), which no projection holds; or a norm is asked for and
        none is there, or its place is not known.

    Examples
    --------
    >>> import numpy as np
    >>> state = {"attn.in_proj_weight": np.ones((12, 4)), "attn.out_proj.weight": np.ones((4, 4))}
    >>> {name: array.shape for name, array in find_projections(state).items()}
    {'q': (4, 4), 'k': (4, 4), 'v': (4, 4), 'o': (4, 4)}
    """
    prefix, family = _only_layer(weights, layer)
    for name in (f"{prefix}q_norm.weight", f"{prefix}k_norm.weight"):
        if name in weights:
            raise ValueError(
                f"{name} is there: this layer normalises queries or keys, so its projections "
                "alone are not its function."
            )
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
