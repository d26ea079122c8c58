"""Targets that serve given weights as libraries do, and changes of weights to be noticed."""

from typing import Any

import numpy as np

import unsoftmax as us


def served(model: Any, dtype: Any, values: Any = None) -> Any:
    """One head or several computed in ``dtype``: X → scores → softmax → values, summed over heads.

    ``values`` = (B (H, k, d), o (H, k), bias (H, k)) computes them as X → V → output.
    """
    a, d = model.arrays(), model.dim
    K, Q = (
        (a["K"].reshape(-1, *a["K"].shape[-2:]), a["Q"].reshape(-1, *a["Q"].shape[-2:]))
        if "K" in a
        else (np.broadcast_to(np.eye(d), (a["W"].size // d**2, d, d)), a["W"].reshape(-1, d, d))
    )
    w, v = a["w"].reshape(-1, d), a["v"].reshape(-1, d)
    K, Q, w, v, c = (np.asarray(x, dtype) for x in (K, Q, w, v, a["c"]))
    B, o, bias = (np.asarray(x, dtype) for x in values) if values else (v[:, None], None, None)

    def answer(X: Any) -> Any:
        X = X.astype(dtype)
        q = np.matmul(X[:, None, -1:], Q.transpose(0, 2, 1))
        scores = np.matmul(np.matmul(q, K) + w[:, None], X[:, None].transpose(0, 1, 3, 2))[:, :, 0]
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = weights / weights.sum(axis=-1, keepdims=True)
        pooled = np.matmul(X[:, None], B.transpose(0, 2, 1))
        pooled = pooled if bias is None else pooled + bias[:, None]
        out = np.matmul(weights[:, :, None], pooled)[:, :, 0]
        out = out if o is None else out * o
        return (out.sum(axis=(1, 2), dtype=dtype) + c).astype(dtype)

    return answer


def through_values(model: Any, dtype: Any, rng: Any) -> tuple[Any, Any]:
    """The same with value and output projections and their biases; and the weights it serves."""
    a = {name: np.array(x) for name, x in model.arrays().items()}
    v = a["v"].reshape(-1, model.dim)
    B, o, bias = (rng.standard_normal((len(v), *s)) for s in ((3, model.dim), (3,), (3,)))
    B[:, 0] = (v - np.einsum("hk,hkd->hd", o[:, 1:], B[:, 1:])) / o[:, :1]
    B, o, bias = (x.astype(dtype).astype(np.float64) for x in (B, o, bias))
    c = float(np.asarray(a["c"] - np.sum(o * bias), dtype))
    own = {**a, "c": np.array(c)}
    a |= {"v": np.einsum("hk,hkd->hd", o, B).reshape(a["v"].shape), "c": c + np.sum(o * bias)}
    serving = type(model).from_arrays(own)
    return served(serving, dtype, (B, o, bias)), type(model).from_arrays(a)


def heads(rng: Any, wide: float = 3.0) -> Any:
    """Draw one head or several, of any size and shape."""
    d, H = int(rng.choice([1, 2, 3, 5, 8, 16])), int(rng.choice([1, 1, 2, 3, 6]))
    W = rng.standard_normal((H, d, d)) / np.sqrt(d)
    v, w, c = rng.standard_normal((H, d)), None, 0.0
    kind = rng.choice(["dense", "sparse", "six decades", "rank one", "one is 0"])
    if kind == "sparse":
        W *= rng.random(W.shape) < 0.3
    elif kind == "six decades":
        W, v = (x * 10.0 ** rng.uniform(-wide, wide, x.shape) for x in (W, v))
    elif kind == "rank one":
        W = rng.standard_normal((H, d, 1)) * rng.standard_normal((H, 1, d))
    elif kind == "one is 0":
        W[0] = 0
    s, t = 10.0 ** rng.uniform(-wide, wide, 2)
    if rng.random() < 0.5:
        w = s * rng.standard_normal((H, d)) * 10.0 ** rng.uniform(-2, 1)
        c = float(t * rng.standard_normal())
    if H > 1 or rng.random() < 0.5:
        return us.MultiHead(s * W, t * v, w, c)
    return us.SingleHead(s * W[0], t * v[0], None if w is None else w[0], c)


def network(rng: Any, d: int = 6, m: int = 20, biases: bool = True) -> us.ReluNetwork:
    """Draw a ReLU network."""
    A, w_o = rng.standard_normal((d, m)) / np.sqrt(d), rng.standard_normal(m)
    return us.ReluNetwork(A, w_o, rng.standard_normal(m), 0.5) if biases else us.ReluNetwork(A, w_o)


def transformer(rng: Any, d: int = 6, m: int = 20, biases: bool = True) -> us.Transformer:
    """Draw a head before a ReLU network."""
    w = 0.3 * rng.standard_normal(d) if biases else None
    return us.Transformer(rng.standard_normal((d, d)) / np.sqrt(d), network(rng, d, m, biases), w)


def joint(
    rng: Any, d: int = 6, m: int = 20, biases: bool = True, residual: bool = False
) -> us.MultiHeadTransformer:
    """Draw three heads before a ReLU network."""
    W, V = rng.standard_normal((2, 3, d, d)) / np.sqrt(d)
    w = 0.3 * rng.standard_normal((3, d)) if biases else None
    return us.MultiHeadTransformer.from_heads(W, V, network(rng, d, m, biases), w, residual)


# -- changes of weights


def rounded_to(dtype: Any) -> Any:
    """Weights stored in a shorter format."""
    return lambda x, rng: x.astype(dtype).astype(np.float64)


def to_bfloat16(x: Any, rng: Any) -> Any:
    """Weights stored as bfloat16."""
    bits = x.astype(np.float32).view(np.uint32) + 0x8000
    return (bits >> 16 << 16).view(np.float32).astype(np.float64)


def to_int8(x: Any, rng: Any) -> Any:
    """Weights stored as int8 with one scale."""
    scale = np.abs(x).max() / 127
    return np.round(x / scale) * scale if scale else x


def moved(size: float) -> Any:
    """A step of fine-tuning: every entry moves by ``size`` of their root mean square."""
    return lambda x, rng: x + size * np.sqrt(np.mean(x**2)) * rng.standard_normal(x.shape)


def one_entry(x: Any, rng: Any) -> Any:
    """One entry is 1 % larger."""
    x = x.copy()
    x[tuple(rng.integers(n) for n in x.shape)] *= 1.01
    return x


def pruned(x: Any, rng: Any) -> Any:
    """Entries below 2⁻¹⁰ of the largest are 0."""
    return np.where(np.abs(x) < 2.0**-10 * np.abs(x).max(), 0.0, x)


LADDER: dict[str, tuple[tuple[str, ...] | None, Any]] = {
    "one entry of W by 1 %": (("W", "K"), one_entry),
    "a step of fine-tuning, 1e-4": (None, moved(1e-4)),
    "a step of fine-tuning, 1e-5": (None, moved(1e-5)),
    "a step of fine-tuning, 1e-6": (None, moved(1e-6)),
    "pruned at 2⁻¹⁰": (None, pruned),
    "noise of 2⁻¹⁵": (None, lambda x, rng: x * (1 + 2.0**-15 * rng.standard_normal(x.shape))),
    "float16 weights": (None, rounded_to(np.float16)),
    "bfloat16 weights": (None, to_bfloat16),
    "int8 weights": (None, to_int8),
    "v negated": (("v",), lambda x, rng: -x),
    "another temperature, 1.01": (("W", "K", "w"), lambda x, rng: 1.01 * x),
}


def changed(model: Any, only: tuple[str, ...] | None, change: Any, rng: Any) -> Any:
    """Change all weights, c apart, or only those named."""
    arrays = {name: np.array(x) for name, x in model.arrays().items()}
    for name in arrays:
        if name != "c" and (only is None or name in only):
            arrays[name] = change(arrays[name], rng)
    return type(model).from_arrays(arrays)


def swapped(model: us.MultiHead, other: us.MultiHead, h: int) -> us.MultiHead:
    """The model with one head of another one."""
    arrays = {name: np.array(x) for name, x in model.arrays().items()}
    for name, x in other.arrays().items():
        if name != "c":
            arrays[name][h] = x[h]
    return us.MultiHead.from_arrays(arrays)
