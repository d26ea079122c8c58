"""Where answers come from, and what may stand between a target and its caller."""

from unsoftmax.oracles.defences import clipped, labels, noisy, norm_capped, rounded, within
from unsoftmax.oracles.endpoint_limits import HttpLimits
from unsoftmax.oracles.grpc_oracle import from_grpc
from unsoftmax.oracles.http_oracle import from_url
from unsoftmax.oracles.model_runtimes import from_onnx, from_torch
from unsoftmax.oracles.probabilities import log_ratios, one_against
from unsoftmax.oracles.wrapped import coordinate, from_ids, on_dask

__all__ = [
    "HttpLimits",
    "clipped",
    "coordinate",
    "from_grpc",
    "from_ids",
    "from_onnx",
    "from_torch",
    "from_url",
    "labels",
    "log_ratios",
    "noisy",
    "norm_capped",
    "on_dask",
    "one_against",
    "rounded",
    "within",
]
