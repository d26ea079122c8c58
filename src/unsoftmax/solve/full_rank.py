"""Linear systems whose columns are independent, at the least cost in time and memory.

A square one is solved by LU decomposition, in ⅔n³ operations where an orthonormal factor would
take four times as many; others by a QR decomposition whose orthonormal factor is never formed.
"""

import numpy as np
import scipy

from unsoftmax.probes import Array


def solved(A: Array, B: Array) -> Array:
    """Solve A X = B by least squares, A (m, k) of rank k, B (m, n).

    A column of B that is not finite gives one of NaN; the others are solved.

    Raises
    ------
    LinAlgError
        A is singular.

    Examples
    --------
    >>> solved(np.array([[2.0, 0.0], [0.0, 4.0]]), np.array([[2.0], [2.0]])).ravel().tolist()
    [1.0, 0.5]
    >>> solved(np.array([[1.0], [1.0]]), np.array([[1.0, 0.0], [3.0, 2.0]])).round(9).tolist()
    [[2.0, 1.0]]
    >>> solved(np.array([[1.0], [1.0]]), np.array([[1.0, np.nan], [3.0, 2.0]])).round(9).tolist()
    [[2.0, nan]]
    """
    finite = np.all(np.isfinite(B), axis=0)
    X = np.full((A.shape[1], B.shape[1]), np.nan)
    if np.any(finite):
        X[:, finite] = _solved(A, B[:, finite])
    return X


def _solved(A: Array, B: Array) -> Array:
    """Solve the same for finite B."""
    if A.shape[0] == A.shape[1]:
        return np.asarray(np.linalg.solve(A, B))
    rotated, R = scipy.linalg.qr_multiply(A, B.T, mode="right")
    return np.asarray(scipy.linalg.solve_triangular(R, rotated.T, check_finite=False))
