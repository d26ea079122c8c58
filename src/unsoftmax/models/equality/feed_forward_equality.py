"""Do two feed-forward layers compute the same function? Decided on their hinge sums.

As of networks (`relu_network_equality`): neurons up to order, parallel ones merged, a positive
factor free between (A, b) and B, and B_j relu(z) = B_j z + B_j relu(−z) turns one around at the
price of a linear part, which the x of a residual joins.

A norm before is seen through as n = (x − mean)/√(var + eps): its scale and shift are part of A and
b, and x of a residual stays apart. ‖n‖ < √d, so neurons whose hyperplane is farther away never
switch, and are part of the linear part or nothing. Behind a norm the mean over outputs is
invisible, and so are the size of the sum, eps going as its square, and its sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unsoftmax.models.arrays import TINY, UNIT
from unsoftmax.models.equality.equivalence import (
    Equivalence,
    ModelEquality,
    Tolerance,
    largest_of,
    refuse_range,
)
from unsoftmax.models.equality.hinge_sum import HingeSum, squared_distance
from unsoftmax.models.equality.relu_network_equality import points_in_cells
from unsoftmax.models.equality.witnesses import witness_of
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.relu_network import ReluNetwork, typical_length
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class FeedForwardEquality(ModelEquality[FeedForward]):
    """Layers are equal if hyperplanes, jumps of the Jacobian, affine parts and norms are."""

    model: ClassVar[type[FrozenModel]] = FeedForward

    parallel: float = 1e-12
    """Unit normals closer than this are one hyperplane. Smaller: the rounding of a layer's weights
    splits one; larger: two that are close become one."""
    near: float = 1e-2
    """Hyperplanes of two layers are compared if 1 − |cos| of their normals is below this; the
    others count as missing in the other layer."""
    points: int = 512
    """Random points, beside ten at every hyperplane, where values are compared. With fewer a
    difference away from all hyperplanes may stay undecided."""
    sizes: int = 12
    """Powers of 4 up and down that sizes of tokens go from 1, where there is a norm."""

    def canonical(self, model: FeedForward) -> FeedForward:
        """Return the layer that stands for all that compute the same function.

        Parallel neurons are merged, every neuron's first weight that is not 0 is positive and its
        ‖(A_j, b_j)‖ is 1, neurons are ordered by their weights. The linear part, x of a residual
        included, follows as neurons x_i and −x_i. Behind a norm the size of all is 1.
        """
        form = LayerParts.of(model, 1.0, self.parallel)
        parts, norm = form.parts, form.norm
        order = np.lexsort(parts.u.T[::-1]) if len(parts.u) else np.zeros(0, dtype=np.intp)
        d = model.dim
        A, b, B = parts.u[order, :d], parts.u[order, d], parts.s[order]
        linear = parts.linear[:, :d]
        size = float(np.linalg.norm(linear)) + float(np.sum(np.linalg.norm(parts.s, axis=1)))
        used = np.linalg.norm(linear, axis=0) > 8 * UNIT * (1 + len(parts.s)) * size
        if norm is not None and form.size:
            norm = _rescaled(norm, form.size)
        unit = form.size or 1.0
        E, L = np.eye(d)[used], linear.T[used]
        A, b = np.vstack([A, E, -E]), np.append(b, np.zeros(2 * len(E)))
        B, c = np.vstack([B, L, -L]).T / unit, parts.linear[:, d] / unit
        return FeedForward(A, b, B, c, form.residual, norm)

    def simplest(self, model: FeedForward) -> FrozenModel:
        """Return a layer of one output, without a residual and a norm, as a network."""
        if len(model.c) > 1 or model.residual or model.norm is not None:
            return model
        return ReluNetwork(model.A.T, model.B[0], model.b, float(model.c[0]))

    def read(self, model: FrozenModel) -> FeedForward | None:
        """Return a layer as it is; nothing else is one."""
        return model if isinstance(model, FeedForward) else None

    def compare(self, a: FeedForward, b: FeedForward, tolerance: Tolerance) -> Equivalence:
        """Compare hinge sums and norms, then values in the cells at all hyperplanes."""
        if len(a.c) != len(b.c):
            return Equivalence("different", None, float("inf"), "shape")
        for layer in (a, b):
            refuse_range(_sizes(layer))
        length = typical_length(*(ReluNetwork(g.A.T, np.ones(len(g.b)), g.b) for g in (a, b)))
        forms = [LayerParts.of(g, length, self.parallel) for g in (a, b)]
        first, second = (form.parts.scaled(1 / (form.size or 1.0)) for form in forms)
        size = max(first.norm, second.norm)
        difference = float(np.sqrt(squared_distance(first, second, self.near)))
        gap = difference / size if size else 0.0
        alike, norm_gap = _compare_norms(forms[0], forms[1], tolerance)
        gap = max(gap, norm_gap)
        if alike and tolerance.allows(difference, size):
            return Equivalence("equal", None, gap)
        x = self._tokens(a, b, length)
        if alike and a.norm is None and not tolerance.exact:
            height = np.hypot(np.linalg.norm(x, axis=1) / length, 1.0)
            off = np.linalg.norm(a(x) - b(x), axis=1) / height
            if tolerance.allows(float(np.max(off)), size):
                return Equivalence("equal", None, gap, "cells")
        return Equivalence.unequal(witness_of(a, b, [x[:, None]], _rounding), gap)

    def share(self, a: FeedForward, b: FeedForward, errors: Mapping[str, float]) -> float:
        """Compare values in the cells at all hyperplanes with what errors do to answers at most."""
        needed = {"constant", "slope"}
        if a.norm is not None and not a.norm.before:
            needed |= {"scale", "shift", "eps"}
        if len(a.c) != len(b.c) or not needed <= errors.keys():
            return float("inf")
        length = typical_length(*(ReluNetwork(g.A.T, np.ones(len(g.b)), g.b) for g in (a, b)))
        x = self._tokens(a, b, length)
        rounding = np.sqrt(len(a.c)) * (_rounding(a, x[:, None]) + _rounding(b, x[:, None]))
        beyond = np.maximum(np.linalg.norm(a(x) - b(x), axis=1) - rounding, 0.0)
        if not np.any(beyond):
            return 0.0
        if not np.isfinite(errors["constant"] + errors["slope"]):
            return float("inf")
        allowed = a.moved_at_most(x, errors)
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.max((beyond / allowed)[beyond > 0]))

    def _tokens(self, a: FeedForward, b: FeedForward, length: float) -> Array:
        """Return points at all hyperplanes and, where there is a norm, tokens of all sizes."""
        x = points_in_cells([(g.A, g.b) for g in (a, b)], length, self.points)
        if a.norm is None and b.norm is None:
            return x
        rng = np.random.default_rng(1)
        powers = 4.0 ** rng.integers(-self.sizes, self.sizes + 1, (self.points, 1))
        bends = [g.norm.eps**0.5 or 1.0 for g in (a, b) if g.norm is not None]
        return np.vstack(
            [x, *(size * powers * rng.standard_normal((self.points, a.dim)) for size in bends)]
        )


@dataclass(frozen=True, slots=True)
class LayerParts:
    """A layer as a hinge sum, of what a norm before lets it see, with what stays apart."""

    parts: HingeSum
    residual: bool
    """Whether x is added beside: only with a norm before."""
    norm: LayerNorm | None
    size: float
    """What the sum is divided by behind a norm, which has its sign; else 0."""

    @classmethod
    def of(cls, layer: FeedForward, length: float, parallel: float) -> LayerParts:
        """Read a layer off in the unit of length λ; with a norm before in the unit 1.

        Parallel neurons are merged, and the first weight of each that is not 0 is positive.
        """
        norm, A, b = layer.norm, layer.A, layer.b
        linear = np.zeros((len(layer.c), layer.dim + 1))
        linear[:, -1] = layer.c
        before = norm is not None and norm.before
        if norm is not None and before:
            b = b + A @ norm.shift
            A = _centred(A * norm.scale, norm)
            norm = LayerNorm(np.ones(layer.dim), None, norm.eps, True, norm.centred)
            length = 1.0
            A, b, linear = _without_idle(A, b, layer.B, linear)
        elif layer.residual:
            linear[:, :-1] += length * np.eye(layer.dim)
        B = layer.B
        if norm is not None and not before:
            B, linear = _centred(B.T, norm).T, _centred(linear.T, norm).T
        parts = HingeSum.of_neurons(length * A, b, B.T, linear).merged(parallel)
        first = parts.u[np.arange(len(parts.u)), np.argmax(parts.u != 0, axis=1)]
        parts = parts.turned(first < 0)
        size = 0.0
        if norm is not None and not before and norm.scale.any():
            size = parts.norm * float(np.sign(norm.scale[np.argmax(norm.scale != 0)]))
        return cls(parts, layer.residual and before, norm, size)


def _centred(x: Array, norm: LayerNorm) -> Array:
    return x - x.mean(axis=1, keepdims=True) if norm.centred else x


def _without_idle(A: Array, b: Array, B: Array, linear: Array) -> tuple[Array, Array, Array]:
    """Put neurons that never switch into the linear part; set their rows and biases to 0.

    Normalised tokens are no longer than √d: where |b| is more than √d·‖A‖ a neuron is always
    active, or never.
    """
    idle = np.abs(b) >= np.sqrt(A.shape[1]) * np.linalg.norm(A, axis=1)
    active = idle & (b > 0)
    linear = linear + B[:, active] @ np.column_stack([A, b])[active]
    return np.where(idle[:, None], 0.0, A), np.where(idle, 0.0, b), linear


def _rescaled(norm: LayerNorm, size: float) -> LayerNorm:
    """Return the norm behind a sum that is divided by a size with a sign."""
    scale = np.sign(size) * norm.scale
    return LayerNorm(scale, norm.shift, norm.eps / size / size, False, norm.centred)


def _compare_norms(a: LayerParts, b: LayerParts, tolerance: Tolerance) -> tuple[bool, float]:
    """Tell whether residuals beside a norm, and norms, are within the tolerance."""
    first, second = a.norm, b.norm
    if first is None or second is None:
        alike = first is second
        return alike, 0.0 if alike else float("inf")
    kinds = [(g.residual, n.before, n.centred) for g, n in ((a, first), (b, second))]
    if kinds[0] != kinds[1]:
        return False, float("inf")
    mine, its = (_rescaled(n, g.size) if g.size else n for g, n in ((a, first), (b, second)))
    compared = [
        tolerance.compare(mine.scale, its.scale),
        tolerance.compare(mine.shift, its.shift),
        tolerance.compare(np.array([mine.eps]), np.array([its.eps])),
    ]
    return all(within for within, _ in compared), max(gap for _, gap in compared)


def _rounding(layer: FeedForward, X: Array) -> Array:
    """Bound the rounding of answers to (B, 1, d): sums of n terms err as √n."""
    x, norm = X[:, 0], layer.norm
    seen = norm(x) if norm is not None and norm.before else x
    inside = np.abs(seen) @ np.abs(layer.A).T + np.abs(layer.b)
    terms = inside @ np.abs(layer.B).T + np.abs(layer.c)
    if layer.residual:
        terms = terms + np.abs(x)
    noise = 16 * np.sqrt(layer.dim + len(layer.b) + 1) * UNIT * terms.max(axis=1)
    if norm is None or norm.before:
        return np.asarray(noise)
    plain = FeedForward(layer.A, layer.b, layer.B, layer.c, layer.residual)(x)
    z = plain - plain.mean(axis=1, keepdims=True) if norm.centred else plain
    deviation = np.sqrt(np.maximum(np.mean(z * z, axis=1) + norm.eps, TINY))
    moved = 4 * np.max(np.abs(norm.scale)) * noise / deviation
    return np.asarray(moved + 16 * UNIT * np.max(np.abs(norm.shift)))


def _sizes(layer: FeedForward) -> dict[str, float]:
    """Return how large the parameters are that are compared, the norm before taken in."""
    sizes = {name: largest_of(getattr(layer, name)) for name in ("A", "b", "B", "c")}
    if layer.norm is not None:
        through = {name: largest_of(getattr(layer.norm, name)) for name in ("scale", "shift")}
        sizes["A"] *= max(1.0, *through.values()) if layer.norm.before else 1.0
        sizes |= through
    return sizes
