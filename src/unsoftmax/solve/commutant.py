"""The finest simultaneous block diagonalisation of symmetric matrices, by what commutes with them.

Given symmetric A_1 … A_n (d, d), known up to a relative error, find the finest decomposition of
their joint range into mutually orthogonal subspaces that every A_t leaves invariant. The
symmetric X with [X, A_t] = 0 for all t form the *commutant*. It contains the orthogonal
projections on the subspaces; where no two of the subspaces carry equivalent blocks these span
it, so its dimension is the number H of subspaces, and the eigenspaces of one X taken at random
are the subspaces.

1. The joint range: left singular vectors of [A_1 … A_n] above ``limit``.
2. The null space of X ↦ ([X, A_1], …, [X, A_n]) on the symmetric matrices of that range: the
   right singular vectors at or below ``limit``. The gap around ``limit`` is returned with it.
3. Eigenspaces of a random element of the null space, of the draw with the widest gaps, and once
   more of the element nearest to Σ_h h·P_h, whose gaps are 1.

Time grows as n·d⁶ and memory as d⁴: step 2 is a QR of n·d(d − 1)/2 rows and d(d + 1)/2 columns,
kept as a triangle so that a further matrix costs one update.

Source: Murota, Kanno, Kojima & Kojima (2010); Maehara & Murota (2011). Used for the conjecture
of Appendix C of arXiv 2601.16873.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class CommonBlocks:
    """What commutes with some symmetric matrices, within their joint range."""

    within: Array
    """Orthonormal basis (d, r) of the joint range."""
    null: Array
    """Orthonormal basis (H, r, r) of the symmetric matrices that commute."""
    zero: float
    """The largest singular value that counts as 0, of X ↦ [X, A] or of the A themselves,
    relative to the largest of its kind."""
    smallest: float
    """The smallest singular value of X ↦ [X, A] that does not, relative to the largest;
    infinity where all of them count as 0."""

    @property
    def shape(self) -> tuple[int, int]:
        """Dimension r of the joint range and number H of subspaces."""
        return self.within.shape[1], len(self.null)

    @property
    def gap(self) -> float:
        """How many times ``smallest`` is ``zero``: the decision is safe where this is large."""
        return self.smallest / self.zero if self.zero else float("inf")

    def subspaces(self, rng: np.random.Generator, draws: int) -> list[Array]:
        """Return orthonormal bases (d, d_h) of the H subspaces.

        Parameters
        ----------
        rng : Generator
            Draws elements of the null space.
        draws : int
            How many: the one whose eigenvalues have the widest gaps is taken.
        """
        H = len(self.null)
        if not H:
            return []
        best, cut, vectors = -np.inf, np.zeros(0, dtype=np.intp), np.eye(self.within.shape[1])
        for _ in range(draws):
            values, turned = np.linalg.eigh(np.tensordot(rng.standard_normal(H), self.null, 1))
            steps = np.diff(values)
            cuts = np.sort(np.argsort(-steps)[: H - 1]) + 1
            gap = np.min(steps[cuts - 1], initial=np.inf) / (values[-1] - values[0] or 1.0)
            if gap > best:
                best, cut, vectors = gap, cuts, turned
        parts = np.split(vectors, cut, axis=1)
        wanted = np.sum([h * part @ part.T for h, part in enumerate(parts, 1)], axis=0)
        nearest = np.tensordot(np.tensordot(self.null, wanted, 2), self.null, 1)
        _, vectors = np.linalg.eigh(nearest)
        return [self.within @ part for part in np.split(vectors, cut, axis=1)]


def common_blocks(A: Sequence[Array] | Array, limit: float) -> CommonBlocks:
    """Return what commutes with all of ``A``, symmetric (n, d, d).

    Relative singular values up to ``limit`` count as 0.

    Examples
    --------
    >>> A = np.zeros((2, 3, 3))
    >>> A[:, :2, :2], A[:, 2, 2] = [[[1, 2], [2, 0]], [[0, 1], [1, 3]]], [4, 5]
    >>> common_blocks(A, 1e-9).shape
    (3, 2)
    """
    commutant = Commutant(limit)
    commutant.add(A)
    return commutant.blocks()


@dataclass(slots=True)
class Commutant:
    """What commutes with symmetric matrices that come one after the other."""

    limit: float
    """Relative singular values up to this count as 0."""
    seen: list[Array] = field(default_factory=list)
    """The matrices, one by one."""
    _ranges: list[tuple[int, float]] = field(default_factory=list)
    """Dimension of the joint range and what is left outside of it, after every `add`."""
    _within: Array | None = None
    _triangle: Array | None = None
    _rows: int = 0
    """How many matrices' X ↦ [X, A] have the triangle as R of their QR decomposition."""
    _blocks: dict[int, CommonBlocks] = field(default_factory=dict)

    def add(self, A: Sequence[Array] | Array, limit: float = 0.0) -> None:
        """Take some matrices, known up to ``limit`` where that is larger than it was."""
        self.limit = max(self.limit, limit)
        self.seen += list(A)
        within, left = _joint_range(self.seen, self.limit)
        self._ranges.append((within.shape[1], left))
        if self._within is None or within.shape != self._within.shape:
            # rows of the triangle are in the coordinates of the range: another range, other rows
            self._within, self._rows, self._blocks = within, 0, {}

    def settled(self, count: int) -> bool:
        """Return whether r and H have stayed the same for the last ``count`` matrices.

        H is computed only where r has stayed the same: it is what takes time.
        """
        first = len(self.seen) - count + 1
        if first < 1 or len(self._ranges) < count:
            return False
        if len({rank for rank, _ in self._ranges[-count:]}) > 1:
            return False
        return len({self._first(n).shape for n in range(first, len(self.seen) + 1)}) == 1

    def blocks(self) -> CommonBlocks:
        """Return what commutes with all matrices."""
        return self._first(len(self.seen))

    def _first(self, count: int) -> CommonBlocks:
        """Return what commutes with the first ``count`` matrices, in the joint range of all."""
        if count not in self._blocks:
            assert self._within is not None
            size = _largest(self.seen[:count])
            triangle = self._triangle_of(count, self._within) / size
            left = self._ranges[-1][1]
            self._blocks[count] = _commuting(self._within, triangle, self.limit, left)
        return self._blocks[count]

    def _triangle_of(self, count: int, within: Array) -> Array:
        """Add rows to the triangle up to ``count`` matrices; it begins anew where it has more."""
        triangle = self._triangle
        if triangle is None or not 0 < self._rows <= count:
            r = within.shape[1]
            triangle, self._rows = np.zeros((0, r * (r + 1) // 2)), 0
        for A in self.seen[self._rows : count]:
            rows = np.vstack([triangle, _commutator(within.T @ A @ within)])
            triangle = np.asarray(np.linalg.qr(rows, mode="r"))
        self._triangle, self._rows = triangle, count
        return triangle


def _largest(A: Sequence[Array]) -> float:
    """Return the largest 2-norm; 1 where all are 0, to divide by."""
    return max(float(np.linalg.norm(x, 2)) for x in A) or 1.0


def _joint_range(A: Sequence[Array], limit: float) -> tuple[Array, float]:
    """Return a basis of the joint range, and the relative singular value left outside of it."""
    d = len(A[0])
    u, singular, _ = np.linalg.svd(np.hstack(A) / _largest(A), full_matrices=False)
    rank = int(np.count_nonzero(singular > limit))
    if rank == d:
        return np.eye(d), 0.0
    return np.asarray(u[:, :rank]), float(singular[rank])


def _commuting(within: Array, triangle: Array, limit: float, left: float) -> CommonBlocks:
    """Return the null space of a triangle of X ↦ [X, A]; ``left`` is outside of the range."""
    r = within.shape[1]
    if r <= 1:
        return CommonBlocks(within, np.ones((r, r, r)), left, np.inf)
    _, singular, right = np.linalg.svd(triangle, full_matrices=True)
    singular = np.append(singular, np.zeros(len(right) - len(singular)))
    largest = singular[0] or 1.0
    zero = singular <= limit * largest
    zero[-1] = True  # the identity commutes with everything
    null = np.tensordot(right[zero], _symmetric(r), 1)
    smallest = float(np.min(singular[~zero], initial=np.inf)) / largest
    return CommonBlocks(within, null, max(left, float(singular[zero].max()) / largest), smallest)


def _commutator(A: Array) -> Array:
    """Return the matrix of X ↦ [X, A] from symmetric matrices to antisymmetric ones."""
    r = len(A)
    product = _symmetric(r) @ A
    p, q = np.triu_indices(r, 1)
    return np.asarray((product - product.transpose(0, 2, 1))[:, p, q].T)


def _symmetric(r: int) -> Array:
    """Return an orthonormal basis of the symmetric r×r matrices."""
    p, q = np.triu_indices(r)
    basis = np.zeros((len(p), r, r))
    n = np.arange(len(p))
    basis[n, p, q] = basis[n, q, p] = np.where(p == q, 1.0, np.sqrt(0.5))
    return basis
