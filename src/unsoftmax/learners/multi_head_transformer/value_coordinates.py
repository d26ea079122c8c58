"""What is unknown of the values v_h in a cell, whose sum is the network's gradient g.

Usually (H − 1)·d numbers: v_H = g − Σ others. Fewer where the layer is less than it could be:

- low value rank: v_h = U_h c_h, U_h a basis of the v_h of earlier cells. Σ_h U_h c_h = g leaves
  Σ_h r_h less the rank of [U_1 … U_H];
- value form, B_h = A V_h: v_h = V_hᵀ g in every cell, and nothing is unknown.

In these coordinates x an offset a with gates γ is answered Σ_h γ_h a·v_h = row·x + known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class ValueSpaceTuning:
    """When fewer unknowns are taken for granted; rows that check say where that is wrong."""

    dependent: float = 1e-7
    """Values of earlier cells span no dimension more where singular values are below this share of
    the largest (values are known to 1e-10 of it)."""
    flat: float = 3e-3
    """A direction that all heads' spaces together reach by less than this share of the others is
    read in every cell: the gradient tells it with its errors over this share. A trained layer's
    weakest is 4e-4: its function came out to 6e-5 of its size without, to 4e-7 with this."""
    spare: int = 2
    """So many more cells than dimensions have to agree."""
    ample: float = 1.5
    """Where there are such directions, spaces are made of so many times as many cells as they have
    dimensions: the weakest direction of as few as span them is a hundred times coarser."""
    gain: float = 0.8
    """Spaces are used where they leave at most this share of the unknowns."""
    steps: int = 8
    """While spaces may still close cells are asked in groups of those known over this: few rounds,
    and at most an eighth more queries."""
    checks: int = 2
    """Rows that check, in each cell, that nothing is left beside the spaces."""


class ValueCoordinates(Protocol):
    """How the values of a cell are written."""

    @property
    def count(self) -> int:
        """Number of unknowns."""

    def rows(self, gates: Array, a: Array) -> Array:
        """Return the rows (n, count) of offsets a (n, d) at gates (n, H)."""

    def known(self, gates: Array, a: Array, g: Array) -> Array:
        """Return what is known of their answers (n,), the gradient being g."""

    def values(self, x: Array, g: Array) -> Array:
        """Return v (H, d)."""


@dataclass(frozen=True, slots=True)
class AllValues:
    """All v_h but the last, which is ∇g less the others."""

    heads: int
    dim: int

    @property
    def count(self) -> int:
        """Number of unknowns."""
        return (self.heads - 1) * self.dim

    def rows(self, gates: Array, a: Array) -> Array:
        """Return the rows (n, count) of offsets a (n, d) at gates (n, H)."""
        differences = gates[:, :-1] - gates[:, -1:]
        return np.asarray((differences[:, :, None] * a[:, None, :]).reshape(len(a), self.count))

    def known(self, gates: Array, a: Array, g: Array) -> Array:
        """Return what is known of their answers (n,), the gradient being g."""
        return np.asarray(gates[:, -1] * (a @ g))

    def values(self, x: Array, g: Array) -> Array:
        """Return v (H, d)."""
        v = x.reshape(self.heads - 1, self.dim)
        return np.concatenate([v, (g - v.sum(axis=0))[None]])


@dataclass(frozen=True, slots=True)
class ValuesInSpaces:
    """v_h = U_h c_h with c = P g + Z x: P the pseudo-inverse of [U_1 … U_H], Z its null space."""

    bases: tuple[Array, ...]
    """U_h (d, r_h)."""
    P: Array
    Z: Array
    weak: bool = False
    """Whether together they reach some direction but weakly."""

    @classmethod
    def of(cls, bases: tuple[Array, ...], flat: float) -> ValuesInSpaces:
        """Use orthonormal bases (d, r_h); together they are dependent below the share ``flat``."""
        every = np.concatenate(bases, axis=1)
        _, sizes, right = np.linalg.svd(every)
        rank = int(np.sum(sizes > flat * sizes[0]))
        P = np.asarray(np.linalg.pinv(every, rcond=flat), dtype=np.float64)
        return cls(bases, P, right[rank:].T, rank < len(sizes))

    @property
    def count(self) -> int:
        """Number of unknowns."""
        return int(self.Z.shape[1])

    def _every(self, gates: Array, a: Array) -> Array:
        parts = [gates[:, h, None] * (a @ U) for h, U in enumerate(self.bases)]
        return np.concatenate(parts, axis=1)

    def rows(self, gates: Array, a: Array) -> Array:
        """Return the rows (n, count) of offsets a (n, d) at gates (n, H)."""
        return np.asarray(self._every(gates, a) @ self.Z)

    def known(self, gates: Array, a: Array, g: Array) -> Array:
        """Return what is known of their answers (n,), the gradient being g."""
        return np.asarray(self._every(gates, a) @ (self.P @ g))

    def values(self, x: Array, g: Array) -> Array:
        """Return v (H, d)."""
        ends = np.cumsum([U.shape[1] for U in self.bases])[:-1]
        each = np.split(self.P @ g + self.Z @ x, ends)
        return np.array([U @ c for U, c in zip(self.bases, each, strict=True)])


@dataclass(frozen=True, slots=True)
class ValuesOfGradient:
    """v_h = V_hᵀ g: nothing is unknown."""

    V: Array
    """(H, d, d)."""

    @property
    def count(self) -> int:
        """Number of unknowns."""
        return 0

    def rows(self, gates: Array, a: Array) -> Array:
        """Return the rows (n, count) of offsets a (n, d) at gates (n, H)."""
        return np.zeros((len(a), 0))

    def known(self, gates: Array, a: Array, g: Array) -> Array:
        """Return what is known of their answers (n,), the gradient being g."""
        return np.asarray(np.sum(gates * (a @ self.values(np.zeros(0), g).T), axis=1))

    def values(self, x: Array, g: Array) -> Array:
        """Return v (H, d)."""
        return np.asarray(g @ self.V)


def fewer_unknowns(
    v: Array, g: Array, weight: Array, tuning: ValueSpaceTuning
) -> ValueCoordinates | None:
    """Return coordinates with fewer unknowns that all cells so far bear out, None without any.

    v (C, H, d) are the values of C cells, g (C, d) the network's gradients there. ``weight`` (C,)
    is 1 of cells that are as exact as usual, less of others.
    """
    C, H, d = v.shape
    if tuning.spare + 1 > C:
        return None
    size = np.linalg.svd(g, compute_uv=False)
    rank = int(np.sum(size > tuning.dependent * size[0]))
    if rank + tuning.spare <= C:
        V = np.array([np.linalg.lstsq(g, v[:, h], rcond=tuning.dependent)[0] for h in range(H)])
        missed = np.abs(np.einsum("cd,hde->che", g, V) - v).max()
        if rank == d and missed <= tuning.dependent * np.abs(v).max():
            return ValuesOfGradient(V)
    bases: list[Array] = []
    for h in range(H):
        _, s, right = np.linalg.svd(weight[:, None] * v[:, h], full_matrices=False)
        r = int(np.sum(s > tuning.dependent * s[0]))
        if r + tuning.spare - 1 > C:
            return None
        bases.append(right[:r].T)
    spaces = ValuesInSpaces.of(tuple(bases), tuning.flat)
    widest = max(basis.shape[1] for basis in bases)
    if spaces.weak and tuning.ample * widest + tuning.spare - 1 > C:
        return None
    return spaces if spaces.count <= tuning.gain * (H - 1) * d else None
