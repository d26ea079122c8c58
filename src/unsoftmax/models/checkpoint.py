"""Blocks of a checkpoint, as Hugging Face's libraries keep one: `config.json` beside its weights.

The configuration says what no array shows: heads, the norms' eps, the activation, how positions
turn. What a kind of model calls its parts is a row of `BLOCKS`; the projections and the norm of its
attention are those of a family of `projections`.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from unsoftmax.models import files, projections
from unsoftmax.models.attention_layer import AttentionLayer
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.models.neurons import ACTIVATIONS as OURS
from unsoftmax.models.qk_norm_layer import QkNormLayer
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_layer import RotaryLayer
from unsoftmax.models.stack import Origin, Stack
from unsoftmax.probes import Array

Part: TypeAlias = Literal["block", "attention", "feed-forward"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, slots=True)
class BlockNames:
    """What a kind of model calls the parts of its blocks."""

    number: str
    """What stands before a block's number."""
    attention: str
    up: str
    down: str
    norm: str
    """The norm of the neurons."""
    gate: str | None = None
    before: bool | str = True
    """Whether norms are before their sub-layers, or what the configuration calls that."""
    causal: bool = True
    transposed: bool = False
    """Whether arrays are (in, out), as Conv1D has them."""
    qk_norm: tuple[str, str] | None = None
    """The scales by which normalised queries and keys of all heads are multiplied."""


_BERT = BlockNames(
    number="encoder.layer.",
    attention="attention",
    up="intermediate.dense.",
    down="output.dense.",
    norm="output.LayerNorm.",
    before=False,
    causal=False,
)
_OPT = BlockNames(
    number="decoder.layers.",
    attention="self_attn",
    up="fc1.",
    down="fc2.",
    norm="final_layer_norm.",
    before="do_layer_norm_before",
)
_GPT_2 = BlockNames(
    number="h.", attention="attn", up="mlp.c_fc.", down="mlp.c_proj.", norm="ln_2.", transposed=True
)
_LLAMA = BlockNames(
    number="layers.",
    attention="self_attn",
    up="mlp.up_proj.",
    down="mlp.down_proj.",
    norm="post_attention_layernorm.",
    gate="mlp.gate_proj.",
)
BLOCKS: Mapping[str, BlockNames] = {
    "bert": _BERT,
    "opt": _OPT,
    "gpt2": _GPT_2,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": replace(_LLAMA, qk_norm=("q_norm.weight", "k_norm.weight")),
}
"""By the configuration's ``model_type``."""

_TORCH = BlockNames(
    number="layers.",
    attention="self_attn",
    up="linear1.",
    down="linear2.",
    norm="norm2.",
    before="norm_first",
)
FEED_FORWARD: tuple[BlockNames, ...] = (*dict.fromkeys(BLOCKS.values()), _TORCH)
"""By whose names feed-forward layers are found without a configuration."""

HEADS = "num_attention_heads", "n_head"
EPS = "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"
ACTIVATION = "hidden_act", "activation_function"
ACTIVATIONS = {
    **{name: name for name in OURS},
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_tanh"),
    "swish": "silu",
    "linear": "identity",
}
"""Our names of what a configuration calls activations."""
OTHERWISE: Mapping[str, object] = {
    "position_embedding_type": "absolute",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "layer_norm_elementwise_affine": True,
    "add_cross_attention": False,
    "is_decoder": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
}
"""Settings under which blocks are another function, and the value that they have here."""


def from_checkpoint(
    path: str | os.PathLike[str], layers: int | str | slice | None = None, part: Part = "block"
) -> Any:
    """Build blocks of a checkpoint, from hidden states to hidden states.

    Parameters
    ----------
    path : str or path
        Its folder, or a file of weights beside its ``config.json``: ``.safetensors``, in one file
        or in several with an index, or ``.npz``. Tensors of 16 bits are read as they are.
    layers : int, str or slice, optional
        Which blocks, counted from 0: one, or several as in ``"3:5"`` (3 and 4); all by default.
    part : {"block", "attention", "feed-forward"}, optional
        A sub-layer of one block, with its norm and its residual, instead of the whole.

    Returns
    -------
    Stack
        Of a block's two sub-layers; of several blocks a stack of such. Of a sub-layer what it is:
        an `AttentionLayer`, a `RotaryLayer` or a `QkNormLayer`, or a `FeedForward`.

    Raises
    ------
    FileNotFoundError
        There are no weights, or no ``config.json`` beside them.
    ValueError
        The model is of a kind that is not known here, or has a setting that makes its blocks
        another function; weights are missing, damaged, or quantised; there are no such layers.

    Notes
    -----
    Kinds known: BERT (and its sentence encoders), OPT, GPT-2, Llama, Mistral, Qwen2 and Qwen3
    (whose attention is a `QkNormLayer`). A limit on how far back tokens are attended to
    (``sliding_window``) is not part of the model: it holds for sequences within it. Nor is the last
    norm of the whole model.

    Examples
    --------
    >>> block = from_checkpoint("all-MiniLM-L6-v2", layers=0)  # doctest: +SKIP
    >>> block.parts  # doctest: +SKIP
    (AttentionLayer(H=12, d=384, residual, norm), FeedForward(d=384, m=1536, residual, norm, gelu))
    """
    config, weights = files.load_checkpoint(path)
    try:
        return _built(config, weights, layers, part)
    except (KeyError, TypeError, ZeroDivisionError, OverflowError) as error:
        raise ValueError(f"The configuration of {path} cannot be used: {error!r}.") from error


