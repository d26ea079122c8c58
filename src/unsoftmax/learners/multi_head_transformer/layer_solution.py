"""The layer from the values that its heads have in K + 1 cells.

In the cell of the active neurons S head h has the value v_h = ℓ_h + Σ_{k∈S} E_h[k]: one linear
system for ℓ_h and all E_h[k] = ε_k B_h[k]. ℓ_h is 0 but for neurons that were learned the other
way round, ε relu(z) = ε relu(−z) + ε z: they are turned, ℓ_h = −Σ_F E_h[k], where F can be told.
What is left of ℓ_h takes two neurons more, relu(z) − relu(−z). Nothing is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.arrangement.base_points import NetworkHinges
from unsoftmax.probes import Array, Flags

# What turned neurons leave of ℓ is at most this share of the neurons' size: errors of v are 1e-10.
LEFT_OF_LINEAR = 1e-7
# Neurons tell F if their singular values are above this share of the largest.
DEPENDENT = 1e-8


@dataclass(frozen=True, slots=True)
class SolvedFirstLayers:
    """First layers of all heads: neurons with weights w_o, biases b, B (H, m, d), and c."""

    B: Array
    w_o: Array
    b: Array
    c: float
    inverse: Array
    """The system's inverse (K + 1, C): how errors of the cells' values reach ℓ and the E."""
    turned: Flags | None
    """Neurons that were learned the other way round, None where that cannot be told."""
    linear: bool
    """Whether the last two neurons carry a linear part."""

    def slope(self, errors: Array) -> float:
        """Return what ℓ and all neurons are off by in sum, errors of the cells being (C,)."""
        return float(np.sum(np.sqrt(self.inverse**2 @ errors**2)))


def solve_layer(hinges: NetworkHinges, v: Array, active: Flags) -> SolvedFirstLayers:
    """Solve for B from the v_h (C, H, d) of cells with active neurons (C, K), C = K + 1."""
    C, H, d = v.shape
    system = np.column_stack([np.ones(C), active])
    x = np.asarray(np.linalg.solve(system, v.reshape(C, H * d)), dtype=np.float64)
    inverse = np.asarray(np.linalg.inv(system), dtype=np.float64)
    return _in_neurons(hinges, x[0], x[1:], inverse)


def layer_of_one_head(hinges: NetworkHinges) -> SolvedFirstLayers:
    """Take the network that single tokens show for the one head's."""
    E = hinges.signs[:, None] * hinges.A
    return _in_neurons(hinges, hinges.linear, E, np.zeros((0, 0)))


def _in_neurons(hinges: NetworkHinges, rest: Array, E: Array, inverse: Array) -> SolvedFirstLayers:
    """Write ℓ (Hd,) and E (K, Hd) as neurons."""
    signs, b, c = hinges.signs.copy(), hinges.b.copy(), hinges.c
    B, turned = signs[:, None] * E, _turned(E, rest)
    if turned is not None:
        c += float(np.sum((signs * b)[turned]))
        b, B = np.where(turned, -b, b), np.where(turned[:, None], -B, B)
        rest = np.zeros(len(rest))
    linear = bool(np.any(rest))
    if linear:
        B = np.concatenate([B, rest[None], -rest[None]])
        signs, b = np.append(signs, [1.0, -1.0]), np.append(b, [0.0, 0.0])
    B = B.reshape(len(B), -1, hinges.dim).transpose(1, 0, 2)
    return SolvedFirstLayers(B, signs, b, c, inverse, turned, linear)


def _turned(E: Array, rest: Array) -> Flags | None:
    """Return the neurons that make up −ℓ, None where it is no such sum."""
    size = np.linalg.norm(E, axis=1)
    if not len(E) or len(E) > E.shape[1] or not np.all(size > 0):
        return None
    shares, _, rank, _ = np.linalg.lstsq((E / size[:, None]).T, -rest, rcond=DEPENDENT)
    if rank < len(E):
        return None
    shares = shares / size
    whole = np.round(shares)
    left = np.linalg.norm(rest + whole @ E)
    if np.any((whole != 0) & (whole != 1)) or left > LEFT_OF_LINEAR * float(size.sum()):
        return None
    return np.asarray(whole == 1)
