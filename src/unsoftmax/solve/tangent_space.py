"""Rank-one measurements on the matrices near one of rank r, to first order: W + U₁ B + C V₁ᵀ.

With orthogonal U = [U₁ U₂] and V = [V₁ V₂] whose first r columns span W's column and row space,
the coordinates are x = (U₁ᵀ M V, U₂ᵀ M V₁): r(2d − r) of them, an orthonormal basis. Weighted
measurements are T x, products of m×d and d×r matrices: T (m × r(2d − r)) is written out only
where that is small. Elsewhere

- least squares are LSMR's, from products with T and Tᵀ alone;
- the smallest gain σ of T comes from TᵀT, summed over some rows at a time: inverse iteration
  guesses σ², and a Cholesky factorisation of TᵀT − s that succeeds proves σ² > s.

Measured (one core): d = 384, r = 8, m = 19,776: one product 0.04 s, least squares 2 s, the gain
40 s and 0.7 GB; T itself has 1 GB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

from unsoftmax.models.arrays import UNIT
from unsoftmax.probes import Array
from unsoftmax.solve.rank_one_measurements import Measurements

Product = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class TangentTuning:
    """When T is written out, and how it is used where it is not."""

    dense: int = 2**22
    """Numbers of T up to which it is decomposed: 32 MB, two seconds."""
    most_unknowns: int = 8192
    """More are not fitted: TᵀT has half a gigabyte here, and takes a minute or two."""
    chunk: int = 2**24
    """Numbers of T that are made at a time for TᵀT: 128 MB."""
    tolerance: float = 1e-12
    """Of LSMR. Gauss–Newton solves for what is left again, so that this is no limit."""
    iterations: int = 1000
    """Of LSMR at most; problems with three measurements per unknown take 50 to 100."""
    guesses: int = 30
    """Inverse iterations for the smallest gain, 0.1 s each at 6,000 unknowns."""
    below: float = 0.9
    """The bound that is tried, of the guess; of the last bound where that was too much."""
    tries: int = 5
    """Factorisations at most: below 0.6 of the guess nothing is proved."""


@dataclass(frozen=True, slots=True)
class TangentSpace:
    """Weighted measurements of the matrices of one rank near W, to first order.

    Attributes
    ----------
    U, V : ndarray (d, d)
        Orthogonal; the first ``rank`` columns span W's column and row space.
    a, b : ndarray (m, d)
        The measurements' vectors in these bases, a_k times its weight.
    """

    U: Array
    V: Array
    a: Array
    b: Array
    rank: int
    tuning: TangentTuning

    @classmethod
    def at(
        cls, measured: Measurements, W: Array, rank: int, tuning: TangentTuning, weights: Array
    ) -> TangentSpace:
        """Look at the matrices of rank ``rank`` near W, which has no other rank."""
        left, _, right = np.linalg.svd(W)
        a = (measured.a @ left) * weights[:, None]
        return cls(left, right.T, a, measured.b @ right.T, rank, tuning)

    @property
    def unknowns(self) -> int:
        """How many numbers a matrix near W has: r(2d − r)."""
        return self.rank * (2 * len(self.U) - self.rank)

    @property
    def written_out(self) -> bool:
        """Whether T is small enough to be decomposed."""
        return len(self.a) * self.unknowns <= self.tuning.dense

    # -- coordinates

    def split(self, x: Array) -> tuple[Array, Array]:
        """Return the two blocks of coordinates, (r, d) and (d − r, r)."""
        d, rank = len(self.U), self.rank
        return x[: rank * d].reshape(rank, d), x[rank * d :].reshape(d - rank, rank)

    def matrix_of(self, x: Array) -> Array:
        """Turn coordinates back into a matrix."""
        (across, down), rank = self.split(x), self.rank
        left, right = self.U, self.V.T
        M: Array = left[:, :rank] @ across @ right + left[:, rank:] @ down @ right[:rank]
        return M

    def coordinates(self, M: Array) -> Array:
        """Return the coordinates of what of M lies in the tangent space."""
        inside, rank = self.U.T @ M @ self.V, self.rank
        return np.concatenate([inside[:rank].ravel(), inside[rank:, :rank].ravel()])

    # -- T

    def rows(self, which: slice = slice(None)) -> Array:
        """Write rows of T out."""
        a, b, rank = self.a[which], self.b[which], self.rank
        across = np.einsum("ki,kj->kij", a[:, :rank], b).reshape(len(a), -1)
        down = np.einsum("ki,kj->kij", a[:, rank:], b[:, :rank]).reshape(len(a), -1)
        T: Array = np.hstack([across, down])
        return T

    def of(self, x: Array) -> Array:
        """Return T x."""
        (across, down), rank = self.split(x.ravel()), self.rank
        y: Array = np.einsum("kr,kr->k", self.a[:, :rank], self.b @ across.T)
        y += np.einsum("kr,kr->k", self.a[:, rank:] @ down, self.b[:, :rank])
        return y

    def adjoint(self, y: Array) -> Array:
        """Return Tᵀ y."""
        rank, y = self.rank, y.reshape(-1, 1)
        across = (self.a[:, :rank] * y).T @ self.b
        down = self.a[:, rank:].T @ (self.b[:, :rank] * y)
        return np.concatenate([across.ravel(), down.ravel()])

    # -- what is solved with it

    def least_squares(self, y: Array) -> tuple[Array, float | None]:
        """Solve T x = y; the smallest gain comes with it where T is written out.

        It is 0 where T does not determine x.
        """
        if self.written_out:
            x, _, found, gains = np.linalg.lstsq(self.rows(), y, rcond=None)
            return np.asarray(x, np.float64), float(gains[-1]) if found == len(x) else 0.0
        return self._lsmr(self.of, self.adjoint, y, self.unknowns), None

    def least_norm(self, g: Array) -> Array:
        """Return the shortest y with Tᵀ y = g."""
        if self.written_out:
            return np.asarray(np.linalg.lstsq(self.rows().T, g, rcond=None)[0], np.float64)
        return self._lsmr(self.adjoint, self.of, g, len(self.a))

    def smallest_gain(self) -> float:
        """Return a lower bound on the smallest singular value of T, exact where it is small."""
        if len(self.a) < self.unknowns:
            return 0.0
        if self.written_out:
            return float(np.linalg.svd(self.rows(), compute_uv=False)[-1])
        return _proved_gain(self._gram(), len(self.a), self.tuning)

    def _lsmr(self, of: Product, back: Product, y: Array, unknowns: int) -> Array:
        operator = scipy.sparse.linalg.LinearOperator(
            (len(y), unknowns), matvec=of, rmatvec=back, dtype=np.float64
        )
        most, close = self.tuning.iterations, self.tuning.tolerance
        solved = scipy.sparse.linalg.lsmr(
            operator, y, atol=close, btol=close, conlim=0.0, maxiter=most
        )
        return np.asarray(solved[0], np.float64)

    def _gram(self) -> Array:
        """Return the upper triangle of TᵀT."""
        total = np.zeros((self.unknowns, self.unknowns), order="F")
        step = max(1, self.tuning.chunk // self.unknowns)
        for start in range(0, len(self.a), step):
            rows = self.rows(slice(start, start + step))
            total = scipy.linalg.blas.dsyrk(1.0, rows.T, beta=1.0, c=total, overwrite_c=1)
        return total


def _proved_gain(gram: Array, rows: int, tuning: TangentTuning) -> float:
    """Bound the smallest gain from below by TᵀT, whose upper triangle is given; 0 is no bound."""
    # what rounding may move an eigenvalue by: of the sums in TᵀT, and of the factorisation
    unsure = (rows + len(gram)) * UNIT * float(np.trace(gram))
    diagonal, factor = np.diag_indices(len(gram)), _cholesky(gram)
    if factor is None:
        return 0.0
    x, guess = np.ones(len(gram)), 0.0
    for _ in range(tuning.guesses):
        x /= np.linalg.norm(x)
        x = scipy.linalg.cho_solve((factor, False), x, check_finite=False)
        guess = 1 / float(np.linalg.norm(x))
    del factor
    for tried in range(1, tuning.tries + 1):
        bound = guess * tuning.below**tried
        shifted = gram.copy(order="F")
        shifted[diagonal] -= bound
        if _cholesky(shifted) is not None:
            return float(np.sqrt(max(0.0, bound - unsure)))
    return 0.0


def _cholesky(gram: Array) -> Array | None:
    """Return the upper factor; None where the matrix is not positive definite."""
    try:
        return np.asarray(scipy.linalg.cholesky(gram, check_finite=False), np.float64)
    except scipy.linalg.LinAlgError:
        return None
