"""Neurons: B φ(A x + a) + c at every position, and gated, B (φ(G x + g) ⊙ (A x + a)) + c.

With z = A x + a and t = G x + g, h = φ(z) or φ(t) ⊙ z and its derivative D = φ'(z), or
∂h/∂z = φ(t) and ∂h/∂t = φ'(t) ⊙ z. A covector y of the answer is Bᵀy of h, and goes on to the
tokens through A and G.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from unsoftmax.models import linearised as lin
from unsoftmax.probes import Array


class Activation(NamedTuple):
    """φ, its derivative, and what a sum of such neurons does not show."""

    of: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    cancels: bool = False
    """Whether libraries compute it as z times a sum of ±1 and 1, which rounds as 1 does."""
    odd: bool = False
    """Whether φ(−z) = −φ(z), of a family's first; of any other φ(−z) = φ(z) − z."""
    homogeneous: bool = False
    """Whether φ(t z) = t φ(z) for t > 0."""
    family: str = ""
    """The Φ by which φ(z) = share·Φ(rate·z) + offset; "" where that is φ itself."""
    rate: float = 1.0
    share: float = 1.0
    offset: float = 0.0


def _sigmoid(z: Array) -> Array:
    from scipy.special import expit  # SciPy takes longer to load than all of this package

    return np.asarray(expit(z))


def _normal(z: Array) -> Array:
    from scipy.special import ndtr

    return np.asarray(ndtr(z))


def _silu_slope(z: Array, rate: float = 1.0) -> Array:
    s = _sigmoid(rate * z)
    return s * (1 + rate * z * (1 - s))


# GELU by tanh: z/2·(1 + tanh(√(2/π)(z + 0.044715 z³))), which is z σ(2√(2/π)(…)).
_RATE, _CUBIC = 2 * np.sqrt(2 / np.pi), 0.044715
# Quick GELU: z σ(1.702 z).
_QUICK = 1.702


def _by_tanh(z: Array) -> Array:
    near = _near(z)
    return np.asarray(z * _sigmoid(_RATE * (near + _CUBIC * near**3)))


def _by_tanh_slope(z: Array) -> Array:
    z = _near(z)
    s = _sigmoid(_RATE * (z + _CUBIC * z**3))
    return np.asarray(s + z * s * (1 - s) * _RATE * (1 + 3 * _CUBIC * z**2))


def _gelu_slope(z: Array) -> Array:
    z = _near(z)
    return np.asarray(_normal(z) + z * np.exp(-z * z / 2) / np.sqrt(2 * np.pi))


def _near(z: Array) -> Array:
    """Cut z off where both GELUs are 0 or z in float64: no power leaves its range."""
    return np.clip(z, -100.0, 100.0)


# What a sum may be off by, as a share of its terms' sizes. Too small: near a kink the wrong slope.
_MANY_ROUNDOFFS = 2.0**-47

ACTIVATIONS = {
    "relu": Activation(
        lambda z: np.maximum(z, 0.0), lambda z: (z > 0).astype(np.float64), homogeneous=True
    ),
    "gelu": Activation(lambda z: z * _normal(z), _gelu_slope, True),
    "gelu_tanh": Activation(_by_tanh, _by_tanh_slope, True),
    "silu": Activation(lambda z: z * _sigmoid(z), _silu_slope),
    "quick_gelu": Activation(
        lambda z: z * _sigmoid(_QUICK * z),
        lambda z: _silu_slope(z, _QUICK),
        family="silu",
        rate=_QUICK,
        share=1 / _QUICK,
    ),
    "sigmoid": Activation(
        _sigmoid,
        lambda z: _sigmoid(z) * _sigmoid(-z),
        family="tanh",
        rate=0.5,
        share=0.5,
        offset=0.5,
    ),
    "tanh": Activation(np.tanh, lambda z: 1 - np.tanh(z) ** 2, odd=True),
    "softplus": Activation(lambda z: np.logaddexp(0.0, z), _sigmoid),
    "identity": Activation(lambda z: z, np.ones_like, odd=True),
}
"""Every φ by name."""


