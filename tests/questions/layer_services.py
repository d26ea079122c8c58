"""Layers that are said to be served, targets that serve them, and changes of them."""

from typing import Any

import numpy as np

import unsoftmax as us


def in_format(dtype: Any, *arrays: Any) -> list[Any]:
    """Round arrays to a format."""
    return [np.asarray(x, dtype) for x in arrays]


def normed(norm: us.LayerNorm, u: Any, dtype: Any) -> Any:
    """A norm computed in ``dtype``."""
    scale, shift, eps = in_format(dtype, norm.scale, norm.shift, norm.eps)
    u = u - u.mean(axis=-1, keepdims=True, dtype=dtype) if norm.centred else u
    variance = np.mean(u * u, axis=-1, keepdims=True, dtype=dtype)
    return scale * (u / np.sqrt(variance + eps)) + shift


def served_layer(model: us.AttentionLayer, dtype: Any, bias: float = 0.0, seed: int = 0) -> Any:
    """X → Q, K, V → scores → softmax → output → residual → norm, all computed in ``dtype``.

    ``bias`` is the size of value biases, whose effect the output bias takes back.
    """
    rng, parts, norm = np.random.default_rng(seed), [], model.norm
    c = np.array(model.c)
    for head in model.heads:
        a = head.arrays()
        U, V = (a["O"], a["V"]) if "O" in a else (a["M"], np.eye(model.dim))
        K, Q = (a["K"], a["Q"]) if "K" in a else (np.eye(model.dim), a["W"])
        b = bias * rng.standard_normal(len(V))
        c = c - U @ b
        parts.append(in_format(dtype, U, V, K, Q, a["w"], b))
    (c,) = in_format(dtype, c)

    def answer(X: Any) -> Any:
        X = X.astype(dtype)
        seen = normed(norm, X, dtype) if norm is not None and norm.before else X
        total = np.tile(c, (len(X), 1))
        for U, V, K, Q, w, b in parts:
            q = seen[:, -1] @ Q.T
            scores = np.einsum("bnr,br->bn", seen @ K.T, q) + seen @ w
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights = weights / weights.sum(axis=1, keepdims=True)
            values = np.matmul(weights[:, None], seen @ V.T + b)[:, 0]
            total = total + values @ U.T
        total = total + X[:, -1] if model.residual else total
        return total if norm is None or norm.before else normed(norm, total, dtype)

    return answer


def served_feed_forward(model: us.FeedForward, dtype: Any) -> Any:
    """The same of a feed-forward layer."""
    A, b, B, c = in_format(dtype, model.A, model.b, model.B, model.c)
    norm = model.norm

    def answer(X: Any) -> Any:
        x = X[:, -1].astype(dtype)
        seen = normed(norm, x, dtype) if norm is not None and norm.before else x
        y = np.maximum(seen @ A.T + b, 0) @ B.T + c
        y = y + x if model.residual else y
        return y if norm is None or norm.before else normed(norm, y, dtype)

    return answer


def served(model: Any, dtype: Any, **how: Any) -> Any:
    """Either of them."""
    if isinstance(model, us.FeedForward):
        return served_feed_forward(model, dtype)
    return served_layer(model, dtype, **how)


def drawn_norm(rng: Any, width: int, before: bool, wide: float = 2.0) -> us.LayerNorm:
    """Draw a norm of any scales."""
    scale = 1 + 0.3 * rng.standard_normal(width)
    kind = rng.choice(["ordinary", "decades", "of all signs", "with a zero"])
    if kind == "decades":
        scale = 10.0 ** rng.uniform(-wide, wide, width)
    elif kind == "of all signs":
        scale = rng.standard_normal(width)
    elif kind == "with a zero":
        scale[rng.integers(width)] = 0
    shift = 0.1 * rng.standard_normal(width) * rng.integers(2)
    eps = float(rng.choice([1e-12, 1e-6, 1e-5]))
    return us.LayerNorm(scale, shift, eps, before, bool(rng.random() < 0.8))


def drawn_place(rng: Any, wide: float = 2.0) -> Any:
    """Draw dimensions, whether there is a residual, and a norm or none."""
    d = int(rng.choice([2, 3, 5, 8, 16]))
    residual = bool(rng.integers(2))
    m = d if residual else int(rng.choice([1, 3, d, 2 * d]))
    which = rng.choice(["none", "before", "behind"])
    if which == "none" or (which == "behind" and m < 3):
        return d, m, residual, None
    return d, m, residual, drawn_norm(rng, d if which == "before" else m, which == "before", wide)


