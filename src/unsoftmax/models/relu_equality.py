"""Do two ReLU networks compute the same function? Decided on hyperplanes, jumps, affine parts.

With Y = (x/λ, 1) a network is l·Y + Σ_k s_k·max(0, u_k·Y), ‖u_k‖ = 1: the gradient jumps by
s_k u_k across u_k·Y = 0. Parallel neurons are one, and s·max(0, z) = s·z + s·max(0, −z) turns
u_k around, so functions are equal exactly if hyperplanes, jumps and affine parts are. λ makes
typical biases and weights alike; it is the same for both networks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models.relu_network import ReluNetwork, typical_length
from unsoftmax.probes import Array

# Unit normals closer than this are one hyperplane, up to the rounding of their networks.
_ONE = 1e-12
# Hyperplanes of two networks nearer than this are compared, others are each other's absence.
_NEAR = 1e-2
_BESIDE = 1e-6
_POINTS = 512
_EPS = float(np.finfo(float).eps)


@dataclass(frozen=True, slots=True)
class _Parts:
    """l, u_k and s_k of a network."""

    linear: Array
    u: Array
    s: Array


def canonical_network(network: ReluNetwork) -> ReluNetwork:
    """Return the network that stands for all that compute the same function.

    Parallel neurons are merged, every neuron's first weight that is not 0 is positive and its
    ‖(A_k, b_k)‖ is 1, neurons are ordered by their weights; two neurons x·l and −x·l come last
    if a linear part is left.
    """
    parts = _merged(_parts(network, 1.0))
    d = network.dim
    parts = _turned(parts, _negative(parts.u))
    u, s, linear = parts.u, parts.s, parts.linear
    order = np.lexsort(u.T[::-1]) if len(u) else np.zeros(0, dtype=np.intp)
    A, b, w_o = u[order, :d], u[order, d], s[order]
    norm = float(np.linalg.norm(linear[:d]))
    size = norm + float(np.sum(np.abs(s)))
    if norm > 4 * _EPS * (1 + len(s)) * size:
        direction = linear[:d] / norm
        A = np.vstack([A, direction, -direction])
        b, w_o = np.append(b, [0.0, 0.0]), np.append(w_o, [norm, -norm])
    return ReluNetwork(A.T, w_o, b, float(linear[d]))


def affine_part(network: ReluNetwork) -> tuple[Array, float] | None:
    """Return l and c of a network that is l·x + c, None if its gradient jumps anywhere."""
    parts = _merged(_parts(network, 1.0))
    return None if len(parts.s) else (parts.linear[:-1], float(parts.linear[-1]))


def gap_between(a: ReluNetwork, b: ReluNetwork) -> tuple[float, float]:
    """Return the norm of the difference of all jumps and the affine part, and their own norm.

    A jump counts no more than its neuron can show. Turned to be 0 at x = 0, neuron k reaches at
    most ‖s_k u_k‖ without u_k's bias times ‖Y‖: one that wakes up far out is next to nothing.
    """
    length = typical_length(a, b)
    first, second = _merged(_parts(a, length)), _merged(_parts(b, length))
    size = max(_norm(first), _norm(second))
    first, second = (_turned(parts, parts.u[:, -1] > 0) for parts in (first, second))
    shown, shown_by_second = _shown(first), _shown(second)
    u, s, linear = second.u, second.s.copy(), first.linear - second.linear
    cosine = first.u @ u.T
    left, missing = np.full(len(first.s), True), np.full(len(s), True)
    squares = 0.0
    if cosine.size:
        # the nearest for each, if it is the nearest for both
        j = np.argmax(np.abs(cosine), axis=1)
        i = np.arange(len(j))
        both = np.argmax(np.abs(cosine), axis=0)[j] == i
        both &= 1 - np.abs(cosine[i, j]) < _NEAR
        i, j = i[both], j[both]
        turn = np.sign(cosine[i, j])
        # s·relu(z) = s·z + s·relu(−z)
        linear = linear - (s[j] * (turn < 0)) @ u[j]
        change = first.s[i, None] * first.u[i] - (s[j] * turn)[:, None] * u[j]
        # turned around to compare, a neuron is not 0 at x = 0
        most = np.where(turn > 0, shown[i] + shown_by_second[j], np.inf)
        squares += float(np.sum(np.minimum(np.linalg.norm(change, axis=1), most) ** 2))
        left[i], missing[j] = False, False
    squares += float(np.sum(shown[left] ** 2) + np.sum(shown_by_second[missing] ** 2))
    squares += float(np.sum(linear**2))
    return float(np.sqrt(squares)), size


def largest_between(a: ReluNetwork, b: ReluNetwork) -> float:
    """Return the largest ``|a − b|`` over ‖Y‖, on both sides of every hyperplane of both."""
    points = _beside_all(a, b)
    height = np.hypot(np.linalg.norm(points, axis=1) / typical_length(a, b), 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.max(np.abs(a(points) - b(points)) / height))


def witness_between(a: ReluNetwork, b: ReluNetwork) -> Array | None:
    """Find a token (1, d) on which float64 tells the networks apart."""
    points = _beside_all(a, b)
    with np.errstate(over="ignore", invalid="ignore"):
        rounding = _EPS * (size_of(a, points) + size_of(b, points)) * 8 * np.sqrt(a.dim + 1)
        ratio = np.nan_to_num(np.abs(a(points) - b(points)) / np.maximum(rounding, 1e-300))
    k = int(np.argmax(ratio))
    return points[k : k + 1] if ratio[k] > 1 else None


def _beside_all(a: ReluNetwork, b: ReluNetwork) -> Array:
    """Return points in the cells beside every hyperplane, at its foot and elsewhere on it."""
    rng = np.random.default_rng(0)
    d, length = a.dim, typical_length(a, b)
    directions = rng.standard_normal((_POINTS, d))
    x = [np.zeros((1, d)), length * 10.0 ** rng.uniform(-2, 4, (_POINTS, 1)) * directions]
    for network in (a, b):
        norm = np.linalg.norm(network.A, axis=0)
        used = norm > 0
        normal = (network.A[:, used] / norm[used]).T
        foot = -(network.b[used] / norm[used])[:, None] * normal
        reach = length + np.linalg.norm(foot, axis=1, keepdims=True)
        along = rng.standard_normal(foot.shape)
        along -= np.sum(along * normal, axis=1, keepdims=True) * normal
        for on in (foot, foot + reach / np.sqrt(d) * along):
            x += [on, *(on + size * reach * normal for size in (1.0, -1.0, 1e-3, -1e-3))]
    return np.concatenate(x)


def size_of(network: ReluNetwork, x: Array) -> Array:
    """Sum the sizes of all terms of an answer."""
    inside = np.abs(x) @ np.abs(network.A) + np.abs(network.b)
    return np.asarray(inside @ np.abs(network.w_o) + abs(network.c))


def _parts(network: ReluNetwork, length: float) -> _Parts:
    vectors = np.column_stack([length * network.A.T, network.b])
    constant = ~np.any(network.A, axis=0)
    linear = np.zeros(network.dim + 1)
    linear[-1] = network.c + np.maximum(network.b[constant], 0.0) @ network.w_o[constant]
    used = ~constant & (network.w_o != 0)
    norm = np.linalg.norm(vectors[used], axis=1)
    return _Parts(linear, vectors[used] / norm[:, None], norm * network.w_o[used])


def _turned(parts: _Parts, back: NDArray[np.bool_]) -> _Parts:
    """Turn some hyperplanes around: s·relu(z) = s·z + s·relu(−z)."""
    linear = parts.linear + parts.s[back] @ parts.u[back]
    return _Parts(linear, np.where(back[:, None], -parts.u, parts.u), parts.s)


def _negative(u: Array) -> NDArray[np.bool_]:
    """Say of which hyperplanes the first weight that is not 0 is negative."""
    return np.asarray(u[np.arange(len(u)), np.argmax(u != 0, axis=1)] < 0)


def _shown(parts: _Parts) -> Array:
    """Return what every neuron reaches at most where ‖Y‖ = 1, if it is 0 at x = 0."""
    return np.asarray(np.abs(parts.s) * np.linalg.norm(parts.u[:, :-1], axis=1))


def _merged(parts: _Parts) -> _Parts:
    """Add up parallel neurons; leave out those that cancel."""
    u, s, linear = parts.u, parts.s.copy(), parts.linear.copy()
    if not len(s):
        return parts
    size = np.abs(s)
    cosine = u @ u.T
    keep = np.full(len(s), True)
    rows, columns = np.nonzero(np.triu(1 - np.abs(cosine) < _ONE, 1))
    for i, j in zip(rows.tolist(), columns.tolist(), strict=True):
        turn = np.sign(cosine[i, j])
        if not (keep[i] and keep[j]) or np.linalg.norm(u[i] - turn * u[j]) > _ONE:
            continue
        if turn < 0:
            linear += s[j] * u[j]
        s[i] += s[j]
        size[i] += size[j]
        keep[j] = False
    keep &= np.abs(s) > 8 * _EPS * size
    return _Parts(linear, u[keep], s[keep])


def _norm(parts: _Parts) -> float:
    return float(np.sqrt(np.sum(parts.s**2) + np.sum(parts.linear**2)))
