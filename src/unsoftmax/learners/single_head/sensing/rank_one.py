"""Rank-one measurements t_k = a_k·(W b_k) of a matrix, as an operator 𝒜 and as equations.

𝒜(W)_k = a_k·(W b_k), 𝒜ᵀ(y) = Σ y_k a_k b_kᵀ, 𝒜𝒜ᵀ = G with G_kl = (a_k·a_l)(b_k·b_l): products
cost m·d² and the Gram matrix m²·d; the (m, d²) matrix is formed only where m is about d².
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from unsoftmax.measure.precision import UNIT
from unsoftmax.probes import Array


@dataclass(frozen=True, slots=True)
class Measurements:
    """Rank-one measurements t_k = a_k·(W b_k), each off by at most ``noise[k]``.

    Attributes
    ----------
    a, b : ndarray (m, d)
        Left and right vectors.
    t : ndarray (m,)
        What was measured.
    noise : ndarray (m,)
        Bounds e_k on the errors; zeros for exact measurements.
    """

    a: Array
    b: Array
    t: Array
    noise: Array

    @property
    def dim(self) -> int:
        """Dimension d."""
        return int(self.a.shape[1])

    def __len__(self) -> int:
        return len(self.t)

    def pick(self, which: NDArray[np.bool_]) -> Measurements:
        """Return some of them."""
        return Measurements(self.a[which], self.b[which], self.t[which], self.noise[which])

    def of(self, W: Array) -> Array:
        """Return 𝒜(W)."""
        measured: Array = np.einsum("kd,kd->k", self.a @ W, self.b)
        return measured

    def adjoint(self, y: Array) -> Array:
        """Return 𝒜ᵀ(y)."""
        back: Array = (self.a * y[:, None]).T @ self.b
        return back

    def gram(self) -> Array:
        """Return G = 𝒜𝒜ᵀ, (m, m)."""
        gram: Array = (self.a @ self.a.T) * (self.b @ self.b.T)
        return gram

    def matrix(self) -> Array:
        """Write 𝒜 out, (m, d²)."""
        rows: Array = np.einsum("ki,kj->kij", self.a, self.b).reshape(len(self), -1)
        return rows

    @property
    def weights(self) -> Array:
        """What an equation counts in a least-squares fit: 1/e_k, or 1 for exact measurements."""
        if not np.any(self.noise):
            return np.ones(len(self))
        weights: Array = 1 / np.maximum(self.noise, 1e-300)
        return weights

    def normalised(self) -> Measurements:
        """Return the same equations with a_k and b_k of norm 1."""
        a_norm, b_norm = (np.linalg.norm(x, axis=1) for x in (self.a, self.b))
        scale = a_norm * b_norm
        return Measurements(
            self.a / a_norm[:, None], self.b / b_norm[:, None], self.t / scale, self.noise / scale
        )

    def rms_misfit(self, W: Array, rounding: float) -> float:
        """Return the root mean square of the residuals in units of their bounds; ≤ 1 fits.

        Without noise a residual may be ``rounding`` times the root mean square of t.
        """
        size = np.sqrt(np.mean(self.t**2))
        bound = self.noise if np.any(self.noise) else np.full(len(self), rounding * size)
        residual = self.t - self.of(W)
        if not np.any(residual):
            return 0.0
        with np.errstate(divide="ignore"):
            return float(np.sqrt(np.mean((residual / bound) ** 2)))


# -- Rank-one measurements on the matrices near one of rank r, to first order: W + U₁ B + C V₁ᵀ
#
# With orthogonal U = [U₁ U₂] and V = [V₁ V₂] whose first r columns span W's column and row space,
# the coordinates are x = (U₁ᵀ M V, U₂ᵀ M V₁): r(2d − r) of them, an orthonormal basis. Weighted
# measurements are T x, products of m×d and d×r matrices: T (m × r(2d − r)) is written out only
# where that is small. Elsewhere
#
# - least squares are LSMR's, from products with T and Tᵀ alone;
# - the smallest gain σ of T comes from TᵀT, summed over some rows at a time: inverse iteration
#   guesses σ², and a Cholesky factorisation of TᵀT − s that succeeds proves σ² > s.
#
# Measured (one core): d = 384, r = 8, m = 19,776: one product 0.04 s, least squares 2 s, the gain
# 40 s and 0.7 GB; T itself has 1 GB.

Product = Callable[[Array], Array]


# Numbers of T up to which it is decomposed: 32 MB, two seconds.
WRITTEN_OUT = 2**22
# More are not fitted: TᵀT has half a gigabyte here, and takes a minute or two.
MOST_UNKNOWNS = 8192
# Numbers of T that are made at a time for TᵀT: 128 MB.
CHUNK = 2**24
# Of LSMR. Gauss–Newton solves for what is left again, so that this is no limit.
TOLERANCE = 1e-12
# Of LSMR at most; problems with three measurements per unknown take 50 to 100.
ITERATIONS = 1000
# Inverse iterations for the smallest gain, 0.1 s each at 6,000 unknowns.
GUESSES = 30
# The bound that is tried, of the guess; of the last bound where that was too much.
BELOW = 0.9
# Factorisations at most: below 0.6 of the guess nothing is proved.
TRIES = 5


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

    @classmethod
    def at(cls, measured: Measurements, W: Array, rank: int, weights: Array) -> TangentSpace:
        """Look at the matrices of rank ``rank`` near W, which has no other rank."""
        left, _, right = np.linalg.svd(W)
        a = (measured.a @ left) * weights[:, None]
        return cls(left, right.T, a, measured.b @ right.T, rank)

    @property
    def unknowns(self) -> int:
        """How many numbers a matrix near W has: r(2d − r)."""
        return self.rank * (2 * len(self.U) - self.rank)

    @property
    def written_out(self) -> bool:
        """Whether T is small enough to be decomposed."""
        return len(self.a) * self.unknowns <= WRITTEN_OUT

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
        return _proved_gain(self._gram(), len(self.a))

    def _lsmr(self, of: Product, back: Product, y: Array, unknowns: int) -> Array:
        operator = scipy.sparse.linalg.LinearOperator(
            (len(y), unknowns), matvec=of, rmatvec=back, dtype=np.float64
        )
        most, close = ITERATIONS, TOLERANCE
        solved = scipy.sparse.linalg.lsmr(
            operator, y, atol=close, btol=close, conlim=0.0, maxiter=most
        )
        return np.asarray(solved[0], np.float64)

    def _gram(self) -> Array:
        """Return the upper triangle of TᵀT."""
        total = np.zeros((self.unknowns, self.unknowns), order="F")
        step = max(1, CHUNK // self.unknowns)
        for start in range(0, len(self.a), step):
            rows = self.rows(slice(start, start + step))
            total = scipy.linalg.blas.dsyrk(1.0, rows.T, beta=1.0, c=total, overwrite_c=1)
        return total


def _proved_gain(gram: Array, rows: int) -> float:
    """Bound the smallest gain from below by TᵀT, whose upper triangle is given; 0 is no bound."""
    # what rounding may move an eigenvalue by: of the sums in TᵀT, and of the factorisation
    unsure = (rows + len(gram)) * UNIT * float(np.trace(gram))
    diagonal, factor = np.diag_indices(len(gram)), _cholesky(gram)
    if factor is None:
        return 0.0
    x, guess = np.ones(len(gram)), 0.0
    for _ in range(GUESSES):
        x /= np.linalg.norm(x)
        x = scipy.linalg.cho_solve((factor, False), x, check_finite=False)
        guess = 1 / float(np.linalg.norm(x))
    del factor
    for tried in range(1, TRIES + 1):
        bound = guess * BELOW**tried
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


# -- A matrix of given rank from rank-one measurements, by Gauss–Newton
#
# Near W = U S Vᵀ the matrices of its rank are, to first order, W + U B + C Vᵀ: r(2d − r) unknowns
# (`tangent_space`). A step solves for them by weighted least squares and cuts the result
# back to the rank; from a start near the solution the error squares at every step.

# Steps at most: convergence is quadratic, so that more would only show divergence.
FIT_STEPS = 12
# Without noise a residual of this share of ‖t‖ is still rounding. Larger: matrices of too low a
# rank are taken; smaller: ill-conditioned right ones are not.
FIT_ROUNDING = 1e-11


def fit_rank(measured: Measurements, start: Array, rank: int) -> tuple[Array, float] | None:
    """Fit a matrix of the given rank, from the best approximation of ``start`` on.

    Returns
    -------
    tuple or None
        The matrix, and the smallest gain of the weighted measurements on its tangent space, or a
        lower bound on it. None where they do not determine it, where it does not fit them, and
        where its unknowns are too many.

    Examples
    --------
    >>> a, b = np.random.default_rng(0).standard_normal((2, 6, 3))
    >>> W = np.outer([1.0, 2.0, 3.0], np.ones(3))
    >>> measured = Measurements(a, b, np.einsum("kd,de,ke->k", a, W, b), np.zeros(6))
    >>> found, gain = fit_rank(measured, W + 0.1 * np.eye(3), 1)
    >>> bool(np.allclose(found, W, atol=1e-12))
    True
    """
    unknowns = rank * (2 * measured.dim - rank)
    if unknowns > min(len(measured), MOST_UNKNOWNS):
        return None
    weights = measured.weights
    smallest: float | None = np.inf
    W, last = truncated(start, rank), np.inf
    space = TangentSpace.at(measured, W, rank, weights)
    for _ in range(FIT_STEPS if rank else 0):
        x, gain = space.least_squares(weights * (measured.t - measured.of(W)))
        if gain == 0:
            return None
        W = truncated(W + space.matrix_of(x), rank)
        smallest, step = gain, float(np.linalg.norm(x))
        # quadratic until rounding: then steps stop halving
        if step > last / 2 or step <= 2 * UNIT * np.linalg.norm(W):
            break
        last, space = step, TangentSpace.at(measured, W, rank, weights)
    if measured.rms_misfit(W, FIT_ROUNDING) > 1:
        return None
    if smallest is None:
        smallest = space.smallest_gain()
    return (W, smallest) if smallest > 0 else None


def truncated(W: Array, rank: int) -> Array:
    """Return the best approximation of a given rank."""
    left, values, right = np.linalg.svd(W)
    best: Array = (left[:, :rank] * values[:rank]) @ right[:rank]
    return best


def least_squares(A: Array, y: Array) -> tuple[Array, int, Array]:
    """Return the solution, the rank of ``A`` and its singular values."""
    x, _, rank, gains = np.linalg.lstsq(A, y, rcond=None)
    return np.asarray(x, np.float64), int(rank), np.asarray(gains, np.float64)


# -- How far two matrices of one rank are apart that nearly fit the same rank-one measurements
#
# Readings t_k = a_k·(W b_k), each within its bound, weighted by the bounds' inverses: in these
# units they are off by 1 at most. On the tangent space of the matrices of rank r at Ŵ the
# measurements have a smallest gain σ, anywhere a largest gain Σ. So ‖Ŵ − W‖ ≤ B + c‖Ŵ − W‖² with
# B = ‖𝒜(Ŵ) − 𝒜(W)‖/σ, which t bounds, and c = (1 + Σ/σ)/σ_r(Ŵ). Singular values of Ŵ within its
# error make c large: the bound is also taken without them, their norm added, and the least counts.
#
# Needs no ground truth: readings and Ŵ in, error out. Source: beyond Theorem 5.1, whose guarantee
# has no constants.


def rank_error(measured: float, smallest: float, largest: float, value: float) -> float:
    """Bound ‖Ŵ − W‖_F for two matrices of one rank, near each other.

    On the tangent space at Ŵ the measurements have gain ``smallest`` at least, anywhere
    ``largest`` at most; ``measured`` bounds ‖𝒜(Ŵ) − 𝒜(W)‖₂. Off the tangent space W is by
    ‖Δ‖²/σ at most, σ being ``value``, the smallest singular value of Ŵ that is not 0 (infinity
    where there is none), while ‖Δ‖ ≤ σ/2. So ‖Δ‖ ≤ B + c‖Δ‖² with B = measured/smallest and
    c = (1 + largest/smallest)/σ: of its two solutions the small one, and no bound when there is
    none.

    Examples
    --------
    >>> round(rank_error(1e-3, 1.0, 9.0, 1.0), 6), rank_error(1.0, 1.0, 9.0, 1.0)
    (0.00101, inf)
    """
    if not smallest > 0:
        return float("inf")
    bound = measured / smallest
    curvature = (1 + largest / smallest) / value
    room = 1 - 4 * curvature * bound
    return 2 * bound / (1 + float(np.sqrt(room))) if room > 0 else float("inf")


# Singular values are clear of drawn errors where they are so many times as large: what the errors'
# bounds, which are as much larger, would leave of them.
CLEAR = 4.0


def fixed_rank_error(
    measured: Measurements, W: Array, found: int, rank: int, drawn: Array | None = None
) -> float:
    """Bound ‖Ŵ − W‖_F for a true W of rank ``rank`` or less that is near Ŵ.

    Parameters
    ----------
    measured : Measurements
        Readings with bounds on their errors.
    W : ndarray (d, d)
        Ŵ.
    found : int
        Its rank, ``rank`` at most.
    rank : int
        The largest rank that W may have.
    drawn : ndarray (draws, m), optional
        Errors of the readings, drawn at random as large as they may be together: the root mean
        square of what they move W by is taken for what their bounds allow.

    Returns
    -------
    float
        Infinity where the readings' errors are too large beside Ŵ's singular values, or their
        gain is 0, or there is none.
    """
    if not len(measured):
        return float("inf") if rank else 0.0
    left, values, right = np.linalg.svd(W)
    size = float(np.linalg.norm(values))
    if not rank:
        return 4 * UNIT * size
    weights = measured.weights
    space = TangentSpace.at(measured, W, rank, weights)
    # a gain of 0 is taken for one far below rounding: the bound it gives is as good as none
    smallest = max(space.smallest_gain(), 1e-200)
    norms = np.linalg.norm(measured.b, axis=1).max()
    largest = float(norms * np.linalg.norm(measured.a * weights[:, None], 2))

    def moved(errors: Array) -> float:
        if drawn is None:
            return float(np.linalg.norm(weights * errors)) / smallest
        return float(np.linalg.norm(space.least_squares(weights * errors)[0]))

    # weighted by 1/e_k a measurement is off by at most 1
    sure = float(np.sqrt(len(measured))) / smallest
    if drawn is not None and smallest > 1e-200:
        sure = float(np.sqrt(np.mean([moved(errors) ** 2 for errors in drawn])))
    # singular values within the error would make the curvature large for nothing
    unsure = sure + moved(measured.t - measured.of(W))
    clear = int(np.count_nonzero(values[:found] > (1.0 if drawn is None else CLEAR) * unsure))
    bounds = []
    for kept in range(clear, found + 1):
        nearest = (left[:, :kept] * values[:kept]) @ right[:kept]
        off = sure + moved(measured.t - measured.of(nearest))
        value = float(values[kept - 1]) if kept else np.inf
        bound = rank_error(off * smallest, smallest, largest, value)
        bounds.append(bound + float(np.linalg.norm(values[kept:found])))
    return min(bounds) + 4 * UNIT * size
