"""Neurons on what heads pool, or on tokens: one sum on all inputs, one after the other.

Neurons of any activation, and gated ones, are a `NeuronSum`; what follows is of plain ReLUs.

Networks are equal exactly if the hyperplanes, the gradient's jumps across them and the affine parts
are. Where these differ by more than the tolerance, the functions may still be close: values in the
cells on both sides of every hyperplane decide.

Behind heads the inputs are what these pool, p = (p_1, …, p_H), and the query token x_N where it has
a first layer of its own. If n copies of a token y join a sequence with a small weight, p_h moves by
a multiple of (y − p_h)·e^{y·u_h}, with u_h = W_h x_N + w_h: of distinct u_h such functions of y
are linearly independent, so p moves in every direction. Sequences therefore show the network in
open sets of R^{Hd}. With p_h the gradient of log Σ_i e^{x_i·u} at u_h, p at x_N = b and at −b, both
long, are of opposite order along the W_h b: where all W_h differ every hyperplane is crossed. x_N
stays where others move, so no head can stand for it. Functions are equal exactly if the heads are,
those of equal scores merged, and the networks.

‖n‖ < √d behind a norm: neurons whose hyperplane is farther away never switch, and are part of the
linear part or nothing. Before one the size of the sum is invisible, eps going as its square, and
its sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Literal

import numpy as np

from unsoftmax.models.arrays import UNIT
from unsoftmax.models.equality.form import Form, merged
from unsoftmax.models.neuron_sum import NeuronSum, squared_distance
from unsoftmax.models.neurons import ACTIVATIONS
from unsoftmax.models.products import Product, Tolerance
from unsoftmax.models.relu_network import ReluNetwork, typical_length
from unsoftmax.probes import Array

Basis = Literal["canonical form", "cells"]
"""By what sub-layers are equal."""

# Random points, beside ten at every hyperplane, where values are compared. With fewer a difference
# away from all hyperplanes may stay undecided.
_POINTS = 512
# Powers of 4 up and down that sizes of tokens go from √eps, where there is a norm.
_SIZES = 12


@dataclass(frozen=True, slots=True)
class Network:
    """B φ(A x + a) + L x + c on n inputs, or as its form has gates, before a norm behind."""

    A: Array
    a: Array
    B: Array
    linear: Array
    """[L c], (m, n + 1)."""
    form: Form

    @classmethod
    def of(cls, form: Form, places: Sequence[int], count: int, last: bool) -> Network:
        """Put what heads pool into their places among ``count``, and the query token behind.

        Heads of one place are added up.
        """
        d = form.dim
        placed = np.zeros((max(1, count + last), len(form.c), d))
        for place, M in zip(places, form.values, strict=True):
            placed[place] += M.whole
        if last and form.last is not None:
            placed[-1] += form.last
        A = placed.transpose(1, 0, 2).reshape(len(form.c), len(placed) * d)
        if form.neurons is None:  # what is given is the answer
            B, linear = np.zeros((len(form.c), 0)), np.column_stack([A, form.c])
            return cls(A[:0], form.c[:0], B, linear, form)
        B, c = form.neurons[:2]
        linear = np.column_stack([np.zeros((len(c), A.shape[1])), c])
        if form.residual and form.before is None:
            own = np.eye(len(c), d)
            own = own if form.behind is None else form.behind.without_mean(own, axis=0)
            linear[:, -1 - d : -1] += own
        return cls(A, form.c, B, linear, form)

    @property
    def bent(self) -> tuple[Array, Array]:
        """Rows and biases of what φ is given."""
        return bent_by(self.form, self.A, self.a)

    @property
    def hyperplanes(self) -> ReluNetwork:
        """Neurons that are all added up: what their hyperplanes are."""
        A, a = self.bent
        return ReluNetwork(A.T, np.ones(len(a)), a)

    @property
    def relu(self) -> bool:
        """Whether neurons, if there are any, are plain ReLUs."""
        return self.form.neurons is None or self.form.neurons.relu

    def sum(self, length: float) -> NeuronSum:
        """Return the sum in a unit of length; of normalised tokens that is 1."""
        A, a = (np.column_stack(x) for x in (self.bent, (self.A, self.a)))
        unit = np.append(np.full(self.A.shape[1], length), 1.0)
        own = self.form.neurons
        U = a * unit if own is not None and own.gates is not None else None
        phi = "relu" if own is None else own.activation
        most = np.inf if self.form.before is None else np.sqrt(self.A.shape[1])  # of length 1
        return NeuronSum.of(phi, A * unit, self.B, U, self.linear * unit, most)

    def __call__(self, x: Array) -> Array:
        """Map points to answers (B, m), before a norm behind."""
        own, z, (A, a) = self.form.neurons, x @ self.A.T + self.a, self.bent
        h = ACTIVATIONS["relu" if own is None else own.activation].of(x @ A.T + a)
        h = h if own is None or own.gates is None else h * z
        return np.asarray(h @ self.B.T + x @ self.linear[:, :-1].T + self.linear[:, -1])

    def rounding(self, x: Array) -> Array:
        """Bound the rounding of answers of plain ReLUs: sums of n terms err as √n."""
        inside = np.abs(x) @ np.abs(self.A).T + np.abs(self.a)
        size = inside @ np.abs(self.B).T + np.abs(x) @ np.abs(self.linear[:, :-1]).T
        return np.asarray(16 * np.sqrt(x.shape[1] + 1) * UNIT * (size + np.abs(self.linear[:, -1])))


def straightened(form: Form, tolerance: Tolerance) -> Form:
    """Return heads before neurons that nothing bends as heads; else as few as there need be.

    What neurons do not see of heads is the rounding of a sum.
    """
    if form.neurons is None or not form.attends or form.norm is not None:
        return form
    form = form if tolerance.exact else merged(form)
    H, d = len(form.values), form.dim
    network = Network.of(replace(form, residual=False), range(H), H, True)
    parts = network.sum(1.0).merged()
    linear, lost = parts.linear, parts.lost
    slots = [slice(h * d, h * d + d) for h in range(H + 1)]
    seen = [bool(np.any(parts.rows[:, s]) or np.linalg.norm(linear[:, s]) > lost) for s in slots]
    if not len(parts.rows):
        values, last = (Product.of(linear[:, slot]) for slot in slots[:-1]), linear[:, slots[-1]]
        form = replace(form, values=tuple(values), last=last, c=linear[:, -1], neurons=None)
    scores, kept = tuple(compress(form.scores, seen)), tuple(compress(form.values, seen))
    return replace(form, scores=scores, values=kept, last=form.last if seen[-1] else None)


def agreement(a: Network, b: Network, tolerance: Tolerance) -> tuple[Basis | None, float]:
    """Say by what two networks are equal, None if they are not, and their relative difference.

    No witness is looked for where they are not.
    """
    length, relu = 1.0, a.relu and b.relu
    if a.form.before is None and b.form.before is None:
        length = typical_length(a.hyperplanes, b.hyperplanes) if relu else _bending_length(a, b)
    alike, difference, size, gap = _apart(a, b, length, tolerance)
    if alike and tolerance.allows(difference, size):
        return "canonical form", gap
    if tolerance.exact or not alike or not relu or a.form.norm is not None:
        return None, gap
    x = points(a, b, length)
    with np.errstate(over="ignore", invalid="ignore"):
        height = np.hypot(np.linalg.norm(x, axis=1) / length, 1.0)
        off = np.linalg.norm(a(x) - b(x), axis=1) / height
    return ("cells" if tolerance.allows(float(np.max(off)), size) else None), gap


def _apart(
    a: Network, b: Network, length: float, tolerance: Tolerance
) -> tuple[bool, float, float, float]:
    """Say whether what is around two sums is alike; their distance, size, and relative distance."""
    found = [g.sum(length).merged() for g in (a, b)]
    vector = a.form.vector or b.form.vector
    # only of vectors does a pairing of hinges weigh the side to which they turn
    found = [parts.turned_alike() if vector and parts.hinged else parts for parts in found]
    sizes = [signed_size(g.form, parts) for g, parts in zip((a, b), found, strict=True)]
    first, second = (x.scaled(1 / (size or 1.0)) for x, size in zip(found, sizes, strict=True))
    beside = around(a.form, sizes[0]), around(b.form, sizes[1])
    alike, norm_gap = beside[0].compare_norms(beside[1], tolerance)
    size = max(first.norm, second.norm)
    difference = float(np.sqrt(squared_distance(first, second)))
    return alike, difference, size, max(difference / size if size else 0.0, norm_gap)


def _bending_length(*networks: Network) -> float:
    """Return the length on which most neurons bend, a power of two; 1 where nothing bends."""
    norms = np.concatenate([np.linalg.norm(g.bent[0], axis=1) for g in networks])
    used = norms[norms > 0]
    return float(2.0 ** -np.round(np.log2(np.median(used)))) if len(used) else 1.0


def bent_by(form: Form, A: Array, a: Array) -> tuple[Array, Array]:
    """Return rows and biases of what φ is given: A and a, or those of gates."""
    gates = None if form.neurons is None else form.neurons.gates
    return (A, a) if gates is None else gates


def signed_size(form: Form, parts: NeuronSum) -> float:
    """Return what a sum is divided by behind a norm, with its sign; else 0."""
    norm = form.behind
    return 0.0 if norm is None or not norm.scale.any() else parts.norm * norm.sign


def around(form: Form, size: float) -> Form:
    """Return what is around a sum: the norm in its unit, and a residual around one."""
    norm = form.norm.behind_share(size) if size and form.norm is not None else form.norm
    return replace(form, norm=norm, residual=form.residual and form.before is not None)


def points(a: Network, b: Network, length: float) -> Array:
    """Return points at all hyperplanes and, where there is a norm, of all sizes."""
    rng = np.random.default_rng(1)
    x = [points_in_cells([g.bent for g in (a, b)], length, _POINTS)]
    powers = 4.0 ** rng.integers(-_SIZES, _SIZES + 1, (_POINTS, 1))
    for norm in (g.form.norm for g in (a, b) if g.form.norm is not None):
        size = (norm.eps**0.5 or 1.0) * powers
        x.append(size * rng.standard_normal((_POINTS, a.A.shape[1])))
    return np.vstack(x)


def points_in_cells(neurons: Sequence[tuple[Array, Array]], length: float, count: int) -> Array:
    """Return points beside every hyperplane, at its foot and elsewhere on it, and at random.

    Parameters
    ----------
    neurons : sequence of (ndarray (m, d), ndarray (m,))
        Rows and biases.
    length : float
        Typical distance of a hyperplane from 0.
    count : int
        How many random ones there are.
    """
    rng, d = np.random.default_rng(0), neurons[0][0].shape[1]
    directions = rng.standard_normal((count, d))
    x = [np.zeros((1, d)), length * 10.0 ** rng.uniform(-2, 4, (count, 1)) * directions]
    for A, b in neurons:
        norm = np.linalg.norm(A, axis=1)
        used = norm > 0
        normal = A[used] / norm[used, None]
        foot = -(b[used] / norm[used])[:, None] * normal
        reach = length + np.linalg.norm(foot, axis=1, keepdims=True)
        along = rng.standard_normal(foot.shape)
        along -= np.sum(along * normal, axis=1, keepdims=True) * normal
        for on in (foot, foot + reach / np.sqrt(d) * along):
            x += [on, *(on + size * reach * normal for size in (1.0, -1.0, 1e-3, -1e-3))]
    return np.concatenate(x)
