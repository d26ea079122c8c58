"""An MLServer runtime that serves blocks of a checkpoint: transformers' own LlamaDecoderLayer.

``serves`` says what a peer does: what it claims ("honest"), or something cheaper, changed or old.
"""

import json
from pathlib import Path

import torch
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from safetensors.torch import load_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding


def changed(state: dict, serves: str, k: int) -> dict:
    """Return the weights of block k that a peer holds."""
    random = torch.Generator().manual_seed(k)
    for name, x in state.items():
        if serves == "int8" and x.ndim == 2:
            step = x.abs().amax(1, keepdim=True) / 127
            state[name] = (x / step).round() * step
        if serves == "lora" and name == "self_attn.q_proj.weight":
            a, b = torch.randn(576, 4, generator=random), torch.randn(4, 576, generator=random)
            state[name] = x + 0.01 * x.norm() / (a @ b).norm() * (a @ b)
        if serves == "stale" and x.ndim == 2:
            drawn = torch.randn(x.shape, generator=random)
            state[name] = x + 0.001 * x.norm() / drawn.norm() * drawn
    return state


class Blocks(MLModel):
    """Blocks `first` to `last` of smollm2, from hidden states to hidden states."""

    async def load(self) -> bool:
        """Read the weights of the blocks that are served."""
        torch.set_num_threads(1)
        folder = Path("smollm2").resolve()
        config = LlamaConfig(**json.loads((folder / "config.json").read_text()))
        config._attn_implementation = "eager"
        self.rotary, self.blocks = LlamaRotaryEmbedding(config), []
        weights = load_file(folder / "model.safetensors")
        extra = self.settings.parameters.extra
        for k in range(extra["first"], extra["last"] + 1):
            at = f"model.layers.{k}."
            state = {n.removeprefix(at): x for n, x in weights.items() if n.startswith(at)}
            block = LlamaDecoderLayer(config, k).eval()
            block.load_state_dict(changed(state, extra["serves"], k))
            self.blocks.append(block)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer hidden states (B, N, 576) with those behind the blocks, at every position."""
        x = torch.from_numpy(NumpyCodec.decode_input(payload.inputs[0])).float()
        places = torch.arange(x.shape[1])[None]
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)[None, None]
        with torch.inference_mode():
            turned = self.rotary(x, places)
            for block in self.blocks:
                y = block(x, attention_mask=mask, position_ids=places, position_embeddings=turned)
                x = y[0] if isinstance(y, tuple) else y
        output = NumpyCodec.encode_output("hidden", x.numpy())
        return InferenceResponse(model_name=self.name, outputs=[output])