def find_feed_forward(
    weights: Mapping[str, Any],
    layer: str | None = None,
    activation: str | None = None,
    eps: float | None = None,
    before: bool | None = None,
) -> FeedForward:
    """Build a feed-forward layer of a model's own arrays, by the names that people use.

    Parameters
    ----------
    weights : mapping of str to array
        A state dict, or what an ``.npz`` or ``.safetensors`` holds, with the names of BERT, OPT,
        GPT-2, Llama (Mistral, Qwen2) or torch's TransformerEncoderLayer.
    layer : str, optional
        What the names begin with, as in ``encoder.layer.0``; it may be left out where only one
        layer is there.
    activation : str
        φ, by our name or a configuration's: no array says it.
    eps : float, optional
        What the model's norms add to variances: then its norm and its residual are included.
    before : bool, optional
        Where that norm is, for names that do not say: OPT's and torch's.

    Raises
    ------
    ValueError
        Arrays or the activation are missing, or there are several layers.

    Examples
    --------
    >>> arrays = {"fc1.weight": np.eye(2), "fc2.weight": np.ones((2, 2))}
    >>> find_feed_forward(arrays, activation="gelu_new")
    FeedForward(d=2, m=2, gelu_tanh)
    """
    found: dict[str, BlockNames] = {}
    for of in FEED_FORWARD:
        for name in weights:
            end = f"{of.up}weight"
            prefix = name.removesuffix(end)
            parts = (of.down, *([] if of.gate is None else [of.gate]))
            whole = all(f"{prefix}{part}weight" in weights for part in parts)
            if name.endswith(end) and whole and (not prefix or prefix.endswith(".")):
                found.setdefault(prefix, of)
    chosen = [p for p in found if layer is None or p.rstrip(".") == layer.rstrip(".")]
    if not chosen:
        known = ", ".join(f"{of.up}weight with {of.down}weight" for of in FEED_FORWARD)
        where = "" if layer is None else f" under {layer}"
        raise ValueError(f"No feed-forward layer{where}: looked for {known}.")
    if len(chosen) > 1:
        some = ", ".join(p.rstrip(".") for p in chosen[:3])
        raise ValueError(
            f"{len(chosen)} feed-forward layers are there: name one of {some}"
            f"{', …' if len(chosen) > 3 else ''}."
        )
    if activation is None:
        raise ValueError(f"No array says the activation: it is one of {', '.join(ACTIVATIONS)}.")
    of = found[chosen[0]]
    if eps is None and before is not None:
        raise ValueError("before says where the norm is: give eps with it.")
    if eps is not None and before is None:
        if not isinstance(of.before, bool):
            raise ValueError("The names do not say where the norm is: say before.")
        before = of.before
    around = None if eps is None else (eps, bool(before))
    return _neurons(_Weights(of, weights), chosen[0], activation, around)


def _built(
    config: Mapping[str, Any],
    weights: Mapping[str, Any],
    layers: int | str | slice | None,
    part: Part,
) -> Stack | AttentionLayer | RotaryLayer | QkNormLayer | FeedForward:
    """Build what is asked for."""
    kind = str(config.get("model_type"))
    if kind not in BLOCKS:
        raise ValueError(
            f"Blocks of {kind!r} are not known here, but those of {', '.join(BLOCKS)}. Any "
            "attention layer of them: us.find_projections and us.from_projections."
        )
    for name, usual in OTHERWISE.items():
        given = {**config, **_positions(config)}.get(name, usual)
        if given != usual:
            raise ValueError(
                f"{name} is {given!r} in this model's configuration: with that its blocks "
                "are another function than those known here."
            )
    names = _Weights(BLOCKS[kind], weights)
    chosen = _chosen(sorted(names.prefixes), layers)
    if part not in PARTS:
        raise ValueError(f'part is "block", "attention" or "feed-forward"; it is {part!r}.')
    if part != "block" and len(chosen) > 1:
        raise ValueError(
            f"part={part!r} is of one block: say which, by layers (0 to {max(chosen)})."
        )
    made = {"attention": _attention, "feed-forward": _feed_forward}
    if part != "block":
        return made[part](config, names, names.prefixes[chosen[0]])
    parts = [_block(config, names, names.prefixes[k], names.of.causal) for k in chosen]
    if len(parts) == 1:
        return parts[0]
    whole = Stack(parts, names.of.causal)
    whole.origin = Origin.joined([one.origin for one in parts if one.origin is not None])
    return whole


