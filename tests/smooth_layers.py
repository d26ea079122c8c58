"""Smooth and gated feed-forward layers that tests recover, and what a recovery is off by."""

from __future__ import annotations

from typing import Any

import numpy as np

import unsoftmax as us
from unsoftmax.models.checkpoint import find_feed_forward

PLAIN = ("gelu", "gelu_tanh", "silu", "quick_gelu", "softplus", "sigmoid", "tanh")
GATED = ("gelu", "gelu_tanh", "silu", "quick_gelu", "softplus", "sigmoid", "tanh")


def learned(target: Any, dim: int, **settings: Any) -> us.Recovery[Any]:
    """Recover a feed-forward layer from its answers."""
    return us.learn(target, us.learners.FeedForwardLearner(dim, **settings))


def smooth_layer(
    d: int, m: int, seed: int, activation: str, gated: bool = False, residual: bool = True
) -> us.FeedForward:
    """Draw a layer whose neurons' sums are of about unit size at standard normal tokens."""
    rng = np.random.default_rng([d, m, seed])
    A, b = rng.standard_normal((m, d)) / np.sqrt(d), 0.5 * rng.standard_normal(m)
    B, c = rng.standard_normal((d, m)) / np.sqrt(m), rng.standard_normal(d)
    G, g = rng.standard_normal((m, d)) / np.sqrt(d), 0.5 * rng.standard_normal(m)
    return us.FeedForward(
        A, b, B, c, residual, activation=activation, gate=(G, g) if gated else None
    )


def smooth_behind(
    d: int,
    m: int,
    seed: int,
    activation: str,
    gated: bool = False,
    eps: float = 1e-5,
    centred: bool = True,
) -> us.FeedForward:
    """Draw a layer behind a norm; of a LayerNorm's B and c the mean, which does not show, is 0."""
    f, rng = smooth_layer(d, m, seed, activation, gated), np.random.default_rng([d, m, seed])
    scale = np.exp(0.3 * rng.standard_normal(d)) * (1 if centred else np.sign(rng.normal(size=d)))
    shift = 0.3 * rng.standard_normal(d) if centred else None
    norm = us.LayerNorm((-1) ** seed * scale, shift, eps, centred=centred)
    B, c = (one - centred * one.mean(axis=0) for one in (f.B, f.c))
    return us.FeedForward(f.A, f.b, B, c, True, norm, activation, f.gate)


def minilm_neurons(place: int) -> us.FeedForward:
    """Build a feed-forward layer of all-MiniLM-L6-v2 by itself: 1,536 neurons, d = 384."""
    from unsoftmax.cli.minilm import minilm_weights  # not where there is no command line

    return find_feed_forward(minilm_weights(), f"encoder.layer.{place}", "gelu")


def cut_of_minilm(d: int, m: int, seed: int, residual: bool = False) -> us.FeedForward:
    """Draw some neurons of such a layer, in drawn subspaces of tokens and answers."""
    rng, whole = np.random.default_rng([d, m, seed]), minilm_neurons(seed % 6)
    kept = rng.choice(len(whole.b), m, replace=False)
    inside, out = (np.linalg.qr(rng.standard_normal((whole.dim, d)))[0] for _ in range(2))
    A, b, B, c = whole.A[kept] @ inside, whole.b[kept], out.T @ whole.B[:, kept], out.T @ whole.c
    return us.FeedForward(A, b, B, c, residual, activation="gelu")


def in_family(true: us.FeedForward) -> us.FeedForward:
    """Write a layer with the activation by which learners call its family."""
    A, b, B, c, gate, name = true.A, true.b, true.B, true.c, true.gate, true.activation
    if name == "quick_gelu":
        name, B = "silu", B / 1.702
        if gate is None:
            A, b = 1.702 * A, 1.702 * b
        else:
            gate = 1.702 * gate[0], 1.702 * gate[1]
    elif name == "sigmoid" and gate is None:
        name, A, b, B, c = "tanh", A / 2, b / 2, B / 2, c + B.sum(axis=1) / 2
    return us.FeedForward(A, b, B, c, true.residual, true.norm, name, gate)


