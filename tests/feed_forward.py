"""Feed-forward layers that tests recover: random ones, trained-like ones, hostile ones."""

from __future__ import annotations

import numpy as np

import unsoftmax as us

KINDS = ("random", "no biases", "trained-like", "correlated", "dead", "other units")


def layer(
    d: int, m: int, d_out: int, seed: int, kind: str = "random", residual: bool = False
) -> us.FeedForward:
    """Make a layer; all but random ones make some part of the search hard."""
    rng = np.random.default_rng([d, m, d_out, seed])
    A = rng.standard_normal((m, d)) / np.sqrt(d)
    b = 0.5 * rng.standard_normal(m)
    B = rng.standard_normal((d_out, m)) / np.sqrt(max(1, m))
    c = rng.standard_normal(d_out)
    if kind == "no biases":
        b, c = np.zeros(m), np.zeros(d_out)
    if kind == "trained-like":
        A *= np.exp(rng.standard_normal(m))[:, None]  # heavy-tailed norms
        A += 0.3 / np.sqrt(d) * np.outer(rng.standard_normal(m), rng.standard_normal(d))
        B *= np.exp(0.5 * rng.standard_normal(m))
    if kind == "correlated":
        A += 2 / np.sqrt(d) * rng.standard_normal(d)
    if kind == "dead":
        far = max(1, m // 8)  # inactive up to 10³ length scales
        b[:far] = -1e3 * np.linalg.norm(A[:far], axis=1)
    if kind == "other units":
        A, b, B = 1e-3 * A, 5e-2 * b, 1e4 * B
    return us.FeedForward(A, b, B, c, residual)


def in_float32(layer: us.FeedForward):
    """Answer as a float32 target does: parameters, sums and answers in float32."""
    A, b, B, c = (array.astype(np.float32) for array in (layer.A, layer.b, layer.B, layer.c))

    def answer(X):
        x = X[:, -1].astype(np.float32)
        y = np.maximum(x @ A.T + b, 0) @ B.T + c
        return y + x if layer.residual else y

    return answer


def balanced(layer: us.FeedForward) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return A, b and B with every row of A as long as its column of B."""
    scale = np.sqrt(np.linalg.norm(layer.B, axis=0) / np.linalg.norm(layer.A, axis=1))
    return layer.A * scale[:, None], layer.b * scale, layer.B / scale


def parameter_errors(found: us.FeedForward, true: us.FeedForward) -> dict[str, float]:
    """Return errors of A, b, B and c, neurons matched by their rows and scaled alike."""
    A, b, B = balanced(found)
    true_A, true_b, true_B = balanced(true)
    rows = np.column_stack([A, b]), np.column_stack([true_A, true_b])
    unit, true_unit = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in rows)
    match = np.argmax(unit @ true_unit.T, axis=1)
    assert sorted(match) == list(range(len(true.b)))
    return {
        "A": float(np.linalg.norm(A - true_A[match])),
        "b": float(np.linalg.norm(b - true_b[match])),
        "B": float(np.linalg.norm(B - true_B[:, match])),
        "c": float(np.linalg.norm(found.c - true.c)),
    }


def fresh(d: int, scale: float = 1.0, count: int = 500, far: float = 3.0) -> np.ndarray:
    """Return tokens of lengths from a tenth of a scale to 10^far of them."""
    rng = np.random.default_rng(99)
    x = rng.standard_normal((count, d)) * 10.0 ** rng.uniform(-1, far, (count, 1))
    return np.asarray(scale * x)


def function_error(found, true, scale: float = 1.0, far: float = 3.0) -> float:
    """Return the largest error at fresh tokens, relative to the answer (2-norms).

    An answer that happens to be small counts as what is usual for a token so long.
    """
    x = fresh(true.dim, scale, far=far)
    off, size, length = (np.linalg.norm(v, axis=1) for v in (found(x) - true(x), true(x), x))
    usual = np.sqrt(np.mean((size / length) ** 2)) * length
    return float(np.max(off / np.maximum(size, usual)))


def function_share(recovery, true, scale: float = 1.0) -> float:
    """Return the largest share that an error takes of what is certified of the function."""
    x, errors = fresh(true.dim, scale), recovery.certificate.errors
    off = np.linalg.norm(recovery.model(x) - true(x), axis=1)
    return float(np.max(off / (errors["constant"] + errors["slope"] * np.linalg.norm(x, axis=1))))


def behind(
    layer: us.FeedForward, seed: int = 0, centred: bool = True, eps: float = 1e-5
) -> us.FeedForward:
    """Put a residual and a norm behind a layer: scales of any signs, of an RMSNorm no shift."""
    rng = np.random.default_rng([seed, layer.dim])
    scale = rng.uniform(0.5, 2, layer.dim) * rng.choice([-1.0, 1.0], layer.dim)
    shift = rng.standard_normal(layer.dim) if centred else None
    norm = us.LayerNorm(scale, shift, eps, centred=centred)
    return us.FeedForward(layer.A, layer.b, layer.B, layer.c, True, norm)


def share_behind(recovery, true: us.FeedForward, scale: float = 1.0) -> float:
    """Return the largest share of its bound that an error takes: of parameters and answers.

    The mean over outputs is invisible behind a LayerNorm, and taken off.
    """
    bounds, norm, found = recovery.certificate.errors, true.norm, recovery.model
    assert norm is not None
    assert found.norm is not None
    B, c = true.B, true.c
    if norm.centred:
        B, c = B - B.mean(axis=0), c - c.mean()
    plain = us.FeedForward(true.A, true.b, B, c, true.residual, norm)
    errors = parameter_errors(found, plain)
    errors["scale"] = float(np.linalg.norm(found.norm.scale - norm.scale))
    errors["shift"] = float(np.linalg.norm(found.norm.shift - norm.shift))
    errors["eps"] = abs(found.norm.eps - norm.eps)
    shares = [errors[name] / bounds[name] for name in errors if errors[name]]
    x = fresh(true.dim, scale)
    off, rounding = np.linalg.norm(found(x) - true(x), axis=1), 1e-14 * np.linalg.norm(norm.scale)
    shares.append(np.max(off / (found.moved_at_most(x, bounds) + rounding)))
    return float(max(shares))


def after(
    layer: us.FeedForward,
    seed: int = 0,
    centred: bool = True,
    eps: float = 1e-5,
    residual: bool = True,
) -> us.FeedForward:
    """Put a norm before a layer: scales of any signs, of an RMSNorm no shift."""
    rng = np.random.default_rng([seed, layer.dim])
    scale = rng.uniform(0.5, 2, layer.dim) * rng.choice([-1.0, 1.0], layer.dim)
    shift = 0.3 * rng.standard_normal(layer.dim) if centred else None
    norm = us.LayerNorm(scale, shift, eps, before=True, centred=centred)
    sums = layer.A, layer.b, layer.B, layer.c
    return us.FeedForward(*sums, residual, norm, layer.activation, layer.gate)


def seen_through(true: us.FeedForward) -> us.FeedForward:
    """Write a layer after a norm with the norm's scale and shift in A and b."""
    norm = true.norm
    assert norm is not None

    def inside(A, b):
        scaled = A * norm.scale
        mean = scaled.mean(axis=1, keepdims=True) if norm.centred else 0.0
        return scaled - mean, b + A @ norm.shift

    gate = None if true.gate is None else inside(*true.gate)
    bare = us.LayerNorm(np.ones(norm.width), None, norm.eps, True, norm.centred)
    A, b = inside(true.A, true.b)
    return us.FeedForward(A, b, true.B, true.c, true.residual, bare, true.activation, gate)


def normalised_tokens(true: us.FeedForward, count: int = 500) -> np.ndarray:
    """Return tokens that are normalised to all lengths there are, most near the longest."""
    rng = np.random.default_rng(98)
    assert true.norm is not None
    x = rng.standard_normal((count, true.dim)) * 10.0 ** rng.uniform(-2, 2, (count, 1))
    return np.asarray(np.sqrt(true.norm.eps) * x)


def share_after(recovery, true: us.FeedForward, errors_of=parameter_errors) -> float:
    """Return the largest share of its bound that an error takes: of parameters and answers."""
    bounds, found = recovery.certificate.errors, recovery.model
    assert true.norm is not None
    shares = [abs(found.norm.eps - true.norm.eps) / bounds["eps"]]
    if np.isfinite(bounds["A"]):
        errors = errors_of(found, seen_through(true))
        shares += [np.linalg.norm(errors[name]) / bounds[name] for name in errors]
    x = normalised_tokens(true)
    rounding = 1e-15 * (np.linalg.norm(x, axis=1) + np.linalg.norm(true(x), axis=1))
    off = np.linalg.norm(found(x) - true(x), axis=1)
    return float(max(*shares, np.max(off / (found.moved_at_most(x, bounds) + rounding))))


def off_after(found: us.FeedForward, true: us.FeedForward) -> float:
    """Return the largest error of an answer, relative to the largest that the layer adds to x."""
    x = normalised_tokens(true)
    added = true(x) - x if true.residual else true(x)
    off = np.linalg.norm(found(x) - true(x), axis=1)
    return float(np.max(off) / np.max(np.linalg.norm(added, axis=1)))
