"""Services of whole blocks in plain NumPy, written apart from the library.

Those of BERT, OPT, Llama and Qwen3, which normalises queries and keys.

Weights are state dicts as Hugging Face's libraries name them; arithmetic is float32 in several
orders of sums, 16-bit operands, or 16 bits throughout. A service answers at the last position.
"""

import json
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import erf

import unsoftmax as us

HEADS, GROUPS, BASE = 4, 2, 10_000.0
TURNING = ("llama", "qwen3")
EPS = {"bert": 1e-12, "opt": 1e-5, "llama": 1e-6, "qwen3": 1e-6}


def to_bfloat16(x):
    """Round to 8 significant bits."""
    mantissa, exponent = np.frexp(np.asarray(x, np.float64))
    return np.ldexp(np.round(mantissa * 256), exponent - 8)


def to_float16(x):
    return np.asarray(x, np.float16).astype(np.float64)


SHORT = {"bfloat16": to_bfloat16, "float16": to_float16}


@dataclass(frozen=True)
class Arithmetic:
    """How a service computes: its order of sums, what rounds operands, what rounds all results."""

    order: str = "plain"
    operands: str | None = None
    results: str | None = None

    def __call__(self, x):
        """Round a result."""
        x = np.asarray(x, np.float32)
        return np.float32(SHORT[self.results](x)) if self.results else x

    def product(self, x, W):
        """x Wᵀ (…, n)."""
        short = self.operands or self.results
        x, W = (np.float32(SHORT[short](a) if short else a) for a in (x, W))
        W = np.swapaxes(W, -1, -2)
        if self.order == "reversed":
            y = x[..., ::-1] @ W[..., ::-1, :]
        elif self.order == "chunks":
            parts = np.array_split(np.arange(W.shape[-2]), 5)
            y = sum((x[..., part] @ W[..., part, :] for part in parts), np.float32(0))
        else:
            y = x @ W
        return self(y)


ARITHMETICS = {
    "float32": Arithmetic(),
    "float32, sums reversed": Arithmetic("reversed"),
    "float32, sums in parts": Arithmetic("chunks"),
    "bfloat16 operands": Arithmetic(operands="bfloat16"),
    "float16 operands": Arithmetic(operands="float16"),
    "bfloat16": Arithmetic(results="bfloat16"),
    "float16": Arithmetic(results="float16"),
}


