"""An orthonormal basis of what the rows of a matrix of low rank span."""

import numpy as np
import scipy

from unsoftmax.probes import Array


def leading_rows(A: Array, rank: int) -> Array:
    """Return the leading right singular vectors of A, (rank, d).

    Examples
    --------
    >>> leading_rows(np.array([[0.0, 2.0], [0.0, 1.0]]), 1).round(6) ** 2
    array([[0., 1.]])
    """
    try:
        rows = np.linalg.svd(A, full_matrices=False)[2]
    except np.linalg.LinAlgError:
        # LAPACK's divide and conquer fails on some matrices of low rank, one in about a hundred
        rows = scipy.linalg.svd(A, full_matrices=False, lapack_driver="gesvd")[2]
    return np.asarray(rows[:rank])
