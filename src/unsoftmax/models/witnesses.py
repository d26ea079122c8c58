"""Sequences on which two heads are likely to differ, at sizes that float64 can tell apart."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unsoftmax.models.single_head import SingleHead
from unsoftmax.probes import Array


def candidates(a: SingleHead, b: SingleHead) -> Iterator[Array]:
    """Make sequences that tell v and c apart, then pairs [u+q; q] that tell W and w apart.

    Sizes are chosen for logits near 1, which W or w alone may set, and up to 4¹² away from it.
    """
    rng = np.random.default_rng(0)
    d = a.dim
    W, w, v = (max(norm_of(x), norm_of(y)) for x, y in ((a.W, b.W), (a.w, b.w), (a.v, b.v)))
    c = max(abs(a.c), abs(b.c))
    yield np.zeros((1, 1, d))
    if not v:
        return  # two constants
    for size in {1.0, c / v or 1.0}:
        yield _sizes(size)[:, None, None] * _unit(a.v - b.v)
    difference = a.W / (W or 1.0) - b.W / (W or 1.0)
    left, right = rng.standard_normal((2, d))
    for _ in range(30):  # power iteration: the direction in which the scores differ most
        left, right = _unit(difference @ right), _unit(difference.T @ left)
    value = _unit(a.v / v + b.v / v)
    bias = _unit(a.w)
    across = left - (left @ bias) * bias  # sees W alone, however large w is
    lines = (left, across, _unit(a.w - b.w))
    offsets = [_unit(u + s * value) for u in lines for s in (0.0, 1.0, -1.0)]
    offsets += list(rng.standard_normal((4, d)))
    queries = [right, np.zeros(d), *rng.standard_normal((2, d))]
    pairs = np.array([[u + q, q] for u in offsets for q in queries])
    for size in {W**-0.5 if W else 1.0, 1 / w if w else 1.0}:
        yield (_sizes(size)[:, None, None, None] * pairs).reshape(-1, 2, d)
    for size in {1 / W if W else 1.0, 1 / w if w else 1.0}:
        yield np.array([[s * u + q, q] for u in offsets for q in queries for s in _sizes(size)])


def _sizes(middle: float) -> Array:
    """Return sizes around one, of which no square leaves float64's range."""
    sizes: Array = np.clip(middle * 4.0 ** np.arange(-12, 13), 2.0**-480, 2.0**480)
    return sizes


def octave(size: float) -> float:
    """Return the power of two up to ``size``: dividing by it is exact."""
    return float(2.0 ** (np.frexp(size)[1] - 1))


def largest_of(x: Array) -> float:
    """Return the largest size of an entry, 0 of none."""
    return float(np.max(np.abs(x), initial=0.0))


def norm_of(x: Array) -> float:
    """Return the 2-norm (Frobenius), also where the squares leave float64's range."""
    unit = largest_of(x)
    return unit * float(np.linalg.norm(x / unit)) if unit else 0.0


def _unit(x: Array) -> Array:
    norm = norm_of(x)
    return x / norm if norm else x