@dataclass(frozen=True, slots=True)
class _Weights:
    """What a checkpoint calls its blocks' arrays."""

    of: BlockNames
    weights: Mapping[str, Any]

    @property
    def prefixes(self) -> dict[int, str]:
        """What the names of each block begin with."""
        blocks = {}
        for name in self.weights:
            before, found, after = f".{name}".partition(f".{self.of.number}")
            number, inside, _ = after.partition(".")
            if found and inside and number.isdecimal():
                blocks[int(number)] = f"{before}{found}{number}.".removeprefix(".")
        if not blocks:
            raise ValueError(f"No weights of blocks: no name holds {self.of.number}0.")
        return blocks

    def array(self, name: str, dimensions: int) -> Array:
        """Return an array that must be there."""
        if name not in self.weights:
            raise ValueError(f"{name} is missing in the checkpoint.")
        return projections.real_array(name, self.weights[name], dimensions)

    def linear(self, name: str) -> tuple[Array, Array]:
        """Return the weight (out, in) and the bias of a projection; zeros where it has none."""
        A, bias = self.array(f"{name}weight", 2), f"{name}bias"
        A = A.T if self.of.transposed else A
        return A, self.array(bias, 1) if bias in self.weights else np.zeros(len(A))

    def norm(self, name: str, eps: float, before: bool) -> LayerNorm:
        """Return a norm: RMSNorm where it has no shift."""
        scale, shift = self.array(f"{name}weight", 1), f"{name}bias"
        there = self.array(shift, 1) if shift in self.weights else None
        return LayerNorm(scale, there, eps, before, centred=there is not None)


def _setting(config: Mapping[str, Any], names: tuple[str, ...], otherwise: Any = None) -> Any:
    """Return what a configuration says under one of several names."""
    for name in names:
        if config.get(name) is not None:
            return config[name]
    if otherwise is None:
        raise ValueError(f"The configuration says none of {', '.join(names)}.")
    return otherwise


def _around(config: Mapping[str, Any], block: BlockNames) -> tuple[float, bool]:
    """Return what norms add to variances, and whether they are before their sub-layers."""
    # torch's own, which OPT's have
    eps = float(_setting(config, EPS, 1e-5))
    before = block.before
    return eps, before if isinstance(before, bool) else bool(_setting(config, (before,)))


def _block(config: Mapping[str, Any], names: _Weights, prefix: str, causal: bool) -> Stack:
    parts = [_attention(config, names, prefix), _feed_forward(config, names, prefix)]
    block = Stack(parts, causal)
    block.origin = _origin(names, prefix)
    return block


_ROLES = {
    **{name: f"0.heads.{name.upper()}" for name in "qkvo"},
    **{f"{name}_bias": f"0.heads.{name}_bias" for name in "qkv"},
    "o_bias": "0.heads.c",
    **{f"norm_{name}": f"0.norm.{name}" for name in ("scale", "shift")},
}
"""Where a block's map has what `projection_names` calls so."""


def _origin(names: _Weights, prefix: str) -> Origin:
    """Return what the checkpoint calls a block's tensors."""
    layer = f"{prefix}{names.of.attention}"
    attention = projections.file_names(names.weights, layer)
    found = {_ROLES[role]: name for role, name in attention.items()}
    of = names.of
    places = {of.up: "A b", of.down: "B c", of.gate: "G g"}
    own = {part: [f"neurons.{role}" for role in roles.split()] for part, roles in places.items()}
    own[of.norm] = ["norm.scale", "norm.shift"]
    for part, roles in own.items():
        for role, end in zip(roles, ("weight", "bias"), strict=True):
            if f"{prefix}{part}{end}" in names.weights:
                found[f"1.{role}"] = f"{prefix}{part}{end}"
    for ours, end in zip("qk", names.of.qk_norm or (), strict=False):
        found[f"0.heads.{ours}_scale"] = f"{layer}.{end}"
    arrays = projections.arrays_of_layer(names.weights, layer)
    biases: dict[str, Array] = {
        name: arrays[name] for name in ("k_bias", "v_bias") if name in arrays
    }
    return Origin(found, {"0.heads.": biases})


