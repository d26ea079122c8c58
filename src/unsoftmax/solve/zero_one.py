"""Columns of zeros and ones in the span of a matrix: gates from their sums.

Rows that are sums Σ_h g_h m_h of H independent vectors, g_h ∈ {0, 1}, span what the columns of
the matrix G of the g's span. On H rows that determine the others every column of G is one of 2^H
patterns; only columns of G, and by chance few others, are 0 or 1 on all other rows as well.
"""

from __future__ import annotations

import numpy as np
import scipy

from unsoftmax.probes import Array


def zero_one_columns(rows: Array, apart: float) -> Array:
    """Find all 0/1 columns in the column space of ``rows`` (n, H) whose last entry is 1.

    Parameters
    ----------
    rows : ndarray, shape (n, H)
        Of rank H.
    apart : float
        How far from 0 and 1 an entry may be.

    Returns
    -------
    ndarray, shape (n, k)
        Every such column. *Work*: 2^(H − 1) patterns of n numbers.

    Examples
    --------
    >>> gates = np.array([[1, 0], [0, 1], [0, 0], [1, 1]])
    >>> zero_one_columns(gates @ np.array([[2.0, 1.0], [1.0, 3.0]]), 1e-6)
    array([[0., 1.],
           [1., 0.],
           [0., 0.],
           [1., 1.]])
    """
    n, H = rows.shape
    left = np.linalg.svd(rows, full_matrices=False)[0]
    # the last row is among those that determine the others: its entry is known
    weighed = left.copy()
    weighed[-1] *= 2 / max(float(np.linalg.norm(left[-1])), 1e-300)
    chosen = scipy.linalg.qr(weighed.T, pivoting=True, mode="r")[1][:H]
    others = chosen[chosen != n - 1]
    determines = np.linalg.inv(left[np.append(others, n - 1)])
    patterns = (np.arange(2 ** (H - 1))[None] >> np.arange(H - 1)[:, None]) & 1
    columns = left @ determines @ np.vstack([patterns, np.ones((1, patterns.shape[1]))])
    rounded = np.clip(np.round(columns), 0, 1)
    fits = np.max(np.abs(columns - rounded), axis=0) <= apart
    return np.asarray(rounded[:, fits])