def draw(kind, blocks, seed, d=32, wide=64):
    """A random state dict."""
    rng = np.random.default_rng([seed, 17])
    state = {}

    def matrix(name, out, into, bias=True):
        state[f"{name}.weight"] = rng.standard_normal((out, into)) / math.sqrt(into)
        if bias:
            state[f"{name}.bias"] = 0.1 * rng.standard_normal(out)

    def norm(name, bias=True, size=d):
        state[f"{name}.weight"] = 1 + 0.2 * rng.standard_normal(size)
        if bias:
            state[f"{name}.bias"] = 0.1 * rng.standard_normal(size)

    for k in range(blocks):
        if kind == "bert":
            at = f"encoder.layer.{k}."
            for name in ("query", "key", "value"):
                matrix(f"{at}attention.self.{name}", d, d)
            matrix(f"{at}attention.output.dense", d, d)
            norm(f"{at}attention.output.LayerNorm")
            matrix(f"{at}intermediate.dense", wide, d)
            matrix(f"{at}output.dense", d, wide)
            norm(f"{at}output.LayerNorm")
        elif kind == "opt":
            at = f"decoder.layers.{k}."
            for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                matrix(f"{at}self_attn.{name}", d, d)
            norm(f"{at}self_attn_layer_norm")
            matrix(f"{at}fc1", wide, d)
            matrix(f"{at}fc2", d, wide)
            norm(f"{at}final_layer_norm")
        else:
            at, kv = f"layers.{k}.", d * GROUPS // HEADS
            for name, out in (("q_proj", d), ("k_proj", kv), ("v_proj", kv), ("o_proj", d)):
                matrix(f"{at}self_attn.{name}", out, d, bias=False)
            norm(f"{at}input_layernorm", bias=False)
            matrix(f"{at}mlp.up_proj", wide, d, bias=False)
            matrix(f"{at}mlp.gate_proj", wide, d, bias=False)
            matrix(f"{at}mlp.down_proj", d, wide, bias=False)
            norm(f"{at}post_attention_layernorm", bias=False)
            for name in ("q_norm", "k_norm") if kind == "qwen3" else ():
                norm(f"{at}self_attn.{name}", bias=False, size=d // HEADS)
    return {name: np.float32(x).astype(np.float64) for name, x in state.items()}


CONFIG = {
    "bert": {"hidden_act": "gelu", "layer_norm_eps": EPS["bert"]},
    "opt": {"activation_function": "relu", "do_layer_norm_before": True},
    "llama": {"hidden_act": "silu", "rms_norm_eps": EPS["llama"], "rope_theta": BASE,
              "num_key_value_heads": GROUPS},
}  # fmt: skip


CONFIG["qwen3"] = CONFIG["llama"]


def claimed(kind, state, folder):
    """The claim: what `from_checkpoint` reads from a folder."""
    folder.mkdir(exist_ok=True)
    said = {"model_type": kind, "num_attention_heads": HEADS, **CONFIG[kind]}
    (folder / "config.json").write_text(json.dumps(said))
    np.savez(folder / "model.npz", **state)
    return us.from_checkpoint(folder / "model.npz")


def block_count(state):
    return 1 + max(int(part) for name in state for part in name.split(".") if part.isdecimal())


def served(kind, state, how=ARITHMETICS["float32"], order=None, **changes):
    """The service: sequences (B, N, d) to the last position's numbers."""
    act = changes.get("activation", {"bert": "gelu", "opt": "relu"}.get(kind, "silu"))
    eps, base = changes.get("eps", EPS[kind]), changes.get("base", BASE)
    causal = kind != "bert"
    at = {"bert": "encoder.layer.{}.", "opt": "decoder.layers.{}."}.get(kind, "layers.{}.")

    def activation(z):
        z64 = z.astype(np.float64)
        if act == "relu":
            return how(np.maximum(z, 0))
        if act == "silu":
            return how(z64 / (1 + np.exp(-z64)))
        if act == "gelu_tanh":
            return how(z64 / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z64 + 0.044715 * z64**3))))
        return how(z64 / 2 * (1 + erf(z64 / math.sqrt(2))))

    def linear(x, name):
        y = how.product(x, state[f"{name}.weight"])
        bias = state.get(f"{name}.bias")
        return y if bias is None else how(y + how(bias))

    def norm(x, name):
        x = x.astype(np.float32)
        u = x if kind in TURNING else x - x.mean(-1, keepdims=True, dtype=np.float32)
        variance = np.mean(u * u, -1, keepdims=True, dtype=np.float32)
        y = how(u / np.sqrt(variance + np.float32(eps)))
        y = how(y * how(state[f"{name}.weight"]))
        bias = state.get(f"{name}.bias")
        return y if bias is None else how(y + how(bias))

    def turned(x):
        half = x.shape[-1] // 2
        theta = base ** (-np.arange(half) / half)
        angle = np.arange(x.shape[-2])[:, None] * theta
        cos, sin = (f(angle).astype(np.float32) for f in (np.cos, np.sin))
        a, b = x[..., :half], x[..., half:]
        return how(np.concatenate([a * cos - b * sin, b * cos + a * sin], -1))

    def attention(x, names, out):
        B, N, d = x.shape
        size = d // HEADS

        def heads(name):
            y = linear(x, name)
            return y.reshape(B, N, -1, size).swapaxes(1, 2)

        q, k, v = map(heads, names)
        if kind == "qwen3":
            q, k = (norm(u, out.replace("o_proj", f"{x}_norm")) for u, x in ((q, "q"), (k, "k")))
        if kind in TURNING:
            q, k = turned(q), turned(k)
            k, v = (np.repeat(a, HEADS // GROUPS, axis=1) for a in (k, v))
        s = how.product(q, k) / np.float32(math.sqrt(size))
        if causal:
            s = np.where(np.tri(N, dtype=bool), s, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        p = how(p / p.sum(-1, keepdims=True))
        mixed = how.product(p, v.swapaxes(-1, -2))
        return linear(mixed.swapaxes(1, 2).reshape(B, N, d), out)

    def one(x, k):
        p = at.format(k)
        if kind == "bert":
            a = p + "attention."
            names = [f"{a}self.{name}" for name in ("query", "key", "value")]
            x = norm(how(x + attention(x, names, f"{a}output.dense")), f"{a}output.LayerNorm")
            y = linear(activation(linear(x, f"{p}intermediate.dense")), f"{p}output.dense")
            return norm(how(x + y), f"{p}output.LayerNorm")
        a = f"{p}self_attn."
        names = [f"{a}{name}_proj" for name in "qkv"]
        if kind == "opt":
            x = how(x + attention(norm(x, f"{p}self_attn_layer_norm"), names, f"{a}out_proj"))
            z = linear(norm(x, f"{p}final_layer_norm"), f"{p}fc1")
            return how(x + linear(activation(z), f"{p}fc2"))
        x = how(x + attention(norm(x, f"{p}input_layernorm"), names, f"{a}o_proj"))
        z = norm(x, f"{p}post_attention_layernorm")
        gated = how(activation(linear(z, f"{p}mlp.gate_proj")) * linear(z, f"{p}mlp.up_proj"))
        return how(x + linear(gated, f"{p}mlp.down_proj"))

    def answer(X):
        x = how(X)
        for k in order or range(block_count(state)):
            x = one(x, k)
        return x if changes.get("every") else x[:, -1]

    return answer
