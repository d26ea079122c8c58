"""The skeleton W = C (A C)⁻¹ (A W): a matrix of rank r from r of its columns and r of its rows.

C = W X are columns that span W's range, A holds row vectors (offsets) that see all of it. With
an orthonormal basis Q of C's span in C's place,

    W = Q (A Q)⁻¹ (A W),        Π = Q (A Q)⁻¹ A,  the projection onto the span along A's kernel.

*Error*, exactly: columns Ĉ = C + E and rows A W + F give, with W = C K,

    Ŵ − W = (I − Π) E K + Q (A Q)⁻¹ F,        ‖I − Π‖ = ‖Π‖,
    ‖Ŵ − W‖_F ≤ ‖Π‖ ‖E‖_F ‖K‖ + ‖(A Q)⁻¹‖ ‖F‖_F,

Π being that of Ĉ. More rows than r are a least-squares solution; the same holds with (A Q)⁺.
Nothing is asked here and nothing is known of heads: arrays in, matrix and error out.
Source: the skeleton (CUR) decomposition; beyond Theorem 5.1, which needs O(rd) equations.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from unsoftmax.probes import Array, Indices


def rank_by_gap(singular: Array, noise: float = 0.0, share: float = 0.0) -> int:
    """Count the singular values above the noise and above a share of the largest.

    Parameters
    ----------
    singular : ndarray
        Singular values, the largest first.
    noise : float
        What errors alone may give a singular value.
    share : float
        Smallest singular value that counts, as a share of the largest.

    Examples
    --------
    >>> rank_by_gap(np.array([3.0, 1.0, 1e-9]), share=1e-6)
    2
    """
    largest = float(singular[0]) if len(singular) else 0.0
    return int(np.count_nonzero(singular > max(noise, share * largest)))


def basis_of(columns: Array, rank: int | None = None, share: float = 0.0) -> Array:
    """Return an orthonormal basis (d, r) of what columns (d, n) span.

    Every column is normalised first, so that a short one counts as much as a long one; a column
    of zeros adds nothing.

    Parameters
    ----------
    columns : ndarray (d, n)
        The columns.
    rank : int, optional
        Dimension of the span: the leading directions; found by `rank_by_gap` where None.
    share : float
        See `rank_by_gap`.
    """
    if not columns.shape[1]:
        return np.zeros((len(columns), 0))
    length = np.linalg.norm(columns, axis=0)
    basis, singular, _ = np.linalg.svd(
        columns / np.where(length > 0, length, 1.0), full_matrices=False
    )
    if rank is None:
        return np.asarray(basis[:, np.arange(len(singular)) < rank_by_gap(singular, share=share)])
    return np.asarray(basis[:, :rank])


def pivots(columns: Array, count: int) -> Indices:
    """Choose ``count`` columns of a matrix (m, n) that are far from dependent, in rising order.

    They are the first pivots of its QR decomposition. For rows pass the transpose.
    """
    _, order = scipy.linalg.qr(columns, mode="r", pivoting=True)
    return np.sort(order[:count]).astype(np.intp)


def dependence(row_space: Array, tokens: Array) -> float:
    """Return ‖K‖₂ of W = (W X) K: how much more than its columns W X may be all of W.

    Infinity where the columns do not span W's range.

    Parameters
    ----------
    row_space : ndarray (r, d)
        Independent rows that span W's row space.
    tokens : ndarray (n, d)
        X, one query token per row, n ≥ r.
    """
    basis = np.linalg.qr(row_space.T)[0]
    singular = np.linalg.svd(tokens @ basis, compute_uv=False)
    return _inverse(float(singular[-1])) if len(singular) else 0.0


class Amplification(NamedTuple):
    """How much errors grow in a skeleton solve; infinite where the core is singular."""

    tilt: float
    """‖Π‖₂ = ‖I − Π‖₂, 1 or more (0 at rank 0): for errors of columns."""
    gain: float
    """‖(A Q)⁻¹‖₂: for errors of rows."""

    def error(self, columns: float, dependence: float, rows: float) -> float:
        """Bound ‖Ŵ − W‖_F in exact arithmetic.

        Parameters
        ----------
        columns : float
            ‖E‖_F, the error of the columns that the basis came from.
        dependence : float
            ‖K‖₂ in W = C K; see `dependence`.
        rows : float
            ‖F‖_F, the error of A W.
        """
        from_columns = self.tilt * columns * dependence if columns else 0.0
        return from_columns + (self.gain * rows if rows else 0.0)


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A span, and the rows by which vectors of that span are told apart.

    Attributes
    ----------
    basis : ndarray (d, r)
        Q, orthonormal.
    rows : ndarray (n, d)
        A, n ≥ r.

    Examples
    --------
    >>> W = np.outer([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    >>> skeleton = Skeleton(basis_of(W[:, :1]), np.eye(3)[:1])
    >>> bool(np.allclose(skeleton.solve(W[:1]), W))
    True
    """

    basis: Array
    rows: Array

    @property
    def core(self) -> Array:
        """A Q, (n, r)."""
        return np.asarray(self.rows @ self.basis)

    @property
    def spans_all(self) -> bool:
        """Whether the span is all vectors: then Π = I, and errors of columns do not count."""
        return bool(len(self.basis) == self.basis.shape[1])

    def coordinates(self, measured: Array) -> Array:
        """Return k (r, …) with A Q k = ``measured`` (n, …): in the basis, what the rows saw.

        Raises
        ------
        numpy.linalg.LinAlgError
            The rows do not tell the span's vectors apart.
        """
        core = self.core
        if len(core) == core.shape[1]:
            return np.asarray(np.linalg.solve(core, measured))
        return np.asarray(np.linalg.lstsq(core, measured, rcond=None)[0])

    def solve(self, measured: Array) -> Array:
        """Return Q (A Q)⁻¹ ``measured``, (d, …): the vectors of the span that the rows saw."""
        return np.asarray(self.basis @ self.coordinates(measured))

    def residual(self, measured: Array) -> Array:
        """Return what no vector of the span explains; 0 but for rounding where n = r."""
        return np.asarray(measured - self.core @ self.coordinates(measured))

    def amplification(self) -> Amplification:
        """Return how much errors grow."""
        if not self.basis.shape[1]:
            return Amplification(0.0, 0.0)
        gain = _inverse(float(np.linalg.svd(self.core, compute_uv=False)[-1]))
        if np.isinf(gain):
            return Amplification(gain, gain)
        return Amplification(float(np.linalg.norm(self.coordinates(self.rows), 2)), gain)


def _inverse(value: float) -> float:
    return 1 / value if value > 0 else float("inf")