def any_layer(rng: Any, wide: float = 2.0) -> us.AttentionLayer:
    """Draw an attention layer of any size and shape."""
    d, m, residual, norm = drawn_place(rng, wide)
    H, r = int(rng.choice([1, 1, 2, 3, 6])), int(rng.integers(1, d + 1))
    heads: list[us.LayerHead] = []
    s, t = (float(x) for x in 10.0 ** rng.uniform(-wide / 2, wide / 2, 2))
    for _ in range(H):
        K, Q = rng.standard_normal((2, r, d)) * np.sqrt(s) / np.sqrt(d)
        U, V = rng.standard_normal((m, r)) * t, rng.standard_normal((r, d)) / np.sqrt(d)
        w = K.T @ rng.standard_normal(r) if rng.random() < 0.5 else None
        kind = rng.choice(["factors", "dense", "no scores", "decades"])
        if kind == "factors":
            heads.append(us.LayerHead.from_factors(U, V, K, Q, w))
        elif kind == "no scores":
            heads.append(us.LayerHead(U @ V, np.zeros((d, d)), w))
        else:
            M = U @ V * (10.0 ** rng.uniform(-wide, wide, (m, 1)) if kind == "decades" else 1.0)
            heads.append(us.LayerHead(M, K.T @ Q, w))
    c = t * rng.standard_normal(m) * rng.integers(2)
    return us.AttentionLayer(heads, c, residual, norm)


def any_feed_forward(rng: Any, wide: float = 2.0) -> us.FeedForward:
    """Draw a feed-forward layer."""
    d, m, residual, norm = drawn_place(rng, wide)
    n = int(rng.choice([1, 4, 12, 40]))
    A, B = rng.standard_normal((n, d)) / np.sqrt(d), rng.standard_normal((m, n)) / np.sqrt(n)
    b = 0.5 * rng.standard_normal(n) * rng.integers(2)
    if rng.random() < 0.3:
        A, b = (x * 10.0 ** rng.uniform(-wide, wide) for x in (A, b))
        B = B * 10.0 ** rng.uniform(-wide, wide, (m, 1))
    return us.FeedForward(A, b, B, rng.standard_normal(m) * rng.integers(2), residual, norm)


def changed_array(model: Any, name: str, size: float, rng: Any) -> Any:
    """Move all entries of one array by ``size`` of their root mean square."""
    arrays = {key: np.array(x) for key, x in model.arrays().items()}
    x = arrays[name]
    arrays[name] = x + size * np.sqrt(np.mean(x**2)) * rng.standard_normal(x.shape)
    return type(model).from_arrays(arrays)


def to_bits(x: Any, bits: int) -> Any:
    """Round to so many significant bits."""
    mantissa, exponent = np.frexp(np.asarray(x, np.float64))
    return np.ldexp(np.round(mantissa * 2.0**bits) / 2.0**bits, exponent)


def in_tensor_cores(model: Any, bits: int) -> Any:
    """The same with products of operands that are rounded to so many bits, all else in float32."""

    def product(a: Any, b: Any) -> Any:
        return np.matmul(to_bits(a, bits), to_bits(b, bits)).astype(np.float32)

    norm = model.norm

    def answer(X: Any) -> Any:
        X = X.astype(np.float32)
        seen = normed(norm, X, np.float32) if norm is not None and norm.before else X
        total = np.tile(model.c.astype(np.float32), (len(X), 1))
        if isinstance(model, us.FeedForward):
            total = total + product(
                np.maximum(product(seen[:, -1], model.A.T) + model.b, 0), model.B.T
            )
        else:
            for head in model.heads:
                u = product(seen[:, -1:], head.W.T) + head.w
                scores = product(u, seen.transpose(0, 2, 1))
                weights = np.exp(scores - scores.max(axis=2, keepdims=True))
                weights = weights / weights.sum(axis=2, keepdims=True)
                total = total + product(weights, product(seen, head.M.T))[:, 0]
        total = total + X[:, -1] if model.residual else total
        total = total if norm is None or norm.before else normed(norm, total, np.float32)
        return total.astype(np.float32)

    return answer
