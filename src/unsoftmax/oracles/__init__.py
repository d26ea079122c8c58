"""Where answers come from, and what may stand between a target and its caller."""

from unsoftmax.oracles.coordinates import coordinate
from unsoftmax.oracles.dask_oracle import on_dask
from unsoftmax.oracles.defences import clipped, labels, noisy, norm_capped, rounded
from unsoftmax.oracles.hostile_errors import within
from unsoftmax.oracles.http_oracle import HttpLimits, from_url
from unsoftmax.oracles.onnx_oracle import from_onnx
from unsoftmax.oracles.torch_oracle import from_torch

__all__ = [
    "HttpLimits",
    "clipped",
    "coordinate",
    "from_onnx",
    "from_torch",
    "from_url",
    "labels",
    "noisy",
    "norm_capped",
    "on_dask",
    "rounded",
    "within",
]
