"""Smooth and gated feed-forward layers as served: right ones are the same, changes have a name.

Services are written apart from the library's maps, from the formulas alone, and compute in float64
or float32, with operands of 16 bits, in other orders of sums, or round and disturb their answers.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy.special import erf, expit

import unsoftmax as us

PHI: dict[str, Any] = {
    "gelu": lambda z: z * (1 + erf(z / z.dtype.type(2**0.5))) / 2,
    "gelu_tanh": lambda z: z / 2 * (1 + np.tanh(z.dtype.type(0.7978845608028654) * cubic(z))),
    "silu": lambda z: z * expit(z),
    "quick_gelu": lambda z: z * expit(z.dtype.type(1.702) * z),
    "sigmoid": expit,
    "tanh": np.tanh,
    "softplus": lambda z: np.logaddexp(z.dtype.type(0), z),
}


def cubic(z):
    return z + z.dtype.type(0.044715) * z * z * z


def drawn(seed):
    """A layer of one of seven activations, gated or not, with a norm or none."""
    rng = np.random.default_rng([34, seed])
    d, gated, place = int(rng.choice([8, 16, 32])), bool(rng.integers(2)), int(rng.integers(4))
    m, phi = 3 * d, [*PHI][seed % len(PHI)]
    A, G = 1.2 * rng.standard_normal((2, m, d)) / np.sqrt(d)
    a, g = rng.standard_normal((2, m)) / 2
    B, c = rng.standard_normal((d, m)) / np.sqrt(m), rng.standard_normal(d) / 3
    scale, shift = 1 + 0.3 * rng.standard_normal(d), 0.2 * rng.standard_normal(d)
    norms = {
        1: us.LayerNorm(scale, shift, 1e-5, before=True),
        2: us.LayerNorm(scale, None, 1e-5, before=True, centred=False),
        3: us.LayerNorm(scale, shift, 1e-5),
    }
    gate = (G, g) if gated else None
    return us.FeedForward(A, a, B, c, bool(rng.integers(2)), norms.get(place), phi, gate)


def served(layer, dtype=np.float32, operands=lambda x: x):
    """The layer as a service computes it."""
    arrays = {
        name: np.asarray(x).astype(dtype)
        for name, x in layer.arrays().items()
        if name != "activation"
    }
    norm, phi = layer.norm, PHI[layer.activation]

    def normed(u):
        u = u - u.mean(axis=-1, keepdims=True) if norm.centred else u
        u = u / np.sqrt((u * u).mean(axis=-1, keepdims=True) + dtype(norm.eps))
        return arrays["norm.scale"] * u + arrays["norm.shift"]

    def times(x, name):
        return operands(x) @ operands(arrays[name]).T

    def answer(X):
        x = X[:, -1].astype(dtype)
        n = normed(x) if norm is not None and norm.before else x
        z = times(n, "A") + arrays["b"]
        h = phi(z) if layer.gate is None else phi(times(n, "G") + arrays["g"]) * z
        y = times(h, "B") + arrays["c"] + (x if layer.residual else 0)
        return normed(y) if norm is not None and not norm.before else y

    return answer


def rewritten(layer, rng):
    """The same function: other order of neurons, and with gates another factor between A and B."""
    m = len(layer.b)
    order, size = rng.permutation(m), np.ones(m)
    if layer.gate is not None:
        size = rng.choice([-1.0, 1.0], m) * np.exp(rng.standard_normal(m))
    gate = None if layer.gate is None else tuple(x[order] for x in layer.gate)
    A, b, B = layer.A * size[:, None], layer.b * size, layer.B / size
    return us.FeedForward(
        *(A[order], b[order], B[:, order], layer.c, layer.residual, layer.norm),
        *(layer.activation, gate),
    )


def to_bits(bits):
    def rounded(x):
        mantissa, exponent = np.frexp(x)
        return np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits).astype(x.dtype)

    return rounded


def noisy(service, scale, seed):
    rng = np.random.default_rng(seed)

    def answer(X):
        y = service(X)
        return y + scale * rng.standard_normal(y.shape)

    return answer


def right_services(layer, seed):
    plain, other = served(layer), rewritten(layer, np.random.default_rng(seed))
    return {
        "float64": served(layer, np.float64),
        "float32": plain,
        "other parameters": served(other, np.float64),
        "other parameters, float32": served(other),
        "bfloat16 operands": served(layer, operands=to_bits(8)),
        "float16 operands": served(layer, operands=to_bits(11)),
        "float16 answers": lambda X: plain(X).astype(np.float16),
        "three decimals": lambda X: np.round(plain(X).astype(np.float64), 3),
        "noise of 1e-3": noisy(plain, 1e-3, seed),
    }


def test_right_services_are_never_called_different(trials, evidence):
    found, seeds = Counter[str](), trials(2, 112)
    for seed in range(seeds):
        layer = drawn(seed)
        for name, service in right_services(layer, seed).items():
            verdict = us.verify(service, layer, seed=seed).verdict
            assert verdict != "different", (seed, name)
            found[verdict] += 1
            exact = name.startswith(("float64", "float32", "other"))
            assert verdict == "same" or not exact, (seed, name)
    evidence(
        "Right smooth feed-forward layers are never called different",
        runs=sum(found.values()),
        undecided=found["undecided"],
    )


def test_changed_tensors_are_different_and_named(trials, evidence):
    exact = among = asked = 0
    for seed in range(trials(3, 300)):
        layer, rng = drawn(seed), np.random.default_rng([1, seed])
        arrays = layer.arrays()
        names = [name for name in ("A", "b", "B", "c", "G", "g", "norm.scale") if name in arrays]
        name, of_float32 = str(rng.choice(names)), bool(seed % 2)
        change = rng.standard_normal(arrays[name].shape)
        size = (1e-4 if of_float32 else 1e-6) * np.linalg.norm(arrays[name])
        changed = arrays | {name: arrays[name] + size / np.linalg.norm(change) * change}
        service = served(type(layer).from_arrays(changed), np.float32 if of_float32 else np.float64)
        result = us.verify(service, layer, seed=seed)
        assert result.verdict == "different", (seed, name)
        assert result.queries <= 100
        ours = "scale of the norm" if name == "norm.scale" else name
        exact += result.tensor == ours
        named = (result.tensor or ours).split(" or ")
        assert ours in named, (seed, ours, named)
        among += result.tensor is not None
        asked += 1
    assert exact >= 0.9 * asked - 1
    evidence(
        "Changed tensors of smooth feed-forward layers are named",
        runs=asked,
        named_exactly=exact,
        named_beside_another=among - exact,
    )


@pytest.mark.parametrize("changed", ["activation", "residual", "eps"])
def test_changes_of_no_tensor_have_a_name(changed, trials):
    named, count = 0, trials(1, 60)
    for seed in range(count):
        layer = drawn(seed + (changed == "eps"))
        rest = layer.A, layer.b, layer.B, layer.c
        phi = "gelu" if layer.activation != "gelu" else "gelu_tanh"
        residual, norm, name = layer.residual, layer.norm, f"activation {phi}"
        if changed == "residual":
            phi, residual, name = layer.activation, not residual, "the residual connection"
        elif changed == "eps":
            norm = us.LayerNorm(np.ones(layer.dim), None, 1e-5, before=True)
            layer = us.FeedForward(*rest, residual, norm, layer.activation, layer.gate)
            phi, name = layer.activation, "eps 1e-06"
            norm = us.LayerNorm(np.ones(layer.dim), None, 1e-6, before=True)
        other = us.FeedForward(*rest, residual, norm, phi, layer.gate)
        result = us.verify(served(other, np.float64), layer, seed=seed)
        assert result.verdict == "different", seed
        assert result.tensor in (name, None), seed
        named += result.tensor == name
    assert named >= 0.9 * count


def of_small_weights(seed, name):
    """A layer after a norm that is nearly linear, or quadratic, on all normalised tokens."""
    rng = np.random.default_rng([35, seed, [*PHI].index(name)])
    d, m, centred = int(rng.integers(4, 17)), int(rng.integers(4, 33)), bool(rng.integers(2))
    weight = 10.0 ** rng.uniform(-5 if rng.integers(2) else -2.7, -0.5)
    A, b = weight * rng.standard_normal((m, d)), weight * rng.standard_normal(m)
    B, c = weight * rng.standard_normal((d, m)), weight * rng.standard_normal(d)
    residual, eps = bool(rng.integers(2)), float(10.0 ** rng.choice([-12, -6, -5, -3]))

    def answer(X):
        x = X[:, -1]
        u = x - x.mean(axis=1, keepdims=True) if centred else x
        n = u / np.sqrt(np.mean(u * u, axis=1, keepdims=True) + eps)
        return PHI[name](n @ A.T + b) @ B.T + c + (x if residual else 0)

    return answer, d, eps


@pytest.mark.few(3)
@pytest.mark.parametrize("name", PHI)
def test_small_weights_after_a_norm_break_no_certificate(name, trials, evidence):
    """What is accepted, as smooth neurons, ReLUs or none, is what its certificate says."""
    refused, shares = 0, [0.0]
    count = trials(2, 100)
    for seed in range(count):
        target, d, eps = of_small_weights(seed, name)
        try:
            recovery = us.learn(target, us.learners.FeedForwardLearner(d, norm="pre", seed=seed))
        except (us.ModelMismatch, us.NotIdentifiable):
            refused += 1
            continue
        model, bounds = recovery.model, recovery.certificate.errors
        assert model.norm is not None
        shares.append(abs(model.norm.eps - eps) / bounds["eps"])
        rng = np.random.default_rng([36, seed])
        x = np.sqrt(eps) * rng.standard_normal((300, d)) * 10.0 ** rng.uniform(-3, 3, (300, 1))
        off = np.linalg.norm(model(x) - target(x[:, None]), axis=1)
        rounding = 1e-14 * np.linalg.norm(target(x[:, None]), axis=1)
        shares.append(float(np.max(off / (model.moved_at_most(x, bounds) + rounding))))
        assert max(shares) <= 1, seed
    evidence(
        f"Smooth layers of small weights after a norm, {name}: no certificate is broken",
        layers=count,
        refused=refused,
        largest_share_of_bounds=max(shares),
    )
