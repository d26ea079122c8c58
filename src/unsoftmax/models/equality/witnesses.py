"""Sequences on which two models differ by more than float64's rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from unsoftmax.models.arrays import TINY
from unsoftmax.models.equality.equivalence import norm_of
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.single_head import SingleHead
from unsoftmax.probes import Array

M = TypeVar("M", bound=FrozenModel)


@dataclass(frozen=True, slots=True)
class WitnessTuning:
    """How thoroughly `candidates` looks for sequences that tell two heads apart."""

    iterations: int = 30
    """Steps of the power iteration that finds the direction in which the scores differ most. It
    gains the ratio of the two largest singular values each; fewer leave other directions in."""
    offsets: int = 4
    """Random offsets beside the nine that are aimed: for heads that differ in no single one."""
    queries: int = 2
    """Random query tokens beside the aimed one and 0."""
    powers_of_four: int = 12
    """Powers of 4 that sizes go up and down from where logits are about 1. A parameter that is
    4¹² times smaller than others of its block still shows; one that is smaller may not."""

    @property
    def pairs_per_offset(self) -> int:
        """Number of query tokens that each offset is paired with, one after the other."""
        return self.queries + 2


def witness_of(
    a: M,
    b: M,
    families: Iterable[Array],
    rounding: Callable[[M, Array], Array],
    enough: float = np.inf,
) -> Array | None:
    """Return the sequence whose answers differ most beside their rounding, None if by less.

    Parameters
    ----------
    a, b : FrozenModel
        The models.
    families : iterable of ndarray (B, N, d)
        Sequences to try.
    rounding : callable
        Maps a model and sequences to bounds on the rounding of its answers (B,).
    enough : float, optional
        The search ends at a sequence that differs by this many times the rounding.
    """
    best, witness = 1.0, None
    # answers out of float64's range are no evidence
    with np.errstate(over="ignore", invalid="ignore"):
        for X in families:
            noise = np.maximum(rounding(a, X) + rounding(b, X), TINY)
            off = np.abs(a(X) - b(X)).reshape(len(X), -1).max(axis=1)  # of vectors the largest
            ratio = np.nan_to_num(off / noise, nan=0.0, posinf=0.0)
            k = int(np.argmax(ratio))
            if ratio[k] > best:
                best, witness = float(ratio[k]), X[k]
            if best > enough:
                break
    return witness


def candidates(a: SingleHead, b: SingleHead, tuning: WitnessTuning) -> Iterator[Array]:
    """Make sequences that tell v and c apart, then pairs [u+q; q] that tell W and w apart.

    Sizes are chosen for logits near 1, which W or w alone may set, and up to 4¹² away from it.
    """
    v, c = max(norm_of(a.v), norm_of(b.v)), max(abs(a.c), abs(b.c))
    yield np.zeros((1, 1, a.dim))
    if not v:
        return  # two constants
    for size in {1.0, c / v or 1.0}:
        yield _sizes(size, tuning)[:, None, None] * _unit(a.v - b.v)
    W, w = max(norm_of(a.W), norm_of(b.W)), max(norm_of(a.w), norm_of(b.w))
    offsets, queries = _aimed(a, b, tuning)
    pairs = np.array([[u + q, q] for u in offsets for q in queries])
    for size in {W**-0.5 if W else 1.0, 1 / w if w else 1.0}:
        yield (_sizes(size, tuning)[:, None, None, None] * pairs).reshape(-1, 2, a.dim)
    for size in {1 / W if W else 1.0, 1 / w if w else 1.0}:
        sizes = _sizes(size, tuning)
        yield np.array([[s * u + q, q] for u in offsets for q in queries for s in sizes])


def _aimed(a: SingleHead, b: SingleHead, tuning: WitnessTuning) -> tuple[list[Array], list[Array]]:
    """Return offsets and query tokens in the directions in which W, w and v differ most."""
    rng = np.random.default_rng(0)
    W, v = (max(norm_of(x), norm_of(y)) for x, y in ((a.W, b.W), (a.v, b.v)))
    difference = a.W / (W or 1.0) - b.W / (W or 1.0)
    left, right = rng.standard_normal((2, a.dim))
    for _ in range(tuning.iterations):
        left, right = _unit(difference @ right), _unit(difference.T @ left)
    value = _unit(a.v / v + b.v / v)
    bias = _unit(a.w)
    across = left - (left @ bias) * bias  # sees W alone, however large w is
    lines = (left, across, _unit(a.w - b.w))
    offsets = [_unit(u + s * value) for u in lines for s in (0.0, 1.0, -1.0)]
    offsets += list(rng.standard_normal((tuning.offsets, a.dim)))
    return offsets, [right, np.zeros(a.dim), *rng.standard_normal((tuning.queries, a.dim))]


def _sizes(middle: float, tuning: WitnessTuning) -> Array:
    """Return sizes around one, of which no square leaves float64's range."""
    powers = 4.0 ** np.arange(-tuning.powers_of_four, tuning.powers_of_four + 1)
    sizes: Array = np.clip(middle * powers, 2.0**-480, 2.0**480)
    return sizes


def _unit(x: Array) -> Array:
    norm = norm_of(x)
    return x / norm if norm else x