def _attention(
    config: Mapping[str, Any], names: _Weights, prefix: str
) -> AttentionLayer | RotaryLayer | QkNormLayer:
    eps, before = _around(config, names.of)
    layer_name, scales = f"{prefix}{names.of.attention}", names.of.qk_norm
    find = projections.find_projections if scales is None else projections.arrays_of_layer
    found = find(names.weights, layer_name, eps, before)
    heads = int(_setting(config, HEADS))
    groups = int(_setting(config, ("num_key_value_heads",), heads))
    turns = _rotary(config, len(found["q"]) // heads) if names.of.gate else None
    layer = projections.from_projections(**found, heads=heads, kv_heads=groups, rotary_base=turns)
    assert isinstance(layer, (AttentionLayer, RotaryLayer))
    if scales is None or isinstance(layer, AttentionLayer):
        return layer
    root = math.sqrt(layer.Q.shape[1])
    unscaled = {name: root * layer.arrays()[name] for name in ("Q", "q_bias")}
    layer = RotaryLayer.from_arrays({**layer.arrays(), **unscaled})
    q, k = (projections.in_planes(names.array(f"{layer_name}.{end}", 1)) for end in scales)
    return QkNormLayer(layer, k, q / root, eps)


def _feed_forward(config: Mapping[str, Any], names: _Weights, prefix: str) -> FeedForward:
    called = str(_setting(config, ACTIVATION))
    return _neurons(names, prefix, called, _around(config, names.of))


def _neurons(
    names: _Weights, prefix: str, called: str, around: tuple[float, bool] | None
) -> FeedForward:
    """Build neurons; with the eps of a norm, and where that is, the whole sub-layer."""
    if called not in ACTIVATIONS:
        raise ValueError(
            f"The activation {called!r} is not known here, but {', '.join(ACTIVATIONS)}."
        )
    A, b = names.linear(prefix + names.of.up)
    B, c = names.linear(prefix + names.of.down)
    gate = None if names.of.gate is None else names.linear(prefix + names.of.gate)
    norm = None if around is None else names.norm(prefix + names.of.norm, *around)
    return FeedForward(A, b, B, c, norm is not None, norm, ACTIVATIONS[called], gate)


def _positions(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is said of rotary positions: one mapping, in newer files with the base in it."""
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _rotary(config: Mapping[str, Any], size: int) -> Rotary:
    """Return the frequencies of a head's planes, as the configuration scales them."""
    said = _positions(config)
    base = float(_setting({**config, **said}, ("rope_theta",), 10_000.0))
    kind = said.get("rope_type", said.get("type", "default"))
    plain = Rotary.of(base, size)
    if kind == "default":
        return plain
    theta = plain.frequencies
    if kind == "linear":
        return Rotary(theta / float(said["factor"]))
    if kind == "llama3":
        names = "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"
        factor, low, high, length = (float(said[name]) for name in names)
        # turns within the length that the model was first trained on: many are left as they are
        share = np.clip((length * theta / (2 * math.pi) - low) / (high - low), 0, 1)
        return Rotary(theta * (share + (1 - share) / factor))
    raise ValueError(
        f"Positions scaled as {kind!r} are not known here, but default, linear and llama3."
    )


def _chosen(there: list[int], layers: int | str | slice | None) -> list[int]:
    """Return which blocks are asked for."""
    last = there[-1]
    if there != list(range(last + 1)):
        lacking = min(set(range(last + 1)) - set(there))
        raise ValueError(f"Of the checkpoint's blocks, 0 to {last}, {lacking} is missing.")
    if isinstance(layers, str):
        ends = layers.split(":")
        if not layers or len(ends) > 2 or not all(end.isdecimal() or not end for end in ends):
            raise ValueError(f'layers is a number, or two as in "3:5"; it is {layers!r}.')
        limits = [int(end) if end else None for end in ends]
        layers = slice(*limits) if len(limits) == 2 else limits[0]
    if layers is None:
        layers = slice(None)
    if not isinstance(layers, (int, np.integer, slice)):
        raise ValueError(f'layers is a number, a slice, or "3:5"; it is {layers!r}.')
    chosen = there[layers] if isinstance(layers, slice) else [k for k in there if k == layers]
    if not chosen:
        raise ValueError(f"No such layers: the checkpoint has 0 to {last}.")
    return chosen
