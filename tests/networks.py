"""ReLU networks that tests recover: random ones, trained-like ones, hostile ones."""

from collections.abc import Callable
from typing import Any

import numpy as np

import unsoftmax as us

KINDS = ("random", "trained-like", "correlated", "cancelling")


def network(kind: str, d: int, m: int, seed: int, biases: bool = True) -> us.ReluNetwork:
    """Make a network; all but random ones make some part of the search hard."""
    rng = np.random.default_rng([KINDS.index(kind), d, m, seed])
    A = rng.standard_normal((d, m)) / np.sqrt(d)
    w_o = rng.standard_normal(m) / np.sqrt(m)
    b = 0.5 * rng.standard_normal(m)
    if kind == "trained-like":
        A *= np.exp(rng.standard_normal(m))  # heavy-tailed norms
        A += 0.3 / np.sqrt(d) * np.outer(rng.standard_normal(d), rng.standard_normal(m))
        b[: max(1, m // 16)] -= 20  # dead near 0
        if m > 1:
            A[:, -1], b[-1] = A[:, 0], b[0]  # a duplicate
        if m > 3:
            A[:, -2], b[-2] = -2.0 * A[:, 1], -2.0 * b[1]  # a parallel one, turned around
    if kind == "correlated":
        A += 2 / np.sqrt(d) * rng.standard_normal((d, 1))
    if kind == "cancelling":
        h = m // 4
        A[:, :h] = A[:, h : 2 * h] * (1 + 1e-3 * rng.standard_normal(h))
        A[:, :h] += 1e-3 / np.sqrt(d) * rng.standard_normal((d, h))
        w_o[:h], b[:h] = -w_o[h : 2 * h], b[h : 2 * h]
    return us.ReluNetwork(A, w_o, b if biases else None, 0.3 if biases else 0.0)


def distinct(target: us.ReluNetwork) -> int:
    """Count the hyperplanes across which the gradient jumps."""
    vectors = np.column_stack([target.A.T, target.b]) * target.w_o[:, None]
    vectors = vectors[np.linalg.norm(target.A, axis=0) > 0]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    alike = np.triu(1 - np.abs(unit @ unit.T) < 1e-14, 1)
    return len(unit) - int(np.any(alike, axis=0).sum())


def function_error(found, target, d: int, biases: bool, count: int = 2000) -> float:
    """Largest error at points of lengths 0.1 … 300, over the root mean square of the answers.

    Both relative to max(1, ‖x‖), or to ‖x‖ without biases: what a network grows with.
    """
    rng = np.random.default_rng(99)
    x = rng.standard_normal((count, d)) / np.sqrt(d) * 10.0 ** rng.uniform(-1, 2.5, (count, 1))
    norm = np.linalg.norm(x, axis=1)
    size = np.maximum(1.0, norm) if biases else norm
    y = np.asarray(target(x[:, None, :]))
    rms = float(np.sqrt(np.mean((y / size) ** 2))) or 1.0
    return float(np.max(np.abs(found(x) - y) / size)) / rms


def within(recovery, target, d, biases):
    """Whether the certificate's inequality holds at 2,000 points."""
    errors = recovery.certificate.errors
    length = errors["constant"] / errors["slope"] if biases and errors["slope"] else 1.0
    rng = np.random.default_rng(3)
    x = length * rng.standard_normal((2000, d)) * 10.0 ** rng.uniform(-2, 4, (2000, 1))
    error = np.abs(recovery.model(x) - target(x))
    allowed = errors["constant"] + errors["slope"] * np.linalg.norm(x, axis=1)
    return bool(np.all(error <= allowed))


def distances(target: us.ReluNetwork) -> np.ndarray:
    """Return the distances of all distinct hyperplanes from 0; close to 0 and far away alike."""
    norm = np.linalg.norm(target.A, axis=0)
    used = (norm > 0) & (target.w_o != 0)
    normals, offset = target.A.T[used] / norm[used, None], target.b[used] / norm[used]
    kept: list[int] = []
    for k in range(len(offset)):
        cosine = normals[kept] @ normals[k]
        close = np.abs(offset[kept] - np.sign(cosine) * offset[k]) <= 1e-12 * np.abs(offset[k])
        if not np.any((1 - np.abs(cosine) < 1e-14) & close):
            kept.append(k)
    return np.asarray(np.abs(offset[kept]))


def worst_share(recovery, target, reach: float) -> float:
    """Return the largest error at tokens of all lengths, as a share of what is certified."""
    errors, rng = recovery.certificate.errors, np.random.default_rng(3)
    lengths = 10.0 ** rng.uniform(-6, np.log10(reach), 2000)
    beside = np.repeat([*filter(None, distances(target))], 50)
    beside = beside * 10.0 ** rng.uniform(-0.5, 1.5, len(beside))
    lengths = np.concatenate([lengths, beside[beside <= reach]])
    x = rng.standard_normal((len(lengths), target.dim))
    x *= (lengths / np.linalg.norm(x, axis=1))[:, None]
    error = np.abs(recovery.model(x) - target(x))
    certified = errors["constant"] + errors["slope"] * lengths
    # a network that is 0 is found without an error, and certified without one
    return float(np.max(np.divide(error, certified, out=error.copy(), where=certified > 0)))


def attack(claim: str, count: int, share_at: Callable[[int], float], evidence) -> None:
    """Attack seeds 0 … count − 1: no certificate is broken, 1 in 500 is refused at most."""
    refused = covered(claim, count, share_at, evidence)
    assert len(refused) <= max(1, count / 500), refused


def covered(
    claim: str,
    count: int,
    share_at: Callable[[int], float],
    evidence,
    refusals: Any = us.UnsoftmaxError,
) -> list[tuple[int, str]]:
    """Attack seeds 0 … count − 1: they may be refused, not misled. Return what is refused, and why.

    ``share_at`` learns one target and returns the largest share of its certificate that is taken.
    """
    refused, worst = [], 0.0
    for seed in range(count):
        try:
            share = share_at(seed)
        except refusals as refusal:
            refused.append((seed, str(refusal)))
            continue
        assert share <= 1, seed
        worst = max(worst, share)
    evidence(
        claim, trials=count, refused=len(refused), broken=0, largest_share_of_the_certificate=worst
    )
    return refused