def smooth_errors(found: us.FeedForward, true: us.FeedForward) -> dict[str, np.ndarray]:
    """Return errors of A, b, B, c, and G and g: per neuron, of the shapes (m,), of c (d_out,).

    Neurons are matched by their columns of B; signs that are free, and the factor between row and
    column of gated neurons, are those of the recovery.
    """
    if found.activation != true.activation:
        true = in_family(true)
    assert (found.activation, found.residual, found.gate is None, found.A.shape) == (
        true.activation,
        true.residual,
        true.gate is None,
        true.A.shape,
    )
    unit = [layer.B / np.linalg.norm(layer.B, axis=0) for layer in (found, true)]
    match = np.argmax(np.abs(unit[0].T @ unit[1]), axis=1)
    assert sorted(match) == [*range(len(true.b))]
    A, b, B = true.A[match], true.b[match], true.B[:, match]
    their: dict[str, Any] = {}
    if true.gate is not None and found.gate is not None:
        G, g = true.gate[0][match], true.gate[1][match]
        if true.activation == "tanh":
            odd = np.sign(np.sum(G * found.gate[0], axis=1))
            G, g, B = odd[:, None] * G, odd * g, odd * B
        factor = np.sqrt(np.linalg.norm(B, axis=0) / np.linalg.norm(A, axis=1))
        factor = factor * np.sign(np.sum(A * found.A, axis=1))
        A, b, B = factor[:, None] * A, factor * b, B / factor
        their = {"G": found.gate[0] - G, "g": found.gate[1] - g}
    elif true.activation == "tanh":
        odd = np.sign(np.sum(A * found.A, axis=1))
        A, b, B = odd[:, None] * A, odd * b, odd * B
    off = {"A": found.A - A, "b": found.b - b, "B": (found.B - B).T, "c": found.c - true.c, **their}
    return {name: np.linalg.norm(x.reshape(len(x), -1), axis=1) for name, x in off.items()}


def share_of_bounds(recovery, true: us.FeedForward, reach: float) -> float:
    """Return the largest share of its bound that an error takes: of parameters and answers.

    Answers are those up to the reach, and those at which `equivalent` compares, however far out.
    """
    errors, bounds = smooth_errors(recovery.model, true), recovery.certificate.errors
    shares = [np.linalg.norm(off) / bounds[name] for name, off in errors.items()]
    rng = np.random.default_rng(97)
    x = rng.standard_normal((500, true.dim))
    x *= reach * 10.0 ** rng.uniform(-3, 0, (500, 1)) / np.linalg.norm(x, axis=1, keepdims=True)
    off = np.linalg.norm(recovery.model(x) - true(x), axis=1)
    rounding = 1e-14 * np.linalg.norm(true(x), axis=1)
    shares.append(us.equivalent(recovery.model, true, rtol=0, errors=bounds).share or 0.0)
    return float(max(*shares, np.max(off / (recovery.model.moved_at_most(x, bounds) + rounding))))


def share_of_bounds_behind(recovery, true: us.FeedForward, reach: float) -> float:
    """Return the same of a layer behind a norm, and of the norm's parameters."""
    found, bounds = recovery.model, recovery.certificate.errors
    errors = smooth_errors(found, true)
    assert true.norm is not None
    errors |= {name: getattr(found.norm, name) - getattr(true.norm, name) for name in ("scale",)}
    errors |= {"shift": found.norm.shift - true.norm.shift, "eps": found.norm.eps - true.norm.eps}
    shares = [np.linalg.norm(off) / max(bounds[name], 1e-300) for name, off in errors.items()]
    rng = np.random.default_rng(7)
    x = rng.standard_normal((200, true.dim))
    x *= (reach * rng.uniform(size=200) ** 3 / np.linalg.norm(x, axis=1))[:, None]
    apart = found.sums(x) - true.sums(x)
    apart -= true.norm.centred * apart.mean(axis=1, keepdims=True)
    allowed = bounds["constant"] + bounds["slope"] * np.linalg.norm(x, axis=1)
    moved = np.linalg.norm(found(x) - true(x), axis=1)
    shares += [np.max(np.linalg.norm(apart, axis=1) / allowed)]
    shares += [np.max(moved / found.moved_at_most(x, bounds))]
    shares += [us.equivalent(found, true, rtol=0, errors=bounds).share or 0.0]
    return float(max(shares))
