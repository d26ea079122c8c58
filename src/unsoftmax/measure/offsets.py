"""Which offsets to ask with: rows z_i, each giving one equation z_i·u = t per query token.

What matters is |z_i·v|, which is the signal, and the conditioning of Z. The choice of
Theorem 4.1 (`paper`) ties both to the entries of v; the `balanced` one depends on ‖v‖ alone.
`rotation` makes orthonormal query tokens of the same kind. Nothing is asked here: rows in,
solutions of Z x = m out, and bounds on Z's singular values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy

from unsoftmax.probes import Array, Indices, LazyRows, Rows

# On this grid offset + unit vector is exact in float32, where many real targets compute.
_GRID = 2.0**-22
# On this one the sum of two dense rows is, at scales that are not far apart.
DENSE_GRID = 2.0**-16
# Solutions are refined to float64's last bit, and one further.
_ALL_BITS = 54
# Lazy rows are made 2 MiB at a time: memory, not arithmetic.
_CHUNK = 2**18


def chunks(rows: LazyRows) -> list[Indices]:
    """Divide lazy rows into stretches that fit into memory when they are made."""
    count, dim = rows.shape
    step = max(1, _CHUNK // dim)
    return [np.arange(i, min(i + step, count)) for i in range(0, count, step)]


@dataclass(frozen=True, slots=True)
class MixedRows(LazyRows):
    """Rows of Z = round(σ·C S₁ C S₂ + L R): random, orthogonal but in a few directions.

    C is the cosine transform, S₁ and S₂ flip signs. Two of each are needed: after one, rows of
    low frequency seen on neighbouring coordinates are nearly dependent. A row costs
    O(d log d), a solution of Z x = m as many products with Z as refinement needs: three.
    """

    signs: Array
    """Signs (2, d)."""
    scale: float
    left: Array
    """L, (d, q)."""
    right: Array
    """R, (q, d)."""
    grid: float
    """Entries are multiples of it."""
    picked: Indices
    """Which rows these are."""

    @property
    def shape(self) -> tuple[int, int]:  # noqa: D102
        return len(self.picked), self.signs.shape[1]

    def __getitem__(self, index: Indices) -> Array:
        rows = np.zeros((len(index), self.shape[1]))
        rows[np.arange(len(index)), self.picked[index]] = self.scale
        rows = _transposed(self.signs, rows.T).T
        rows += self.left[self.picked[index]] @ self.right
        return np.asarray(np.round(rows / self.grid) * self.grid)

    def pick(self, index: Indices) -> MixedRows:  # noqa: D102
        return replace(self, picked=self.picked[index])

    def times(self, x: Array) -> Array:
        """Return Z x, (rows, n) for x of shape (d, n)."""
        return np.concatenate([self[part] @ x for part in chunks(self)])

    def solve(self, m: Array) -> Array:
        """Return x with Z x = m, for all of Z's rows."""
        small = _transposed(self.signs, self.left) / self.scale
        core = np.eye(len(self.right)) + self.right @ small

        def nearly(m: Array) -> Array:
            x = _transposed(self.signs, m) / self.scale
            return np.asarray(x - small @ np.linalg.solve(core, self.right @ x))

        x = nearly(m)
        # rounding moved Z by about grid·√d: each step gains as many bits
        gained = -np.log2(self.grid * np.sqrt(self.shape[1]))
        for _ in range(int(np.ceil(_ALL_BITS / gained))):
            x = x + nearly(m - self.times(x))
        return x


def _mix(signs: Array, x: Array) -> Array:
    """Return C S₁ C S₂ x for columns x."""
    inner = scipy.fft.dct(signs[1][:, None] * x, axis=0, norm="ortho")
    return np.asarray(scipy.fft.dct(signs[0][:, None] * inner, axis=0, norm="ortho"))


def _transposed(signs: Array, x: Array) -> Array:
    """Return its transpose times x."""
    inner = signs[0][:, None] * scipy.fft.idct(x, axis=0, norm="ortho")
    return np.asarray(signs[1][:, None] * scipy.fft.idct(inner, axis=0, norm="ortho"))


