"""What a target is: forward maps, canonical form, equality, files."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from unsoftmax.models import files
from unsoftmax.models.attention_layer import AttentionLayer, LayerHead
from unsoftmax.models.checkpoint import from_checkpoint
from unsoftmax.models.equality import CANONICAL, Equivalence, canonical, equivalent
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.multi_head import MultiHead
from unsoftmax.models.multi_head_transformer import MultiHeadTransformer
from unsoftmax.models.projections import find_projections, from_projections, to_projections
from unsoftmax.models.qk_norm_layer import QkNormLayer
from unsoftmax.models.relu_network import ReluNetwork
from unsoftmax.models.rotary import Rotary
from unsoftmax.models.rotary_head import RotaryHead
from unsoftmax.models.rotary_heads import RotaryHeads
from unsoftmax.models.rotary_layer import RotaryLayer
from unsoftmax.models.single_head import SingleHead
from unsoftmax.models.stack import Stack
from unsoftmax.models.token_head import TokenHead
from unsoftmax.models.transformer import Transformer

__all__ = [
    "AttentionLayer",
    "Equivalence",
    "FeedForward",
    "LayerHead",
    "LayerNorm",
    "MultiHead",
    "MultiHeadTransformer",
    "QkNormLayer",
    "ReluNetwork",
    "Rotary",
    "RotaryHead",
    "RotaryHeads",
    "RotaryLayer",
    "SingleHead",
    "Stack",
    "TokenHead",
    "Transformer",
    "canonical",
    "equivalent",
    "find_projections",
    "from_checkpoint",
    "from_parameters",
    "from_projections",
    "has_parameters",
    "load",
    "load_weights",
    "to_projections",
]

load_weights = files.load_weights

_KINDS: list[type[FrozenModel]] = [*CANONICAL, QkNormLayer, Stack, TokenHead]
_CLASSES = {kind.__name__: kind for kind in _KINDS}


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model that ``model.save(path)`` wrote; its class is the one that was saved.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        The file is no model of unsoftmax, is damaged, or is newer than this program.
    """
    name, arrays = files.read(path)
    if name not in _CLASSES:
        raise ValueError(
            f"{path} holds a {name}, which this program does not know: upgrade unsoftmax."
        )
    try:
        return _CLASSES[name].from_arrays(arrays)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def has_parameters(names: Iterable[str]) -> bool:
    """Tell whether these are the names of all parameters of a model, as W and v are of a head."""
    known = set(names)
    return any(kind.has_parameters(known) for kind in _CLASSES.values())


def from_parameters(arrays: Mapping[str, Any]) -> FrozenModel:
    """Build the model whose parameters these are; names and axes say of which class it is.

    Raises
    ------
    ValueError
        They are no model's parameters.
    """
    refused = []
    for name, kind in _CLASSES.items():
        if kind.has_parameters(arrays):
            try:
                return kind.from_arrays(arrays)
            except (TypeError, ValueError) as error:
                refused.append(f"as a {name}: {error}")
    raise ValueError(f"These are no model's parameters; {'; '.join(refused) or 'by their names'}")