@dataclass(frozen=True, slots=True)
class Neurons:
    """B φ(A x + a) + c, or B (φ(G x + g) ⊙ (A x + a)) + c, position by position.

    Shapes: A and G (m, d), a and g (m,), B (d_out, m), c (d_out,). Without A neurons are given
    their sums, z = x + a.
    """

    A: Array | None
    a: Array
    B: Array
    c: Array
    activation: str = "relu"
    G: Array | None = None
    g: Array | float = 0.0

    @property
    def arrays(self) -> dict[str, Array]:
        """Its arrays by name."""
        names = ("A", "a", "B", "c", "G", "g")
        missing = (["A"] if self.A is None else []) + (["G", "g"] if self.G is None else [])
        return {name: getattr(self, name) for name in names if name not in missing}

    def in_order_of(self, other: Neurons) -> Neurons:
        """Return the same map, its neurons in the order in which they are nearest to others."""
        # imported here: SciPy's optimisers take longer to load than all of this package
        from scipy.optimize import linear_sum_assignment

        rows, its = (
            np.column_stack([x.T if name == "B" else x for name, x in own.items() if name != "c"])
            for own in (self.arrays, other.arrays)
        )
        if rows.shape != its.shape:
            return self
        norm = np.linalg.norm(its, axis=0)
        rows, its = (x / np.where(norm > 0, norm, 1.0) for x in (rows, its))
        order = linear_sum_assignment(np.sum(rows**2, axis=1) - 2 * its @ rows.T)[1]
        moved: dict[str, Any] = {"A": None}
        moved |= {name: x[order] for name, x in self.arrays.items() if name not in ("B", "c")}
        return Neurons(**moved, B=self.B[:, order], c=self.c, activation=self.activation)

    def size(self, name: str) -> lin.Size:
        """Return the size of an array."""
        return lin.Size.of(self.arrays.get(name))

    def entries(self, tokens: int, every: bool) -> int:
        """Return how many numbers a sequence's answer needs at a time."""
        return (tokens if every else 1) * max(len(self.a), len(self.c))

    def answers(self, X: Array, every: bool = False) -> Array:
        """Map sequences (B, N, d) to answers at all positions, or at the last, (B, P, d_out)."""
        x = X if every else X[:, -1:]
        flat = x.reshape(-1, x.shape[2])  # one product for all sequences
        z = (flat if self.A is None else flat @ self.A.T) + self.a
        phi = ACTIVATIONS[self.activation].of
        h = phi(z) if self.G is None else phi(flat @ self.G.T + self.g) * z
        return np.asarray(h @ self.B.T + self.c).reshape(*x.shape[:2], len(self.c))

    def linearise(
        self, X: Array, every: bool = False, sizes: lin.Sizes | None = None
    ) -> lin.Linearised:
        """Return the map at sequences (B, N, d): at all positions, or at the last.

        ``sizes`` (B, N, d) are those of the terms that tokens are made of.
        """
        x = X if every else X[:, -1:]
        phi, A, B = ACTIVATIONS[self.activation], self.A, self.B
        z, G = (x if A is None else x @ A.T) + self.a, self.G
        if gated := G is not None:
            t = x @ G.T + self.g
            by_z, by_t = phi.of(t), phi.slope(t) * z
            h = by_z * z
        else:
            h, by_z, by_t = phi.of(z), phi.slope(z), np.zeros_like(z)

        def change_of(
            W: Array | None, name: str, bias: str, change: lin.Changes, dx: Array
        ) -> Array:
            moved = dx if W is None else dx @ W.T
            if name in change:
                moved = moved + x @ change[name].T
            return moved + change[bias] if bias in change else moved

        def jvp(change: lin.Changes, dX: Array | None = None) -> Array:
            dx = np.zeros_like(x) if dX is None else dX if every else dX[:, -1:]
            dh = by_z * change_of(A, "A", "a", change, dx)
            if gated:
                dh = dh + by_t * change_of(G, "G", "g", change, dx)
            dy = dh @ B.T
            if "B" in change:
                dy = dy + h @ change["B"].T
            return np.asarray(dy + change.get("c", 0.0))

        def vjp(y: Array) -> lin.Pullback:
            of_h = y @ B
            of_z = of_h * by_z
            by: dict[str, lin.Gradients] = {
                "B": (lin.Outer(y, h),),
                "c": (lin.Direct(y.sum(axis=2)),),
                "a": (lin.Direct(of_z.sum(axis=2)),),
            }
            if A is not None:
                by["A"] = (lin.Outer(of_z, x),)
            if G is not None:
                of_t = of_h * by_t
                by |= {"G": (lin.Outer(of_t, x),), "g": (lin.Direct(of_t.sum(axis=2)),)}

            def by_tokens() -> Array:
                of_x = of_z if A is None else of_z @ A
                of_x = of_x if G is None else of_x + (of_h * by_t) @ G
                return of_x if every else lin.at_last(of_x, X.shape[1])

            return lin.Pullback(by, by_tokens)

        value = h @ B.T + self.c
        worth = h if not phi.cancels else t * z if gated else z

        @cache
        def rounding() -> Array:
            made_of = np.abs(x) if sizes is None else sizes()[:, -x.shape[1] :]
            inside = self._inside(made_of, z, by_z, by_t, worth)
            return np.asarray(inside + np.abs(value) + np.abs(self.c))

        return lin.Linearised(value, rounding, jvp, vjp)

    def _inside(self, sizes: Array, z: Array, by_z: Array, by_t: Array, worth: Array) -> Array:
        """Return the sizes of the terms of the neurons' sums, which round one by one.

        And of what neurons answer, ``worth``, where slopes hide those. Where rounding may carry a
        sum across a kink the slope beyond counts.
        """
        length = lin.lengths_of(sizes)[..., None]
        sums = sizes if self.A is None else length * np.linalg.norm(self.A, axis=1)
        sums = sums + np.abs(self.a)
        by_z = np.abs(by_z)
        if self.G is None:
            beyond = ACTIVATIONS[self.activation].slope(z + _MANY_ROUNDOFFS * sums)
            by_z = np.maximum(by_z, np.abs(beyond))
        terms = np.maximum(sums * by_z, np.abs(worth))
        if self.G is not None:
            gates = length * np.linalg.norm(self.G, axis=1) + np.abs(self.g)
            terms = np.hypot(terms, gates * by_t)
        return 2 * lin.joint_lengths(terms, self.B)


def function_bound(errors: Mapping[str, float], lengths: Array) -> Array:
    """Bound what a certificate leaves open of a function of vectors of these lengths.

    That is constant + slope·‖x‖; of gated neurons, which multiply two sums, constant + square·‖x‖²
    where it is more.
    """
    steepest = np.maximum(errors["slope"], errors.get("square", 0.0) * lengths)
    return np.asarray(errors["constant"] + steepest * lengths)