@dataclass(frozen=True, slots=True)
class Offsets:
    """Rows z_i with bounds on their extreme singular values, ready to solve Z x = m."""

    rows: Rows
    smallest: float
    largest: float

    def made(self) -> Array:
        """Make all rows at once, for those that ask with each of them many times."""
        return self.rows[np.arange(self.rows.shape[0])]

    def times(self, x: Array) -> Array:
        """Return Z x."""
        rows = self.rows
        return rows.times(x) if isinstance(rows, MixedRows) else np.asarray(self.made() @ x)

    def solve(self, measured: Array) -> Array:
        """Return Z⁻¹Mᵀ for M of shape (query tokens, offsets)."""
        if isinstance(self.rows, MixedRows):
            return self.rows.solve(measured.T)
        if isinstance(self.rows, LazyRows):
            raise TypeError("unit vectors need no solving")
        return np.asarray(np.linalg.solve(self.rows, measured.T), dtype=np.float64)


def rotation(d: int, rng: np.random.Generator) -> Offsets:
    """Make d random rows that are orthonormal but for their rounding."""
    signs, reflect = _random(d, rng)
    rows = MixedRows(signs, 1.0, *_joined([reflect]), DENSE_GRID, np.arange(d))
    return Offsets(rows, 1 - d * DENSE_GRID, 1 + d * DENSE_GRID)


def balanced(v: Array, rng: np.random.Generator, grid: float = _GRID) -> Offsets:
    """Make d unit rows with z_i·v̂ = √c each whose parts orthogonal to v form a tight frame.

    Z = σR + (√c − σ/√d)·(1,…,1)ᵀv̂ᵀ with σ² = (1−c)/(1−1/d) and R a random orthogonal matrix
    that maps v̂ = v/‖v‖ to (1,…,1)/√d: random signs and cosine transforms, reflected at
    random and then onto v: no d³ work, and the same bits whatever the BLAS. The singular
    values are √(cd) and σ. The error of W under equal errors of the answers grows as
    (1/c)[(d−1)²/(d(1−c)) + 1/(dc)]; c minimises it (2/3 at d = 2, → 1/2). R is random, so
    that no W (identity, permutation, antisymmetric …) is aligned with it.

    Source: beyond the paper.
    """
    d = len(v)
    if d == 1:
        return Offsets(np.sign(v)[None, :], 1.0, 1.0)
    k = (d - 1) ** 2
    c = 2 / 3 if d == 2 else (k - 4 + np.sqrt(k * (k + 8))) / (4 * (k - 1))
    sigma = float(np.sqrt((1 - c) / (1 - 1 / d)))
    direction = v / np.linalg.norm(v)
    signs, reflect = _random(d, rng)
    # R v̂ = (1,…,1)/√d by one more reflection, from the left
    turned = _mix(signs, direction[:, None])[:, 0] + reflect[0] * (reflect[1] @ direction)
    mirror = turned - 1 / np.sqrt(d)
    seen = _transposed(signs, mirror[:, None])[:, 0] + (mirror @ reflect[0]) * reflect[1]
    onto = (-2 / (mirror @ mirror) * mirror, seen)
    shift = (np.full(d, np.sqrt(c) - sigma / np.sqrt(d)), direction)
    left, right = _joined([(sigma * u, x) for u, x in (reflect, onto)] + [shift])
    rows = MixedRows(signs, sigma, left, right, grid, np.arange(d))
    # Weyl: rounding moves a singular value by at most its own Frobenius norm
    moved = d * grid
    return Offsets(rows, float(min(sigma, np.sqrt(c * d)) - moved), float(np.sqrt(c * d) + moved))


def _random(d: int, rng: np.random.Generator) -> tuple[Array, tuple[Array, Array]]:
    """Draw signs, and a reflection after the transforms as L and R of rank 1."""
    signs = rng.choice([-1.0, 1.0], (2, d))
    x = rng.standard_normal(d)
    return signs, (-2 / (x @ x) * _mix(signs, x[:, None])[:, 0], x)


def _joined(terms: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    return np.column_stack([u for u, _ in terms]), np.array([x for _, x in terms])


def paper(v: Array, v_error: Array) -> Offsets:
    """Make the offsets of Theorem 4.1: e_l, or e_l + e_p with v_p ≠ 0 where v_l = 0.

    p is the largest entry of v, and an entry counts as 0 when its error bound reaches it.
    """
    Z = np.eye(len(v))
    Z[np.abs(v) <= v_error, np.argmax(np.abs(v))] = 1.0
    return _measured(Z)


def gaussian(d: int, rng: np.random.Generator) -> Offsets:
    """Make i.i.d. Gaussian offsets, the paper's randomised variant."""
    return _measured(np.round(rng.standard_normal((d, d)) / _GRID) * _GRID)


def _measured(Z: Array) -> Offsets:
    singular = np.linalg.svd(Z, compute_uv=False)
    return Offsets(Z, float(singular[-1]), float(singular[0]))
